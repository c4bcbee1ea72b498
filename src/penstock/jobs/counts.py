"""The answers of a queue to an operator: counts of its jobs, of one tenant's jobs, and its workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from struct import Struct
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Counts:
    """The jobs of a queue by state, and totals since the queue was first used.

    Now: `ready`, `delayed`, `running` and `dead` jobs, and `parked` ones, which wait for a place in a limit
    or belong to a paused task or tenant; `dependent` ones, which wait for other jobs; and `sleeping` ones, durable jobs
    that sleep or wait for a signal. `unfinished`: those that count for a bound.
    `oldest`: seconds since the oldest ready job became ready. `oldest_parked`: seconds for which the oldest parked
    job has waited, since it would have been ready.

    Totals: jobs that `entered` the queue; runs that `completed`, were `retried`, `failed` (the job became a dead
    letter), were `dropped`, or `lost` (their worker died); and jobs that were `cancelled` or `expired` while they
    waited. A run that is postponed (by RetryLater), and a job that is handed back, count in none of them.

    Bounds (see `Queue.bound`): `bound` and `tenant_bound`, or None, and how many jobs they have `refused`, since the
    first of them was set.

    Switches: `paused`, `due_first` (see `Queue.due_first`) and `by_time` (see `Queue.fair_by_time`). `paused_scopes`:
    how many tasks and tenants are paused, or still have parked jobs after their pause (see `Queue.pauses`).
    """

    ready: int = 0
    delayed: int = 0
    running: int = 0
    dead: int = 0
    completed: int = 0
    retried: int = 0
    failed: int = 0
    dropped: int = 0
    cancelled: int = 0
    expired: int = 0
    lost: int = 0
    oldest: float = field(default=0.0, kw_only=True)
    oldest_parked: float = field(default=0.0, kw_only=True)
    paused: bool = field(default=False, kw_only=True)
    due_first: bool = field(default=False, kw_only=True)
    parked: int = field(default=0, kw_only=True)
    paused_scopes: int = field(default=0, kw_only=True)
    entered: int = field(default=0, kw_only=True)
    dependent: int = field(default=0, kw_only=True)
    by_time: bool = field(default=False, kw_only=True)
    sleeping: int = field(default=0, kw_only=True)
    bound: int | None = field(default=None, kw_only=True)
    tenant_bound: int | None = field(default=None, kw_only=True)
    refused: int = field(default=0, kw_only=True)

    @property
    def waiting(self) -> int:
        """Ready, delayed, sleeping and parked jobs."""
        return self.ready + self.delayed + self.sleeping + self.parked

    @property
    def unfinished(self) -> int:
        """The jobs that count for a bound: ready, delayed, running, parked and dependent ones."""
        return self.ready + self.delayed + self.running + self.parked + self.dependent

    @property
    def is_full(self) -> bool:
        """Whether the queue refuses every new job. With shards, some of them may refuse jobs before."""
        return self.bound is not None and self.unfinished >= self.bound


def read_counts(reply: Sequence[Any]) -> Counts:
    """The counts of a shard, from the reply of its script."""
    now, oldest, *rest, oldest_parked = reply
    *sums, paused, due_first, parked, scopes, entered, dependent, by_time, sleeping, bound, of_tenant, refused = (
        int(n or 0) for n in rest
    )

    def age(second: Any) -> float:
        return 0.0 if second is None else max(0.0, now / 1000 - int(second))

    return Counts(
        *sums,
        oldest=age(oldest),
        oldest_parked=age(oldest_parked),
        paused=bool(paused),
        due_first=bool(due_first),
        parked=parked,
        paused_scopes=scopes,
        entered=entered,
        dependent=dependent,
        by_time=bool(by_time),
        sleeping=sleeping,
        bound=bound or None,
        tenant_bound=of_tenant or None,
        refused=refused,
    )


def total_counts(shards: Sequence[Counts]) -> Counts:
    """The counts of a queue from those of its shards."""
    if len(shards) == 1:
        return shards[0]
    sums = {one.name: sum(getattr(shard, one.name) for shard in shards) for one in fields(Counts) if not one.kw_only}
    return Counts(
        **sums,
        oldest=max(shard.oldest for shard in shards),
        oldest_parked=max(shard.oldest_parked for shard in shards),
        paused=all(shard.paused for shard in shards),
        due_first=all(shard.due_first for shard in shards),
        parked=sum(shard.parked for shard in shards),
        paused_scopes=max(shard.paused_scopes for shard in shards),
        entered=sum(shard.entered for shard in shards),
        dependent=sum(shard.dependent for shard in shards),
        by_time=all(shard.by_time for shard in shards),
        sleeping=sum(shard.sleeping for shard in shards),
        bound=sum(shard.bound or 0 for shard in shards) or None,
        tenant_bound=max(shard.tenant_bound or 0 for shard in shards) or None,
        refused=sum(shard.refused for shard in shards),
    )


@dataclass(frozen=True, slots=True)
class TenantCounts:
    """The jobs of one tenant by state, seconds since its oldest ready job became ready, and its weight."""

    ready: int = 0
    delayed: int = 0
    running: int = 0
    dead: int = 0
    oldest: float = 0.0
    weight: float = 1.0
    parked: int = 0
    dependent: int = 0
    sleeping: int = 0

    @property
    def waiting(self) -> int:
        """Ready, delayed, sleeping and parked jobs."""
        return self.ready + self.delayed + self.sleeping + self.parked


def total_tenant_counts(shards: Sequence[TenantCounts]) -> TenantCounts:
    """The counts of a tenant from those of the shards that hold its jobs."""
    summed = ("ready", "delayed", "running", "dead", "parked", "dependent", "sleeping")
    sums = {name: sum(getattr(shard, name) for shard in shards) for name in summed}
    return replace(shards[-1], **sums, oldest=max(shard.oldest for shard in shards))


@dataclass(frozen=True, slots=True)
class Outgoing:
    """The entries in the outbox of a queue for one other queue: calls, and reports to jobs that wait there.

    A worker of the queue delivers them.

    entries  how many
    oldest   seconds since the oldest was written; more than a few: no worker serves the queue, or the other queue
             cannot be reached
    """

    queue: str
    entries: int
    oldest: float


@dataclass(frozen=True, slots=True)
class QueueOverview:
    """Facts about a queue besides its counts.

    used           whether the queue ever had a job, a worker or a setting
    tenants        how many tenants have jobs
    due_in         seconds until the next delayed job is due; None: no job is delayed
    scanned        how many delayed jobs, the earliest first, were searched for jobs of unknown tasks
    unknown_tasks  those of them that a worker handed back because it does not know their task: key -> reason
    outbox         the entries for each other queue
    """

    used: bool
    tenants: int
    due_in: float | None
    scanned: int
    unknown_tasks: dict[str, bytes]
    outbox: list[Outgoing]


def total_outbox(entries: Sequence[Outgoing]) -> list[Outgoing]:
    """The outbox of a queue from those of its shards."""
    found: dict[str, Outgoing] = {}
    for one in entries:
        old = found.get(one.queue, Outgoing(one.queue, 0, 0.0))
        found[one.queue] = Outgoing(one.queue, old.entries + one.entries, max(old.oldest, one.oldest))
    return sorted(found.values(), key=lambda one: one.queue)


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker process of a queue, or a program without a worker whose `claim` waits or has jobs to settle."""

    queue: str
    name: str
    """`host:pid`; "" for a program without a worker."""
    concurrency: int
    since: float | None
    """When it took its first turn, in seconds since 1970 by the server's clock; None for a program."""
    held: int
    """Jobs that it has claimed and not settled."""
    lease: float
    """Seconds until its lease runs out, if it sends no further heartbeat. Below 0: it ran out."""
    release: str = ""
    """The release of the app that it runs: as it was given, or a digest of its tasks; "" for a program."""
    asked: str = ""
    """What it was asked to do: `quiet`, which is to claim no more jobs, or `stop`; "" for nothing."""
    memory: int | None = None
    """Bytes that its process had in RAM at its last turn or heartbeat, without the processes of isolated tasks. None:
    not known, for a program, and for a worker on a system without /proc."""


