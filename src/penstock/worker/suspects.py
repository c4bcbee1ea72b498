"""A worker and its suspects: jobs that may have killed a process, and wait for a trial.

Under a supervisor it reports them. Without one, it waits for the time of a lease, in which another worker's supervisor
may try them. Then it starts a trial process itself. If its app cannot be imported by name, it runs one suspect here:

    serving ──▶ emptying ───────────▶ trying ───────────────────▶ serving
               claims nothing,       in an incarnation that      in a new incarnation
               jobs run to their end is marked as a trial
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from penstock.jobs.shard import Shard
from penstock.settings import WorkerSettings
from penstock.worker.feed import Feed
from penstock.worker.shared_status import SUSPECTS, SharedStatus
from penstock.worker.trials import TrialCommand, Trials

_LAST = 5.0
"""Seconds after its own deadline that a stopping worker still waits for its trial processes."""


class Turn(Protocol):
    def __call__(self, feed: Feed, want: int, *, leave: bool = False) -> Coroutine[Any, Any, None]: ...


class SuspectWatch:
    """Has suspects tried when the replies to a worker's turns report that some wait."""

    def __init__(
        self,
        feeds: Sequence[Feed],
        shards: Sequence[Shard],
        turn: Turn,
        command: Callable[[], TrialCommand | None],
        settings: WorkerSettings,
    ) -> None:
        """
        shards   all that the worker may ever serve
        turn     has the worker take a turn
        command  returns the command of a trial process; None: no other process could import the app
        """
        self._feeds = feeds
        self._shards = shards
        self._turn = turn
        self._command = command
        self._settings = settings
        self.status: SharedStatus | None = None
        """Carries the reports to the supervisor; None if the worker has no supervisor."""
        self._trials: Trials | None = None
        self._here: Feed | None = None

    @property
    def claims_are_blocked(self) -> bool:
        """Whether the worker is emptying itself, or runs a suspect alone."""
        return self._here is not None

    @property
    def work_is_left(self) -> bool:
        """Whether a `burst` worker must not end yet, because suspects wait or are tried. A supervisor waits itself."""
        if self.status is not None:
            return False
        return any(feed.untried_since is not None for feed in self._feeds) or (
            self._trials is not None and self._trials.are_running
        )

    def turn_was_answered(self, feed: Feed) -> None:
        if feed.untried_since is None:
            return
        if self.status is not None:
            self.status.report(SUSPECTS)
        elif not feed.trial and self._here is None:
            due = feed.untried_since + feed.lease
            if due > time.monotonic():
                feed.wake_at = min(feed.wake_at, due)
            else:
                self._have_tried(feed)

    def _have_tried(self, feed: Feed) -> None:
        if self._trials is None:
            command = self._command()
            if command is None:
                self._here = feed
                return
            self._trials = Trials(*command, self._shards, self._settings, feed.lease, ended=self._look_again)
        self._trials.suspects_wait()

    def _look_again(self) -> None:
        """Take turns again after a trial process has ended, because the worker may have waited only for that."""
        for feed in self._feeds:
            feed.look_again()

    async def worker_is_empty(self) -> None:
        """Begin or end a trial here. Call it while claims are blocked and the worker holds no job."""
        feed = self._here
        assert feed is not None
        if feed.trial:
            await self._turn(feed, 0, leave=True)
            self._here = None
            for one in self._feeds:
                one.end_trials()
        else:
            for one in self._feeds:  # no wake-up goes to this worker while it tries the suspect
                await self._turn(one, 0, leave=True)
            feed.begin_trials(None)
            await self._turn(feed, 1)

    def stop(self) -> None:
        """The first call lets running trials finish, the second hands their jobs back."""
        if self._trials is not None:
            self._trials.stop()

    async def close(self, deadline: float) -> None:
        """Wait for the trial processes until `deadline`, by `time.monotonic()`; then kill them."""
        if self._trials is None:
            return
        self._trials.stop()
        await self._trials.wait(deadline + _LAST)

    def kill(self) -> None:
        if self._trials is not None:
            self._trials.kill()
