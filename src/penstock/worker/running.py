"""The jobs that a worker process holds: those that wait for a runner, those that run, and how many more to claim."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

from penstock.jobs.claims import Claim
from penstock.worker.feed import Feed

STALL = 0.1
"""Seconds. If no runner becomes free in this time, waiting claims are handed back: other workers may be idle."""

_SMOOTHING = 0.05
"""Weight of the latest duration in the moving mean. Some tens of jobs shape the mean; a single outlier does not."""


@dataclass(slots=True)
class RunningJob:
    """A job that occupies a runner."""

    feed: Feed
    claim: Claim
    task: str
    started_at: float


class Inflight:
    """The claims of a process, waiting or running.

    It asks for enough jobs to occupy every free runner. Beyond these it asks only for jobs that will start
    within `prefetch` seconds, as estimated from the mean duration of past jobs.
    """

    def __init__(self, concurrency: int, prefetch: float, max_batch: int) -> None:
        self._concurrency = concurrency
        self._prefetch = prefetch
        self._max_batch = max_batch
        self._mean_duration: float | None = None
        self._last_start = 0.0
        self.waiting: deque[tuple[Feed, Claim]] = deque()
        self.running: dict[bytes, RunningJob] = {}
        self.lost_in_threads: set[bytes] = set()
        """Tokens of jobs whose lease was lost while they run in threads. A thread cannot be stopped, so its runner
        stays occupied until the job ends."""

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

    @property
    def _free_runners(self) -> int:
        return self._concurrency - len(self.running) - len(self.lost_in_threads)

    @property
    def should_claim(self) -> bool:
        """Whether it is time to claim more: half of the prefetched jobs have started.

        A turn taken earlier could claim only a few jobs.
        """
        return 2 * len(self.waiting) <= self.prefetch_limit and self.room > 0

    @property
    def empty(self) -> bool:
        return not self.waiting and not self.running

    def take_next(self) -> tuple[Feed, Claim] | None:
        """Remove and return the next claim to start, if a runner is free."""
        return self.waiting.popleft() if self.waiting and self._free_runners > 0 else None

    def start(self, feed: Feed, claim: Claim, task: str) -> None:
        self._last_start = now = time.monotonic()
        self.running[claim.token] = RunningJob(feed, claim, task, now)

    def finish(self, token: bytes) -> RunningJob | None:
        """Free the job's runner. Returns the job, or None if its lease was lost meanwhile."""
        job = self.running.pop(token, None)
        if job is None:
            self.lost_in_threads.discard(token)
            return None
        duration = max(1e-6, time.monotonic() - job.started_at)
        mean = self._mean_duration
        self._mean_duration = duration if mean is None else mean + _SMOOTHING * (duration - mean)
        return job

    def take_stalled(self) -> list[tuple[Feed, Claim]]:
        """Remove and return the waiting claims if no runner has become free for `STALL` seconds.

        The longest time that a running job has taken so far becomes the mean duration, so that fewer jobs are
        prefetched from now on.
        """
        now = time.monotonic()
        if not self.waiting or self._free_runners > 0 or now - self._last_start < STALL:
            return []
        self._mean_duration = max((now - job.started_at for job in self.running.values()), default=self._mean_duration)
        return self.take_waiting()

    def take_waiting(self) -> list[tuple[Feed, Claim]]:
        """Remove and return all claims that have not started."""
        taken, self.waiting = list(self.waiting), deque()
        return taken

    def drop(self, feed: Feed) -> list[RunningJob]:
        """Forget all claims of a feed whose incarnation has ended. Returns those that were running."""
        self.waiting = deque((other, claim) for other, claim in self.waiting if other is not feed)
        dropped = [job for job in self.running.values() if job.feed is feed]
        for job in dropped:
            del self.running[job.claim.token]
        return dropped
