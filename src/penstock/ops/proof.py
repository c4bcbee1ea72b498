"""Proves from a history that the locks of a server exclude, their fences rise, and a semaphore keeps its limit.

A holder reads the server's time while it holds a lock, then checks that its lease is still certain. If it is, the
holder held the lock at that server time. Between the first and the last of these times it held the lock without a
break. Such an interval does not depend on the clock of any host. Two intervals of one lock must not touch, and fences
must rise in the order of the intervals.

`prove` records such a history on a live server in a few seconds: its threads contend for a lock, time out, and
sometimes pause for longer than their lease.
"""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby

from penstock.app import Penstock
from penstock.errors import LeaseLost, LockTimeout, PermitTimeout
from penstock.locks.lease import Lease
from penstock.locks.lock import Held
from penstock.locks.semaphore import Permit


@dataclass(frozen=True, slots=True)
class HoldInterval:
    """A time during which one holder certainly held a lock, or permits of a semaphore.

    `start` and `end` are seconds since 1970 by the server's clock.
    """

    name: str
    token: str
    start: float
    end: float
    fence: int = 0
    permits: int = 0


def lock_violations(intervals: Iterable[HoldInterval]) -> list[str]:
    """A sentence for each pair of holders that held one lock at once, or whose fences decrease; [] if all is well."""
    return [violation for of_lock in _by_name(intervals) for violation in _violations_of_lock(of_lock)]


def _violations_of_lock(intervals: list[HoldInterval]) -> Iterator[str]:
    last = intervals[0]
    for next_ in intervals[1:]:
        lock = f"lock {next_.name!r}"
        if next_.start <= last.end:
            yield f"{lock}: {next_.token} held it at {next_.start:.6f}, {last.token} until {last.end:.6f}"
        if next_.fence <= last.fence:
            yield f"{lock}: fence {next_.fence} of {next_.token} came after {last.fence} of {last.token}"
        last = max(last, next_, key=lambda interval: interval.end)


def semaphore_violations(intervals: Iterable[HoldInterval], limit: int) -> list[str]:
    """A sentence for each moment at which more than `limit` permits of a semaphore were held; [] if all is well."""
    return [violation for of_one in _by_name(intervals) for violation in _violations_of_semaphore(of_one, limit)]


def _violations_of_semaphore(intervals: list[HoldInterval], limit: int) -> Iterator[str]:
    taken = [(interval.start, 0, interval.permits) for interval in intervals]
    returned = [(interval.end, 1, -interval.permits) for interval in intervals]
    held = 0
    for at, _, change in sorted(taken + returned):
        held += change
        if held > limit and change > 0:
            yield f"semaphore {intervals[0].name!r}: {held} permits were held at {at:.6f}, the limit is {limit}"


def _by_name(intervals: Iterable[HoldInterval]) -> Iterator[list[HoldInterval]]:
    """The intervals grouped by name, each group sorted by start."""
    in_order = sorted(intervals, key=lambda interval: (interval.name, interval.start))
    for _, group in groupby(in_order, lambda interval: interval.name):
        yield list(group)


@dataclass(frozen=True, slots=True)
class Proof:
    """The report of `prove`.

    `locks` and `permits` count how often each was held; `expired` counts leases that ran out in a deliberate pause.
    """

    locks: int
    permits: int
    expired: int
    violations: list[str]


class _Contenders:
    """Threads that contend for one lock and one semaphore, and record when they held each."""

    LIMIT = 3
    LEASE = 0.4
    PAUSE_PROBABILITY = 0.05

    def __init__(self, app: Penstock, seconds: float) -> None:
        name = f"penstock-proof-{secrets.token_urlsafe(6)}"
        self.lock = app.lock(name, lease=self.LEASE, wait=2)
        self.semaphores = [
            app.semaphore(name, limit=self.LIMIT, permits=n, lease=self.LEASE, wait=2) for n in range(1, self.LIMIT + 1)
        ]
        self.until = time.monotonic() + seconds
        self.intervals: list[HoldInterval] = []
        self.expired = 0
        self.errors: list[BaseException] = []

    def contend(self) -> None:
        """Run by each thread."""
        try:
            while time.monotonic() < self.until:
                try:
                    held: Lease = (self.lock if random.random() < 0.5 else random.choice(self.semaphores)).acquire()
                    self._hold(held)
                except (LockTimeout, PermitTimeout):
                    continue
                except LeaseLost:
                    self.expired += 1
        except BaseException as error:
            self.errors.append(error)

    def _hold(self, held: Lease) -> None:
        fence = held.fence if isinstance(held, Held) else 0
        permits = held.permits if isinstance(held, Permit) else 0
        moments: list[float] = []
        try:
            moments.append(held.moment())
            if random.random() < self.PAUSE_PROBABILITY:
                held.renewing = False  # simulates a stopped process: the lease is not renewed
                time.sleep(self.LEASE * 1.2)
            else:
                time.sleep(random.uniform(0, 0.005))
            moments.append(held.moment())
            held.release()
        except LeaseLost:
            # A slow reply makes a lease uncertain that the server still has, and that would be renewed.
            with suppress(LeaseLost):
                held.release()
            raise
        finally:
            if moments:
                name = self.lock.key
                self.intervals.append(HoldInterval(name, held.token, moments[0], moments[-1], fence, permits))


def prove(app: Penstock, *, seconds: float = 3.0, threads: int = 8) -> Proof:
    """Contend for a lock and a semaphore of a random name for this many seconds, and judge the history. Blocks.

    Sends some hundreds of commands a second. Leaves one key behind, which expires within an hour.
    """
    contenders = _Contenders(app, seconds)
    running = [threading.Thread(target=contenders.contend, name="penstock proof") for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if contenders.errors:
        raise contenders.errors[0]
    locks = [interval for interval in contenders.intervals if not interval.permits]
    permits = [interval for interval in contenders.intervals if interval.permits]
    violations = lock_violations(locks) + semaphore_violations(permits, contenders.LIMIT)
    return Proof(len(locks), len(permits), contenders.expired, violations)
