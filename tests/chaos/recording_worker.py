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
from penstock.worker.execution import Execution
from penstock.worker.feed import Feed
from penstock.worker.run import JobRun
from penstock.worker.runs import Runs
from tests.chaos.tasks import app, claim_number, current_claim, newer

__all__ = ["app", "history", "newer"]

history = History(os.environ["STORM_HISTORY"])
started: set[int] = set()
"""Numbers of the claims that began to run here. A claim that is handed back before that is not a run."""


def _record_start(next_run: Callable[[Runs], JobRun | None]) -> Any:
    @functools.wraps(next_run)
    def recorded(self: Runs) -> JobRun | None:
        run = next_run(self)
        if run is None:
            return None
        claim = run.claim
        n = claim_number(claim.token)
        started.add(n)
        history.note(Started(job=claim.id, claim=n, worker=str(os.getpid()), attempt=claim.record.attempts))
        return run

    return recorded


def _record_end(claim: Claim, settlement: Settlement) -> Settlement:
    history.note(Ended(job=claim.id, claim=claim_number(claim.token), returned=settlement.ending is None))
    return settlement


def _record_async_start(start: Callable[[Execution, JobRun], Coroutine[Any, Any, Any]]) -> Any:
    @functools.wraps(start)
    def recorded(self: Execution, run: JobRun) -> Coroutine[Any, Any, Any]:
        async def run_it() -> Any:
            current_claim.set(run.claim)
            return await start(self, run)

        return run_it()

    return recorded


def _record_async_end(settle: Callable[..., Settlement]) -> Any:
    """Of an `async def` task: `completed`, `failed` and so on return its settlement."""

    @functools.wraps(settle)
    def recorded(self: Execution, run: JobRun, *args: Any) -> Settlement:
        settlement = settle(self, run, *args)
        return (
            _record_end(run.claim, settlement) if run.definition.is_async and not run.definition.isolate else settlement
        )

    return recorded


def _record_blocking_run(run_blocking: Callable[..., Settlement]) -> Any:
    @functools.wraps(run_blocking)
    def recorded(self: Execution, run: JobRun, *options: Any) -> Settlement:
        current_claim.set(run.claim)
        return _record_end(run.claim, run_blocking(self, run, *options))

    return recorded


def _record_turn(answered: Callable[[Feed, TurnReply, float], list[Claim]]) -> Any:
    @functools.wraps(answered)
    def recorded(self: Feed, turn: TurnReply, sent_at: float) -> list[Claim]:
        sent, held = list(self._sent), bool(self.held)
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
            if (n := claim_number(one.token)) in started:
                started.discard(n)
                history.note(Settled(job=one.id, claim=n, how=how, answer=answer))
        return claims

    return recorded


Runs.next = _record_start(Runs.next)  # type: ignore[method-assign]
Execution.start = _record_async_start(Execution.start)  # type: ignore[method-assign]
Execution.completed = _record_async_end(Execution.completed)  # type: ignore[method-assign]
Execution.failed = _record_async_end(Execution.failed)  # type: ignore[method-assign]
Execution.run_blocking = _record_blocking_run(Execution.run_blocking)  # type: ignore[method-assign]
Feed.answered = _record_turn(Feed.answered)  # type: ignore[method-assign]
