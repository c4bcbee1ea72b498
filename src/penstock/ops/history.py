"""Questions about the past and the use of queues."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.operations import Operation, Parallel, verb
from penstock.errors import ConfigurationError
from penstock.jobs.counts import TenantCounts, total_tenant_counts
from penstock.jobs.history import KEPT, Interval, Moment, joined_moments
from penstock.jobs.shard_bindings import ShardBindings
from penstock.ops.questioner import Questioner
from penstock.ops.workers import joined_workers

TENANTS_COMPARED = 1000
"""How many tenants `usage` compares: one round trip."""

WORKERS_COUNTED = 1000


@dataclass(frozen=True, slots=True)
class QueueUsage:
    """How many processes and tenants use a queue, and the jobs of the largest among a thousand tenants.

    busy      jobs of the queue that worker processes hold
    capacity  jobs that these processes run at a time, those of their other queues included
    memory    bytes that these processes have in RAM; None if none of them knows
    """

    workers: int
    tenants: int
    largest: TenantCounts
    busy: int = 0
    capacity: int = 0
    memory: int | None = None


class HistoryQuestioner(Questioner):
    """Asks what queues did in the last hour or the last day, and how much they are used."""

    @verb
    def moments(self, name: str, *, interval: Interval = 10, moments: int | None = None) -> Operation[list[Moment]]:
        """The latest `moments` of a queue (all that are kept by default), the oldest first.

        An interval in which nothing changed has no moment; the last one is that of the last change. Returns
        an empty list for a queue that was never used. One round trip; with shards, one more to each node.
        """
        if interval not in KEPT:
            raise ConfigurationError(f"interval={interval}: use 10 for the last hour, or 60 for the last day")
        most = KEPT[interval]
        rows = min(most, most if moments is None else moments + 1)
        first = self._shard(name).bindings
        text, found = yield Parallel((ShardBindings(first).table(0), first.history(interval, rows)))
        further = self._queue(name, text).shards.current.known[1:]
        if not further:
            return list(found[-(moments or most) :])
        others = yield Parallel(tuple(shard.bindings.history(interval, rows) for shard in further))
        return joined_moments([found, *others], interval)[-(moments or most) :]

    @verb
    def usage(self, name: str) -> Operation[QueueUsage]:
        """How many workers are alive, how many tenants have jobs, and the jobs of the tenant with the most waiting.

        Four round trips, O(1) in jobs and tenants. With shards, most of them to each node; a tenant that has jobs in
        several shards counts once in each.
        """
        shards = (yield from self._open_any(name)).shards.current.known
        pages = yield Parallel(tuple(shard.bindings.scan_tenants("0", TENANTS_COMPARED) for shard in shards))
        overviews = yield Parallel(tuple(shard.bindings.overview(1) for shard in shards))
        workers = yield Parallel(tuple(shard.bindings.workers(WORKERS_COUNTED) for shard in shards))
        tenants: dict[str, list[TenantCounts]] = {}
        for tenant, counts in (row for _, page in pages for row in page):
            tenants.setdefault(tenant, []).append(counts)
        totals = map(total_tenant_counts, tenants.values())
        largest = max(totals, key=lambda one: (one.waiting, one.running), default=None)
        joined = joined_workers(name, (one for registered in workers for one in registered))
        alive = [one for one in joined if one.name and one.lease > 0]
        busy, capacity = sum(one.held for one in alive), sum(one.concurrency for one in alive)
        memory = sum(known) if (known := [one.memory for one in alive if one.memory is not None]) else None
        tenants_of_all = sum(one.tenants for one in overviews)
        return QueueUsage(len(alive), tenants_of_all, largest or TenantCounts(), busy, capacity, memory)
