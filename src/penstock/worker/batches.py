"""A batch of jobs in a worker: one call of the task, in one runner, for several claims that are settled one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from msgspec import structs

from penstock.errors import ConfigurationError
from penstock.jobs.batching import Batch
from penstock.jobs.claims import Settlement
from penstock.jobs.registry import Registry
from penstock.jobs.shard_table import whole_name
from penstock.worker.run import JobRun


class BatchRun(JobRun):
    """One call of a task with the arguments of several jobs. `batch` has the run of each.

    outcomes  the settlement of each job, in the order of `batch`. Empty until the call has ended, and also if all jobs
              end alike
    """

    outcomes: Sequence[Settlement] = ()

    def note(self, progress: bytes = b"", line: bytes | None = None) -> None:
        """Add a report of the call to every job of the batch."""
        assert self.feed is not None
        for one in self.batch:
            self.feed.notes.add(one.claim.token, progress, line)

    def emit(self, chunk: bytes) -> None:
        """Add a chunk to the output of every job of the batch."""
        assert self.feed is not None
        for one in self.batch:
            self.feed.output.emit(one.claim.token, chunk)

    @property
    def shard(self) -> NoReturn:
        raise ConfigurationError(
            f"task {self.definition.name}: a batch stages nothing and has no durable steps, because its jobs end one "
            "by one: do that in a task without batch=…"
        )

    def label(self) -> str:
        return f"a batch of {len(self.batch)} jobs ({self.definition.name}), first {self.context.id}"

    def settlements(self, settlement: Settlement) -> list[Settlement]:
        """The settlement of each job, after the call has ended with `settlement`."""
        all_alike = len(self.outcomes) != len(self.batch)
        if not all_alike and not any(one.cancelled for one in self.batch):
            return [*self.outcomes]
        return [
            Settlement(one.claim.token, b"", "cancel")
            if one.cancelled
            else structs.replace(settlement, token=one.claim.token)
            if all_alike
            else self.outcomes[at]
            for at, one in enumerate(self.batch)
        ]


def batch_run(runs: Sequence[JobRun]) -> BatchRun:
    """Make one run for these jobs: a call of their task with the arguments of all of them."""
    first = runs[0]
    arguments: Any = [one.arguments for one in runs]
    return BatchRun(first.claim, first.definition, arguments, first.queue, batch=tuple(runs))


def batch_of(registry: Registry, queue: str) -> Batch | None:
    """The batch options of the task of this queue or shard. None: the task gets its jobs one by one."""
    return next((one.batch for one in registry if one.batch is not None and one.queue == whole_name(queue)), None)
