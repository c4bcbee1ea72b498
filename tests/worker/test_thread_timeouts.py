"""The timeout of a `def` task: it ends Python code at its next line, says when it cannot, and hits nothing else."""

import asyncio
import logging
import random
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from penstock import JobFailed, Penstock, Retry, Status
from penstock.worker.thread_timeout import ThreadTimeout, TimeIsUp, _raise_in_thread
from tests.conftest import until
from tests.speed import scaled
from tests.worker.work import at_work, burst


def spin(seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


async def test_python_code_is_ended_and_the_thread_goes_on(app: Penstock):
    threads: list[int] = []

    @app.task(queue="q", timeout=0.1)
    def endless() -> None:
        threads.append(threading.get_ident())
        spin()

    @app.task(queue="q")
    def after() -> str:
        threads.append(threading.get_ident())
        return "well"

    job = await endless.enqueue.aio()
    next_ = await after.enqueue.aio()
    began = time.monotonic()
    await burst(app, concurrency=1)
    assert time.monotonic() - began < scaled(15)  # of thirty
    with pytest.raises(JobFailed, match=r"ran longer than its timeout of 0\.1 s") as caught:
        await job.result.aio(0)
    assert "in spin\n" in caught.value.traceback
    assert await next_.result.aio(0) == "well"
    assert len(set(threads)) == 1


async def test_except_exception_does_not_hold_it_and_finally_runs(app: Penstock):
    steps: list[str] = []

    @app.task(queue="q", timeout=0.1)
    def careful() -> None:
        try:
            while True:
                try:
                    spin()
                except Exception:
                    steps.append("held")
        finally:
            steps.append("cleared up")

    await careful.enqueue.aio()
    await burst(app)
    assert steps == ["cleared up"]
    assert (await app.queue("q").count.aio()).dead == 1


async def test_it_is_judged_by_the_policy_like_any_timeout(app: Penstock):
    @app.task(queue="q", timeout=0.05, retry=Retry(1, on=TimeoutError, base=60))
    def slow() -> None:
        spin()

    job = await slow.enqueue.aio()
    await burst(app)
    assert await job.status.aio() is Status.DELAYED


@pytest.mark.parametrize(
    "end", [lambda: "a result", lambda: 1 / 0, lambda: sys.exit(3)], ids=["returns", "raises", "exits"]
)
async def test_who_swallows_it_has_run_too_long_all_the_same(app: Penstock, end: Callable[[], Any]):
    @app.task(queue="q", timeout=0.05)
    def stubborn() -> Any:
        try:
            spin()
        except BaseException:
            spin(0.1)
        return end()

    job = await stubborn.enqueue.aio()
    await burst(app)
    with pytest.raises(JobFailed, match="ran longer than its timeout"):
        await job.result.aio(0)


async def test_c_code_is_not_ended_but_told_of(app: Penstock, caplog: pytest.LogCaptureFixture):
    after: list[str] = []

    @app.task(queue="q", timeout=0.1)
    def sleepy() -> None:
        time.sleep(1.5)
        after.append("never")

    job = await sleepy.enqueue.aio()
    await burst(app, blocked_warning=0.1)
    (said,) = [record.getMessage() for record in caplog.records if "still runs" in record.getMessage()]
    assert said.startswith(
        f"job {job.key} (sleepy) is over its timeout of 0.1 s, and its thread still runs at {__file__}:"
    )
    assert "with isolate=True" in said
    assert await job.status.aio() is Status.DEAD
    assert not after


async def test_a_task_within_its_timeout_is_not_disturbed(app: Penstock, caplog: pytest.LogCaptureFixture):
    @app.task(queue="q", timeout=30)
    def quick(n: int) -> int:
        return n

    jobs = await app.enqueue_many.aio(quick.call(n) for n in range(200))
    async with at_work(app) as worker:
        assert [await job.result.aio(scaled(20)) for job in jobs] == list(range(200))
        await until(lambda: not worker._thread_timeouts)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_task_without_a_timeout_is_not_watched(app: Penstock, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ThreadTimeout, "__init__", None)

    @app.task(queue="q")
    def free() -> int:
        return 1

    job = await free.enqueue.aio()
    await burst(app)
    assert await job.result.aio(0) == 1


async def test_a_job_whose_thread_runs_on_after_its_lease_is_ended_too(app: Penstock):
    ended = threading.Event()

    @app.task(queue="q", timeout=0.3)
    def endless() -> None:
        try:
            spin()
        finally:
            ended.set()

    job = await endless.enqueue.aio()
    async with at_work(app, concurrency=1) as worker:
        await until(lambda: worker._inflight.running)
        (feed,) = worker._feeds
        await app._driver.aio.run(feed.queue.bindings.abandon(feed.incarnation))
        worker._lease_lost(feed, feed.incarnation)
        await job.cancel.aio()
        worker.stop()
        await until(ended.is_set)
        await until(lambda: not worker._thread_timeouts)


# --- the end of a job, and the next one in its thread ---


def over(timeout: float) -> ThreadTimeout:
    return ThreadTimeout("job 1 (task)", timeout, 5, asyncio.get_running_loop())


async def test_a_job_that_begins_after_its_time_is_not_begun():
    timeout = over(0)
    await asyncio.sleep(0.02)
    with pytest.raises(TimeIsUp):
        timeout.run(lambda: pytest.fail("it ran"))


async def test_it_hits_no_other_job_however_close_the_end():
    """Jobs as long as their timeouts, one after the other in each thread; whatever is not a job must never be hit."""
    rounds, outcomes, strays = 300, {"done": 0, "up": 0}, []
    loop = asyncio.get_running_loop()

    def job(timeout: ThreadTimeout, seconds: float) -> str:
        try:
            try:
                timeout.run(lambda: spin(seconds))
                ended = "done"
            except TimeIsUp:
                ended = "up"
            spin(0.001)  # somebody else's code in the same thread
        except TimeIsUp:
            strays.append(seconds)
            ended = "stray"
        return ended

    async def series(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(rounds):
            timeout = over(0.002)
            ended = await loop.run_in_executor(pool, job, timeout, 0.002 + chance.uniform(-0.0005, 0.0005))
            timeout.close()
            outcomes[ended] += 1

    with ThreadPoolExecutor(2) as pool:
        await asyncio.gather(series(1), series(2))
    assert not strays
    assert sum(outcomes.values()) == 2 * rounds
    assert min(outcomes.values()) > 0


async def test_one_that_comes_while_the_job_takes_its_leave_goes_with_it():
    timeout, held, came = over(60), threading.Event(), []

    def work() -> None:
        try:
            timeout.run(held.wait)
        except TimeIsUp:
            came.append("from the job")
        try:
            spin(0.05)
        except TimeIsUp:
            came.append("late")

    thread = threading.Thread(target=work)
    thread.start()
    await until(lambda: timeout._thread)
    with timeout._lock:
        held.set()
        await asyncio.sleep(0.05)  # now it waits for the lock
        timeout._expired = True
        _raise_in_thread(thread.ident or 0, TimeIsUp)
    thread.join()
    timeout.close()
    assert came == ["from the job"]
