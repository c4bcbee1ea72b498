"""Bounds: how many unfinished jobs a queue has at most. `bounds.lua` applies them in the server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock.core.arguments import check_whole
from penstock.core.operations import Operation, Parallel, RoundTrip
from penstock.errors import ConfigurationError, QueueFull
from penstock.jobs.bindings import scripts
from penstock.jobs.shard import Shard
from penstock.jobs.shards import ShardMap

if TYPE_CHECKING:
    from penstock.jobs.job import Job

MOST: Final = 1_000_000_000


class Refusals:
    """The jobs of one bulk enqueue that were refused, because their queues are at their bounds."""

    def __init__(self) -> None:
        self._refused: set[int] = set()
        """The identities of the jobs."""
        self._first: QueueFull | None = None

    def of(self, jobs: Sequence[Job[Any]]) -> Callable[[int, QueueFull], None]:
        """Returns a callback that notes a refusal of one of these jobs."""

        def note(position: int, error: QueueFull) -> None:
            self._refused.add(id(jobs[position]))
            self._first = self._first or error

        return note

    def __contains__(self, job: Job[Any]) -> bool:
        return id(job) in self._refused

    def raise_first(self, jobs: Sequence[Job[Any]]) -> None:
        """Raise the first refusal, if there was one. `jobs`: those of the whole bulk."""
        if self._first is None:
            return
        self._first.taken = [job for job in jobs if job not in self]
        self._first.refused = [at for at, job in enumerate(jobs) if job in self]
        raise self._first


def set_bound(shards: ShardMap, jobs: int | None, per_tenant: int | None) -> Operation[None]:
    """See `Queue.bound`."""
    for name, number in (("jobs", jobs), ("per_tenant", per_tenant)):
        if number is not None:
            check_whole("bound", name, number, 1, MOST, f"from 1 to {MOST:,}, or None for no bound")
    if jobs is not None and per_tenant is not None and per_tenant > jobs:
        raise ValueError(
            f"bound(per_tenant={per_tenant}): more than jobs={jobs} of the whole queue, so it would refuse nothing: "
            "give a smaller number, or leave it out"
        )
    done = 0
    while done != (number := len((yield from shards.refresh()).known)):
        if jobs is not None:
            check_parts(shards, jobs, number)
        if per_tenant is not None and number > 1:
            yield from _refuse_spread_tenants(shards)
        parts = parts_of(jobs, number)
        for shard, part in zip(shards.current.known[:number], parts, strict=True):
            yield store(shard, part, per_tenant)
        done = number


def store(shard: Shard, part: int, per_tenant: int | None) -> RoundTrip[int]:
    """Set the bounds of a shard; `part` 0: none. Returns its unfinished jobs."""
    args = (shard.bindings.clock.now_ms, part, per_tenant or 0)
    return RoundTrip(scripts()["set_bound"], shard.bindings.keys.declared, args, int)


def parts_of(jobs: int | None, number: int) -> list[int]:
    """The part of a bound that each shard takes. The parts add up to the bound."""
    return [((jobs or 0) + number - 1 - at) // number for at in range(number)]


def check_parts(shards: ShardMap, jobs: int, number: int) -> None:
    """Raise ConfigurationError if a shard would have no part of the bound."""
    if jobs < number:
        raise ConfigurationError(
            f"queue {shards.first.name}: bound(jobs={jobs}): it has {number} shards, and each takes its part of the "
            f"bound: use {number} or more"
        )


def _refuse_spread_tenants(shards: ShardMap) -> Operation[None]:
    """Raise ConfigurationError if several shards have, or will get, jobs of one tenant."""
    name = shards.first.name
    for tenant, number in shards.current.table.spread:
        counts = yield Parallel(tuple(shard.bindings.tenant_counts(tenant) for shard in shards.current.known))
        if number > 1 or sum(one.waiting + one.running + one.dependent > 0 for one in counts) > 1:
            raise ConfigurationError(
                f"queue {name}: bound(per_tenant=…): tenant {tenant!r} is spread over several shards, and none of them "
                "knows how many jobs it has in the others: end that with tenant(…).spread(1), and wait until its jobs "
                "are done"
            )


def shrink_parts(shards: ShardMap, number: int) -> Operation[tuple[int, int] | None]:
    """Divide the bound of the queue among `number` shards, more than it has, before they are added.

    Returns the bounds of the queue: 0 for none; None if it has no bound. Raises ConfigurationError if a shard has more
    jobs than its new part.
    """
    known = shards.current.known
    counts = yield Parallel(tuple(one.bindings.counts() for one in known))
    jobs, per_tenant = sum(one.bound or 0 for one in counts), max(one.tenant_bound or 0 for one in counts)
    if not jobs and not per_tenant:
        return None
    if jobs:
        check_parts(shards, jobs, number)
        for at, (shard, part) in enumerate(zip(known, parts_of(jobs, number), strict=False)):
            unfinished = yield store(shard, part, per_tenant)
            if unfinished > part:
                for earlier, old in zip(known[: at + 1], counts, strict=False):
                    yield store(earlier, old.bound or 0, per_tenant)
                raise ConfigurationError(
                    f"queue {shards.first.name}: shard {shard.name} has {unfinished:,} unfinished jobs, and with "
                    f"{number} shards its part of the bound of {jobs:,} would be {part:,}: wait until it has fewer, or "
                    "remove the bound first and set it again afterwards"
                )
    return jobs, per_tenant
