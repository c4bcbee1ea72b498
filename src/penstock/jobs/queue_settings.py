"""The settings of a queue, which the server keeps: what it accepts, what it keeps, and in which order it serves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from penstock.core.operations import Driver, Operation, RoundTrip, verb
from penstock.jobs.shard import Shard
from penstock.jobs.shards import ShardMap, set_all

if TYPE_CHECKING:
    from penstock.jobs.retention import Retention


class QueueSettings:
    """The verbs of `Queue` that change its settings."""

    shards: ShardMap
    first: Shard
    _driver: Driver

    @verb
    def bound(self, *, jobs: int | None = None, per_tenant: int | None = None) -> Operation[None]:
        """Refuse new jobs beyond these numbers of unfinished ones: of the queue, and of each tenant. None: no bound.

        A job is unfinished while it waits or runs; dead letters and durable jobs that sleep or wait for a signal do
        not count. `enqueue`, `put` and their bulks raise QueueFull. Staged calls, flows, schedules, retries and
        requeued dead letters pass. The server keeps the bounds, and `count()` has them.

        Raises ValueError for numbers out of range, and for a `per_tenant` above `jobs`. One round trip. With shards,
        one for each: each takes its part of `jobs`, so a shard may refuse a job while others have room. Then `jobs` is
        at least their number, and `per_tenant` needs tenants that are not spread; else it raises ConfigurationError.
        """
        from penstock.jobs.bounds import set_bound

        return set_bound(self.shards, jobs, per_tenant)

    @verb
    def keep(
        self,
        *,
        dead_letters: int | None = None,
        dead_age: float | None = None,
        results: int | None = None,
        finished: int | None = None,
        finished_age: float | None = None,
        arguments: bool = False,
    ) -> Operation[None]:
        """Limit what the queue keeps of jobs that have ended; see `Retention`. None: no limit; for rows, the default.

        The server keeps these settings. The next turns of workers, and other scripts that settle jobs, remove what is
        beyond the limits, some hundred at a time. Without `arguments`, those that were kept are deleted at once. Raises
        BadCall for numbers out of range. One round trip; with shards, for each, and the numbers hold for each shard.
        """
        from penstock.jobs.retention import Retention

        kept = Retention(
            dead_letters=dead_letters,
            dead_age=dead_age,
            results=results,
            finished=finished,
            finished_age=finished_age,
            arguments=arguments,
        )
        yield from set_all(self.shards, lambda shard: kept.store(shard.bindings))

    @verb
    def kept(self) -> RoundTrip[Retention]:
        """The limits that `keep` has set. One round trip."""
        from penstock.jobs.retention import Retention

        return Retention.of(self.first.bindings)

    @verb
    def due_first(self, on: bool = True) -> Operation[None]:
        """Let delayed jobs that are due go before the other jobs of their tenant and priority.

        The server keeps this setting. One round trip; with shards, for each.
        """
        return self._switch("due_first", on)

    @verb
    def fair_by_time(self, on: bool = True) -> Operation[None]:
        """Let the tenants share the time of the workers equally, instead of the number of jobs.

        A claim costs a tenant one service, which pays for 10 ms; the end of the run charges the rest of the time since
        the claim. So a tenant with long jobs is served less often. Weights hold as before. The server keeps this
        setting. One round trip; with shards, for each.
        """
        return self._switch("by_time", on)

    def _switch(self, name: Literal["due_first", "by_time"], on: bool) -> Operation[None]:
        yield from set_all(self.shards, lambda shard: shard.bindings.set_switch(name, on))
