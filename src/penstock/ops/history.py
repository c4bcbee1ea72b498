"""The part of the inspector that is about the past of queues."""

from __future__ import annotations

from typing import Literal, TypeAlias

from penstock.core.operations import Operation, verb
from penstock.errors import ConfigurationError
from penstock.jobs.constants import ROWS_OF_10_S, ROWS_OF_A_MINUTE
from penstock.jobs.history import Moment
from penstock.ops.coordination import CoordinationInspector

Interval: TypeAlias = Literal[10, 60]
"""Seconds between two moments: the last hour is kept for each 10 s, the last day for each minute."""

KEPT: dict[Interval, int] = {10: ROWS_OF_10_S, 60: ROWS_OF_A_MINUTE}


class HistoryInspector(CoordinationInspector):
    """The past of queues; see `Inspector`."""

    @verb
    def history(self, name: str, *, interval: Interval = 10, moments: int | None = None) -> Operation[list[Moment]]:
        """The latest `moments` of a queue (all that are kept by default), the oldest first.

        A moment is missing where nothing was enqueued and no worker took a turn: then nothing changed. One round trip.
        Returns an empty list for a queue that was never used.
        """
        if interval not in KEPT:
            raise ConfigurationError(f"interval={interval}: use 10 for the last hour, or 60 for the last day")
        most = KEPT[interval]
        found: list[Moment] = yield self._app.queue(name).bindings.history(
            interval, min(most, most if moments is None else moments + 1)
        )
        return found
