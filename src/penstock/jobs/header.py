"""The numbers in the header and in the tail of a record, by the names of their fields in `record.lua`."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Self, overload

from penstock.jobs.constants import RECORD, TAIL, TAIL_BYTES, TAILED

_FORMAT: Final = RECORD["format"][0]


def set_fields(header: bytearray, layout: Mapping[str, tuple[int, int]], **values: int) -> None:
    for name, value in values.items():
        at, size = layout[name]
        header[at : at + size] = value.to_bytes(size)


def struct_of(layout: Mapping[str, tuple[int, int]], *names: str) -> struct.Struct:
    """Reads these fields, in the order of the layout. One of six bytes becomes two numbers: upper, lower bits."""
    parts, end = [">"], 0
    for name in names:
        at, size = layout[name]
        parts.append(f"{at - end}x{ {1: 'B', 2: 'H', 6: 'HI'}[size] }")
        end = at + size
    return struct.Struct("".join(parts))


class Number(property):
    """A number in the header, by the name of its field. A `__get__` in Python would take twice as long."""

    def __set_name__(self, owner: type, name: str) -> None:
        super().__init__(self._reader(name))

    def _reader(self, name: str) -> Callable[[Any], int]:
        at, size = RECORD[name]
        part = slice(at, at + size)
        return lambda record: int.from_bytes(record.body[part])

    if TYPE_CHECKING:

        @overload
        def __get__(self, record: None, owner: type | None = None) -> Self: ...
        @overload
        def __get__(self, record: Any, owner: type | None = None) -> int: ...
        def __get__(self, record: Any, owner: type | None = None) -> Self | int: ...


class TailNumber(Number):
    """A number in the tail, by the name of its field. Of a record without a tail it is the field `default`, or 0."""

    def __init__(self, default: str = "") -> None:
        self._default = default

    def _reader(self, name: str) -> Callable[[Any], int]:
        at, size = TAIL[name]
        part = slice(at - TAIL_BYTES, at - TAIL_BYTES + size or None)
        other = super()._reader(self._default) if self._default else lambda _: 0
        return lambda record: int.from_bytes(record.body[part]) if record.body[_FORMAT] >= TAILED else other(record)
