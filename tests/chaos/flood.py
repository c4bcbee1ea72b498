"""A large access log with known counts, and the functions of the processes that send and count it."""

from __future__ import annotations

import gzip
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from penstock import Penstock, Settings
from penstock.counting.access_log import requests_per
from penstock.counting.countries import registration

CHANNEL = "flood"

PAGE = 10_000
"""Lines that are made at a time: a megabyte."""

BAD = 3
"""Lines of a page that are not requests."""


@dataclass
class Truth:
    """The contents of the log, counted while it was made."""

    bytes: int = 0
    lines: int = 0
    rejected: int = 0
    by_day: Counter[str] = field(default_factory=Counter[str])

    def totals(self, place: int) -> dict[str, int]:
        """Requests per day (`place` 0) or per country (1)."""
        found = Counter[str]()
        for key, times in self.by_day.items():
            found[key.split()[place]] += times
        return dict(found)


def make_log(path: Path, size: int, seed: int) -> Truth:
    """Write a gzip file with `size` bytes of text, or up to a page more."""
    chance, truth, country_of = random.Random(seed), Truth(), registration()
    hosts = [".".join(str(chance.randint(1, 254)) for _ in range(4)) for _ in range(3000)]
    hosts += ["crawler.example.org", "192.168.7.7", "2001:4860:4860::8888"]
    countries = {host: country_of(host) for host in hosts}
    days = {f"{day:02}/Mar/2026": f"2026-03-{day:02}" for day in range(1, 32)}
    line = '%s - - [%s:10:05:03 +0000] "GET /%s HTTP/1.1" 200 5120 "-" "Mozilla/5.0 (X11; Linux x86_64)"\n'
    with gzip.open(path, "wb", compresslevel=1) as out:
        while truth.bytes < size:
            host_names, dates = chance.choices(hosts, k=PAGE), chance.choices(list(days), k=PAGE)
            paths = [f"{word:016x}" for word in memoryview(chance.randbytes(8 * PAGE)).cast("Q")]
            rows = [line % row for row in zip(host_names, dates, paths, strict=True)]
            for place in chance.sample(range(PAGE + 1), BAD):
                rows.insert(place, "what is this?\n")
            for (host, day), times in Counter(zip(host_names, dates, strict=True)).items():
                truth.by_day[f"{days[day]} {countries[host]}"] += times
            truth.lines += len(rows)
            truth.rejected += BAD
            truth.bytes += out.write("".join(rows).encode())
    return truth


def make_app(address: str) -> Penstock:
    return Penstock(address, prefix="flood", settings=Settings(lease=5))


def send(address: str, path: str, receivers: list[str], limit: int) -> None:
    with make_app(address) as app:
        app.files(CHANNEL).send_lines(path, receivers=receivers, limit=limit, close=True)


def count(address: str, receiver: str) -> None:
    with make_app(address) as app:
        app.aggregate(CHANNEL, receiver=receiver)(requests_per("day", "country")).run()
