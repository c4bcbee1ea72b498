"""The cost of completion: queries by length of the prefix, from one client and from eight; import; memory."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from multiprocessing.connection import Connection
from typing import Any

from penstock.app import Penstock
from penstock.bench.competitors import TIMEOUT, run_together
from penstock.bench.figures import Figure, Ratio, at_least, at_most, figure, percentile
from penstock.bench.rig import Rig, timed
from penstock.bench.topic import Figures, Topic
from penstock.completion.directory import Directory
from penstock.completion.fold import fold
from penstock.completion.keys import CompletionKeys
from penstock.ops.raw_client import raw_client

TOPIC = Topic()

CLIENTS = 8
LENGTHS = (1, 2, 3, 4, 6, 9)
BATCH = 50_000

_STARTS = [
    "a",
    "an",
    "be",
    "bo",
    "ca",
    "da",
    "e",
    "fi",
    "ga",
    "ha",
    "i",
    "jo",
    "ka",
    "li",
    "ma",
    "na",
    "o",
    "pe",
    "ra",
    "sa",
    "ta",
    "u",
    "vi",
    "wi",
    "yu",
    "zo",
    "é",
    "ö",
    "жа",
    "ли",
    "金",
    "佐",
    "이",
    "ם",
]
_MIDDLES = ["na", "ri", "mo", "le", "ne", "sa", "ti", "lu", "ka", "re", "do", "ni", "va", "ше", "木", "서", "ر"]
_ENDS = ["n", "s", "a", "o", "l", "r", "th", "ck", "na", "ën", "ра", "子", "ا"]


def some_names(count: int) -> Iterator[str]:
    """Generated first and last names in several scripts, most of them Latin, made distinct by a number at the end."""
    chance = random.Random(1)

    def one() -> str:
        weights = (*(8 for _ in range(26)), *(1 for _ in _STARTS[26:]))
        (start,) = chance.choices(_STARTS, weights)
        return start + "".join(chance.choices(_MIDDLES, k=chance.randint(1, 2))) + chance.choice(_ENDS)

    for number in range(count):
        yield f"{one()} {one()}".title() + f" {number:x}"


def filled_directory(rig: Rig, names: int, *, words: bool | None = None) -> Directory:
    """A directory of this many names, each with an id."""
    directory = rig.app.directory("bench", words=words)
    numbered = ((name, f"u{n}") for n, name in enumerate(some_names(names)))
    while batch := list(islice(numbered, BATCH)):
        directory.add_many(batch)
    return directory


def typed_prefixes(lengths: Sequence[int], count: int) -> list[str]:
    """The prefixes that a user types to find one of the names."""
    return [name[: lengths[n % len(lengths)]] for n, name in enumerate(some_names(count))]


@TOPIC.scenario
def bulk(rig: Rig) -> Figures:
    """Add names, 100 per round trip; add the same names again; remove all"""
    count = rig.at_pace(10_000, 200_000, 200_000)
    plain = list(some_names(count))
    with_ids = [(name, f"u{n}") for n, name in enumerate(plain)]
    directory = rig.app.directory("bench")
    for what, names in (("import", plain), ("the same import again", plain), ("import with ids", with_ids)):
        directory = rig.app.directory("bench-ids" if names is with_ids else "bench")
        used = rig.usage_of(lambda names=names, directory=directory: directory.add_many(names))  # type: ignore[misc]
        target = at_most(5) if count == 200_000 else None
        yield figure(f"{what} of {count:,}", used.seconds, "s", target=target)
        yield figure(f"{what}, CPU of the client", used.client * 1e6 / count, "µs/name")
        yield figure(f"{what}, CPU of the server", used.server * 1e6 / count, "µs/name")
    yield figure("clear", timed(directory.clear), "s")


@TOPIC.scenario
def memory(rig: Rig) -> Figures:
    """Server memory per name, without the name itself"""
    count = rig.at_pace(20_000, 200_000, 1_000_000)
    size = sum(len(name.encode()) for name in some_names(count)) / count
    before = rig.memory()
    filled_directory(rig, count)
    yield _memory("with an id", rig, before, count, size)
    rig.clear()
    names = some_names(count)
    while batch := list(islice(names, BATCH)):
        rig.app.directory("bench").add_many(batch)
    yield _memory("its own id", rig, before, count, size)


def _memory(kind: str, rig: Rig, before: int, count: int, size: float) -> Figure:
    overhead = (rig.memory() - before) / count - size
    return figure(
        f"{count:,} names, {kind}", overhead, "B/name", ratio=Ratio(overhead / size, "the name"), target=at_most(160)
    )


@TOPIC.scenario
def queries(rig: Rig) -> Figures:
    """Query a large directory for ten names, one query after another, by length of the prefix"""
    count, times = rig.at_pace(20_000, 200_000, 1_000_000), rig.at_pace(200, 1000, 3000)
    directory = filled_directory(rig, count)
    names = CompletionKeys(rig.app.settings.prefix, "directory", "bench").names
    with raw_client(rig.app) as client:

        def bare_query(text: str) -> object:
            start = fold(text).encode()
            return client.zrange(names, b"[" + start, b"(" + start + b"\xff", bylex=True, offset=0, num=10)

        for length in LENGTHS:
            durations, bare = [], []
            for text in typed_prefixes([length], times):
                durations.append(timed(lambda text=text: directory.complete(text)) * 1e6)  # type: ignore[misc]
                bare.append(timed(lambda text=text: bare_query(text)) * 1e6)  # type: ignore[misc]
            for name, share, most in (("median", 0.5, at_most(2, "ratio")), ("p99", 0.99, at_most(1000))):
                found = percentile(durations, share)
                ratio = Ratio(found / percentile(bare, share), "a bare ZRANGE in between")
                yield figure(f"{length} of {count:,}, {name}", found, "µs", ratio=ratio, target=most)
    texts = typed_prefixes(LENGTHS, times)
    used = rig.usage_of(lambda: [directory.complete(text) for text in texts])
    yield figure("any, CPU of the client", used.client * 1e6 / times, "µs/query")
    yield figure("any, CPU of the server", used.server * 1e6 / times, "µs/query")


@TOPIC.scenario
def throughput(rig: Rig) -> Figures:
    """Queries per second of one and of eight processes, and the writes that they cause"""
    directory = filled_directory(rig, rig.at_pace(20_000, 100_000, 1_000_000))
    seconds = rig.at_pace(0.5, 3.0, 10.0)
    with raw_client(rig.app) as client:
        before = client.info("persistence")["rdb_changes_since_last_save"]
        for processes, least in ((1, None), (CLIENTS, 10_000)):
            yield figure(
                f"{processes} clients" if processes > 1 else "1 client",
                _rate(rig, processes, seconds),
                "queries/s",
                target=at_least(least),
            )
        writes = client.info("persistence")["rdb_changes_since_last_save"] - before
    yield figure("writes by these queries", writes, "changes", target=at_most(0))
    yield figure("names in the directory", directory.count(), "names")


def _rate(rig: Rig, processes: int, seconds: float) -> float:
    order = (rig.address, rig.app.settings.prefix, seconds)
    rates: list[float] = run_together(ask, [(*order, number) for number in range(processes)])
    return sum(rates)


def ask(start: Any, out: Connection, address: str, prefix: str, seconds: float, number: int) -> None:
    """Send the queries per second of one process."""
    texts = typed_prefixes(LENGTHS, 2000)[number::2]
    with Penstock(address, prefix=prefix) as app:
        directory = app.directory("bench")
        for text in texts[:100]:
            directory.complete(text)
        start.wait(TIMEOUT)  # else the start of some processes would slow the queries of others
        done, began = 0, time.perf_counter()
        while (passed := time.perf_counter() - began) < seconds:
            for text in texts[:50]:
                directory.complete(text)
            done += 50
            texts = texts[50:] + texts[:50]
        out.send(done / passed)


@TOPIC.scenario
def ways(rig: Rig) -> Figures:
    """Other kinds of query: with a typo, by several words, by weight, and in contacts"""
    count, times = rig.at_pace(10_000, 100_000, 1_000_000), rig.at_pace(50, 300, 1000)
    directory = filled_directory(rig, count, words=True)
    full = [name for name in some_names(times) if len(name) > 8]
    typos = [name[:3] + name[4:7] for name in full]
    yield _latency("one typo, p99", directory.complete, [(text, 10) for text in typos], at_most_ms=5, typos=True)
    yield _latency("two words, p99", directory.complete, [(" ".join(w[:3] for w in n.split()[:2]), 10) for n in full])
    directory.add_many((name, f"u{n}", n % 1000) for n, name in enumerate(some_names(count // 10)))
    yield _latency("by weight, p99", directory.top, [(text, 10) for text in typed_prefixes(LENGTHS, times)])
    yield _latency("bump, p99", directory.bump, [(f"u{n}",) for n in range(times)])
    for by, limit in (("recency", 100), ("frequency", 10_000)):
        contacts = rig.app.contacts(f"bench:{by}", by=by, limit=limit)  # type: ignore[arg-type]
        for name in some_names(min(limit, rig.at_pace(500, 2000, 10_000))):
            contacts.touch(name)
        kind = f"{limit:,} contacts by {by}"
        yield _latency(f"{kind}, touch, p99", contacts.touch, [(name,) for name in some_names(times)])
        yield _latency(
            f"{kind}, complete, p99", contacts.complete, [(text,) for text in typed_prefixes(LENGTHS, times)]
        )


def _latency(
    name: str, verb: object, calls: Sequence[tuple[object, ...]], at_most_ms: float | None = None, **options: bool
) -> Figure:
    assert callable(verb)
    durations = [timed(lambda call=call: verb(*call, **options)) * 1e3 for call in calls]  # type: ignore[misc]
    return figure(name, percentile(durations, 0.99), "ms", target=at_most(at_most_ms))
