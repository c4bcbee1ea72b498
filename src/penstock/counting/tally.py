"""What a function of an aggregate answers with."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class Tally(NamedTuple):
    """The counts of one batch of lines. Each line is in them or in `rejected`, never in both."""

    tables: Mapping[str, Mapping[str, int]]
    """Name of a table -> key -> count."""
    rejected: Mapping[int, str] = MappingProxyType({})
    """Place of a line in the batch, from 0 -> the reason why it was not counted."""
