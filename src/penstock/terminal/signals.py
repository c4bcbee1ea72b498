"""Lets a command clean up what it set up when a signal interrupts it."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any


def not_ignored(*numbers: signal.Signals) -> list[signal.Signals]:
    """The given signals without those that this process ignores. SIGTERM is always included.

    Set handlers only for these. `nohup` starts a program with SIGHUP ignored, so that it outlives its terminal. A shell
    script starts its background programs with SIGINT ignored, so that a Ctrl-C ends only the script.
    """
    return [number for number in numbers if number == signal.SIGTERM or signal.getsignal(number) != signal.SIG_IGN]


@contextlib.contextmanager
def interrupted_by(*numbers: signal.Signals) -> Iterator[None]:
    """Let these signals raise KeyboardInterrupt, as Ctrl-C does. A signal that was ignored before stays ignored."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handled(interrupt, *not_ignored(*numbers)):
        yield


@contextlib.contextmanager
def until_stopped(enabled: bool) -> Iterator[Callable[[], bool]]:
    """Yields a function that returns True until the first Ctrl-C or SIGTERM. A second one interrupts, as usual. Changes
    nothing unless `enabled`."""
    stopped = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        if stopped.is_set():
            raise KeyboardInterrupt
        stopped.set()

    with _handled(stop, *not_ignored(signal.SIGINT, signal.SIGTERM)) if enabled else contextlib.nullcontext():
        yield lambda: not stopped.is_set()


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignore Ctrl-C, SIGTERM and SIGHUP while a command cleans up.

    Only for a cleanup that ends soon even if the server does not answer.
    """
    with _handled(signal.SIG_IGN, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        yield


@contextlib.contextmanager
def _handled(handler: Any, *numbers: signal.Signals) -> Iterator[None]:
    """Handle these signals during the block. Does nothing outside the main thread, where Python sets no handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = [(number, signal.signal(number, handler)) for number in numbers]
    try:
        yield
    finally:
        for number, old in before:
            signal.signal(number, old)
