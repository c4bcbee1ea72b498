"""Code of the application around every enqueue and every run of a job: metrics, traces, logging, dependencies.

    enqueue ──▶ A.enqueue ──▶ B.enqueue ──▶ server ──▶ A.execute ──▶ B.execute ──▶ the task
                    ◀─────────────◀──────────┘             ◀─────────────◀───────────┘
                                                       A.finished, B.finished: how the run ended

The hooks of an app form an onion: the first middleware is the outermost. `enqueue` and `execute` are generators that
yield once, as for `contextlib.contextmanager`. So the same hook serves blocking code, asyncio code, threads and
isolated processes. `finished` is a plain notification.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from penstock.core.arguments import utf8_size
from penstock.errors import ConfigurationError
from penstock.jobs.claims import Claim, Failure, Settlement
from penstock.jobs.dependencies import Lifecycle
from penstock.jobs.record import DraftView, Record, with_trace
from penstock.jobs.retry import HeldSuspension
from penstock.sealing import open_body
from penstock.settings import Seal

log = logging.getLogger("penstock.middleware")

MAX_TRACE: Final = 255
"""Bytes. The header of a record has one byte for the length."""

OutcomeEnding: TypeAlias = Literal[
    "completed", "retried", "postponed", "unknown", "dead", "dropped", "cancelled", "crashed", "lost"
]


_SyncHook: TypeAlias = "Callable[[JobContext], AbstractContextManager[None]]"
_AsyncHook: TypeAlias = "Callable[[JobContext], AbstractAsyncContextManager[None]]"


class JobDraft(DraftView):
    """A job that is about to be enqueued. `Middleware.enqueue` reads it and may set its `trace`."""

    __slots__ = ("_draft", "_queue", "_seal", "key")

    def __init__(self, queue: str, key: str, record: bytes, seal: Seal | None = None) -> None:
        """`seal`: the codec that has sealed the payload."""
        self._queue = queue
        self._seal = seal
        self.key = key
        self._draft = Record(record)

    def __repr__(self) -> str:
        return f"<JobDraft {self.id}>"

    @property
    def id(self) -> str:
        """`queue:key`, unique within the app."""
        return f"{self._queue}:{self.key}"

    @property
    def _record(self) -> Record:
        return self._draft

    @property
    def payload(self) -> bytes:
        """The value, or the arguments of the call by name, in JSON. If the app seals them, each access opens them."""
        return open_body(self._record.payload, self._seal, f"the call of {self.task}" if self.task else "the value")

    @property
    def record(self) -> bytes:
        return self._record.body

    @property
    def trace(self) -> str:
        """A text that travels with the job to `JobContext.trace`, such as a W3C `traceparent`. At most 255 bytes."""
        return self._record.trace

    @trace.setter
    def trace(self, text: str) -> None:
        if (size := utf8_size("trace", text)) > MAX_TRACE:
            raise ValueError(f"trace: at most {MAX_TRACE} bytes of UTF-8, not {size}")
        self._draft = Record(with_trace(self._draft.body, text.encode()))


@dataclass(frozen=True, slots=True)
class EnqueueContext:
    """One round trip that enqueues jobs of one queue: one job, or up to 500 of a bulk enqueue."""

    queue: str
    jobs: Sequence[JobDraft]


@dataclass(frozen=True, slots=True)
class JobContext:
    """A job that a worker has claimed.

    id          `queue:key`, unique within the app
    task        the task's name; "" if the worker cannot read the job
    attempt     1 for the first run, and one more after each failure
    deliveries  how often the job was handed to a worker, this time included
    enqueued    seconds since 1970 by the server's clock
    trace       the text that `Middleware.enqueue` set, else ""
    tags        as `using(tags=…)` and its task have set them
    """

    id: str
    queue: str
    task: str
    tenant: str
    priority: int
    attempt: int
    deliveries: int
    enqueued: float
    trace: str
    tags: tuple[str, ...] = ()

    @classmethod
    def of(cls, claim: Claim, queue: str, task: str) -> JobContext:
        record = claim.record  # read by hand: a worker makes a context for each job
        return cls(
            f"{queue}:{claim.id}",
            queue,
            task,
            record.tenant,
            record.priority,
            record.attempts + 1,
            claim.deliveries,
            record.enqueued / 1000,
            record.trace,
            record.tags,
        )


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """How a run ended, as far as its worker knows.

    ending     completed  the task returned
               retried    it failed, and runs again
               postponed  it runs again, and the attempt is not counted: it raised RetryLater, sleeps, waits for a
                          signal, or could not be started
               unknown    this worker cannot read the job. It goes back for another worker; without one it is a dead
                          letter, which the worker logs
               dead       it failed for good: the job is a dead letter
               dropped    it raised Drop
               cancelled  the job was cancelled while it ran
               crashed    its process died. The job runs again, or becomes a dead letter after its third crash
               lost       its process died through no fault of the job, which runs again
    reason     one line; "" for a completed job
    traceback  of the exception; "" without one
    delay      seconds until a retried or postponed job runs again
    duration   seconds since the worker started the job; 0 for a job that it could not read
    """

    ending: OutcomeEnding
    reason: str = ""
    traceback: str = ""
    delay: float = 0.0
    duration: float = 0.0

    @classmethod
    def of(cls, settlement: Settlement, duration: float) -> JobOutcome:
        if settlement.ending is None:
            return cls("completed", duration=duration)
        ending = _ENDINGS[settlement.ending]
        if settlement.ending == "suspend":
            return cls(ending, "it sleeps, or waits for a signal or a child", delay=settlement.delay, duration=duration)
        if settlement.ending == "drop":
            return cls(ending, settlement.data.decode(errors="replace"), duration=duration)
        failure = Failure.read(settlement.data)
        delay = settlement.delay
        if settlement.ending == "until":  # by the clock of this host, which decides nothing
            delay = max(0.0, delay - time.time())
        return cls(ending, failure.reason, failure.traceback, delay, duration)


_ENDINGS: Final[dict[str, OutcomeEnding]] = {
    "retry": "retried",
    "later": "postponed",
    "until": "postponed",
    "suspend": "postponed",
    "unknown": "unknown",
    "unread": "unknown",
    "changed": "unknown",
    "bury": "dead",
    "drop": "dropped",
    "crash": "crashed",
    "loss": "lost",
    "contained": "crashed",
    "cancel": "cancelled",
}


class Middleware:
    """Code around the jobs of an app. Derive from it, override the hooks that you need, and give it to the app.

        class Timing(Middleware):
            def execute(self, job: JobContext) -> Iterator[None]:
                started = time.perf_counter()
                try:
                    yield
                finally:
                    durations.record(job.task, time.perf_counter() - started)

        app = Penstock(middleware=[Timing()])

    One object serves all jobs of a process. Its hooks are called from several threads at the same time.
    """

    def enqueue(self, context: EnqueueContext) -> Iterator[None]:
        """Around each round trip that enqueues jobs. Yield once: the jobs are sent there.

        Blocking and asyncio programs run the same hook, so it must not block. Before the `yield` it may set the trace
        of each job, or raise an error to refuse them all. The `yield` raises the error of a round trip that failed; the
        hook may raise another error instead, but cannot suppress it. For `put_in` and `enqueue_in` the `yield` adds the
        jobs to your pipeline, which you execute later.
        """
        yield

    def execute(self, job: JobContext) -> Iterator[None] | AsyncIterator[None]:
        """Around each run of a task. Yield once: the task runs there. Write a `def` or an `async def`.

        Where the hook runs, in the worker process or in the process of an isolated run:

                       around an `async def` task             around a `def` task
            def        on the event loop: it must not block   in the task's thread
            async def  on the event loop                      on the event loop, while the task runs in its thread

        Around a `def` task, all `async def` hooks enclose all `def` hooks, whatever the order of the middleware, and
        the task's timeout does not cover the `async def` hooks. The task sees the context variables that a hook sets.

        If the task fails, the `yield` raises its exception; at a timeout or a stop of the worker, it raises the
        exception that interrupts the task. If a run ends at a `sleep` or `wait_for`, to continue later, the `yield`
        returns as after a success. An exception that leaves the outermost hook counts as if the task had raised
        it: the task's policy decides on a retry, and `Retry`, `RetryLater` and `Drop` have their usual meaning. If a
        hook suppresses the exception, the job is completed with the result None.
        """
        return iter((None,))

    def finished(self, job: JobContext, outcome: JobOutcome) -> None:
        """Called when the worker knows how a run ended: in the worker process, on its event loop. It must not block.

        It is also called for a job that the worker could not read, or whose process died. It is not called for a job
        that is handed back because the worker stops, nor for one whose lease was lost. The worker has not yet reported
        the outcome to the server, which may still refuse it. An exception here is logged and changes nothing.
        """


class MiddlewareStack:
    """The middleware of one app, in order: the first is the outermost."""

    __slots__ = ("async_hooks", "enqueue_hooks", "execute_hooks", "finished_hooks", "lifecycle", "sync_hooks")

    def __init__(self, middleware: Iterable[Middleware] = ()) -> None:
        self.enqueue_hooks: tuple[Callable[[EnqueueContext], AbstractContextManager[None]], ...] = ()
        self.execute_hooks: tuple[_SyncHook | _AsyncHook, ...] = ()
        self.sync_hooks: tuple[_SyncHook, ...] = ()
        self.async_hooks: tuple[_AsyncHook, ...] = ()
        """`execute_hooks` has all in order, `sync_hooks` the `def` ones, `async_hooks` the `async def` ones."""
        self.finished_hooks: tuple[Callable[[JobContext, JobOutcome], None], ...] = ()
        self.lifecycle = Lifecycle()
        """The hooks of a worker process; here, because every task of the app refers to its middleware."""
        for one in middleware:
            self.add(one)

    def add(self, middleware: Middleware) -> None:
        """Add `middleware` as the innermost. Raises ConfigurationError for other objects, and for invalid hooks."""
        if not isinstance(middleware, Middleware):
            raise ConfigurationError(f"middleware {middleware!r}: give an object of a class derived from Middleware")
        kind = type(middleware)
        if kind.enqueue is not Middleware.enqueue:
            self._add_enqueue(middleware)
        if kind.execute is not Middleware.execute:
            self._add_execute(middleware)
        if kind.finished is not Middleware.finished:
            if inspect.iscoroutinefunction(middleware.finished):
                raise ConfigurationError(f"{kind.__name__}.finished: write a `def`; an `async def` is not awaited")
            self.finished_hooks += (middleware.finished,)

    def _add_enqueue(self, middleware: Middleware) -> None:
        if not inspect.isgeneratorfunction(middleware.enqueue):
            raise ConfigurationError(
                f"{type(middleware).__name__}.enqueue: write a `def` that yields once, where the jobs are sent; an "
                "`async def` could not serve blocking code"
            )
        self.enqueue_hooks += (contextmanager(middleware.enqueue),)

    def _add_execute(self, middleware: Middleware) -> None:
        hook: Any = middleware.execute
        if inspect.isasyncgenfunction(hook):
            async_hook: _AsyncHook = asynccontextmanager(hook)
            self.async_hooks += (async_hook,)
            self.execute_hooks += (async_hook,)
        elif inspect.isgeneratorfunction(hook):
            sync_hook: _SyncHook = contextmanager(hook)
            self.sync_hooks += (sync_hook,)
            self.execute_hooks += (sync_hook,)
        else:
            raise ConfigurationError(
                f"{type(middleware).__name__}.execute: write a `def` or an `async def` that yields once, where the "
                "task runs"
            )

    @contextmanager
    def around_enqueue(self, context: EnqueueContext) -> Iterator[None]:
        """All `enqueue` hooks. An error inside is raised even if a hook suppresses it: the jobs were not enqueued."""
        failure: BaseException | None = None
        with ExitStack() as stack:
            for hook in self.enqueue_hooks:
                stack.enter_context(hook(context))
            try:
                yield
            except BaseException as error:
                failure = error
                raise
        if failure is not None:
            raise failure

    @asynccontextmanager
    async def around_async_task(self, job: JobContext) -> AsyncIterator[None]:
        """All `execute` hooks, on the event loop around an `async def` task."""
        held = HeldSuspension()
        async with AsyncExitStack() as stack:
            for hook in self.execute_hooks:
                context = hook(job)
                if isinstance(context, AbstractAsyncContextManager):
                    await stack.enter_async_context(context)
                else:
                    stack.enter_context(context)
            with held:
                yield
        held.release()

    @asynccontextmanager
    async def around_thread(self, job: JobContext) -> AsyncIterator[None]:
        """The `async def` hooks, on the event loop around the thread in which a `def` task runs."""
        held = HeldSuspension()
        async with AsyncExitStack() as stack:
            for hook in self.async_hooks:
                await stack.enter_async_context(hook(job))
            with held:
                yield
        held.release()

    @contextmanager
    def around_sync_task(self, job: JobContext) -> Iterator[None]:
        """The `def` hooks, in the thread of a `def` task, around the task."""
        held = HeldSuspension()
        with ExitStack() as stack:
            for hook in self.sync_hooks:
                stack.enter_context(hook(job))
            with held:
                yield
        held.release()

    def report(self, job: JobContext, outcome: JobOutcome) -> None:
        """Call all `finished` hooks."""
        for finished in self.finished_hooks:
            try:
                finished(job, outcome)
            except Exception:
                log.exception("job %s: the hook %s failed", job.id, getattr(finished, "__qualname__", finished))
