"""The app of a worker that records its own history: `penstock worker tests.chaos.recording_worker:app`.

It records when a run begins and ends, and what each turn answered about settlements and the lease. For that it wraps
methods of the worker's classes, so a test must not import this module into its own process.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Coroutine
from typing import Any, Literal

from penstock.jobs.claims import Claim, Settlement, TurnReply
from penstock.testing.history import Ended, History, LeaseExpired, Settled, Started
from penstock.worker.batches import BatchRun
from penstock.worker.execution import Execution
from penstock.worker.feed import Feed
from penstock.worker.run import JobRun
from penstock.worker.runs import Runs
from tests.chaos.tasks import app, claim_number, current_claims, newer

__all__ = ["app", "history", "newer"]

history = History(os.environ["STORM_HISTORY"])
started: set[bytes] = set()
"""Tokens of the claims that began to run here. A claim that is handed back before that is not a run."""


def _record_start(next_run: Callable[[Runs], JobRun | None]) -> Any:
    @functools.wraps(next_run)
    def recorded(self: Runs) -> JobRun | None:
        run = next_run(self)
        if run is None:
            return None
        for claim in run.claims:
            started.add(claim.token)
            n, attempt = claim_number(claim.token), claim.record.attempts
            history.note(Started(job=claim.id, claim=n, worker=str(os.getpid()), attempt=attempt))
        return run

    return recorded


def _record_end(run: JobRun, settlement: Settlement) -> Settlement:
    for one in run.settlements(settlement) if isinstance(run, BatchRun) else (settlement,):
        history.note(Ended(job=one.id, claim=claim_number(one.token), returned=one.ending is None))
    return settlement


def _record_async_start(start: Callable[[Execution, JobRun], Coroutine[Any, Any, Any]]) -> Any:
    @functools.wraps(start)
    def recorded(self: Execution, run: JobRun) -> Coroutine[Any, Any, Any]:
        async def run_it() -> Any:
            current_claims.set(run.claims)
            return await start(self, run)

        return run_it()

    return recorded


def _record_async_end(settle: Callable[..., Settlement]) -> Any:
    """Of an `async def` task: `completed`, `failed` and so on return its settlement."""

    @functools.wraps(settle)
    def recorded(self: Execution, run: JobRun, *args: Any) -> Settlement:
        settlement = settle(self, run, *args)
        return _record_end(run, settlement) if run.definition.is_async and not run.definition.isolate else settlement

    return recorded


def _record_blocking_run(run_blocking: Callable[..., Settlement]) -> Any:
    @functools.wraps(run_blocking)
    def recorded(self: Execution, run: JobRun, *options: Any) -> Settlement:
        current_claims.set(run.claims)
        return _record_end(run, run_blocking(self, run, *options))

    return recorded


def _record_turn(answered: Callable[[Feed, TurnReply, float], list[Claim]]) -> Any:
    @functools.wraps(answered)
    def recorded(self: Feed, turn: TurnReply, sent_at: float) -> list[Claim]:
        sent, held = [one for settlement in self._sent for one in settlement.each()], bool(self.held)
        claims = answered(self, turn, sent_at)
        if not turn.alive and held:
            history.note(LeaseExpired(worker=str(os.getpid())))
        stale = {settlement.token for settlement in turn.stale}
        for one in sent:
            # The server may have applied a turn whose reply was lost, and then refused its repetition as a whole.
            answer: Literal["accepted", "refused", "unknown"] = "accepted"
            if not turn.alive or one.token in stale:
                answer = "refused" if turn.alive else "unknown"
            how = one.ending or "complete"
            if one.token in started:
                started.discard(one.token)
                history.note(Settled(job=one.id, claim=claim_number(one.token), how=how, answer=answer))
        return claims

    return recorded


Runs.next = _record_start(Runs.next)  # type: ignore[method-assign]
Execution.start = _record_async_start(Execution.start)  # type: ignore[method-assign]
Execution.completed = _record_async_end(Execution.completed)  # type: ignore[method-assign]
Execution.failed = _record_async_end(Execution.failed)  # type: ignore[method-assign]
Execution.run_blocking = _record_blocking_run(Execution.run_blocking)  # type: ignore[method-assign]
Feed.answered = _record_turn(Feed.answered)  # type: ignore[method-assign]
