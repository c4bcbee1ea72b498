"""Tasks with `batch=`: which jobs one call gets, how each of them ends, and what is refused."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from penstock import (
    BadCall,
    Batch,
    Concurrency,
    ConfigurationError,
    Drop,
    JobContext,
    JobFailed,
    JobOutcome,
    Middleware,
    Penstock,
    Retry,
    RetryLater,
    Status,
    Worker,
    WorkerSettings,
    current,
    per_process,
    step,
)
from penstock.errors import JobCancelled
from penstock.testing import RunSummary, run_jobs
from penstock.worker.batches import BatchRun
from tests.conftest import MakeApp, until
from tests.worker.in_process import run_burst


@dataclass
class Doc:
    id: int
    text: str = ""


async def test_one_call_gets_many_jobs_and_each_has_its_result(app: Penstock):
    calls: list[list[int]] = []

    @app.task(queue="index", batch=Batch(3))
    async def index(docs: list[Doc]) -> list[str | Exception]:
        calls.append([doc.id for doc in docs])
        return [f"{doc.id} {doc.text}" for doc in docs]

    jobs = await app.enqueue_many.aio(index.call(Doc(n, "x")) for n in range(7))
    assert await run_jobs.aio(app) == RunSummary(completed=7)
    assert calls == [[0, 1, 2], [3, 4, 5], [6]]
    assert [await job.result.aio(0) for job in jobs] == [f"{n} x" for n in range(7)]
    assert await index([Doc(1, "y")]) == ["1 y"]


async def test_each_item_ends_in_its_own_way(app: Penstock):
    @app.task(queue="numbers", batch=Batch(10), retry=Retry(1, base=0, on=OSError))
    def work(numbers: list[int]) -> list[int | Exception]:
        outcomes: list[int | Exception] = [n * n for n in numbers]
        for at, n in enumerate(numbers):
            if n == 1:
                outcomes[at] = ValueError("no one")
            elif n == 2 and len(numbers) == 6:
                outcomes[at] = OSError("again")
            elif n == 3:
                outcomes[at] = Drop("not needed")
            elif n == 4 and len(numbers) == 6:
                outcomes[at] = RetryLater(0)
        return outcomes

    jobs = [await work.enqueue.aio(n) for n in range(6)]
    ran = await run_jobs.aio(app, dead=True)
    assert (ran.completed, ran.failed, ran.dropped) == (4, 1, 1)
    assert [await jobs[n].result.aio(0) for n in (0, 2, 4, 5)] == [0, 4, 16, 25]
    with pytest.raises(JobFailed, match="no one"):
        await jobs[1].result.aio(0)
    with pytest.raises(JobCancelled, match="not needed"):
        await jobs[3].result.aio(0)
    assert (await jobs[2].info.aio()).status is Status.COMPLETED


async def test_an_exception_of_the_call_is_raised_for_each_job(app: Penstock):
    attempts: list[int] = []

    @app.task(queue="index", batch=Batch(10), retry=Retry(1, base=0))
    async def index(docs: list[int]) -> None:
        attempts.append(len(docs))
        raise RuntimeError("down")

    await app.enqueue_many.aio(index.call(n) for n in range(4))
    ran = await run_jobs.aio(app, dead=True)
    assert (ran.retried, ran.failed) == (4, 4)
    assert attempts == [4, 4]


@pytest.mark.parametrize(
    ("outcomes", "message"),
    [
        ([1], r"index\(\) returned 1 outcomes for a batch of 3 jobs: return one outcome for each job"),
        ("abc", r"index\(\) returned a str for a batch of 3 jobs"),
    ],
)
async def test_wrong_outcomes_are_one_clear_error_and_complete_no_job(app: Penstock, outcomes: list[int], message: str):
    @app.task(queue="index", batch=Batch(10), retry=3)
    async def index(docs: list[int]) -> list[int]:
        return outcomes

    jobs = await app.enqueue_many.aio(index.call(n) for n in range(3))
    assert (await run_jobs.aio(app, dead=True)).failed == 3
    for job in jobs:
        with pytest.raises(JobFailed, match=message):
            await job.result.aio(0)


async def test_a_result_that_cannot_be_encoded_fails_alone(app: Penstock):
    @app.task(queue="index", batch=Batch(10))
    async def index(docs: list[int]) -> list[object]:
        return [object() if n == 1 else n for n in docs]

    jobs = await app.enqueue_many.aio(index.call(n) for n in range(3))
    assert (await run_jobs.aio(app, dead=True)).failed == 1
    assert [await job.status.aio() for job in jobs] == [Status.COMPLETED, Status.DEAD, Status.COMPLETED]


async def test_a_batch_of_one_tenant_and_what_a_worker_fills(app: Penstock):
    def pool() -> Iterator[str]:
        yield "a pool"

    seen: list[tuple[str, list[int], str]] = []

    @app.task(queue="index", batch=Batch(10, by_tenant=True))
    async def index(docs: list[int], pool: str = per_process(pool)) -> None:
        seen.append((current().tenant, docs, pool))

    await app.enqueue_many.aio(index.using(tenant="ab"[n % 2]).call(n) for n in range(6))
    await run_jobs.aio(app)
    assert sorted(seen) == [("a", [0, 2, 4], "a pool"), ("b", [1, 3, 5], "a pool")]


async def running(app: Penstock, **settings: object) -> tuple[Worker, asyncio.Task[None]]:
    worker = Worker(app, WorkerSettings(**settings))  # type: ignore[arg-type]
    return worker, asyncio.create_task(worker.run())


async def test_jobs_linger_in_the_server_until_the_batch_is_full_or_the_time_is_over(app: Penstock):
    calls: list[int] = []

    @app.task(queue="index", batch=Batch(4, linger=0.3))
    async def index(docs: list[int]) -> None:
        calls.append(len(docs))

    worker, run = await running(app)
    await until(lambda: worker._feeds[0].wake_at < float("inf") and not worker._feeds[0].awake)
    began = time.monotonic()
    jobs = [await index.enqueue.aio(n) for n in range(2)]
    await asyncio.gather(*(job.result.aio(30) for job in jobs))
    assert time.monotonic() - began >= 0.28
    assert calls == [2]
    await asyncio.gather(*[(await index.enqueue.aio(n)).result.aio(30) for n in range(4)])
    assert calls in ([2, 4], [2, 1, 3], [2, 2, 2], [2, 3, 1])
    worker.stop()
    await run


async def test_a_batch_occupies_one_runner(app: Penstock):
    together, most = 0, 0
    lock = threading.Lock()

    @app.task(queue="index", batch=Batch(5))
    def index(docs: list[int]) -> None:
        nonlocal together, most
        with lock:
            together += 1
            most = max(most, together)
        time.sleep(0.05)
        with lock:
            together -= 1

    await app.enqueue_many.aio(index.call(n) for n in range(30))
    assert (await run_jobs.aio(app, settings=WorkerSettings(concurrency=2))).completed == 30
    assert most == 2


@pytest.mark.parametrize("by_tenant", [False, True])
async def test_one_turn_claims_batches_for_half_of_the_runners(app: Penstock, by_tenant: bool):
    calls: list[list[int]] = []
    go = asyncio.Event()

    @app.task(queue="index", batch=Batch(3, linger=60, by_tenant=by_tenant))
    async def index(docs: list[int]) -> None:
        calls.append(docs)
        await go.wait()

    await app.enqueue_many.aio(index.using(tenant="ab"[n // 12]).call(n) for n in range(24))
    worker, run = await running(app, concurrency=4)
    await until(lambda: len(calls) == 4)
    assert {len(claims) for claims in calls} == {3}
    assert worker._feeds[0].turns < 4
    assert len(worker._feeds[0].held) == 12
    go.set()
    await until(lambda: len(calls) == 8)
    worker.stop()
    await run
    assert sorted(n for docs in calls for n in docs) == [*range(24)]
    assert all(len({n // 12 for n in docs}) == 1 for docs in calls) or not by_tenant


async def test_batches_beyond_the_runners_wait_for_one(app: Penstock, monkeypatch: pytest.MonkeyPatch):
    together = most = 0

    @app.task(queue="index", batch=Batch(2))
    async def index(docs: list[int]) -> None:
        nonlocal together, most
        together += 1
        most = max(most, together)
        await asyncio.sleep(0.02)
        together -= 1

    await app.enqueue_many.aio(index.call(n) for n in range(24))
    worker = Worker(app, WorkerSettings(concurrency=2, burst=True))
    feed = worker._feeds[0]
    turn = feed.turn

    def larger_turn(want: int, *, leave: bool = False) -> Any:
        return turn(3 * want, leave=leave)  # as if the batches of the server were smaller

    monkeypatch.setattr(feed, "turn", larger_turn)
    await worker.run()
    assert (most, (await app.queue("index").count.aio()).ready) == (2, 0)


async def test_a_job_that_is_cancelled_in_a_batch_ends_so_and_the_others_complete(app: Penstock):
    started, go = asyncio.Event(), asyncio.Event()

    @app.task(queue="index", batch=Batch(3))
    async def index(docs: list[int]) -> None:
        started.set()
        await go.wait()

    jobs = await app.enqueue_many.aio(index.call(n) for n in range(3))
    worker, run = await running(app)
    await started.wait()
    assert not await jobs[1].cancel.aio()
    await until(lambda: any(run.cancelled_jobs for run in worker._runs.running if isinstance(run, BatchRun)))
    go.set()
    await jobs[0].result.aio(30)
    worker.stop()
    await run
    assert [await job.status.aio() for job in jobs] == [Status.COMPLETED, Status.CANCELLED, Status.COMPLETED]


async def test_a_batch_whose_jobs_are_all_cancelled_is_ended(app: Penstock):
    started = asyncio.Event()

    @app.task(queue="index", batch=Batch(2))
    async def index(docs: list[int]) -> None:
        started.set()
        await asyncio.sleep(60)

    jobs = await app.enqueue_many.aio(index.call(n) for n in range(2))
    worker, run = await running(app)
    await started.wait()
    assert all(await asyncio.gather(*(job.cancel.aio(wait=30) for job in jobs)))
    worker.stop()
    await run


async def test_a_stopping_worker_hands_all_jobs_of_a_batch_back(app: Penstock):
    started = asyncio.Event()

    @app.task(queue="index", batch=Batch(3))
    async def index(docs: list[int]) -> None:
        started.set()
        await asyncio.sleep(60)

    await app.enqueue_many.aio(index.call(n) for n in range(3))
    worker, run = await running(app)
    await started.wait()
    worker.stop()
    worker.stop()
    await run
    counts = await app.queue("index").count.aio()
    assert (counts.ready, counts.running) == (3, 0)


async def test_a_timeout_ends_the_batch_and_fails_each_job(app: Penstock):
    @app.task(queue="index", batch=Batch(3), timeout=0.05)
    async def index(docs: list[int]) -> None:
        await asyncio.sleep(60)

    await app.enqueue_many.aio(index.call(n) for n in range(3))
    assert (await run_jobs.aio(app, dead=True)).failed == 3


async def test_progress_and_hooks_know_each_job(make_app: MakeApp):
    finished: list[str] = []

    class Finished(Middleware):
        def finished(self, job: JobContext, outcome: JobOutcome) -> None:
            finished.append(f"{job.id} {outcome.ending}")

    app = make_app()
    app.add_middleware(Finished())

    @app.task(queue="index", batch=Batch(3))
    def index(docs: list[int]) -> None:
        current().progress(0.5, "half")
        with pytest.raises(ConfigurationError, match="a batch stages nothing"):
            _ = current().stage
        with pytest.raises(ConfigurationError, match="no durable steps"):
            step.run(int, 1)

    jobs = await app.enqueue_many.aio(index.call(n) for n in range(2))
    await run_jobs.aio(app)
    assert sorted(finished) == sorted(f"{job.id} completed" for job in jobs)
    progress = [(await job.info.aio()).progress for job in jobs]
    assert [one and one.fraction for one in progress] == [0.5, 0.5]


# --- what is refused ---


async def one_parameter_too_many(docs: list[int], more: int) -> None: ...


async def no_list(docs: dict[str, int]) -> None: ...


async def good(docs: list[int]) -> None: ...


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (one_parameter_too_many, {}, "its function has one parameter, a list"),
        (good, {"isolate": True}, "batch=… and isolate=True"),
        (good, {"limit": Concurrency(1)}, "count a batch as one"),
        (good, {"schedule": "0 7 * * *"}, "docs"),
    ],
)
async def test_options_that_cannot_work_are_refused_where_they_are_written(app, function, options, message: str):
    with pytest.raises(ConfigurationError, match=message):
        app.task(queue="index", batch=Batch(3), **options)(function)


async def test_a_parameter_that_is_no_list_is_refused(app: Penstock):
    task: Any = app.task(queue="index", batch=Batch(3))(no_list)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"annotate it as docs: list\[…\]"):
        task.call(1)


async def test_a_batch_task_has_a_queue_of_its_own(app: Penstock):
    message = "shares queue 'index' with task other: give it a queue of its own"
    app.task(queue="index", batch=Batch(3))(good)
    with pytest.raises(ConfigurationError, match=message):
        app.task(queue="index", name="other")(one_parameter_too_many)
    app.task(queue="raw", name="other")(one_parameter_too_many)
    with pytest.raises(ConfigurationError, match="shares queue 'raw' with task other"):
        app.task(queue="raw", name="another", batch=Batch(3))(good)


@pytest.mark.parametrize(("size", "linger"), [(0, 0.1), (501, 0.1), (2.5, 0.1), (10, -1), (10, 1e9)])
def test_numbers_out_of_range_are_refused(size: int, linger: float):
    with pytest.raises(ValueError, match="Batch"):
        Batch(size, linger)


async def test_an_item_that_does_not_fit_is_refused_where_it_is_enqueued(app: Penstock):
    @app.task(queue="index", batch=Batch(3))
    async def index(docs: list[Doc]) -> None: ...

    with pytest.raises(BadCall, match="Expected `object`, got `int`"):
        await index.enqueue.aio(1)  # type: ignore[arg-type]


@pytest.mark.parametrize("is_named", [False, True])
@pytest.mark.parametrize("first", ["index", "mail"])
async def test_a_full_batch_and_jobs_of_another_queue_leave_the_loop_free(app: Penstock, first: str, is_named: bool):
    ran: list[str] = []

    def batches() -> Any:
        @app.task(queue="index", batch=Batch(3))
        async def index(docs: list[int]) -> None:
            await asyncio.sleep(0.001)
            ran.extend("index" for _ in docs)

        return index

    def singles() -> Any:
        @app.task(queue="mail")
        async def mail(n: int) -> None:
            await asyncio.sleep(0.001)
            ran.append("mail")

        return mail

    tasks = [make() for make in ((batches, singles) if first == "index" else (singles, batches))]
    await app.enqueue_many.aio(task.call(n) for task in tasks for n in range(30))
    queues = tuple(task.queue.name for task in tasks) if is_named else ()
    await run_burst(app, concurrency=1, queues=queues)
    assert sorted(ran) == ["index"] * 30 + ["mail"] * 30
