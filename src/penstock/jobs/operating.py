"""The verbs of a queue for its operator: count, purge, pause, list its workers. With shards, they act on all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, Self

from penstock.core.arguments import check_whole
from penstock.core.operations import Driver, Operation, Parallel, RoundTrip, verb
from penstock.errors import ConfigurationError
from penstock.jobs.bindings import SLICE, QueueBindings
from penstock.jobs.counts import Counts, TenantCounts, WorkerInfo, total_counts, total_tenant_counts
from penstock.jobs.options import Options

if TYPE_CHECKING:
    from penstock.jobs.limits import Limit, LimitInfo
    from penstock.jobs.pauses import Named, PausedPart
    from penstock.jobs.retention import Retention


class OperatedQueue:
    """The verbs of a queue for its operator. The operations act on one shard, the verbs on all."""

    name: str
    bindings: QueueBindings
    _driver: Driver

    @property
    def is_split(self) -> bool:
        """Whether this is a queue with shards, and not one of its further shards."""
        raise NotImplementedError

    @property
    def is_sharded(self) -> bool:
        """Whether this is a queue with shards, or one of its shards."""
        raise NotImplementedError

    def fresh_parts(self) -> Operation[Sequence[Self]]:
        """The shards that the server knows now, or the queue itself."""
        raise NotImplementedError

    def homes_of(self, tenant: str) -> Operation[Sequence[Self]]:
        """The shards that may hold jobs of a tenant, or the queue itself."""
        raise NotImplementedError

    def spread_tenant(self, tenant: str, shards: int) -> Operation[None]:
        """Spread the jobs of a tenant over several shards."""
        raise NotImplementedError

    @verb
    def count(self) -> RoundTrip[Counts] | Operation[Counts]:
        """Jobs by state, totals so far, and the age of the oldest ready job. One round trip, O(1).

        With shards: two, the second one to each node.
        """
        return self._count_parts() if self.is_split else self.bindings.counts()

    def _count_parts(self) -> Operation[Counts]:
        return (yield from count_parts((yield from self.fresh_parts())))

    @verb
    def purge(self) -> Operation[int]:
        """Cancel all waiting jobs; running jobs are not stopped. Returns how many.

        One round trip for each 250, and one to count them; with shards, for each of them.
        """
        total = 0
        for part in (yield from self.fresh_parts()):
            total += yield from part.purge_operation(None)
        return total

    def purge_operation(self, tenant: str | None, most: int | None = None) -> Operation[int]:
        """Cancel waiting jobs, of `tenant` or of all (None). `most`: how many at most; None: as many as wait now."""
        has_parked = True
        if most is None:
            counts: Counts | TenantCounts = yield self._counts_of(tenant)
            most, has_parked = counts.waiting, counts.parked > 0
        total, offset, is_done, more_listeners = 0, 0, False, False
        while has_parked and total < most and not is_done:
            cancelled, offset, is_done, more_listeners = yield self.bindings.purge_parked(
                tenant, offset, min(SLICE, most - total)
            )
            total += cancelled
        sources: tuple[Literal["delayed", "suspects"], ...] = ("delayed", "suspects")
        for source in sources:
            offset, is_done = 0, False
            while total < most and not is_done:
                limit = min(SLICE, most - total)
                cancelled, offset, is_done, more_listeners = yield self.bindings.purge(tenant, offset, limit, source)
                total += cancelled
        while more_listeners:
            *_, more_listeners = yield self.bindings.purge(tenant, 0, 0)
        return total

    def count_waiting(self, tenant: str | None) -> Operation[int]:
        """How many jobs a purge would cancel now."""
        return int((yield self._counts_of(tenant)).waiting)

    def _counts_of(self, tenant: str | None) -> RoundTrip[Counts] | RoundTrip[TenantCounts]:
        return self.bindings.counts() if tenant is None else self.bindings.tenant_counts(tenant)

    @verb
    def limits(self, keys: int = 100) -> Operation[list[LimitInfo]]:
        """The limits that jobs of this queue have used, each with up to `keys` keys that have parked jobs.

        One round trip; with shards, one to each node, and up to `keys` keys of each shard.
        """
        check_whole("limits", "keys", keys, 0, 1000, "from 0 to 1000")
        return self._limits(keys)

    def _limits(self, keys: int) -> Operation[list[LimitInfo]]:
        return (yield from limits_of((yield from self.fresh_parts()), keys))

    @verb
    def set_limit(self, name: str, limit: Limit) -> Operation[None]:
        """Change the numbers of a limit: `queue.set_limit("mail", Rate(200, per=60))`. Its key stays as it is.

        Applies at once to all hosts, until a newer release of the tasks is used. Jobs that run are not stopped; if
        there is more room, parked jobs are admitted, some hundreds at once. Raises ConfigurationError if no job of this
        queue has used a limit of this name and kind. One round trip; with shards, for each, and a shard where no job
        has used the limit yet keeps the numbers of the tasks.
        """
        yield from set_limit((yield from self.fresh_parts()), name, limit)

    @verb
    def workers(self, limit: int = 1000) -> Operation[list[WorkerInfo]]:
        """The workers of this queue, the one with the longest lease first. One round trip; with shards, for each.

        A worker serves all shards, and each has a row for it, with the jobs that it holds there.
        """
        found: list[WorkerInfo] = []
        for part in (yield from self.fresh_parts()):
            found += yield part.bindings.workers(limit)
        return sorted(found, key=lambda one: -one.lease)[:limit] if self.is_split else found

    @verb
    def pause(self, *, task: Named | str | None = None, tenant: str | None = None) -> Operation[None]:
        """Hand out no more jobs until `resume()`: of one `task`, of one `tenant`, or of the whole queue.

        Running jobs continue, and new ones are accepted. Jobs of a paused task or tenant are parked, and keep no place
        in a limit. At most 1000 tasks and tenants are paused at a time. One round trip; with shards, for each.
        """
        return self._switch_pause(True, task, tenant)

    @verb
    def resume(self, *, task: Named | str | None = None, tenant: str | None = None) -> Operation[None]:
        """Hand out jobs again: of what was paused with the same argument. One round trip; with shards, for each.

        The parked jobs of a task or tenant go first, in their order; each script hands back a hundred of them.
        """
        return self._switch_pause(False, task, tenant)

    def _switch_pause(self, on: bool, task: Named | str | None, tenant: str | None) -> Operation[None]:
        return switch_pause(self.fresh_parts, self.name, on, task, tenant)

    @verb
    def pauses(self) -> Operation[list[PausedPart]]:
        """The tasks and tenants that are paused, or that still have parked jobs after a pause.

        One round trip; with shards, one to each node.
        """
        return self._pauses()

    def _pauses(self) -> Operation[list[PausedPart]]:
        return (yield from pauses_of((yield from self.fresh_parts())))

    @verb
    def keep(
        self, *, dead_letters: int | None = None, dead_age: float | None = None, results: int | None = None
    ) -> Operation[None]:
        """Limit what the queue keeps of jobs that have ended; see `Retention`. None: no limit.

        The server keeps these settings. The next turns of workers, and other scripts that settle jobs, remove what is
        beyond the limits, some hundred at a time. Raises BadCall for numbers out of range. One round trip; with shards,
        for each, and the numbers hold for each shard.
        """
        from penstock.jobs.retention import Retention

        return self._keep(Retention(dead_letters=dead_letters, dead_age=dead_age, results=results))

    def _keep(self, kept: Retention) -> Operation[None]:
        yield from in_each_part(self.fresh_parts, lambda part: kept.store(part.bindings))

    @verb
    def kept(self) -> RoundTrip[Retention]:
        """The limits that `keep` has set. One round trip."""
        from penstock.jobs.retention import Retention

        return Retention.of(self.bindings)

    @verb
    def due_first(self, on: bool = True) -> Operation[None]:
        """Let delayed jobs that are due go before the other jobs of their tenant and priority.

        The server keeps this setting. One round trip; with shards, for each.
        """
        return self._switch_parts("due_first", on)

    @verb
    def fair_by_time(self, on: bool = True) -> Operation[None]:
        """Let the tenants share the time of the workers equally, instead of the number of jobs.

        A claim costs a tenant one turn, which stands for 10 ms; the end of the run charges the time since the claim. So
        a tenant with long jobs gets fewer turns. Weights hold as before. The server keeps this setting. One round trip;
        with shards, for each.
        """
        return self._switch_parts("by_time", on)

    def _switch_parts(self, name: Literal["due_first", "by_time"], on: bool) -> Operation[None]:
        yield from in_each_part(self.fresh_parts, lambda part: part.bindings.set_switch(name, on))


class Tenant:
    """One tenant of one queue. The tenants of a queue share its workers fairly."""

    def __init__(self, queue: OperatedQueue, name: str) -> None:
        Options(tenant=name)  # checks the name
        self._queue = queue
        self.name = name

    @property
    def _driver(self) -> Driver:
        return self._queue._driver

    @verb
    def count(self) -> Operation[TenantCounts]:
        """The tenant's jobs by state, and the age of its oldest ready job. One round trip, O(1); with shards, two."""
        homes = yield from self._queue.homes_of(self.name)
        return total_tenant_counts((yield Parallel(tuple(one.bindings.tenant_counts(self.name) for one in homes))))

    @verb
    def purge(self) -> Operation[int]:
        """Cancel the tenant's waiting jobs. Returns how many.

        One round trip for each 250, and one to count them; with shards, one more.
        """
        total = 0
        for home in (yield from self._queue.homes_of(self.name)):
            total += yield from home.purge_operation(self.name)
        return total

    @verb
    def weigh(self, weight: float) -> Operation[None]:
        """Give the tenant `weight` turns for each turn of a tenant with weight 1, the default.

        It takes effect at the tenant's next turn, and is kept in the server. From 0.001 to 1000. One round trip; with
        shards, for each.
        """
        return weigh_tenant(self._queue.fresh_parts, self.name, weight)

    @verb
    def spread(self, shards: int) -> Operation[None]:
        """Spread the tenant's jobs over this many shards of its queue, because it has more than one of them can do.

        From then on its jobs have no order among each other, and it takes its turns in each of these shards. Jobs that
        have a key of their own stay in one shard: unique jobs, jobs with limits, in flows or in batches. Jobs that are
        enqueued already stay where they are. 1 ends it for new jobs. `tenant("")` stands for jobs without a tenant.

        Raises ConfigurationError for a queue without shards, for a number beyond them, while shards are being added,
        and for more than 50 tenants. A round trip for each shard, and two more.
        """
        return self._queue.spread_tenant(self.name, shards)


