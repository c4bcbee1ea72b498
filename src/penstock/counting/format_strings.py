"""Formats as a web server's configuration writes them: `log_format` of nginx, `LogFormat` of Apache.

$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent $request_time
%h %l %u %t "%r" %>s %b %D
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from penstock.counting.grammar import SIZE, STATUS, USER, Field, PatternFormat, request_pattern, text_until
from penstock.counting.request import Column
from penstock.counting.stamps import Kind, stamp_pattern
from penstock.errors import ConfigurationError

_NGINX = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_APACHE = re.compile(r"%(?:!?[\d,]+)?[<>]?(\{[^}]*\})?(\^t[io]|[A-Za-z%])")

_NGINX_KINDS: dict[str, str] = {
    "remote_addr": "client",
    "realip_remote_addr": "client",
    "http_x_forwarded_for": "client",
    "http_x_real_ip": "client",
    "proxy_protocol_addr": "client",
    "http_cf_connecting_ip": "client",
    "remote_user": "user",
    "time_local": "clf",
    "time_iso8601": "iso",
    "msec": "epoch",
    "request": "request",
    "request_method": "method",
    "request_uri": "path",
    "uri": "path",
    "args": "query",
    "query_string": "query",
    "status": "status",
    "body_bytes_sent": "size",
    "bytes_sent": "size",
    "http_referer": "referer",
    "http_user_agent": "agent",
    "host": "vhost",
    "http_host": "vhost",
    "server_name": "vhost",
}
_APACHE_KINDS: dict[str, str] = {
    "h": "client",
    "a": "client",
    "{c}a": "client",
    "{x-forwarded-for}i": "client",
    "{x-real-ip}i": "client",
    "u": "user",
    "t": "[clf]",
    "{sec}t": "epoch",
    "{msec}t": "epoch",
    "{usec}t": "epoch",
    "r": "request",
    "m": "method",
    "U": "path",
    "q": "question",
    "s": "status",
    "b": "size",
    "B": "size",
    "O": "size",
    "{referer}i": "referer",
    "{user-agent}i": "agent",
    "v": "vhost",
    "V": "vhost",
    "{host}i": "vhost",
    "%": "percent",
}

_COLUMN_OF: dict[str, Column] = {
    "client": "client",
    "request": "request",
    "method": "request",
    "path": "request",
    "query": "request",
    "question": "request",
    "status": "status",
    "size": "size",
    "referer": "referer",
    "agent": "agent",
    "vhost": "vhost",
}

_TIMES: dict[str, Kind] = {"clf": "clf", "[clf]": "clf", "iso": "iso", "epoch": "epoch"}


_STATEMENT = re.compile(
    r"""\s*(?:(?:log_format|LogFormat|CustomLog)\s+(?:[\w./-]+\s+)?(?:escape=\w+\s+)?)?
        ((?:'(?:[^'\\]|\\.)*'\s*)+|"(?:[^"\\]|\\.)*")(?:\s+\w+)?\s*;?\s*""",
    re.VERBOSE,
)
_LITERAL = re.compile(r"'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"")
_ESCAPE = re.compile(r"""\\([tnr"'\\])""")
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r"}

_Piece = tuple[str, str]
"""The kind of a variable, or "text", and the text of this piece of the format."""


def format_of(text: str) -> PatternFormat:
    """The format that this text describes: the format itself, or the statement of the configuration that has it.

    Raises ConfigurationError if it has no time, or two variables with nothing between them.
    """
    pieces = list(_pieces(_configured(text)))
    if not any(kind in _TIMES for kind, _ in pieces):
        raise ConfigurationError(f"format {text!r} has no time that is known: use $time_local, $time_iso8601 or %t")
    parts: list[bytes | Field] = []
    used = set[str]()
    unescaped = _unescaped_separator(pieces)
    for index, (kind, written) in enumerate(pieces):
        following = pieces[index + 1 :]
        if following and "text" not in {kind, following[0][0]} and following[0][0] != "question":
            raise ConfigurationError(f"format {text!r}: write something between {written} and {following[0][1]}")
        parts += _parts_of(kind, written, following, used, unescaped)
        used.add("time" if kind in _TIMES else kind)
    return PatternFormat(text, tuple(parts))


def _configured(text: str) -> str:
    """The format as the server reads it from its configuration."""
    if statement := _STATEMENT.fullmatch(text):
        text = "".join(one or other for one, other in _LITERAL.findall(statement[1]))
    return _ESCAPE.sub(lambda found: _ESCAPED.get(found[1], found[1]), text).rstrip("\r\n")


def _pieces(text: str) -> Iterator[_Piece]:
    apache = "$" not in text
    end = 0
    for found in (_APACHE if apache else _NGINX).finditer(text):
        if end < found.start():
            yield "text", text[end : found.start()]
        end = found.end()
        if not apache:
            yield _NGINX_KINDS.get(found[1] or found[2], "other"), found[0]
        elif (kind := _APACHE_KINDS.get((found[1] or "").lower() + found[2], "other")) == "percent":
            yield "text", "%"
        else:
            yield kind, found[0]
    if end < len(text):
        yield "text", text[end:]


def _parts_of(
    kind: str, written: str, following: Sequence[_Piece], used: set[str], unescaped: bytes
) -> Iterator[bytes | Field]:
    """The pattern of a piece. A column is read from the first variable for it, and others are only skipped."""
    if kind == "text":
        yield re.escape(written.encode())
    elif kind in _TIMES:
        yield from _time(_TIMES[kind], bracketed=kind == "[clf]", wanted="time" not in used)
    elif kind == "user":
        yield USER
    elif kind in used or kind not in _COLUMN_OF:
        yield b"(?:%b)" % _any_text(following, unescaped)
    elif kind == "client":
        client = rb'[^\s,"%b]{1,255}' % _separator(following)
        yield Field("client", client)
        yield rb"(?:, ?%b(?=[^\w.:]))*+" % client
    else:
        yield Field(_COLUMN_OF[kind], _pattern(kind, following, unescaped))


def _time(kind: Kind, *, bracketed: bool, wanted: bool) -> Iterator[bytes | Field]:
    yield rb"\[" if bracketed else b""
    yield Field("stamp", stamp=kind) if wanted else stamp_pattern(kind).replace(b"(", b"(?:", 1)
    yield rb"\]" if bracketed else b""


def _pattern(kind: str, following: Sequence[_Piece], unescaped: bytes = b"") -> bytes:
    match kind:
        case "status":
            return rb"(?:%b|0)" % STATUS
        case "size":
            return SIZE
        case "vhost":
            return rb'[^\s:"%b]*+' % _separator(following)
        case "question":
            return rb'(?:\?[^ "\n]*+)?'
        case "request" if following:
            return request_pattern(_rest(following), re.escape(following[0][1][:1].encode()))
        case _:
            return _any_text(following, unescaped)


def _unescaped_separator(pieces: Sequence[_Piece]) -> bytes:
    """A separator that servers do not escape in a URL, in a format without `$request`. With it a client could add
    fields of its own, such as a status. Then the last field of a line, which may be any text, must not contain it."""
    for (kind, _), (_, following) in pairwise(pieces):
        if kind in {"path", "query"} and following[:1] in {"|", "^", "~"}:
            return re.escape(following[:1].encode())
    return b""


def _separator(following: Sequence[_Piece]) -> bytes:
    """The character that ends a client or a host, for a character class; nothing if they may contain it."""
    first = following[0][1][:1] if following and following[0][0] == "text" else ""
    return b"" if first.isalnum() or first in {"", ".", ":", "-", "_"} else re.escape(first.encode())


def _any_text(following: Sequence[_Piece], unescaped: bytes = b"") -> bytes:
    """Any text, up to the text that follows; a quote in it may have a backslash before it. `unescaped`: a separator
    that the last text of a line may not contain."""
    if not following:
        return rb"[^%b\n]*?" % unescaped
    if following[0][0] == "question":
        return rb'[^\s"?]*+'
    end = following[0][1].encode()
    if len(following) == 1:
        return text_until(re.escape(end) + rb"\r?\n", re.escape(end[:1]))
    return text_until(re.escape(end), re.escape(end[:1]))


def _rest(following: Sequence[_Piece]) -> bytes:
    """The pattern that follows the first character after a request, up to the next piece that may be any text."""
    pattern = re.escape(following[0][1][1:].encode())
    for kind, written in following[1:]:
        if kind == "text":
            pattern += re.escape(written.encode())
        elif kind in {"status", "size"}:
            pattern += b"(?:%b)" % _pattern(kind, ())
        elif kind in _TIMES:
            pattern += b"".join(
                part for part in _time(_TIMES[kind], bracketed=kind == "[clf]", wanted=False) if isinstance(part, bytes)
            )
        else:
            return pattern
    return pattern + rb"\r?\n"
