"""Questions about queues as a whole: their counts, their tenants and their dead letters.

A queue with shards counts as one: each answer is that of all its shards together. The name of a shard, such as
`mail~1`, selects that shard alone.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from itertools import chain

from penstock.core.operations import FindNodes, Operation, Parallel, RoundTrip, verb
from penstock.errors import PenstockError
from penstock.jobs.bindings import QueueBindings
from penstock.jobs.counts import TenantCounts, total_counts, total_outbox, total_tenant_counts
from penstock.jobs.dead_groups import DeadGroups
from penstock.jobs.failures import Failures
from penstock.jobs.job_list import BulkProgress
from penstock.jobs.pauses import joined_pauses
from penstock.jobs.queue import Queue
from penstock.jobs.removal import KEPT, remove_queue, sweep
from penstock.jobs.retention import Retention
from penstock.jobs.shard import Shard
from penstock.jobs.shard_bindings import ShardBindings
from penstock.jobs.shard_table import whole_name
from penstock.ops.answers import (
    DeadLetterCount,
    DeadLetterPage,
    QueueDetail,
    QueueRates,
    QueueView,
    TenantView,
    UnknownTaskJob,
)
from penstock.ops.probe import queue_names, scan_keys
from penstock.ops.questioner import Questioner
from penstock.ops.workers import joined_workers

JOBS_EXAMINED = 200
"""How many delayed jobs, earliest first, `show` searches in each shard for tasks that no worker knows."""

TENANTS_EXAMINED = 10_000
"""How many tenants `show` searches for those with the most jobs: ten round trips."""

TENANTS_PER_ROUND_TRIP = 1000

MOST_WORKERS = 1000
"""How many workers of each shard `show` counts at most."""

_CHANGED_TOGETHER = 500
"""Dead letters that one round trip requeues or removes."""


class QueueQuestioner(Questioner):
    """Asks about queues, and acts on whole queues. With shards, each question costs its round trips for each shard."""

    @verb
    def names(self) -> Operation[list[str]]:
        """The queues that were ever used, sorted. One round trip for each 1000 keys of the server."""
        return sorted({whole_name(name) for name in (yield from queue_names(self._prefix))})

    @verb
    def all(self, names: Sequence[str] | None = None) -> Operation[list[QueueView]]:
        """Every queue that was ever used, sorted by name; with `names`, only these queues.

        One round trip for each queue. Without `names`, another for each 1000 keys of the server, whichever app they
        belong to: too much for a path that serves work (docs/decisions/0010).
        """
        views = []
        for name in (yield from self.names.within()) if names is None else names:
            first = self._shard(name).bindings
            counts, table = yield Parallel((first.counts(), ShardBindings(first).table(0)))
            further = self._queue(name, table).shards.current.known[1:]
            others = (yield Parallel(tuple(one.bindings.counts() for one in further))) if further else []
            views.append(QueueView(name, total_counts([counts, *others])))
        return views

    @verb
    def rates(self) -> Operation[list[QueueRates]]:
        """The rates among the limits of each queue, sorted by the name of the queue; only queues that have some.

        Two round trips for each queue, and one for each 1000 keys of the server.
        """
        found = []
        for name in (yield from self.names.within()):
            limits = yield from (yield from self._open_any(name)).limits.within()
            if rates := [limit for limit in limits if limit.per is not None]:
                found.append(QueueRates(name, rates))
        return found

    @verb
    def show(self, name: str, *, tenants: int = 10) -> Operation[QueueDetail]:
        """One queue: its counts, its `tenants` largest tenants, and jobs whose task no worker knows.

        A few round trips, and one for each 1000 of the first 10,000 tenants. Raises PenstockError for a queue that was
        never used.
        """
        opened = yield from self._open(name)
        shards, table = opened.shards.current.known, opened.shards.current.table
        overviews = yield Parallel(tuple(one.bindings.overview(JOBS_EXAMINED) for one in shards))
        counts = total_counts((yield Parallel(tuple(one.bindings.counts() for one in shards))))
        serving = yield Parallel(tuple(one.bindings.workers(MOST_WORKERS) for one in shards))
        examined, largest = yield from self._largest_tenants(shards, tenants)
        unknown = [
            UnknownTaskJob(f"{shard.name}:{key}", Failures.read(why, shard.settings.seal).reason)
            for shard, overview in zip(shards, overviews, strict=True)
            for key, why in overview.unknown_tasks.items()
        ]
        pauses = []
        if counts.paused or counts.paused_scopes:
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
            total_outbox([one for overview in overviews for one in overview.outbox]),
            {tenant: number for tenant, number in table.spread if number > 1},
            sum(one.lease > 0 for one in joined_workers(name, chain.from_iterable(serving))),
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
            for tenant, counts in seen.items():  # a tenant that is moving may have jobs in two shards
                examined[tenant] = total_tenant_counts([examined[tenant], counts]) if tenant in examined else counts
        largest = heapq.nlargest(n, examined.items(), key=lambda pair: (pair[1].waiting, pair[1].running, pair[1].dead))
        names = [name for name, _ in largest]
        counts = yield Parallel(tuple(shard.bindings.tenant_counts(name) for name in names for shard in shards))
        found = [total_tenant_counts(counts[at : at + len(shards)]) for at in range(0, len(counts), len(shards))]
        return len(examined), [TenantView(*pair) for pair in zip(names, found, strict=True)]

    @verb
    def open(self, name: str, *, must_exist: bool = True) -> Operation[Queue]:
        """A queue with all shards that the server has of it, for the verbs of `Queue`. One round trip.

        Raises PenstockError for a queue that was never used, if it `must_exist`.
        """
        return self._open(name) if must_exist else self._open_any(name)

    @verb
    def split(self, name: str, shards: int) -> Operation[bool]:
        """Give a queue more shards; see `Queue.add_shards`. Raises PenstockError for a queue that was never used."""
        queue = yield from self._open(name)
        if queue.shards.named is None:
            queue.shards.split(1)
        return (yield from queue.add_shards.within(shards))

    @verb
    def waiting(self, name: str, tenant: str | None = None) -> Operation[int]:
        """How many jobs a purge would cancel. Raises PenstockError for a queue that was never used."""
        shards = (yield from self._open(name)).shards.current.known
        counts = yield Parallel(tuple(shard.counts_of(tenant) for shard in shards))
        return sum(one.waiting for one in counts)

    @verb
    def purge(self, name: str, tenant: str | None = None, *, most: int | None = None) -> Operation[int]:
        """Cancel the waiting jobs of a queue, or of one tenant: at most `most`, the number that `waiting` returned.

        Returns how many were cancelled. One round trip for each 250.
        """
        total = 0
        for shard in (yield from self._open_any(name)).shards.current.known:
            left = None if most is None else most - total
            total += yield from shard.purge(tenant, left)
        return total

    @verb
    def remove(self, name: str) -> Operation[None]:
        """Delete an empty queue; see `Queue.remove`. Also deletes what has a time to live, such as buckets of rates.

        Raises PenstockError for a queue that was never used, and for one that is not empty or that is in the outbox of
        another queue. One round trip for each queue, and two for each 1000 keys of the server.
        """
        opened = yield from self._open(name)
        for other in (yield from queue_names(self._prefix)):
            overview = yield self._shard(other).bindings.overview(1)
            for entry in overview.outbox:
                if whole_name(entry.queue) == name:
                    raise PenstockError(
                        f"queue {name} is not empty: {entry.entries:,} entries for it are in the outbox of {other}"
                    )
        shards = opened.shards.current.known
        yield from remove_queue(opened.shards)
        for shard in shards:
            yield from self._sweep(shard.bindings)

    def _sweep(self, bindings: QueueBindings) -> Operation[None]:
        """Delete what is left of a queue that was removed, unless somebody has used it again."""
        base = bindings.keys.base
        for node in (yield FindNodes(base)):
            found, _ = yield from scan_keys(node, bindings.keys.pattern)
            names = sorted(key.removeprefix(base.encode()) for key in found)
            names = [one for one in names if not one.decode(errors="replace").startswith(KEPT)]
            for start in range(0, len(names), _CHANGED_TOGETHER):
                if not (yield sweep(bindings, names[start : start + _CHANGED_TOGETHER])):
                    return

    # --- dead letters ---

    @verb
    def count_dead(self, name: str, older: float = 0.0) -> Operation[DeadLetterCount]:
        """How many jobs of a queue died more than `older` seconds ago, or at any time.

        Two round trips. Raises PenstockError for a queue that was never used.
        """
        shards = (yield from self._open(name)).shards.current.known
        found = yield Parallel(tuple(one.bindings.count_dead(older) for one in shards))
        return DeadLetterCount(sum(count for _, count in found), max(until for until, _ in found))

    @verb
    def list_dead(
        self, name: str, limit: int = 50, offset: int = 0, *, tag: str | None = None
    ) -> Operation[DeadLetterPage]:
        """Some of a queue's dead letters, the latest first. Raises PenstockError for a queue that was never used.

        tag  only those with this tag; see `DeadLetters.list`
        """
        queue = yield from self._open(name)
        counts = yield from queue.count.within()
        return DeadLetterPage(counts.dead, offset, (yield from queue.dead.list.within(limit, offset, tag=tag)))

    @verb
    def requeue_all_dead(self, name: str, until: int = 0) -> Operation[int]:
        """Requeue every dead letter of a queue that died up to `until` (milliseconds since 1970; 0: now).

        Returns how many. Two round trips for each 500.
        """
        return self._all_dead(name, until, lambda shard, keys: shard.bindings.requeue(keys))

    @verb
    def remove_all_dead(self, name: str, until: int = 0) -> Operation[int]:
        """Delete every dead letter of a queue that died up to `until` (milliseconds since 1970; 0: now).

        Returns how many. Two round trips for each 500.
        """
        return self._all_dead(name, until, lambda shard, keys: shard.bindings.remove_dead(keys))

    @verb
    def dead_groups(self, name: str, most: int = 10_000) -> Operation[DeadGroups]:
        """The dead letters of a queue by task and error; see `DeadLetters.groups`.

        Raises PenstockError for a queue that was never used.
        """
        return (yield from (yield from self._open(name)).dead.groups.within(most))

    @verb
    def requeue_dead_group(self, name: str, key: str) -> Operation[BulkProgress]:
        """Requeue the dead letters of one group; see `DeadLetters.requeue_group`."""
        return (yield from (yield from self._open(name)).dead.requeue_group.within(key))

    @verb
    def remove_dead_group(self, name: str, key: str) -> Operation[BulkProgress]:
        """Delete the dead letters of one group."""
        return (yield from (yield from self._open(name)).dead.remove_group.within(key))

    def _all_dead(
        self, name: str, until: int, act: Callable[[Shard, Sequence[bytes]], RoundTrip[int]]
    ) -> Operation[int]:
        total = 0
        for shard in (yield from self._open(name)).shards.current.known:
            latest = until
            previous: list[bytes] = []
            while True:
                latest, keys = yield shard.bindings.dead_until(latest, _CHANGED_TOGETHER)
                if not keys or keys == previous:  # no dead letters are left, or the action does not work on the rest
                    break
                total += yield act(shard, keys)
                previous = keys
        return total
