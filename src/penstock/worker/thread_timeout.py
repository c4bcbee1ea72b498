"""The timeout of a `def` task, which runs in a thread, and its cancellation.

    waiting ──_enter──▶ running ──_leave──▶ left
       └────────────────┴─── on expiry, or when the job is cancelled, TimeIsUp is raised in the thread, once, at its
                             next Python bytecode

CPython can raise an exception in another thread, but only between two bytecodes: C code runs on until it returns.
Every change of state happens under one lock, so TimeIsUp is never sent to a thread that has left the task. A TimeIsUp
that was sent but not yet raised when the task ends is withdrawn. The event loop's timers measure the time, so a
timeout needs no extra thread.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

log = logging.getLogger("penstock.worker")

A = TypeVar("A")
T = TypeVar("T")


class TimeIsUp(BaseException):
    """Raised inside a `def` task whose timeout has expired, or that is cancelled.

    A BaseException: `finally` blocks run, and `except Exception` does not catch it.
    """


class CancellableRun(Protocol):
    """A run of a `def` task without a timeout."""

    thread: int
    """The id of the thread that is in the task; 0 if no thread is."""
    cancelled: bool


_cancel_lock = threading.Lock()
"""Held while a run is cancelled. A run that is not cancelled takes no lock."""


def run_cancellable(run: CancellableRun, call: Callable[[A], T], argument: A) -> T:
    """Return what `call` returns. Raises TimeIsUp if `cancel_in_thread` interrupts it, or was called before."""
    run.thread = threading.get_ident()
    try:
        # Each side sets its own attribute before it reads that of the other, so at least one sees the other.
        if run.cancelled:
            raise TimeIsUp
        return call(argument)
    finally:
        run.thread = 0
        if run.cancelled:
            with _cancel_lock:
                _raise_in_thread(threading.get_ident(), None)


def cancel_in_thread(run: CancellableRun) -> None:
    """Raise TimeIsUp in the thread that is in the task, or once one enters it. Call it once for a run."""
    run.cancelled = True
    with _cancel_lock:
        if run.thread:
            _raise_in_thread(run.thread, TimeIsUp)


class ThreadTimeout:
    """The timeout of one job in a thread, which starts to count when the object is made.

    `run` is called in the thread, everything else on the event loop.
    """

    __slots__ = (
        "_expired",
        "_label",
        "_left",
        "_lock",
        "_loop",
        "_thread",
        "_timeout",
        "_timer",
        "_warn_after",
        "deadline",
        "is_cancelled",
    )

    def __init__(
        self, label: Callable[[], str], timeout: float, warn_after: float, loop: asyncio.AbstractEventLoop
    ) -> None:
        """If the thread is still in the task `warn_after` seconds after the interruption, a warning names `label()`."""
        self._label = label
        self._timeout = timeout
        self._warn_after = warn_after
        self._loop = loop
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._left = False
        self._expired = False
        self.is_cancelled = False
        """Whether the job is interrupted because it was cancelled."""
        self.deadline = time.monotonic() + timeout
        self._timer = loop.call_later(timeout, self.interrupt)

    def run(self, call: Callable[[A], T], argument: A) -> T:
        """Return what `call` returns.

        Raises TimeIsUp if the timeout expired before `call` ended, whatever `call` then returned or raised.
        """
        try:
            try:
                self._enter()
                answer = call(argument)
            finally:
                self._leave()
        except TimeIsUp:
            self._left = True  # TimeIsUp may have interrupted `_leave` before it set this; it is raised only once
            raise
        except BaseException as error:
            if self._expired:
                raise TimeIsUp from error
            raise
        if self._expired:
            raise TimeIsUp
        return answer

    def _enter(self) -> None:
        with self._lock:
            self._thread = threading.get_ident()
            if self._expired:
                raise TimeIsUp

    def _leave(self) -> None:
        """After this call no TimeIsUp can be raised in the thread."""
        with self._lock:
            self._left = True
            if self._expired and self._thread is not None:
                _raise_in_thread(self._thread, None)

    def interrupt(self) -> None:
        """End the job now. Does nothing if the thread has left the task, or if the job was interrupted before."""
        with self._lock:
            if self._left or self._expired:
                return
            self._expired = True
            self._timer.cancel()
            if self._thread is not None:
                _raise_in_thread(self._thread, TimeIsUp)
        self._timer = self._loop.call_later(self._warn_after, self._warn)

    def _warn(self) -> None:
        if self._left or self._thread is None:
            return
        frame = sys._current_frames().get(self._thread)
        location = f" at {frame.f_code.co_filename}:{frame.f_lineno}" if frame else ""
        why = "was cancelled" if self.is_cancelled else f"is over its timeout of {self._timeout:g} s"
        log.warning(
            "%s %s, and its thread still runs%s: only Python code can be interrupted; with isolate=True a process is "
            "ended, whatever it does",
            self._label(),
            why,
            location,
        )

    def close(self) -> None:
        """Cancel the timer. The job is over."""
        self._timer.cancel()


def _raise_in_thread(thread: int, error: type[BaseException] | None) -> None:
    """Raise `error` in the thread at its next bytecode; None withdraws one that has not been raised yet."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error) if error else None)
