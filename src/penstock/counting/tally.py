"""The result of a counting function."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class Tally(NamedTuple):
    """The counts of one batch of lines. Each line is either counted or in `rejected`, never both."""

    tables: Mapping[str, Mapping[str, int]]
    """Name of a table -> key -> count."""
    rejected: Mapping[int, str] = MappingProxyType({})
    """Index of a line in the batch, from 0 -> the reason why it was not counted."""
