"""`current()`: the job that code runs in, its progress, and its log."""

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from penstock import CurrentJob, Drop, Job, JobContext, Middleware, Penstock, Retry, Status, current
from penstock.errors import NoCurrentJob
from penstock.info import JobProgress
from penstock.ops.raw_client import raw_client
from tests.conftest import until
from tests.speed import scaled
from tests.worker import isolated_tasks
from tests.worker.in_process import run_burst, running_worker

BOTH_KINDS = pytest.mark.parametrize("kind", ["async def", "def"])


def describe(job: CurrentJob) -> list[Any]:
    return [job.id, job.task, job.queue, job.tenant, job.priority, job.attempt, job.deliveries, job.cancelled]


def adopt(app: Penstock, task: Any, **options: Any) -> Any:
    return app.task(queue="q", isolate=True, name=task.name, **options)(task.__wrapped__)


# --- which job ---


@BOTH_KINDS
async def test_a_task_sees_its_own_job(app: Penstock, kind: str):
    def look() -> list[Any]:
        if current().attempt == 1:
            raise OSError
        return describe(current())

    async def look_on_the_loop() -> list[Any]:
        return look()

    function = look if kind == "def" else look_on_the_loop
    task: Any = app.task(queue="q", name="look", retry=Retry(1, base=0))(function)
    jobs = [await task.using(tenant=f"t{n}", priority=n).enqueue.aio() for n in range(3)]
    await run_burst(app)
    for n, job in enumerate(jobs):
        assert await job.result.aio(0) == [job.id, "look", "q", f"t{n}", n, 2, 2, False]


async def test_each_of_many_jobs_sees_its_own_job_before_and_after_it_suspends(app: Penstock):
    async def child() -> str:
        await asyncio.sleep(0)
        return current().id

    @app.task(queue="q")
    async def look(suspend: bool) -> list[str]:
        seen = [current().id]
        task = asyncio.create_task(child())
        if suspend:
            await asyncio.sleep(0.001)
        seen += [current().id, await task, await asyncio.to_thread(lambda: current().id)]
        return seen

    @app.task(queue="q")
    async def look_only() -> list[str]:
        return [current().id]

    calls = [call for n in range(100) for call in (look.call(n % 2 == 0), look_only.call())]
    jobs = await app.enqueue_many.aio(calls)
    await run_burst(app)
    for job in jobs:
        assert set(await job.result.aio(0)) == {job.id}


@BOTH_KINDS
@pytest.mark.parametrize("hook", ["def", "async def"])
async def test_middleware_sees_the_job(app: Penstock, kind: str, hook: str):
    seen = []

    class Look(Middleware):
        def execute(self, job: JobContext) -> Iterator[None]:
            seen.append(current().id)
            yield
            seen.append(current().id)

    class LookOnTheLoop(Middleware):
        async def execute(self, job: JobContext) -> AsyncIterator[None]:
            seen.append(current().id)
            yield
            seen.append(current().id)

    app.add_middleware(Look() if hook == "def" else LookOnTheLoop())

    def look() -> str:
        return current().id

    async def look_on_the_loop() -> str:
        return current().id

    task: Any = app.task(queue="q", name="look")(look if kind == "def" else look_on_the_loop)
    job = await task.enqueue.aio()
    await run_burst(app)
    assert [*seen, await job.result.aio(0)] == [job.id] * 3


async def test_outside_of_a_job_there_is_none(app: Penstock):
    @app.task
    def look() -> str:
        return current().id

    with pytest.raises(NoCurrentJob, match=r"current\(\): this code runs in no job.*direct call of the task"):
        look()
    with pytest.raises(LookupError):
        current()


async def test_a_worker_leaves_no_job_in_the_context_of_its_program(app: Penstock):
    @app.task(queue="q")
    async def look() -> str:
        return current().id

    async with running_worker(app):
        job = await look.enqueue.aio()
        assert await job.result.aio(scaled(5)) == job.id
        with pytest.raises(NoCurrentJob):
            current()
    with pytest.raises(NoCurrentJob):
        current()


@BOTH_KINDS
async def test_the_deadline_is_that_of_the_timeout(app: Penstock, kind: str):
    def left() -> float | None:
        deadline = current().deadline
        return None if deadline is None else deadline - time.monotonic()

    async def left_on_the_loop() -> float | None:
        return left()

    function = left if kind == "def" else left_on_the_loop
    limited: Any = app.task(queue="q", name="limited", timeout=60)(function)
    free: Any = app.task(queue="q", name="free")(function)
    jobs = [await limited.enqueue.aio(), await free.enqueue.aio()]
    await run_burst(app)
    assert 60 - scaled(5) < await jobs[0].result.aio(0) <= 60
    assert await jobs[1].result.aio(0) is None


