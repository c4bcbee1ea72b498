"""Removes what other programs write before the lines of logs.

docker   the objects of Docker's json-file driver
cri      the files of containers under Kubernetes
syslog   syslog and rsyslog; journalctl with -o short, short-iso, short-precise, short-full or short-unix
kubectl  `kubectl logs` with --timestamps, --prefix or both; `docker logs --timestamps`
compose  `docker compose logs`, with --timestamps or without
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from penstock.counting.pieces import decode_docker_line
from penstock.counting.request import Column, LineReader, LogFormat, Precision
from penstock.counting.stamps import ISO_ZONE

_ISO = rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?" + ISO_ZONE
_OLD_TIME = rb"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d{6})?"
_JOURNAL_TIME = (
    rb"(?:[A-Z][a-z]{2} \d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{6})? (?:[A-Z]{2,5}|[+-]\d{2,4})|\d{10}\.\d{6})"
)
_QUOTED = rb'"[^"\\\n]*+(?:\\[^\n][^"\\\n]*+)*+"'

_SYSLOG = (
    rb"(?:<\d{1,3}>)?(?:%b|%b|%b) [^\s:]{1,255} [^\s:\[]{1,64}(?:\[[^\]\s]{0,32}\])?: ?"  # RFC 3164, or of rsyslog
    rb"|<\d{1,3}>1 (?:%b|-) [!-~]{1,255} [!-~]{1,48} [!-~]{1,128} [!-~]{1,32} "  # RFC 5424
    rb"(?:-|(?:\[[^\]\"\n]*+(?:%b[^\]\"\n]*+)*+\])+) (?:\xef\xbb\xbf)?"
) % (_OLD_TIME, _ISO, _JOURNAL_TIME, _ISO, _QUOTED)
_CRI = rb"%b (?:stdout|stderr) F " % _ISO  # the pieces of a line that was split are joined before, see pieces.py
_POD = rb"\[pod/[^\]\s]{1,512}\] "
_TIMESTAMP = rb"%b (?!(?:stdout|stderr) )" % _ISO
_COLOUR = rb"(?:\x1b\[[\d;]{0,16}m)?"
_SERVICE = rb"%b[A-Za-z0-9][\w.-]{0,255} {1,64}\| ?%b" % (_COLOUR, _COLOUR)


def _lines_after(prefix: bytes) -> Callable[[bytes], bytes]:
    """A function that removes this prefix from each line of a text. A line without it becomes empty."""
    find = re.compile(rb"(?:(?:%b)([^\n]++)|[^\n]*+)\n" % prefix).findall
    return lambda text: b"\n".join([*find(text), b""])


def _in_docker_json(text: bytes) -> bytes:
    return b"\n".join([*map(_docker_line, text.split(b"\n")[:-1]), b""])


def _docker_line(line: bytes) -> bytes:
    """The line in an object of Docker's json-file driver; empty if it is only a piece of a line."""
    if not line.startswith(b"{"):
        return b""
    try:
        log = decode_docker_line(line).log
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return b""
    found = log.removesuffix("\n").encode(errors="replace")
    return found if log.endswith("\n") and b"\n" not in found else b""


PREFIXES: dict[str, tuple[Callable[[bytes], bytes], ...]] = {
    "docker": (_in_docker_json,),
    "cri": (_lines_after(_CRI),),
    "syslog": (_lines_after(_SYSLOG),),
    "kubectl": (_lines_after(b"(?:%b)?%b" % (_POD, _TIMESTAMP)), _lines_after(_POD)),
    "compose": (_lines_after(_SERVICE + _TIMESTAMP), _lines_after(_SERVICE)),
}
"""Names of prefixes -> functions that remove them. Because the line itself may begin with a time, the function that
removes less is tried, too."""


@dataclass(frozen=True)
class PrefixedFormat:
    """A format whose lines have a prefix."""

    prefix: str
    format: LogFormat

    @property
    def name(self) -> str:
        return f"{self.prefix}+{self.format.name}"

    def readers(self, wanted: frozenset[Column], precision: Precision, *, utc: bool) -> Sequence[LineReader]:
        readers = self.format.readers(wanted, precision, utc=utc)
        return [_after_prefix(remove, reader) for remove in PREFIXES[self.prefix] for reader in readers]


def _after_prefix(remove: Callable[[bytes], bytes], reader: LineReader) -> LineReader:
    rows = reader.rows
    return reader._replace(rows=lambda text: rows(remove(text)))
