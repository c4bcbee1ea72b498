"""What a session has put into outboxes, and the end of its transaction.

The hook runs after the commit of the outermost transaction. It is a hint: the sender reads from the database what was
committed, because savepoints and transactions around a session do not show here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from sqlalchemy import event
from sqlalchemy.orm import Session, SessionTransaction

from penstock.sql.rows import OutboxRow

_KEY: Final = "penstock.outbox"


def send_after_commit(session: Session, send: Callable[[Sequence[OutboxRow]], None], rows: Sequence[OutboxRow]) -> None:
    """Call `send` with the rows when the transaction of the session has committed; forget them if it does not."""
    session.info.setdefault(_KEY, []).append((send, rows))


def _committed(session: Session) -> None:
    if session.info.get(_KEY) and not session.in_nested_transaction():
        for send, rows in session.info.pop(_KEY):
            send(rows)


def _ended(session: Session, transaction: SessionTransaction) -> None:
    if transaction.parent is None:
        session.info.pop(_KEY, None)


event.listen(Session, "after_commit", _committed)
event.listen(Session, "after_transaction_end", _ended)
