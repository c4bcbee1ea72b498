"""After one stop, running jobs finish and waiting jobs are handed back. A second stop hands everything back at once."""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock import Job, Penstock, Status, Worker, WorkerSettings
from penstock.worker.feed import Feed
from tests.conftest import until
from tests.jobs.stand import idle_workers
from tests.speed import scaled


class StoppableWorker:
    """A worker that a test starts and stops, and a record of what its jobs did."""

    def __init__(self, app: Penstock, **settings: Any) -> None:
        self.release = asyncio.Event()
        self.release_thread = threading.Event()
        self.running: list[int] = []
        self.ended: list[int] = []
        self.stopped: list[int] = []
        self.worker: Worker

        @app.task(queue="q")
        async def hold(n: int) -> int:
            self.running.append(n)
            try:
                await self.release.wait()
                self.ended.append(n)
            except asyncio.CancelledError:
                self.stopped.append(n)
                raise
            return n

        @app.task(queue="q")
        def hold_a_thread(n: int) -> int:
            self.running.append(n)
            self.release_thread.wait(60)
            self.ended.append(n)
            return n

        @app.task(queue="q")
        async def quick(n: int) -> None: ...

        self.app, self.hold, self.hold_a_thread, self.quick = app, hold, hold_a_thread, quick
        self.settings = WorkerSettings(**settings)

    def start(self) -> None:
        self.worker = Worker(self.app, self.settings)
        self.run = asyncio.create_task(self.worker.run())

    async def wait_stopped(self, within: float = 20) -> None:
        await asyncio.wait_for(self.run, scaled(within))


@pytest.fixture
async def started(app: Penstock) -> AsyncIterator[StoppableWorker]:
    made = StoppableWorker(app, concurrency=2)
    yield made
    made.release.set()
    made.release_thread.set()


async def states(jobs: list[Job[Any]]) -> list[Status]:
    return [await job.status.aio() for job in jobs]


async def registered_idle(raw: Any, app: Penstock, workers: int = 1) -> None:
    base = app.queue("q").first.bindings.keys.base
    await until(lambda: idle_workers(raw, base) == workers)


async def test_a_graceful_stop_lets_running_jobs_finish(app: Penstock, started: StoppableWorker):
    tasks: list[Any] = [started.hold, started.hold_a_thread, started.hold, started.quick]
    jobs = await app.enqueue_many.aio(task.call(n) for n, task in enumerate(tasks))
    started.start()
    await until(lambda: len(started.running) == 2)
    started.worker.stop()
    await asyncio.sleep(0.05)
    assert not started.run.done()
    started.release.set()
    started.release_thread.set()
    await started.wait_stopped()
    assert await states(jobs) == [Status.COMPLETED, Status.COMPLETED, Status.READY, Status.READY]
    assert sorted(started.ended) == [0, 1]
    info = await jobs[2].info.aio()
    assert (info.attempts, info.deliveries) == (0, 0)


async def test_prefetched_jobs_are_handed_back_in_order_and_uncharged(app: Penstock, started: StoppableWorker):
    quick: list[Any] = [started.quick.call(n) for n in range(400)]
    await app.enqueue_many.aio([*quick, started.hold.call(0), started.hold.call(1), *quick[:30]])
    started.start()
    await until(lambda: len(started.running) == 2)
    started.worker.stop()
    started.release.set()
    await started.wait_stopped()
    items = await app.queue("q").claim.aio(100)
    assert [item.body[1]["n"] for item in items] == list(range(30))
    assert {(item.attempt, item.deliveries) for item in items} == {(1, 1)}
    assert await app.queue("q").claim.aio() == []


async def test_an_idle_worker_stops_at_once(app: Penstock, raw: Any, started: StoppableWorker):
    started.start()
    await registered_idle(raw, app)
    began = time.monotonic()
    started.worker.stop()
    await started.wait_stopped()
    assert time.monotonic() - began < scaled(5)


async def test_a_worker_can_be_stopped_before_it_began(started: StoppableWorker):
    started.start()
    started.worker.stop()
    await started.wait_stopped()


async def test_a_second_stop_hands_everything_back_now(app: Penstock, started: StoppableWorker):
    jobs = await app.enqueue_many.aio(started.hold.call(n) for n in range(4))
    started.start()
    await until(lambda: len(started.running) == 2)
    started.worker.stop()
    await asyncio.sleep(0.05)
    began = time.monotonic()
    started.worker.stop()
    await started.wait_stopped()
    assert time.monotonic() - began < scaled(10)  # not the 30 s of stop_timeout
    assert await states(jobs) == [Status.READY] * 4
    await until(lambda: sorted(started.stopped) == [0, 1])
    items = await app.queue("q").claim.aio(10)
    assert [(item.body[1]["n"], item.attempt, item.deliveries) for item in items] == [(n, 1, 1) for n in range(4)]


