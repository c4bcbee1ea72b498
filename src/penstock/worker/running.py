"""The jobs that a worker process holds: those that wait for a runner, those that run, and how many more to claim."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Container
from typing import Any

import msgspec

from penstock.jobs.claims import Claim
from penstock.jobs.current import NoteSink
from penstock.jobs.definition import Definition
from penstock.jobs.middleware import JobContext
from penstock.jobs.queue import Queue
from penstock.jobs.stage import Stage
from penstock.jobs.steps import Steps
from penstock.worker.feed import Feed
from penstock.worker.thread_timeout import ThreadTimeout

STALL = 0.1
"""Seconds. If no runner becomes free in this time, waiting claims are handed back: other workers may be idle."""

DOUBLING = 0.02
"""Seconds. Most jobs that kill their process do so as soon as they start."""

_SMOOTHING = 0.05
"""Weight of the latest duration in the moving mean. Some tens of jobs shape the mean; a single outlier does not."""

_STOCK_LEFT = 0.75
"""The share of the prefetched jobs that are left when the worker asks for more. It runs these while the server prepares
its reply. An earlier turn could claim only a few jobs."""


class JobRun(msgspec.Struct, eq=False):
    """A claim that this worker can run, and, once it runs, everything that belongs to the run.

    feed          the queue as the worker sees it; None in the process of an isolated run
    started_at    `time.monotonic()` when it got its runner
    asyncio_task  in which it runs, if it could be cancelled there
    timeout       of a `def` task
    thread        of a `def` task without a timeout: the thread that is in it, or 0
    cancelled     somebody has cancelled the job while it runs here
    own_notes     in the process of an isolated run: takes what the job reports
    own_home      there: the job's queue
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
    own_home: Queue | None = None
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
    def home(self) -> Queue:
        """The job's queue."""
        if self.feed is not None:
            return self.feed.queue
        assert self.own_home is not None
        return self.own_home

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


class Inflight:
    """The claims of a process, waiting or running.

    It asks for enough jobs to occupy every free runner. Beyond these it asks only for jobs that will start
    within `prefetch` seconds, as estimated from the mean duration of past jobs.

    The successor of a process that was killed at work begins with one runner, and doubles their number every `DOUBLING`
    seconds. So of several jobs that kill their process, the next one runs beside few others, and short jobs of other
    tenants end before it starts.
    """

    def __init__(self, concurrency: int, prefetch: float, max_batch: int) -> None:
        self._concurrency = self._runners = concurrency
        self._prefetch = prefetch
        self._max_batch = max_batch
        self._mean_duration: float | None = None
        self._last_start = 0.0
        self.waiting: deque[tuple[Feed, Claim]] = deque()
        self.running: dict[JobRun, None] = {}
        """The jobs that have a runner, in the order of their starts."""
        self.lost_in_threads: set[JobRun] = set()
        """Jobs whose lease was lost while they run in threads. A thread cannot be stopped, so its runner stays occupied
        until the job ends."""

    @property
    def prefetch_limit(self) -> int:
        """How many jobs to hold beyond the free runners. 0 until a duration was measured."""
        if not self._mean_duration:
            return 0
        return min(self._max_batch, int(self._concurrency * self._prefetch / self._mean_duration))

    @property
    def room(self) -> int:
        """How many more jobs to claim."""
        return max(0, min(self._max_batch, self._free_runners + self.prefetch_limit) - len(self.waiting))

    def begin_slowly(self) -> None:
        self._runners = 1

    def add_runners(self) -> bool:
        """Call it `DOUBLING` seconds after a job has started. Returns whether all runners are in use now."""
        self._runners = min(self._concurrency, 2 * self._runners)
        return self.has_all_runners

    @property
    def has_all_runners(self) -> bool:
        return self._runners == self._concurrency

    @property
    def _free_runners(self) -> int:
        return self._runners - len(self.running) - len(self.lost_in_threads)

    def room_for(self, size: int) -> int:
        """How many jobs to claim for a batch of `size`, which occupies one runner and is not prefetched."""
        return size if self._free_runners > len(self.waiting) else 0

    @property
    def should_claim(self) -> bool:
        """Whether it is time to claim more: enough of the prefetched jobs have started."""
        return len(self.waiting) <= _STOCK_LEFT * self.prefetch_limit and self.room > 0

    @property
    def empty(self) -> bool:
        return not self.waiting and not self.running

    def take_next(self) -> tuple[Feed, Claim] | None:
        """Remove and return the next claim to start, if a runner is free."""
        return self.waiting.popleft() if self.waiting and self._free_runners > 0 else None

    def start(self, run: JobRun) -> None:
        self._last_start = run.started_at = time.monotonic()
        self.running[run] = None

    def finish(self, run: JobRun) -> bool:
        """Free the job's runner. False if the worker has given the job up meanwhile, or lost its lease."""
        if run not in self.running:
            self.lost_in_threads.discard(run)
            return False
        del self.running[run]
        return True

    def note_duration(self, run: JobRun) -> None:
        """Count a job that has ended, and has run beside others, in the mean duration."""
        self._note(1, time.monotonic() - run.started_at)

    def note_streak(self, runs: int, seconds: float) -> None:
        """Count jobs in the mean duration that have run one after another on the event loop, in `seconds` together.

        While one of them ran, all other runners had to wait. So each counts as if it had occupied them all.
        """
        if runs:
            self._note(runs, seconds / runs * self._concurrency)

    def _note(self, runs: int, duration: float) -> None:
        mean, duration = self._mean_duration, max(1e-6, duration)
        weight = 1 - (1 - _SMOOTHING) ** runs
        self._mean_duration = duration if mean is None else mean + weight * (duration - mean)

    def take_stalled(self) -> list[tuple[Feed, Claim]]:
        """Remove and return the waiting claims if no runner has become free for `STALL` seconds.

        The longest time that a running job has taken so far becomes the mean duration, so that fewer jobs are
        prefetched from now on.
        """
        now = time.monotonic()
        if not self.waiting or self._free_runners > 0 or now - self._last_start < STALL:
            return []
        self._mean_duration = max((now - run.started_at for run in self.running), default=self._mean_duration)
        return self.take_waiting()

    def take_waiting(self) -> list[tuple[Feed, Claim]]:
        """Remove and return all claims that have not started."""
        taken, self.waiting = list(self.waiting), deque()
        return taken

    def take_claims(self, tokens: Container[bytes]) -> list[Claim]:
        """Remove and return those of the claims that have not started."""
        taken = [claim for _, claim in self.waiting if claim.token in tokens]
        if taken:
            self.waiting = deque((feed, claim) for feed, claim in self.waiting if claim.token not in tokens)
        return taken

    def take_running(self) -> list[tuple[Feed, Claim]]:
        """Remove and return the claims of all running jobs. The jobs may still run, and have no effect."""
        taken = [(run.feed, one.claim) for run in self.running if run.feed is not None for one in run.members or (run,)]
        self.running = {}
        return taken

    def drop(self, feed: Feed) -> None:
        """Forget all claims of a feed whose incarnation has ended, and cancel the running ones.

        Those in threads keep running without effect.
        """
        self.waiting = deque((other, claim) for other, claim in self.waiting if other is not feed)
        dropped = [run for run in self.running if run.feed is feed]
        for run in dropped:
            del self.running[run]
            if run.asyncio_task is not None:
                run.asyncio_task.cancel("the lease was lost")
            else:
                self.lost_in_threads.add(run)
