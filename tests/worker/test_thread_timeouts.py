"""The timeout of a `def` task: it interrupts Python code, warns when it cannot, and never hits other code."""

import asyncio
import contextlib
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
from penstock.worker.thread_timeout import (
    ThreadTimeout,
    TimeIsUp,
    _raise_in_thread,
    cancel_in_thread,
    run_cancellable,
)
from tests.conftest import until
from tests.speed import scaled
from tests.worker.in_process import run_burst, running_worker


def spin(seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


async def test_python_code_is_interrupted_and_its_thread_is_used_again(app: Penstock):
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
    await run_burst(app, concurrency=1)
    assert time.monotonic() - began < scaled(15)  # of thirty
    with pytest.raises(JobFailed, match=r"ran longer than its timeout of 0\.1 s") as caught:
        await job.result.aio(0)
    assert "in spin\n" in caught.value.traceback
    assert await next_.result.aio(0) == "well"
    assert len(set(threads)) == 1


async def test_except_exception_does_not_catch_the_timeout_and_finally_runs(app: Penstock):
    events: list[str] = []

    @app.task(queue="q", timeout=0.1)
    def careful() -> None:
        try:
            while True:
                try:
                    spin()
                except Exception:
                    events.append("caught")
        finally:
            events.append("cleaned up")

    await careful.enqueue.aio()
    await run_burst(app)
    assert events == ["cleaned up"]
    assert (await app.queue("q").count.aio()).dead == 1


async def test_a_timeout_is_retried_by_the_tasks_policy(app: Penstock):
    @app.task(queue="q", timeout=0.05, retry=Retry(1, on=TimeoutError, base=60))
    def slow() -> None:
        spin()

    job = await slow.enqueue.aio()
    await run_burst(app)
    assert await job.status.aio() is Status.DELAYED


@pytest.mark.parametrize(
    "end", [lambda: "a result", lambda: 1 / 0, lambda: sys.exit(3)], ids=["returns", "raises", "exits"]
)
async def test_a_task_that_catches_the_timeout_has_timed_out_anyway(app: Penstock, end: Callable[[], Any]):
    @app.task(queue="q", timeout=0.05)
    def stubborn() -> Any:
        try:
            spin()
        except BaseException:
            spin(0.1)
        return end()

    job = await stubborn.enqueue.aio()
    await run_burst(app)
    with pytest.raises(JobFailed, match="ran longer than its timeout"):
        await job.result.aio(0)


async def test_c_code_is_not_interrupted_but_named_in_a_warning(app: Penstock, caplog: pytest.LogCaptureFixture):
    after: list[str] = []

    @app.task(queue="q", timeout=0.1)
    def sleepy() -> None:
        time.sleep(1.5)
        after.append("never")

    job = await sleepy.enqueue.aio()
    await run_burst(app, blocked_warning=0.1)
    (warning,) = [record.getMessage() for record in caplog.records if "still runs" in record.getMessage()]
    assert warning.startswith(
        f"job {job.id} (sleepy) is over its timeout of 0.1 s, and its thread still runs at {__file__}:"
    )
    assert "with isolate=True" in warning
    assert await job.status.aio() is Status.DEAD
    assert not after


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> set[ThreadTimeout]:
    """The timeouts that were started and are not closed."""
    found: set[ThreadTimeout] = set()
    start, close = ThreadTimeout.__init__, ThreadTimeout.close

    def started(self: ThreadTimeout, *args: Any) -> None:
        found.add(self)
        start(self, *args)

    def closed(self: ThreadTimeout) -> None:
        found.discard(self)
        close(self)

    monkeypatch.setattr(ThreadTimeout, "__init__", started)
    monkeypatch.setattr(ThreadTimeout, "close", closed)
    return found


async def test_a_task_within_its_timeout_is_not_disturbed(
    app: Penstock, caplog: pytest.LogCaptureFixture, timers: set[ThreadTimeout]
):
    @app.task(queue="q", timeout=30)
    def quick(n: int) -> int:
        return n

    jobs = await app.enqueue_many.aio(quick.call(n) for n in range(200))
    async with running_worker(app):
        assert [await job.result.aio(scaled(20)) for job in jobs] == list(range(200))
        await until(lambda: not timers)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_job_whose_lease_was_lost_is_still_interrupted_by_its_timeout(
    app: Penstock, timers: set[ThreadTimeout]
):
    ended = threading.Event()

    @app.task(queue="q", timeout=0.3)
    def endless() -> None:
        try:
            spin()
        finally:
            ended.set()

    job = await endless.enqueue.aio()
    async with running_worker(app, concurrency=1) as worker:
        await until(lambda: worker._runs.running)
        (feed,) = worker._feeds
        await app._driver.aio.run(feed.shard.bindings.abandon(feed.incarnation))
        feed.lease_refused(feed.incarnation)
        await job.cancel.aio()
        worker.stop()
        await until(ended.is_set)
        await until(lambda: not timers)


# --- the end of a job, and the next job in its thread ---


def thread_timeout(timeout: float) -> ThreadTimeout:
    return ThreadTimeout(lambda: "job 1 (task)", timeout, 5, asyncio.get_running_loop())


async def test_a_job_whose_timeout_expired_before_its_start_does_not_run():
    timeout = thread_timeout(0)
    await asyncio.sleep(0.02)
    with pytest.raises(TimeIsUp):
        timeout.run(pytest.fail, "it ran")


async def test_the_timeout_never_hits_another_job_in_the_same_thread():
    """Jobs that last about as long as their timeouts run one after the other. Code between them must never be hit."""
    rounds, outcomes, strays = 300, {"done": 0, "up": 0}, []
    loop = asyncio.get_running_loop()

    def job(timeout: ThreadTimeout, seconds: float) -> str:
        try:
            try:
                timeout.run(spin, seconds)
                ended = "done"
            except TimeIsUp:
                ended = "up"
            spin(0.001)  # code that belongs to no job, in the same thread
        except TimeIsUp:
            strays.append(seconds)
            ended = "stray"
        return ended

    async def series(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(rounds):
            timeout = thread_timeout(0.002)
            ended = await loop.run_in_executor(pool, job, timeout, 0.002 + chance.uniform(-0.0005, 0.0005))
            timeout.close()
            outcomes[ended] += 1

    with ThreadPoolExecutor(2) as pool:
        await asyncio.gather(series(1), series(2))
    assert not strays
    assert sum(outcomes.values()) == 2 * rounds
    assert min(outcomes.values()) > 0


async def test_a_timeout_that_is_raised_while_the_job_ends_belongs_to_that_job():
    timeout, held, came = thread_timeout(60), threading.Event(), []

    def work() -> None:
        try:
            timeout.run(threading.Event.wait, held)
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
        await asyncio.sleep(0.05)  # by now the thread waits for the lock
        timeout._expired = True
        _raise_in_thread(thread.ident or 0, TimeIsUp)
    thread.join()
    timeout.close()
    assert came == ["from the job"]


class Run:
    thread = 0
    cancelled = False


def test_a_run_that_is_cancelled_while_it_ends_interrupts_nothing_after_it():
    """Thousands of runs are cancelled at any moment. The thread survives, and never gets a late exception."""
    late: list[BaseException] = []
    ended: list[bool] = []
    runs: list[Run] = []
    over = threading.Event()

    def work() -> None:
        try:
            while not over.is_set():
                runs.append(Run())
                with contextlib.suppress(TimeIsUp):
                    run_cancellable(runs[-1], sum, range(50))
                for _ in range(20):
                    pass
        except BaseException as error:
            late.append(error)
        ended.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    until = time.monotonic() + 2
    while time.monotonic() < until and thread.is_alive():
        if runs and not (run := runs[-1]).cancelled:
            cancel_in_thread(run)
    over.set()
    thread.join(30)
    assert (late, ended) == ([], [True])
    assert sum(run.cancelled for run in runs) > 10
