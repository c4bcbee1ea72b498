"""Middleware around enqueues: when it is called, what it sees, what it may change, and what it cannot suppress."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from penstock import (
    ConfigurationError,
    EnqueueContext,
    JobContext,
    JobDraft,
    JobOutcome,
    Middleware,
    Penstock,
    ServerError,
    Settings,
)
from penstock.jobs.record import Record
from tests.conftest import Do, MakeApp
from tests.jobs.stand import record

BOTH_FACES = pytest.mark.parametrize("face", ["blocking", "aio"])


class Recorder(Middleware):
    """Writes down each enqueue: its jobs before, and how it ended."""

    def __init__(self, name: str = "", events: list[Any] | None = None) -> None:
        self.name = name
        self.events: list[Any] = [] if events is None else events

    def enqueue(self, context: EnqueueContext) -> Iterator[None]:
        self.events.append((f"{self.name}before", context.queue, len(context.jobs)))
        try:
            yield
        except BaseException as error:
            self.events.append((f"{self.name}failed", type(error).__name__))
            raise
        self.events.append((f"{self.name}after", context.queue, len(context.jobs)))


class Tracing(Middleware):
    """Gives each job a trace."""

    def enqueue(self, context: EnqueueContext) -> Iterator[None]:
        for job in context.jobs:
            job.trace = f"trace-{job.tenant}"
        yield


def stored(app: Penstock, queue: str, raw: Any) -> list[Record]:
    return [Record(body) for body in raw.hgetall(f"{app.queue(queue).first.bindings.keys.base}jobs").values()]


# --- when it is called ---


@BOTH_FACES
@pytest.mark.parametrize("place", ["valkey", "cluster"])
async def test_the_hook_is_around_each_verb_that_enqueues(app: Penstock, do: Do):
    recorder = Recorder()
    app.add_middleware(recorder)

    @app.task(queue="q")
    def double(n: int) -> int:
        return 2 * n

    job = await do(double.enqueue, 1)
    value = await do(app.queue("q").put, "x", priority=3)
    await do(app.queue("q").put_many, range(3))
    await do(app.enqueue_many, [double.call(n) for n in range(4)])
    assert recorder.events == [(when, "q", n) for n in (1, 1, 3, 4) for when in ("before", "after")]
    assert (await do(job.info)).body == ["double", {"n": 1}]
    assert (await do(value.info)).priority == 3
    assert (await do(app.queue("q").count)).ready == 9


@BOTH_FACES
async def test_a_bulk_enqueue_calls_the_hook_once_for_each_round_trip(app: Penstock, do: Do):
    recorder = Recorder()
    app.add_middleware(recorder)
    await do(app.queue("q").put_many, range(1200))
    assert [n for when, _, n in recorder.events if when == "before"] == [500, 500, 200]
    assert (await do(app.queue("q").count)).ready == 1200


async def test_the_first_middleware_is_the_outermost(make_app: MakeApp):
    events: list[Any] = []
    app = make_app()
    for name in ("a ", "b "):
        app.add_middleware(Recorder(name, events))
    await app.queue("q").put.aio(1)
    assert [when for when, *_ in events] == ["a before", "b before", "b after", "a after"]


async def test_middleware_can_be_given_to_the_app(server: Any):
    recorder = Recorder()
    async with Penstock(server.address, prefix="given", middleware=[recorder]) as app:
        job = await app.queue("q").put.aio(1, result_ttl=0)
        await job.cancel.aio()
    assert len(recorder.events) == 2
    server.client.delete(*server.client.keys("{given:*"))


@BOTH_FACES
async def test_in_a_pipeline_the_hook_is_around_adding_the_job(app: Penstock, do: Do, raw: Any):
    recorder = Recorder()
    app.add_middleware(recorder)
    app.add_middleware(Tracing())

    @app.task(queue="q")
    def double(n: int) -> int:
        return 2 * n

    pipeline = raw.pipeline()
    app.queue("q").put_in(pipeline, "x", tenant="ada")
    job = double.enqueue_in(pipeline, 1)
    assert recorder.events == [(when, "q", 1) for _ in range(2) for when in ("before", "after")]
    pipeline.execute()
    assert (await do(job.info)).body == ["double", {"n": 1}]
    assert {record.trace for record in stored(app, "q", raw)} == {"trace-ada", "trace-"}


# --- what it sees and changes ---


async def test_a_draft_describes_its_job(app: Penstock):
    drafts: list[JobDraft] = []

    class Keeper(Middleware):
        def enqueue(self, context: EnqueueContext) -> Iterator[None]:
            drafts.extend(context.jobs)
            yield

    app.add_middleware(Keeper())

    @app.task(queue="q")
    def double(n: int) -> int:
        return 2 * n

    job = await double.using(tenant="Zoë", priority=2, id="mine").enqueue.aio(1)
    await app.queue("q").put.aio({"a": 1})
    call, value = drafts
    assert (call.id, call.task, call.tenant, call.priority) == (job.id, "double", "Zoë", 2)
    assert (call.payload, call.trace, repr(call)) == (b'{"n":1}', "", "<JobDraft q:mine>")
    assert (value.task, value.tenant, value.payload) == ("", "", b'{"a":1}')


async def test_a_trace_travels_with_the_job(app: Penstock, raw: Any):
    class Twice(Middleware):
        def enqueue(self, context: EnqueueContext) -> Iterator[None]:
            for job in context.jobs:
                job.trace = "a longer trace than the second"
                job.trace = "名前" * 42
            yield

    app.add_middleware(Twice())
    await app.queue("q").put.aio([1, 2], tenant="Zoë", priority=1)
    (kept,) = stored(app, "q", raw)
    assert (kept.trace, kept.tenant, kept.priority, kept.payload) == ("名前" * 42, "Zoë", 1, b"[1,2]")
    (item,) = await app.queue("q").claim.aio()
    assert item.body == [1, 2]
    await item.retry.aio(reason="again")
    (kept,) = stored(app, "q", raw)
    assert (kept.trace, kept.attempts) == ("名前" * 42, 1)


def test_a_trace_that_is_too_long_is_refused():
    draft = JobDraft("q", "1", record("ada"))
    draft.trace = "x" * 255
    with pytest.raises(ValueError, match="trace: at most 255 bytes of UTF-8, not 256"):
        draft.trace = "é" * 128
    assert draft.trace == "x" * 255


# --- errors ---


@BOTH_FACES
async def test_a_hook_can_refuse_an_enqueue(app: Penstock, do: Do):
    events: list[Any] = []

    class Closed(Middleware):
        def enqueue(self, context: EnqueueContext) -> Iterator[None]:
            raise PermissionError("the shop is closed")
            yield

    app.add_middleware(Recorder("", events))
    app.add_middleware(Closed())
    for verb, value in ((app.queue("q").put, 1), (app.queue("q").put_many, [1, 2])):
        with pytest.raises(PermissionError, match="the shop is closed"):
            await do(verb, value)
    assert events == [
        ("before", "q", 1),
        ("failed", "PermissionError"),
        ("before", "q", 2),
        ("failed", "PermissionError"),
    ]
    assert (await do(app.queue("q").count)).ready == 0


class Suppress(Middleware):
    def enqueue(self, context: EnqueueContext) -> Iterator[None]:
        with contextlib.suppress(ServerError):
            yield


class Translate(Middleware):
    def enqueue(self, context: EnqueueContext) -> Iterator[None]:
        try:
            yield
        except ServerError as error:
            raise RuntimeError("try later") from error


@BOTH_FACES
@pytest.mark.parametrize(("hook", "expected"), [(Suppress(), ServerError), (Translate(), RuntimeError)])
async def test_an_error_of_the_server_cannot_be_suppressed_but_replaced(
    face: str, do: Do, hook: Middleware, expected: type[Exception]
):
    recorder = Recorder()
    app = Penstock(
        "unix:///nowhere/at/all",
        settings=Settings(give_up_after=0.05, connect_timeout=0.05),
        middleware=[hook, recorder],
    )
    with pytest.raises(expected):
        await do(app.queue("q").put, 1)
    assert recorder.events == [("before", "q", 1), ("failed", "ServerUnavailable")]
    await app.aclose()


async def test_a_cancelled_enqueue_is_seen_by_the_hook(app: Penstock):
    recorder = Recorder()
    entered = asyncio.Event()

    class Entered(Middleware):
        def enqueue(self, context: EnqueueContext) -> Iterator[None]:
            entered.set()
            yield

    app.add_middleware(recorder)
    app.add_middleware(Entered())
    task = asyncio.create_task(app.queue("q").put.aio(1))
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert recorder.events[1:] == [("failed", "CancelledError")]


class AsyncEnqueue(Middleware):
    async def enqueue(self, context: EnqueueContext) -> AsyncIterator[None]:  # type: ignore[override]
        yield


class NoYield(Middleware):
    def execute(self, job: JobContext) -> Iterator[None]:
        return iter(())


class AsyncFinished(Middleware):
    async def finished(self, job: JobContext, outcome: JobOutcome) -> None: ...  # type: ignore[override]


@pytest.mark.parametrize(
    ("middleware", "words"),
    [
        (Recorder, "give an object of a class derived from Middleware"),
        (object(), "give an object of a class derived from Middleware"),
        (AsyncEnqueue(), "AsyncEnqueue.enqueue: write a `def` that yields once"),
        (NoYield(), "NoYield.execute: write a `def` or an `async def` that yields once"),
        (AsyncFinished(), "AsyncFinished.finished: write a `def`"),
    ],
)
def test_middleware_that_cannot_work_is_refused(middleware: Any, words: str):
    with pytest.raises(ConfigurationError, match=words):
        Penstock("unix:///nowhere", middleware=[middleware])


def test_a_hook_that_is_not_overridden_costs_nothing():
    stack = Penstock("unix:///nowhere", middleware=[Middleware()]).middleware
    assert (stack.enqueue_hooks, stack.execute_hooks, stack.finished_hooks) == ((), (), ())
