"""The outbox of a queue moves with its slot and survives its server. Each call arrives once, in whichever shard."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from penstock import Penstock, WorkerSettings, current
from penstock.core.slots import slot
from penstock.testing import MovableClock
from penstock.worker.worker import Worker
from tests.clusters import ReplicatedCluster, move_slot
from tests.servers import SLOTS, eventually

JOBS = 60


def work(app: Penstock, *queues: str) -> None:
    async def until_empty() -> None:
        await Worker(app, WorkerSettings(queues=queues, burst=True)).run()
        await app._driver.aclose_loop()

    asyncio.run(until_empty())


def test_each_call_of_an_outbox_arrives_once_over_a_slot_move_and_a_fail_over(monkeypatch: pytest.MonkeyPatch):
    with ReplicatedCluster() as servers, Penstock(servers.address, prefix="outbox") as app:
        clock = MovableClock(app)
        numbers = (f"first{n}" for n in range(1000))
        first = next(name for name in numbers if slot(app.queue(name).bindings.keys.base) < SLOTS // 3)
        base = app.queue(first).bindings.keys.base
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
        work(app, first, "second")
        confirmed = [app.job(job.result(timeout=0)).result(timeout=5) for job in jobs]
        assert confirmed == [*range(JOBS)]
        booked = app.transaction().hset(app.queue(first).key("ledger"), "end", 1)
        for number in range(JOBS):
            booked.require_field(app.queue(first).key("ledger"), number, 1)
        booked.commit()
        counts = app.queue("second").count()
        assert (counts.completed, counts.entered, counts.dead) == (JOBS + len(begun), JOBS + len(begun), 0)
