"""One request of an access log, and how a format reads it from a line."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple, Protocol, get_args

Column = Literal["client", "stamp", "request", "status", "size", "referer", "agent", "vhost"]
"""A part of a line that can be read. `stamp` is the time, `request` method and path with a blank between them."""

ALL_COLUMNS: frozenset[Column] = frozenset(get_args(Column))

Precision = Literal["day", "hour", "second"]
"""How much of a time is needed. Less of it means fewer different times to count."""


LONGEST = 64 * 1024
"""Bytes of the longest line that is accepted; servers cut a request at about 8 KiB."""


class Request(NamedTuple):
    """One line of a log. `client` is an address or a host name, `day` and `time` are those in the line, such as
    2026-03-02 and 10:05:03. A text that the line lacks is empty, and a number is 0."""

    client: str
    day: str
    method: str
    path: str
    status: int
    size: int
    time: str = ""
    agent: str = ""
    referer: str = ""
    vhost: str = ""


_IPV4 = rb"\d{1,3}(?:\.\d{1,3}){3}"
_IPV6 = (
    rb"(?:(?=[0-9A-Fa-f.:]{0,45}::)[0-9A-Fa-f.:]{2,45}|(?:[0-9A-Fa-f]{1,4}:){7}[0-9A-Fa-f]{1,4}"
    rb"|(?:[0-9A-Fa-f]{1,4}:){6}%b)(?:%%[A-Za-z0-9_.-]{1,32})?" % _IPV4
)
_NAME = rb"(?=[0-9_.-]{0,254}[A-Za-z])[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}"

_HOST = re.compile(rb"(?:%b(?::\d{1,5})?|%b|%b|\[%b\](?::\d{1,5})?|unix:|-)\Z" % (_IPV4, _NAME, _IPV6, _IPV6))


@lru_cache(65_536)
def is_host(client: bytes) -> bool:
    """Whether this is an address, a host name, or `-`. A number or a section of an address is refused, so the
    rest of a line that lost its beginning is not taken for a line."""
    return _HOST.match(client) is not None


_WITH_PORT = re.compile(rb"(?:\[([^\]]+)\]|(%b))(?::\d{1,5})?\Z" % _IPV4)


def without_port(client: bytes) -> bytes:
    """A client without its port and without the brackets of IPv6: one client has many ports."""
    found = _WITH_PORT.match(client)
    return found[1] or found[2] if found else client


_MARK = re.compile(rb"^\xef\xbb\xbf", re.MULTILINE)


def without_marks(text: bytes) -> bytes:
    """A text without byte order marks before its lines: some programs write one at the beginning of a file."""
    return text if text.isascii() else _MARK.sub(b"", text)


_VERSION = re.compile(r" HTTP/\d(?:\.\d)?\Z")


def method_and_url(request: str) -> tuple[str, str]:
    """The method of a request and its URL, which may contain blanks."""
    method, _, rest = request.partition(" ")
    return method, _VERSION.sub("", rest)


class LineReader(NamedTuple):
    """Reads some columns of lines.

    rows    the cells of each line of a text, whose lines end in LF. The stamp of a malformed line is empty. Fewer rows
            than lines mean that this reader cannot read the text at all
    cell    the index of each column in a row; a column that the format lacks is missing
    moment  a stamp as `2026-03-02`, `2026-03-02 10` or `2026-03-02 10:05:03`, by its precision, or None if there is no
            such date
    """

    rows: Callable[[bytes], list[tuple[bytes, ...]]]
    cell: Mapping[Column, int]
    moment: Callable[[bytes], str | None]
    quick: bool = False
    """Whether this reader leaves some lines of its format to the next reader."""

    def reads(self, row: tuple[bytes, ...]) -> bool:
        """Whether this is the row of a request: its time exists, and its client is a valid one."""
        client = self.cell.get("client")
        stamp = row[self.cell["stamp"]]
        return bool(stamp) and self.moment(stamp) is not None and (client is None or is_host(row[client]))


class LogFormat(Hashable, Protocol):
    """A format of access logs."""

    @property
    def name(self) -> str: ...

    def readers(self, wanted: frozenset[Column], precision: Precision, *, utc: bool) -> Sequence[LineReader]:
        """Readers for these columns. A line that the first cannot read may be read by the next, and a line that none
        can read is malformed."""
        ...
