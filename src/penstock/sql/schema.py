"""The tables of the outbox and the inbox, the same for SQLAlchemy, Alembic and Django.

    penstock_outbox   a row for each call that no queue has accepted for certain yet
    penstock_inbox    a row for each job whose effect is in this database
    penstock_schema   one row: the version of these tables, and what recognises a restored database

      (none) ──enqueue──▶ WAITING ──▶ LEASED ──▶ SENT ──▶ (deleted)
                           │   ▲        │          │
                           │   └────────┴──────────┘  the relay has died
                           └──▶ HELD  the queue refuses the call: for an operator

A row becomes SENT when the server has answered, and is deleted when the server will remember the answer. Columns that
hold a time count milliseconds since 1970 by the clock of the database, which alone decides.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    create_mock_engine,
    insert,
    select,
)
from sqlalchemy.exc import OperationalError, ProgrammingError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateIndex, CreateTable
from sqlalchemy.sql import expression

from penstock.errors import ConfigurationError, FormatTooNew

VERSION: Final = 1
"""Of the tables. A program refuses a newer one."""

LANES: Final = 64
"""A row's lane is the hash of its tenant. One relay at a time sends the rows of a lane, so they keep their order."""

WAITING, LEASED, SENT, HELD = 0, 1, 2, 3

DIALECTS: Final = ("postgresql", "sqlite")


class now_ms(expression.FunctionElement[int]):  # noqa: N801 - reads as the function of SQL that it is
    """Milliseconds since 1970 by the clock of the database, at the moment and not at the start of the transaction."""

    type = BigInteger()
    inherit_cache = True


@compiles(now_ms, "postgresql")
def _now_on_postgresql(element: Any, compiler: Any, **options: Any) -> str:
    return "((extract(epoch from clock_timestamp()) * 1000)::bigint)"


@compiles(now_ms, "sqlite")
def _now_on_sqlite(element: Any, compiler: Any, **options: Any) -> str:
    return "(CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER))"


tables = MetaData()

_Number = BigInteger().with_variant(Integer(), "sqlite")  # SQLite numbers the rows of an INTEGER PRIMARY KEY only


outbox = Table(
    "penstock_outbox",
    tables,
    Column("number", _Number, primary_key=True, autoincrement=True),
    Column("nonce", BigInteger, nullable=False),  # random: by it the queue recognises a call that is sent again
    Column("queue", String(100), nullable=False),
    Column("job", String(200), nullable=False),  # the id within the queue
    Column("lane", SmallInteger, nullable=False),
    Column("record", LargeBinary, nullable=False),  # the call with its options, as the queue stores it
    Column("durable", SmallInteger, nullable=False, server_default="0"),
    Column("created", BigInteger, nullable=False, server_default=now_ms()),
    Column("state", SmallInteger, nullable=False, server_default="0"),
    Column("relay", String(200), nullable=False, server_default=""),  # who leased or sent it
    Column("until", BigInteger, nullable=False, server_default="0"),  # LEASED, SENT: until when the relay has it
    Column("reason", Text, nullable=False, server_default=""),  # HELD: why
    sqlite_autoincrement=True,  # a number is not used again
)
Index("penstock_outbox_next", outbox.c.state, outbox.c.lane, outbox.c.number)

inbox = Table(
    "penstock_inbox",
    tables,
    Column("job", String(400), primary_key=True),
    Column("enqueued", BigInteger, primary_key=True),  # server ms: an id that the program chose may be used again
    Column("name", String(200), primary_key=True, server_default=""),
    Column("result", LargeBinary),
    Column("created", BigInteger, nullable=False, server_default=now_ms()),
)
Index("penstock_inbox_created", inbox.c.created)

schema = Table(
    "penstock_schema",
    tables,
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("identity", String(40), nullable=False, server_default=""),  # of this database; drawn by the first relay
    Column("beat", BigInteger, nullable=False, server_default="0"),  # rises while relays run, so that a restore shows
    Column("beaten", BigInteger, nullable=False, server_default="0"),  # when it rose last
)


def statements(dialect: str) -> list[str]:
    """The statements that create the tables in an empty database. ConfigurationError for another dialect."""
    if dialect not in DIALECTS:
        raise ConfigurationError(f"dialect {dialect!r}: Penstock has tables for {' and '.join(DIALECTS)}")
    made: list[str] = []
    engine = create_mock_engine(f"{dialect}://", lambda *_, **__: None)
    for table in tables.sorted_tables:
        made.append(str(CreateTable(table).compile(dialect=engine.dialect)).strip())
        made += [
            str(CreateIndex(one).compile(dialect=engine.dialect)).strip() for one in sorted(table.indexes, key=str)
        ]
    made.append(f"INSERT INTO penstock_schema (version) VALUES ({VERSION})")
    return made


def create(connection: Connection) -> None:
    """Create the tables, where they are missing. Safe to repeat."""
    tables.create_all(connection, checkfirst=True)
    if connection.execute(select(schema.c.version)).first() is None:
        connection.execute(insert(schema).values(version=VERSION))


def check(connection: Connection) -> None:
    """Raise ConfigurationError if the tables are missing, and FormatTooNew if a newer Penstock has changed them."""
    try:
        versions = connection.execute(select(schema.c.version)).scalars().all()
    except (ProgrammingError, OperationalError) as error:
        raise missing_table(error, connection.dialect.name) or error from None
    if not versions:
        raise ConfigurationError(
            "the table penstock_schema is empty: a migration was not finished; run `penstock sql schema`, whose last "
            "statement fills it"
        )
    if max(versions) > VERSION:
        raise FormatTooNew(
            f"the tables of Penstock in this database have version {max(versions)}, and this Penstock knows {VERSION}: "
            "update the penstock package of this program"
        )


def missing_table(error: Exception, dialect: str) -> ConfigurationError | None:
    """The error in plain words, if a table of ours is missing. `error`: of SQLAlchemy, or of Django."""
    cause = str(getattr(error, "orig", None) or error)
    text = cause.lower()
    if "penstock_" not in text or not ("no such table" in text or "does not exist" in text):
        return None
    return ConfigurationError(
        f"the database lacks Penstock's tables ({cause.splitlines()[0]}): create them with "
        f"`penstock sql schema --dialect {dialect}`, or by the migration for Alembic or Django (docs/howto/database.md)"
    )
