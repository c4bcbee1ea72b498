"""Claiming jobs in a program without a worker: at once, or by waiting for them, in all shards of one or several queues.

A claim that waits is registered as idle in each shard, under an incarnation of its own, and asks only the shard that
sent a wake-up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from penstock.core.ids import mint_id
from penstock.core.operations import Listen, Listener, Operation, Parallel, RoundTrip, Wait, recheck_delay
from penstock.jobs.claims import TurnReply
from penstock.jobs.item import Item
from penstock.jobs.shard import Shard
from penstock.jobs.shards import ShardMap
from penstock.settings import SLEEPER_TTL_FACTOR


def claim_in_order(claims: Iterable[Callable[[int], Operation[list[Item]]]], n: int) -> Operation[list[Item]]:
    """Claim until there are `n` items. If one claim fails or is cancelled, the items of the others are released."""
    items: list[Item] = []
    try:
        for claim in claims:
            items += yield from claim(n - len(items))
            if len(items) >= n:
                break
    except BaseException:
        for shard, incarnation in dict.fromkeys((item.shard, item._incarnation) for item in items):
            yield from shard.abandon(incarnation)
        raise
    return items


def claim_now(shard: Shard, n: int, lease: float) -> Operation[list[Item]]:
    """Claim up to `n` jobs without waiting."""
    while True:
        incarnation = mint_id()
        try:
            turn = yield shard.bindings.turn(incarnation, 1, lease=lease, want=n, trial="alone", once=True)
        except BaseException:
            yield from shard.abandon(incarnation)
            raise
        if turn.claims or not turn.more:
            return [Item(shard, incarnation, claim) for claim in turn.claims]


def claim_or_wait(
    claims: Iterable[Callable[[int], Operation[list[Item]]]],
    queues: Sequence[ShardMap],
    n: int,
    wait: float | None,
    lease: float,
) -> Operation[list[Item]]:
    """Claim by `claims`, one for each of these queues, without waiting. If they find nothing, wait in all queues."""
    items = yield from claim_in_order(claims, n)
    if items or wait == 0:
        return items
    return (yield from WaitingClaim(queues, lease).wait(n, wait))


class IdleClaim:
    """The registration of a waiting claim in one shard.

    order     the position of its queue among those that the claim waits for
    due       when it asks the shard again, without a message: a `time.monotonic()`
    may_hold  it may have claimed jobs: a turn was not answered yet, or its jobs were not returned yet
    """

    def __init__(self, shard: Shard, listener: Listener, order: int = 0) -> None:
        self.shard = shard
        self.listener = listener
        self.order = order
        self.due = 0.0
        self.may_hold = False
        self._incarnation, self._turns = mint_id(), 0

    def ask(self, n: int, lease: float, *, is_last: bool) -> Operation[list[Item]]:
        """Claim up to `n` jobs. If it finds nothing, it is registered as idle, unless it `is_last`."""
        every = self.shard.settings.sleep
        while True:
            self._turns += 1
            self.may_hold = True
            turn = yield self.shard.bindings.turn(
                self._incarnation,
                self._turns,
                lease=lease,
                want=n,
                trial="alone",
                address=self.listener.address,
                sleep=0.0 if is_last else every * SLEEPER_TTL_FACTOR,
                once=True,
            )
            if turn.claims:
                return [Item(self.shard, self._incarnation, claim) for claim in turn.claims]
            self.may_hold = False
            if turn.alive and not turn.more:
                self.due = time.monotonic() + (every if turn.due_in is None else min(every, turn.due_in))
                return []
            self.forget()  # the server has ended it, because it has no claims and is not idle

    def leave(self, lease: float) -> RoundTrip[TurnReply]:
        """A turn that wants no job: it ends the registration, and passes a wake-up to another claim or worker."""
        return self.shard.bindings.turn(
            self._incarnation, self._turns + 1, lease=lease, want=0, address=self.listener.address, once=True
        )

    def abandon(self) -> Operation[None]:
        """Give back the jobs that it may have claimed."""
        yield from self.shard.abandon(self._incarnation)
        self.forget()

    def forget(self) -> None:
        """Forget the incarnation, which has ended: the next turn begins another one."""
        self._incarnation, self._turns = mint_id(), 0


class WaitingClaim:
    """A claim that waits in each shard of some queues. When several have jobs, it asks them in the order given."""

    def __init__(self, queues: Sequence[ShardMap], lease: float) -> None:
        self._queues = queues
        self._lease = lease
        self._idle: list[IdleClaim] = []
        """In the order of the queues."""
        self._bell: Listener | None = None
        """Is notified of every message to a registration. For one queue without shards, it is the only listener."""
        self._looks_for_shards_at = 0.0

    def wait(self, n: int, seconds: float | None) -> Operation[list[Item]]:
        """See `Queue.claim` and `Penstock.claim`."""
        deadline = None if seconds is None else time.monotonic() + seconds
        try:
            while True:
                yield from self._register()
                now = time.monotonic()
                is_last = deadline is not None and now >= deadline
                for idle in self._idle:
                    if is_last or idle.due <= now:
                        items = yield from idle.ask(n, self._lease, is_last=is_last)
                        if items:
                            yield from self._leave([one for one in self._idle if one is not idle])
                            return items
                if is_last:
                    return []
                yield from self._wait_until_due(deadline)
        except BaseException:
            yield from self._abandon()
            raise
        finally:
            for one in (self._bell, *(idle.listener for idle in self._idle)):
                if one is not None:
                    one.close()

    def _register(self) -> Operation[None]:
        """Listen in each shard, also in those that were added since. A round trip for each queue that has shards."""
        first = self._queues[0].first
        if len(self._queues) == 1 and self._queues[0].named is None:
            if not self._idle:
                listener = self._bell = yield Listen(first.bindings.keys.base)
                self._idle.append(IdleClaim(first, listener))
            return
        if time.monotonic() < self._looks_for_shards_at:
            return
        self._looks_for_shards_at = time.monotonic() + first.settings.sleep
        if self._bell is None:
            self._bell = yield Listen(first.bindings.keys.base)
        for order, shards in enumerate(self._queues):
            registered = sum(idle.order == order for idle in self._idle)
            for shard in (yield from shards.refresh()).known[registered:]:
                listener = yield Listen(shard.bindings.keys.base, beside=self._bell)
                self._idle.append(IdleClaim(shard, listener, order))
        self._idle.sort(key=lambda idle: idle.order)

    def _wait_until_due(self, deadline: float | None) -> Operation[None]:
        """Sleep until a shard is to be asked, by time or because of a message, or until the deadline."""
        assert self._bell is not None
        while True:
            until = min(idle.due for idle in self._idle)
            left = (until if deadline is None else min(until, deadline)) - time.monotonic()
            if left <= 0:
                return
            heard = yield Wait(self._bell, left)
            now = time.monotonic()
            for idle in self._idle:
                messages = heard if idle.listener is self._bell else (yield Wait(idle.listener, 0))
                idle.due = min([idle.due, *(now + recheck_delay(message) for message in messages)])

    def _leave(self, claims: Sequence[IdleClaim]) -> Operation[None]:
        """End the registrations in these shards. One round trip to each node."""
        while claims:
            replies = yield Parallel(tuple(idle.leave(self._lease) for idle in claims))
            claims = [idle for idle, reply in zip(claims, replies, strict=True) if not reply.alive]
            for idle in claims:
                idle.forget()

    def _abandon(self) -> Operation[None]:
        """Give back all jobs, and end all registrations."""
        try:
            for idle in self._idle:
                if idle.may_hold:
                    yield from idle.abandon()
        finally:
            yield from self._leave(self._idle)
