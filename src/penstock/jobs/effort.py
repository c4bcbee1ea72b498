"""The effort that a job causes a script, counted in ordinary jobs. A round trip brings jobs for a few ms of effort.

The scripts themselves count in the same unit where they choose the jobs (`slice.lua`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from penstock.jobs.constants import DEBOUNCE, LATEST, LIMITED, REASON, REPLACE, UNIQUE
from penstock.jobs.record import Record
from penstock.settings import MiB

T = TypeVar("T")

_OF_LIMIT: Final = 3
"""The effort of an enqueue for each limit of a job."""

_OF_MODE: Final = {REPLACE: 3, DEBOUNCE: 3, LATEST: 6}
"""The effort of looking for the holder of a unique key, and perhaps changing it; 1 for the other modes."""

_OF_FREED_PLACE: Final = 4
"""The effort of ending a run, for each limit: another job may get the place."""

_OF_FAILURES: Final = 1
"""The effort of removing the failures of a job that ends."""

COSTLY: Final = LIMITED | REASON
"""Flags of a record: a job that has one of them costs more than 1 to complete."""

_OF_OTHER_END: Final = 5
"""The effort of ending a run that does not complete the job."""

_TEXT_OF_ONE: Final = 4096
"""The bytes of a failure's text that cost 1 more."""


def of_call(limits: int, mode: bytes | None) -> int:
    """The effort of enqueueing a job with so many limits, and a unique key of this mode; None: it has no key."""
    return 1 + _OF_LIMIT * limits + (0 if mode is None else _OF_MODE.get(mode, 1))


def of_draft(draft: bytes) -> int:
    """The effort of enqueueing a draft."""
    record = Record(draft)
    if record.flags < LIMITED:
        return 1
    unique = record.unique if record.flags & UNIQUE else None
    return of_call(_limits(record), None if unique is None else unique[1].encode())


def of_end(record: Record, *, is_completed: bool, text: int) -> int:
    """The effort of ending this run, with a result or a failure of so many bytes."""
    failures = _OF_FAILURES if record.flags & REASON else 0
    end = 1 if is_completed else _OF_OTHER_END + text // _TEXT_OF_ONE
    return end + failures + _OF_FREED_PLACE * _limits(record)


def _limits(record: Record) -> int:
    return len(record.limits) if record.flags & LIMITED else 0


def slices(
    some: Iterable[T], effort: Callable[[T], int], most: int, size: Callable[[T], int] = lambda _: 0
) -> Iterator[list[T]]:
    """Divide items, in order, into lists of at most this effort and 1 MiB, or of one item that alone has more."""
    taken, spent, total = list[T](), 0, 0
    for one in some:
        cost, bytes_ = effort(one), size(one)
        if taken and (spent + cost > most or total + bytes_ > MiB):
            yield taken
            taken, spent, total = [], 0, 0
        taken.append(one)
        spent += cost
        total += bytes_
    if taken:
        yield taken
