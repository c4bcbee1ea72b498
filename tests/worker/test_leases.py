"""Leases: the worker keeps them whatever its tasks do, and drops the jobs of a lease that it has lost."""

import asyncio
import logging
import threading
import time
from typing import Any

import pytest

from penstock import Job, Penstock, Status
from penstock.worker.heartbeat import PeriodicThread
from tests.conftest import MakeApp, Time, until
from tests.jobs.stand import idle_workers
from tests.speed import Deadline, scaled
from tests.worker.in_process import running_worker


@pytest.fixture
def app(make_app: MakeApp) -> Penstock:
    return make_app(lease=0.8)


async def running(job: Job[Any]) -> None:
    deadline = Deadline(30)
    while await job.status.aio() is not Status.RUNNING:
        assert not deadline.passed(), await job.status.aio()
        await asyncio.sleep(0.005)


async def test_long_jobs_keep_their_lease(app: Penstock):
    """A thread, a coroutine that sleeps, and a coroutine that blocks the loop: each lasts three leases."""

    @app.task(queue="q")
    def in_a_thread() -> None:
        time.sleep(2.4)

    @app.task(queue="q")
    async def on_the_loop() -> None:
        await asyncio.sleep(2.4)

    @app.task(queue="q")
    async def blocking() -> None:
        await asyncio.sleep(0.1)
        time.sleep(2.4)

    async with running_worker(app):
        jobs = [await task.enqueue.aio() for task in (in_a_thread, on_the_loop, blocking)]
        for job in jobs:
            await job.result.aio(scaled(30))
    counts = await app.queue("q").count.aio()
    assert (counts.lost, counts.completed) == (0, 3)


async def test_a_task_that_blocks_the_loop_is_named_in_a_warning(app: Penstock, caplog: pytest.LogCaptureFixture):
    @app.task(queue="q")
    async def greedy() -> None:
        time.sleep(0.6)

    async with running_worker(app, blocked_warning=0.2):
        job = await greedy.enqueue.aio()
        await job.result.aio(scaled(5))
        await until(lambda: "the event loop runs again" in caplog.text)
    (warning,) = [one.getMessage() for one in caplog.records if "blocked the event loop" in one.getMessage()]
    assert f"job {job.id} (greedy) has blocked the event loop for 0." in warning
    assert "test_leases.py" in warning
    assert "make it a `def` task" in warning


async def test_a_loop_blocked_without_jobs_causes_no_warning(app: Penstock, caplog: pytest.LogCaptureFixture):
    async with running_worker(app, blocked_warning=0.1, queues=("q",)):
        time.sleep(0.4)
        await asyncio.sleep(0.2)
    assert "blocked" not in caplog.text


async def test_a_job_whose_lease_was_lost_is_cancelled_and_runs_again(app: Penstock, caplog: pytest.LogCaptureFixture):
    runs: list[str] = []
    stopped = asyncio.Event()

    @app.task(queue="q")
    async def task() -> int:
        runs.append(worker._feeds[0].incarnation)
        if len(runs) == 1:
            try:
                await asyncio.sleep(60)
            finally:
                stopped.set()
        return len(runs)

    queue = app.queue("q")
    async with running_worker(app) as worker:
        job = await task.enqueue.aio()
        await until(lambda: runs)
        await app._driver.aio.run(queue.first.bindings.abandon(worker._feeds[0].incarnation))
        assert await job.result.aio(scaled(20)) == 2
        assert stopped.is_set()
    assert runs[0] != runs[1]
    assert "lease lost on queue q: this worker's results for 1 jobs are ignored" in caplog.text
    counts = await queue.count.aio()
    assert (counts.lost, counts.completed) == (0, 1)


