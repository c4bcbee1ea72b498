"""Flows of jobs that are durable, have limits, or run in batches."""

import asyncio
from typing import Any

import pytest

from penstock import RESULT, Batch, Concurrency, Drop, Job, Penstock, Retry, Status, chain, group, step, wait_for
from penstock.errors import BadCall
from tests.conftest import Do
from tests.speed import Deadline, scaled
from tests.worker.in_process import run_burst, running_worker


@pytest.fixture
def place() -> str:
    return "valkey"


@pytest.fixture
def face() -> str:
    return "aio"


async def test_a_durable_job_is_waited_for_and_waits_itself(app: Penstock, do: Do):
    ran: list[str] = []

    async def charge(name: str) -> str:
        ran.append(name)
        return name.upper()

    @app.task(queue="q", retry=Retry(1, base=0.01))
    async def order(name: str) -> str:
        paid = await step(charge, name)
        if await wait_for("go") != name:
            raise ValueError("another signal")
        return str(paid)

    first = await do(order.enqueue, "a")
    second = await do(order.using(after=first).enqueue, RESULT)
    last = await do(order.using(after=second).enqueue, "c")
    async with running_worker(app):
        await do(first.signal, "go", "a")
        assert await do(first.result, scaled(10)) == "A"
        await do(last.signal, "go", "c")  # before it starts
        await do(second.signal, "go", "A")
        assert await do(last.result, scaled(10)) == "C"
    assert ran == ["a", "A", "c"]


async def test_jobs_with_limits_wait_and_are_waited_for(app: Penstock, do: Do):
    running, most = 0, 0

    @app.task(queue="q", limit=Concurrency(2, key="{account}"))
    async def part(account: str, n: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.005)
        running -= 1
        return n

    @app.task(queue="q", limit=Concurrency(1, key="{account}"))
    async def total(account: str, parts: list[int]) -> int:
        return sum(parts)

    jobs: list[Job[int]] = []
    for _ in range(3):
        flow = group(part.call("a", n) for n in range(10)).then(total.call("a", RESULT))
        jobs.append(await do(flow.enqueue))
    await run_burst(app)
    assert [await do(job.result, 0) for job in jobs] == [45] * 3
    assert most == 2
    counts = await do(app.queue("q").count)
    assert (counts.waiting, counts.dependent, counts.parked) == (0, 0, 0)


async def test_an_item_of_a_batch_is_waited_for_and_waits_itself(app: Penstock, do: Do):
    @app.task(queue="batches", batch=Batch(5, linger=0.02))
    async def index(docs: list[str]) -> list[Any]:
        return [Drop("not wanted") if doc == "bad" else f"<{doc}>" for doc in docs]

    @app.task(queue="q")
    async def total(parts: list[str | None]) -> str:
        return "".join(map(str, parts))

    done = await do(index.map([str(n) for n in range(12)]).then(total.call(RESULT)).enqueue)
    through = index.map(["a", "bad"]).then(total.using(on_failure="continue").call(RESULT))
    mixed = await do(chain(through, index.call(RESULT)).enqueue)
    stopped = await do(index.map(["a", "bad"]).then(total.call(RESULT)).enqueue)
    async with running_worker(app):
        assert await do(done.result, scaled(10)) == "".join(f"<{n}>" for n in range(12))
        assert await do(mixed.result, scaled(10)) == "<<a>None>"
        deadline = Deadline(10)
        while await do(stopped.status) is not Status.CANCELLED:
            assert not deadline.passed(), await do(stopped.status)
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("position", [0, 1, 35])
async def test_an_id_that_the_queue_has_already_refuses_the_flow_wherever_it_is(app: Penstock, do: Do, position: int):
    """Also that of the first job in a round trip: three limits make each job cost seven, so 35 fit into one."""

    @app.task(queue="q", limit=[Concurrency(3, name=name) for name in "abc"])
    async def note(n: int) -> None: ...

    await do(note.using(id="own").enqueue, -1)
    calls = [note.using(id="own").call(n) if n == position else note.call(n) for n in range(40)]
    with pytest.raises(BadCall, match="job q:own is in the queue already"):
        await do(group(calls).enqueue)
    assert (await do(app.queue("q").count)).waiting == 1


async def test_two_calls_of_one_flow_cannot_have_the_same_id(app: Penstock, do: Do):
    """The second would replace the first, and the queue would count both for ever."""

    @app.task(queue="q")
    async def part(n: int) -> int:
        return n

    def named(n: int) -> Any:
        return part.using(id="own").call(n)

    for flow in (group(named(1), named(2)), chain(named(1), named(2)), chain(named(1), part.call(0), named(2))):
        with pytest.raises(BadCall, match="two calls of this flow have the id q:own: give each its own"):
            await do(flow.enqueue)
    assert (await do(app.queue("q").count)).entered == 0