def count_parts(parts: Iterable[OperatedQueue]) -> Operation[Counts]:
    """The counts of a queue, from those of its shards. One round trip to each node."""
    return total_counts((yield Parallel(tuple(part.bindings.counts() for part in parts))))


def in_each_part(
    parts: Callable[[], Operation[Sequence[OperatedQueue]]], act: Callable[[OperatedQueue], RoundTrip[None]]
) -> Operation[None]:
    """Apply a setting to all shards, also to those that are added at the same time."""
    done: list[OperatedQueue] = []
    while missing := [part for part in (yield from parts()) if part not in done]:
        for part in missing:
            yield act(part)
        done += missing
        if len(done) == 1 and not done[0].is_sharded:
            return


def weigh_tenant(
    parts: Callable[[], Operation[Sequence[OperatedQueue]]], tenant: str, weight: float
) -> Operation[None]:
    """See `Tenant.weigh`."""
    if not 0.001 <= weight <= 1000:
        raise ValueError(f"weigh({weight}): a weight is from 0.001 to 1000")
    return in_each_part(parts, lambda part: part.bindings.set_weight(tenant, weight))


def limits_of(parts: Iterable[OperatedQueue], keys: int) -> Operation[list[LimitInfo]]:
    """The limits of a queue, from those of its shards."""
    from penstock.jobs.limits import joined_limits

    return joined_limits((yield Parallel(tuple(part.bindings.limits(keys) for part in parts))))


