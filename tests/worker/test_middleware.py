"""Middleware around runs: where it is called, what it sees of a job, and what its errors do."""

import asyncio
import contextlib
import contextvars
import json
import logging
import os
import re
import signal
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    Drop,
    EnqueueContext,
    JobContext,
    JobFailed,
    JobOutcome,
    Middleware,
    Penstock,
    Retry,
    RetryLater,
    Status,
    Task,
)
from penstock.worker.logs import JsonLines
from tests.conftest import Time, until
from tests.speed import scaled
from tests.worker import isolated_tasks
from tests.worker.in_process import run_burst, running_worker

KINDS = pytest.mark.parametrize("kind", ["async def", "def"])
SHOP: contextvars.ContextVar[str] = contextvars.ContextVar("SHOP", default="unset")


class Recorder(Middleware):
    """A `def` hook that writes down each run, and a note of how it ended."""

    def __init__(self, name: str = "", events: list[Any] | None = None) -> None:
        self.name = name
        self.events: list[Any] = [] if events is None else events
        self.jobs: list[JobContext] = []
        self.outcomes: list[JobOutcome] = []
        self.finished_in: set[threading.Thread] = set()

    def execute(self, job: JobContext) -> Iterator[None]:
        self.jobs.append(job)
        self.events.append(f"{self.name}before")
        try:
            yield
        except BaseException as error:
            self.events.append(f"{self.name}{type(error).__name__}")
            raise
        self.events.append(f"{self.name}after")

    def finished(self, job: JobContext, outcome: JobOutcome) -> None:
        self.outcomes.append(outcome)
        self.finished_in.add(threading.current_thread())


class AsyncRecorder(Recorder):
    """The same as an `async def` hook."""

    async def execute(self, job: JobContext) -> AsyncIterator[None]:  # type: ignore[override]
        await asyncio.sleep(0)
        self.events.append(f"{self.name}before")
        try:
            yield
        except BaseException as error:
            self.events.append(f"{self.name}{type(error).__name__}")
            raise
        await asyncio.sleep(0)
        self.events.append(f"{self.name}after")


def task_of(app: Penstock, kind: str, body: Any, **options: Any) -> Task[..., Any]:
    """A task of either kind that calls `body`."""

    @app.task(queue="q", name="task", **options)
    async def on_the_loop() -> Any:
        return body()

    def in_a_thread() -> Any:
        return body()

    if kind == "async def":
        return on_the_loop
    app.registry._tasks.clear()
    return app.task(queue="q", name="task", **options)(in_a_thread)


# --- order and place ---


@KINDS
async def test_the_first_middleware_is_the_outermost(app: Penstock, kind: str):
    events: list[str] = []
    for name in ("a ", "b "):
        app.add_middleware(Recorder(name, events))
    await task_of(app, kind, lambda: events.append("task")).enqueue.aio()
    await run_burst(app)
    assert events == ["a before", "b before", "task", "b after", "a after"]


@pytest.mark.parametrize(
    ("kind", "order"),
    [
        ("async def", ["a before", "b before", "c before", "task", "c after", "b after", "a after"]),
        ("def", ["b before", "a before", "c before", "task", "c after", "a after", "b after"]),
    ],
)
async def test_around_a_thread_hooks_of_the_loop_are_outside_of_the_others(app: Penstock, kind: str, order: list[str]):
    events: list[str] = []
    for middleware in (Recorder("a ", events), AsyncRecorder("b ", events), Recorder("c ", events)):
        app.add_middleware(middleware)
    await task_of(app, kind, lambda: events.append("task")).enqueue.aio()
    await run_burst(app)
    assert events == order


class Here(Middleware):
    """Notes its thread, and sets a context variable."""

    def __init__(self, threads: dict[str, threading.Thread]) -> None:
        self.threads = threads

    def execute(self, job: JobContext) -> Iterator[None]:
        self.threads["def hook"] = threading.current_thread()
        token = SHOP.set(f"{SHOP.get()} {job.task}")
        yield
        SHOP.reset(token)


