"""Version 1 of the tables."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations

from penstock.sql.schema import statements, tables


def _create(apps: Any, editor: Any) -> None:
    for statement in statements(editor.connection.vendor):
        editor.execute(statement, params=None)


def _drop(apps: Any, editor: Any) -> None:
    for table in reversed(tables.sorted_tables):
        editor.execute(f"DROP TABLE {table.name}", params=None)


class Migration(migrations.Migration):  # type: ignore[misc]  # Django has no types
    initial = True
    dependencies: ClassVar[list[Any]] = []
    operations: ClassVar[list[Any]] = [migrations.RunPython(_create, _drop)]
