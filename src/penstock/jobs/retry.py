"""The retry policy of a task, and the exceptions that a task raises to decide itself what happens to its job."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime
from typing import Any, ClassVar, Final

from penstock.core.arguments import check_callback, check_flag, check_number, check_whole, shown
from penstock.jobs.stalls import running

LONGEST_DELAY: Final = 100 * 365 * 86400.0
"""Seconds. A longer delay is a mistake, and would not fit into a record."""

MOST_RETRIES: Final = 65_535
"""A record counts them in two bytes."""

LATEST_DATE: Final = 1e11
"""Seconds since 1970. A later date would not fit into a record."""


def is_date(value: Any) -> bool:
    """Whether `value` is a date with a time zone that a record can hold."""
    return isinstance(value, datetime) and value.utcoffset() is not None and 0 <= value.timestamp() < LATEST_DATE


def _are_exceptions(kinds: Any) -> bool:
    return all(
        isinstance(one, type) and issubclass(one, BaseException)
        for one in (kinds if isinstance(kinds, tuple) else (kinds,))
    )


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
        retry_if decides on each exception that `on` and `never` let through, as in `lambda error: error.status >= 500`.
                 It is called in the process that ran the job; if it raises, the job becomes a dead letter

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
        retry_if: Callable[[BaseException], object] | None = None,
    ) -> None:
        super().__init__("run again")
        if times is not None:
            check_whole("Retry", "times", times, 0, MOST_RETRIES, f"the number of retries, from 0 to {MOST_RETRIES:,}")
        check_number("Retry", "base", base, 0, LONGEST_DELAY, "seconds, up to a century")
        check_number("Retry", "cap", cap, 0, LONGEST_DELAY, "seconds, up to a century")
        check_number("Retry", "factor", factor, 1, 1e6, "1 or more, up to a million")
        check_number("Retry", "jitter", jitter, 0, 1, "from 0 to 1")
        for name, kinds in (("on", on), ("never", never)):
            if not _are_exceptions(kinds):
                raise ValueError(f"Retry({name}={shown(kinds)}): give a class of exceptions, or a tuple of them")
        check_callback("Retry", "retry_if", retry_if)
        self.times = times
        self.base = base
        self.factor = factor
        self.cap = cap
        self.jitter = jitter
        self.on = on
        self.never = never
        self.retry_if = retry_if

    def __repr__(self) -> str:
        rest = f"base={self.base:g}, factor={self.factor:g}, cap={self.cap:g}, jitter={self.jitter:g}"
        return f"Retry({self.times}, {rest})"

    def applies(self, error: BaseException) -> bool:
        """Whether the policy retries this error."""
        if not isinstance(error, self.on) or isinstance(error, self.never):
            return False
        return self.retry_if is None or bool(self.retry_if(error))

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
    """A task raises it to run again later. It is not a failure: it uses up no retry.

        when     seconds from now, or a date with a time zone, which the server's clock reaches
        reason   one line for the operator
        attempt  True: this run counts as an attempt that has failed, so it uses up a retry of the task, and the job
                 becomes a dead letter after the last one. Only with seconds

    Raises ValueError for anything else: a negative or endless delay, a timedelta, a date without a time zone. A date in
    the past means now.
    """

    def __init__(self, when: float | datetime, reason: str = "", *, attempt: bool = False) -> None:
        check_flag("RetryLater", "attempt", attempt)
        if attempt and isinstance(when, datetime):
            raise ValueError("RetryLater(attempt=True): give seconds instead of a date")
        self.attempt = attempt
        self.seconds: float | None = None
        """Seconds from now; None if a date was given."""
        self.date: float | None = None
        """Seconds since 1970; None if a delay was given."""
        if isinstance(when, datetime):
            super().__init__(reason or f"run again at {when.isoformat()}")
            self.date = _seconds_since_1970(when)
            return
        super().__init__(reason or f"run again in {when} s")
        check_number("RetryLater", "when", when, 0, LONGEST_DELAY, "seconds from 0 to a century, or a date")
        self.seconds = when


def _seconds_since_1970(date: datetime) -> float:
    if not is_date(date):
        raise ValueError(f"RetryLater({date!r}): a date with a time zone, e.g. datetime.now(UTC), after 1970")
    return date.timestamp()


class Drop(Exception):
    """A task raises it to end its job without a result and without a dead letter. `result()` raises JobCancelled."""


class Suspended(BaseException):
    """Ends a run that sleeps, or waits for a signal or for children. The worker then suspends the job.

    Not an Exception, so that a task which handles its errors does not catch it. The hooks and dependencies around the
    task see such a run end as after a success: a transaction is committed, because the steps in it are recorded.
    """


def _waits_for_children(error: BaseException) -> bool:
    """Whether the running job is cancelled only because it waits for its children (see `children.py`)."""
    steps = getattr(running.get(None), "steps", None)
    return steps is not None and bool(steps.ended_for_children(error))


class HeldSuspension:
    """Holds back `Suspended` while hooks and dependencies end, so that they end as after a success.

    held = HeldSuspension()
    with transaction:
        with held:
            run()
    held.release()    # raises it, if there was one
    """

    def __init__(self) -> None:
        self._error: Suspended | None = None

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        self._error = None
        if isinstance(error, Suspended):
            self._error = error
        elif error is not None and not isinstance(error, Exception) and _waits_for_children(error):
            self._error = Suspended("the run ends here, because its job waits for its children")
        return self._error is not None

    def release(self) -> None:
        if self._error is not None:
            raise self._error
