"""The queues of a worker and the order of its turns: queue after queue, and the shards of each queue in rotation.

A shard that has given jobs is asked last of its queue from then on. So is a queue, unless the settings name queues;
then they keep their order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Final

from penstock.errors import ServerError
from penstock.jobs.queue import Queue
from penstock.jobs.shard import Shard
from penstock.worker.app import shards_of
from penstock.worker.feed import Feed

log = logging.getLogger("penstock.worker")

_LOOK_EVERY: Final = 10.0
"""Seconds between two checks of the number of shards."""


class TurnOrder:
    """The feeds of a worker, grouped by queue. A queue with shards has a feed for each of them."""

    def __init__(
        self, queues: Sequence[Queue], sleep: float, make: Callable[[Shard, int], Feed], *, strict: bool
    ) -> None:
        """
        queues  those that the worker serves, in order
        sleep   seconds after which an idle worker with one queue registers again
        make    makes the feed of a shard, with its position in `shards_of(queues)`
        strict  whether a queue is asked only when those before it have no job; otherwise queues take turns
        """
        self._queues = queues
        self._slots = {shard.name: slot for slot, shard in enumerate(shards_of(queues))}
        self._sleep = sleep
        self._make = make
        self._strict = strict
        self.feeds: list[Feed] = []
        """Those that the worker serves now."""
        self._groups: dict[Queue, list[Feed]] = {}

    def begin(self) -> None:
        """Make the feeds that are known without the server: the first shard of each queue."""
        for queue in self._queues:
            self._add(queue, queue.first)

    def _add(self, queue: Queue, shard: Shard) -> Feed:
        feed = self._make(shard, self._slots[shard.name])
        self.feeds.append(feed)
        self._groups.setdefault(queue, []).append(feed)
        # An idle worker renews its registration in each queue every `sleep` seconds. The interval grows with the
        # number of queues, so that an idle process sends the same number of commands for one queue as for many.
        for one in self.feeds:
            one.sleep = self._sleep * len(self.feeds)
        return feed

    def _add_missing(self) -> list[Feed]:
        served = {feed.shard.name for feed in self.feeds}
        return [
            self._add(queue, shard)
            for queue in self._queues
            for shard in queue.shards.current.known
            if shard.name not in served
        ]

    async def check_shards(self) -> None:
        """Ask the server for the shards of each queue. Raises ConfigurationError, ServerError."""
        for queue in self._queues:
            await queue.check_shards.aio()
        self._add_missing()

    async def watch_shards(self, opened: Callable[[Feed], None]) -> None:
        """Serve shards that are added, and finish the change in the server. Calls `opened` with each new feed."""
        sharded = [queue for queue in self._queues if queue.shards.named is not None]
        while sharded:
            await asyncio.sleep(_LOOK_EVERY)
            for queue in sharded:
                try:
                    await queue.finish_adding_shards.aio()
                except ServerError as error:
                    log.warning("the shards of queue %s could not be read, trying again: %s", queue.name, error)
            for feed in self._add_missing():
                log.info("serving a new shard, %s", feed.shard.name)
                opened(feed)
        await asyncio.get_running_loop().create_future()

    def has_given_jobs(self, feed: Feed) -> None:
        """The worker has claimed jobs from this feed, so it is the last of its queue from now on.

        If queues take turns, its queue is the last of all as well.
        """
        queue = next(queue for queue, feeds in self._groups.items() if feed in feeds)
        feeds = self._groups[queue]
        feeds.append(feeds.pop(feeds.index(feed)))
        if not self._strict:
            self._groups[queue] = self._groups.pop(queue)

    def in_order(self) -> Iterator[tuple[Feed, bool]]:
        """All feeds, and whether each is the first of its queue.

        A shard that has given jobs comes after the others of its queue. So an urgent job starts after at most one turn
        of each other shard, however much is ready there. Each round must not begin with the next shard instead: if two
        queues take turns, every second round is of the other one, so only every second shard would ever be first.
        """
        for feeds in self._groups.values():
            for position, feed in enumerate(feeds):
                yield feed, position == 0

    def claims_at_once(self, slow: Container[Feed], room_for: Callable[[Feed], int]) -> bool:
        """Whether a round that begins now claims jobs. `slow`: the feeds whose turns are not answered yet.

        A queue with more jobs holds up the queues behind it even if it has no room, as a batch that waits for a runner.
        Without this rule a worker would begin one round after another without a turn, and keep its loop for ever.
        """
        earlier_has_more = False
        for feed, begins_queue in self.in_order():
            if begins_queue and earlier_has_more:
                return False
            if feed.awake and feed not in slow:
                if room_for(feed) > 0:
                    return True
                earlier_has_more = True
        return False
