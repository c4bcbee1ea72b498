"""A thread that keeps leases alive and notices a blocked event loop, whatever the loop is doing."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence

from penstock.driver.steps import BlockingDriver
from penstock.errors import PenstockError
from penstock.worker.feed import Feed

log = logging.getLogger("penstock.worker")


class Heartbeat(threading.Thread):
    """Beats for every feed that holds jobs and took no turn lately; one command a feed and third of its lease."""

    def __init__(
        self,
        driver: BlockingDriver,
        feeds: Sequence[Feed],
        loop: asyncio.AbstractEventLoop,
        *,
        patience: float,
        name_of: Callable[[asyncio.Task[object]], str],
        lost: Callable[[Feed, str], None],
    ) -> None:
        super().__init__(name="penstock-heartbeat", daemon=True)
        self._driver = driver
        self._feeds = feeds
        self._loop = loop
        self._loop_thread = threading.get_ident()
        self._patience = patience
        self._name_of = name_of
        self._lost = lost
        self._stop = threading.Event()
        self._asked = self._answered = time.monotonic()
        self._warned = False

    def stop(self) -> None:
        self._stop.set()

    def run(self) -> None:
        pause = min(self._patience / 2, *(feed.lease / 6 for feed in self._feeds))
        while not self._stop.wait(pause):
            try:
                self._watch()
                for feed in self._feeds:
                    if feed.held and time.monotonic() - feed.renewed >= feed.lease / 3:
                        self._beat(feed)
            except Exception:
                if self._loop.is_closed():
                    return
                log.exception("the heartbeat stumbled, and goes on")

    def _beat(self, feed: Feed) -> None:
        me, asked = feed.me, time.monotonic()
        try:
            alive = self._driver.run(feed.queue.transitions.beat(me, feed.lease))
        except PenstockError as error:
            log.warning("no heartbeat on queue %s: %s", feed.queue.name, error)
            return
        if alive:
            feed.keep(asked)
        else:
            self._loop.call_soon_threadsafe(self._lost, feed, me)

    def _watch(self) -> None:
        """Ask the loop for a sign of life; say who holds it when none came."""
        now = time.monotonic()
        if self._answered >= self._asked:
            if self._warned:
                log.warning("the event loop goes on, after %.1f s", self._answered - self._asked)
                self._warned = False
            if any(feed.held for feed in self._feeds):
                self._asked = now
                self._loop.call_soon_threadsafe(self._sign_of_life)
        elif now - self._asked >= self._patience and not self._warned:
            self._warned = True
            task = asyncio.current_task(self._loop)
            frame = sys._current_frames().get(self._loop_thread)
            where = traceback.extract_stack(frame)[-1] if frame else None
            place = f" at {where.filename}:{where.lineno}" if where else ""
            log.warning(
                "%s blocks the event loop for %.1f s already%s; nothing else runs meanwhile: make it a `def` task",
                self._name_of(task) if task else "a callback", now - self._asked, place,
            )  # fmt: skip

    def _sign_of_life(self) -> None:
        self._answered = time.monotonic()
