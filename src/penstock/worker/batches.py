"""A batch of jobs in a worker: one call of the task, in one runner, for several claims that are settled one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import msgspec
from msgspec import structs

from penstock.errors import ConfigurationError
from penstock.jobs.batching import Batch
from penstock.jobs.claims import Claim, Settlement
from penstock.jobs.definition import Definition
from penstock.jobs.registry import Registry
from penstock.jobs.shard_table import whole_name
from penstock.worker.run import JobRun


class BatchRun(JobRun):
    """One call of a task with the arguments of several jobs. `batch` has their claims, of which `claim` is the first.

    No job of a batch has a run or a context of its own, unless it ends in its own way: most of a worker's time for a
    batch would go there.

    outcomes        the settlement of each job, in the order of `batch`. Empty until the call has ended, and also if all
                    jobs end alike
    cancelled_jobs  the tokens of the jobs that were cancelled in the server while the batch ran
    """

    outcomes: Sequence[Settlement] = ()
    cancelled_jobs: set[bytes] = msgspec.field(default_factory=set)

    def of_job(self, claim: Claim) -> JobRun:
        """A run of this job alone, to decide how it ends."""
        return JobRun(claim, self.definition, self.arguments, self.queue)

    def is_cancelled(self, claim: Claim) -> bool:
        return claim.token in self.cancelled_jobs

    def note_cancelled(self, claim: Claim) -> bool:
        self.cancelled_jobs.add(claim.token)
        return len(self.cancelled_jobs) == len(self.batch)

    def note(self, progress: bytes = b"", line: bytes | None = None) -> None:
        """Add a report of the call to every job of the batch."""
        assert self.feed is not None
        for claim in self.batch:
            self.feed.notes.add(claim.token, progress, line)

    def emit(self, chunk: bytes) -> None:
        """Add a chunk to the output of every job of the batch."""
        assert self.feed is not None
        for claim in self.batch:
            self.feed.output.emit(claim.token, chunk)

    @property
    def shard(self) -> NoReturn:
        raise ConfigurationError(
            f"task {self.definition.name}: a batch stages nothing and has no durable steps, because its jobs end one "
            "by one: do that in a task without batch=…"
        )

    def label(self) -> str:
        return f"a batch of {len(self.batch)} jobs ({self.definition.name}), first {self.context.id}"

    def settlements(self, settlement: Settlement) -> Sequence[Settlement]:
        """The settlement of each job, after the call has ended with `settlement`."""
        all_alike = len(self.outcomes) != len(self.batch)
        if not all_alike and not self.cancelled_jobs:
            return self.outcomes
        return [
            Settlement(claim.token, b"", "cancel")
            if claim.token in self.cancelled_jobs
            else structs.replace(settlement, token=claim.token)
            if all_alike
            else self.outcomes[at]
            for at, claim in enumerate(self.batch)
        ]


def batch_run(claims: Sequence[Claim], definition: Definition, arguments: Any, queue: str) -> BatchRun:
    """Make one run for these jobs: a call of their task with the arguments of all of them."""
    return BatchRun(claims[0], definition, arguments, queue, batch=tuple(claims))


def batch_of(registry: Registry, queue: str) -> Batch | None:
    """The batch options of the task of this queue or shard. None: the task gets its jobs one by one."""
    return next((one.batch for one in registry if one.batch is not None and one.queue == whole_name(queue)), None)
