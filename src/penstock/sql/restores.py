"""How relays find that a database was restored to an earlier state.

Calls that were accepted after the backup are in the database again. The queue recognises them while their receipts are
there, for a minute after their rows were deleted. So the relays raise a number in the database every ten seconds, and
report it to the server. If the database has a lower number than the server knows, the relay sends nothing that it finds
there, and leaves it to an operator.
"""

from __future__ import annotations

import secrets
import time
from typing import Final

from sqlalchemy import Connection, select, update

from penstock.app import Penstock
from penstock.jobs.receipts import StoreBeat
from penstock.sql.background import Ask, Transact, Work
from penstock.sql.rows import hold_all
from penstock.sql.schema import now_ms, schema

BEAT: Final = 10.0
"""Seconds between two beats of a database, however many relays it has. Less than the minute of a returned receipt."""

RESTORED: Final = (
    "the database was restored to an earlier state, so this call may have been enqueued after the backup: look whether "
    "its effect is there, then send it by `penstock outbox retry`, or delete it by `penstock outbox rm`"
)


class Restores:
    """One relay's watch over its database."""

    def __init__(self, app: Penstock) -> None:
        self._beat = StoreBeat(app._driver, app.settings.prefix)
        self._next = 0.0

    def check(self) -> Work[int]:
        """If it is time: raise the number and report it. Returns how many calls were held because of a restore."""
        if time.monotonic() < self._next:
            return 0
        identity, number = yield Transact(_beat)
        last = yield Ask(self._beat.report, (identity, number))
        held = 0
        if last > number:
            # Another relay may have raised the number meanwhile. The database has it before the server does.
            held = yield Transact(lambda connection: _hold_if_restored(connection, last))
        self._next = time.monotonic() + BEAT
        return held


def _beat(connection: Connection) -> tuple[str, int]:
    due = schema.c.beaten < now_ms() - int(BEAT * 1000)
    connection.execute(update(schema).where(due).values(beat=schema.c.beat + 1, beaten=now_ms()))
    identity, number = connection.execute(select(schema.c.identity, schema.c.beat)).one()
    if not identity:
        connection.execute(update(schema).where(schema.c.identity == "").values(identity=secrets.token_hex(8)))
        identity = connection.execute(select(schema.c.identity)).scalar_one()
    return identity, number


def _hold_if_restored(connection: Connection, last: int) -> int:
    """Hold every call, and continue with a number that no program has seen."""
    restored = update(schema).where(schema.c.beat < last).values(beat=last + 1, beaten=now_ms())
    return hold_all(connection, RESTORED) if connection.execute(restored).rowcount else 0
