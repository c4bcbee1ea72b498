"""One app in one test: a fresh key space, a clock, assertions, and ways to run its jobs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

from penstock.app import Penstock
from penstock.jobs.job import Job
from penstock.jobs.middleware import EnqueueContext
from penstock.jobs.queue import Queue
from penstock.jobs.task import Task
from penstock.testing.clearing import clear
from penstock.testing.clock import MovableClock
from penstock.testing.leaks import assert_no_leaks
from penstock.testing.running import RunSummary, run_jobs
from penstock.testing.waiting import WaitingCall, assert_enqueued, enqueued

P = ParamSpec("P")
R = TypeVar("R")


class AppUnderTest:
    """An app for the length of a `with` block, which is one test. The pytest fixture `penstock` is one.

        with AppUnderTest(app) as test:
            sign_up("ada@example.com")
            test.assert_enqueued(send_email, "ada@example.com", subject="Welcome")
            test.drain()

    It begins with `clear`, so that nothing of an earlier test is left in the server, and raises ConfigurationError
    where `clear` does. At its end it gives the app the server's clock again, and raises AssertionError for what the
    test should not have left in the server (see `leaks`), unless `check_leaks` is False or the test has failed.
    """

    def __init__(self, app: Penstock, *, check_leaks: bool = True) -> None:
        self.app = app
        self._check_leaks = check_leaks
        self._clock: MovableClock | None = None
        self._is_draining = False

    def __repr__(self) -> str:
        return f"<AppUnderTest {self.app.settings.prefix}>"

    def __enter__(self) -> AppUnderTest:
        self.begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.end(failed=kind is not None)

    def begin(self) -> None:
        """Delete everything that the app has in the server."""
        clear(self.app)

    def end(self, *, failed: bool = False) -> None:
        """Return to the server's clock, and check for leaks unless the test has failed."""
        if self._clock is not None:
            self._clock.__exit__()
            self._clock = None
        if self._check_leaks and not failed:
            assert_no_leaks(self.app)

    @property
    def clock(self) -> MovableClock:
        """The clock of the app. Once a test has used it, it does not advance until the test moves it."""
        if self._clock is None:
            self._clock = MovableClock(self.app)
        return self._clock

    # --- which calls wait ---

    def enqueued(self, where: Queue | Task[..., Any] | None = None) -> list[WaitingCall]:
        """The waiting calls of a queue or a task; None: of all tasks. See `penstock.testing.enqueued`."""
        return enqueued(self.app if where is None else where)

    def assert_enqueued(self, task: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Raises AssertionError unless this call waits; returns its job. See `penstock.testing.assert_enqueued`."""
        return assert_enqueued(task, *args, **kwargs)

    # --- running jobs ---

    @property
    def drain(self) -> Drain:
        """`drain()`, or `await drain.aio()`: run every ready job, and every job that those enqueue. See `Drain`."""
        return Drain(self)

    @contextmanager
    def inline(self, *, dead: bool = False, timeout: float = 30.0) -> Iterator[None]:
        """Inside this block, each enqueue returns only when its job has run, and all jobs that this job enqueued.

        The jobs run on a worker in another thread, with encoded arguments, retries and results as in production. Jobs
        that are not due yet wait, also a retry with a delay: `drain(delayed=True)` runs them. Calls that a test adds to
        a pipeline of its own run with the next enqueue.

        dead     True: jobs may end as dead letters. False: the enqueue raises AssertionError with the traceback
        timeout  seconds that the jobs of one enqueue may take; then the enqueue raises TimeoutError

        An event loop that enqueues is blocked until the jobs have run, so they must not wait for anything on that loop.
        """

        @contextmanager
        def run_after(context: EnqueueContext) -> Iterator[None]:
            yield
            if not self._is_draining and any(job.task for job in context.jobs):
                _in_another_thread(lambda: self.drain(dead=dead, timeout=timeout))

        stack = self.app.middleware
        stack.enqueue_hooks = (run_after, *stack.enqueue_hooks)
        try:
            yield
        finally:
            stack.enqueue_hooks = tuple(hook for hook in stack.enqueue_hooks if hook is not run_after)

    @contextmanager
    def _draining(self) -> Iterator[None]:
        """Keep a job that enqueues inside of `inline` from starting a second worker: the first one runs that job."""
        before, self._is_draining = self._is_draining, True
        try:
            yield
        finally:
            self._is_draining = before


class Drain:
    """Runs jobs here and now, as `run_jobs` does, and returns how many runs ended in each way.

    delayed  True: move the clock to each next due time until no job waits at all, so that delays and retries take no
             real time. False: jobs that are not due stay in their queues
    dead     True: jobs may end as dead letters. False: a dead letter raises AssertionError with its traceback
    timeout  seconds of real time for the whole call; then it raises TimeoutError
    """

    def __init__(self, test: AppUnderTest) -> None:
        self._test = test

    def __call__(self, *, delayed: bool = False, dead: bool = False, timeout: float = 30.0) -> RunSummary:
        if asyncio._get_running_loop() is not None:
            raise RuntimeError("drain() would block the running event loop: write `await penstock.drain.aio(…)` here")
        with self._test._draining():
            return run_jobs(self._test.app, clock=self._clock(delayed), dead=dead, timeout=timeout)

    async def aio(self, *, delayed: bool = False, dead: bool = False, timeout: float = 30.0) -> RunSummary:
        with self._test._draining():
            return await run_jobs.aio(self._test.app, clock=self._clock(delayed), dead=dead, timeout=timeout)

    def _clock(self, delayed: bool) -> MovableClock | None:
        return self._test.clock if delayed else None


def _in_another_thread(work: Callable[[], object]) -> None:
    """Run `work` in a thread of its own, in which no event loop runs, and raise what it raised."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="penstock-inline")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
