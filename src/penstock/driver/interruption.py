"""Exceptions of signal handlers. They end the call that they interrupt, and are not treated as network errors.

A handler runs between any two lines, even while the driver waits for a reply, and may raise the same exception as a
lost connection: an `alarm` whose handler raises TimeoutError is common. The client libraries then wrap it in one of
their errors.

On asyncio a handler mostly runs while the loop waits for events, and its exception ends the loop. If it interrupts the
task that reads replies, the call that waits for the next reply ends with the exception. If it interrupts a task that no
caller waits for, the exception goes to the handler of the loop, as that of any callback.
"""

from __future__ import annotations

import asyncio
import threading
from types import FrameType, TracebackType

from penstock.driver.faults import causes


class Interruption(BaseException):
    """Carries the exception of a signal handler out of the driver, past everything that handles errors."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def raise_if_interrupted(error: BaseException) -> None:
    """Raise Interruption if a signal handler has raised the error, or an error that caused it."""
    if (found := interruption(error)) is not None:
        raise found from None


def interruption(error: BaseException) -> Interruption | None:
    """An Interruption if a signal handler has raised the error, or an error that caused it."""
    if threading.current_thread() is not threading.main_thread():  # handlers run there
        return None
    return next((Interruption(one) for one in causes(error) if _is_of_handler(one.__traceback__)), None)


def report(found: Interruption) -> None:
    """Pass the exception to the exception handler of the running loop, because no caller waits for this task."""
    message = "a signal handler raised an exception in a task of Penstock, which continues"
    asyncio.get_running_loop().call_exception_handler({"message": message, "exception": found.error})


def _is_of_handler(traceback: TracebackType | None) -> bool:
    while traceback is not None:
        if _is_handler(traceback.tb_frame):
            return True
        traceback = traceback.tb_next
    return False


def _is_handler(frame: FrameType) -> bool:
    """Whether the frame is the call of a signal handler: the frame that it interrupts is among its arguments."""
    for value in list(frame.f_locals.values()):
        if isinstance(value, FrameType) and value is frame.f_back:
            return True
        if isinstance(value, tuple) and any(one is frame.f_back for one in value if isinstance(one, FrameType)):
            return True
    return False
