"""The history of a queue as Python reads it. `history.lua` explains the rows that it is made from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from struct import Struct
from typing import Final, Literal, TypeAlias

from penstock.jobs.constants import ROWS_OF_10_S, ROWS_OF_A_MINUTE, WRAP

Interval: TypeAlias = Literal[10, 60]
"""Seconds between two moments: the last hour is kept for each 10 s, the last day for each minute."""

KEPT: dict[Interval, int] = {10: ROWS_OF_10_S, 60: ROWS_OF_A_MINUTE}

_ROW: Final = Struct(">5sIII3s3s3sH3s3s3s3s3s3s3s3s")


@dataclass(frozen=True, slots=True)
class Moment:
    """A queue at one moment, and what happened in the `seconds` before it.

    at                       seconds since 1970 by the server's clock
    seconds                  since the moment before: 10 or 60, or more if the queue did nothing in between
    ready … dead             the jobs in each state at that moment; sleeping ones are among the delayed
    oldest                   seconds for which the oldest ready job had waited
    workers                  worker processes that were registered
    entered … lost           what happened in those seconds; see `Counts` for the words
    """

    at: float
    seconds: float
    ready: int
    delayed: int
    parked: int
    running: int
    dead: int
    oldest: int
    workers: int
    entered: int
    completed: int
    retried: int
    failed: int
    dropped: int
    cancelled: int
    expired: int
    lost: int

    def per_second(self, name: str) -> float:
        """How many per second: `moment.per_second("completed")`."""
        return float(getattr(self, name)) / self.seconds


_STATES: Final = ("ready", "delayed", "parked", "running", "dead")
_EVENTS: Final = ("entered", "completed", "retried", "failed", "dropped", "cancelled", "expired", "lost")


def read_rows(rows: Sequence[bytes]) -> list[Moment]:
    """The events between each two rows. If a clock or a total has gone backwards, counting starts over."""
    numbers = (tuple(_numbers(row)) for row in rows)
    return [
        Moment(now[0] / 100, (now[0] - then[0]) / 100, *now[1:8], *map(_grown, then[8:], now[8:]))
        for then, now in pairwise(numbers)
        if now[0] > then[0]
    ]


def joined_moments(shards: Sequence[Sequence[Moment]], interval: Interval) -> list[Moment]:
    """The moments of a queue from those of its shards, which are a few seconds apart.

    A shard without a moment has changed nothing since its last one. A worker is registered in every shard.
    """
    by_time: dict[int, list[tuple[int, Moment]]] = {}
    for number, moments in enumerate(shards):
        for moment in moments:
            by_time.setdefault(int(moment.at // interval), []).append((number, moment))
    latest: dict[int, Moment] = {}
    joined: list[Moment] = []
    for time in sorted(by_time):
        found = dict(by_time[time])
        latest |= found
        at = max(moment.at for moment in found.values())
        seconds = at - joined[-1].at if joined else max(moment.seconds for moment in found.values())
        joined.append(
            Moment(
                at,
                seconds,
                **{name: sum(getattr(one, name) for one in latest.values()) for name in _STATES},
                **{name: max(getattr(one, name) for one in latest.values()) for name in ("oldest", "workers")},
                **{name: sum(getattr(one, name) for one in found.values()) for name in _EVENTS},
            )
        )
    return joined


def _numbers(row: bytes) -> Iterable[int]:
    return (part if isinstance(part, int) else int.from_bytes(part) for part in _ROW.unpack(row))


def _grown(then: int, now: int) -> int:
    """The difference of two totals, of which the rows keep the last 24 bits."""
    grown = (now - then) % WRAP
    return grown if grown < WRAP // 2 else 0
