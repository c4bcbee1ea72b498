"""The numbers in the header of a record, by the names of their fields in `record.lua`."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self, overload

from penstock.jobs.constants import RECORD


def set_fields(header: bytearray, layout: Mapping[str, tuple[int, int]], **values: int) -> None:
    for name, value in values.items():
        at, size = layout[name]
        header[at : at + size] = value.to_bytes(size)


def struct_of(*names: str) -> struct.Struct:
    """Reads these fields, in the order of the header. One of six bytes becomes two numbers: upper, lower bits."""
    parts, end = [">"], 0
    for name in names:
        at, size = RECORD[name]
        parts.append(f"{at - end}x{ {1: 'B', 2: 'H', 6: 'HI'}[size] }")
        end = at + size
    return struct.Struct("".join(parts))


class Number(property):
    """A number in the header, by the name of its field. A `__get__` in Python would take twice as long."""

    def __set_name__(self, owner: type, name: str) -> None:
        at, size = RECORD[name]
        part = slice(at, at + size)
        super().__init__(lambda record: int.from_bytes(record.body[part]))

    if TYPE_CHECKING:

        @overload
        def __get__(self, record: None, owner: type | None = None) -> Self: ...
        @overload
        def __get__(self, record: Any, owner: type | None = None) -> int: ...
        def __get__(self, record: Any, owner: type | None = None) -> Self | int: ...
