"""The part of the inspector that is about the past of queues."""

from __future__ import annotations

from penstock.core.operations import Operation, verb
from penstock.errors import ConfigurationError
from penstock.jobs.history import KEPT, Interval, Moment
from penstock.ops.coordination import CoordinationInspector


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
