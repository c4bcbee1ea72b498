"""What a worker of the chaos tests writes down, taken around its own steps.

When a run begins and ends, and what each turn said of its settlements and of the lease. `penstock worker
tests.chaos.notes:app` takes notes; a test must not import this.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, Literal

from penstock.jobs.claims import Claim, Settlement, TurnReply
from penstock.testing.history import Ended, History, Lost, Settled, Started
from penstock.worker.execution import Execution, JobRun
from penstock.worker.feed import Feed
from penstock.worker.running import Inflight
from tests.chaos.work import app, in_hand, newer, number

__all__ = ["app", "history", "newer"]

history = History(os.environ["STORM_HISTORY"])
started: set[int] = set()
"""Claims whose run began here: what is handed back before that is no run."""


def _starts(start: Callable[[Inflight, Feed, Claim, str], None]) -> Any:
    @functools.wraps(start)
    def noted(self: Inflight, feed: Feed, claim: Claim, name: str) -> None:
        start(self, feed, claim, name)
        started.add(number(claim.token))
        history.note(
            Started(job=claim.id, claim=number(claim.token), worker=str(os.getpid()), attempt=claim.record.attempts)
        )

    return noted


def _ended(claim: Claim, settlement: Settlement) -> Settlement:
    history.note(Ended(job=claim.id, claim=number(claim.token), returned=settlement.ending is None))
    return settlement


def _runs(run: Callable[..., Any]) -> Any:
    @functools.wraps(run)
    async def noted(self: Execution, what: JobRun, **more: Any) -> Settlement:
        in_hand.set(what.claim)
        return _ended(what.claim, await run(self, what, **more))

    return noted


def _runs_in_a_thread(run: Callable[..., Settlement]) -> Any:
    @functools.wraps(run)
    def noted(self: Execution, what: JobRun, *more: Any) -> Settlement:
        in_hand.set(what.claim)
        return _ended(what.claim, run(self, what, *more))

    return noted


def _told(answered: Callable[[Feed, TurnReply, float], list[Claim]]) -> Any:
    @functools.wraps(answered)
    def noted(self: Feed, turn: TurnReply, asked_at: float) -> list[Claim]:
        sent, held = list(self._sent), bool(self.held)
        claims = answered(self, turn, asked_at)
        if not turn.alive and held:
            history.note(Lost(worker=str(os.getpid())))
        stale = {settlement.token for settlement in turn.stale}
        for one in sent:
            # A turn that was refused whole may have been taken before, when its reply was lost.
            answer: Literal["accepted", "refused", "unknown"] = "accepted"
            if not turn.alive or one.token in stale:
                answer = "refused" if turn.alive else "unknown"
            how = one.ending or "complete"
            if (claim := number(one.token)) in started:
                started.discard(claim)
                history.note(Settled(job=one.id, claim=claim, how=how, answer=answer))
        return claims

    return noted


Inflight.start = _starts(Inflight.start)  # type: ignore[method-assign]
Execution.run_async = _runs(Execution.run_async)  # type: ignore[method-assign]
Execution.run_blocking = _runs_in_a_thread(Execution.run_blocking)  # type: ignore[method-assign]
Feed.answered = _told(Feed.answered)  # type: ignore[method-assign]
