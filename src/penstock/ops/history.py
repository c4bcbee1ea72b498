"""The part of the inspector that is about the past of queues."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.operations import Operation, verb
from penstock.errors import ConfigurationError
from penstock.jobs.counts import TenantCounts
from penstock.jobs.history import KEPT, Interval, Moment
from penstock.ops.coordination import CoordinationInspector

TENANTS_COMPARED = 1000
"""How many tenants `usage` compares: one round trip."""

WORKERS_COUNTED = 1000


@dataclass(frozen=True, slots=True)
class QueueUsage:
    """How many processes and tenants use a queue, and the jobs of the tenant that waits most, of a thousand."""

    workers: int
    tenants: int
    largest: TenantCounts


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

    @verb
    def usage(self, name: str) -> Operation[QueueUsage]:
        """How many workers are alive and how many tenants have jobs, and the tenant that waits most.

        Three round trips, O(1) in jobs and tenants.
        """
        bindings = self._app.queue(name).bindings
        overview = yield bindings.overview(1)
        workers = yield bindings.workers(WORKERS_COUNTED)
        _, tenants = yield bindings.scan_tenants("0", TENANTS_COMPARED)
        largest = max((counts for _, counts in tenants), key=lambda one: (one.waiting, one.running), default=None)
        alive = sum(1 for worker in workers if worker.name and worker.lease > 0)
        return QueueUsage(alive, overview.tenants, largest or TenantCounts())
