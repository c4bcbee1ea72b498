"""One run of a job in a worker."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from penstock.jobs.claims import Claim
from penstock.jobs.definition import Definition
from penstock.jobs.middleware import JobContext
from penstock.jobs.shard import Shard
from penstock.jobs.stage import Stage
from penstock.jobs.steps import Steps
from penstock.worker.feed import Feed
from penstock.worker.job_channel import ChannelNotes
from penstock.worker.thread_timeout import ThreadTimeout


class JobRun(msgspec.Struct, eq=False):
    """A claim that this worker can run, and, once it runs, everything that belongs to the run.

    feed          the queue as the worker sees it; None in the process of an isolated run
    started_at    `time.monotonic()` when it got its runner
    asyncio_task  the asyncio task in which it runs; None if it could not be cancelled there
    timeout       the timeout of a `def` task; None if it has no timeout
    thread        the thread that runs a `def` task without a timeout; 0 if no thread is in the task
    cancelled     whether the job was cancelled in the server while it ran here
    stage         the effects that the job has staged; None if it has staged nothing
    steps         the durable steps of the job; None if it has none
    batch         the claims of a batch; empty if this is not a batch

    Only in the process of an isolated run:

    own_notes        sends what the job reports and emits to the worker
    own_shard        the shard of the job
    own_incarnation  the incarnation of the worker that holds the job
    is_sole          whether the worker runs no other job meanwhile
    """

    claim: Claim
    definition: Definition
    arguments: msgspec.Struct
    queue: str
    feed: Feed | None = None
    started_at: float = 0.0
    asyncio_task: asyncio.Task[Any] | None = None
    timeout: ThreadTimeout | None = None
    thread: int = 0
    cancelled: bool = False
    own_notes: ChannelNotes | None = None
    own_shard: Shard | None = None
    stage: Stage | None = None
    steps: Steps | None = None
    own_incarnation: str = ""
    is_sole: bool = False
    batch: tuple[Claim, ...] = ()

    @property
    def claims(self) -> tuple[Claim, ...]:
        """The claim of each job that ends with this run."""
        return self.batch or (self.claim,)

    def is_cancelled(self, claim: Claim) -> bool:
        """Whether this job of the run was cancelled in the server."""
        return self.cancelled

    def note_cancelled(self, claim: Claim) -> bool:
        """Note that this job of the run was cancelled. Returns whether all of its jobs are: then the run must end."""
        return True

    def note(self, progress: bytes = b"", line: bytes | None = None) -> None:
        """Keep what the job reports until it is sent (see `CurrentJob.progress`). Any thread may call it."""
        if self.feed is not None:
            self.feed.notes.add(self.claim.token, progress, line)
        else:
            assert self.own_notes is not None
            self.own_notes.add(progress, line)

    def emit(self, chunk: bytes) -> None:
        """Keep a chunk of the job's output until it is sent (see `CurrentJob.emit`). Any thread may call it."""
        if self.feed is not None:
            self.feed.output.emit(self.claim.token, chunk)
        else:
            assert self.own_notes is not None
            self.own_notes.emit(chunk)

    @property
    def shard(self) -> Shard:
        """The shard of the job."""
        if self.feed is not None:
            return self.feed.shard
        assert self.own_shard is not None
        return self.own_shard

    @property
    def incarnation(self) -> str:
        """The incarnation of the worker that holds the job."""
        return self.own_incarnation if self.feed is None else self.feed.incarnation

    @property
    def sole_task(self) -> str:
        """The name of the task if the worker runs no other job meanwhile; else empty."""
        is_sole = self.is_sole if self.feed is None else self.feed.runs_one_job
        return self.definition.name if is_sole else ""

    @property
    def deadline(self) -> float | None:
        """`time.monotonic()` at which the timeout ends the run; None: it has no timeout."""
        if self.timeout is not None:
            return self.timeout.deadline
        return None if self.definition.timeout is None else self.started_at + self.definition.timeout

    def label(self) -> str:
        """The job as log lines name it."""
        return f"job {self.context.id} ({self.definition.name})"

    @property
    def context(self) -> JobContext:
        return JobContext.of(self.claim, self.queue, self.definition.name)
