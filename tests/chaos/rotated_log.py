"""An access log that is rotated while it is followed and counted in tables of every kind, and what they must hold."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any

import pytest

from penstock import LineBatch, Penstock
from penstock.counting import First, Last, Max, Min, Sum, Tally, TimeWindow, Uniques
from penstock.counting.access_log import requests_per
from tests.chaos.flood import make_app

CHANNEL = "rotated"

ROTATIONS = ("create", "create compress", "create compress delaycompress", "copytruncate", "copytruncate compress")

CLIENTS = 200
"""Different addresses in the log."""

PER_MINUTE = 300
"""Lines of a minute of the log."""

TABLES: Mapping[str, Any] = {
    "money": Sum(places=2),
    "low": Min(),
    "high": Max(places=1),
    "first": First(),
    "last": Last(),
    "clients": Uniques(),
    "minutes": TimeWindow(60, keep=3600),
    "money_by_minute": TimeWindow(60, keep=3600, of=Sum(places=2)),
}

FORMATS: Mapping[str, Callable[[str], str]] = {
    "combined": str,
    "cri": lambda line: f"2026-03-02T10:05:03.123456789Z stdout F {line}",
    "docker": lambda line: json.dumps({"log": f"{line}\n", "stream": "stdout", "time": "2026-03-02T10:05:03Z"}),
    "syslog": lambda line: f"<13>Mar  2 10:05:03 web-1 nginx[7]: {line}",
}
"""What becomes of a server's line in a log."""

_requests = requests_per("day", "url", "status", "bytes")
_number = re.compile(rb"/(\d{8}) HTTP").search


def is_request(number: int) -> bool:
    """Whether the line with this number is a request. Every seventh line is something else."""
    return number % 7 != 6


def line(number: int, format: str) -> str:
    if not is_request(number):
        return f"no request {number:08}"
    client, status = number % CLIENTS, 200 + number % 3
    request = f'"GET /{number:08} HTTP/1.1" {status} {number} "-" "agent"'
    return FORMATS[format](f"192.0.2.{client} - - [02/Mar/2026:10:05:03 +0000] {request}")


def follow(address: str, folder: str) -> None:
    with make_app(address) as app:
        app.files(CHANNEL).send_lines(folder, follow=True, settle=1)


def count_shared(address: str) -> None:
    with make_app(address) as app:
        app.aggregate(CHANNEL, receiver="shared", tables=TABLES)(count).run(share=True, lease=1)


def count(lines: LineBatch) -> Tally:
    """The requests of a batch, with each URL once; and the numbers of the requests in a table of each kind, by their
    remainder."""
    tally = _requests(lines)
    tables: dict[str, Any] = {name: {} for name in TABLES}
    for text in lines:
        if not (found := _number(text)):
            continue
        number = int(found[1])
        values: dict[str, Any] = {
            "money": Decimal(number) / 100,
            "low": _rank(number),
            "high": Decimal(_rank(number)) / 2,
            "first": _ranked(number),
            "last": _ranked(number),
            "clients": {number % CLIENTS},
        }
        key = str(number % 3)
        for name, value in values.items():
            before = tables[name].get(key)
            tables[name][key] = value if before is None else _BOTH[name](before, value)
        for name, value in (("minutes", 1), ("money_by_minute", Decimal("0.01"))):
            minute = tables[name].setdefault(_minute(number), {"all": 0})
            minute["all"] += value
    tables["clients"] = {key: {f"client {one}" for one in ones} for key, ones in tables["clients"].items()}
    return Tally({**tally.tables, **tables}, tally.rejected)


_BOTH: Mapping[str, Callable[[Any, Any], Any]] = {
    "money": lambda one, other: one + other,
    "low": min,
    "high": max,
    "first": min,
    "last": max,
    "clients": lambda one, other: one | other,
}


def _rank(number: int) -> int:
    """Any order but that of the log: the lowest is not the first to be counted. No two below a million are equal."""
    return number * 611_953 % 1_000_003


def _ranked(number: int) -> tuple[int, str]:
    return _rank(number), f"line {number}"


def _minute(number: int) -> int:
    return number // PER_MINUTE * 60


def check(app: Penstock, written: int) -> None:
    """Raise AssertionError unless each of so many lines was counted once, in every table."""
    found = app.aggregate(CHANNEL, receiver="shared", tables=TABLES)(count).snapshot()
    requests = [number for number in range(written) if is_request(number)]
    totals = found.totals
    counted = (totals.lines, totals.counted, totals.rejected)
    assert counted == (written, len(requests), written - len(requests)), f"of {written} lines: {counted}"
    by_rest = {str(rest): [number for number in requests if number % 3 == rest] for rest in range(3)}
    minutes = Counter(map(_minute, requests))
    clients = {key: len({number % CLIENTS for number in of}) for key, of in by_rest.items()}
    expected: dict[str, Any] = {
        "days": {"2026-03-02": len(requests)},
        "urls": {f"/{number:08}": 1 for number in requests},
        "statuses": {str(200 + int(rest)): len(of) for rest, of in by_rest.items()},
        "bytes": {"all": sum(requests)},
        "days_bytes": {"2026-03-02": sum(requests)},
        "urls_bytes": {f"/{number:08}": number for number in requests},
        "statuses_bytes": {str(200 + int(rest)): sum(of) for rest, of in by_rest.items()},
        "money": {rest: Decimal(sum(of)) / 100 for rest, of in by_rest.items()},
        "low": {rest: min(map(_rank, of)) for rest, of in by_rest.items()},
        "high": {rest: Decimal(max(map(_rank, of))) / 2 for rest, of in by_rest.items()},
        "first": {rest: f"line {min(of, key=_rank)}" for rest, of in by_rest.items()},
        "last": {rest: f"line {max(of, key=_rank)}" for rest, of in by_rest.items()},
        "clients": {key: pytest.approx(n, rel=0.05) for key, n in clients.items()},
        **{f"minutes@{start}": {"all": n} for start, n in minutes.items()},
        **{f"money_by_minute@{start}": {"all": Decimal(n) / 100} for start, n in minutes.items()},
    }
    wrong = [name for name in expected.keys() | found.tables.keys() if found.tables.get(name) != expected.get(name)]
    assert wrong == [], {name: [*_difference(found.tables.get(name, {}), expected.get(name, {}))][:5] for name in wrong}


def _difference(found: Mapping[str, Any], expected: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Keys, each with the value that was found and the one that was expected."""
    for key in found.keys() | expected.keys():
        if found.get(key) != expected.get(key):
            yield key, found.get(key), expected.get(key)
