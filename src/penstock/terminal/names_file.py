"""A file of names, in UTF-8 and of any size. Each line has one to four fields, separated by tabs.

They are name, id, weight and payload. The weight may be empty.

An invalid line is reported with its number and the reason; the other lines are still read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from penstock.completion.entry import NameLike, check_payload, check_weight
from penstock.completion.fold import MAX_BYTES, check_name
from penstock.errors import BadName, PayloadTooLarge

LONGEST_LINE = 5 * MAX_BYTES
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class RejectedLine:
    """A line that is not valid. `line` holds its bytes without the line end, at most `LONGEST_LINE` of them."""

    number: int
    reason: str
    line: bytes


def read_names(file: BinaryIO) -> Iterator[NameLike | RejectedLine]:
    """Yield a name or a `RejectedLine` for each line that is not empty."""
    for number, line in enumerate(_lines(file), 1):
        text = line.removeprefix(_BOM) if number == 1 else line
        if text:
            try:
                yield _read(text)
            except (BadName, PayloadTooLarge) as error:
                yield RejectedLine(number, str(error), line)


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file without their ends. A line that is too long to be valid is cut."""
    while line := file.readline(LONGEST_LINE):
        ended = line
        while not ended.endswith(b"\n") and (ended := file.readline(LONGEST_LINE)):
            pass
        yield line.removesuffix(b"\n").removesuffix(b"\r")


def _read(line: bytes) -> NameLike:
    try:
        parts = line.decode().split("\t")
    except UnicodeDecodeError as error:
        raise BadName(f"invalid UTF-8 at byte {error.start + 1}") from None
    match parts:
        case [name]:
            return check_name(name)
        case [name, id]:
            return check_name(name), check_name(id, "id")
        case [name, id, weight]:
            return check_name(name), check_name(id, "id"), _weight(weight)
        case [name, id, weight, payload]:
            known_weight = _weight(weight) if weight else None
            return check_name(name), check_name(id, "id"), known_weight, check_payload(payload) or ""
        case _:
            raise BadName(f"{len(parts)} columns: write a name, an id, a weight and a payload at most")


def _weight(text: str) -> float:
    try:
        return check_weight(float(text))
    except ValueError:
        raise BadName(f"weight {text!r}: a number from 0 up") from None