async def test_a_settlement_after_the_lease_was_lost_writes_nothing(app: Penstock):
    """A `def` task cannot be stopped. When it ends later, that changes nothing for the next claim of its job."""
    started, ended, release = asyncio.Event(), [], threading.Event()
    loop = asyncio.get_running_loop()

    @app.task(queue="q")
    def stubborn() -> str:
        loop.call_soon_threadsafe(started.set)
        release.wait(60)
        ended.append(1)
        return "the loser's"

    queue = app.queue("q")
    async with running_worker(app, concurrency=1) as worker:
        job = await stubborn.enqueue.aio()
        await started.wait()
        await queue.pause.aio()
        first = worker._feeds[0].incarnation
        await app._driver.aio.run(queue.first.bindings.abandon(first))
        await until(lambda: worker._feeds[0].incarnation != first)
        worker.stop()
        await queue.resume.aio()
        (item,) = await queue.claim.aio(wait=20, lease=60)
        release.set()
        await until(lambda: ended)
        await asyncio.sleep(0.1)
        assert await job.status.aio() is Status.RUNNING
        await item.complete.aio("the winner's")
    assert await job.result.aio(0) == "the winner's"
    assert (await queue.count.aio()).completed == 1


async def test_after_a_lost_lease_the_worker_continues(app: Penstock, clock: Time):
    """The lease runs out, as for a process that was frozen for a minute."""
    release = asyncio.Event()

    @app.task(queue="q")
    async def task(n: int) -> int:
        await release.wait()
        return n

    async with running_worker(app, concurrency=3):
        jobs = await app.enqueue_many.aio(task.call(n) for n in range(3))
        for job in jobs:
            await running(job)
        clock.advance(60)
        release.set()
        assert [await job.result.aio(scaled(5)) for job in jobs] == [0, 1, 2]
        last = await task.enqueue.aio(7)
        assert await last.result.aio(scaled(5)) == 7
    counts = await app.queue("q").count.aio()
    assert counts.completed == 4


async def test_a_worker_takes_over_from_one_that_died(app: Penstock):
    """As after kill -9: an incarnation holds jobs and sends no heartbeat."""

    @app.task(queue="q")
    async def task(n: int) -> int:
        return n

    jobs = await app.enqueue_many.aio(task.call(n) for n in range(3))
    began = time.monotonic()
    await app.queue("q").claim.aio(2, lease=3)
    async with running_worker(app):
        assert await jobs[2].result.aio(scaled(20)) == 2
        assert await jobs[0].status.aio() is Status.RUNNING, "jobs[2] waited for the lease of the dead incarnation"
        assert [await job.result.aio(scaled(20)) for job in jobs[:2]] == [0, 1]
        assert 3 <= time.monotonic() - began < scaled(8)
    assert (await app.queue("q").count.aio()).lost == 2


async def test_a_worker_that_holds_no_job_sends_no_heartbeat(make_app: MakeApp, raw: Any):
    app = make_app(lease=0.2)

    @app.task(queue="q")
    async def task() -> None: ...

    async with running_worker(app):
        await (await task.enqueue.aio()).result.aio(scaled(20))
        await until(lambda: idle_workers(raw, app.queue("q").first.bindings.keys.base))
        await asyncio.sleep(0.1)
        before = raw.info("commandstats")["cmdstat_evalsha"]["calls"]
        await asyncio.sleep(0.6)
        assert raw.info("commandstats")["cmdstat_evalsha"]["calls"] == before


@pytest.fixture(autouse=True)
def log_everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


async def test_a_lost_job_is_not_claimed_again_while_its_thread_occupies_the_only_runner(app: Penstock):
    begun, release = threading.Event(), threading.Event()

    @app.task(queue="q")
    def hold() -> None:
        begun.set()
        release.wait(60)

    job = await hold.enqueue.aio()
    async with running_worker(app, concurrency=1) as worker:
        await until(begun.is_set)
        await app._driver.aio.run(app.queue("q").first.bindings.abandon(worker._feeds[0].incarnation))
        await app.queue("q").put.aio("wakes the worker up", priority=9)
        (item,) = await app.queue("q").claim.aio(wait=20)
        assert item.id == job.id
        await item.complete.aio()
        release.set()
        await until(lambda: not worker._runs.lost_in_threads)
    await app.queue("q").purge.aio()


def test_the_threads_of_a_worker_replace_no_attribute_of_their_class():
    """After a fork, Python calls private methods of the threads that the child does not have."""

    class Idle(PeriodicThread):
        def _check(self) -> None: ...

    loop = asyncio.new_event_loop()
    added = set(vars(Idle("x", loop, 1.0))) - set(vars(threading.Thread()))
    assert [name for name in added if hasattr(threading.Thread, name)] == []
    loop.close()
