"""A pipe through which a process notices that its parent has ended, or that its parent passes on a stop.

The parent holds one end and the child inherits the other. When the parent's end is closed, by the parent or by the
kernel after a crash, the child's read returns end-of-file.

A parent that receives stop signals sends the number of each one through the pipe. systemd, some inits and process
managers send a signal to every process of a group or a container. A child that also counted those would take one stop
for two: it would hand back its running jobs instead of letting them finish.
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

_PASSES_STOPS = "PENSTOCK_PARENT_PASSES_STOPS"
"""The environment variable that says that the parent passes on stops."""


class ParentPipe:
    """The parent's side. Start the child inside `with`, and give it `child_end` and `environment`."""

    def __init__(self, *, passes_stops: bool = False) -> None:
        """`passes_stops`: the parent calls `pass_stop` for each stop signal that it receives."""
        self.child_end, self._parent_end = os.pipe()
        self.environment = {_VARIABLE: str(self.child_end), _PASSES_STOPS: "1" if passes_stops else ""}

    def __enter__(self) -> ParentPipe:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.child_end)

    def pass_stop(self, number: int) -> None:
        """Pass on the first stop (1), or a further one. Send SIGTERM as well, for a child that still loads."""
        with contextlib.suppress(OSError):  # the child has ended
            os.write(self._parent_end, bytes([min(number, 255)]))

    def close(self) -> None:
        """Close the parent's end: for the child this looks like the end of its parent."""
        os.close(self._parent_end)


class StopRequests:
    """Calls `stop` once for each request to stop this process. Create it on the running loop."""

    def __init__(self, stop: Callable[[], object]) -> None:
        self._stop = stop
        self._loop = asyncio.get_running_loop()
        self._count = 0
        self._parent_counts = bool(os.environ.pop(_PASSES_STOPS, ""))

    def signalled(self) -> None:
        """This process received a stop signal. It counts as the first request if the parent passes on stops."""
        self._reach(1 if self._parent_counts else self._count + 1)

    def _reach(self, count: int) -> None:
        while self._count < count:
            self._count += 1
            self._stop()

    def follow_parent(self, grace: float, orphaned: Callable[[], object] = lambda: None) -> None:
        """Obey the stops that the parent passes on. When the parent has ended, stop, and exit `grace` seconds later.

        The exit is for a process whose loop is blocked or whose stop takes too long. `orphaned` is called on the loop
        when the parent has ended. Does nothing in a process that was started without a ParentPipe.
        """

        def parent_ended() -> None:
            orphaned()
            self.signalled()

        def request_stop() -> None:
            self._call(parent_ended)
            time.sleep(grace)

        exit_with_parent(request_stop, lambda number: self._call(self._reach, number))

    def _call(self, call: Callable[..., object], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: this process is ending already
            self._loop.call_soon_threadsafe(call, *arguments)


def exit_with_parent(
    before: Callable[[], object] = lambda: None, stopped: Callable[[int], object] = lambda number: None
) -> None:
    """When the parent has ended, call `before` in a thread, then exit this process at once with code 1.

    `stopped` is called in the thread with the number of each stop that the parent passes on. Does nothing in a process
    that was started without a ParentPipe.
    """
    descriptor = os.environ.pop(_VARIABLE, None)
    if descriptor is None:
        return

    def wait() -> None:
        while number := os.read(int(descriptor), 1):
            stopped(number[0])
        before()
        os._exit(1)

    threading.Thread(target=wait, name="penstock-parent-pipe", daemon=True).start()
