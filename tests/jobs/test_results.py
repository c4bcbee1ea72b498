"""Results: waiting without polling, how long they are kept, and the errors without a result."""

import asyncio
import time
from typing import Any

import pytest

from penstock import JobFailed, Penstock, PenstockError, Queue, ResultTimeout, Status
from penstock.errors import JobCancelled, JobExpired, JobNotFound, ResultNotKept
from tests.conftest import Do, MakeApp, Time, commands, until
from tests.speed import scaled


@pytest.fixture
def queue(app: Penstock) -> Queue:
    return app.queue("raw")


def listeners(raw: Any, queue: Queue) -> int:
    """How many addresses are in the queue's `listeners`: one for each job that a face of a process waits for."""
    found = raw.hgetall(f"{queue.first.bindings.keys.base}listeners")
    return sum(len(addresses.split()) for addresses in found.values())


async def until_listening(raw: Any, queue: Queue, n: int = 1) -> None:
    await until(lambda: listeners(raw, queue) == n)


async def finish(do: Do, queue: Queue, result: Any = None) -> None:
    (item,) = await do(queue.claim)
    await do(item.complete, result)


async def test_a_result_wakes_its_waiter(queue: Queue, do: Do, raw: Any):
    job = await do(queue.put, "x")
    waiting = asyncio.create_task(do(job.result, timeout=10))
    await until_listening(raw, queue)
    began = time.monotonic()
    await finish(do, queue, [1, 2])
    assert await waiting == [1, 2]
    assert time.monotonic() - began < scaled(5)
    assert listeners(raw, queue) == 0


async def test_an_available_result_is_returned_at_once(queue: Queue, do: Do):
    job = await do(queue.put, "x")
    await finish(do, queue)
    for timeout in (None, 0, 5):
        assert await do(job.result, timeout) is None


async def test_several_callers_wait_for_one_result_and_for_several(queue: Queue, do: Do, raw: Any):
    jobs = await do(queue.put_many, range(3))
    waiting = [asyncio.create_task(do(job.result)) for job in jobs for _ in range(3)]
    await until_listening(raw, queue, 3)
    for item in await do(queue.claim, 3):
        await do(item.complete, item.body * 10)
    assert await asyncio.gather(*waiting) == [0] * 3 + [10] * 3 + [20] * 3


async def test_waiting_for_a_result_does_not_poll(make_app: MakeApp, do: Do, raw: Any, nodes: list[Any]):
    queue = make_app(ping_interval=0.3).queue("raw")
    jobs = await do(queue.put_many, range(3))
    waiting = [asyncio.create_task(do(job.result, timeout=10)) for job in jobs]
    await until_listening(raw, queue, 3)
    began, before = time.monotonic(), sum(map(commands, nodes))
    await asyncio.sleep(0.7)
    sent = sum(map(commands, nodes)) - before
    assert sent <= 1 + (time.monotonic() - began) / 0.3
    for item in await do(queue.claim, 3):
        await do(item.complete)
    await asyncio.gather(*waiting)


@pytest.mark.parametrize("timeout", [0, -1, 0.15])
async def test_a_result_that_is_not_there_in_time_raises_a_timeout(queue: Queue, do: Do, raw: Any, timeout: float):
    job = await do(queue.put, "x")
    began = time.monotonic()
    with pytest.raises(ResultTimeout, match="is ready, nobody has started it yet"):
        await do(job.result, timeout)
    assert max(0, timeout) <= time.monotonic() - began < scaled(5)
    assert listeners(raw, queue) == 0
    with pytest.raises(TimeoutError):
        await do(job.result, 0)
    await finish(do, queue, "later")
    assert await do(job.result, timeout) == "later"


async def test_a_cancelled_wait_is_forgotten_when_no_other_waits_for_the_job(queue: Queue, raw: Any):
    job = await queue.put.aio("x")
    first, second, patient = (asyncio.create_task(job.result.aio(scaled(10))) for _ in range(3))
    await until_listening(raw, queue)
    for waiting in (first, second):
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert listeners(raw, queue) == 1
    (item,) = await queue.claim.aio()
    await item.complete.aio(1)
    assert await patient == 1
    job = await queue.put.aio("y")
    alone = asyncio.create_task(job.result.aio(scaled(10)))
    await until_listening(raw, queue)
    alone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await alone
    assert listeners(raw, queue) == 0


# --- no result ---


