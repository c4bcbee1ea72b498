"""Retention: how many dead letters and results a queue keeps. `retention.lua` applies it in the server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final

from penstock.core.clock import milliseconds
from penstock.core.operations import RoundTrip
from penstock.errors import BadCall
from penstock.jobs.bindings import QueueBindings, scripts

MOST: Final = 1_000_000_000
LONGEST: Final = 10 * 366 * 86400.0
"""Seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How much a queue keeps of what has ended. None: no limit.

        app.queue("mail").keep(dead_letters=1000, dead_age=30 * 86400)

    dead_letters  how many; the oldest are removed first
    dead_age      for how many seconds a dead letter is kept
    results       how many results are kept; those that expire first are removed first. Each is kept for the
                  `result_ttl` of its job, of its task, or of the app
    finished      how many rows of jobs that have ended; None: 10,000, 0: none
    finished_age  for how many seconds such a row is kept; None: a day

    Rows are dropped in blocks of some dozens, so a few more are kept. Rows of dead letters are counted separately.

    Raises BadCall for numbers out of range.
    """

    dead_letters: int | None = None
    dead_age: float | None = None
    results: int | None = None
    finished: int | None = None
    finished_age: float | None = None

    def __post_init__(self) -> None:
        for name in ("dead_letters", "results", "finished"):
            number = getattr(self, name)
            if number is not None and (
                isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= MOST
            ):
                raise BadCall(f"keep({name}={number!r}): a number from 0 to {MOST:,}, or None for no limit")
        for name in ("dead_age", "finished_age"):
            age = getattr(self, name)
            if age is not None and (
                isinstance(age, bool) or not isinstance(age, int | float) or not 0.001 <= age <= LONGEST
            ):
                raise BadCall(f"keep({name}={age!r}): seconds from 0.001 to ten years, or None for no limit")

    def stored(self) -> list[int]:
        """The arguments of `set_retention`: -1 stands for None."""
        dead, rows = (None if age is None else milliseconds(age) for age in (self.dead_age, self.finished_age))
        return [-1 if n is None else n for n in (self.dead_letters, dead, self.results, self.finished, rows)]

    @classmethod
    def read(cls, reply: Sequence[int]) -> Retention:
        """The reply of `show_retention`."""
        dead, age, results, rows, rows_age = (None if n < 0 else n for n in (*reply, -1, -1, -1, -1, -1)[:5])
        return cls(
            dead_letters=dead,
            dead_age=None if age is None else age / 1000,
            results=results,
            finished=rows,
            finished_age=None if rows_age is None else rows_age / 1000,
        )

    @classmethod
    def of(cls, bindings: QueueBindings) -> RoundTrip[Retention]:
        """Read the limits of a queue."""
        return RoundTrip(scripts()["show_retention"], bindings.keys.declared, (), cls.read)

    def store(self, bindings: QueueBindings) -> RoundTrip[None]:
        args = (bindings.clock.now_ms, *self.stored())
        return RoundTrip(scripts()["set_retention"], bindings.keys.declared, args, lambda _: None)

    def __bool__(self) -> bool:
        """Whether it limits anything."""
        return any(getattr(self, one.name) is not None for one in fields(self))
