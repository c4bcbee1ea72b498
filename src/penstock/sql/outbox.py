"""The outbox: calls that are enqueued if, and only if, a transaction of the program's own database commits."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import InvalidRequestError, UnboundExecutionError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session

from penstock.app import Penstock
from penstock.core.arguments import check_many
from penstock.errors import ConfigurationError
from penstock.jobs.job import Job
from penstock.jobs.task import Call
from penstock.sql import rows, schema
from penstock.sql.after_commit import send_after_commit
from penstock.sql.background import LoopBell, Transact, Work, run_on_loop
from penstock.sql.connecting import in_database
from penstock.sql.inbox import EffectMark, Once
from penstock.sql.relay import Relay
from penstock.sql.rows import Backlog
from penstock.sql.sender import CommitSenders
from penstock.sql.session_verb import AnySession, session_verb
from penstock.sql.writing import write_calls

R = TypeVar("R")


class Outbox:
    """Calls of one app that wait in one database until a queue has them.

        outbox = Outbox(app, engine)

        with Session(engine) as session, session.begin():
            session.add(order)
            job = outbox.enqueue(session, send_email.call("ada@example.com", subject="Hi"))

    The job is enqueued after the commit, and never if the transaction is rolled back. If the process dies after the
    commit, or the server is away, a *relay* enqueues it: run `penstock outbox relay`, or `outbox.relay()`.

    engine  of SQLAlchemy, blocking or asyncio: PostgreSQL, or a file of SQLite. Sessions may have another engine that
            leads to the same database

    Raises ConfigurationError for another database.
    """

    def __init__(self, app: Penstock, engine: Engine | AsyncEngine) -> None:
        if not isinstance(app, Penstock):
            raise ConfigurationError(f"Outbox(app, engine): the app is a Penstock, not {type(app).__name__}")
        if not isinstance(engine, (Engine, AsyncEngine)):
            raise ConfigurationError(
                f"Outbox(app, engine): the engine is one of SQLAlchemy (create_engine), not {type(engine).__name__}"
            )
        self.app, self.engine = app, engine
        self._database = _database(engine)
        self._senders = CommitSenders(app, engine)

    def __repr__(self) -> str:
        return f"<Outbox of {_shown(self.engine)}>"

    @session_verb
    def enqueue(self, session: Session, call: Call[R]) -> Job[R]:
        """Enqueue a call when the transaction of the session commits. Returns its job, whose id is known at once.

            outbox.enqueue(session, send_email.using(tenant="acme").call("ada@example.com", subject="Hi"))
            await outbox.enqueue.aio(async_session, send_email.call(…))

        A delay, or `expires`, counts from the moment when the queue gets the call. Raises BadCall for a call that is
        unique or waits for others, and ConfigurationError for a queue with shards, for a session of another database or
        in autocommit, and where the tables are missing. One INSERT; no round trip to the server.
        """
        (job,) = self._write(session, [call], "enqueue")
        return job

    @session_verb
    def enqueue_many(self, session: Session, calls: Iterable[Call[R]]) -> list[Job[R]]:
        """Enqueue many calls when the transaction commits. Returns their jobs in order. One INSERT for each 500."""
        check_many("enqueue_many", "calls", calls)
        return self._write(session, list(calls), "enqueue_many")

    def _write(self, session: Session, calls: Sequence[Call[R]], verb: str) -> list[Job[R]]:
        jobs, written = write_calls(self.connection(session), self.app, calls, verb)
        if written:
            send_after_commit(session, self._senders.send, written)
        return jobs

    def connection(self, session: Session) -> Connection:
        """The connection of the session's transaction. Raises ConfigurationError if it cannot carry an outbox."""
        try:
            bind = session.get_bind(clause=schema.outbox)
            engine = bind.engine
            if _database(engine) != self._database:
                raise ConfigurationError(
                    f"the session writes to {_shown(engine)}, and the outbox is for {_shown(self.engine)}: "
                    "no relay would see its calls. Make an Outbox for each database"
                )
            connection = session.connection(bind_arguments={"clause": schema.outbox})
        except UnboundExecutionError as error:
            raise ConfigurationError(
                f"the session has no engine for the table penstock_outbox: {error.args[0].splitlines()[0]}"
            ) from error
        except InvalidRequestError as error:
            if session.in_transaction():
                raise
            raise ConfigurationError(
                "the session has no transaction (autobegin=False): write `with session.begin():` around the enqueue"
            ) from error
        if _is_autocommit(connection):
            raise ConfigurationError(
                "the session is in autocommit, so the call would be enqueued whatever happens to your other writes: "
                "use an engine without isolation_level='AUTOCOMMIT'"
            )
        return connection

    def backlog(self) -> Backlog:
        """How many calls wait, and for how long. One query.

        Raises ConfigurationError and FormatTooNew as `relay` does, and ServerUnavailable if the database fails. With an
        engine of asyncio, call it where no event loop runs.
        """
        return in_database(self.engine, rows.backlog)

    def close(self) -> None:
        """Send what blocking code has committed, and end the thread that does it. What is left is for a relay."""
        self._senders.close()

    def once(self, session: AnySession, name: str = "") -> Once:
        """Have an effect in the database once, however often the current job runs. Use it inside a job:

            with Session(engine) as session, session.begin(), outbox.once(session) as once:
                if once.first:
                    session.add(Payment(order))
                    once.result = {"receipt": 7}
            return once.result

        The mark of the job is written in the session's transaction, so both commit together or neither does. A run
        after that finds the mark: `once.first` is False, and `once.result` is what the first run has set (anything that
        JSON can hold). A run at the same time waits for the end of the other's transaction. `async with` takes an
        `AsyncSession`.

        name  of one of several effects of the job, such as "card" and "mail"

        Marks are kept for 90 days. A job that is older, and has no mark, raises MarkForgotten: its mark may have been
        deleted. Raises NoCurrentJob outside of a job, and ConfigurationError as `enqueue` does. One INSERT, and one
        statement more for a result.
        """
        return Once(self.connection, session, EffectMark(name, self.app.settings.max_payload))

    async def relay(self) -> None:
        """Send what the programs of this database have left behind, until the task is cancelled.

        Run it beside a worker, or `penstock outbox relay` by itself; any number at a time. It looks every 250 ms while
        rows come, and every 5 s while none do. Failures of the database or the server are logged, and it tries again.
        Raises ConfigurationError if the tables are missing, and FormatTooNew if a newer Penstock has made them.
        """
        relay = Relay(self.app)
        try:
            await run_on_loop(relay.work(), self.engine, LoopBell())
        finally:
            with contextlib.suppress(Exception):
                await asyncio.shield(asyncio.wait_for(self._give_back(relay.token), 2.0))

    async def _give_back(self, token: str) -> None:
        """End the leases of a relay, so that others need not wait until they run out."""

        def end_leases() -> Work[None]:
            yield Transact(lambda connection: rows.give_back(connection, token))

        await run_on_loop(end_leases(), self.engine, LoopBell())

    async def aclose(self) -> None:
        """Do the same as `close`, and for the running event loop."""
        await self._senders.aclose()


