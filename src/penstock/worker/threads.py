"""Runs `def` tasks in threads, with their timeouts and cancellations."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Collection

from penstock.jobs.claims import Settlement
from penstock.settings import WorkerSettings
from penstock.worker.execution import Execution
from penstock.worker.run import JobRun
from penstock.worker.runs import Runs
from penstock.worker.thread_pool import ThreadPool
from penstock.worker.thread_timeout import ThreadTimeout, cancel_in_thread


class Threads:
    """The threads of a worker. Create it on the worker's loop; jobs get copies of the current context."""

    def __init__(self, runs: Runs, execution: Execution, settings: WorkerSettings) -> None:
        self._runs = runs
        self._execution = execution
        self._warn_after = settings.blocked_warning
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._pool: ThreadPool[tuple[JobRun, Settlement]] = ThreadPool(settings.concurrency, self._loop, self._ended)
        # For `def` tasks inside `async def` hooks. The hooks' asyncio tasks make the settlements.
        self._hooked_pool: ThreadPool[None] = ThreadPool(settings.concurrency, self._loop, lambda _: None)
        self._hook_tasks: set[asyncio.Task[None]] = set()
        """The asyncio tasks that run `async def` hooks, each around a `def` task in a thread."""

    def start(self, run: JobRun) -> None:
        if run.definition.middleware.async_hooks:
            # The run does not name this asyncio task, because cancelling it would not stop the thread.
            task = self._loop.create_task(self._run_in_async_hooks(run), context=self._context.copy())
            self._hook_tasks.add(task)
            task.add_done_callback(self._hook_tasks.discard)
        else:
            timeout = self._start_timeout(run)
            self._pool.submit(lambda: (run, self._execution.run_blocking(run, timeout)))

    async def _run_in_async_hooks(self, run: JobRun) -> None:
        try:
            settlement = await self._execution.run_in_async_hooks(run, self._hooked_pool.submit, self._start_timeout)
        except asyncio.CancelledError:  # its thread runs on
            self._runs.interrupted(run)
        else:
            self._ended([(run, settlement)])

    def _start_timeout(self, run: JobRun) -> ThreadTimeout | None:
        if (timeout := run.definition.timeout) is not None:
            run.timeout = ThreadTimeout(run.label, timeout, self._warn_after, self._loop)
        return run.timeout

    def _ended(self, ended: Collection[tuple[JobRun, Settlement]]) -> None:
        for run, _ in ended:
            if run.timeout is not None:
                run.timeout.close()
        self._runs.end(ended)

    def cancel(self, run: JobRun) -> None:
        """Interrupt a cancelled job at its next Python bytecode."""
        if run.timeout is not None:
            run.timeout.is_cancelled = True
            run.timeout.interrupt()
        else:
            cancel_in_thread(run)

    async def close(self) -> None:
        """Cancel the `async def` hooks, and let idle threads end. Busy threads run on."""
        tasks = list(self._hook_tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._pool.close()
        self._hooked_pool.close()
