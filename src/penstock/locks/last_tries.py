"""Notes when this process last tried each lock or semaphore that it waits for, or waited for in the last seconds.

The server asks two waiters of different processes to try again when a lease may end. If both died together with the
owner, no process would try. So each process tries on its own: every five seconds (with leases below eight seconds:
after a fraction of the shortest lease) it tries the lock whose last try was longest ago. If a waiter gets a lock that
was not handed over to it, another process has died: then all waiters of this process try at once.

A waiter of a rate limit knows from each reply when the offer to the first waiter ends. Until then nothing can be late,
so no waiter of this process tries before that time. Then one of them does, unless one did within two seconds.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

from penstock.core.operations import Driver, Listener, Operation, Wait, recheck_delay

INTERVAL = 5.0
"""Seconds between two tries of an idle process."""

# With short leases, the interval is this fraction of the lease, but not less than the shortest one in seconds. A live
# owner has renewed its lease after a third of it, so a later try shows whether it has (`core/waiters.lua`).
_PART_OF_LEASE = 0.6
_SHORTEST_INTERVAL = 2.0

# A process that has waited for the same keys in the last 5 s joins the waiters in its first attempt. Its subscription
# lives equally long: without one, the first attempt would need a second round trip as well.
_LATELY = 5.0

# The most requests, each by its keys, whose last wait is remembered.
_MOST_REMEMBERED = 1000


class LastTries:
    """The last tries of one app in this process, by the keys that were asked for."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._waiters: Counter[tuple[str, ...]] = Counter()
        self._listeners: dict[Listener, tuple[str, ...]] = {}
        self._tried: dict[tuple[str, ...], float] = {}
        self._intervals: dict[tuple[str, ...], float] = {}
        self._next_at = 0.0
        self._waited: dict[tuple[str, ...], float] = {}
        self._offers_end: dict[tuple[str, ...], float] = {}
        self._next_offer_check_at = 0.0

    @classmethod
    def of(cls, driver: Driver) -> LastTries:
        """The last tries of the app that has this driver. A forked child begins with none."""
        found = _of_drivers.get(driver)
        if found is None or found._pid != os.getpid():
            found = _of_drivers[driver] = cls()
        return found

    @contextmanager
    def waiting(
        self, keys: tuple[str, ...], listener: Listener, lease: float = math.inf, *, checks_offers: bool = False
    ) -> Iterator[None]:
        """Count a waiter while the `with` block runs.

        lease          the seconds that it asks for
        checks_offers  whether it tries on its own only when the offer to the first waiter has ended (`note_offer`)
        """
        interval = min(INTERVAL, max(_SHORTEST_INTERVAL, _PART_OF_LEASE * lease))
        with self._lock:
            if not self._waiters:
                self._next_at = time.monotonic() + interval
            self._waiters[keys] += 1
            self._listeners[listener] = keys
            self._intervals[keys] = min(interval, self._intervals.get(keys, interval))
            if checks_offers:
                self._offers_end.setdefault(keys, time.monotonic() + _SHORTEST_INTERVAL)
        try:
            yield
        finally:
            with self._lock:
                self._waiters[keys] -= 1
                self._listeners.pop(listener, None)
                if not self._waiters[keys]:
                    del self._waiters[keys], self._intervals[keys]
                    self._tried.pop(keys, None)
                    self._offers_end.pop(keys, None)
                if len(self._waited) >= _MOST_REMEMBERED:
                    self._waited.clear()
                self._waited[keys] = time.monotonic()

    def waited_lately(self, keys: tuple[str, ...]) -> bool:
        """Whether a waiter of this process waits for these keys, or did so some seconds ago."""
        return keys in self._waiters or time.monotonic() < self._waited.get(keys, -math.inf) + _LATELY

    def note(self, keys: tuple[str, ...]) -> None:
        """Note that a waiter tries now."""
        self._tried[keys] = time.monotonic()

    def note_offer(self, keys: tuple[str, ...], ends_in: float) -> None:
        """Note a reply: the offer to the first waiter ends in this number of seconds; 0: it is not known when."""
        self._offers_end[keys] = time.monotonic() + (ends_in or _SHORTEST_INTERVAL)

    def next(self, keys: tuple[str, ...]) -> float:
        """The `time.monotonic()` at which some waiter for these keys should try again."""
        if keys in self._offers_end:
            return max(self._offers_end[keys], self._next_offer_check_at)
        tried, interval = self._tried[keys], min(self._intervals.values())
        earlier = sum(other < tried for other in list(self._tried.values()))
        return max(self._next_at + interval * earlier, tried + interval)

    def wake_others(self, listener: Listener) -> None:
        """Have the other waiters of this process try now, because a process has died that owned the lock, or that the
        server had asked to try again.

        Of the waiters for a rate limit only one tries, because any of them drops those of the process that died.
        """
        with self._lock:
            seen = {self._listeners.get(listener)}
            for other, keys in self._listeners.items():
                if other is not listener and not (keys in self._offers_end and keys in seen):
                    other.wake()
                seen.add(keys)

    def sleep(
        self, keys: tuple[str, ...], listener: Listener, retry_in: float, deadline: float | None
    ) -> Operation[list[str]]:
        """Sleep until a request should be sent again.

        The sleep ends after `retry_in` seconds, when a message asks for it, when this process has to try on its own
        (`next`), or at the deadline (a `time.monotonic()`). Returns the messages that ended it; [] if none did.
        """
        messages: list[str] = []
        asked = time.monotonic() + retry_in
        if deadline is not None:
            asked = min(asked, deadline)
        while (left := min(asked, self.next(keys)) - time.monotonic()) > 0:
            messages = yield Wait(listener, left)
            for message in messages:
                asked = min(asked, time.monotonic() + recheck_delay(message))
        if asked <= time.monotonic():
            pass  # a message or the server asked for this try
        elif keys in self._offers_end:
            self._next_offer_check_at = time.monotonic() + _SHORTEST_INTERVAL
        else:
            self._next_at = time.monotonic() + min(self._intervals.values())
        return messages


_of_drivers: WeakKeyDictionary[Driver, LastTries] = WeakKeyDictionary()
