"""The helper threads of a worker: heartbeats that keep its leases, a watchdog that reports a blocked event loop, and a
check of the process's memory.

They are threads because they must work while a task blocks the loop.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from abc import abstractmethod
from collections.abc import Callable

from penstock.core.operations import BlockingFace
from penstock.errors import PenstockError
from penstock.settings import MiB
from penstock.worker.cancelling import Cancelling
from penstock.worker.feed import Feed
from penstock.worker.places import Places
from penstock.worker.processes import resident_bytes, resident_kib
from penstock.worker.runs import Runs

log = logging.getLogger("penstock.worker")

_MEMORY_INTERVAL = 0.5
"""Seconds between two checks of the process's memory."""


class PeriodicThread(threading.Thread):
    """Calls `_check` every `interval` seconds until it is stopped. An error is logged and does not end it."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop, interval: float) -> None:
        super().__init__(name=f"penstock-{name}", daemon=True)
        self._loop = loop
        self._interval = interval
        self._ended = threading.Event()

    def stop(self) -> None:
        self._ended.set()

    def run(self) -> None:
        while not self._ended.wait(self._interval):
            try:
                self._check()
            except Exception:
                if self._loop.is_closed():
                    return
                log.exception("%s failed, and will try again", self.name)

    @abstractmethod
    def _check(self) -> None: ...


class Heartbeat(PeriodicThread):
    """Renews a feed's lease if the last renewal is older than a third of its duration, and the feed holds jobs or
    belongs to a quiet worker, which takes no more turns.

    There is one thread for each feed, because on a cluster each queue may be on another node, and a node that does not
    answer must not delay the heartbeats of the others.
    """

    def __init__(
        self, driver: BlockingFace, feed: Feed, loop: asyncio.AbstractEventLoop, cancelling: Cancelling
    ) -> None:
        """`cancelling` does what the reply to a heartbeat asks for."""
        super().__init__("heartbeat", loop, feed.lease / 6)
        self._driver = driver
        self._feed = feed
        self._cancelling = cancelling

    def _check(self) -> None:
        feed, sent_at = self._feed, time.monotonic()
        if not (feed.held or feed.is_quiet) or sent_at - feed.renewed_at < feed.lease / 3:
            return
        incarnation = feed.incarnation
        try:
            asked = self._driver.run(feed.shard.bindings.heartbeat(incarnation, feed.lease, resident_kib()))
        except PenstockError as error:
            log.warning("a heartbeat failed on queue %s: %s", feed.shard.name, error)
            return
        if asked is None:
            self._loop.call_soon_threadsafe(feed.lease_refused, incarnation)
            return
        feed.lease_renewed(sent_at)
        if asked:
            self._loop.call_soon_threadsafe(self._cancelling.obey, feed, asked)


class Watchdog(PeriodicThread):
    """Logs which task blocks the event loop if the loop does not respond for `warn_after` seconds while jobs run."""

    def __init__(self, loop: asyncio.AbstractEventLoop, warn_after: float, runs: Runs, places: Places) -> None:
        """Create it on the loop's own thread."""
        super().__init__("watchdog", loop, warn_after / 2)
        self._loop_thread = threading.get_ident()
        self._warn_after = warn_after
        self._runs = runs
        self._places = places
        self._asked_at = self._responded_at = time.monotonic()
        self._warned = False

    def _check(self) -> None:
        now = time.monotonic()
        if self._responded_at >= self._asked_at:
            if self._warned:
                log.warning("the event loop runs again, after %.1f s", self._responded_at - self._asked_at)
                self._warned = False
            if not self._runs.empty:
                self._asked_at = now
                self._loop.call_soon_threadsafe(self._respond)
        elif now - self._asked_at >= self._warn_after and not self._warned:
            self._warned = True
            task = asyncio.current_task(self._loop)
            frame = sys._current_frames().get(self._loop_thread)
            where = traceback.extract_stack(frame)[-1] if frame else None
            location = f" at {where.filename}:{where.lineno}" if where else ""
            log.warning(
                "%s has blocked the event loop for %.1f s%s; nothing else can run meanwhile: make it a `def` task",
                self._places.name_of(task) if task else "a callback",
                now - self._asked_at,
                location,
            )

    def _respond(self) -> None:
        self._responded_at = time.monotonic()


class MemoryLimit(PeriodicThread):
    """Calls `exceeded` on the loop, with the reason, once the process uses more than `limit` bytes of memory."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int, exceeded: Callable[[str], None]) -> None:
        super().__init__("memory-limit", loop, _MEMORY_INTERVAL)
        self._limit = limit
        self._exceeded = exceeded

    def _check(self) -> None:
        used = resident_bytes()
        if used > self._limit:
            self._loop.call_soon_threadsafe(
                self._exceeded, f"the process uses {used / MiB:.0f} MiB of memory, more than {self._limit / MiB:.0f}"
            )
            self.stop()