def _database(engine: Engine | AsyncEngine) -> tuple[Any, ...]:
    """What names a database, whatever driver and user the engine has. Raises ConfigurationError for an unfit one."""
    url = engine.url
    backend = url.get_backend_name()
    if backend not in schema.DIALECTS:
        raise ConfigurationError(f"{_shown(engine)}: the outbox works with {' and '.join(schema.DIALECTS)}")
    if backend == "sqlite":
        if not url.database or url.database == ":memory:" or "mode=memory" in url.database:
            raise ConfigurationError(
                f"{_shown(engine)}: a database in memory is gone with its process, so it protects no call; name a file"
            )
        from pathlib import Path

        return backend, str(Path(url.database.removeprefix("file:").partition("?")[0]).resolve())
    query = dict(url.query)
    return backend, url.host or query.get("host"), url.port or 5432, url.database


def _shown(engine: Engine | AsyncEngine) -> str:
    return engine.url.render_as_string(hide_password=True)


def _is_autocommit(connection: Connection) -> bool:
    if connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
        return True
    # A recipe for SQLite has the driver in autocommit and begins by itself, so only PostgreSQL's is asked.
    driver: Any = connection.connection.dbapi_connection
    return connection.dialect.name == "postgresql" and bool(connection.dialect.detect_autocommit_setting(driver))
