"""Does what the server says that a worker is asked to do: it ends jobs that were cancelled, or passes a request on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from penstock.core.operations import Driver
from penstock.errors import PenstockError
from penstock.worker.feed import Feed
from penstock.worker.places import Places
from penstock.worker.runs import Runs

log = logging.getLogger("penstock.worker")

MESSAGE = "cancel"
"""A worker that receives this message sends a heartbeat at once. The reply says what it is asked to do."""

WORDS = {b"quiet", b"stop"}
"""The requests to the worker as a whole (`cancelling.lua`)."""


class Cancelling:
    """Reads which jobs are to be cancelled, and ends them; and whether the worker is to claim no more, or to stop.

    A message notifies the worker. If it does not arrive, the reply to a regular heartbeat says the same, at the latest
    after a third of the lease.
    """

    def __init__(self, driver: Driver, runs: Runs, places: Places, asked: Callable[[bytes], None]) -> None:
        """`asked` is called on the loop with each of `WORDS` that a reply contains, again with each reply."""
        self._driver = driver
        self._runs = runs
        self._places = places
        self._asked = asked
        self.tasks: set[asyncio.Task[None]] = set()

    def read(self, feed: Feed) -> None:
        """Ask the server what this worker is to do in this queue, and do it."""
        task = asyncio.get_running_loop().create_task(self._read(feed))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _read(self, feed: Feed) -> None:
        try:
            tokens = await self._driver.aio.run(feed.shard.bindings.heartbeat(feed.incarnation, feed.lease))
        except PenstockError as error:
            log.warning(
                "what this worker is asked to do on queue %s is read by the next heartbeat: %s", feed.shard.name, error
            )
        else:
            self.obey(feed, tokens or [])

    def obey(self, feed: Feed, asked: Sequence[bytes]) -> None:
        """Cancel those of these jobs that the worker still holds. A batch runs on until its last job is cancelled."""
        wanted = set(asked)
        for word in sorted(wanted & WORDS):
            self._asked(word)
        for run, claim in self._runs.running_with(wanted):
            if not run.is_cancelled(claim):
                log.info("job %s:%s (%s) is cancelled", run.queue, claim.id, run.definition.name)
                if run.note_cancelled(claim):
                    self._places.cancel(run)
        self._runs.cancel_waiting(feed, wanted)
