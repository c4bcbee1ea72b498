"""Generates a web access log in the Combined Log Format, for demos, benchmarks and tests."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TypeVar

T = TypeVar("T")

_FIRST_DAY = datetime(2026, 3, 2, tzinfo=UTC)
_BY_HOUR = (2, 1, 1, 1, 1, 2, 3, 5, 7, 9, 10, 10, 9, 10, 10, 9, 8, 8, 8, 9, 9, 7, 5, 3)
_PATHS = {
    "/": 20,
    "/docs/": 12,
    "/docs/queues.html": 8,
    "/blog/": 6,
    "/search": 5,
    "/feed.xml": 9,
    "/login": 4,
    "/style.css": 16,
    "/app.js": 14,
    "/favicon.ico": 12,
    "/images/logo.png": 10,
    "/robots.txt": 3,
}
_STATUSES = {200: 885, 304: 60, 301: 18, 404: 30, 403: 3, 500: 3, 503: 1}
_AGENTS = {
    "Mozilla/5.0 (X11; Linux x86_64; rv:136.0) Gecko/20100101 Firefox/136.0": 4,
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 Chrome/133.0.0.0 Safari/537.36": 8,
    "Mozilla/5.0 (iPhone; CPU iPhone OS 18_3 like Mac OS X) AppleWebKit/605.1.15 Mobile/15E148": 5,
    "ExampleBot/2.1 (+https://bot.example/about)": 2,
}


def generate(requests: int, seed: int = 0, *, days: int = 4, clients: int = 400) -> Iterator[str]:
    """The lines of a made-up log, in order of time, with busy hours and with a few clients that make most requests.

    Equal arguments yield equal logs. All addresses are from the ranges for documentation.
    """
    chance = random.Random(seed)

    def draw(weights: Mapping[T, float]) -> list[T]:
        return chance.choices(list(weights), list(weights.values()), k=requests)

    hours = draw({24 * day + hour: weight for day in range(days) for hour, weight in enumerate(_BY_HOUR)})
    times = sorted(3600 * hour + chance.randrange(3600) for hour in hours)
    client_names = draw({_client(number): 1 / (number + 1) ** 0.9 for number in range(clients)})
    rest = zip(draw(_PATHS), draw(_STATUSES), draw(_AGENTS), strict=True)
    for seconds, client, (path, status, agent) in zip(times, client_names, rest, strict=True):
        at = (_FIRST_DAY + timedelta(seconds=seconds)).strftime("%d/%b/%Y:%H:%M:%S %z")
        size = "-" if status == 304 else int(chance.lognormvariate(8.5, 1.4))
        yield f'{client} - - [{at}] "GET {path} HTTP/1.1" {status} {size} "-" "{agent}"'


def _client(number: int) -> str:
    """The address of a client: IPv4 for most, IPv6 or a host name for some."""
    if number % 10 == 9:
        return f"2001:db8::{number:x}"
    if number % 25 == 13:
        return f"host-{number}.example.net"
    return f"{('192.0.2', '198.51.100', '203.0.113')[number % 3]}.{number // 3 % 256}"
