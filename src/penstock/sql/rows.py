"""The rows of the outbox, as the sender after a commit, the relay and an operator read and change them.

Each function here takes a connection, in a transaction that the caller has begun.
"""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, and_, bindparam, delete, exists, func, or_, select, update

from penstock.jobs.receipts import KeptCall
from penstock.sql.schema import HELD, LANES, LEASED, SENT, WAITING, now_ms, outbox, schema

YOUNG: Final = 2000
"""Milliseconds for which a row is left to the sender of the process that wrote it."""

LEASE: Final = 30_000
"""Milliseconds for which a relay keeps the rows that it leased or sent. If it dies, another one continues then."""

CHUNK: Final = 500
"""The most rows that one statement names."""


class OutboxRow(NamedTuple):
    """A row of the outbox. `number` alone does not identify one: a restored database uses numbers again."""

    number: int
    nonce: int
    queue: str
    job: str
    lane: int
    record: bytes
    durable: bool
    age: int = 0
    """Milliseconds since it was written."""

    @property
    def call(self) -> KeptCall:
        return KeptCall(self.nonce, self.age, self.job, self.record)


_COLUMNS: Final = (
    outbox.c.number,
    outbox.c.nonce,
    outbox.c.queue,
    outbox.c.job,
    outbox.c.lane,
    outbox.c.record,
    outbox.c.durable,
)


def draw_nonce() -> int:
    return secrets.randbits(63)


def lane_of(tenant: str) -> int:
    return zlib.crc32(tenant.encode()) % LANES


def _visible() -> Any:
    """The query of `visible`, made once: SQLAlchemy needs longer to make it than the database to answer."""
    numbers: Any = bindparam("numbers", expanding=True)
    leased, waiting = outbox.alias("leased"), outbox.alias("waiting")
    oldest = (
        select(waiting.c.created)
        .where(waiting.c.state == WAITING, waiting.c.lane == outbox.c.lane, waiting.c.number.not_in(numbers))
        .order_by(waiting.c.state, waiting.c.lane, waiting.c.number)
        .limit(1)
    )
    behind = or_(
        exists().where(leased.c.state == LEASED, leased.c.lane == outbox.c.lane),
        func.coalesce(oldest.scalar_subquery(), now_ms()) < now_ms() - YOUNG,
    )
    return select(outbox.c.nonce, outbox.c.lane, behind).where(outbox.c.number.in_(numbers), outbox.c.state == WAITING)


_VISIBLE: Final = _visible()


def visible(connection: Connection, rows: Sequence[OutboxRow]) -> tuple[set[int], set[int]]:
    """The nonces of those rows that were committed, and the lanes with older rows, which a relay has to send first.

    One query, which must run outside of the transaction that wrote the rows.
    """
    answer: Sequence[Any] = connection.execute(_VISIBLE, {"numbers": [row.number for row in rows]}).all()
    return {nonce for nonce, _, _ in answer}, {lane for _, lane, is_behind in answer if is_behind}


def _these(rows: Iterable[OutboxRow]) -> Any:
    """The condition that a row is one of these."""
    some = list(rows)
    return and_(outbox.c.number.in_([row.number for row in some]), outbox.c.nonce.in_([row.nonce for row in some]))


def _chunks(rows: Sequence[OutboxRow]) -> Iterable[Sequence[OutboxRow]]:
    return (rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK))


def mark_sent(connection: Connection, rows: Sequence[OutboxRow], relay: str) -> None:
    """Note that the server has answered. If the row is not deleted within half a minute, a relay sends it again."""
    for some in _chunks(rows):
        connection.execute(
            update(outbox)
            .where(_these(some), outbox.c.state.in_([WAITING, LEASED]))
            .values(state=SENT, relay=relay, until=now_ms() + LEASE)
        )


def remove(connection: Connection, rows: Sequence[OutboxRow]) -> None:
    for some in _chunks(rows):
        connection.execute(delete(outbox).where(_these(some)))


def hold(connection: Connection, rows: Sequence[OutboxRow], reason: str) -> None:
    """Leave rows to an operator, who reads the reason."""
    for some in _chunks(rows):
        connection.execute(update(outbox).where(_these(some)).values(state=HELD, reason=reason, relay="", until=0))


