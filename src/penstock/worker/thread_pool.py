"""The threads that run `def` tasks.

Results return to the event loop in groups: a thread wakes the loop only if no wake-up is pending, because waking the
loop for each job costs several times as much as handing over one result.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable, Collection
from queue import SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


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
        while (call := self._calls.get()) is not None:
            result = contextvars.Context().run(call)
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
