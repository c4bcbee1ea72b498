"""Removes the prefixes of syslog and Kubernetes (CRI), and the JSON of Docker, from lines of logs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from penstock.counting.request import Column, LineReader, LogFormat, Precision
from penstock.counting.stamps import ISO_ZONE

_ISO = rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?" + ISO_ZONE
_OLD_TIME = rb"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d"
_QUOTED = rb'"[^"\\\n]*+(?:\\[^\n][^"\\\n]*+)*+"'

_SYSLOG = (
    rb"(?:<\d{1,3}>)?(?:%b|%b) [^\s:]{1,255} [^\s:\[]{1,64}(?:\[[^\]\s]{0,32}\])?: ?"  # RFC 3164, or of rsyslog
    rb"|<\d{1,3}>1 (?:%b|-) [!-~]{1,255} [!-~]{1,48} [!-~]{1,128} [!-~]{1,32} "  # RFC 5424
    rb"(?:-|(?:\[[^\]\"\n]*+(?:%b[^\]\"\n]*+)*+\])+) (?:\xef\xbb\xbf)?"
) % (_OLD_TIME, _ISO, _ISO, _QUOTED)
_CRI = rb"%b (?:stdout|stderr) F " % _ISO  # a line that was split has P instead, and only its last piece F


def _lines_behind(prefix: bytes) -> Callable[[bytes], bytes]:
    """A function that removes this prefix from each line of a text. A line without it becomes empty."""
    find = re.compile(rb"(?:(?:%b)([^\n]++)|[^\n]*+)\n" % prefix).findall
    return lambda text: b"\n".join([*find(text), b""])


class _DockerLine(msgspec.Struct):
    log: str


_decode_docker = msgspec.json.Decoder(_DockerLine).decode


def _in_docker_json(text: bytes) -> bytes:
    return b"\n".join([*map(_docker_line, text.split(b"\n")[:-1]), b""])


def _docker_line(line: bytes) -> bytes:
    """The line in an object of Docker's json-file driver; empty if it is only a piece of a line."""
    if not line.startswith(b"{"):
        return b""
    try:
        log = _decode_docker(line).log
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return b""
    found = log.removesuffix("\n").encode(errors="replace")
    return found if log.endswith("\n") and b"\n" not in found else b""


PREFIXES: dict[str, Callable[[bytes], bytes]] = {
    "docker": _in_docker_json,
    "cri": _lines_behind(_CRI),
    "syslog": _lines_behind(_SYSLOG),
}
"""Names of prefixes -> functions that remove them."""


@dataclass(frozen=True)
class PrefixedFormat:
    """A format whose lines are behind a prefix."""

    prefix: str
    format: LogFormat

    @property
    def name(self) -> str:
        return f"{self.prefix}+{self.format.name}"

    def readers(self, wanted: frozenset[Column], precision: Precision, *, utc: bool) -> Sequence[LineReader]:
        return [_behind(self.prefix, reader) for reader in self.format.readers(wanted, precision, utc=utc)]


def _behind(prefix: str, reader: LineReader) -> LineReader:
    remove, rows = PREFIXES[prefix], reader.rows
    return reader._replace(rows=lambda text: rows(remove(text)))
