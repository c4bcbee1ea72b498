"""Running jobs that are cancelled: they end within a second if their code can be interrupted, and end as cancelled."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from penstock import Job, Middleware, Penstock, Retry, Status
from penstock.errors import CancelTimeout, JobCancelled
from tests.conftest import MakeApp, until
from tests.speed import Deadline, scaled
from tests.worker import isolated_tasks
from tests.worker.in_process import running_worker
from tests.worker.isolated_tasks import is_alive
from tests.worker.test_isolated_jobs import adopt


async def is_in(job: Job[Any], status: Status) -> None:
    deadline = Deadline(30)
    while await job.status.aio() is not status:
        assert not deadline.passed(), await job.status.aio()
        await asyncio.sleep(0.005)


async def running(*jobs: Job[Any]) -> None:
    for job in jobs:
        await is_in(job, Status.RUNNING)


async def assert_cancelled(job: Job[Any]) -> None:
    assert await job.status.aio() is Status.CANCELLED
    with pytest.raises(JobCancelled):
        await job.result.aio(0)
    assert await job.cancel.aio() is True, "an earlier cancel is known"


async def test_a_coroutine_is_cancelled_at_its_await_and_cleans_up(app: Penstock):
    ended: list[str] = []

    @app.task(queue="q", retry=Retry(5))
    async def wait(n: int) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(f"cleaned up {n}")

    async with running_worker(app, concurrency=3):
        jobs = [await wait.enqueue.aio(n) for n in range(3)]
        await running(*jobs)
        began = time.monotonic()
        assert await jobs[1].cancel.aio() is False, "it was asked to end, and may still run"
        assert await jobs[1].cancel.aio(wait=5) is True
        assert time.monotonic() - began < scaled(1)
        assert ended == ["cleaned up 1"]
        await assert_cancelled(jobs[1])
        assert [await jobs[n].status.aio() for n in (0, 2)] == [Status.RUNNING] * 2
        for n in (0, 2):
            assert await jobs[n].cancel.aio(wait=None) is True
    counts = await app.queue("q").count.aio()
    assert (counts.cancelled, counts.completed, counts.failed, counts.retried) == (3, 0, 0, 0)


async def test_a_thread_gets_an_exception_at_its_next_line(app: Penstock):
    begun, ended = threading.Event(), threading.Event()

    @app.task(queue="q")
    def count() -> None:
        try:
            begun.set()
            while True:
                time.sleep(0.01)
        finally:
            ended.set()

    async with running_worker(app):
        job = await count.enqueue.aio()
        await until(begun.is_set)
        began = time.monotonic()
        assert await job.cancel.aio(wait=5) is True
        assert time.monotonic() - began < scaled(1)
        assert ended.is_set()
        await assert_cancelled(job)


async def test_a_thread_inside_async_hooks_gets_it_too(app: Penstock):
    class Hook(Middleware):
        async def execute(self, job: Any) -> AsyncIterator[None]:
            yield

    app.add_middleware(Hook())

    @app.task(queue="q")
    def count() -> None:
        while True:
            time.sleep(0.01)

    async with running_worker(app):
        job = await count.enqueue.aio()
        await running(job)
        assert await job.cancel.aio(wait=scaled(5)) is True


async def test_an_isolated_process_is_ended_even_in_c_code(app: Penstock, tmp_path: Path):
    spin = adopt(app, isolated_tasks.spin_in_c)
    async with running_worker(app):
        job = await spin.enqueue.aio(str(tmp_path / "pid"))
        await until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        assert await job.cancel.aio(wait=scaled(5)) is True
        assert not is_alive(int((tmp_path / "pid").read_text()))
        await assert_cancelled(job)


async def test_a_task_that_ignores_its_cancellation_ends_as_cancelled_nevertheless(app: Penstock):
    @app.task(queue="q")
    async def stubborn() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.05)
        return "a result that comes too late"

    @app.task(queue="q", retry=Retry(3))
    async def fails_in_its_cleanup() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            raise OSError("the cleanup fails")

    async with running_worker(app):
        jobs: list[Job[Any]] = [await stubborn.enqueue.aio(), await fails_in_its_cleanup.enqueue.aio()]
        await running(*jobs)
        for job in jobs:
            assert await job.cancel.aio(wait=scaled(5)) is True
            await assert_cancelled(job)


async def test_code_that_cannot_be_interrupted_times_out_with_words(app: Penstock):
    release = threading.Event()

    @app.task(queue="q")
    def in_c() -> None:
        release.wait(60)

    async with running_worker(app):
        job = await in_c.enqueue.aio()
        await running(job)
        await asyncio.sleep(scaled(0.2))  # until the thread waits: before that, it can be interrupted
        words = rf"job q:{job.key} still runs, 0.2 s after it was cancelled: .*isolate=True"
        with pytest.raises(CancelTimeout, match=words):
            await job.cancel.aio(wait=0.2)
        assert await job.status.aio() is Status.RUNNING
        release.set()
        with pytest.raises(JobCancelled):
            await job.result.aio(scaled(10))
    assert (await app.queue("q").count.aio()).cancelled == 1


async def test_a_claimed_job_that_has_not_started_is_cancelled_at_once(app: Penstock):
    release = asyncio.Event()

    @app.task(queue="q")
    async def hold(n: int) -> int:
        if n:
            await release.wait()
        return n

    async with running_worker(app, concurrency=1, prefetch=1e6, max_batch=8) as worker:
        for _ in range(3):  # so that the worker expects short jobs, and claims several
            await (await hold.enqueue.aio(0)).result.aio(scaled(10))
        jobs = await app.enqueue_many.aio(hold.call(n) for n in (1, 2, 3))
        await until(lambda: len(worker._feeds[0].held) == 3)
        waiting = next(job for job in jobs if any(claim.id == job.key for _, claim in worker._runs.waiting))
        assert await waiting.cancel.aio(wait=scaled(5)) is True
        release.set()


async def test_a_lost_message_is_made_up_for_by_the_heartbeat(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch):
    app = make_app(lease=0.9)

    @app.task(queue="q")
    async def wait() -> None:
        await asyncio.sleep(60)

    async with running_worker(app) as worker:
        job = await wait.enqueue.aio()
        await running(job)
        monkeypatch.setattr(worker._cancelling, "read", lambda feed: None)
        assert await job.cancel.aio(wait=scaled(10)) is True


async def test_what_has_ended_or_is_dead_is_not_cancelled(app: Penstock):
    @app.task(queue="q")
    async def task(fails: bool) -> str:
        if fails:
            raise OSError
        return "done"

    async with running_worker(app):
        good, bad = await task.enqueue.aio(False), await task.enqueue.aio(True)
        assert await good.result.aio(scaled(10)) == "done"
        await is_in(bad, Status.DEAD)
        assert [await job.cancel.aio(wait=1) for job in (good, bad, app.job("q:unknown"))] == [False] * 3
    await app.queue("q").dead.remove.aio(bad.id)


async def test_a_cancelled_run_of_a_job_does_not_cancel_its_next_run(app: Penstock):
    """Its lease is lost just then, and another claim of the job has another token."""
    release = asyncio.Event()

    @app.task(queue="q")
    async def wait() -> str:
        await release.wait()
        return "done"

    queue = app.queue("q")
    async with running_worker(app) as worker:
        job = await wait.enqueue.aio()
        await running(job)
        token = next(iter(worker._feeds[0].held))
        await app._driver.aio.run(queue.first.bindings.abandon(worker._feeds[0].incarnation))
        await until(lambda: worker._feeds[0].held and token not in worker._feeds[0].held)
        worker._cancelling.obey(worker._feeds[0], [token])
        release.set()
        assert await job.result.aio(scaled(10)) == "done"


@pytest.mark.parametrize("wait", [-1, float("nan")])
async def test_a_wait_that_cannot_be_is_refused(app: Penstock, wait: float):
    with pytest.raises(ValueError, match="seconds from 0"):
        await app.job("q:j").cancel.aio(wait=wait)


async def test_a_job_without_a_kept_result_is_cancelled_too(app: Penstock):
    @app.task(queue="q", result_ttl=0)
    async def wait() -> None:
        await asyncio.sleep(60)

    async with running_worker(app):
        job = await wait.enqueue.aio()
        await running(job)
        assert await job.cancel.aio(wait=scaled(5)) is True
    assert (await app.queue("q").count.aio()).cancelled == 1


async def test_a_program_without_a_worker_is_not_interrupted(app: Penstock):
    job = await app.queue("q").put.aio("a value")
    (item,) = await app.queue("q").claim.aio()
    with pytest.raises(CancelTimeout):
        await job.cancel.aio(wait=0.1)
    await item.complete.aio("done")
    assert await job.result.aio(0) == "done"
