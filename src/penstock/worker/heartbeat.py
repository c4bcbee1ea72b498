"""Threads that keep leases alive and notice a blocked event loop, whatever the loop is doing."""

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
from penstock.worker.feed import Feed

log = logging.getLogger("penstock.worker")


class _Looking(threading.Thread):
    """Looks every so often, until it is stopped."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop, pause: float) -> None:
        super().__init__(name=f"penstock-{name}", daemon=True)
        self._loop = loop
        self._pause = pause
        self._stop = threading.Event()

    def stop(self) -> None:
        self._stop.set()

    def run(self) -> None:
        while not self._stop.wait(self._pause):
            try:
                self._look()
            except Exception:
                if self._loop.is_closed():
                    return
                log.exception("%s stumbled, and goes on", self.name)

    @abstractmethod
    def _look(self) -> None: ...


class Heartbeat(_Looking):
    """Beats for one feed while it holds jobs and took no turn lately; one command each third of its lease.

    Each feed has its own, because on a cluster each queue may have another node, and one that is away takes its time.
    """

    def __init__(
        self, driver: BlockingFace, feed: Feed, loop: asyncio.AbstractEventLoop, lost: Callable[[Feed, str], None]
    ) -> None:
        super().__init__("heartbeat", loop, feed.lease / 6)
        self._driver = driver
        self._feed = feed
        self._lost = lost

    def _look(self) -> None:
        feed, asked = self._feed, time.monotonic()
        if not feed.held or asked - feed.renewed < feed.lease / 3:
            return
        me = feed.me
        try:
            alive = self._driver.run(feed.queue.bindings.beat(me, feed.lease))
        except PenstockError as error:
            log.warning("no heartbeat on queue %s: %s", feed.queue.name, error)
            return
        if alive:
            feed.keep(asked)
        else:
            self._loop.call_soon_threadsafe(self._lost, feed, me)


class Watchdog(_Looking):
    """Asks the loop for a sign of life while jobs run, and says who holds it when none came for `patience` seconds."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        patience: float,
        *,
        busy: Callable[[], bool],
        name_of: Callable[[asyncio.Task[object]], str],
    ) -> None:
        super().__init__("watchdog", loop, patience / 2)
        self._loop_thread = threading.get_ident()
        self._patience = patience
        self._busy = busy
        self._name_of = name_of
        self._asked = self._answered = time.monotonic()
        self._warned = False

    def _look(self) -> None:
        now = time.monotonic()
        if self._answered >= self._asked:
            if self._warned:
                log.warning("the event loop goes on, after %.1f s", self._answered - self._asked)
                self._warned = False
            if self._busy():
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
