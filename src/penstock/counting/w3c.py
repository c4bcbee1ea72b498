"""Logs in the W3C Extended Log File Format, as IIS and CloudFront write them. Times are UTC.

    #Fields: date time c-ip cs-method cs-uri-stem sc-status
    2026-03-02 10:05:03 192.0.2.7 GET /docs/ 200

A line that begins with # is a directive. `#Fields:` names the columns of the lines below it, and may occur again with
others, so the format of such a file is a list of layouts with the number of the line from which each is valid.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from penstock.counting.grammar import CLIENT, SIZE, STATUS, Field, PatternFormat
from penstock.counting.request import Column
from penstock.errors import ConfigurationError

FIELDS = b"#Fields:"

FEWEST = "date time c-ip"
"""The fields without which no request can be counted."""

_COLUMNS: dict[str, tuple[Column, bytes]] = {
    "c-ip": ("client", CLIENT),
    "cs-method": ("request", rb"[^\s]++"),
    "cs-uri-stem": ("request", rb"[^\s]++"),
    "cs-uri": ("request", rb"[^\s]++"),
    "cs-uri-query": ("request", rb"[^\s]++"),
    "sc-status": ("status", rb"(?:%b|0|-)" % STATUS),
    "sc-bytes": ("size", SIZE),
    "cs(user-agent)": ("agent", rb"[^\s]++"),
    "cs(referer)": ("referer", rb"[^\s]++"),
    "cs-host": ("vhost", rb"[^\s]++"),
}
_REQUEST = ("cs-method", "cs-uri-stem", "cs-uri-query")


def w3c_format(fields: str) -> PatternFormat:
    """The format of lines below `#Fields: …`, given the names of the fields.

    Raises ConfigurationError if they do not contain `date time` and `c-ip`.
    """
    names = fields.lower().split()
    if "c-ip" not in names or "time" not in names[1:] or names[names.index("time") - 1] != "date":
        raise ConfigurationError(f"a W3C log needs the fields date time and c-ip, and has: {fields.strip() or 'none'}")
    parts: list[bytes | Field] = []
    for name in names:
        if name == "time":
            continue
        parts.append(rb"[ \t]" if parts else b"")
        if name == "date":
            parts.append(Field("stamp", stamp="w3c", separator=rb"[ \t]"))
        elif name in _COLUMNS:
            parts.append(Field(*_COLUMNS[name]))
        else:
            parts.append(rb"(?:\"[^\"\n]*+\"|[^\s]++)")
    order = [name for name in names if name in _REQUEST]
    if order != [name for name in _REQUEST if name in order]:
        raise ConfigurationError(f"a W3C log needs the fields {' '.join(_REQUEST)} in this order, and has: {fields}")
    return PatternFormat(f"w3c {' '.join(names)}", tuple(parts))


def layouts(text: bytes, first_line: int = 1) -> list[tuple[int, str]]:
    """The `#Fields:` directives of a text: number of the line, and names of the fields."""
    found = []
    for match in re.finditer(rb"^(?:\xef\xbb\xbf)?#Fields:([^\n]*)", text, re.MULTILINE):
        found.append((first_line + text.count(b"\n", 0, match.start()), match[1].decode(errors="replace").strip()))
    return found


def is_directive(line: bytes) -> bool:
    return line.startswith((b"#", b"\xef\xbb\xbf#"))


def layout_at(known: Sequence[tuple[int, str]], line: int) -> str | None:
    """The names of the fields that are valid for the line with this number."""
    return next((fields for start, fields in reversed(known) if start <= line), None)
