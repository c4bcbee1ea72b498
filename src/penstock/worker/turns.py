"""Takes a turn with a server that may be away for a while."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from penstock.core.operations import Driver
from penstock.errors import FormatTooNew, ServerError
from penstock.jobs.claims import TurnReply
from penstock.worker.feed import Feed

log = logging.getLogger("penstock.worker")

SLOW_TURN = 0.5
"""Seconds that a round waits for the turn of one queue. Then it continues with the other queues."""

NEXT_SLOW_TURN = 0.05
"""The wait for each further queue of a round in which a turn was slow: several queues may be on the silent node."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 5.0


async def take_turn(
    driver: Driver, feed: Feed, want: int, leave: bool, *, give_up: Callable[[], bool]
) -> tuple[TurnReply, float]:
    """Take the feed's next turn, again and again unchanged until the server answers.

    Returns the reply, and `time.monotonic()` at which the answered turn was sent. Raises FormatTooNew at once, and
    another ServerError if `give_up()` is true then.
    """
    pause = 0.0
    while True:
        sent_at = time.monotonic()
        try:
            reply = await driver.aio.run(feed.turn(want, leave=leave))
        except FormatTooNew:
            raise
        except ServerError as error:
            if give_up():
                raise
            pause = min(_LONGEST_PAUSE, pause * 2 or _FIRST_PAUSE)
            log.warning("the server does not answer, trying again in %.1f s: %s", pause, error)
            await asyncio.sleep(pause)
        else:
            if pause:
                log.info("the server answers again")
            return reply, sent_at
