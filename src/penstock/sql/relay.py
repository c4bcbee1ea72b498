"""The relay: it sends the calls that their own process has not sent, because it died or the server was away.

Any number of relays may run. Each leases rows by a column, those of a tenant's lane at a time, so that the calls of a
tenant keep their order. When a relay dies, others continue its lanes half a minute later.
"""

from __future__ import annotations

import logging
import time
from typing import Final

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from penstock.app import Penstock
from penstock.core.ids import mint_token
from penstock.errors import ServerError
from penstock.sql import inbox, schema
from penstock.sql import rows as table
from penstock.sql.background import Pause, Transact, Work
from penstock.sql.delivery import Delivery
from penstock.sql.restores import RESTORED, Restores
from penstock.sql.rows import OutboxRow

log = logging.getLogger("penstock.sql")

LOOK: Final = 0.25
"""Seconds between two looks while rows come."""

IDLE_LOOK: Final = 5.0
"""Seconds between two looks while none do."""

_BATCH: Final = 1000
"""Rows that are leased together."""

_TIDY: Final = 600.0
"""Seconds between two searches for marks of the inbox that are no longer kept."""

_AFTER_ERROR: Final = 0.5
"""Seconds after a failure, twice as long after each further one, up to IDLE_LOOK."""


class Relay:
    """The work of one relay. It ends with an error only at the start: without tables, or with newer ones."""

    def __init__(self, app: Penstock) -> None:
        self.token = mint_token()
        self._delivery = Delivery(app)
        self._restores = Restores(app)
        self._lane = 0
        self._failures = 0
        self._tidy_at = 0.0

    def work(self) -> Work[None]:
        yield Transact(schema.check)
        while True:
            delay = LOOK
            try:
                found = yield from self._round()
            except (SQLAlchemyError, OSError, ServerError) as error:
                delay = self._failed(error)
            else:
                if self._failures:
                    log.info("the relay of the outbox works again")
                self._failures = 0
                if found == _BATCH:
                    continue
                if not found and self._delivery.next_due is None:
                    delay = IDLE_LOOK
            yield Pause(delay)

    def _round(self) -> Work[int]:
        """Send what waits, and delete what is safe. Returns how many rows were found."""
        if held := (yield from self._restores.check()):
            log.error("the outbox holds %d calls: %s", held, RESTORED)
        found: list[OutboxRow] = []
        if (yield Transact(table.has_work)):
            found = yield Transact(lambda connection: table.lease(connection, self.token, self._lane, _BATCH))
        if found:
            self._lane = (found[-1].lane + 1) % schema.LANES
            yield from self._send(found)
        yield from self._delivery.confirm()
        if time.monotonic() >= self._tidy_at:
            self._tidy_at = time.monotonic() + _TIDY
            while (yield Transact(inbox.delete_old_marks)):
                pass
        return len(found)

    def _send(self, found: list[OutboxRow]) -> Work[None]:
        outcome = yield from self._delivery.send(found)

        def note(connection: Connection) -> None:
            table.mark_sent(connection, outcome.accepted, self.token)
            table.send_again(connection, outcome.failed)
            for rows, reason in outcome.refused:
                table.hold(connection, rows, reason)

        yield Transact(note)
        for rows, reason in outcome.refused:
            log.error("the outbox holds %d calls for queue %s: %s", len(rows), rows[0].queue, reason)
        if outcome.error is not None:
            raise outcome.error

    def _failed(self, error: Exception) -> float:
        self._failures += 1
        if self._failures == 1:
            log.warning("the relay of the outbox tries again: %s", error)
        return min(IDLE_LOOK, _AFTER_ERROR * 2.0 ** min(self._failures - 1, 10))
