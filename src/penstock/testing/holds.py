"""Who held what, from the history of several processes: for `lock_faults` and `semaphore_faults`."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.ops.proof import Hold
from penstock.testing.history import Event, Sure


def holds(events: Iterable[Event]) -> list[Hold]:
    """From the first moment to the last at which each holder was sure, by the server's clock."""
    found: dict[str, list[Sure]] = {}
    for event in events:
        if isinstance(event, Sure):
            found.setdefault(event.token, []).append(event)
    return [
        Hold(one[0].name, token, min(e.server for e in one), max(e.server for e in one), one[0].fence, one[0].permits)
        for token, one in found.items()
    ]
