"""The timeout of a `def` task in a thread, as far as Python allows one.

    waiting ──begin──▶ running ──leave──▶ over
       └────────────────┴─── time is up: TimeIsUp is raised in the thread at its next line of Python, once

Python raises an exception in another thread between two bytecodes; never inside C code, which goes on until it
returns. All states change under one lock, so the exception is not sent to a thread that has left the task; one that
was sent, and has not arrived by then, is called back. The loop's timers are the only clock: no thread more.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

log = logging.getLogger("penstock.worker")

T = TypeVar("T")


class TimeIsUp(BaseException):
    """What a `def` task sees when its timeout is over: `finally` runs, `except Exception` does not hold it."""


class Overtime:
    """One job in a thread that has a timeout. `limit` is called in the thread, all else on the loop."""

    def __init__(self, job: str, timeout: float, patience: float, loop: asyncio.AbstractEventLoop) -> None:
        """`job`: how a warning names it, given when the thread runs on for `patience` seconds after its time."""
        self._job = job
        self._timeout = timeout
        self._patience = patience
        self._loop = loop
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._over = False
        self._up = False
        self._timer = loop.call_later(timeout, self._time_is_up)

    def limit(self, call: Callable[[], T]) -> T:
        """Do it. Raises TimeIsUp when the time was up before it came back, whatever it came back with."""
        try:
            try:
                self._begin()
                answer = call()
            finally:
                self._leave()
        except TimeIsUp:
            self._over = True  # it may have come before `_leave` could say so; there is only this one
            raise
        except BaseException as error:
            if self._up:
                raise TimeIsUp from error
            raise
        if self._up:
            raise TimeIsUp
        return answer

    def _begin(self) -> None:
        with self._lock:
            self._thread = threading.get_ident()
            if self._up:
                raise TimeIsUp

    def _leave(self) -> None:
        """After this no TimeIsUp can arrive."""
        with self._lock:
            self._over = True
            if self._up and self._thread is not None:
                _raise_in(self._thread, None)

    def _time_is_up(self) -> None:
        with self._lock:
            if self._over:
                return
            self._up = True
            if self._thread is not None:
                _raise_in(self._thread, TimeIsUp)
        self._timer = self._loop.call_later(self._patience, self._warn)

    def _warn(self) -> None:
        if self._over or self._thread is None:
            return
        frame = sys._current_frames().get(self._thread)
        place = f" at {frame.f_code.co_filename}:{frame.f_lineno}" if frame else ""
        log.warning(
            "%s is over its timeout of %g s, and its thread goes on%s: only Python code can be interrupted; "
            "with isolate=True a timeout ends C code too", self._job, self._timeout, place,
        )  # fmt: skip

    def close(self) -> None:
        self._timer.cancel()


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    """In a thread, at its next bytecode; None calls back what has not arrived."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error) if error else None)
