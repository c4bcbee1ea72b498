"""One run of a job in a worker."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from penstock.jobs.claims import Claim
from penstock.jobs.current import NoteSink
from penstock.jobs.definition import Definition
from penstock.jobs.middleware import JobContext
from penstock.jobs.shard import Shard
from penstock.jobs.stage import Stage
from penstock.jobs.steps import Steps
from penstock.worker.feed import Feed
from penstock.worker.thread_timeout import ThreadTimeout


class JobRun(msgspec.Struct, eq=False):
    """A claim that this worker can run, and, once it runs, everything that belongs to the run.

    feed          the queue as the worker sees it; None in the process of an isolated run
    started_at    `time.monotonic()` when it got its runner
    asyncio_task  in which it runs, if it could be cancelled there
    timeout       of a `def` task
    thread        of a `def` task without a timeout: the thread that is in it, or 0
    cancelled     somebody has cancelled the job while it runs here
    own_notes     in the process of an isolated run: takes what the job reports
    own_shard     there: that of the job
    stage         what the job has staged, if it has
    steps         its durable steps, if it has some
    own_incarnation  in the process of an isolated run: the incarnation that holds the job
    members       of a batch: the run of each of its jobs
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
    own_notes: NoteSink | None = None
    own_shard: Shard | None = None
    stage: Stage | None = None
    steps: Steps | None = None
    own_incarnation: str = ""
    members: tuple[JobRun, ...] = ()

    @property
    def note_sink(self) -> NoteSink:
        """Takes what the job reports (see `CurrentJob.progress`)."""
        if self.feed is not None:
            return self.feed.notes
        assert self.own_notes is not None
        return self.own_notes

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
