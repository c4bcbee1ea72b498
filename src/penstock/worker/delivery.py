"""Delivers what the outbox of one queue has for another one. See `outbox.lua`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from penstock.core.operations import Driver
from penstock.errors import PenstockError
from penstock.jobs.constants import FIELDS
from penstock.jobs.queue import Queue

log = logging.getLogger("penstock.worker")

OTHER_QUEUE: Final = b":"
"""The first byte of an offer that is for another queue, rather than a schedule's."""


async def deliver(driver: Driver, source: Queue, target: Queue, entries: Sequence[bytes]) -> None:
    """Deliver entries, and then all that follow them. Two round trips for each hundred, to the two queues in turn.

    If one fails, the rest is offered again after five seconds, to whichever worker takes a turn then.
    """
    try:
        while entries:
            await driver.aio.run(target.bindings.deliver(source.name, entries))
            following: list[bytes] = await driver.aio.run(source.bindings.delivered(target.name, int(entries[-FIELDS])))
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