async def test_a_graceful_stop_waits_no_longer_than_its_stop_timeout(app: Penstock, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    started = StoppableWorker(app, concurrency=2, stop_timeout=0.2)
    jobs = await app.enqueue_many.aio(started.hold.call(n) for n in range(2))
    started.start()
    await until(lambda: len(started.running) == 2)
    began = time.monotonic()
    started.worker.stop()
    await started.wait_stopped()
    assert 0.2 <= time.monotonic() - began < scaled(5)
    assert await states(jobs) == [Status.READY] * 2
    assert "running jobs: 2, for at most 0 s; stop again to hand them back now" in caplog.text
    assert "handing back jobs that still run: 2" in caplog.text


async def test_a_second_stop_does_not_wait_for_a_thread_that_still_runs(app: Penstock, started: StoppableWorker):
    job = await started.hold_a_thread.enqueue.aio(1)
    started.start()
    await until(lambda: started.running)
    started.worker.stop()
    started.worker.stop()
    await started.wait_stopped()
    assert not started.ended
    assert await job.status.aio() is Status.READY
    started.release_thread.set()
    await until(lambda: started.ended)
    assert await job.status.aio() is Status.READY


async def test_a_stopped_worker_takes_no_wake_ups_from_the_others(app: Penstock, raw: Any, started: StoppableWorker):
    other = Worker(app, WorkerSettings())
    run = asyncio.create_task(other.run())
    started.start()
    await registered_idle(raw, app, 2)
    started.worker.stop()
    await started.wait_stopped()
    job = await started.quick.enqueue.aio(1)
    await job.result.aio(scaled(5))  # without a wake-up the other worker would take its next turn after 20 s
    other.stop()
    await asyncio.wait_for(run, scaled(20))


async def test_a_stopping_worker_uses_no_cpu_while_it_waits_for_its_last_job(app: Penstock):
    worker = Worker(app, WorkerSettings(queues=("q",)))
    release = asyncio.Event()

    @app.task(queue="q")
    async def hold() -> None:
        await release.wait()

    await hold.enqueue.aio()
    run = asyncio.create_task(worker.run())
    await until(lambda: worker._runs.running)
    worker.stop()
    rest = [await hold.enqueue.aio() for _ in range(3)]
    used = time.process_time()
    await asyncio.sleep(0.5)
    assert time.process_time() - used < 0.25
    release.set()
    await asyncio.wait_for(run, scaled(20))
    assert [await job.status.aio() for job in rest] == [Status.READY] * 3


# --- a `run()` that is cancelled ---


def left_of(raw: Any, app: Penstock) -> set[str]:
    """The keys of the queue that belong to workers."""
    base = app.queue("q").first.bindings.keys.base
    found = {key.decode().removeprefix(base) for key in raw.keys(base + "*")}
    return {key for key in found if key.startswith(("leases", "held", "turn:", "workers", "sleepers"))}


async def cancel_run(started: StoppableWorker) -> None:
    started.run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await started.run


async def test_a_cancelled_idle_worker_deregisters(app: Penstock, raw: Any, started: StoppableWorker):
    started.start()
    await registered_idle(raw, app)
    await cancel_run(started)
    assert left_of(raw, app) == set()


async def test_a_cancelled_busy_worker_settles_and_hands_back_and_deregisters(
    app: Penstock, raw: Any, started: StoppableWorker
):
    """Also the job in a thread, which runs on without effect, and those that wait for a runner."""
    jobs: list[Job[Any]] = [await started.hold.enqueue.aio(0), await started.hold_a_thread.enqueue.aio(1)]
    started.start()
    await until(lambda: started.running == [0, 1])
    jobs += [await started.quick.enqueue.aio(n) for n in (2, 3)]
    await cancel_run(started)
    assert await states(jobs) == [Status.READY] * 4
    assert started.stopped == [0]
    assert left_of(raw, app) == set()
    counts = await app.queue("q").count.aio()
    assert (counts.lost, counts.retried) == (0, 0)
    assert [(await job.info.aio()).deliveries for job in jobs] == [0, 0, 0, 0]
    await app.queue("q").purge.aio()


async def test_a_worker_that_is_cancelled_before_it_reported_a_finished_job_settles_it(
    app: Penstock, raw: Any, monkeypatch: pytest.MonkeyPatch
):
    """The report waits for `settle_within`, here for a minute. Any other turn would carry it at once."""
    ended = asyncio.Event()

    @app.task(queue="q")
    async def task() -> str:
        ended.set()
        return "done"

    job = await task.enqueue.aio()
    worker = Worker(app, WorkerSettings(settle_within=60, concurrency=1, prefetch=0))
    worker._can_claim = lambda: False  # type: ignore[method-assign]
    # A listener that has subscribed is woken up once, and that may be after the first job was claimed.
    monkeypatch.setattr(Feed, "wake_up", lambda feed, message: None)
    run = asyncio.create_task(worker.run())
    await ended.wait()
    await until(lambda: worker._feeds[0].to_settle)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert await job.result.aio(0) == "done"
    assert left_of(raw, app) == set()


async def test_a_cancelled_worker_does_not_wait_long_for_a_silent_server(start: Any):
    server = start()
    app = Penstock(server.address)
    worker = Worker(app, WorkerSettings(queues=("q",)))
    run = asyncio.create_task(worker.run())
    await until(lambda: worker._feeds[0].turns)
    server.freeze()
    began = time.monotonic()
    try:
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert time.monotonic() - began < scaled(4)
    finally:
        server.thaw()
        await app.aclose()
