"""Lets a command clean up what it set up when a signal interrupts it."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any


def not_ignored(*numbers: signal.Signals) -> list[signal.Signals]:
    """The given signals without those that this process ignores. SIGTERM is always included.

    `nohup` starts a program with SIGHUP ignored, and a shell script starts its background programs with SIGINT ignored:
    a closed terminal, or a Ctrl-C that is meant for the script, must not end them. With a handler, it would.
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
def uninterrupted() -> Iterator[None]:
    """Ignore a second Ctrl-C while a command cleans up. The cleanup itself gives up if the server does not answer."""
    with _handled(signal.SIG_IGN, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        yield


@contextlib.contextmanager
def _handled(handler: Any, *numbers: signal.Signals) -> Iterator[None]:
    """Only in the main thread: Python allows no other thread to set handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = [(number, signal.signal(number, handler)) for number in numbers]
    try:
        yield
    finally:
        for number, old in before:
            signal.signal(number, old)
