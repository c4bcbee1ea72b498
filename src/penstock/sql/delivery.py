"""Sending rows of the outbox to their queues, and deleting them when the server will remember that it has them.

A server that writes its file once a second may lose the last second if it is killed. So a row is deleted only when the
server has run for five seconds since its answer: it has the same `run_id` as before. A durable call is deleted at once.
If the server has restarted or failed over, the rows are sent again; the queue recognises those that it still has.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from sqlalchemy import Connection

from penstock.app import Penstock
from penstock.errors import PenstockError, ServerError
from penstock.jobs import effort
from penstock.jobs.constants import FORMAT
from penstock.jobs.receipts import ACCEPT_CHUNK, TOO_OLD, Receipts
from penstock.jobs.record import HEADER_SIZE
from penstock.sql import rows as table
from penstock.sql.background import Ask, Transact, Work
from penstock.sql.rows import OutboxRow

SAFE_AFTER: Final = 5.0
"""A server that still runs this many seconds after an answer will remember it. It writes its file once a second."""

_GIVEN_UP: Final = table.LEASE / 1000 - 2 * SAFE_AFTER
"""If the server could not be asked for this many seconds after an answer, a relay sends the row again."""


@dataclass(slots=True)
class Outcome:
    """The result of sending rows.

    accepted  the queues have them
    refused   rows that their queue will never take, and why
    failed    rows to send again, because the server could not be asked
    error     the last failure
    """

    accepted: list[OutboxRow] = field(default_factory=list)
    refused: list[tuple[list[OutboxRow], str]] = field(default_factory=list)
    failed: list[OutboxRow] = field(default_factory=list)
    error: ServerError | None = None


@dataclass(frozen=True, slots=True)
class _Answered:
    """Rows that a queue has accepted. `at`: a `time.monotonic()`; `run_id`: of the server, before they were sent."""

    queue: str
    rows: Sequence[OutboxRow]
    at: float
    run_id: str
    durable: bool

    @property
    def due(self) -> float:
        return self.at if self.durable else self.at + SAFE_AFTER


class Delivery:
    """Sends rows, and remembers those that are not deleted yet."""

    def __init__(self, app: Penstock) -> None:
        self._app = app
        self._answered: list[_Answered] = []
        self._run_ids: dict[str, str] = {}
        """Queue -> the last run_id of its server that was seen."""

    @property
    def next_due(self) -> float | None:
        """`time.monotonic()` at which `confirm` has something to do."""
        return min((one.due for one in self._answered), default=None)

    def send(self, rows: Iterable[OutboxRow]) -> Work[Outcome]:
        """Send rows, those of each queue in their order. One round trip for each 250 of a queue."""
        outcome, queues = Outcome(), dict[str, list[OutboxRow]]()
        for row in rows:
            if fault := _fault(row):
                outcome.refused.append(([row], fault))
            else:
                queues.setdefault(row.queue, []).append(row)
        for queue, some in queues.items():
            yield from self._send_to(queue, some, outcome)
        return outcome

    def _send_to(self, queue: str, rows: list[OutboxRow], outcome: Outcome) -> Work[None]:
        left = rows
        try:
            receipts = Receipts(self._app.queue(queue))
            if queue not in self._run_ids:
                self._run_ids[queue] = yield Ask(receipts.run_id, ())
            for chunk in _chunks(rows):
                run_id, durable = self._run_ids[queue], chunk[0].durable
                letters = yield Ask(receipts.accept, ([row.call for row in chunk], durable))
                old = [row for row, letter in zip(chunk, letters, strict=True) if letter == TOO_OLD]
                taken = [row for row, letter in zip(chunk, letters, strict=True) if letter != TOO_OLD]
                if old:
                    outcome.refused.append((old, _TOO_OLD))
                outcome.accepted += taken
                self._answered.append(_Answered(queue, taken, time.monotonic(), run_id, durable))
                left = left[len(chunk) :]
        except ServerError as error:
            outcome.failed += left
            outcome.error = error
        except PenstockError as error:  # the queue will refuse them again
            outcome.refused.append((left, str(error)))

    def confirm(self) -> Work[None]:
        """Delete the rows whose time has come, and leave those of a server that has restarted to the relays.

        Raises ServerError. One round trip for each queue that has such rows, two if they are deleted.
        """
        now = time.monotonic()
        due = [one for one in self._answered if one.due <= now]
        for queue in dict.fromkeys(one.queue for one in due):
            receipts, mine = Receipts(self._app.queue(queue)), [one for one in due if one.queue == queue]
            try:
                run_id = yield Ask(receipts.run_id, ())
            except ServerError:
                self._answered = [one for one in self._answered if one.queue != queue or now < one.at + _GIVEN_UP]
                raise
            self._run_ids[queue] = run_id
            safe = [row for one in mine if one.run_id == run_id or one.durable for row in one.rows]
            again = [row for one in mine if one.run_id != run_id and not one.durable for row in one.rows]

            def settle(connection: Connection, safe: list[OutboxRow] = safe, again: list[OutboxRow] = again) -> None:
                table.remove(connection, safe)
                table.send_again(connection, again)

            yield Transact(settle)
            self._answered = [one for one in self._answered if one not in mine]
            for start in range(0, len(safe), ACCEPT_CHUNK):
                yield Ask(receipts.forget, ([row.nonce for row in safe[start : start + ACCEPT_CHUNK]],))


_TOO_OLD: Final = (
    "it is older than the queue's memory of accepted calls, so the queue cannot know whether it has accepted this "
    "one: look whether its effect is there, then send it by `penstock outbox retry`, or delete it by `penstock "
    "outbox rm`"
)


def _fault(row: OutboxRow) -> str:
    """Why a row cannot be a call, or ""."""
    if len(row.record) <= HEADER_SIZE:
        return "its record is damaged"
    if row.record[0] != FORMAT:
        return f"it was written by another release of Penstock (format {row.record[0]}, this one writes {FORMAT})"
    try:
        effort.of_draft(row.record)  # reads the powers, as `_chunks` and the server do
    except Exception:
        return "its record is damaged"
    return ""


def _chunks(rows: Sequence[OutboxRow]) -> Iterable[list[OutboxRow]]:
    for _, alike in groupby(rows, key=lambda row: row.durable):
        some = list(alike)
        yield from effort.slices(some, lambda row: effort.of_draft(row.record), ACCEPT_CHUNK)
