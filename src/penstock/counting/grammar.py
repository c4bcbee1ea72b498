"""Patterns for the parts of a line, and formats that one regular expression describes.

Matching takes time in proportion to the length of the line, for any content: loops are possessive, or can end at one
position only. In the loop of a text the lookahead comes first: when an iteration of a possessive loop fails, Python
before 3.11.5 does not give back what that iteration had matched until then.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.counting.request import Column, LineReader, Precision
from penstock.counting.stamps import Kind, moment_of, stamp_pattern

# --- the parts of a line ---

CLIENT = rb'[^\s,"]{1,255}'
"""Checked by `is_host`: once for each different client, which costs less than to check each line."""

OTHER_CLIENTS = rb"(?:, ?%b(?=[ ,]))*+" % CLIENT
"""The proxies that follow the client in a list, as in X-Forwarded-For."""

VHOST = rb"(?:[^\s:,]{1,255}|\[[0-9A-Fa-f:.]{2,45}\])"

ADDRESS = rb"(?:\d{1,3}(?:\.\d{1,3}){3}|\[?(?:[0-9A-Fa-f]{0,4}:){2,8}[0-9A-Fa-f.]*\]?)(?::\d{1,5})?"
"""An address, with a port or without. Names do not match. `is_host` checks it more closely."""

USER = rb'(?:-|""|(?!- )(?:(?! - )(?:[^"\n]|(?<=\\)"))+?(?<! -))'
"""Usually a hyphen. A name may contain spaces and brackets, and quotes written as \\". Where it contains a hyphen
between spaces, the line most likely has more fields before it than the format, and its client would be wrong."""

STATUS = rb"(?:\d{3}|-)"
"""A hyphen where the client left before the server had a status."""

SIZE = rb"(?:\d{1,15}|[0-8]\d{15}|-)"
"""Below 2**53: the tables of an aggregate hold no larger number exactly."""

QUOTED_TEXT = rb'[^"\\\n]*+(?:(?:\\[^\n]|"(?!\r?[ \n]))[^"\\\n]*+)*+'
"""The text between two quotes. Servers write a quote inside it as \\", and some write it unescaped. An unescaped quote
ends the text only if the field ends there."""

HTTP_VERSION = rb"(?:(?<=HTTP/\d\.\d)|(?<=HTTP/\d))"
"""The position after the version of HTTP, with which every well-formed request ends."""


def text_until(end: bytes, quote: bytes = b'"') -> bytes:
    """A text that ends at the first `quote` that `end` matches, and which has no backslash before it."""
    return rb"[^%b\\\n]*+(?:(?:(?!%b)%b|\\[^\n])[^%b\\\n]*+)*+" % (quote, end, quote, quote)


def request_pattern(rest: bytes, quote: bytes = b'"') -> bytes:
    """A request may contain anything, even the quote or separator that ends it, with a backslash before it or without.
    It ends at the first quote that follows a version of HTTP and is followed by `rest`; in a line without one, at the
    first quote that is followed by `rest`. So a client cannot write its own status into the request."""
    end = quote + rest
    return b"(?>%b%b(?=%b)|%b)" % (text_until(HTTP_VERSION + end, quote), HTTP_VERSION, quote, text_until(end, quote))


AFTER_REQUEST = rb" %b %b(?=[ \r\n])" % (STATUS, SIZE)


# --- formats ---


@dataclass(frozen=True, slots=True)
class Field:
    """A section of a line that a reader may need. `stamp`: the kind of time that it is, and the separator inside it."""

    column: Column
    pattern: bytes = b""
    stamp: Kind | None = None
    separator: bytes = b" "


@dataclass(frozen=True, slots=True)
class LineEnd:
    """The last parts of a line. `skip`: a pattern that matches the same lines where none of its fields is wanted."""

    parts: tuple[bytes | Field, ...]
    skip: bytes

    def needed(self, wanted: frozenset[Column]) -> Sequence[bytes | Field]:
        found = any(isinstance(part, Field) and part.column in wanted for part in self.parts)
        return self.parts if found else (self.skip,)


@dataclass(frozen=True)
class PatternFormat:
    """A format that a regular expression describes: `parts` are patterns and fields, in the order of the line.

    A column may have several fields. Then its cell is their texts, joined with a blank; the last field of a request
    that has three is its query.

    `usual`: parts that match most lines of the format in less time. A field of them may run into the next line, because
    a pattern that excludes one byte is faster than one that excludes two.
    """

    name: str
    parts: tuple[bytes | Field, ...]
    end: LineEnd = LineEnd((), b"")
    usual: tuple[bytes | Field, ...] = ()

    def readers(self, wanted: frozenset[Column], precision: Precision, *, utc: bool) -> Sequence[LineReader]:
        precision = "second" if utc else precision
        wanted = frozenset[Column]({*wanted, "client"})
        end = self.end.needed(wanted)
        quick = [_reader((*self.usual, *end), wanted, precision, utc=utc)._replace(quick=True)] if self.usual else []
        return [*quick, _reader((*self.parts, *end), wanted, precision, utc=utc)]


def _reader(
    parts: Sequence[bytes | Field], wanted: frozenset[Column], precision: Precision, *, utc: bool
) -> LineReader:
    groups: list[Column] = []
    kind: Kind | None = None
    pattern = b""
    for part in parts:
        if isinstance(part, bytes):
            pattern += part
        elif part.stamp:
            kind = part.stamp
            groups.append("stamp")
            pattern += stamp_pattern(part.stamp, precision, part.separator)
        elif part.column in wanted:
            groups.append(part.column)
            pattern += b"(%b)" % part.pattern
        else:
            pattern += b"(?:%b)" % part.pattern
    assert kind is not None
    if len(groups) == 1:  # findall returns tuples only for two groups or more
        pattern += b"()"
        groups.append("vhost")
    find = re.compile(rb"(?:%b\r?|[^\n]*+)\n" % pattern).findall
    columns = list(dict.fromkeys(groups))
    cell: Mapping[Column, int] = {column: index for index, column in enumerate(columns)}
    if len(columns) < len(groups):
        return LineReader(lambda text: _joined(find(text), groups, columns), cell, moment_of(kind, utc=utc))
    return LineReader(find, cell, moment_of(kind, utc=utc))


def _joined(
    rows: list[tuple[bytes, ...]], groups: Sequence[Column], columns: Sequence[Column]
) -> list[tuple[bytes, ...]]:
    """Rows with one cell for each column, where a column has several groups."""
    positions = [[index for index, group in enumerate(groups) if group == column] for column in columns]
    return [tuple([_join([row[index] for index in indexes]) for indexes in positions]) for row in rows]


def _join(cells: list[bytes]) -> bytes:
    if len(cells) == 1:
        return cells[0]
    *first, last = cells
    if len(cells) == 3:
        return b"%b %b%b" % (first[0], first[1], b"" if last in {b"", b"-"} else b"?" + last.removeprefix(b"?"))
    return b" ".join(cells)


_TIME = (Field("stamp", stamp="clf"), rb'\] "')
_STATUS_AND_SIZE = (b'" ', Field("status", STATUS), b" ", Field("size", SIZE))

_USUAL_START = (
    Field("client", rb"[^ ]++"),
    rb' - (?:-|[^\s\[":\d-][^\s":]*+) \[',
    *_TIME,
    Field("request", rb'[^"]*+'),
    rb'(?<=HTTP/\d\.\d)" ',
    Field("status", rb"\d{3}"),
    b" ",
    Field("size", rb"(?:\d{1,15}|-)"),
)

# A line may begin with its virtual host instead of its client if its first word is a name, and the next one an address
# or a name with a dot.
_NOT_A_HOST_AND_A_CLIENT = rb'(?!(?!%b[ ,])[^\s,]{1,255} (?:- %b[ ,]|[^\s\["]{0,255}\.[^\s\["]{0,255} ))' % (
    ADDRESS,
    ADDRESS,
)
_IDENT = rb"(?!- |%b[ ,])[^\s\[]\S*+" % ADDRESS
_START = (
    _NOT_A_HOST_AND_A_CLIENT,
    Field("client", CLIENT),
    OTHER_CLIENTS,
    rb" (?:- %b|%b [^\s\[]\S*+) \[" % (USER, _IDENT),
    *_TIME,
    Field("request", request_pattern(AFTER_REQUEST)),
    *_STATUS_AND_SIZE,
)
_NAME_OF_VHOST = rb"(?!%b )(?:[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63})++\.?|localhost|_|-)" % ADDRESS
_VHOST = (
    rb"(?=%b:\d{1,5} (?!- )|%b %b[ ,])" % (VHOST, _NAME_OF_VHOST, ADDRESS),
    Field("vhost", VHOST),
    rb"(?::\d{1,5})? ",
)

# Some logs cut long agents off, and then the last quote is missing.
_REFERER_AND_AGENT = (b' "', Field("referer", QUOTED_TEXT), b'(?:" "', Field("agent", QUOTED_TEXT), rb")?+[^\n]*+")
_NO_REFERER = rb'(?: (?!")[^\n]*+)?+'

_COMBINED_END = LineEnd(_REFERER_AND_AGENT, rb' "[^\n]*+')

COMMON = PatternFormat("common", _START, LineEnd((), _NO_REFERER), _USUAL_START)
COMBINED = PatternFormat("combined", _START, _COMBINED_END, _USUAL_START)
VHOST_COMMON = PatternFormat("vhost_common", (*_VHOST, *_START), LineEnd((), _NO_REFERER))
VHOST_COMBINED = PatternFormat("vhost_combined", (*_VHOST, *_START), _COMBINED_END)
COMMON_OR_COMBINED = PatternFormat(
    "common, combined or vhost_combined",
    (b"(?:", *_VHOST, b")?", *_START),
    LineEnd((b"(?:", *_REFERER_AND_AGENT, b"|", _NO_REFERER, b")"), rb"(?: [^\n]*+)?+"),
    _USUAL_START,
)

ALB = PatternFormat(
    "alb",
    (
        rb"(?:https?|h2|grpcs|wss?) ",
        Field("stamp", stamp="iso"),
        rb" \S+ ",
        Field("client", rb"\S{1,255}?"),
        rb":\d{1,5} \S+(?: -?\d+(?:\.\d+)?){3} ",
        Field("status", rb"(?:\d{3}|-)"),
        rb" (?:\d{3}|-) \d+ ",
        Field("size", SIZE),
        b' "',
        Field("request", QUOTED_TEXT),
        b'" "',
        Field("agent", QUOTED_TEXT),
        rb'"[^\n]*+',
    ),
)
"""The access log of an AWS Application Load Balancer."""
