"""The clock that scripts use, and durations in the unit that scripts use."""

from __future__ import annotations

from dataclasses import dataclass


def milliseconds(seconds: float) -> int:
    """Whole milliseconds, rounded up, so that a wait is never shorter than it should be."""
    return -int(-seconds * 1000 // 1)


@dataclass(slots=True)
class Clock:
    """The time that is passed to scripts. 0, as always in production: scripts use the server's own clock.

    A test may set `now_ms` to milliseconds since 1970 and move it.
    """

    now_ms: int = 0
