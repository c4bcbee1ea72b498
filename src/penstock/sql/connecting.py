"""The engine for an address that an operator gives, and work with it in a program without asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Final, TypeVar

from sqlalchemy import Connection, Engine, create_engine, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from penstock.errors import ConfigurationError, ServerUnavailable
from penstock.sql import schema
from penstock.sql.background import transact

T = TypeVar("T")

_DRIVERS: Final = {"postgresql": ("psycopg", "psycopg2", "asyncpg"), "sqlite": ("sqlite3",)}


def open_engine(address: str) -> Engine | AsyncEngine:
    """An engine for an address of SQLAlchemy, such as `postgresql://user@host/shop` or `sqlite:///shop.db`.

    Without a driver in the address it takes one that is installed. Raises ConfigurationError for an address that cannot
    work. Connects to nothing.
    """
    try:
        url = make_url(address.replace("postgres://", "postgresql://", 1))
    except ArgumentError:
        raise ConfigurationError(
            "--database: give an address of SQLAlchemy, such as postgresql://user@host/shop or sqlite:///shop.db"
        ) from None
    backend = url.get_backend_name()
    if backend not in _DRIVERS:
        raise ConfigurationError(f"--database {backend}: the outbox works with {' and '.join(_DRIVERS)}")
    if url.drivername == backend == "postgresql":
        driver = next((one for one in _DRIVERS[backend] if find_spec(one) is not None), None)
        if driver is None:
            raise ConfigurationError("--database postgresql: no driver is installed: pip install 'psycopg[binary]'")
        url = url.set(drivername=f"{backend}+{driver}")
    try:
        is_async = url.get_dialect().is_async
        return create_async_engine(url) if is_async else create_engine(url)
    except (NoSuchModuleError, ModuleNotFoundError) as error:
        raise ConfigurationError(
            f"--database {url.drivername}: {error}: install that driver, or name another"
        ) from None


@contextmanager
def database_errors(engine: Engine | AsyncEngine) -> Iterator[None]:
    """Raise errors of the database as errors that a command reports in one line."""
    try:
        yield
    except (SQLAlchemyError, OSError) as error:
        where = engine.url.render_as_string(hide_password=True)
        cause = str(getattr(error, "orig", None) or error).strip().splitlines()
        raise ServerUnavailable(f"the database {where} failed: {cause[0] if cause else error!r}") from error


def in_database(engine: Engine | AsyncEngine, work: Callable[[Connection], T]) -> T:
    """Check the tables, and run a function in a transaction. Raises what `schema.check` does, and ServerUnavailable."""

    def checked(connection: Connection) -> T:
        schema.check(connection)
        return work(connection)

    with database_errors(engine):
        return transact(engine, checked) if isinstance(engine, Engine) else asyncio.run(_on_loop(engine, checked))


async def _on_loop(engine: AsyncEngine, work: Callable[[Connection], T]) -> T:
    """With a connection of its own: those of the engine's pool belong to another event loop."""
    own = create_async_engine(engine.url, poolclass=NullPool)
    async with own.begin() as connection:
        return await connection.run_sync(work)
