"""The event loop of the processes of a worker. It has a module of its own, because a supervisor imports little else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib import import_module


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The factory for event loops: uvloop's if it is installed, else None, which selects asyncio's own."""
    try:
        factory: Callable[[], asyncio.AbstractEventLoop] = import_module("uvloop").new_event_loop
    except ImportError:
        return None
    return factory