async def test_a_thread_that_cannot_be_interrupted_sees_that_it_is_cancelled(app: Penstock):
    started, seen = threading.Event(), threading.Event()

    @app.task(queue="q")
    def look() -> None:
        job = current()
        started.set()
        try:
            while not job.cancelled:
                time.sleep(0.01)
        finally:
            if job.cancelled:
                seen.set()

    job = await look.enqueue.aio()
    async with running_worker(app):
        await asyncio.to_thread(started.wait)
        assert await job.cancel.aio(wait=scaled(5))
    assert seen.is_set()


async def test_an_isolated_job_sees_itself(app: Penstock):
    job = await adopt(app, isolated_tasks.report, timeout=60).enqueue.aio(3)
    await run_burst(app)
    found = await job.result.aio(0)
    assert (found["id"], found["attempt"]) == (job.id, 1)
    assert 0 < found["left"] <= 60
    assert found["pid"] != os.getpid()


# --- progress and log ---


async def test_progress_and_log_are_read_while_the_job_runs(app: Penstock):
    go_on, reported = asyncio.Event(), list[int]()

    @app.task(queue="q")
    async def count() -> str:
        for n in range(5):
            current().progress(n / 10, f"page {n}")
            current().log(f"fetched page {n}")
        reported.append(1)
        await go_on.wait()
        current().progress(1)
        current().log("done")
        return "counted"

    job = await count.enqueue.aio()
    before = (await app.queue("q").count.aio()).ready
    async with running_worker(app) as worker:
        await until(lambda: reported and not worker._feeds[0].must_send and not worker._feeds[0].notes)
        info = await job.info.aio()
        assert before == 1
        assert info.status is Status.RUNNING
        assert info.progress is not None
        assert (info.progress.fraction, info.progress.text) == (0.4, "page 4")
        assert info.progress.at == pytest.approx(info.enqueued, abs=scaled(5))
        assert [line.text for line in info.log] == [f"fetched page {n}" for n in range(5)]
        go_on.set()
        assert await job.result.aio(scaled(5)) == "counted"
    info = await job.info.aio()
    assert (info.status, info.result) == (Status.COMPLETED, "counted")
    assert info.progress is not None
    assert (info.progress.fraction, info.progress.text) == (1.0, "")
    assert info.log[-1].text == "done"


@pytest.mark.parametrize("face", ["blocking", "aio"])
async def test_a_waiting_caller_is_called_with_each_progress(app: Penstock, face: str):
    seen: list[JobProgress] = []
    reported = [threading.Event(), threading.Event()]

    @app.task(queue="q")
    async def count() -> int:
        current().progress(0.25, "first")
        await asyncio.to_thread(reported[0].wait)
        current().progress(0.5, "second")
        await asyncio.to_thread(reported[1].wait)
        return 7

    def on_progress(progress: JobProgress) -> None:
        seen.append(progress)
        reported[len(seen) - 1].set()

    job = await count.enqueue.aio()
    async with running_worker(app):
        if face == "aio":
            assert await job.result.aio(scaled(20), on_progress=on_progress) == 7
        else:
            assert await asyncio.to_thread(job.result, scaled(20), on_progress=on_progress) == 7
    assert [(one.fraction, one.text) for one in seen] == [(0.25, "first"), (0.5, "second")]


async def test_a_caller_that_does_not_ask_for_progress_sends_nothing_for_it(app: Penstock):
    @app.task(queue="q")
    async def count() -> int:
        for n in range(20):
            current().progress(n / 20)
            await asyncio.sleep(0.1)
        return 7

    job = await count.enqueue.aio()
    sent = []
    result = app.queue("q").first.bindings.result

    def counted(*args: Any) -> Any:
        sent.append(1)
        return result(*args)

    app.queue("q").first.bindings.result = counted  # type: ignore[method-assign,assignment]
    async with running_worker(app):
        assert await job.result.aio(scaled(20)) == 7
    assert len(sent) <= 3


