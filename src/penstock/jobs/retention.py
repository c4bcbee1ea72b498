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
    arguments     whether the arguments of a job that has ended are kept as long as its row, so that `Queue.run_again`
                  can run it again. Those of a job whose record is larger than 4 KiB are not

    Rows are dropped in blocks of some dozens, so a few more are kept. Rows of dead letters are counted separately. The
    row of a job for which dozens of others wait counts as several.

    Raises BadCall for numbers out of range, and for arguments without rows.
    """

    dead_letters: int | None = None
    dead_age: float | None = None
    results: int | None = None
    finished: int | None = None
    finished_age: float | None = None
    arguments: bool = False

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
        if not isinstance(self.arguments, bool):
            raise BadCall(f"keep(arguments={self.arguments!r}): True or False")
        if self.arguments and self.finished == 0:
            raise BadCall("keep(arguments=True, finished=0): arguments are kept with rows; keep both or neither")

    def stored(self) -> list[int]:
        """The arguments of `set_retention`: -1 stands for None."""
        dead, rows = (None if age is None else milliseconds(age) for age in (self.dead_age, self.finished_age))
        numbers = (self.dead_letters, dead, self.results, self.finished, rows, 1 if self.arguments else None)
        return [-1 if n is None else n for n in numbers]

    @classmethod
    def read(cls, reply: Sequence[int]) -> Retention:
        """The reply of `show_retention`."""
        numbers = (*reply, *[-1] * 6)[:6]
        dead, age, results, rows, rows_age, arguments = (None if n < 0 else n for n in numbers)
        return cls(
            dead_letters=dead,
            dead_age=None if age is None else age / 1000,
            results=results,
            finished=rows,
            finished_age=None if rows_age is None else rows_age / 1000,
            arguments=bool(arguments),
        )

    @classmethod
    def of(cls, bindings: QueueBindings) -> RoundTrip[Retention]:
        """Read the limits of a queue."""
        return RoundTrip(scripts()["show_retention"], bindings.keys.declared, (), cls.read)

    def store(self, bindings: QueueBindings) -> RoundTrip[None]:
        args = (bindings.clock.now_ms, *self.stored())
        return RoundTrip(scripts()["set_retention"], bindings.keys.declared, args, lambda _: None)

    def __bool__(self) -> bool:
        """Whether it differs from what a queue keeps by itself."""
        return self.arguments or any(getattr(self, one.name) is not None for one in fields(self)[:-1])
