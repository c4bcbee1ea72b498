"""Derives from a history of several processes when each of them held a lock or a semaphore."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.ops.proof import HoldInterval
from penstock.testing.history import Event, StillHeld


def hold_intervals(events: Iterable[Event]) -> list[HoldInterval]:
    """The intervals for `lock_violations` and `semaphore_violations`, one for each holder.

    Each lasts from the first to the last moment, by the server's clock, at which the holder was certain of its hold.
    """
    of_holder: dict[str, list[StillHeld]] = {}
    for event in events:
        if isinstance(event, StillHeld):
            of_holder.setdefault(event.token, []).append(event)
    return [
        HoldInterval(
            moments[0].name,
            token,
            min(one.server_time for one in moments),
            max(one.server_time for one in moments),
            moments[0].fence,
            moments[0].permits,
        )
        for token, moments in of_holder.items()
    ]
