"""The order in which a worker takes turns in its queues: queue after queue, and the shards of one queue by rotation."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.worker.feed import Feed


class TurnOrder:
    """The feeds of a worker, grouped by queue. A queue with shards has a feed for each of them."""

    def __init__(self, feeds: Iterable[Feed]) -> None:
        groups: dict[object, list[Feed]] = {}
        for feed in feeds:
            groups.setdefault(feed.queue.family, []).append(feed)
        self._groups = list(groups.values())

    async def check_shards(self) -> None:
        """Agree with the server on the number of shards of each queue. Raises ConfigurationError, ServerError."""
        for feeds in self._groups:
            await feeds[0].queue.check_shards.aio()

    def next_round(self) -> list[tuple[Feed, bool]]:
        """All feeds, and whether each is the first of its queue.

        Each round begins with another shard of a queue. So an urgent job starts after at most one turn of each other
        shard, however much is ready there.
        """
        ordered = []
        for feeds in self._groups:
            ordered += [(feed, place == 0) for place, feed in enumerate(feeds)]
            if len(feeds) > 1:
                feeds.append(feeds.pop(0))
        return ordered
