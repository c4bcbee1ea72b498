"""What an operator asks of an outbox, and does with the calls that it holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import ColumnElement, Connection, Engine, and_, delete, select, update
from sqlalchemy.ext.asyncio import AsyncEngine

from penstock.errors import PenstockError
from penstock.jobs.constants import FORMAT
from penstock.jobs.record import Record
from penstock.ops.checks.result import CheckResult
from penstock.ops.wording import age, many
from penstock.sql.connecting import in_database
from penstock.sql.rows import backlog
from penstock.sql.schema import HELD, LEASED, SENT, WAITING, now_ms, outbox

__all__ = ["CheckResult", "WaitingRow", "diagnose_outbox", "list_rows", "remove_held", "retry_held"]

LONG_WAIT: Final = 30.0
"""Seconds that a call may wait before an operator should take a look."""

_WORDS: Final = {WAITING: "waiting", LEASED: "sending", SENT: "sent", HELD: "held"}


@dataclass(frozen=True, slots=True)
class WaitingRow:
    """A call in an outbox.

    state   waiting; sending: a relay has it; sent: accepted, and deleted soon; held: an operator decides
    age     seconds since it was written, by the clock of the database
    task    "" if the call cannot be read
    reason  why it is held
    """

    number: int
    id: str
    state: str
    age: float
    task: str
    tenant: str
    reason: str


def list_rows(connection: Connection, limit: int, state: str = "") -> list[WaitingRow]:
    """The oldest calls, all or those in one state."""
    wanted = select(outbox, now_ms().label("now")).order_by(outbox.c.number).limit(limit)
    if state:
        wanted = wanted.where(outbox.c.state == next(number for number, word in _WORDS.items() if word == state))
    found = []
    for row in connection.execute(wanted):
        task, tenant = _names(bytes(row.record))
        waited = max(0, row.now - row.created) / 1000
        found.append(
            WaitingRow(row.number, f"{row.queue}:{row.job}", _WORDS[row.state], waited, task, tenant, row.reason)
        )
    return found


def _names(record: bytes) -> tuple[str, str]:
    try:
        read = Record(record)
        return (read.task, read.tenant) if record[0] == FORMAT else ("", "")
    except (IndexError, ValueError):
        return "", ""


def retry_held(connection: Connection, numbers: Sequence[int] | None) -> int:
    """Have relays send held calls, some or all (None), whatever their age. Returns how many."""
    changed = update(outbox).where(_held(numbers)).values(state=WAITING, reason="", created=now_ms())
    return connection.execute(changed).rowcount


def remove_held(connection: Connection, numbers: Sequence[int] | None) -> int:
    """Delete held calls, some or all (None). Returns how many."""
    return connection.execute(delete(outbox).where(_held(numbers))).rowcount


def _held(numbers: Sequence[int] | None) -> ColumnElement[bool]:
    held = outbox.c.state == HELD
    return held if numbers is None else and_(held, outbox.c.number.in_(numbers))


def diagnose_outbox(engine: Engine | AsyncEngine) -> list[CheckResult]:
    """What the doctor says of an outbox."""
    try:
        found = in_database(engine, backlog)
    except PenstockError as error:
        return [CheckResult("outbox", "fail", str(error), "docs/howto/database.md says what a database needs")]
    results = []
    if found.held:
        message = f"{many(found.held, 'call is', 'calls are')} held, because the queue refuses them"
        results.append(CheckResult("outbox", "warn", message, "penstock outbox ls shows why, and what to do"))
    if found.oldest > LONG_WAIT:
        message = f"{many(found.waiting, 'call waits', 'calls wait')}, the oldest for {age(found.oldest)}"
        results.append(CheckResult("outbox", "warn", message, "does a relay run? penstock outbox relay"))
    if not results:
        results.append(CheckResult("outbox", "ok", f"{many(found.waiting, 'call waits', 'calls wait')}, none for long"))
    return results
