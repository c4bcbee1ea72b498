"""What a session has put into outboxes, and the end of its transaction.

The hook runs after the commit of the outermost transaction. It is a hint: the sender reads from the database what was
committed, because savepoints and transactions around a session do not show here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from sqlalchemy import event
from sqlalchemy.orm import Session, SessionTransaction

from penstock.sql.rows import OutboxRow


class TakesRows(Protocol):
    def send(self, rows: Sequence[OutboxRow]) -> None: ...


_KEY: Final = "penstock.outbox"


def send_after_commit(session: Session, sender: TakesRows, rows: Sequence[OutboxRow]) -> None:
    """Give rows to the sender when the transaction of the session has committed, and forget them if it does not."""
    session.info.setdefault(_KEY, []).append((sender, rows))


def _committed(session: Session) -> None:
    if session.info.get(_KEY) and not session.in_nested_transaction():
        for sender, rows in session.info.pop(_KEY):
            sender.send(rows)


def _ended(session: Session, transaction: SessionTransaction) -> None:
    if transaction.parent is None:
        session.info.pop(_KEY, None)


event.listen(Session, "after_commit", _committed)
event.listen(Session, "after_transaction_end", _ended)
