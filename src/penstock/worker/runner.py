"""Runs the jobs of a worker: on its event loop, in threads, or in processes of their own."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Collection

from penstock.jobs.claims import Settlement
from penstock.settings import WorkerSettings
from penstock.worker.execution import Execution
from penstock.worker.isolation import Isolation
from penstock.worker.running import Inflight, JobRun
from penstock.worker.shared_status import SharedStatus
from penstock.worker.streak import StreakRunner
from penstock.worker.thread_pool import ThreadPool
from penstock.worker.thread_timeout import ThreadTimeout, cancel_in_thread


class JobRunner:
    """Runs each job where its task belongs. Create it on the worker's loop; jobs get copies of the current context."""

    def __init__(
        self,
        execution: Execution,
        inflight: Inflight,
        isolation: Isolation,
        settings: WorkerSettings,
        *,
        shared_status: SharedStatus | None,
        take_next: Callable[[], JobRun | None],
        finished: Callable[[JobRun, Settlement | None], None],
        go_on: Callable[[], None],
        broken: Callable[[BaseException], None],
    ) -> None:
        """
        shared_status  shows the supervisor which jobs run in this process
        take_next      starts waiting jobs, and returns the next one that belongs into the streak
        finished       is called with each job that has ended, and with None for one that the worker has cancelled
        go_on          is called after one or several calls of `finished`
        broken         is called with an error that is not a job's, for instance if no thread can be started
        """
        self._execution = execution
        self._inflight = inflight
        self._isolation = isolation
        self._settings = settings
        self._shared_status = shared_status
        self._take_next = take_next
        self._finished = finished
        self._go_on = go_on
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._streaks = StreakRunner(
            execution, inflight, take_next=take_next, ended=finished, go_on=go_on, broken=broken
        )  # fmt: skip
        self._threads: ThreadPool[tuple[JobRun, Settlement]] = ThreadPool(
            settings.concurrency, self._loop, self._finished_in_threads
        )
        # For `def` tasks inside `async def` hooks. The hooks' asyncio tasks make the settlements.
        self._hooked_threads: ThreadPool[None] = ThreadPool(settings.concurrency, self._loop, lambda _: None)
        self._hook_tasks: set[asyncio.Task[None]] = set()
        """The asyncio tasks that run `async def` hooks, each around a `def` task in a thread."""

    def start_waiting(self) -> None:
        """Start as many of the waiting jobs as there are free runners. A streak takes them by itself."""
        if not self._streaks.is_active and (run := self._take_next()) is not None:
            self._streaks.begin(run)

    def start(self, run: JobRun) -> bool:
        """Start a job. False: it belongs into the streak instead."""
        definition = run.definition
        if definition.isolate:
            self._streaks.start_isolated(run, self._isolation.run)
            return True
        if self._shared_status and run.feed:  # only jobs that run in this process can be the reason for its death
            for one in run.members or (run,):
                self._shared_status.job_started(run.feed.slot, one.claim.token)
        if definition.is_async:
            if not run.members and self._streaks.admit(run):
                return False
            self._streaks.start(run)
        elif definition.middleware.async_hooks:
            self._start_in_async_hooks(run)
        else:
            timeout = self._start_timeout(run)
            self._threads.submit(lambda: (run, self._execution.run_blocking(run, timeout)))
        return True

    def _start_in_async_hooks(self, run: JobRun) -> None:
        """Start a `def` task in a thread, inside `async def` hooks that run on the loop.

        The run does not name the asyncio task of the hooks, because cancelling that would not stop the thread.
        """

        async def run_it() -> None:
            submit = self._hooked_threads.submit
            settlement = await self._execution.run_in_async_hooks(run, submit, self._start_timeout)
            self._finished_in_threads([(run, settlement)])

        task = self._loop.create_task(run_it(), context=self._context.copy())
        self._hook_tasks.add(task)
        task.add_done_callback(self._hook_tasks.discard)

    def _start_timeout(self, run: JobRun) -> ThreadTimeout | None:
        if (timeout := run.definition.timeout) is not None:
            run.timeout = ThreadTimeout(run.label, timeout, self._settings.blocked_warning, self._loop)
        return run.timeout

    def cancel(self, run: JobRun) -> None:
        """End a running job because it was cancelled, if its code can be interrupted."""
        run.cancelled = True
        if run.timeout is not None:
            run.timeout.is_cancelled = True
            run.timeout.interrupt()
        elif run.asyncio_task is not None:
            run.asyncio_task.cancel("the job was cancelled")
        else:
            cancel_in_thread(run)

    def _finished_in_threads(self, results: Collection[tuple[JobRun, Settlement]]) -> None:
        for run, settlement in results:
            if run.timeout is not None:
                run.timeout.close()
            self._inflight.note_duration(run)
            self._finished(run, settlement)
        self._go_on()

    def name_of(self, task: asyncio.Task[object]) -> str:
        """The job, or the batch, that runs in this asyncio task, for log lines. Any thread may ask."""
        run = self.job_in(task)
        return run.label() if run is not None else "a callback"

    def job_in(self, task: asyncio.Task[object]) -> JobRun | None:
        """The job that runs in this asyncio task. Any thread may ask."""
        return self._streaks.job_in(task)

    # --- the end ---

    def cancel_all(self, why: str) -> None:
        """Cancel all jobs that can be cancelled. Those in threads run on."""
        for task in list(self._streaks.tasks):
            task.cancel(why)

    async def close(self) -> None:
        """Cancel all jobs, and wait for their ends; but not for those in threads, which run on."""
        tasks = [*self._streaks.tasks, *self._hook_tasks]
        for task in tasks:
            task.cancel()
        self._isolation.close()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._threads.close()
        self._hooked_threads.close()