class OnTheLoop(Middleware):
    def __init__(self, threads: dict[str, threading.Thread]) -> None:
        self.threads = threads

    async def execute(self, job: JobContext) -> AsyncIterator[None]:
        self.threads["async def hook"] = threading.current_thread()
        token = SHOP.set("open")
        async with asyncio.timeout(scaled(60)):
            yield
        SHOP.reset(token)


@KINDS
@pytest.mark.parametrize("hooks", ["def", "both"])
async def test_the_task_sees_context_variables_of_its_hooks(app: Penstock, kind: str, hooks: str):
    threads: dict[str, threading.Thread] = {}
    app.add_middleware(Here(threads))
    if hooks == "both":
        app.add_middleware(OnTheLoop(threads))

    def body() -> str:
        threads["task"] = threading.current_thread()
        return SHOP.get()

    job = await task_of(app, kind, body).enqueue.aio()
    await run_burst(app)
    seen = {"def": "unset task", "both": "open task"}[hooks]
    if (kind, hooks) == ("async def", "both"):
        seen = "open"  # the hook of the loop is the inner one here
    assert await job.result.aio(0) == seen
    assert threads["def hook"] is threads["task"]
    assert (threads["task"] is threading.current_thread()) == (kind == "async def")
    assert threads.get("async def hook", threading.current_thread()) is threading.current_thread()
    assert SHOP.get() == "unset"


@pytest.mark.parametrize("hooks", [Recorder, AsyncRecorder])
@KINDS
async def test_hooks_see_the_job(app: Penstock, clock: Time, kind: str, hooks: type[Recorder]):
    class Tracing(Middleware):
        def enqueue(self, context: EnqueueContext) -> Iterator[None]:
            context.jobs[0].trace = "00-1234"
            yield

    recorder = Recorder()
    for middleware in (Tracing(), recorder, hooks("", recorder.events)):
        app.add_middleware(middleware)

    def fail() -> None:
        raise OSError("no")

    task = task_of(app, kind, fail, retry=Retry(1, base=0))
    job = await task.using(tenant="ada", priority=3).enqueue.aio()
    await run_burst(app)
    first, second = recorder.jobs
    assert (first.id, first.queue, first.task, first.tenant, first.priority) == (job.id, "q", "task", "ada", 3)
    assert (first.attempt, first.deliveries, first.trace) == (1, 1, "00-1234")
    assert (second.attempt, second.deliveries, second.id) == (2, 2, job.id)
    assert abs(first.enqueued - time.time()) < scaled(60)


@KINDS
async def test_many_jobs_run_inside_hooks_at_once(app: Penstock, kind: str):
    recorder = Recorder()
    app.add_middleware(recorder)
    app.add_middleware(AsyncRecorder("loop ", recorder.events))
    task = task_of(app, kind, lambda: 1)
    jobs = await app.enqueue_many.aio(task.call() for _ in range(200))
    await run_burst(app, concurrency=20)
    assert [await job.result.aio(0) for job in jobs] == [1] * 200
    assert {event: recorder.events.count(event) for event in recorder.events} == dict.fromkeys(
        ("before", "after", "loop before", "loop after"), 200
    )
    assert len(recorder.outcomes) == 200
    assert recorder.finished_in == {threading.current_thread()}


# --- errors ---


@KINDS
@pytest.mark.parametrize("hooks", [Recorder, AsyncRecorder])
async def test_the_hook_sees_the_exception_of_the_task(app: Penstock, kind: str, hooks: type[Recorder]):
    recorder = hooks()
    app.add_middleware(recorder)

    def fail() -> None:
        raise StopIteration("odd")

    job = await task_of(app, kind, lambda: fail() if kind == "def" else 1 / 0).enqueue.aio()
    await run_burst(app)
    with pytest.raises(JobFailed, match="StopIteration: odd" if kind == "def" else "ZeroDivisionError"):
        await job.result.aio(0)
    assert recorder.events == ["before", "StopIteration" if kind == "def" else "ZeroDivisionError"]