async def test_a_cancelled_job_has_no_result(queue: Queue, do: Do, raw: Any):
    for delay in (0, 60):
        job = await do(queue.put, "x", delay=delay)
        waiting = asyncio.create_task(do(job.result))
        await until_listening(raw, queue)
        await do(job.cancel)
        with pytest.raises(JobCancelled, match="was cancelled"):
            await waiting
        with pytest.raises(JobCancelled):
            await do(job.result, 0)


async def test_a_purge_wakes_waiters(queue: Queue, do: Do, raw: Any):
    jobs = await do(queue.put_many, range(2))
    waiting = [asyncio.create_task(do(job.result)) for job in jobs]
    await until_listening(raw, queue, 2)
    await do(queue.purge)
    for one in waiting:
        with pytest.raises(JobCancelled):
            await one


async def test_a_dead_letter_wakes_its_waiter(queue: Queue, do: Do, raw: Any):
    job = await do(queue.put, "x")
    waiting = asyncio.create_task(do(job.result))
    await until_listening(raw, queue)
    (item,) = await do(queue.claim)
    await do(item.retry, reason="not yet")
    (item,) = await do(queue.claim)
    await do(item.fail, "no")
    with pytest.raises(JobFailed, match="failed: no"):
        await waiting
    assert listeners(raw, queue) == 0


async def test_an_expired_job_wakes_its_waiter(queue: Queue, do: Do, raw: Any, clock: Time):
    job = await do(queue.put, "x", expires=5)
    waiting = asyncio.create_task(do(job.result))
    await until_listening(raw, queue)
    clock.advance(6)
    assert await do(queue.claim) == []
    with pytest.raises(JobExpired, match="before a worker was free"):
        await waiting


async def test_an_unknown_job_has_no_result(queue: Queue, do: Do):
    for timeout in (0, None):
        with pytest.raises(JobNotFound, match="never enqueued here, or its result is gone"):
            await do(queue.job("never").result, timeout)


async def test_a_result_is_kept_for_its_time(queue: Queue, do: Do):
    job = await do(queue.put, "x", result_ttl=1)
    await finish(do, queue, 1)
    assert await do(job.result, 0) == 1
    await asyncio.sleep(1.05)
    with pytest.raises(JobNotFound):
        await do(job.result, 0)
    assert await do(job.status) is Status.UNKNOWN


async def test_the_apps_result_ttl_can_be_overridden(make_app: MakeApp, do: Do, raw: Any):
    app = make_app(result_ttl=100)

    @app.task(queue="raw", result_ttl=50)
    def task() -> None: ...

    queue = app.queue("raw")
    jobs = [await do(queue.put, 1), await do(task.enqueue), await do(task.using(result_ttl=20).enqueue)]
    for _ in jobs:
        await finish(do, queue)
    kept = [raw.hget(f"{queue.first.bindings.keys.base}results", job.key) for job in jobs]
    ttls = [int.from_bytes(result[:6]) / 1000 - time.time() for result in kept]
    assert ttls == pytest.approx([100, 50, 20], abs=2)


async def test_a_result_that_is_not_kept_is_not_waited_for(app: Penstock, queue: Queue, do: Do, raw: Any):
    job = await do(queue.put, "x", result_ttl=0)
    for handle in (job, app.job(job.id)):
        with pytest.raises(ResultNotKept, match="result_ttl=0"):
            await do(handle.result, 5)
    assert listeners(raw, queue) == 0
    await finish(do, queue, 1)
    assert await do(job.status) is Status.UNKNOWN
    with pytest.raises(ResultNotKept):
        await do(job.result)
    with pytest.raises(JobNotFound):
        await do(app.job(job.id).result)


async def test_a_result_has_the_type_of_the_return_annotation(app: Penstock, do: Do):
    @app.task(queue="raw")
    def names(n: int) -> set[tuple[int, str]]: ...  # type: ignore[empty-body]

    job = await do(names.enqueue, 1)
    await finish(do, app.queue("raw"), [[1, "a"], [2, "b"]])
    assert await do(job.result) == {(1, "a"), (2, "b")}
    assert await do(app.job(job.id).result) == [[1, "a"], [2, "b"]]


class Handle:
    """JSON has no form for it."""


@pytest.mark.parametrize(("kind", "result"), [(set[int], "nonsense"), (Handle, {"a": 1})], ids=["wrong", "unreadable"])
async def test_a_result_that_does_not_fit_its_annotation_is_an_error(app: Penstock, do: Do, kind: Any, result: Any):
    def task() -> Any: ...

    task.__annotations__["return"] = kind
    job = await do(app.task(queue="raw")(task).enqueue)
    await finish(do, app.queue("raw"), result)
    with pytest.raises(PenstockError, match="does not fit its annotation"):
        await do(job.result)
