"""Joins the pieces of lines that a container runtime has split.

    2026-03-02T10:05:03.1Z stdout P 192.0.2.7 - - […        {"log":"192.0.2.7 - - […","stream":"stdout",…}
    2026-03-02T10:05:03.1Z stdout F …] "GET / HTTP/1.1"…    {"log":"…] \\"GET / HTTP/1.1\\"…\\n","stream":"stdout",…}

Kubernetes (CRI) and Docker split a line after 8 or 16 KiB. The lines of stdout and stderr may alternate, and each has
its own pieces.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

_CRI = re.compile(rb"(\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-][\d:]+) (stdout|stderr) )([PF]) ([^\n]*)\Z")


class _DockerLine(msgspec.Struct):
    log: str
    stream: str = ""


decode_docker_line = msgspec.json.Decoder(_DockerLine).decode
"""Returns the log and the stream of a line. Raises DecodeError, UnicodeDecodeError or RecursionError for any other."""

_encode = msgspec.json.Encoder().encode


class _Piece(NamedTuple):
    """A line of a log, or a piece of one. `before`: what the runtime wrote before it."""

    stream: str
    before: bytes
    text: bytes
    is_last: bool

    def with_text(self, text: bytes) -> bytes:
        return self.before + text if self.before else _encode({"log": f"{text.decode(errors='replace')}\n"})


class JoinedText(NamedTuple):
    """A text with as many lines as before, in which each joined line is where its last piece was.

    joined    indexes of the lines whose text is now in another line; they are empty
    too_long  indexes of the lines that are too long now; they are empty
    open      indexes of the pieces of lines whose last piece is not in the text
    whole     number of lines at the beginning after which the text can be divided: no line continues there
    """

    text: bytes
    joined: list[int]
    too_long: list[int]
    open: list[int]
    whole: int


def may_be_split(format: str) -> bool:
    """Whether lines in the format with this name may be split. "" is a format that is not known yet."""
    return format in {"", "any"} or format.startswith(("cri+", "docker+"))


def has_pieces(text: bytes) -> bool:
    """Whether there may be pieces in a text. Fast, and never wrongly False."""
    ended = text.count(b'\\n"') - text.count(b'\\\\n"')  # the second is the end of a text with a backslash and an n
    return b"stdout P " in text or b"stderr P " in text or text.count(b'{"log":') > ended


def join_pieces(text: bytes, longest: int) -> JoinedText:
    """Join the pieces in a text, whose lines end in LF. `longest`: bytes of the longest line."""
    lines = text.split(b"\n")
    joined: list[int] = []
    too_long: list[int] = []
    waiting: dict[str, list[tuple[int, bytes]]] = {}
    waiting_since = 0
    for index, piece in _pieces(lines):
        before = waiting.setdefault(piece.stream, [])
        if not piece.is_last:
            if not any(waiting.values()):
                waiting_since = index
            before.append((index, piece.text))
        elif before:
            whole = b"".join([*(part for _, part in before), piece.text])
            lines[index] = piece.with_text(whole) if len(whole) <= longest else b""
            if not lines[index]:
                too_long.append(index)
            for earlier, _ in before:
                lines[earlier] = b""
                joined.append(earlier)
            before.clear()
    open_pieces = [index for before in waiting.values() for index, _ in before]
    ended = waiting_since if open_pieces else len(lines) - 1
    return JoinedText(b"\n".join(lines), joined, too_long, open_pieces, ended)


def open_from(text: bytes) -> int:
    """The last offset at which the text can be divided, because no line continues there. Usually its length."""
    if not has_pieces(text):
        return len(text)
    lines = text.split(b"\n")
    whole = join_pieces(text, 0).whole
    return sum(map(len, lines[:whole])) + whole


def _pieces(lines: list[bytes]) -> Iterator[tuple[int, _Piece]]:
    for index, line in enumerate(lines):
        if line.startswith(b"{"):
            try:
                found = decode_docker_line(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
            is_last = found.log.endswith("\n")
            yield index, _Piece(found.stream, b"", found.log.removesuffix("\n").encode(errors="replace"), is_last)
        elif match := _CRI.match(line):
            yield index, _Piece(match[2].decode(), match[1] + b"F ", match[4].removesuffix(b"\r"), match[3] == b"F")
