"""Delivers entries from the outbox of one queue to another queue. See `outbox.lua`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from penstock.core.operations import Driver
from penstock.errors import PenstockError
from penstock.jobs.shard import Shard

log = logging.getLogger("penstock.worker")


class Deliveries:
    """Runs the deliveries of one worker, at most one at a time for each source and target.

    A turn may offer entries while a delivery between the same two queues is running. That delivery then continues with
    the offered entries. `start` runs a coroutine in the background.
    """

    def __init__(self, driver: Driver, start: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        self._driver = driver
        self._start = start
        self._offered: dict[tuple[Shard, Shard], Sequence[bytes]] = {}

    def deliver(self, source: Shard, target: Shard, entries: Sequence[bytes]) -> None:
        """Deliver these entries in the background, and then all later ones for the same target."""
        pair, is_running = (source, target), (source, target) in self._offered
        self._offered[pair] = entries
        if not is_running:
            self._start(self._run(source, target))

    async def _run(self, source: Shard, target: Shard) -> None:
        pair = (source, target)
        try:
            while entries := self._offered[pair]:
                self._offered[pair] = ()
                await deliver(self._driver, source, target, entries)
        finally:
            del self._offered[pair]


async def deliver(driver: Driver, source: Shard, target: Shard, entries: Sequence[bytes]) -> None:
    """Deliver these entries, and then all later ones for the same target.

    Each hundred entries, or fewer with limits, cost two round trips: one to the target, one to the source. If a round
    trip fails, the source offers the remaining entries again after five seconds, to whichever worker takes a turn then.
    """
    try:
        while entries:
            last = await driver.aio.run(target.bindings.deliver(source.name, entries))
            following: list[bytes] = await driver.aio.run(source.bindings.delivered(target.name, last))
            entries = following
    except PenstockError as error:
        log.warning(
            "what queue %s has for queue %s could not be delivered, and is tried again: %s",
            source.name,
            target.name,
            error,
        )
    except Exception:
        log.exception("what queue %s has for queue %s could not be delivered", source.name, target.name)
