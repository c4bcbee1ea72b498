"""One queue as a worker sees it: its incarnation there, its turns, and what it holds."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

from penstock.core.ids import mint_id
from penstock.core.operations import RoundTrip, recheck_delay
from penstock.jobs.bindings import Claim, Introduction, Settlement, Turn
from penstock.jobs.queue import Queue
from penstock.settings import SLEEPER_TTL_FACTOR, MiB
from penstock.worker.board import Shown

log = logging.getLogger("penstock.worker")

MOST_SETTLED = 500
"""Settlements one turn carries; keeps a turn below a few milliseconds of server time."""


class Feed:
    """Numbers the turns of one incarnation and begins the next one when it has ended.

    A turn whose reply was lost is sent again as it was, so that it gives the same batch and settles nothing twice.
    """

    def __init__(
        self, queue: Queue, lease: float, sleep: float, who: Introduction, show: Callable[[Shown], None] | None = None
    ) -> None:
        self.queue = queue
        self._who = who
        self._show = show or (lambda _: None)
        self.lease = lease
        self.sleep = sleep
        self.address = ""
        self.held: dict[bytes, int] = {}
        """Tokens, and the bytes of their records."""
        self.suspect: bytes | None = None
        """The one on trial here: no second one is asked for."""
        self.settled: list[Settlement] = []
        self.awake = True
        self.wake_at = 0.0
        self.renewed = 0.0
        self._begin()

    def _begin(self) -> None:
        self.me = mint_id()
        self._number = 0
        self._unanswered: RoundTrip[Turn] | None = None
        self._want = 0
        self._sent: list[Settlement] = []
        self.held.clear()
        self.suspect = None
        self.settled.clear()
        self.awake = True
        self.wake_at = 0.0
        self._show(Shown(self.me, self.renewed, False))

    def turn(self, want: int, *, leave: bool = False) -> RoundTrip[Turn]:
        """The next turn; or, while one is unanswered, that one again."""
        if self._unanswered is None:
            self._number += 1
            n = self._most_settled()
            self._sent, self.settled = self.settled[:n], self.settled[n:]
            # A message that comes from here on may overtake the answer, and must outlive it.
            self.wake_at = math.inf
            self._want = want
            self._unanswered = self.queue.bindings.turn(
                self.me,
                self._number,
                lease=self.lease,
                want=want,
                settlements=self._sent,
                trial="beside" if want and self._free_for_trial() else "",
                address=self.address,
                sleep=self.sleep * SLEEPER_TTL_FACTOR if want else 0.0,
                once=leave,
                who=self._who if self._number == 1 else None,
            )
        return self._unanswered

    def _most_settled(self) -> int:
        """The server rewrites the whole record of a job that does not just complete: of those 1 MiB at a time."""
        size = 0
        for place, settlement in enumerate(self.settled[:MOST_SETTLED]):
            size += self.held.get(settlement.token, 0) if settlement.ending else 0
            if size > MiB and place:
                return place
        return MOST_SETTLED

    def _free_for_trial(self) -> bool:
        return self.suspect is None or any(settlement.token == self.suspect for settlement in self._sent)

    def answered(self, turn: Turn, asked_at: float) -> list[Claim]:
        """Take the answer in. Returns the new claims; an ended incarnation drops all it held and begins anew."""
        self._unanswered = None
        if not turn.alive:
            if self.held:
                log.warning("lease lost on queue %s: %d jobs are dropped here", self.queue.name, len(self.held))
            self._begin()
            return []
        for settlement in self._sent:
            self.held.pop(settlement.token, None)
            if settlement.token == self.suspect:
                self.suspect = None
        for settlement in turn.stale:
            log.warning("settlement of job %s refused: it was taken back", settlement.id)
        self._sent = []
        for claim in turn.claims:
            self.held[claim.token] = len(claim.record.body)
            if claim.record.is_suspect:
                self.suspect = claim.token
        self.keep(asked_at)
        # Without a want it is not known whether there is more; and it did not lie down.
        self.awake = len(turn.claims) == self._want or turn.more
        due = self.sleep if turn.due_in is None else min(self.sleep, turn.due_in)
        self.wake_at = min(self.wake_at, time.monotonic() + due)
        return turn.claims

    def keep(self, asked_at: float) -> None:
        """What was asked at this time renewed the lease."""
        self.renewed = max(self.renewed, asked_at)
        self._show(Shown(self.me, self.renewed, bool(self.held)))

    @property
    def busy(self) -> bool:
        """Is there something that must reach the server?"""
        return bool(self.settled) or self._unanswered is not None

    def woken(self, messages: list[str]) -> None:
        """Messages came for this sleeper: it wakes when the first of them asks."""
        for message in messages:
            self.wake_at = min(self.wake_at, time.monotonic() + recheck_delay(message))