class Broken(Middleware):
    """Raises before or after the task."""

    def __init__(self, error: Exception, when: str) -> None:
        self.error = error
        self.when = when

    def execute(self, job: JobContext) -> Iterator[None]:
        if self.when == "before":
            raise self.error
        try:
            yield
        finally:
            raise self.error


class BrokenOnTheLoop(Broken):
    async def execute(self, job: JobContext) -> AsyncIterator[None]:  # type: ignore[override]
        if self.when == "before":
            raise self.error
        try:
            yield
        finally:
            raise self.error


@KINDS
@pytest.mark.parametrize("hooks", [Broken, BrokenOnTheLoop])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (ValueError("from the hook"), Status.DELAYED, "ValueError: from the hook"),
        (KeyError("final"), Status.DEAD, "KeyError: 'final'"),
        (RetryLater(60, "not now"), Status.DELAYED, "not now"),
        (Drop("not worth it"), Status.DROPPED, "not worth it"),
    ],
)
async def test_an_exception_of_a_hook_is_judged_like_one_of_the_task(
    app: Penstock, kind: str, hooks: type[Broken], when: str, error: Exception, status: Status, words: str
):
    ran: list[int] = []
    recorder = Recorder()
    app.add_middleware(recorder)
    app.add_middleware(hooks(error, when))
    task = task_of(app, kind, lambda: ran.append(1), retry=Retry(1, on=ValueError, base=60))
    job = await task.enqueue.aio()
    await run_burst(app)
    info = await job.info.aio()
    assert (info.status, info.reason) == (status, words)
    assert ran == [1] * (when == "after")
    assert len(recorder.outcomes) == 1


@KINDS
@pytest.mark.parametrize("loop", [False, True])
async def test_a_hook_can_suppress_an_exception(app: Penstock, kind: str, loop: bool):
    class Forgiving(Middleware):
        def execute(self, job: JobContext) -> Iterator[None]:
            with contextlib.suppress(ZeroDivisionError):
                yield

    class ForgivingOnTheLoop(Middleware):
        async def execute(self, job: JobContext) -> AsyncIterator[None]:
            with contextlib.suppress(ZeroDivisionError):
                yield

    recorder = Recorder()
    for middleware in (recorder, ForgivingOnTheLoop() if loop else Forgiving()):
        app.add_middleware(middleware)
    job = await task_of(app, kind, lambda: 1 / 0).enqueue.aio()
    await run_burst(app)
    assert await job.result.aio(0) is None
    assert recorder.events == (["before", "ZeroDivisionError"] if loop and kind == "def" else ["before", "after"])
    assert [outcome.ending for outcome in recorder.outcomes] == ["completed"]


@pytest.mark.parametrize("hooks", [Recorder, AsyncRecorder])
@KINDS
async def test_a_timeout_interrupts_the_task_inside_its_hooks(app: Penstock, kind: str, hooks: type[Recorder]):
    recorder = hooks()
    app.add_middleware(recorder)

    @app.task(queue="q", timeout=0.05)
    async def on_the_loop() -> None:
        await asyncio.sleep(600)

    @app.task(queue="q", timeout=0.05)
    def in_a_thread() -> None:
        while True:
            time.sleep(0.001)

    job = await (on_the_loop if kind == "async def" else in_a_thread).enqueue.aio()
    await run_burst(app)
    with pytest.raises(JobFailed, match=r"ran longer than its timeout of 0\.05 s"):
        await job.result.aio(0)
    assert recorder.events == ["before", "CancelledError" if kind == "async def" else "TimeIsUp"]
    assert recorder.outcomes[0].ending == "dead"


@KINDS
async def test_a_hook_that_does_not_yield_fails_its_job(app: Penstock, kind: str):
    class NoYield(Middleware):
        def execute(self, job: JobContext) -> Iterator[None]:
            if job.task == "":
                yield

    app.add_middleware(NoYield())
    job = await task_of(app, kind, lambda: 1).enqueue.aio()
    await run_burst(app)
    with pytest.raises(JobFailed, match="generator didn't yield"):
        await job.result.aio(0)


# --- stops ---


