"""The part of the inspector that is about queues as a whole: their counts, tenants, workers, limits and dead letters.

A queue with shards counts as one: each answer is that of all its shards together. The name of a shard, such as
`mail~1`, selects that shard alone.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import replace

from penstock.core.operations import Operation, Parallel, RoundTrip, verb
from penstock.errors import PenstockError
from penstock.jobs.claims import Failure
from penstock.jobs.counts import Counts, TenantCounts, WorkerInfo, total_counts, total_outbox, total_tenant_counts
from penstock.jobs.dead_letters import DeadLetter, dead_letter
from penstock.jobs.limits import Limit, LimitInfo
from penstock.jobs.pauses import joined_pauses
from penstock.jobs.retention import Retention
from penstock.jobs.shard import Shard
from penstock.jobs.shard_bindings import ShardBindings
from penstock.jobs.shard_changes import add_shards, spread_tenant
from penstock.jobs.shard_table import whole_name
from penstock.jobs.status import Status, status_of
from penstock.ops.answers import (
    ActionOutcome,
    DeadLetterCount,
    DeadLetterPage,
    QueueDetail,
    QueueView,
    TenantView,
    UnknownTaskJob,
)
from penstock.ops.health import workers_here
from penstock.ops.job_search import WORKERS_PER_QUEUE, JobSearchInspector
from penstock.ops.probe import queue_names

JOBS_EXAMINED = 200
"""How many delayed jobs, earliest first, `queue` searches in each shard for tasks that no worker knows."""

TENANTS_EXAMINED = 10_000
"""How many tenants `queue` searches for those with the most jobs: ten round trips."""

TENANTS_PER_ROUND_TRIP = 1000

_CHANGED_TOGETHER = 500
"""Dead letters that one round trip requeues or removes."""


class QueueInspector(JobSearchInspector):
    """Queries and actions on whole queues; see `Inspector`. With shards, each costs its round trips for each shard."""

    @verb
    def queue_names(self) -> Operation[list[str]]:
        """The queues that were ever used, sorted. One round trip for each 1000 keys of the server."""
        return sorted({whole_name(name) for name in (yield from queue_names(self._app.settings.prefix))})

    @verb
    def queues(self, names: Sequence[str] | None = None) -> Operation[list[QueueView]]:
        """Every queue that was ever used, sorted by name; or those of these names, with one round trip for each.

        Without `names`, one round trip more for each 1000 keys of the server, whichever app they belong to: too much
        for a path that serves work (docs/decisions/0010).
        """
        views = []
        for name in (yield from self.queue_names.within()) if names is None else names:
            first = self._shard(name).bindings
            counts, table = yield Parallel((first.counts(), ShardBindings(first).table(0)))
            further = self._with_table(name, table).shards.current.known[1:]
            others = (yield Parallel(tuple(one.bindings.counts() for one in further))) if further else []
            views.append(QueueView(name, total_counts([counts, *others])))
        return views

    @verb
    def queue(self, name: str, *, tenants: int = 10) -> Operation[QueueDetail]:
        """One queue: its counts, its `tenants` largest tenants, and jobs whose task no worker knows.

        A few round trips, and one for each 1000 of the first 10,000 tenants. Raises PenstockError for a queue that was
        never used.
        """
        opened = yield from self._open_used(name)
        shards, table = opened.shards.current.known, opened.shards.current.table
        overviews = yield Parallel(tuple(one.bindings.overview(JOBS_EXAMINED) for one in shards))
        counts = total_counts((yield Parallel(tuple(one.bindings.counts() for one in shards))))
        examined, largest = yield from self._largest_tenants(shards, tenants)
        unknown = [
            UnknownTaskJob(f"{shard.name}:{key}", Failure.read(why).reason)
            for shard, overview in zip(shards, overviews, strict=True)
            for key, why in overview.unknown_tasks.items()
        ]
        pauses = []
        if counts.paused_parts:
            pauses = joined_pauses((yield Parallel(tuple(one.bindings.pauses() for one in shards))))
        due = [overview.due_in for overview in overviews if overview.due_in is not None]
        known = sum(overview.tenants for overview in overviews)
        return QueueDetail(
            name,
            counts,
            min(due, default=None),
            max(known, examined),
            largest,
            examined,
            unknown,
            sum(overview.scanned for overview in overviews),
            pauses,
            len(shards),
            table.before,
            (yield Retention.of(shards[0].bindings)),
            total_outbox([one for part in overviews for one in part.outbox]),
            {tenant: number for tenant, number in table.spread if number > 1},
        )

    def _largest_tenants(self, shards: Sequence[Shard], n: int) -> Operation[tuple[int, list[TenantView]]]:
        """How many tenants were examined, and the `n` largest of them."""
        examined: dict[str, TenantCounts] = {}
        for shard in shards:
            cursor, seen = "0", dict[str, TenantCounts]()
            while True:
                cursor, some = yield shard.bindings.scan_tenants(cursor, TENANTS_PER_ROUND_TRIP)
                seen |= some
                if cursor == "0" or len(seen) >= TENANTS_EXAMINED / len(shards):
                    break
            for tenant, counts in seen.items():  # one that moves may have jobs in two shards
                examined[tenant] = total_tenant_counts([examined[tenant], counts]) if tenant in examined else counts
        largest = heapq.nlargest(n, examined.items(), key=lambda pair: (pair[1].waiting, pair[1].running, pair[1].dead))
        names = [name for name, _ in largest]
        parts = yield Parallel(tuple(shard.bindings.tenant_counts(name) for name in names for shard in shards))
        found = [total_tenant_counts(parts[at : at + len(shards)]) for at in range(0, len(parts), len(shards))]
        return len(examined), [TenantView(*pair) for pair in zip(names, found, strict=True)]

    @verb
    def split(self, name: str, shards: int) -> Operation[bool]:
        """Give a queue more shards; see `Queue.add_shards`. Raises PenstockError for a queue that was never used."""
        queue = yield from self._open_used(name)
        if queue.shards.named is None:
            queue.shards.split(1)
        return (yield from add_shards(queue.shards, shards))

    @verb
    def spread(self, name: str, tenant: str, shards: int) -> Operation[None]:
        """Spread the new jobs of a tenant over several shards; see `Tenant.spread`. Raises what `split` raises."""
        yield from spread_tenant((yield from self._open_used(name)).shards, tenant, shards)

    @verb
    def weigh(self, name: str, tenant: str, weight: float) -> Operation[None]:
        """Give a tenant more or fewer turns; see `Tenant.weigh`. Raises PenstockError for an unused queue."""
        yield from (yield from self._open_used(name)).tenant(tenant).weigh.within(weight)

    @verb
    def pause(
        self, name: str, on: bool = True, *, task: str | None = None, tenant: str | None = None
    ) -> Operation[Counts]:
        """Pause or resume a queue, or one of its tasks or tenants; returns the queue's counts.

        Raises PenstockError for a queue that was never used.
        """
        queue = yield from self._open_used(name)
        yield from (queue.pause if on else queue.resume).within(task=task, tenant=tenant)
        return (yield from queue.count.within())

    @verb
    def order(self, name: str, *, by_time: bool | None = None, due_first: bool | None = None) -> Operation[Counts]:
        """Switch `Queue.fair_by_time` and `Queue.due_first`; None leaves one as it is. Returns the queue's counts.

        Raises PenstockError for a queue that was never used.
        """
        queue = yield from self._open_used(name)
        if by_time is not None:
            yield from queue.fair_by_time.within(by_time)
        if due_first is not None:
            yield from queue.due_first.within(due_first)
        return (yield from queue.count.within())

    @verb
    def keep(self, name: str, kept: Retention) -> Operation[None]:
        """Limit what a queue keeps of jobs that have ended. Raises PenstockError for a queue that was never used."""
        yield from (yield from self._open_used(name)).retain(kept)

    @verb
    def limits(self, name: str) -> Operation[list[LimitInfo]]:
        """The limits of a queue. Raises PenstockError for a queue that was never used."""
        return (yield from (yield from self._open_used(name)).limits.within())

    @verb
    def set_limit(self, name: str, limit: str, numbers: Limit) -> Operation[None]:
        """Change the numbers of a limit; see `Queue.set_limit`."""
        yield from (yield from self._open(name)).set_limit.within(limit, numbers)

    @verb
    def waiting(self, name: str, tenant: str | None = None) -> Operation[int]:
        """How many jobs a purge would cancel. Raises PenstockError for a queue that was never used."""
        shards = (yield from self._open_used(name)).shards.current.known
        counts = yield Parallel(tuple(shard.counts_of(tenant) for shard in shards))
        return sum(one.waiting for one in counts)

    @verb
    def purge(self, name: str, tenant: str | None = None, *, most: int | None = None) -> Operation[int]:
        """Cancel the waiting jobs of a queue, or of one tenant: at most `most`, the number that `waiting` returned.

        Returns how many were cancelled. One round trip for each 250.
        """
        total = 0
        for shard in (yield from self._shards(name)):
            left = None if most is None else most - total
            total += yield from shard.purge(tenant, left)
        return total

    # --- workers ---

    @verb
    def workers(self, queue: str | None = None) -> Operation[list[WorkerInfo]]:
        """The workers of one queue, or of every queue, at most 1000 of each; with shards, each worker once.

        Two round trips for one queue; without `queue`, the cost of `queues`.

        Raises PenstockError for a queue that was never used.
        """
        workers: list[WorkerInfo] = []
        for name in [queue] if queue else (yield from self.queue_names.within()):
            found: dict[str, WorkerInfo] = {}
            opened = yield from self._open(name) if queue is None else self._open_used(name)
            for shard in opened.shards.current.known:
                for one in (yield shard.bindings.workers(WORKERS_PER_QUEUE)):
                    if not one.name:
                        workers.append(replace(one, queue=name))
                    elif known := found.get(one.name):
                        found[one.name] = replace(known, held=known.held + one.held, lease=max(known.lease, one.lease))
                    else:
                        found[one.name] = replace(one, queue=name)
            workers += found.values()
        return workers

    @verb
    def workers_here(self, queue: str) -> Operation[list[str]]:
        """The workers of a queue that are alive on this machine, as `host:pid` (see `health.py`)."""
        return workers_here(self._app, queue)

    # --- dead letters ---

    @verb
    def count_dead(self, name: str, older: float = 0.0) -> Operation[DeadLetterCount]:
        """How many jobs of a queue died more than `older` seconds ago, or at any time.

        Two round trips. Raises PenstockError for a queue that was never used.
        """
        shards = (yield from self._open_used(name)).shards.current.known
        found = yield Parallel(tuple(one.bindings.count_dead(older) for one in shards))
        return DeadLetterCount(sum(count for _, count in found), max(until for until, _ in found))

    @verb
    def list_dead(self, name: str, limit: int = 50, offset: int = 0) -> Operation[DeadLetterPage]:
        """Some of a queue's dead letters, the latest first. Raises PenstockError for a queue that was never used."""
        queue = yield from self._open_used(name)
        counts = yield from queue.count.within()
        return DeadLetterPage(counts.dead, offset, (yield from queue.dead.list.within(limit, offset)))

    @verb
    def show_dead(self, job_id: str) -> Operation[DeadLetter]:
        """One dead letter. One round trip. Raises PenstockError for a job that is not a dead letter."""
        shard, key = self._split(job_id)
        found = yield shard.bindings.show(key)
        status = status_of(found)
        if status is not Status.DEAD or found.record is None:
            raise PenstockError(f"job {job_id} is not a dead letter: it is {status}")
        return dead_letter(shard, key, found.record.since / 1000, found.record, found.failure)

    @verb
    def requeue_dead(self, *ids: str) -> Operation[list[ActionOutcome]]:
        """Run dead letters again, with their attempts at zero. Two round trips for each."""
        return self._each(ids, lambda shard, key: shard.bindings.requeue([key]).then(bool))

    @verb
    def remove_dead(self, *ids: str) -> Operation[list[ActionOutcome]]:
        """Delete dead letters for good. Two round trips for each."""
        return self._each(ids, lambda shard, key: shard.bindings.remove_dead([key]).then(bool))

    @verb
    def requeue_all_dead(self, name: str, until: int = 0) -> Operation[int]:
        """Run again every dead letter of a queue that died up to `until` (milliseconds since 1970; 0: now).

        Returns how many. Two round trips for each 500.
        """
        return self._all_dead(name, until, lambda shard, keys: shard.bindings.requeue(keys))

    @verb
    def remove_all_dead(self, name: str, until: int = 0) -> Operation[int]:
        """Delete every dead letter of a queue that died up to `until` (milliseconds since 1970; 0: now).

        Returns how many. Two round trips for each 500.
        """
        return self._all_dead(name, until, lambda shard, keys: shard.bindings.remove_dead(keys))

    def _all_dead(
        self, name: str, until: int, act: Callable[[Shard, Sequence[bytes]], RoundTrip[int]]
    ) -> Operation[int]:
        total = 0
        for shard in (yield from self._open_used(name)).shards.current.known:
            latest = until
            previous: list[bytes] = []
            while True:
                latest, keys = yield shard.bindings.dead_until(latest, _CHANGED_TOGETHER)
                if not keys or keys == previous:  # no dead letters are left, or the action does not work on the rest
                    break
                total += yield act(shard, keys)
                previous = keys
        return total
