"""Runs `def` tasks in threads, with their timeouts and cancellations.

Results return to the event loop in groups: a thread wakes the loop only if no wake-up is pending, because waking the
loop for each job costs several times as much as handing over one result.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections import deque
from collections.abc import Callable, Collection
from queue import SimpleQueue
from typing import Final, Generic, TypeVar

from penstock.jobs.claims import Settlement
from penstock.settings import WorkerSettings
from penstock.worker.execution import Execution
from penstock.worker.run import JobRun
from penstock.worker.runs import Runs
from penstock.worker.thread_timeout import ThreadTimeout, cancel_in_thread

T = TypeVar("T")

_forks: Final[list[None]] = []
"""One entry for each fork on the way from the first process to this one. `os.getpid` asks the system each time."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _forks.append(None))


class ThreadPool(Generic[T]):
    """Up to `size` daemon threads, started when they are needed.

    `deliver` is called on the loop with the results that have arrived, in the order in which the calls finished.
    """

    def __init__(self, size: int, loop: asyncio.AbstractEventLoop, deliver: Callable[[Collection[T]], None]) -> None:
        self._size = size
        self._loop = loop
        self._deliver = deliver
        self._calls: SimpleQueue[Callable[[], T] | None] = SimpleQueue()
        self._results: deque[T] = deque()
        self._threads = 0
        self._unfinished = 0
        self._lock = threading.Lock()
        self._wake_up_pending = False

    def submit(self, call: Callable[[], T]) -> None:
        """Run `call`, which must not raise, in a thread and in an empty context."""
        self._unfinished += 1
        if self._threads < min(self._size, self._unfinished):
            self._threads += 1
            threading.Thread(target=self._work, name=f"penstock-task-{self._threads}", daemon=True).start()
        self._calls.put(call)

    def _work(self) -> None:
        forks = len(_forks)
        while (call := self._calls.get()) is not None:
            result = contextvars.Context().run(call)
            if forks != len(_forks):
                os._exit(0)  # the task has forked, and returned in the copy too
            with self._lock:
                self._results.append(result)
                wake, self._wake_up_pending = not self._wake_up_pending, True
            if wake:
                try:
                    self._loop.call_soon_threadsafe(self._collect)
                except RuntimeError:  # the loop is closed: the worker has ended, and so has its lease
                    return

    def _collect(self) -> None:
        with self._lock:
            results, self._results = self._results, deque()
            self._wake_up_pending = False
        self._unfinished -= len(results)
        self._deliver(results)

    def close(self) -> None:
        """Let idle threads end now. A busy thread ends after its job, or with the process."""
        for _ in range(self._threads):
            self._calls.put(None)


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
