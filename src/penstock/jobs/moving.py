"""Moves jobs to another queue, which may be on another node, so that no job is lost and few run twice.

    hold at the source ──▶ enqueue at the target, under the same key ──▶ remove at the source
      no worker claims them for a minute                │ the target has such a key    │ others wait for it now
                                                        └──▶ make the job due again ◀──┘ cancel it at the target

If a program dies after the enqueue, the jobs stay in both queues.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, Protocol

from penstock.core.operations import Operation
from penstock.jobs.constants import DEAD, DUE_IS_DATE, EXPIRES_IS_DATE, OWN_ID
from penstock.jobs.listing import FoundJob, HeldJob, ListingBindings
from penstock.jobs.record import redrafted
from penstock.jobs.shard import Shard
from penstock.jobs.shards import ShardMap

HELD: Final = 60.0
"""Seconds for which no worker claims a job that is being moved."""


class TargetQueue(Protocol):
    """A `Queue`. A Protocol: the modules of its jobs must not import that class, which makes them."""

    name: str
    shards: ShardMap


def move_jobs(source: Shard, target: ShardMap, rows: Sequence[FoundJob]) -> Operation[tuple[int, int]]:
    """Move jobs of a shard to another queue. Returns how many were reached, and how many of them were moved."""
    bindings = ListingBindings(source.bindings)
    yield from target.check()
    reached, held = yield bindings.hold(HELD, rows)
    by_shard: dict[Shard, list[HeldJob]] = {}
    for job in held:
        by_shard.setdefault(target.current.for_new(job.record.tenant), []).append(job)
    moved = 0
    for shard, jobs in by_shard.items():
        refused = set((yield shard.bindings.enqueue([part for job in jobs for part in (job.key, _draft(job))])))
        accepted = [job for at, job in enumerate(jobs) if at not in refused]
        stay = [job for at, job in enumerate(jobs) if at in refused]
        while accepted:
            rows = [FoundJob(job.key, b"", job.record, "") for job in accepted]
            some, removed = yield bindings.move(target.first.name, rows)
            kept = [job for at, job in enumerate(accepted[:some]) if at not in removed]
            if kept:
                yield from shard.bindings.cancel_all([job.key for job in kept])
            accepted, stay, moved = accepted[some:], stay + kept, moved + len(removed)
        for job in stay:
            if job.record.state != DEAD:
                due = datetime.fromtimestamp(job.due / 1000, UTC)
                yield source.bindings.edit(job.key, due=due if job.due else 0.0)
    return reached, moved


def _draft(job: HeldJob) -> bytes:
    """The record as a client drafts it for another queue."""
    expires = job.record.expires
    how = OWN_ID | (DUE_IS_DATE if job.due else 0) | (EXPIRES_IS_DATE if expires else 0)
    return redrafted(job.record, how, job.due, expires)