async def test_ten_thousand_reports_cost_a_few_turns(app: Penstock):
    @app.task(queue="q")
    async def count() -> None:
        for n in range(10_000):
            current().progress(n / 10_000, "x" * 1000)
            current().log(f"line {n}")
            if n % 1000 == 0:
                await asyncio.sleep(0)

    job = await count.enqueue.aio()
    worker = await run_burst(app)
    info = await job.info.aio()
    assert info.progress is not None
    assert (info.progress.fraction, len(info.progress.text)) == (0.9999, 500)
    assert info.log[-1].text == "line 9999"
    assert 900 < len(info.log) < 2000, "16 KiB of lines are kept"
    assert [line.text for line in info.log] == [f"line {n}" for n in range(10_000 - len(info.log), 10_000)]
    assert worker._feeds[0].turns < 20


@pytest.mark.parametrize(
    ("how", "status"),
    [("retry", Status.DELAYED), ("dead", Status.DEAD), ("drop", Status.DROPPED), ("done", Status.COMPLETED)],
)
@BOTH_KINDS
async def test_the_log_stays_with_the_job_however_its_run_ends(app: Penstock, kind: str, how: str, status: Status):
    def body() -> None:
        current().log(f"run {current().attempt}")
        current().progress(0.5)
        match how:
            case "retry":
                raise Retry(5, base=600)
            case "dead":
                raise OSError("no")
            case "drop":
                raise Drop("why")

    async def on_the_loop() -> None:
        body()

    task: Any = app.task(queue="q", name="task")(body if kind == "def" else on_the_loop)
    job = await task.enqueue.aio()
    await run_burst(app)
    info = await job.info.aio()
    assert info.status is status
    assert [line.text for line in info.log] == ["run 1"]
    assert info.progress is not None
    await job.cancel.aio()
    assert [line.text for line in (await job.info.aio()).log] == ["run 1"]


async def test_the_log_of_a_dead_letter_goes_with_it(app: Penstock):
    @app.task(queue="q")
    def fail() -> None:
        current().log(f"run {current().deliveries}")
        raise OSError

    job = await fail.enqueue.aio()
    await run_burst(app)
    await app.queue("q").dead.requeue.aio(job.id)
    await run_burst(app)
    assert [line.text for line in (await job.info.aio()).log] == ["run 1", "run 1"]
    await app.queue("q").dead.remove.aio(job.id)
    assert b"notes" not in b" ".join(await _keys(app))


async def test_a_job_without_a_kept_result_leaves_no_log(app: Penstock):
    @app.task(queue="q", result_ttl=0)
    def run() -> None:
        current().log("x")

    await run.enqueue.aio()
    await run_burst(app)
    assert b"notes" not in b" ".join(await _keys(app))


async def _keys(app: Penstock) -> list[bytes]:
    with raw_client(app) as client:
        return list(client.scan_iter(match=app.queue("q").first.bindings.keys.pattern))


async def test_an_isolated_job_reports_through_its_worker(app: Penstock):
    job = await adopt(app, isolated_tasks.report).enqueue.aio(10)
    crashed = await adopt(app, isolated_tasks.report_and_crash).enqueue.aio()
    await run_burst(app)
    info = await job.info.aio()
    assert info.progress is not None
    assert (info.progress.fraction, info.progress.text) == (0.9, "line 9")
    assert [line.text for line in info.log] == [f"line {n}" for n in range(10)]
    assert {line.text for line in (await crashed.info.aio()).log} == {"about to crash"}


async def test_a_thousand_jobs_that_log_lose_no_line(app: Penstock):
    @app.task(queue="q")
    async def run(n: int) -> None:
        current().log(f"job {n}")

    jobs: list[Job[None]] = await app.enqueue_many.aio(run.call(n) for n in range(1000))
    await run_burst(app)
    for n, job in enumerate(jobs):
        assert [line.text for line in (await job.info.aio()).log] == [f"job {n}"]


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan")])
async def test_a_progress_out_of_range_is_refused_where_it_is_reported(app: Penstock, fraction: float):
    @app.task(queue="q")
    async def run() -> None:
        with pytest.raises(ValueError, match="a fraction from 0 to 1"):
            current().progress(fraction)

    job = await run.enqueue.aio()
    await run_burst(app)
    assert await job.status.aio() is Status.COMPLETED


async def test_any_text_can_be_logged(app: Penstock):
    texts = ["", "é中", "\ud800", "a\nb", "x" * 5000, "\0"]

    @app.task(queue="q")
    async def run() -> None:
        for text in texts:
            current().log(text)
            current().progress(0, text)

    job = await run.enqueue.aio()
    await run_burst(app)
    found = [line.text for line in (await job.info.aio()).log]
    assert found == ["", "é中", "\\ud800", "a\nb", "x" * 1999 + "…", "\0"]
