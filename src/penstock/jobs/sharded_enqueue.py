"""Enqueueing in a queue with shards: each job in the shard of its tenant, or in another if that refuses it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.core.operations import Operation, Parallel, RoundTrip
from penstock.errors import ConfigurationError
from penstock.jobs import effort
from penstock.jobs.job import Job, becomes_double_of
from penstock.jobs.record import Record
from penstock.jobs.shard import Shard
from penstock.jobs.shard_bindings import Elsewhere, ShardBindings
from penstock.jobs.shards import ShardMap, ShardSnapshot

if TYPE_CHECKING:
    from penstock.jobs.bounds import Refusals
    from penstock.jobs.unique import Unique

_SENT_TOGETHER: Final = 250
"""Jobs without limits and unique keys that one round trip to a shard brings while a change of shards is open."""

_PIPELINED: Final = 500
_PIPELINED_TENANTS: Final = 250
"""Jobs without limits and unique keys, and tenants of them, in one pipeline to a node."""


class ShardChunk(NamedTuple):
    """Jobs that one call brings to a shard.

    moving    all of their tenants are to move, or have moved
    refusals  notes the jobs that a bound refuses; None: the first refusal is raised
    """

    shard: Shard
    drafts: Sequence[tuple[str, bytes]]
    jobs: Sequence[Job[Any]]
    moving: bool = False
    refusals: Refusals | None = None

    def call(self, table: str, *, durable: bool = False) -> RoundTrip[list[int] | Elsewhere]:
        return ShardBindings(self.shard.bindings).enqueue(
            [text for draft in self.drafts for text in draft],
            table,
            moving=self.moving,
            durable=durable,
            on_double=becomes_double_of(self.jobs),
            on_refusal=None if self.refusals is None else self.refusals.of(self.jobs),
        )


def enqueue_in_shards(
    shards: ShardMap,
    drafts: Sequence[tuple[str, bytes]],
    jobs: Sequence[Job[Any]],
    *,
    durable: bool,
    refusals: Refusals | None = None,
) -> Operation[None]:
    """Enqueue each draft in the shard of its tenant. Each of `jobs` gets its shard and, if it is a double, its id.

    One round trip to each node for all of its shards and 250 jobs of each; after a change of the shards, one or two
    more. With `durable`, one for each shard and 250 jobs.
    """
    yield from shards.check()
    tenants = [Record(record).tenant for _, record in drafts]
    left: Sequence[int] = range(len(drafts))
    while left:
        used, groups = shards.current, dict[tuple[Shard, bool], list[int]]()
        for position in left:
            tenant, (key, record) = tenants[position], drafts[position]
            group = (used.for_new(tenant, key, record), used.is_moving(tenant, record))
            groups.setdefault(group, []).append(position)
        refused: list[int] = []
        while groups:
            # One chunk of each group: if two were sent and the first had to be repeated, the second would overtake it.
            chunks, sent = [], dict[tuple[Shard, bool], int]()
            for group, members in groups.items():
                shard, moving = group
                some = next(effort.slices(members, lambda at: effort.of_draft(drafts[at][1]), _SENT_TOGETHER))
                sent[group] = len(some)
                group_drafts, group_jobs = [drafts[at] for at in some], [jobs[at] for at in some]
                chunks.append(ShardChunk(shard, group_drafts, group_jobs, moving, refusals))
            accepted = yield from _send_chunks(shards, chunks, used, durable=durable)
            for (group, members), is_accepted in zip(list(groups.items()), accepted, strict=True):
                if not is_accepted:  # nothing more is sent there now: a tenant's jobs keep their order
                    refused += groups.pop(group)
                elif len(members) > sent[group]:
                    groups[group] = members[sent[group] :]
                else:
                    del groups[group]
        left = sorted(refused)


def enqueue_chunks(shards: ShardMap, chunks: Iterable[ShardChunk], used: ShardSnapshot) -> Operation[None]:
    """Enqueue the chunks of several shards, which the snapshot `used` has chosen.

    One round trip to each node for 500 jobs of 250 tenants. A node executes a pipeline as if it were one script, so a
    pipeline is bounded as one call is.
    """
    group, jobs, tenants = list[ShardChunk](), 0, 0
    groups = [group]
    for chunk in chunks:
        distinct = len({Record(record).tenant for _, record in chunk.drafts})
        spends = sum(effort.of_draft(record) for _, record in chunk.drafts)
        jobs, tenants = jobs + spends, tenants + distinct
        if group and (jobs > _PIPELINED or tenants > _PIPELINED_TENANTS):
            group, jobs, tenants = [], spends, distinct
            groups.append(group)
        group.append(chunk)
    for group in groups:
        accepted = yield from _send_chunks(shards, group, used, durable=False)
        for chunk, is_accepted in zip(group, accepted, strict=True):
            if not is_accepted:
                yield from enqueue_in_shards(shards, chunk.drafts, chunk.jobs, durable=False, refusals=chunk.refusals)


def _send_chunks(
    shards: ShardMap, chunks: Sequence[ShardChunk], used: ShardSnapshot, *, durable: bool
) -> Operation[list[bool]]:
    """Send each chunk to its shard. Returns which were accepted; the others belong elsewhere."""
    calls = tuple(chunk.call(used.table.text, durable=durable) for chunk in chunks)
    answers = []
    if durable or len(calls) == 1:
        for call in calls:
            answers.append((yield call))
    else:
        answers = yield Parallel(calls)
    for chunk, answer in zip(chunks, answers, strict=True):
        if isinstance(answer, Elsewhere):
            shards.learn(answer, used)
            continue
        for job in chunk.jobs:
            job.shard = chunk.shard
    return [not isinstance(answer, Elsewhere) for answer in answers]


def enqueue_one_in_shard(
    shards: ShardMap, key: str, record: bytes, job: Job[Any], tenant: str, *, durable: bool, plain: bool
) -> Operation[None]:
    """Enqueue one job in the shard of its tenant, in one round trip unless the shards have changed."""
    used = shards.current
    if not used.is_settled:
        return (yield from enqueue_in_shards(shards, [(key, record)], [job], durable=durable))
    job.shard = used.for_new(tenant, key, record)
    answer = yield ShardBindings(job.shard.bindings).enqueue(
        (key, record), used.table.text, plain=plain, durable=durable, on_double=becomes_double_of([job])
    )
    if isinstance(answer, Elsewhere):
        shards.learn(answer, used)
        yield from enqueue_in_shards(shards, [(key, record)], [job], durable=durable)


def check_unique_key(what: str, unique: Unique, tenant: str, *, uses_tenant: bool) -> None:
    """Raise ConfigurationError unless the key of a unique job in a queue with shards contains the tenant.

    Each shard knows only its own keys, so other keys would be unique within a shard and not within the queue.
    """
    if unique.exact is not None and tenant not in unique.exact:
        raise ConfigurationError(
            f"{what}: Unique(exact={unique.exact!r}): its queue has shards, which know only the keys of their own "
            f"tenants: write the tenant, here {tenant!r}, into the key"
        )
    if unique.exact is None and not uses_tenant:
        raise ConfigurationError(
            f"{what}: unique: its queue has shards, which know only the keys of their own tenants: write the tenant "
            f"into the key, as in Unique({'{tenant}:' + (unique.key or '{order}')!r})"
        )


def check_limit_key(what: str, key: str, *, uses_tenant: bool) -> None:
    """Raise ConfigurationError unless the key of a limit in a queue with shards contains the tenant."""
    if not uses_tenant:
        raise ConfigurationError(
            f"{what}: its queue has shards, which count only the jobs of their own tenants: write the tenant into the "
            f"key, as in key={'{tenant}' + (':' + key if key else '')!r}"
        )
