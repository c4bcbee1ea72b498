"""Statements of SQLAlchemy on a connection of Django, inside the transaction that Django has begun."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Dialect

from penstock.errors import ConfigurationError
from penstock.integrations.requirements import needs
from penstock.sql.schema import DIALECTS, missing_table

with needs("django", "django"):
    from django.db import DatabaseError

Values = Mapping[str, Any]


class DjangoConnection:
    """Executes as a `Connection` of SQLAlchemy does, as far as the outbox and the inbox need it."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        vendor = connection.vendor
        if vendor not in DIALECTS:
            raise ConfigurationError(f"database {connection.alias!r} is a {vendor}: use {' or '.join(DIALECTS)}")
        # Django writes %s for a value in every database.
        self.dialect: Dialect = (postgresql if vendor == "postgresql" else sqlite).dialect(paramstyle="format")

    def execute(self, statement: Any, values: Values | Sequence[Values] = ()) -> DjangoRows:
        if isinstance(values, Mapping):
            compiled = statement.compile(dialect=self.dialect, column_keys=[*values])
            parameters = compiled.construct_params(values)
        else:
            compiled = (statement.values([*values]) if values else statement).compile(dialect=self.dialect)
            parameters = compiled.params
        with self._connection.cursor() as cursor:
            try:
                cursor.execute(compiled.string, [parameters[name] for name in compiled.positiontup or ()])
            except DatabaseError as error:
                raise missing_table(error, self.dialect.name) or error from error
            return DjangoRows(cursor.fetchall() if cursor.description else [])


class DjangoRows:
    """The rows of an answer."""

    def __init__(self, rows: list[tuple[Any, ...]]) -> None:
        self._rows = rows

    def __iter__(self) -> Iterator[Any]:
        return iter(self._rows)

    def first(self) -> Any:
        return self._rows[0] if self._rows else None

    def scalar(self) -> Any:
        return self._rows[0][0] if self._rows else None
