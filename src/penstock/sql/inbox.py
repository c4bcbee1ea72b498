"""The inbox: an effect in the program's own database that happens once, however often its job runs.

A mark is the job's id and the time of its enqueue, because an id that the program chose may be used again. The mark is
inserted in the transaction of the effect, so both are there or neither. If a second run comes while the first is in its
transaction, it waits for the end of that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

from sqlalchemy import Connection, and_, delete, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.orm import Session

from penstock import codec
from penstock.core.arguments import shown, utf8_size
from penstock.errors import ConfigurationError, MarkForgotten
from penstock.jobs.current import current
from penstock.sql import schema
from penstock.sql.schema import inbox, now_ms
from penstock.sql.session_verb import asyncio_session, blocking_session
from penstock.sql.writing import Executes

MARKS_KEPT: Final = 90 * 86400
"""Seconds for which a mark is kept."""

_CLOCKS: Final = 86400
"""Seconds by which the clocks of the server and the database may differ."""

_DELETED: Final = 1000
"""Marks that one statement deletes."""


class EffectMark:
    """The mark of the current job in a database."""

    def __init__(self, name: str, max_result: int) -> None:
        if not isinstance(name, str) or utf8_size("name", name) > 200:
            raise ConfigurationError(f"once(name={shown(name)}): at most 200 bytes of UTF-8")
        self._name, self._max_result = name, max_result
        self._values: dict[str, Any] = {}

    def set(self, connection: Executes) -> tuple[bool, Any]:
        """Insert the mark. Returns whether it is new, and what an earlier run has stored with it."""
        job = current()
        self._values = {"job": job.id, "enqueued": round(job.enqueued * 1000), "name": self._name}
        insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
        wanted = insert(inbox).on_conflict_do_nothing().returning(inbox.c.job, now_ms())
        try:
            made = connection.execute(wanted, self._values).first()
        except DBAPIError as error:
            raise schema.missing_table(error, connection.dialect.name) or error from error
        if made is None:
            stored = connection.execute(select(inbox.c.result).where(self._is_mine)).scalar()
            return False, None if stored is None else codec.decode(bytes(stored), what="once.result")
        age = made[1] / 1000 - job.enqueued
        if age > MARKS_KEPT - _CLOCKS:
            self.remove(connection)
            raise MarkForgotten(
                f"job {job.id} was enqueued {age / 86400:.0f} days ago, and the marks of effects are kept for "
                f"{MARKS_KEPT // 86400} days: whether its effect is in the database is unknown. Look there; if it is "
                "missing, enqueue the call again as a new job"
            )
        return True, None

    @property
    def _is_mine(self) -> Any:
        return and_(*(inbox.c[column] == value for column, value in self._values.items()))

    def remove(self, connection: Executes) -> None:
        connection.execute(delete(inbox).where(self._is_mine))

    def store(self, connection: Executes, result: Any) -> None:
        """Keep a result with the mark."""
        if result is not None:
            stored = codec.encode(result, limit=self._max_result, what="once.result", untyped=True)
            connection.execute(update(inbox).where(self._is_mine).values(result=stored))


class Once:
    """The effect of the current job in the program's database; see `Outbox.once`."""

    def __init__(self, connect: Callable[[Session], Connection], session: Any, mark: EffectMark) -> None:
        self._connect, self._session, self._mark = connect, session, mark
        self.first = True
        """Whether the effect is not in the database yet."""
        self.result: Any = None
        """What an earlier run stored. The first run sets it: anything that JSON can hold."""

    def _enter(self, session: Session) -> None:
        self.first, self.result = self._mark.set(self._connect(session))

    def _exit(self, session: Session, failed: bool) -> None:
        if not self.first:
            return
        if not failed:
            return self._mark.store(self._connect(session), self.result)
        # The transaction is probably rolled back. If not, the mark must not stay without the effect.
        with contextlib.suppress(SQLAlchemyError):
            self._mark.remove(self._connect(session))

    def __enter__(self) -> Once:
        self._enter(blocking_session(self._session, "once"))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._exit(blocking_session(self._session, "once"), error is not None)

    async def __aenter__(self) -> Once:
        await asyncio_session(self._session, "once").run_sync(self._enter)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        await asyncio_session(self._session, "once").run_sync(self._exit, error is not None)


def delete_old_marks(connection: Connection) -> int:
    """Delete marks that are no longer kept, up to a thousand. Returns how many."""
    old = select(inbox.c.job, inbox.c.enqueued, inbox.c.name).where(inbox.c.created < now_ms() - MARKS_KEPT * 1000)
    found = connection.execute(old.limit(_DELETED)).all()
    for job, enqueued, name in found:
        one = and_(inbox.c.job == job, inbox.c.enqueued == enqueued, inbox.c.name == name)
        connection.execute(delete(inbox).where(one))
    return len(found)
