"""The result of a counting function."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple


class Tally(NamedTuple):
    """The counts of one batch of lines. Each line is either counted or in `rejected`, never both."""

    tables: Mapping[str, Mapping[Any, Any]]
    """Name of a table -> key -> count, or a value of the kind that the table is declared as."""
    rejected: Mapping[int, str] = MappingProxyType({})
    """Index of a line in the batch, from 0 -> the reason why it was not counted."""
