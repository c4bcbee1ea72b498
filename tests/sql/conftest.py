"""Databases for tests: a file of SQLite always, and a PostgreSQL where `make test-sql` has installed one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, func, select, update
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from penstock import Penstock
from penstock.sql import Outbox, delivery, schema
from tests.command_line import penstock, start  # noqa: F401 - fixtures
from tests.sql.postgres import PROGRAMS, Postgres

DIALECTS = ["sqlite", *(["postgresql"] if PROGRAMS else [])]

Database = tuple[str, str]
"""The addresses for a blocking engine and for one of asyncio."""


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with Postgres() as started:
        yield started


@pytest.fixture(params=DIALECTS)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    """A database without tables."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/shop.db", f"sqlite+aiosqlite:///{tmp_path}/shop.db"
    postgres: Postgres = request.getfixturevalue("postgres")
    name = postgres.create()
    return postgres.url(name), postgres.url(name, "asyncpg")


@pytest.fixture
def engine(database: Database) -> Iterator[Engine]:
    """A blocking engine, to a database with the tables."""
    made = create_engine(database[0])
    with made.begin() as connection:
        schema.create(connection)
    yield made
    made.dispose()


@pytest.fixture
async def async_engine(engine: Engine, database: Database) -> AsyncIterator[AsyncEngine]:
    made = create_async_engine(database[1], poolclass=NullPool)
    yield made
    await made.dispose()


class Shop:
    """A program with a database: its app, its outbox, and what can be seen of them."""

    def __init__(self, app: Penstock, engine: Engine) -> None:
        self.app, self.engine = app, engine
        self.outbox = Outbox(app, engine)
        self.queue = app.queue("orders")

        @app.task(queue="orders")
        def ship(order: int) -> int:
            return order

        self.ship = ship

    def session(self) -> Session:
        return Session(self.engine)

    def rows(self) -> list[Any]:
        with self.engine.begin() as connection:
            return list(connection.execute(select(schema.outbox).order_by(schema.outbox.c.number)))

    def states(self) -> list[int]:
        return [row.state for row in self.rows()]

    def make_older(self, seconds: float) -> None:
        """Move the time of all rows into the past: a relay takes rows that are two seconds old."""
        table, by = schema.outbox, int(seconds * 1000)
        with self.engine.begin() as connection:
            connection.execute(update(table).values(created=table.c.created - by, until=func.abs(table.c.until - by)))

    def orders(self) -> list[int]:
        """The orders that wait in the queue, in the order in which a worker gets them."""
        items = self.queue.claim(1000)
        return [item.body[1]["order"] for item in items]


@pytest.fixture
def shop(apps: Any, engine: Engine) -> Iterator[Shop]:
    made = Shop(apps.make(), engine)
    yield made
    made.outbox.close()
    made.app.close()


@pytest.fixture
def away(engine: Engine, tmp_path: Path) -> Iterator[Shop]:
    """A program whose server is away, so that everything is left to a relay."""
    with Penstock(f"unix://{tmp_path}/nothing.sock") as app:
        made = Shop(app, engine)
        yield made
        made.outbox.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are deleted soon after an answer, and not five seconds later."""
    monkeypatch.setattr(delivery, "SAFE_AFTER", 0.1)
