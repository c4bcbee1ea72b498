"""What a process holds: claims that wait for a runner, those that run, and how many more to ask for."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

from penstock.jobs.bindings import Claim
from penstock.worker.feed import Feed

STALLED = 0.1
"""A claim that waits while no runner became free for this long is handed back: others may be idle."""

_SMOOTHING = 0.05
"""Weight of the latest duration in the mean: some tens of jobs decide, one outlier does not."""


@dataclass(slots=True)
class Running:
    """A job that runs."""

    feed: Feed
    claim: Claim
    name: str
    started: float


class Inflight:
    """Free runners are always asked for; beyond them only what will start within `prefetch` seconds."""

    def __init__(self, concurrency: int, prefetch: float, max_batch: int) -> None:
        self._concurrency = concurrency
        self._prefetch = prefetch
        self._max_batch = max_batch
        self._mean: float | None = None
        self._last_start = 0.0
        self.waiting: deque[tuple[Feed, Claim]] = deque()
        self.running: dict[bytes, Running] = {}
        self.adrift: set[bytes] = set()
        """Claims that were lost while their thread runs on: it cannot be stopped, so its runner is not free."""

    @property
    def ahead(self) -> int:
        """Jobs worth holding beyond the free runners: none while no duration was measured."""
        if not self._mean:
            return 0
        return min(self._max_batch, int(self._concurrency * self._prefetch / self._mean))

    @property
    def room(self) -> int:
        """How many more to claim."""
        return max(0, min(self._max_batch, self._free + self.ahead) - len(self.waiting))

    @property
    def _free(self) -> int:
        return self._concurrency - len(self.running) - len(self.adrift)

    @property
    def hungry(self) -> bool:
        """Is it time to claim? With a stock, when half of it is used up, so that turns stay large."""
        return 2 * len(self.waiting) <= self.ahead and self.room > 0

    @property
    def empty(self) -> bool:
        return not self.waiting and not self.running

    def take(self) -> tuple[Feed, Claim] | None:
        """The next claim to start, if a runner is free."""
        return self.waiting.popleft() if self.waiting and self._free > 0 else None

    def start(self, feed: Feed, claim: Claim, name: str) -> None:
        self._last_start = now = time.monotonic()
        self.running[claim.token] = Running(feed, claim, name, now)

    def finish(self, token: bytes) -> Feed | None:
        """Its feed; None when the job was dropped meanwhile."""
        job = self.running.pop(token, None)
        if job is None:
            self.adrift.discard(token)
            return None
        took = max(1e-6, time.monotonic() - job.started)
        self._mean = took if self._mean is None else self._mean + _SMOOTHING * (took - self._mean)
        return job.feed

    def stalled(self) -> list[tuple[Feed, Claim]]:
        """Claims to hand back because the runners are blocked; the mean learns from it."""
        now = time.monotonic()
        if not self.waiting or self._free > 0 or now - self._last_start < STALLED:
            return []
        self._mean = max((now - job.started for job in self.running.values()), default=self._mean)
        return self.give_up()

    def give_up(self) -> list[tuple[Feed, Claim]]:
        """Everything that was not started."""
        given, self.waiting = list(self.waiting), deque()
        return given

    def drop(self, feed: Feed) -> list[Running]:
        """Forget all claims of an incarnation that ended. Returns those that run."""
        self.waiting = deque((f, claim) for f, claim in self.waiting if f is not feed)
        dropped = [job for job in self.running.values() if job.feed is feed]
        for job in dropped:
            del self.running[job.claim.token]
        return dropped