@KINDS
@pytest.mark.parametrize("hooks", [Recorder, AsyncRecorder])
async def test_a_job_that_is_handed_back_is_not_reported(app: Penstock, kind: str, hooks: type[Recorder]):
    recorder = hooks()
    app.add_middleware(recorder)
    started, end = threading.Event(), threading.Event()

    @app.task(queue="q")
    async def on_the_loop() -> None:
        started.set()
        await asyncio.sleep(600)

    @app.task(queue="q")
    def in_a_thread() -> None:
        started.set()
        end.wait(scaled(60))

    job = await (on_the_loop if kind == "async def" else in_a_thread).enqueue.aio()
    async with running_worker(app) as worker:
        await until(started.is_set)
        worker.stop()
        worker.stop()
    assert (await job.status.aio(), recorder.outcomes) == (Status.READY, [])
    on_this_loop = kind == "async def" or hooks is AsyncRecorder
    assert recorder.events == (["before", "CancelledError"] if on_this_loop else ["before"])
    end.set()
    await job.cancel.aio()


# --- outcomes ---


@KINDS
async def test_every_end_of_a_run_is_reported(app: Penstock, kind: str, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG, "penstock.worker")
    recorder = Recorder()
    app.add_middleware(recorder)
    errors: list[Exception | None] = [
        None,
        OSError("broken"),
        Retry(),
        RetryLater(60, "not now"),
        Drop("no use"),
        KeyError("final"),
    ]

    def body() -> None:
        if (error := errors.pop(0)) is not None:
            raise error

    task = task_of(app, kind, body, retry=Retry(3, on=OSError, base=60, jitter=0))
    jobs = [await task.enqueue.aio() for _ in range(len(errors))]
    await run_burst(app, concurrency=1)
    worker = recorder.outcomes
    assert [(o.ending, o.reason, o.delay) for o in worker] == [
        ("completed", "", 0),
        ("retried", "OSError: broken", 60),
        ("retried", "Retry: run again", 60),
        ("postponed", "not now", 60),
        ("dropped", "no use", 0),
        ("dead", "KeyError: 'final'", 0),
    ]
    assert ["Traceback" in outcome.traceback for outcome in worker] == [False, True, False, False, False, True]
    assert all(0 <= outcome.duration < scaled(60) for outcome in worker)
    records = [one for one in caplog.records if re.match("job .*(?<! starts)$", one.getMessage())]
    assert [(record.levelname, re.sub(r"\d\S* s$", "… s", record.getMessage())) for record in records] == [
        ("DEBUG", f"job {jobs[0].id} (task) completed in … s"),
        ("WARNING", f"job {jobs[1].id} (task) failed, attempt 1, again in 60.0 s: OSError: broken"),
        ("WARNING", f"job {jobs[2].id} (task) failed, attempt 1, again in 60.0 s: Retry: run again"),
        ("INFO", f"job {jobs[3].id} (task) runs again in 60 s: not now"),
        ("INFO", f"job {jobs[4].id} (task) dropped: no use"),
        ("ERROR", f"job {jobs[5].id} (task) is a dead letter after attempt 1: KeyError: 'final'"),
    ]
    for record, job, outcome in zip(records, jobs, worker, strict=True):
        fields = json.loads(JsonLines().format(record))
        assert (fields["job"], fields["task"], fields["queue"], fields["tenant"]) == (
            job.id,
            "task",
            job.id.partition(":")[0],
            "",
        )
        assert (fields["attempt"], fields["ending"], fields["duration"] >= 0) == (1, outcome.ending, True)
        assert fields["worker"].endswith(f":{os.getpid()}")
        assert fields.get("exception", "") == outcome.traceback.rstrip()
        assert ("\nTraceback" in logging.Formatter().format(record)) == ("Traceback" in outcome.traceback)