_COUNTS: Final = Struct(">7I")


def tenant_counts(reply: Sequence[Any]) -> TenantCounts:
    """The reply about one tenant."""
    now, oldest, ready, delayed, running, dead, weight, parked, dependent, sleeping = reply
    age = max(0, now - oldest) / 1000 if oldest is not None else 0.0
    return TenantCounts(ready, delayed, running, dead, age, float(weight or 1), parked, dependent, sleeping)


def tenant_page(reply: Sequence[Any]) -> tuple[str, list[tuple[str, TenantCounts]]]:
    """The reply with a page of tenants: the next cursor, and their counts by name."""
    cursor, found = reply
    rows = zip(found[0::2], found[1::2], strict=True)
    return cursor.decode(), [(tenant.decode(errors="replace"), _packed_counts(packed)) for tenant, packed in rows]


@lru_cache(maxsize=1024)  # thousands of tenants have few different counts
def _packed_counts(packed: bytes) -> TenantCounts:
    """Four numbers, and more if jobs are parked, wait for others or sleep."""
    ready, delayed, running, dead, *rest = _COUNTS.unpack(packed.ljust(_COUNTS.size, b"\0"))
    return TenantCounts(ready, delayed, running, dead, 0.0, 1.0, *rest)


def read_overview(reply: Sequence[Any]) -> QueueOverview:
    used, tenants, due, scanned, outbox, *rest = reply
    waiting = [Outgoing(q.decode(), n, ms / 1000) for q, n, ms in zip(*[iter(outbox)] * 3, strict=True)]
    unknown = {job_id.decode(errors="replace"): why for job_id, why in zip(rest[0::2], rest[1::2], strict=True)}
    return QueueOverview(bool(used), tenants, due / 1000 if due >= 0 else None, scanned, unknown, waiting)
