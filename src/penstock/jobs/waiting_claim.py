"""A claim that waits for jobs, in one queue or in all shards of a queue.

It is registered as idle in each shard, under an incarnation of its own, and asks only the shard that sent a wake-up.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol, Self

from penstock.core.ids import mint_id
from penstock.core.operations import Listen, Listener, Operation, Parallel, RoundTrip, Wait, recheck_delay
from penstock.jobs.claims import TurnReply
from penstock.jobs.item import Item
from penstock.jobs.job import JobQueue
from penstock.settings import SLEEPER_TTL_FACTOR


class ClaimedQueue(JobQueue, Protocol):
    """The parts of a queue that this module uses."""

    @property
    def is_split(self) -> bool: ...
    def fresh_parts(self) -> Operation[tuple[Self, ...]]: ...
    def abandon(self, incarnation: str) -> Operation[bool]: ...


class Place:
    """The registration of a waiting claim in one queue or shard.

    due       when it asks the queue again, without a message: a `time.monotonic()`
    may_hold  it may have claimed jobs: a turn was not answered yet, or its jobs were not returned yet
    """

    def __init__(self, queue: ClaimedQueue, listener: Listener) -> None:
        self.queue = queue
        self.listener = listener
        self.due = 0.0
        self.may_hold = False
        self._incarnation, self._turns = mint_id(), 0

    def ask(self, n: int, lease: float, *, is_last: bool) -> Operation[list[Item]]:
        """Claim up to `n` jobs. If it finds nothing, it is registered as idle, unless it `is_last`."""
        every = self.queue.settings.sleep
        while True:
            self._turns += 1
            self.may_hold = True
            turn = yield self.queue.bindings.turn(
                self._incarnation, self._turns, lease=lease, want=n, trial="alone", address=self.listener.address,
                sleep=0.0 if is_last else every * SLEEPER_TTL_FACTOR, once=True,
            )  # fmt: skip
            if turn.claims:
                return [Item(self.queue, self._incarnation, claim) for claim in turn.claims]
            self.may_hold = False
            if turn.alive and not turn.more:
                self.due = time.monotonic() + (every if turn.due_in is None else min(every, turn.due_in))
                return []
            self.forget()  # the server has ended it, because it has no claims and is not idle

    def leave(self, lease: float) -> RoundTrip[TurnReply]:
        """A turn that wants no job: it ends the registration, and sends a wake-up on to another claim or worker."""
        return self.queue.bindings.turn(
            self._incarnation, self._turns + 1, lease=lease, want=0, address=self.listener.address, once=True
        )

    def abandon(self) -> Operation[None]:
        """Give back what it may have claimed."""
        yield from self.queue.abandon(self._incarnation)
        self.forget()

    def forget(self) -> None:
        """The incarnation has ended: the next turn is that of another one."""
        self._incarnation, self._turns = mint_id(), 0


class WaitingClaim:
    """The places of one claim: one, or one in each shard."""

    def __init__(self, queue: ClaimedQueue, lease: float) -> None:
        self._queue = queue
        self._lease = lease
        self._places: list[Place] = []
        self._bell: Listener | None = None
        """Hears of every message to a place. In a queue without shards it is the listener of its one place."""
        self._looks_for_shards_at = 0.0

    def wait(self, n: int, seconds: float | None) -> Operation[list[Item]]:
        """See `Queue.claim`."""
        deadline = None if seconds is None else time.monotonic() + seconds
        try:
            while True:
                yield from self._open_places()
                now = time.monotonic()
                is_last = deadline is not None and now >= deadline
                for place in self._places:
                    if is_last or place.due <= now:
                        items = yield from place.ask(n, self._lease, is_last=is_last)
                        if items:
                            yield from self._leave([one for one in self._places if one is not place])
                            return items
                if is_last:
                    return []
                yield from self._wait_until_due(deadline)
        except BaseException:
            yield from self._abandon()
            raise
        finally:
            for one in (self._bell, *(place.listener for place in self._places)):
                if one is not None:
                    one.close()

    def _open_places(self) -> Operation[None]:
        """Have a place in each shard, also in those that were added since. A round trip if the queue has shards."""
        if not self._queue.is_split:
            if not self._places:
                listener = self._bell = yield Listen(self._queue.bindings.keys.base)
                self._places.append(Place(self._queue, listener))
            return
        if time.monotonic() < self._looks_for_shards_at:
            return
        self._looks_for_shards_at = time.monotonic() + self._queue.settings.sleep
        parts = yield from self._queue.fresh_parts()
        if self._bell is None:
            self._bell = yield Listen(self._queue.bindings.keys.base)
        for part in parts[len(self._places) :]:
            listener = yield Listen(part.bindings.keys.base, beside=self._bell)
            self._places.append(Place(part, listener))

    def _wait_until_due(self, deadline: float | None) -> Operation[None]:
        """Sleep until a place is due by its own time or by a message to it, or until the deadline."""
        assert self._bell is not None
        while True:
            until = min(place.due for place in self._places)
            left = (until if deadline is None else min(until, deadline)) - time.monotonic()
            if left <= 0:
                return
            heard = yield Wait(self._bell, left)
            now = time.monotonic()
            for place in self._places:
                messages = heard if place.listener is self._bell else (yield Wait(place.listener, 0))
                place.due = min([place.due, *(now + recheck_delay(message) for message in messages)])

    def _leave(self, places: Sequence[Place]) -> Operation[None]:
        """Wait in these queues no longer. One round trip to each node."""
        while places:
            replies = yield Parallel(tuple(place.leave(self._lease) for place in places))
            places = [place for place, reply in zip(places, replies, strict=True) if not reply.alive]
            for place in places:
                place.forget()

    def _abandon(self) -> Operation[None]:
        """Give back all jobs, and wait no longer."""
        try:
            for place in self._places:
                if place.may_hold:
                    yield from place.abandon()
        finally:
            yield from self._leave(self._places)
