"""How a task ends other than by returning: the retry policy, and what a task raises to decide itself."""

from __future__ import annotations

import random
from typing import ClassVar, Final

LONGEST: Final = 100 * 365 * 86400.0
"""Seconds that any delay may have; more is a mistake, and would not fit a record."""


class Retry(Exception):
    """A policy (`retry=Retry(5)`), and what a task raises to be run again by its policy (`raise Retry`).

    After the n-th failure the job waits `base * factor ** (n - 1)` seconds, at most `cap`, less a random part of up
    to `jitter` of it, so that jobs that failed together do not come back together. After `times` retries the job
    is a dead letter.

        times    retries after the first run; None (only to raise): what the task's policy says
        on       exceptions that are retried; others bury the job at once
        never    exceptions among those that are not
    """

    DEFAULT_TIMES: ClassVar[int] = 3

    def __init__(
        self,
        times: int | None = None,
        *,
        base: float = 1.0,
        factor: float = 2.0,
        cap: float = 3600.0,
        jitter: float = 0.5,
        on: type[BaseException] | tuple[type[BaseException], ...] = Exception,
        never: type[BaseException] | tuple[type[BaseException], ...] = (),
    ) -> None:
        super().__init__("run again")
        if times is not None and times < 0:
            raise ValueError(f"Retry({times}): the number of retries is 0 or more")
        if not (0 <= base <= LONGEST and 0 <= cap <= LONGEST and 1 <= factor <= 1e6 and 0 <= jitter <= 1):
            raise ValueError("Retry: base and cap are seconds up to a century, factor 1 or more, jitter 0 to 1")
        self.times = times
        self.base = base
        self.factor = factor
        self.cap = cap
        self.jitter = jitter
        self.on = on
        self.never = never

    def __repr__(self) -> str:
        rest = f"base={self.base:g}, factor={self.factor:g}, cap={self.cap:g}, jitter={self.jitter:g}"
        return f"Retry({self.times}, {rest})"

    def applies(self, error: BaseException) -> bool:
        """Is this an error the policy retries?"""
        return isinstance(error, self.on) and not isinstance(error, self.never)

    def left(self, attempts: int) -> bool:
        """After `attempts` failures, is there another try?"""
        return attempts <= (self.DEFAULT_TIMES if self.times is None else self.times)

    def delay(self, attempts: int, chance: float | None = None) -> float:
        """Seconds to wait after the `attempts`-th failure."""
        if chance is None:
            chance = random.random()
        try:
            full = min(self.cap, self.base * self.factor ** (attempts - 1))
        except OverflowError:
            full = self.cap
        return full * (1 - self.jitter * chance)


class RetryLater(Exception):
    """Raised by a task: run me again in `seconds`. Not a failure: it uses up no retry."""

    def __init__(self, seconds: float, reason: str = "") -> None:
        super().__init__(reason or f"run again in {seconds} s")
        if not 0 <= seconds <= LONGEST:
            raise ValueError(f"RetryLater({seconds}): seconds from 0 to a century")
        self.seconds = seconds


class Drop(Exception):
    """Raised by a task: this job is not worth running. Neither a result nor a dead letter remains."""
