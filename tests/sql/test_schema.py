"""The tables: made by statements, by a migration of Alembic, and refused if they are newer."""

from __future__ import annotations

import pytest
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import create_engine, inspect

from penstock import ConfigurationError
from penstock.sql import create_tables, drop_tables, schema
from tests.sql.conftest import Database


def test_a_migration_of_alembic_makes_and_drops_the_tables(database: Database):
    engine = create_engine(database[0])
    with engine.begin() as connection:
        op = Operations(MigrationContext.configure(connection))
        for _ in range(2):
            create_tables(op.get_bind())
        schema.check(connection)
        assert {one for one in inspect(connection).get_table_names() if one.startswith("penstock")} == {
            "penstock_outbox",
            "penstock_inbox",
            "penstock_schema",
        }
        drop_tables(op.get_bind())
        assert inspect(connection).get_table_names() == []
    engine.dispose()


def test_an_unknown_dialect_is_refused():
    with pytest.raises(ConfigurationError, match="tables for postgresql and sqlite"):
        schema.statements("mysql")


def test_an_unfinished_migration_is_reported(database: Database):
    engine = create_engine(database[0])
    with engine.begin() as connection:
        schema.tables.create_all(connection)
        with pytest.raises(ConfigurationError, match="penstock_schema is empty"):
            schema.check(connection)
    engine.dispose()
