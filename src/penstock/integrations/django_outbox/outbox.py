"""The outbox and the inbox in a transaction of Django."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from sqlalchemy import URL, Engine, create_engine

from penstock.app import Penstock
from penstock.core.arguments import check_many
from penstock.errors import ConfigurationError
from penstock.integrations.django_outbox.connection import DjangoConnection
from penstock.integrations.requirements import needs
from penstock.jobs.job import Job
from penstock.jobs.task import Call
from penstock.sql.inbox import EffectMark
from penstock.sql.sender import CommitSenders
from penstock.sql.writing import write_calls

with needs("django", "django"):
    from django.db import connections, transaction

R = TypeVar("R")


class DjangoOutbox:
    """Calls of one app that wait in one database of a Django project; see `penstock.sql.Outbox`.

    using  the alias of the database
    """

    def __init__(self, app: Penstock, using: str = "default") -> None:
        self.app, self.using = app, using
        self._senders: CommitSenders | None = None

    def __repr__(self) -> str:
        return f"<DjangoOutbox of {self.using}>"

    def enqueue(self, call: Call[R]) -> Job[R]:
        """Enqueue a call when the caller's transaction commits. Returns its job, whose id is known at once.

        Raises ConfigurationError outside of `transaction.atomic()`, and what `Outbox.enqueue` raises. One INSERT.
        """
        (job,) = self._write([call], "enqueue")
        return job

    def enqueue_many(self, calls: Iterable[Call[R]]) -> list[Job[R]]:
        """Enqueue many calls when the transaction commits. Returns their jobs in order. One INSERT for each 500."""
        check_many("enqueue_many", "calls", calls)
        return self._write(list(calls), "enqueue_many")

    def _write(self, calls: Sequence[Call[R]], verb: str) -> list[Job[R]]:
        jobs, rows = write_calls(self._connection(), self.app, calls, verb)
        if rows:
            if self._senders is None:
                self._senders = CommitSenders(self.app, engine_of(self.using))
            senders = self._senders
            transaction.on_commit(lambda: senders.send(rows), using=self.using, robust=True)
        return jobs

    def once(self, name: str = "") -> DjangoOnce:
        """Make an effect of the current job in the database happen once, however often the job runs; see `Outbox.once`.

        with transaction.atomic(), outbox.once() as once:
            if once.first:
                Payment.objects.create(order=order)
        """
        return DjangoOnce(self, name)

    def _connection(self) -> DjangoConnection:
        connection = connections[self.using]
        if not connection.in_atomic_block:
            raise ConfigurationError(
                f"database {self.using!r} is not in a transaction: write `with transaction.atomic():` around the "
                "enqueue and your other writes"
            )
        return DjangoConnection(connection)

    def close(self) -> None:
        """Send what was committed, and end the thread that does it."""
        if self._senders is not None:
            self._senders.close()


class DjangoOnce:
    """The effect of the current job in a database of Django."""

    def __init__(self, outbox: DjangoOutbox, name: str) -> None:
        self._outbox, self._mark = outbox, EffectMark(name, outbox.app.settings.max_payload)
        self.first = True
        """Whether the effect is not in the database yet."""
        self.result: Any = None
        """What an earlier run stored. The first run sets it: anything that JSON can hold."""

    def __enter__(self) -> DjangoOnce:
        self.first, self.result = self._mark.set(self._outbox._connection())
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.first and kind is None:  # after an error, `atomic` rolls the mark back
            self._mark.store(self._outbox._connection(), self.result)


def engine_of(using: str) -> Engine:
    """An engine of SQLAlchemy for a database of the settings, for the thread that sends and deletes rows."""
    connection = connections[using]
    given: dict[str, Any] = connection.settings_dict
    if connection.vendor == "sqlite":
        return create_engine(URL.create("sqlite", database=str(given["NAME"])))
    driver = "psycopg2" if connection.Database.__name__ == "psycopg2" else "psycopg"
    host = str(given["HOST"])
    query = {name: str(value) for name, value in given.get("OPTIONS", {}).items() if isinstance(value, str | int)}
    if host.startswith("/"):  # the folder of a unix socket
        host, query = "", {**query, "host": host}
    port = int(given["PORT"]) if given["PORT"] else None
    return create_engine(
        URL.create(
            f"postgresql+{driver}",
            given["USER"] or None,
            given["PASSWORD"] or None,
            host or None,
            port,
            given["NAME"],
            query,
        )
    )
