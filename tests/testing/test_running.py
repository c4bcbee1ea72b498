"""Jobs run in the test's own process, by the test's own clock."""

import asyncio
from datetime import UTC, datetime

import anyio.to_thread
import pytest

from penstock import Penstock, Retry, RetryLater, Status, WorkerSettings
from penstock.testing import MovableClock, RunSummary, run_jobs
from tests.conftest import MakeApp


async def test_ready_jobs_run_and_so_do_the_jobs_that_they_enqueue(app: Penstock):
    ran: list[int] = []

    @app.task(queue="a")
    async def count_down(n: int) -> int:
        ran.append(n)
        if n:
            await count_down_in_a_thread.enqueue.aio(n - 1)
        return n

    @app.task(queue="b")
    def count_down_in_a_thread(n: int) -> int:
        ran.append(n)
        if n:
            count_down.enqueue(n - 1)
        return n

    job = await count_down.enqueue.aio(4)
    await count_down.using(delay=60).enqueue.aio(9)
    assert await run_jobs.aio(app) == RunSummary(completed=5)
    assert ran == [4, 3, 2, 1, 0]
    assert await job.result.aio(0) == 4
    assert await run_jobs.aio(app) == RunSummary()
    assert (await app.queue("a").count.aio()).delayed == 1


async def test_blocking_code_runs_jobs_and_keeps_using_its_app(app: Penstock):
    @app.task
    async def double(n: int) -> int:
        await asyncio.sleep(0)
        return 2 * n

    def a_blocking_test() -> None:
        for n in range(3):
            job = double.enqueue(n)
            assert run_jobs(app) == RunSummary(completed=1)
            assert job.result(timeout=0) == 2 * n

    await anyio.to_thread.run_sync(a_blocking_test)
    assert await (await double.enqueue.aio(1)).status.aio() is Status.READY


async def test_inside_a_running_loop_the_blocking_form_raises(app: Penstock):
    with pytest.raises(RuntimeError, match=r"await run_jobs\.aio"):
        run_jobs(app)


async def test_with_a_clock_delayed_jobs_run_at_once(app: Penstock, clock: MovableClock):
    began = clock.now
    at: list[float] = []

    @app.task(retry=Retry(3, base=100, jitter=0))
    async def fails_twice() -> str:
        at.append(clock.now - began)
        if len(at) < 3:
            raise OSError("not yet")
        return "done"

    job = await fails_twice.using(delay=3600).enqueue.aio()
    assert await run_jobs.aio(app) == RunSummary()
    assert await run_jobs.aio(app, clock=clock) == RunSummary(completed=1, retried=2)
    assert await job.result.aio(0) == "done"
    assert [round(seconds) for seconds in at] == [3600, 3700, 3900]


async def test_a_dead_letter_fails_the_test_with_its_traceback(app: Penstock):
    @app.task
    async def divide(by: int) -> float:
        return 1 / by

    await divide.enqueue.aio(0)
    with pytest.raises(AssertionError) as raised:
        await run_jobs.aio(app)
    message = str(raised.value)
    assert "1 dead letter (dead=True allows them):" in message
    assert "['divide', {'by': 0}]: ZeroDivisionError" in message
    assert "return 1 / by" in message
    await divide.enqueue.aio(0)
    assert await run_jobs.aio(app, dead=True) == RunSummary(failed=1)


async def test_only_the_named_queues_are_served(app: Penstock):
    @app.task(queue="a")
    async def one() -> None: ...

    @app.task(queue="b")
    async def other() -> None: ...

    await one.enqueue.aio()
    await other.enqueue.aio()
    assert await run_jobs.aio(app, settings=WorkerSettings(queues=("b",))) == RunSummary(completed=1)
    assert (await app.queue("a").count.aio()).ready == 1


async def test_jobs_that_never_end_end_with_the_timeout(app: Penstock, clock: MovableClock):
    @app.task
    async def again() -> None:
        raise RetryLater(60)

    @app.task
    async def never() -> None:
        await asyncio.sleep(60)

    await again.enqueue.aio()
    with pytest.raises(TimeoutError, match=r"jobs were still ready or running after 0\.5 s"):
        await run_jobs.aio(app, clock=clock, timeout=0.5)
    await app.queue("default").purge.aio()
    job = await never.enqueue.aio()
    with pytest.raises(TimeoutError):
        await run_jobs.aio(app, timeout=0.2)
    assert await job.status.aio() is Status.READY


async def test_a_clock_can_be_advanced_for_one_app_alone(make_app: MakeApp):
    app, other = make_app("clocked"), make_app("real")
    start = datetime(2100, 1, 1, tzinfo=UTC)
    with MovableClock(app) as clock:
        assert abs(clock.now - datetime.now(UTC).timestamp()) < 60
        clock.advance_to(start)
        clock.advance(1.5)
        clock.advance_to(0)
        assert clock.now == start.timestamp() + 1.5
        assert "2100-01-01T00:00:01.5" in repr(clock)
        with pytest.raises(ValueError, match="a clock only moves forward"):
            clock.advance(-1)
        for one in (app, other):
            await one.queue("q").put.aio(1, at=start)
        assert len(await app.queue("q").claim.aio()) == 1
        assert await other.queue("q").claim.aio() == []
    assert app.clock.now_ms == 0
