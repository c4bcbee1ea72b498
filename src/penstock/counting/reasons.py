"""Why a line was rejected, and which format would read it."""

from __future__ import annotations

import re

from penstock.counting.formats import ANY, PLAIN, guess_format
from penstock.counting.grammar import ADDRESS
from penstock.counting.request import LONGEST, LogFormat

NO_DATE = "no such date"
NO_HOST = "its client is neither an address nor a host name"
TOO_LONG = f"longer than {LONGEST:,} bytes"
NO_END = "a piece of a line whose end is missing"

_TOO_LARGE = re.compile(rb'" (?:\d{3}|-) (?:9\d{15}|\d{17,})[ \r\n]')
_ADDRESS = re.compile(ADDRESS)
_CLF = re.compile(rb'([^"\n]{1,600}?) \[[^\]]{26}\] "[^\n]*" (?:\d{3}|-) (?:\d+|-)((?: "[^\n]*")?)([^\n]*)')


def reason_for(line: bytes, format: LogFormat, *, explain: bool) -> str:
    """Why a line without its line end is not in a format. `explain`: try other formats, which takes time."""
    if len(line) > LONGEST:
        return TOO_LONG
    if not line.strip():
        return "an empty line"
    if _TOO_LARGE.search(line + b"\n"):
        return "its size is more than a table can hold"
    if (format is ANY or format in PLAIN) and (found := _two_clients(line)):
        return found
    if format is ANY:
        return "not a line of an access log"
    other = guess_format([line]) if explain and b"\n" not in line else None
    return f"in the format {other.name}, not {format.name}" if other else f"not in the format {format.name}"


def _two_clients(line: bytes) -> str | None:
    """The reason for a line that could begin with its virtual host or with its client."""
    found = _CLF.match(line)
    words = found[1].split(b" ") if found else []
    clients = [n for n, word in enumerate(words) if n and (_ADDRESS.fullmatch(word) or (n == 1 and b"." in word))]
    if not found or not words[0] or not clients or len(words) > 4:
        return None
    if _ADDRESS.fullmatch(words[0]):
        format = _format_of(found, words, client=0)
        return f"it has two addresses before its time: --format '{format}' counts the first, if that is the client"
    format = _format_of(found, words, client=clients[0])
    return f"its first word may be the virtual host, not the client: --format '{format}' counts what follows"


def _format_of(line: re.Match[bytes], words: list[bytes], client: int) -> str:
    names = ["-" if word == b"-" else "$other" for word in words]
    if len(words) - 1 > client:
        names[-1] = "$remote_user"
    if client:
        names[0] = "$host"
    names[client] = "$remote_addr"
    quoted = ' "$http_referer" "$http_user_agent"' if line[2].count(b'"') >= 4 else ' "$other"' if line[2] else ""
    rest = "$other" if line[3] else ""
    return f'{" ".join(names)} [$time_local] "$request" $status $body_bytes_sent{quoted}{rest}'
