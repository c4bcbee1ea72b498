"""Gives each feed of a worker a listener for wake-ups and cancellations, and a heartbeat."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from penstock.core.operations import Driver
from penstock.worker.cancelling import MESSAGE as CANCEL
from penstock.worker.cancelling import Cancelling
from penstock.worker.feed import Feed
from penstock.worker.heartbeat import Heartbeat

if TYPE_CHECKING:
    from penstock.core.operations import AsyncListener


class OpenFeeds:
    """The listeners and heartbeats of the feeds that a worker serves."""

    def __init__(self, driver: Driver, cancelling: Cancelling) -> None:
        self._driver = driver
        self._cancelling = cancelling
        self._loop = asyncio.get_running_loop()
        self.broken: asyncio.Future[None] = self._loop.create_future()
        """Ends with an error that a retry would not fix, such as a missing permission."""
        self._listeners: list[AsyncListener] = []
        self.heartbeats: list[Heartbeat] = []

    def open(self, feed: Feed) -> None:
        """Let the feed receive wake-ups, and keep its lease. Call it before the feed's first turn."""
        listener = self._driver.aio.listen(feed.shard.bindings.keys.base)
        feed.address = listener.address
        self._listeners.append(listener)
        listener.call(partial(self._received, feed))
        feed.start_notes()
        heartbeat = Heartbeat(self._driver.blocking, feed, self._loop, self._cancelling)
        self.heartbeats.append(heartbeat)
        heartbeat.start()
        feed.look_again()  # a worker that sleeps does not know this feed yet

    def close_listeners(self) -> None:
        for listener in self._listeners:
            listener.close()

    def _received(self, feed: Feed, message: str | Exception) -> None:
        if isinstance(message, Exception):
            if not self.broken.done():
                self.broken.set_exception(message)
            return
        if message == CANCEL or (message == "" and feed.turns):  # "": messages may have been lost
            self._cancelling.read(feed)
        if message != CANCEL:
            feed.wake_up(message)
