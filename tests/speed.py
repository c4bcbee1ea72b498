"""How much slower this machine is now than a quiet one; limits in seconds are multiplied by it.

    assert time.monotonic() - began < scaled(5)        the limit is computed after the work, under the same load
    await asyncio.wait_for(task, scaled(5))
    deadline = Deadline(30)
    while not happened():
        assert not deadline.passed()

On a quiet machine the factor is 1 and every limit means what it says. On a crowded one a test is more patient: it
may then miss a fault that costs only time, but does not fail because of other load. Only upper limits are
scaled. A lower limit ("not before its lease has run out") holds on any machine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import lru_cache

REFERENCE = 0.010
"""Seconds that `_calibrate` takes on the quiet machine of two 2.x GHz cores for which the limits were chosen."""

LONGEST = 200.0
"""Seconds. No limit is scaled beyond it, so that a failing wait ends with its own message before pytest's
`faulthandler_timeout` ends the process."""


def slowdown() -> float:
    """The factor, 1 or more: the larger of what a fixed piece of work takes now, and the load of the last minute."""
    return _slowdown(int(time.monotonic()))


@lru_cache(maxsize=1)
def _slowdown(second: int) -> float:
    """Measured at most once in each second of the clock."""
    waiting_for_a_core = os.getloadavg()[0] / (os.cpu_count() or 1)
    return max(1.0, _calibrate() / REFERENCE, waiting_for_a_core)


def scaled(seconds: float) -> float:
    """A limit that fits the present speed of this machine. Costs some 10 ms of CPU time, at most once a second."""
    return max(seconds, min(LONGEST, seconds * slowdown()))


class Deadline:
    """The end of a wait that normally succeeds: the machine is measured only when the plain limit is over."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._began = time.monotonic()

    def passed(self) -> bool:
        took = time.monotonic() - self._began
        return took > self._seconds and took > scaled(self._seconds)


def scaled_cpu(seconds: float) -> float:
    """A limit of CPU time that fits this machine, whatever else it does."""
    return seconds * max(1.0, _calibrate(time.process_time) / REFERENCE)


def _calibrate(clock: Callable[[], float] = time.perf_counter) -> float:
    """Wall seconds of some work in Python: more on a slow machine, and more where others compete for its cores."""
    began = clock()
    seen: dict[int, int] = {}
    number = 0
    for step in range(100_000):
        seen[step & 255] = number
        number = (number * 31 + step) & 0xFFFFFFFF
    return clock() - began