def hold_all(connection: Connection, reason: str) -> int:
    """Leave every row to an operator. Returns how many."""
    changed = update(outbox).where(outbox.c.state != HELD).values(state=HELD, reason=reason, relay="", until=0)
    return connection.execute(changed).rowcount


def send_again(connection: Connection, rows: Sequence[OutboxRow]) -> None:
    """Leave rows to the relays, whatever was answered before."""
    for some in _chunks(rows):
        connection.execute(
            update(outbox).where(_these(some), outbox.c.state != HELD).values(state=WAITING, relay="", until=0)
        )


def give_back(connection: Connection, relay: str) -> None:
    """End all leases of a relay."""
    leased = and_(outbox.c.relay == relay, outbox.c.state == LEASED)
    connection.execute(update(outbox).where(leased).values(state=WAITING, relay="", until=0))


def has_work(connection: Connection) -> bool:
    """Whether a relay would find rows. Reads only: most looks find nothing."""
    waits = and_(outbox.c.state == WAITING, outbox.c.created < now_ms() - YOUNG)
    over = and_(outbox.c.state.in_([LEASED, SENT]), outbox.c.until < now_ms())
    return bool(connection.execute(select(or_(exists().where(waits), exists().where(over)))).scalar())


def lease(connection: Connection, relay: str, after_lane: int, most: int) -> list[OutboxRow]:
    """Lease rows that wait: the oldest of each lane that no other relay sends from at the moment.

    `after_lane`: the lane at which to begin, so that all lanes have their turn.
    """
    # Relays come one after another. Otherwise two could lease rows of one lane, neither seeing the other.
    connection.execute(update(schema).values(beat=schema.c.beat))
    over = or_(
        and_(outbox.c.state.in_([LEASED, SENT]), outbox.c.until < now_ms()),
        and_(outbox.c.state == LEASED, outbox.c.relay == relay),  # of an earlier turn, which has failed
    )
    connection.execute(update(outbox).where(over).values(state=WAITING, relay="", until=0))
    taken = select(outbox.c.lane).where(outbox.c.state == LEASED, outbox.c.relay != relay).distinct()
    busy = connection.execute(taken).scalars().all()
    found: list[OutboxRow] = []
    for part in (outbox.c.lane >= after_lane, outbox.c.lane < after_lane):
        if len(found) < most:
            found += _lease_oldest(connection, relay, and_(part, outbox.c.lane.not_in(busy)), most - len(found))
    return found


def _lease_oldest(connection: Connection, relay: str, lanes: Any, most: int) -> list[OutboxRow]:
    oldest = (
        select(outbox.c.number)
        .where(outbox.c.state == WAITING, lanes, outbox.c.created < now_ms() - YOUNG)
        .order_by(outbox.c.lane, outbox.c.number)
        .limit(most)
    )
    leased = (
        update(outbox)
        .where(outbox.c.number.in_(oldest))
        .values(state=LEASED, relay=relay, until=now_ms() + LEASE)
        .returning(*_COLUMNS, now_ms() - outbox.c.created)
    )
    rows = [
        OutboxRow(number, nonce, queue, job, lane, bytes(record), bool(durable), max(0, age))
        for number, nonce, queue, job, lane, record, durable, age in connection.execute(leased)
    ]
    return sorted(rows, key=lambda row: (row.lane, row.number))


@dataclass(frozen=True, slots=True)
class Backlog:
    """What is in the outbox.

    waiting  calls that were not sent yet, those that a relay is sending included
    sent     calls that the server has accepted, and whose rows are deleted within seconds
    held     calls that the queue refused: an operator decides about them
    oldest   seconds since the oldest waiting one was written; 0 if none waits
    """

    waiting: int
    sent: int
    held: int
    oldest: float


def backlog(connection: Connection) -> Backlog:
    counted = select(outbox.c.state, func.count(), func.min(outbox.c.created), now_ms()).group_by(outbox.c.state)
    counts = {state: (n, oldest, now) for state, n, oldest, now in connection.execute(counted)}
    waits = [counts[state] for state in (WAITING, LEASED) if state in counts]
    oldest = max((now - created for _, created, now in waits), default=0)
    return Backlog(
        sum(n for n, *_ in waits),
        counts.get(SENT, (0,))[0],
        counts.get(HELD, (0,))[0],
        max(0, oldest) / 1000,
    )
