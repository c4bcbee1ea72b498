"""The last tries of a process: for each lock or semaphore that it waits for, or has waited for in the last seconds.

The server asks two waiters of different processes to try again when a lease may end. If both died together with the
owner, nobody would try. So each process tries on its own: when none of its waiters has tried for ten seconds, one does.
A process that waits for several locks tries one of them every ten seconds, in turn.
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

INTERVAL = 10.0
"""Seconds between two tries of an idle process."""

# A process that has waited for the same keys in so many seconds joins the waiters in its first attempt. For so long it
# keeps its subscription, without which the first attempt would need a second round trip too.
_LATELY = 5.0

# The most keys that are remembered for that.
_MOST_REMEMBERED = 1000


class LastTries:
    """The last tries of one app in this process, by the keys that were asked for."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._waiters: Counter[tuple[str, ...]] = Counter()
        self._tried: dict[tuple[str, ...], float] = {}
        self._waited: dict[tuple[str, ...], float] = {}

    @classmethod
    def of(cls, driver: Driver) -> LastTries:
        """The last tries of the app that has this driver. A forked child begins with none."""
        found = _of_drivers.get(driver)
        if found is None or found._pid != os.getpid():
            found = _of_drivers[driver] = cls()
        return found

    @contextmanager
    def waiting(self, keys: tuple[str, ...]) -> Iterator[None]:
        """Count a waiter for the length of a block."""
        with self._lock:
            self._waiters[keys] += 1
        try:
            yield
        finally:
            with self._lock:
                self._waiters[keys] -= 1
                if not self._waiters[keys]:
                    del self._waiters[keys]
                    self._tried.pop(keys, None)
                if len(self._waited) >= _MOST_REMEMBERED:
                    self._waited.clear()
                self._waited[keys] = time.monotonic()

    def waited_lately(self, keys: tuple[str, ...]) -> bool:
        """Whether a waiter of this process waits for these keys, or did so some seconds ago."""
        return keys in self._waiters or time.monotonic() < self._waited.get(keys, -math.inf) + _LATELY

    def note(self, keys: tuple[str, ...]) -> None:
        """A waiter is about to try."""
        self._tried[keys] = time.monotonic()

    def next(self, keys: tuple[str, ...]) -> float:
        """The `time.monotonic()` at which some waiter for these keys should try again."""
        return self._tried[keys] + INTERVAL * len(self._tried)

    def sleep(
        self, keys: tuple[str, ...], listener: Listener, retry_in: float, deadline: float | None
    ) -> Operation[list[str]]:
        """Sleep until a request should be sent again: in `retry_in` seconds, when a message asks for it, when no waiter
        of this process has tried for long, or at the deadline (a `time.monotonic()`).

        Returns the messages that arrived last; [] if none ended the sleep.
        """
        messages: list[str] = []
        asked = time.monotonic() + retry_in
        if deadline is not None:
            asked = min(asked, deadline)
        while (left := min(asked, self.next(keys)) - time.monotonic()) > 0:
            messages = yield Wait(listener, left)
            for message in messages:
                asked = min(asked, time.monotonic() + recheck_delay(message))
        return messages


_of_drivers: WeakKeyDictionary[Driver, LastTries] = WeakKeyDictionary()