async def test_jobs_that_the_worker_cannot_run_are_reported(app: Penstock, raw: Any, caplog: pytest.LogCaptureFixture):
    recorder = Recorder()
    app.add_middleware(recorder)

    @app.task(queue="q")
    def known(n: int) -> None: ...

    unknown, damaged = await app.queue("q").put.aio("a bare value"), await known.enqueue.aio(1)
    key = f"{app.queue('q').first.bindings.keys.base}jobs"
    await app.queue("q").count.aio()  # puts the jobs into their lanes
    raw.hset(key, damaged.key, raw.hget(key, damaged.key)[:-3] + b"{]]")
    await run_burst(app)
    assert [(o.ending, o.duration) for o in recorder.outcomes] == [("unknown", 0), ("unknown", 0)]
    assert recorder.jobs == []
    assert f"job {unknown.id} cannot run in this worker: a bare value, not a call of a task" in caplog.text
    assert f"job {damaged.id} cannot run in this worker: known(): JSON is malformed" in caplog.text
    (dead,) = (record.getMessage() for record in caplog.records if "is a dead letter" in record.getMessage())
    assert dead.startswith(
        f"job {damaged.id} is a dead letter: no other worker could run it: known(): JSON is malformed"
    )


async def test_an_exception_in_finished_is_logged_and_changes_nothing(app: Penstock, caplog: pytest.LogCaptureFixture):
    class Broken(Middleware):
        def finished(self, job: JobContext, outcome: JobOutcome) -> None:
            raise ValueError("from finished")

    recorder = Recorder()
    app.add_middleware(Broken())
    app.add_middleware(recorder)
    job = await task_of(app, "def", lambda: 1).enqueue.aio()
    await run_burst(app)
    assert await job.result.aio(0) == 1
    assert [outcome.ending for outcome in recorder.outcomes] == ["completed"]
    assert f"job {job.id}: the hook " in caplog.text
    assert "ValueError: from finished" in caplog.text


# --- isolated processes ---


def adopt(app: Penstock, task: Any) -> Any:
    """Register a task of the isolated app with the test's app. The process still finds that of the isolated app."""
    return app.task(queue="q", isolate=True, name=task.name)(task.__wrapped__)


@pytest.mark.parametrize("kind", ["def", "async def", "def in async hooks", "async def with both"])
async def test_hooks_run_in_the_isolated_process(app: Penstock, kind: str):
    recorder = Recorder()
    app.add_middleware(recorder)
    task = {
        "def": isolated_tasks.describe,
        "async def": isolated_tasks.describe_async,
        "def in async hooks": isolated_tasks.describe_in_async_hooks,
        "async def with both": isolated_tasks.describe_async_with_both,
    }[kind]
    job = await adopt(app, task).enqueue.aio()
    await run_burst(app)
    pid, seen, in_main_thread = await job.result.aio(0)
    assert pid != os.getpid()
    both = "loop " if kind in ("def in async hooks", "async def with both") else ""
    assert seen == f"{both}hook {job.id} attempt 1"
    assert in_main_thread
    assert recorder.jobs == []  # the app that the process has imported has hooks of its own
    assert [outcome.ending for outcome in recorder.outcomes] == ["completed"]


async def test_a_failure_in_an_isolated_process_is_reported_by_the_worker(
    app: Penstock, caplog: pytest.LogCaptureFixture
):
    recorder = Recorder()
    app.add_middleware(recorder)
    failed = await adopt(app, isolated_tasks.fail).enqueue.aio("sys.exit")
    killed = await adopt(app, isolated_tasks.die).enqueue.aio("signal", signal.SIGKILL)
    await run_burst(app)
    assert sorted(outcome.ending for outcome in recorder.outcomes) == ["crashed", "crashed", "crashed", "dead"]
    assert f"job {failed.id} (fail) is a dead letter after attempt 1: the task called sys.exit" in caplog.text
    assert caplog.text.count(f"job {killed.id} (die) has crashed: its process was killed by SIGKILL") == 3


async def test_an_error_of_a_hook_in_an_isolated_process_fails_the_job(app: Penstock, tmp_path: Path):
    job = await adopt(app, isolated_tasks.never_runs).enqueue.aio(str(tmp_path / "ran"))
    await run_burst(app)
    with pytest.raises(JobFailed, match="PermissionError: not this task"):
        await job.result.aio(0)
    assert not (tmp_path / "ran").exists()
