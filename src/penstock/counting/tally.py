"""The result of a counting function."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from penstock.counting.kinds import EXACT, Count, Declared, Kind, TimeWindow, is_text


class Tally(NamedTuple):
    """The counts of one batch of lines. Each line is either counted or in `rejected`, never both."""

    tables: Mapping[str, Mapping[Any, Any]]
    """Name of a table -> key -> count, or a value of the kind that the table is declared as."""
    rejected: Mapping[int, str] = MappingProxyType({})
    """Index of a line in the batch, from 0 -> the reason why it was not counted."""


def fault_of(result: object, lines: int, declared: Declared) -> str | None:
    """The reason why this cannot be the result of a counting function for this many lines, or None."""
    tables, rejected = result if isinstance(result, Tally) else (result, {})
    if not isinstance(tables, Mapping) or not isinstance(rejected, Mapping):
        return f"{result!r} is neither"
    for name, rows in tables.items():
        if not is_text(name) or not isinstance(rows, Mapping):
            return f"{name!r}: {rows!r} is not the name of a table with its counts"
        kind = declared.get(name, Count())
        if not isinstance(kind, TimeWindow):
            if fault := _fault_of_rows(name, rows, kind):
                return fault
            continue
        for moment, of_window in rows.items():
            if type(moment) not in {int, float} or abs(moment) >= EXACT or not isinstance(of_window, Mapping):
                return f"{moment!r}: {of_window!r} in table {name!r} is not seconds since 1970 with their counts"
            if fault := _fault_of_rows(name, of_window, kind.of):
                return fault
    for index, reason in rejected.items():
        if type(index) is not int or not 0 <= index < lines or not is_text(reason):
            return f"{index!r}: {reason!r} is not the index of one of {lines:,} lines with the reason for rejecting it"
    return None


def _fault_of_rows(name: str, rows: Mapping[Any, Any], kind: Kind) -> str | None:
    for key, value in rows.items():
        fault = kind.fault(value) if is_text(key) else "is not a text with its count"
        if fault:
            return f"{key!r}: {value!r} in table {name!r} {fault}"
    return None
