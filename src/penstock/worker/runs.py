"""The jobs that a worker process holds: those that wait for a runner, those that run, and how many more to claim.

    feed ── add() ──▶ waiting ── next() ──▶ running ── end() ──▶ feed
                         │          │          │
                         └──────────┴──────────┴─▶ handed back, refused or cancelled: feed

Only this object moves jobs between these sets. `Places` and `Threads` take jobs with `next`, run them, and return them
with `end`, which wakes the worker once for each group of jobs that ended together.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from msgspec import structs

from penstock.jobs.batching import batches_of
from penstock.jobs.claims import Claim, Settlement
from penstock.jobs.middleware import JobContext
from penstock.settings import WorkerSettings
from penstock.worker.batches import BatchRun
from penstock.worker.execution import Execution
from penstock.worker.feed import MAX_SETTLEMENTS, Feed
from penstock.worker.job_log import RunReports
from penstock.worker.run import JobRun
from penstock.worker.shared_status import SharedStatus

STALL = 0.1
"""Seconds. If no runner becomes free in this time, waiting claims are handed back: other workers may be idle."""

DOUBLING = 0.02
"""Seconds after which a process that begins slowly doubles its runners. It can be short, because most jobs that kill
their process do so as soon as they start."""

_SMOOTHING = 0.05
"""Weight of the latest duration in the moving mean. Some tens of jobs shape the mean; a single outlier does not."""

_STOCK_LEFT = 0.75
"""The worker asks for more jobs when this share of the prefetched ones is left, and runs those while it waits for the
reply. If it asked earlier, it could claim only a few jobs."""


class Runs:
    """The claims and runs of a worker process.

    It asks for enough jobs to occupy every free runner. Beyond these it asks only for jobs that will start
    within `prefetch` seconds, as estimated from the mean duration of past jobs.

    The successor of a process that was killed at work begins with one runner, and doubles their number every `DOUBLING`
    seconds. If several jobs kill their process, the next of them then shares a process with few others, and short
    jobs of other tenants end before it starts.
    """

    def __init__(
        self, execution: Execution, reports: RunReports, settings: WorkerSettings, wake: Callable[[], None]
    ) -> None:
        """`wake` is called on the loop when runners have become free, and when settlements wait for a turn."""
        self._execution = execution
        self._reports = reports
        self._reports_all = reports.wants_all
        """Whether the runs that complete are reported, as of the last turn."""
        self._wake = wake
        self._concurrency = self._runners = settings.concurrency
        self._prefetch = settings.prefetch
        self._max_batch = settings.max_batch
        self._max_jobs = float("inf") if settings.max_jobs is None else settings.max_jobs
        self._mean_duration: float | None = None
        self._last_start = 0.0
        self._doubling: asyncio.TimerHandle | None = None
        self.status: SharedStatus | None = None
        """Shows the supervisor, if there is one, which jobs run in this process."""
        self._worker_task: asyncio.Task[Any] | None = None
        self._cancelled_before = 0
        self.started = 0
        """How many jobs have started."""
        self.is_closed = False
        """Whether no further job starts here."""
        self.waiting: deque[tuple[Feed, Claim]] = deque()
        self._batches: deque[tuple[Feed, Sequence[Claim]]] = deque()
        """Batches that wait for the runners that were free when they were claimed. They may be more than these runners
        if the server's batches are smaller, because a worker of another release has declared them."""
        self.running: dict[JobRun, None] = {}
        """The jobs that have a runner, in the order of their starts."""
        self.lost_in_threads: set[JobRun] = set()
        """Jobs whose lease was lost while they run in threads. A thread cannot be stopped, so its runner stays occupied
        until the job ends."""

    def begin(self, worker_task: asyncio.Task[Any]) -> None:
        """Call it once, with the asyncio task in which the worker runs."""
        self._worker_task, self._cancelled_before = worker_task, worker_task.cancelling()

    # --- how many more ---

    @property
    def prefetch_limit(self) -> int:
        """How many jobs to hold beyond the free runners. 0 until a duration was measured."""
        if not self._mean_duration:
            return 0
        return min(self._max_batch, int(self._concurrency * self._prefetch / self._mean_duration))

    @property
    def _idle_runners(self) -> int:
        return self._runners - len(self.running) - len(self.lost_in_threads)

    @property
    def _free_runners(self) -> int:
        return self._runners - len(self.running) - len(self.lost_in_threads) - len(self._batches)

    @property
    def room(self) -> int:
        """How many more jobs to claim."""
        if self.is_closed:
            return 0
        room = max(0, min(self._max_batch, self._free_runners + self.prefetch_limit) - len(self.waiting))
        left = self._max_jobs - self.started
        return room if left >= room else int(left)

    def room_for(self, feed: Feed) -> int:
        """How many more jobs to claim from this feed.

        A batch occupies one runner and is not prefetched. A turn claims batches for up to half of the runners, so that
        the next turn can be under way while they run.
        """
        if feed.batch is None or feed.trial:
            return self.room
        size, free = feed.batch.size, self._free_runners - len(self.waiting)
        if self.room <= 0 or free <= 0:
            return 0
        most = min(MAX_SETTLEMENTS, self._max_batch, self._max_jobs - self.started)
        return size * max(1, min(free, (self._runners + 1) // 2, int(most // size)))

    @property
    def should_claim(self) -> bool:
        """Whether it is time to claim more: enough of the prefetched jobs have started."""
        return len(self.waiting) <= _STOCK_LEFT * self.prefetch_limit and self.room > 0

    @property
    def has_waiting(self) -> bool:
        return bool(self.waiting or self._batches)

    @property
    def empty(self) -> bool:
        return not self.has_waiting and not self.running

    def begin_slowly(self) -> None:
        self._runners = 1

    def _double_runners(self) -> None:
        self._runners = min(self._concurrency, 2 * self._runners)
        self._doubling = None
        if self._runners < self._concurrency:
            self._double_later()
        self._wake()

    def _double_later(self) -> None:
        if self._doubling is None:
            self._doubling = asyncio.get_running_loop().call_later(DOUBLING, self._double_runners)

    # --- the path of a job ---

    def add(self, feed: Feed, claims: Sequence[Claim]) -> None:
        """Let new claims wait for their runners. Once no further job starts here, hand them back."""
        self._reports_all = self._reports.wants_all
        if self.is_closed:
            feed.hand_back(claims)
        elif feed.batch is None:
            self.waiting.extend([(feed, claim) for claim in claims])
        elif claims:
            self._batches.extend([(feed, some) for some in batches_of(claims, feed.batch)])

    def next(self) -> JobRun | None:
        """Give the next job a runner, if one is free. The caller runs it, and calls `end`.

        A claim that this worker cannot run goes straight back to its feed.
        """
        while self._batches and self._idle_runners > 0:
            feed, claims = self._batches.popleft()
            batch, refused = self._execution.prepare_batch(claims, feed.shard.name)
            for claim, settlement in refused:
                self._refuse(feed, claim, settlement)
            if batch is not None:
                return self._begin(feed, batch)
        while self.waiting and self._free_runners > 0:
            feed, claim = self.waiting.popleft()
            run = self._execution.prepare(claim, feed.shard.name)
            if isinstance(run, JobRun):
                return self._begin(feed, run)
            self._refuse(feed, claim, run)
        return None

    def _refuse(self, feed: Feed, claim: Claim, settlement: Settlement) -> None:
        self._reports.add(JobContext.of(claim, feed.shard.name, ""), settlement)
        feed.settle(settlement)

    def _begin(self, feed: Feed, run: JobRun) -> JobRun:
        run.feed = feed
        self._last_start = run.started_at = time.monotonic()
        self.running[run] = None
        self.started += len(run.batch) or 1
        if self._reports_all:
            self._reports.start(run)
        if self.status is not None and not run.definition.isolate:
            # Only a job that runs in this process can be the reason for its death.
            for claim in run.claims:
                self.status.job_started(feed.slot, claim.token)
        if self._runners < self._concurrency:
            self._double_later()
        if self.started >= self._max_jobs:
            self.close()
        return run

    def end(self, ended: Iterable[tuple[JobRun, Settlement]]) -> None:
        """Free the runners of jobs that ended outside of a streak, and settle the jobs."""
        now = time.monotonic()
        for run, settlement in ended:
            self._note_durations(1, now - run.started_at)
            self.end_in_streak(run, settlement, now)
        self._wake()

    def end_streak(self, jobs: int, seconds: float) -> None:
        """The streak has ended after `jobs` jobs, which took `seconds` together.

        All other runners had to wait for these jobs. So each job counts as if it had occupied all runners.
        """
        if jobs:
            self._note_durations(jobs, seconds / jobs * self._concurrency)
        self._wake()

    def end_in_streak(self, run: JobRun, settlement: Settlement, ended: float) -> None:
        """Free the runner of a job, and settle the job. Call `end_streak` after the last job of the streak.

        ended  `time.monotonic()` when the run ended
        """
        if self.status is not None:
            for claim in run.claims:
                self.status.job_ended(claim.token)
            self.status.note_job_has_ended()
        if run not in self.running:  # it was handed back, or its lease was lost
            self.lost_in_threads.discard(run)
            return
        del self.running[run]
        feed = run.feed
        assert feed is not None
        if run.cancelled:
            settlement = self._execution.cancelled(run)  # whatever its code did when it was cancelled
        if isinstance(run, BatchRun):
            settlements = run.settlements(settlement)
            completed = [claim for claim, its in zip(run.batch, settlements, strict=True) if its.ending is None]
            feed.rows.add_together(completed, run.started_at, ended)
            feed.settle_batch(settlements)
            if self._reports_all or len(completed) < len(settlements):
                self._reports.add_all(run, settlements)
        else:
            feed.to_settle.append(settlement)
            if settlement.ending is None:
                feed.rows.add(run.claim, run.started_at, ended)
            if settlement.ending is not None or self._reports_all:
                self._reports.add(run.context, settlement, run.started_at)

    def _note_durations(self, jobs: int, duration: float) -> None:
        """Include `jobs` further jobs of this duration each in the mean."""
        mean, duration = self._mean_duration, max(1e-6, duration)
        weight = 1 - (1 - _SMOOTHING) ** jobs
        self._mean_duration = duration if mean is None else mean + weight * (duration - mean)

    # --- other ends ---

    def close(self) -> None:
        """Start no further job: hand back all claims that wait."""
        self.is_closed = True
        self._hand_back_waiting()

    def hand_back_stalled(self) -> None:
        """Hand back the waiting claims if no runner has become free for `STALL` seconds.

        The longest time that a running job has taken so far becomes the mean duration, so that fewer jobs are
        prefetched from now on.
        """
        now = time.monotonic()
        if self.has_waiting and self._idle_runners <= 0 and now - self._last_start >= STALL:
            self._mean_duration = max((now - run.started_at for run in self.running), default=self._mean_duration)
            self._hand_back_waiting()

    def _hand_back_waiting(self) -> None:
        waiting, self.waiting = self.waiting, deque()
        for feed, claim in waiting:
            feed.hand_back((claim,))
        while self._batches:
            feed, claims = self._batches.popleft()
            feed.hand_back(claims)

    def interrupted(self, run: JobRun) -> None:
        """Handle a run that code other than the job's has cancelled.

        Either the worker cancelled it, because it gave up the run or because the job was cancelled, or other code of
        the program did. If the worker was cancelled as well, the program is ending. The run then stays among the
        running ones, and the worker decides about all of them.
        """
        if self._worker_task is None or self._worker_task.cancelling() == self._cancelled_before:
            why = "its asyncio task was cancelled, and not by the job's own code"
            in_trial = run.feed is not None and run.feed.trial
            self.end([(run, self._execution.interrupted(run, why, in_trial=in_trial))])

    def lose_running(self, cause: str) -> None:
        """Hand back all running jobs as lost."""
        running, self.running = self.running, {}
        for run in running:
            assert run.feed is not None
            lost = self._execution.interrupted(run, cause, in_trial=run.feed.trial)
            run.feed.settle(*(structs.replace(lost, token=claim.token) for claim in run.claims))

    def hand_back_running(self) -> int:
        """Hand back all running jobs, and return their number. Their code may continue to run, without effect."""
        running, self.running = self.running, {}
        for run in running:
            assert run.feed is not None
            run.feed.hand_back(run.claims)
        return sum(len(run.claims) for run in running)

    def drop(self, feed: Feed) -> None:
        """Forget all claims of a feed whose incarnation has ended, and cancel the running ones.

        Those in threads keep running without effect.
        """
        self.waiting = deque((other, claim) for other, claim in self.waiting if other is not feed)
        self._batches = deque((other, claims) for other, claims in self._batches if other is not feed)
        for run in [run for run in self.running if run.feed is feed]:
            del self.running[run]
            if run.asyncio_task is not None:
                run.asyncio_task.cancel("the lease was lost")
            else:
                self.lost_in_threads.add(run)

    def running_with(self, tokens: Collection[bytes]) -> Iterator[tuple[JobRun, Claim]]:
        """Yield a pair for each running job with one of these tokens: the run, and the claim of the job."""
        for run in list(self.running):
            for claim in run.claims:
                if claim.token in tokens:
                    yield run, claim

    def cancel_waiting(self, feed: Feed, tokens: Collection[bytes]) -> None:
        """Settle the claims with these tokens that have not started as cancelled."""
        batched = [claim for _, claims in self._batches for claim in claims]
        cancelled = [one for one in (*batched, *(claim for _, claim in self.waiting)) if one.token in tokens]
        if not cancelled:
            return
        self.waiting = deque((other, claim) for other, claim in self.waiting if claim not in cancelled)
        batches = [(other, [one for one in claims if one not in cancelled]) for other, claims in self._batches]
        self._batches = deque((other, claims) for other, claims in batches if claims)
        feed.settle(*(Settlement(claim.token, b"", "cancel") for claim in cancelled))
        self._wake()