def set_limit(parts: Sequence[OperatedQueue], name: str, limit: Limit) -> Operation[None]:
    """See `Queue.set_limit`."""
    from penstock.jobs.limits import numbers, stored_name

    found = False
    for part in parts:
        found |= yield part.bindings.set_limit(stored_name(limit, name), *numbers(limit))
    if not found:
        kind = type(limit).__name__
        raise ConfigurationError(
            f"queue {parts[0].name}: no job has used a {kind} limit named {name!r}; `limits()` lists them"
        )


def switch_pause(
    parts: Callable[[], Operation[Sequence[OperatedQueue]]],
    queue: str,
    on: bool,
    task: Named | str | None,
    tenant: str | None,
) -> Operation[None]:
    """Pause or resume a queue or a part of it. One round trip for each shard."""
    from penstock.jobs.pauses import part_name

    part = part_name(queue, task, tenant)

    def check(answer: int) -> None:
        if answer < 0:
            raise ConfigurationError(
                f"queue {queue}: 1000 tasks and tenants are paused, which is the most: pause the queue"
            )

    if part is None:
        yield from in_each_part(parts, lambda shard: shard.bindings.set_switch("paused", on))
    else:
        yield from in_each_part(parts, lambda shard: shard.bindings.pause_part(part, on).then(check))


def pauses_of(shards: Sequence[OperatedQueue]) -> Operation[list[PausedPart]]:
    """The paused parts of a queue, from those of its shards."""
    found: dict[tuple[str | None, str | None], PausedPart] = {}
    for one in (one for part in (yield Parallel(tuple(shard.bindings.pauses() for shard in shards))) for one in part):
        known = found.get((one.task, one.tenant)) or replace(one, parked=0)
        found[one.task, one.tenant] = replace(one, parked=known.parked + one.parked, paused=known.paused or one.paused)
    return sorted(found.values(), key=lambda one: (one.task is None, one.task or one.tenant or ""))
