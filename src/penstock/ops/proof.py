"""Do the locks of this server exclude, do their fences rise, does a semaphore keep its limit? Asked of what happened.

A holder looks at the server's clock while it holds, and after that at its own certainty: what it was sure of before and
after a moment was so at that moment. From the first to the last of these moments it held, whatever the clocks of the
hosts say; two such spans of one lock must not touch, and the fences must rise in their order.

`prove` makes such a history on a server at work, in a few seconds, with threads that contend, give up and pause for
longer than their lease.
"""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from penstock.app import Penstock
from penstock.errors import LeaseLost, LockTimeout, PermitTimeout
from penstock.locks.lease import Lease
from penstock.locks.lock import Held
from penstock.locks.semaphore import Permit


@dataclass(frozen=True, slots=True)
class Hold:
    """One holding: `began` and `ended` are seconds since 1970 by the server's clock."""

    name: str
    token: str
    began: float
    ended: float
    fence: int = 0
    permits: int = 0


def lock_faults(holds: Iterable[Hold]) -> list[str]:
    """What these holdings of locks break, a sentence each; [] is the good answer."""
    return [fault for holds_of_one in _by_name(holds) for fault in _faults_of_a_lock(holds_of_one)]


def _faults_of_a_lock(holds: list[Hold]) -> Iterator[str]:
    last = holds[0]
    for hold in holds[1:]:
        if hold.began <= last.ended:
            yield f"lock {hold.name!r}: {hold.token} held it at {hold.began:.6f}, {last.token} until {last.ended:.6f}"
        if hold.fence <= last.fence:
            yield f"lock {hold.name!r}: fence {hold.fence} of {hold.token} came after {last.fence} of {last.token}"
        last = max(last, hold, key=lambda one: one.ended)


def semaphore_faults(holds: Iterable[Hold], limit: int) -> list[str]:
    """Each moment at which more permits of a semaphore were held than `limit`; [] is the good answer."""
    return [fault for holds_of_one in _by_name(holds) for fault in _faults_of_a_semaphore(holds_of_one, limit)]


def _faults_of_a_semaphore(holds: list[Hold], limit: int) -> Iterator[str]:
    changes = [(hold.began, 0, hold.permits) for hold in holds] + [(hold.ended, 1, -hold.permits) for hold in holds]
    held = 0
    for at, _, change in sorted(changes):
        held += change
        if held > limit and change > 0:
            yield f"semaphore {holds[0].name!r}: {held} permits were held at {at:.6f}, the limit is {limit}"


def _by_name(holds: Iterable[Hold]) -> Iterator[list[Hold]]:
    for _, group in groupby(sorted(holds, key=lambda one: (one.name, one.began)), lambda one: one.name):
        yield list(group)


@dataclass(frozen=True, slots=True)
class Proof:
    """What `prove` did and found. `lost`: leases that ran out in a pause, as they were meant to."""

    locks: int
    permits: int
    lost: int
    faults: list[str]


class _Contenders:
    """Some threads that take one lock and one semaphore in turns."""

    LIMIT = 3
    LEASE = 0.4

    def __init__(self, app: Penstock, seconds: float) -> None:
        name = f"penstock-proof-{secrets.token_urlsafe(6)}"
        self.lock = app.lock(name, lease=self.LEASE, wait=2)
        self.semaphores = [
            app.semaphore(name, limit=self.LIMIT, permits=n, lease=self.LEASE, wait=2) for n in range(1, self.LIMIT + 1)
        ]
        self.until = time.monotonic() + seconds
        self.holds: list[Hold] = []
        self.lost = 0
        self.errors: list[BaseException] = []

    def contend(self) -> None:
        try:
            while time.monotonic() < self.until:
                try:
                    held: Lease = (self.lock if random.random() < 0.5 else random.choice(self.semaphores)).acquire()
                    self._hold(held)
                except (LockTimeout, PermitTimeout):
                    continue
                except LeaseLost:
                    self.lost += 1
        except BaseException as error:
            self.errors.append(error)

    def _hold(self, held: Lease) -> None:
        fence = held.fence if isinstance(held, Held) else 0
        permits = held.permits if isinstance(held, Permit) else 0
        moments: list[float] = []
        try:
            moments.append(held.moment())
            if random.random() < 0.05:
                held.renewing = False  # as a process that was stopped: nothing renews it
                time.sleep(self.LEASE * 1.2)
            else:
                time.sleep(random.uniform(0, 0.005))
            moments.append(held.moment())
            held.release()
        finally:
            if moments:
                name = self.lock.key
                self.holds.append(Hold(name, held.token, moments[0], moments[-1], fence, permits))


def prove(app: Penstock, *, seconds: float = 3.0, threads: int = 8) -> Proof:
    """Contend for a lock and a semaphore of a name of its own for so long, and judge what happened. Blocks.

    Some hundreds of commands a second; leaves nothing but one key that expires within the hour.
    """
    work = _Contenders(app, seconds)
    running = [threading.Thread(target=work.contend, name="penstock proof") for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if work.errors:
        raise work.errors[0]
    locks = [hold for hold in work.holds if not hold.permits]
    permits = [hold for hold in work.holds if hold.permits]
    faults = lock_faults(locks) + semaphore_faults(permits, work.LIMIT)
    return Proof(len(locks), len(permits), work.lost, faults)
