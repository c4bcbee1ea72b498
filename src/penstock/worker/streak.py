"""Runs `async def` jobs on the event loop. Jobs that never suspend run one after another in one asyncio task: a streak.

    streak ──▶ job, job, job … ─┬─▶ a job suspends: the asyncio task is its own from then on  ─┐
       ▲                        └─▶ 64 jobs, 1 ms, or a job that leaves a trace in the task   ─┤
       └──────────────────────────────── a new asyncio task ◀─────────────────────────────────┘

To create an asyncio task and to let the loop start it costs several times as much as to run a short job. A job
notices no difference: it has a context of its own, and the asyncio task is either its own or untouched by the jobs
before it.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from types import coroutine
from typing import Any, Final

from penstock.jobs.claims import Settlement
from penstock.jobs.current import running
from penstock.worker.execution import Execution
from penstock.worker.running import Inflight, JobRun

MOST_JOBS: Final = 64
"""The most jobs of one streak."""

LONGEST: Final = 0.001
"""Seconds after which a streak starts no further job, so that the loop soon does its other work."""


ALONE: Final = 31
"""The number of jobs that run outside of streaks after one that did not fit into its streak."""


class StreakRunner:
    """Runs the `async def` jobs of one worker. A job never waits for one that has suspended.

    A task whose job has suspended, or whose jobs take longer than a streak may, probably does so again. So its next
    jobs get an asyncio task each, which the loop starts all at once, before one job tries the streak again.
    """

    def __init__(
        self,
        execution: Execution,
        inflight: Inflight,
        *,
        take_next: Callable[[], JobRun | None],
        ended: Callable[[JobRun, Settlement | None], None],
        go_on: Callable[[], None],
        broken: Callable[[BaseException], None],
    ) -> None:
        """Create it on the worker's loop, in the context of which each job gets a copy.

        take_next  returns the next job for the running streak, if there is one
        ended      is called with each job that has ended, and with None for one that the worker has cancelled
        go_on      is called when a streak is over, and when a job outside of one has ended
        broken     is called with an error that is not a job's, for instance if no thread can be started
        """
        self._execution = execution
        self._inflight = inflight
        self._take_next = take_next
        self._ended = ended
        self._go_on = go_on
        self._broken = broken
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._streak: asyncio.Task[None] | None = None
        self._in_place: JobRun | None = None
        self._alone: dict[str, int] = {}
        """How many further jobs of a task, by its name, run outside of streaks."""
        self._overlong = ""
        """The task whose job took longer than a streak may, and whose jobs since then have not been shorter."""
        self.tasks: set[asyncio.Task[None]] = set()
        """All asyncio tasks of jobs, and of isolated runs, that have not ended."""

    # --- starting ---

    @property
    def is_active(self) -> bool:
        """Whether a streak is about to start or runs. It takes the waiting jobs by itself."""
        return self._streak is not None

    def admit(self, run: JobRun) -> bool:
        """Whether a streak runs this job. If not, the caller starts it."""
        left = self._alone.get(run.definition.name, 0)
        if left:
            self._alone[run.definition.name] = left - 1
        return not left

    def begin(self, first: JobRun) -> None:
        """Begin a streak with this job. No other may be active."""
        self._streak = self._create_task(first, self._run_streak(first))

    def start(self, run: JobRun) -> None:
        """Start a job in an asyncio task of its own."""
        _ = self._create_task(run, self._settle(run, self._execution.run_async))

    def start_isolated(self, run: JobRun, how: Callable[[JobRun], Coroutine[Any, Any, Settlement]]) -> None:
        """Run `how`, which returns the settlement, in an asyncio task of its own."""
        _ = self._create_task(run, self._settle(run, how))

    def _create_task(self, run: JobRun, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        # Start in the worker's own context. The caller may be the asyncio task of a job that has just ended.
        task = self._loop.create_task(work, context=self._context.copy())
        run.asyncio_task = task
        self.tasks.add(task)
        task.add_done_callback(partial(self._task_done, run))
        return task

    def _task_done(self, first: JobRun, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled():
            if (error := task.exception()) is not None:
                self._broken(error)
            return
        # Only a task that is cancelled before its first step ends as cancelled.
        if self._streak is task:
            self._streak = None
        self._ended(first, self._cancelled(first))
        self._go_on()

    def job_in(self, task: asyncio.Task[Any]) -> JobRun | None:
        """The job that runs in this asyncio task. Any thread may ask."""
        if task is self._streak:
            return self._in_place
        return next((run for run in list(self._inflight.running) if run.asyncio_task is task), None)

    # --- running ---

    async def _run_streak(self, first: JobRun) -> None:
        task = _current_task()
        first.asyncio_task = None  # a job that does not suspend cannot be cancelled
        run: JobRun | None = first
        untouched = _traces(task)
        began = now = first.started_at = time.monotonic()
        ran = 0
        while run is not None:
            self._in_place = run
            running.set(run)  # this context is a copy of the worker's, apart from this variable
            context = contextvars.copy_context()
            try:
                steps = self._execution.start(run)
                awaited = context.run(steps.send, None)
            except StopIteration as done:
                settlement = self._execution.completed(run, done.value)
            except BaseException as error:
                settlement = self._failed(run, error)
            else:
                run.asyncio_task = task
                self._alone[run.definition.name] = ALONE
                self._inflight.note_streak(ran, now - began)
                self._end_streak()
                await self._continue(run, _rest(steps, awaited, context))
                return
            self._ended(run, settlement)
            now = time.monotonic()
            self._note_overlong(run.definition.name, now - run.started_at)
            ran += 1
            if ran == MOST_JOBS or now - began > LONGEST or _traces(task) != untouched:
                break
            run = self._take_next()
        self._inflight.note_streak(ran, now - began)
        self._end_streak()

    def _note_overlong(self, task: str, seconds: float) -> None:
        if seconds > LONGEST:
            if self._overlong == task:  # twice in a row: it was not the system that interrupted it
                self._alone[task] = ALONE
            self._overlong = task
        elif self._overlong == task:
            self._overlong = ""

    def _end_streak(self) -> None:
        self._streak = self._in_place = None
        self._go_on()

    async def _continue(self, run: JobRun, rest: Awaitable[Any]) -> None:
        """Wait for a job that has suspended, for the rest of its timeout."""
        timeout = run.definition.timeout
        left = None if timeout is None else max(0.0, run.started_at + timeout - time.monotonic())
        await self._settle(run, lambda run: self._execution.finish(run, rest, left))

    async def _settle(self, run: JobRun, how: Callable[[JobRun], Awaitable[Settlement]]) -> None:
        settlement: Settlement | None
        try:
            settlement = await how(run)
        except asyncio.CancelledError:
            settlement = self._cancelled(run)
        run.asyncio_task = None  # its context refers to the run
        self._inflight.note_duration(run)
        self._ended(run, settlement)
        self._go_on()

    def _cancelled(self, run: JobRun) -> Settlement | None:
        """None: the worker has cancelled the job, and given it up before."""
        return self._execution.cancelled_itself(run) if run in self._inflight.running else None

    def _failed(self, run: JobRun, error: BaseException) -> Settlement:
        """A job ended without having suspended, so the worker has not cancelled it."""
        if isinstance(error, asyncio.CancelledError) and _current_task().cancelling():
            return self._execution.cancelled_itself(run)
        return self._execution.failed(run, error)


@coroutine
def _rest(
    steps: Coroutine[Any, Any, Any], awaited: object, context: contextvars.Context | None = None
) -> Generator[Any, Any, Any]:
    """The rest of a coroutine that has yielded `awaited`. `await` could only run a coroutine that has not started."""
    send: Callable[[Any], Any] = steps.send
    throw: Callable[[BaseException], Any] = steps.throw
    if context is not None:
        run: Any = context.run
        send, throw = partial(run, send), partial(run, throw)
    while True:
        thrown = value = None
        try:
            value = yield awaited
        except BaseException as error:
            thrown = error
        # Outside of `except`, so that what the coroutine raises later does not get `thrown` as its context.
        try:
            awaited = send(value) if thrown is None else throw(thrown)
        except StopIteration as done:
            return done.value
        finally:
            del thrown  # which refers to this frame


def _current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


def _traces(task: asyncio.Task[Any]) -> tuple[object, ...]:
    """What a job can change in the asyncio task of its streak, so that a later job in the same task would notice.

    References to the task, by which it can be cancelled later or have data attached; a cancellation, its name, and
    callbacks at its end.
    """
    return (
        sys.getrefcount(task), weakref.getweakrefcount(task), task.cancelling(), getattr(task, "_must_cancel", False),
        task.get_name(), len(getattr(task, "_callbacks", None) or ()),
    )  # fmt: skip
