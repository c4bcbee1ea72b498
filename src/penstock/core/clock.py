"""The server's clock as scripts are told it, and durations as they are sent."""

from __future__ import annotations

from dataclasses import dataclass


def milliseconds(seconds: float) -> int:
    """Whole milliseconds, rounded up: a wait is never shorter than was asked for."""
    return -int(-seconds * 1000 // 1)


@dataclass(slots=True)
class Clock:
    """0: the server's own time. A test may set server milliseconds and move them."""

    now_ms: int = 0
