"""A pipe by which a process notices that its parent is gone, however it ended."""

from __future__ import annotations

import asyncio
import os
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


def watch_parent(gone: Callable[[], None]) -> None:
    """Call `gone` on the running loop when the parent has ended. Does nothing in a process that got no lifeline."""
    handed = os.environ.pop(_NAME, None)
    if handed is None:
        return
    loop, end = asyncio.get_running_loop(), int(handed)

    def ended() -> None:
        loop.remove_reader(end)
        os.close(end)
        gone()

    loop.add_reader(end, ended)
