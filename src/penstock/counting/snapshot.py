"""The tables of an aggregate as of one moment, and their export."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigurationError
from penstock.files.count_bindings import Totals

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True)
class Snapshot:
    """Totals and tables, all as of one moment."""

    totals: Totals
    tables: Mapping[str, Mapping[str, Any]]
    """Name of a table -> key -> number."""

    def to_csv(self, path: str | PathLike[str]) -> None:
        """Write all tables to one file, with the columns table, key and value."""
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["table", "key", "value"])
            for name, rows in self.tables.items():
                writer.writerows([name, key, "" if value is None else value] for key, value in rows.items())

    def to_arrow(self, table: str) -> pyarrow.Table:
        """One table as an Arrow table with the columns key and value: 64-bit integers, decimals or texts.

        Raises ConfigurationError if pyarrow is not installed, and KeyError if the snapshot has no such table.
        """
        try:
            import pyarrow
        except ModuleNotFoundError:
            raise ConfigurationError("Arrow and Parquet need pyarrow: install penstock[arrow]") from None
        rows = self.tables[table]
        return pyarrow.table(
            {"key": pyarrow.array(rows, pyarrow.string()), "value": pyarrow.array(list(rows.values()))}
        )

    def to_parquet(self, table: str, path: str | PathLike[str]) -> None:
        """Write one table to a Parquet file, as `to_arrow` returns it."""
        columns = self.to_arrow(table)
        from pyarrow import parquet

        parquet.write_table(columns, path)
