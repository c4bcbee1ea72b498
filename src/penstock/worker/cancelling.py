"""Ends the running jobs of a worker after a client has cancelled them in the server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from penstock.core.operations import Driver
from penstock.errors import PenstockError
from penstock.worker.feed import Feed
from penstock.worker.places import Places
from penstock.worker.runs import Runs

log = logging.getLogger("penstock.worker")

MESSAGE = "cancel"
"""A worker that receives this message sends a heartbeat at once. The reply names the jobs to cancel."""


class Cancelling:
    """Reads which jobs are to be cancelled, and ends them.

    A message notifies the worker. If it does not arrive, the reply to a regular heartbeat names the jobs, at the latest
    after a third of the lease.
    """

    def __init__(self, driver: Driver, runs: Runs, places: Places) -> None:
        self._driver = driver
        self._runs = runs
        self._places = places
        self.tasks: set[asyncio.Task[None]] = set()

    def read(self, feed: Feed) -> None:
        """Ask the server which jobs of this queue are to be cancelled, and cancel them."""
        task = asyncio.get_running_loop().create_task(self._read(feed))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _read(self, feed: Feed) -> None:
        try:
            tokens = await self._driver.aio.run(feed.shard.bindings.heartbeat(feed.incarnation, feed.lease))
        except PenstockError as error:
            log.warning("the jobs to cancel on queue %s are read by the next heartbeat: %s", feed.shard.name, error)
        else:
            self.cancel(feed, tokens or [])

    def cancel(self, feed: Feed, tokens: Sequence[bytes]) -> None:
        """Cancel those of these jobs that the worker still holds. A batch runs on until its last job is cancelled."""
        wanted = set(tokens)
        for run, one in self._runs.running_with(wanted):
            if not one.cancelled:
                log.info("job %s (%s) is cancelled", one.context.id, one.definition.name)
                one.cancelled = True
                if all(member.cancelled for member in run.members):
                    self._places.cancel(run)
        self._runs.cancel_waiting(feed, wanted)
