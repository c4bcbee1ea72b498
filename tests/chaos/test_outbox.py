"""The outbox of a queue moves with its slot and survives its server. Each call arrives once, in whichever shard.

So does what a flow reports to the jobs that wait in other queues: each of its jobs runs once, and none is forgotten.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from penstock import RESULT, Penstock, WorkerSettings, current, group
from penstock.core.slots import slot
from penstock.testing import MovableClock
from penstock.worker.worker import Worker
from tests.clusters import ReplicatedCluster
from tests.servers import SLOTS, eventually
from tests.slot_moves import move_slot

JOBS = 60

FLOWS, PARTS = 4, 6


def work(app: Penstock, *queues: str) -> None:
    async def until_empty() -> None:
        await Worker(app, WorkerSettings(queues=queues, burst=True)).run()
        await app._driver.aclose_loop()

    asyncio.run(until_empty())


def require_once(app: Penstock, queue: str, ledger: str, fields: Iterable[int]) -> None:
    """Each of these fields was counted once."""
    key = app.queue(queue).key(ledger)
    transaction = app.transaction().hset(key, "end", 1)
    for one in fields:
        transaction.require_field(key, one, 1)
    transaction.commit()


def test_calls_and_the_events_of_flows_arrive_once_over_a_slot_move_and_a_fail_over(monkeypatch: pytest.MonkeyPatch):
    with ReplicatedCluster() as servers, Penstock(servers.address, prefix="outbox") as app:
        clock = MovableClock(app)
        numbers = (f"first{n}" for n in range(1000))
        first = next(name for name in numbers if slot(app.queue(name).first.bindings.keys.base) < SLOTS // 3)
        base = app.queue(first).first.bindings.keys.base
        app.queue("second", shards=3)

        @app.task(queue="second")
        async def confirm(number: int) -> int:
            return number

        @app.task(queue=first)
        async def book(number: int) -> str:
            current().stage.hincrby(app.queue(first).key("ledger"), number)
            return current().stage.enqueue(confirm.using(tenant=f"t{number % 7}").call(number)).id

        async def deliver_half(driver: Any, source: Any, target: Any, entries: Sequence[bytes]) -> None:
            """Of a worker that dies before it removes what it has delivered."""
            await driver.aio.run(target.bindings.deliver(source.name, entries[: len(entries) // 8 * 4]))

        @app.task(queue=first)
        async def part(number: int) -> int:
            current().stage.hincrby(app.queue(first).key("parts"), number)
            return number

        @app.task(queue="third")
        async def total(numbers: list[int], flow: int) -> int:
            current().stage.hincrby(app.queue("third").key("totals"), flow)
            return sum(numbers)

        @app.task(queue=first)
        async def close(total: int) -> int:
            current().stage.hincrby(app.queue(first).key("closed"), total)
            return total

        def flow(number: int) -> Any:
            """Its parts are in the queue that moves, what waits for them is in another, and the last in the first."""
            parts = group(part.call(number * PARTS + n) for n in range(PARTS))
            return parts.then(total.call(RESULT, number)).then(close.call(RESULT))

        closed = [flow(number).enqueue() for number in range(FLOWS)]
        begun = app.enqueue_many(confirm.using(tenant=f"t{n}").call(-1) for n in range(20))
        monkeypatch.setattr("penstock.worker.delivery.deliver", deliver_half)
        jobs = app.enqueue_many(book.call(number) for number in range(JOBS))
        work(app, first)
        monkeypatch.undo()
        work(app, "second")
        assert app.queue("second").count().completed > 0
        move_slot(servers.primaries[0], servers.victim, slot(base))
        eventually(lambda: app.queue(first).count().ready == 0)
        servers.replicate()
        servers.victim.kill()
        eventually(servers.has_failed_over, within=60)
        clock.advance(6)  # what was offered to the dead worker is offered again
        work(app, first, "second", "third")
        work(app, first)
        sums = [sum(range(number * PARTS, (number + 1) * PARTS)) for number in range(FLOWS)]
        assert [job.result(timeout=5) for job in closed] == sums
        confirmed = [app.job(job.result(timeout=0)).result(timeout=5) for job in jobs]
        assert confirmed == [*range(JOBS)]
        require_once(app, first, "ledger", range(JOBS))
        counts = app.queue("second").count()
        assert (counts.completed, counts.entered, counts.dead) == (JOBS + len(begun), JOBS + len(begun), 0)
        require_once(app, "third", "totals", range(FLOWS))
        require_once(app, first, "parts", range(FLOWS * PARTS))
        require_once(app, first, "closed", sums)
        for name, ended in ((first, JOBS + FLOWS * (PARTS + 1)), ("third", FLOWS)):
            counts = app.queue(name).count()
            assert (counts.completed, counts.entered, counts.dead, counts.dependent) == (ended, ended, 0, 0)
