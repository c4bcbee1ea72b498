"""Web access logs in the Common and the Combined Log Format: read one, or make one up.

    192.0.2.7 - - [02/Mar/2026:10:05:03 +0000] "GET /docs/ HTTP/1.1" 200 5120 "https://example.org/" "Mozilla/5.0"

The Common one ends with the size.
"""

from __future__ import annotations

import gzip
import random
import re
import zlib
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, TypeVar

from penstock.errors import PenstockError

T = TypeVar("T")

# The request may hold anything, quotes too: it ends at the first quote that a status and a size follow.
_LINE = re.compile(
    r'([!-~]{1,255}) \S+ [^"]*?\[(\d\d/\w{3}/\d{4}):\d\d:\d\d:\d\d [+-]\d{4}\] "(.*?)" (\d{3}) (\d{1,18}|-)(?: |$)',
    re.ASCII,
)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

LONGEST = 64 * 1024
"""Characters of a line; servers cut a request at 8 KiB or so."""


class Request(NamedTuple):
    """One line. `client` is an address or a host name, `day` the local date as it was written, as 2026-03-02."""

    client: str
    day: str
    method: str
    path: str
    status: int
    size: int


def parse(line: str) -> Request | None:
    """The request of a line; None for a malformed one. What was sent as a request may be any garbage."""
    found = _LINE.match(line) if len(line) <= LONGEST else None
    day = _day(found[2]) if found else None
    if found is None or day is None:
        return None
    client, _, request, status, size = found.groups()
    method, _, rest = request.partition(" ")
    return Request(client, day, method, rest.partition(" ")[0], int(status), 0 if size == "-" else int(size))


@lru_cache(maxsize=1024)
def _day(text: str) -> str | None:
    day, month, year = text.split("/")
    try:
        return date(int(year), _MONTHS.index(month) + 1, int(day)).isoformat()
    except ValueError:
        return None


def lines(path: Path) -> Iterator[str]:
    """The lines of a log, plain or gzip, without their ends. What is no UTF-8 becomes U+FFFD.

    Raises PenstockError for a file that cannot be read, or only in part.
    """
    read = 0
    try:
        with path.open("rb") as start:
            packed = start.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else path.open("rb") as file:
            for line in file:
                read += 1
                yield line.rstrip(b"\r\n").decode("utf-8", "replace")
    except (OSError, EOFError, zlib.error) as error:
        after = f" after line {read:,}" if read else ""
        raise PenstockError(f"{path} cannot be read{after}: {getattr(error, 'strerror', '') or error}") from error


# --- a log that was never written ---

_FIRST_DAY = datetime(2026, 3, 2, tzinfo=UTC)
_BY_HOUR = (2, 1, 1, 1, 1, 2, 3, 5, 7, 9, 10, 10, 9, 10, 10, 9, 8, 8, 8, 9, 9, 7, 5, 3)
_PATHS = {
    "/": 20, "/docs/": 12, "/docs/queues.html": 8, "/blog/": 6, "/search": 5, "/feed.xml": 9, "/login": 4,
    "/style.css": 16, "/app.js": 14, "/favicon.ico": 12, "/images/logo.png": 10, "/robots.txt": 3,
}  # fmt: skip
_STATUSES = {200: 885, 304: 60, 301: 18, 404: 30, 403: 3, 500: 3, 503: 1}
_AGENTS = {
    "Mozilla/5.0 (X11; Linux x86_64; rv:136.0) Gecko/20100101 Firefox/136.0": 4,
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 Chrome/133.0.0.0 Safari/537.36": 8,
    "Mozilla/5.0 (iPhone; CPU iPhone OS 18_3 like Mac OS X) AppleWebKit/605.1.15 Mobile/15E148": 5,
    "ExampleBot/2.1 (+https://bot.example/about)": 2,
}


def generate(requests: int, seed: int = 0, *, days: int = 4, clients: int = 400) -> Iterator[str]:
    """Lines of a made-up log in order of time: busy hours, a few clients with most of the requests.

    The same arguments give the same log. All addresses are from the ranges for documentation.
    """
    chance = random.Random(seed)

    def drawn(weights: Mapping[T, float]) -> list[T]:
        return chance.choices(list(weights), list(weights.values()), k=requests)

    hours = drawn({24 * day + hour: weight for day in range(days) for hour, weight in enumerate(_BY_HOUR)})
    times = sorted(3600 * hour + chance.randrange(3600) for hour in hours)
    who = drawn({_client(number): 1 / (number + 1) ** 0.9 for number in range(clients)})
    rest = zip(drawn(_PATHS), drawn(_STATUSES), drawn(_AGENTS), strict=True)
    for seconds, client, (path, status, agent) in zip(times, who, rest, strict=True):
        at = (_FIRST_DAY + timedelta(seconds=seconds)).strftime("%d/%b/%Y:%H:%M:%S %z")
        size = "-" if status == 304 else int(chance.lognormvariate(8.5, 1.4))
        yield f'{client} - - [{at}] "GET {path} HTTP/1.1" {status} {size} "-" "{agent}"'


def _client(number: int) -> str:
    """Mostly IPv4, some IPv6 and host names."""
    if number % 10 == 9:
        return f"2001:db8::{number:x}"
    if number % 25 == 13:
        return f"host-{number}.example.net"
    return f"{('192.0.2', '198.51.100', '203.0.113')[number % 3]}.{number // 3 % 256}"
