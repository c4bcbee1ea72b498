"""The tables as steps of a migration, for Alembic or any other tool that has a connection.

    from penstock.sql import create_tables, drop_tables

    def upgrade() -> None:
        create_tables(op.get_bind())

Later versions of the tables will be functions of their own, so that a migration that was written once does the same for
ever.
"""

from __future__ import annotations

from sqlalchemy import Connection

from penstock.sql import schema


def create_tables(connection: Connection) -> None:
    """Create the tables of version 1, where they are missing. Safe to repeat."""
    schema.create(connection)


def drop_tables(connection: Connection) -> None:
    """Drop the tables, with the calls that wait in them."""
    schema.tables.drop_all(connection, checkfirst=True)
