"""`penstock sql schema`: the tables of the outbox and the inbox."""

from __future__ import annotations

from typing import Literal

from penstock.errors import ConfigurationError


def schema(*, dialect: Literal["postgresql", "sqlite"] = "postgresql") -> None:
    """Print the statements that create Penstock's tables in a database.

    Parameters
    ----------
    dialect
        The kind of database.
    """
    try:
        from penstock.sql.schema import statements
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"this command needs more packages ({error}): pip install 'penstock[sql]'") from None
    print(";\n\n".join(one.replace("\t", "    ") for one in statements(dialect)) + ";")
