"""What a command does about signals, so that nothing it set up stays behind."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any


def not_ignored(*numbers: signal.Signals) -> list[signal.Signals]:
    """Those of the signals that this process does not ignore; SIGTERM always.

    `nohup` starts a program with SIGHUP ignored, a shell script starts what runs in its background with SIGINT ignored:
    a closed terminal, or a Ctrl-C meant for the script, shall not end it. A handler of ours would undo that.
    """
    return [number for number in numbers if number == signal.SIGTERM or signal.getsignal(number) != signal.SIG_IGN]


@contextlib.contextmanager
def interrupted_by(*numbers: signal.Signals) -> Iterator[None]:
    """These signals raise KeyboardInterrupt, as Ctrl-C does. One that was ignored before stays ignored."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handled(interrupt, *not_ignored(*numbers)):
        yield


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """A second Ctrl-C does not keep us from clearing away; that ends by itself when the server does not answer."""
    with _handled(signal.SIG_IGN, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        yield


@contextlib.contextmanager
def _handled(handler: Any, *numbers: signal.Signals) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = [(number, signal.signal(number, handler)) for number in numbers]
    try:
        yield
    finally:
        for number, old in before:
            signal.signal(number, old)
