"""A pipe by which a process notices that its parent is gone, however it ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable

_NAME = "PENSTOCK_LIFELINE"


class Lifeline:
    """The parent holds one end. `with` it while the child is started, which gets the other."""

    def __init__(self) -> None:
        self.theirs, self._ours = os.pipe()
        self.environment = {_NAME: str(self.theirs)}

    def __enter__(self) -> Lifeline:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.theirs)

    def cut(self) -> None:
        os.close(self._ours)


def watch_parent(gone: Callable[[], object], patience: float) -> None:
    """When the parent has ended, call `gone` on the running loop; who is still there after `patience` seconds, the loop
    being blocked, ends at once. Does nothing in a process that got no lifeline.
    """
    if _NAME not in os.environ:
        return
    loop = asyncio.get_running_loop()

    def tell() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: we are ending
            loop.call_soon_threadsafe(gone)
        time.sleep(patience)

    end_with_parent(tell)


def end_with_parent(before: Callable[[], object] = bool) -> None:
    """When the parent has ended, do this in a thread, and end at once. Does nothing in a process that got no
    lifeline."""
    handed = os.environ.pop(_NAME, None)
    if handed is None:
        return

    def wait() -> None:
        os.read(int(handed), 1)
        before()
        os._exit(1)

    threading.Thread(target=wait, name="penstock-lifeline", daemon=True).start()
