"""Where jobs run: on the worker's event loop, in threads, or in processes of their own.

runs.next() ─┬─▶ a streak of `async def` jobs, in one asyncio task (see `streak.py`) ──┬─▶ runs.end()
             ├─▶ an asyncio task of its own: an `async def` job, or an isolated one  ──┤
             └─▶ a thread: a `def` job                                               ──┘
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine
from functools import partial
from typing import Any

from penstock.jobs.claims import Settlement
from penstock.jobs.current import running
from penstock.settings import WorkerSettings
from penstock.worker.execution import Execution
from penstock.worker.isolation import Isolation
from penstock.worker.job_task import create_job_task
from penstock.worker.run import JobRun
from penstock.worker.runs import Runs
from penstock.worker.streak import LONGEST, MOST_JOBS, StreakHabits, rest_of, traces
from penstock.worker.threads import Threads

_CANCELLED_END_WITHIN = 3.0
"""Seconds that cancelled jobs have to end, before a worker that is ending leaves them behind."""


class Places:
    """Runs each job where its task belongs. Create it on the worker's loop; jobs get copies of the current context.

    A job that has suspended never delays the jobs after it.
    """

    def __init__(self, runs: Runs, execution: Execution, isolation: Isolation, settings: WorkerSettings) -> None:
        self._runs = runs
        self._execution = execution
        self._isolation = isolation
        self._threads = Threads(runs, execution, settings)
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._habits = StreakHabits()
        self._streak: asyncio.Task[None] | None = None
        """The asyncio task of the streak that is about to start, or runs."""
        self._in_streak: JobRun | None = None
        """The job that runs in the streak now."""
        self._tasks: set[asyncio.Task[None]] = set()
        """All asyncio tasks of jobs, and of isolated runs, that have not ended."""
        self.broken: asyncio.Future[None] = self._loop.create_future()
        """Ends with an error that is not a job's, for instance if no thread can be started."""

    # --- starting ---

    def fill(self, *, later: bool = False) -> None:
        """Start waiting jobs while there are free runners. A streak that runs already takes them itself.

        `later`: when the caller has suspended. An error is not raised, but makes the worker `broken`, because asyncio
        would only log that of a callback.
        """
        if later:
            self._loop.call_soon(self.fill)
        elif self._streak is None:
            try:
                if (run := self._next_in_streak()) is not None:
                    self._begin_streak(run)
            except Exception as error:
                self._break(error)

    def _next_in_streak(self) -> JobRun | None:
        """Start waiting jobs until one belongs in a streak, and return that one. None: no other job can start now."""
        while (run := self._runs.next()) is not None:
            definition = run.definition
            if definition.isolate:
                self._start_alone(run, self._isolation.run)
            elif not definition.is_async:
                self._threads.start(run)
            elif run.batch or not self._habits.admit(definition.name):
                self._start_alone(run, self._execution.run_async)
            else:
                return run
        return None

    def _begin_streak(self, first: JobRun) -> None:
        self._streak = self._create_task(first, self._run_streak(first))

    def _start_alone(self, run: JobRun, how: Callable[[JobRun], Coroutine[Any, Any, Settlement]]) -> None:
        """Run `how`, which returns the settlement, in an asyncio task of its own."""
        _ = self._create_task(run, self._run_alone(run, how))

    def _create_task(self, run: JobRun, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        # Start in the worker's own context. The caller may be the asyncio task of a job that has just ended.
        task = create_job_task(self._loop, work, self._context.copy())
        run.asyncio_task = task
        self._tasks.add(task)
        task.add_done_callback(partial(self._task_done, run))
        return task

    def _break(self, error: BaseException) -> None:
        if not self.broken.done():
            self.broken.set_exception(error)

    def _task_done(self, first: JobRun, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            error = task.exception()
            # If something that the job awaits ends with GeneratorExit, asyncio throws that into every coroutine.
            if error is not None and not isinstance(error, GeneratorExit):
                self._break(error)
            return
        # An asyncio task ends as cancelled only if it was cancelled before it had started.
        if self._streak is task:
            self._streak = None
        first.asyncio_task = None
        self._runs.interrupted(first)

    # --- running ---

    async def _run_streak(self, first: JobRun) -> None:
        task = _current_task()
        first.asyncio_task = None  # a job that does not suspend cannot be cancelled
        run: JobRun | None = first
        untouched = traces(task)
        began = now = first.started_at = time.monotonic()
        ended = 0
        while run is not None:
            self._in_streak = run
            running.set(run)  # this context is a copy of the worker's, apart from this variable
            context = contextvars.copy_context()
            try:
                started = self._execution.start(run)
                awaited = context.run(started.send, None)
            except StopIteration as done:
                settlement = self._execution.completed(run, done.value)
            except BaseException as error:
                settlement = self._failed(run, error)
            else:
                run.asyncio_task = task
                self._habits.suspended(run.definition.name)
                self._end_streak(ended, now - began)
                await self._continue(run, rest_of(started, awaited, context))
                return
            now = time.monotonic()
            self._runs.end_in_streak(run, settlement, now)
            self._habits.ended(run.definition.name, now - run.started_at)
            ended += 1
            if ended == MOST_JOBS or now - began > LONGEST or traces(task) != untouched:
                break
            run = self._next_in_streak()
        self._end_streak(ended, now - began)

    def _end_streak(self, jobs: int, seconds: float) -> None:
        self._streak = self._in_streak = None
        self._runs.end_streak(jobs, seconds)

    async def _continue(self, run: JobRun, rest: Awaitable[Any]) -> None:
        """Wait for a job that has suspended, for the rest of its timeout."""
        timeout = run.definition.timeout
        left = None if timeout is None else max(0.0, run.started_at + timeout - time.monotonic())
        await self._run_alone(run, lambda run: self._execution.finish(run, rest, left))

    async def _run_alone(self, run: JobRun, how: Callable[[JobRun], Awaitable[Settlement]]) -> None:
        try:
            settlement = await how(run)
        except asyncio.CancelledError:
            run.asyncio_task = None
            self._runs.interrupted(run)
            return
        except BaseException as error:
            if asyncio._get_running_loop() is None:  # the loop has ended before this task
                raise
            settlement = self._execution.failed(run, error)
        run.asyncio_task = None  # its context refers to the run
        self._runs.end([(run, settlement)])

    def _failed(self, run: JobRun, error: BaseException) -> Settlement:
        """The settlement of a job that raised `error` before it ever suspended, so no other code has cancelled it."""
        if isinstance(error, asyncio.CancelledError) and _current_task().cancelling():
            return self._execution.cancelled_itself(run)
        return self._execution.failed(run, error)

    def name_of(self, task: asyncio.Task[object]) -> str:
        """The job, or the batch, that runs in this asyncio task, for log lines. Any thread may ask."""
        if task is self._streak:
            run = self._in_streak
        else:
            run = next((run for run in list(self._runs.running) if run.asyncio_task is task), None)
        return run.label() if run is not None else "a callback"

    # --- the end ---

    def cancel(self, run: JobRun) -> None:
        """End a running job because it was cancelled, if its code can be interrupted."""
        run.cancelled = True
        if run.asyncio_task is not None:
            run.asyncio_task.cancel("the job was cancelled")
        else:
            self._threads.cancel(run)

    def cancel_all(self, why: str) -> None:
        """Cancel all jobs that can be cancelled. Those in threads run on."""
        for task in list(self._tasks):
            task.cancel(why)

    async def close(self) -> Collection[str]:
        """Cancel all jobs, and wait for their ends; but not for those in threads, which run on.

        Returns the names of those that still run on the loop after some seconds, because their code ignores that it was
        cancelled.
        """
        for task in list(self._tasks):
            task.cancel()
        self._isolation.close()
        await self._threads.close()
        names = {task: self.name_of(task) for task in self._tasks}
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CANCELLED_END_WITHIN)
        return [names[task] for task in names if not task.done()]


def _current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task
