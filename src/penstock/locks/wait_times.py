"""Measures how long requests for locks and permits wait, if an integration asks for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from penstock.core.operations import Operation

T = TypeVar("T")

observers: Final[list[Callable[[str, float, bool], None]]] = []
"""Each is called with a kind such as "lock", the seconds that the request took, and whether it was granted."""


def observed(kind: str, request: Operation[T]) -> Operation[T]:
    """Run the operation, and call the observers at its end."""
    started, granted = time.perf_counter(), False
    try:
        found = yield from request
        granted = True
        return found
    finally:
        for observe in observers:
            observe(kind, time.perf_counter() - started, granted)
