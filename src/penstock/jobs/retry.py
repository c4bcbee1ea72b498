"""The retry policy of a task, and the exceptions that a task raises to decide itself what happens to its job."""

from __future__ import annotations

import random
from typing import ClassVar, Final

LONGEST_DELAY: Final = 100 * 365 * 86400.0
"""Seconds. A longer delay is a mistake, and would not fit into a record."""


class Retry(Exception):
    """A retry policy: `@app.task(retry=Retry(5))`. A task also raises it to be run again: `raise Retry`.

    After the n-th failure the job waits `base * factor ** (n - 1)` seconds, but at most `cap`. A random part of up to
    `jitter` times this delay is subtracted, so that jobs that failed together do not run again together. After `times`
    retries the job becomes a dead letter.

        times    retries after the first run; None (for `raise Retry`): as the task's policy says, else 3
        base     seconds
        cap      seconds
        jitter   from 0 to 1
        on       exceptions that are retried; any other makes the job a dead letter at once
        never    exceptions that are not retried although `on` contains them

    Raises ValueError for numbers out of range.
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
        if not (0 <= base <= LONGEST_DELAY and 0 <= cap <= LONGEST_DELAY and 1 <= factor <= 1e6 and 0 <= jitter <= 1):
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
        """Whether the policy retries this error."""
        return isinstance(error, self.on) and not isinstance(error, self.never)

    def left(self, attempts: int) -> bool:
        """Whether a retry is left after `attempts` failures."""
        return attempts <= (self.DEFAULT_TIMES if self.times is None else self.times)

    def delay(self, attempts: int, chance: float | None = None) -> float:
        """Seconds to wait after the `attempts`-th failure. `chance`: from 0 to 1; None: random."""
        if chance is None:
            chance = random.random()
        try:
            full = min(self.cap, self.base * self.factor ** (attempts - 1))
        except OverflowError:
            full = self.cap
        return full * (1 - self.jitter * chance)


class RetryLater(Exception):
    """A task raises it to run again in `seconds`. It is not a failure: it uses up no retry."""

    def __init__(self, seconds: float, reason: str = "") -> None:
        super().__init__(reason or f"run again in {seconds} s")
        if not 0 <= seconds <= LONGEST_DELAY:
            raise ValueError(f"RetryLater({seconds}): seconds from 0 to a century")
        self.seconds = seconds


class Drop(Exception):
    """A task raises it to end its job without a result and without a dead letter. `result()` raises JobCancelled."""
