"""Threads for `def` tasks.

Results come back to the loop in lots: a thread wakes the loop only if no wake-up is on its way, because waking it for
each job costs several times what handing over a job does.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class Threads(Generic[T]):
    """Up to `size` daemon threads; `deliver` is called on the loop with each answer, in order of finishing."""

    def __init__(self, size: int, loop: asyncio.AbstractEventLoop, deliver: Callable[[T], None]) -> None:
        self._size = size
        self._loop = loop
        self._deliver = deliver
        self._todo: SimpleQueue[Callable[[], T] | None] = SimpleQueue()
        self._done: deque[T] = deque()
        self._started = 0
        self._open = 0
        self._lock = threading.Lock()
        self._waking = False

    def submit(self, work: Callable[[], T]) -> None:
        """Run `work` in a thread. It must not raise."""
        self._open += 1
        if self._started < min(self._size, self._open):
            self._started += 1
            threading.Thread(target=self._serve, name=f"penstock-task-{self._started}", daemon=True).start()
        self._todo.put(work)

    def _serve(self) -> None:
        while (work := self._todo.get()) is not None:
            answer = contextvars.Context().run(work)
            with self._lock:
                self._done.append(answer)
                wake, self._waking = not self._waking, True
            if wake:
                try:
                    self._loop.call_soon_threadsafe(self._collect)
                except RuntimeError:  # the loop is closed: the worker has gone, and its lease with it
                    return

    def _collect(self) -> None:
        with self._lock:
            answers, self._done = self._done, deque()
            self._waking = False
        self._open -= len(answers)
        for answer in answers:
            self._deliver(answer)

    def close(self) -> None:
        """Let idle threads end; running ones end with their job, or with the process."""
        for _ in range(self._started):
            self._todo.put(None)
