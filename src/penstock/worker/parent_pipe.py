"""A pipe through which a process notices that its parent has ended, however it ended.

The parent holds one end and the child inherits the other. Nothing is ever written: when the parent's end is closed, by
the parent or by the kernel after a crash, the child's read returns end-of-file.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable

_VARIABLE = "PENSTOCK_PARENT_PIPE"
"""The environment variable in which the child finds the number of its file descriptor."""


class ParentPipe:
    """The parent's side. Start the child inside `with`, and give it `child_end` and `environment`."""

    def __init__(self) -> None:
        self.child_end, self._parent_end = os.pipe()
        self.environment = {_VARIABLE: str(self.child_end)}

    def __enter__(self) -> ParentPipe:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.child_end)

    def close(self) -> None:
        """Close the parent's end: for the child this looks like the end of its parent."""
        os.close(self._parent_end)


def stop_with_parent(stop: Callable[[], object], grace: float) -> None:
    """When the parent has ended, call `stop` on the running loop, and exit the process `grace` seconds later.

    The exit is for a process whose loop is blocked or whose stop takes too long. Does nothing in a process that was
    started without a ParentPipe.
    """
    if _VARIABLE not in os.environ:
        return
    loop = asyncio.get_running_loop()

    def request_stop() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: this process is ending already
            loop.call_soon_threadsafe(stop)
        time.sleep(grace)

    exit_with_parent(request_stop)


def exit_with_parent(before: Callable[[], object] = lambda: None) -> None:
    """When the parent has ended, call `before` in a thread, then exit this process at once with code 1.

    Does nothing in a process that was started without a ParentPipe.
    """
    descriptor = os.environ.pop(_VARIABLE, None)
    if descriptor is None:
        return

    def wait() -> None:
        os.read(int(descriptor), 1)
        before()
        os._exit(1)

    threading.Thread(target=wait, name="penstock-parent-pipe", daemon=True).start()
