"""One tenant of one queue: its counts, its weight, and over how many shards it is spread."""

from __future__ import annotations

from penstock.core.arguments import check_number
from penstock.core.operations import Driver, Operation, Parallel, verb
from penstock.jobs.counts import TenantCounts, total_tenant_counts
from penstock.jobs.options import Options
from penstock.jobs.shards import ShardMap, set_all


class Tenant:
    """One tenant of one queue. The tenants of a queue share its workers fairly."""

    def __init__(self, shards: ShardMap, name: str) -> None:
        Options(tenant=name)  # checks the name
        self._shards = shards
        self.name = name

    @property
    def _driver(self) -> Driver:
        return self._shards.first._driver

    @verb
    def count(self) -> Operation[TenantCounts]:
        """The tenant's jobs by state, and the age of its oldest ready job. One round trip, O(1); with shards, two."""
        shards = (yield from self._shards.refresh()).may_hold(self.name)
        return total_tenant_counts((yield Parallel(tuple(one.bindings.tenant_counts(self.name) for one in shards))))

    @verb
    def purge(self) -> Operation[int]:
        """Cancel the tenant's waiting jobs. Returns how many.

        One round trip for each 250, and one to count them; with shards, one more.
        """
        total = 0
        for shard in (yield from self._shards.refresh()).may_hold(self.name):
            total += yield from shard.purge(self.name)
        return total

    @verb
    def weigh(self, weight: float) -> Operation[None]:
        """Serve the tenant `weight` times as often as a tenant of weight 1, the default.

        It takes effect when the tenant is served next, and is kept in the server. From 0.001 to 1000. One round trip;
        with shards, for each.
        """
        check_number("weigh", "weight", weight, 0.001, 1000, "from 0.001 to 1000")
        yield from set_all(self._shards, lambda shard: shard.bindings.set_weight(self.name, weight))

    @verb
    def spread(self, shards: int) -> Operation[None]:
        """Spread the tenant's jobs over this many shards of its queue, because it has more of them than one shard can
        handle.

        From then on its jobs have no order among each other, and it is served in each of these shards. Jobs that have a
        key of their own stay in one shard: unique jobs, jobs with limits, in flows or in batches. Jobs that are
        enqueued already stay where they are. With 1, new jobs are not spread any longer. `tenant("")` stands for jobs
        without a tenant.

        Raises ConfigurationError for a queue without shards, for a number beyond them, while shards are being added,
        and for more than 50 tenants. A round trip for each shard, and two more.
        """
        from penstock.jobs.shard_changes import spread_tenant

        return spread_tenant(self._shards, self.name, shards)
