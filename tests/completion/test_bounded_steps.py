"""No call holds the server for long, whatever the names, the query and the size of the directory."""

import itertools
from typing import Any

import pytest

from penstock import Entry, Penstock
from penstock.completion.fold import fold
from penstock.completion.search import MAX_ROUND_TRIPS
from tests.conftest import Do, commands
from tests.speed import scaled_cpu

pytestmark = pytest.mark.parametrize(("face", "place"), [("blocking", "valkey")])

LONGEST_HOLD = 0.005
"""Seconds that a call may hold the server."""

NAMES = {
    "the longest fold": "\ufdfa" * 341,
    "long words": "\ufdfa" * 340,
    "another expansion": "\u3316" * 341,
    "compatibility fractions": "\u215e" * 341,
    "capital sharp s": "ẞ" * 341,
    "stacked marks": "e" + "\u0301" * 511,
    "stacked, three bytes": "e" + "\u1dc4\u0323" * 204,
    "words": "a " * 511 + "a",
    "apostrophes": "a'" * 511,
    "one letter": "x" * 1024,
    "decomposed Hangul": "한" * 341,
    "separators": "a" + "-" * 1023,
}


def names(entries: list[Entry]) -> list[str]:
    return [entry.name for entry in entries]


class Holds:
    """Calls verbs, and measures how much CPU time the server needs for each of the script calls."""

    def __init__(self, do: Do, server: Any) -> None:
        self._do = do
        self._server = server

    async def __call__(self, verb: Any, *args: Any, **options: Any) -> Any:
        before, calls = self._cpu_seconds(), commands(self._server)
        answer = await self._do(verb, *args, **options)
        seconds, calls = self._cpu_seconds() - before, commands(self._server) - calls
        # Twice as long, because other processes of the machine use the same caches.
        assert seconds / calls < scaled_cpu(2 * LONGEST_HOLD), f"{args!r:.60}: {seconds:.4f} s for {calls} calls"
        return answer

    def _cpu_seconds(self) -> float:
        cpu = self._server.info("cpu")
        return float(cpu["used_cpu_user_main_thread"]) + float(cpu["used_cpu_sys_main_thread"])


@pytest.fixture
def held(do: Do, nodes: list[Any]) -> Holds:
    return Holds(do, nodes[0])


@pytest.mark.parametrize(
    ("kind", "rules"),
    [
        *((kind, rules) for kind in NAMES for rules in ({}, {"words": True})),
        ("the longest fold", {"shards": 3, "words": True}),
    ],
    ids=str,
)
async def test_the_worst_names_are_stored_and_found_in_short_steps(
    app: Penstock, do: Do, held: Holds, nodes: list[Any], kind: str, rules: Any
):
    worst = NAMES[kind]
    guild = app.directory("g", **rules)
    await do(guild.add, "Ann")  # the server has the script now
    similar = [(worst[: len(worst) - 4].strip() + end, f"u{end}") for end in map(chr, range(ord("a"), ord("z")))]
    await held(guild.add, worst)
    await held(guild.add, worst, "u1", weight=5, payload=b"x" * 1024)
    await held(guild.add_many, ((name, id, n, b"y" * 1024) for n, (name, id) in enumerate(similar)))
    for typed in (worst, worst[: len(worst) // 2], worst[:10], ""):
        for by, typos in itertools.product(("name", "weight"), (False, True)):
            await held(guild.complete, typed, 1000, by=by, typos=typos)
        await held(guild.count, typed)
    await held(guild.bump, "u1", 3)
    await held(guild.rename, "u1", worst[1:])
    await held(guild.get, "u1")
    found = await do(guild.complete, worst, 100)
    assert worst in names(found)
    assert await do(guild.get, "u1") == Entry(worst[1:], "u1", 8.0, b"x" * 1024)
    assert await held(guild.clear) == len(similar) + 3


async def test_many_of_the_longest_names_are_stored_in_short_steps(
    app: Penstock, do: Do, held: Holds, nodes: list[Any]
):
    """In one step, 200 names of 1000 bytes took seconds."""
    guild = app.directory("g")
    await do(guild.add, "Ann")
    people = [f"{'ﷺ' * 330}{n}" for n in range(200)] + [f"{n} {'x' * 1000}" for n in range(200)]
    await held(guild.add_many, people)
    await held(guild.add_many, [(name, f"{n} {'u' * 1000}", n) for n, name in enumerate(people)])
    found = await held(guild.complete, "ﷺ", 1000)
    assert len(found) == 400
    assert len(await held(guild.top, "ﷺ", 1000)) == 400
    assert await held(guild.clear) == 801


async def test_a_crowd_of_weights_below_one_long_prefix_is_stored_in_short_steps(
    app: Penstock, do: Do, held: Holds, nodes: list[Any]
):
    guild = app.directory("g", words=True)
    await do(guild.add, "Ann", weight=1)
    start = "ab cd ef gh " + "ij" * 20
    crowd = [(f"{start} {n:04d}", f"u{n:04d}", n % 97 + 1) for n in range(1500)]
    await held(guild.add_many, crowd)
    for typed in ("", "a", start[:20], start, f"{start} 00", "cd ab", "ef 00"):
        await held(guild.complete, typed, 20, by="weight")
    await held(guild.remove, *(id for _, id, _ in crowd[700:]))
    kept = sorted(crowd[:700], key=lambda one: (-one[2], one[0]))
    for typed in (start, start[:20], "cd ab", "ij ef"):
        assert names(await do(guild.complete, typed, 50, by="weight")) == [name for name, *_ in kept[:50]], typed
    assert {key.rpartition(b":top:")[2] for key in nodes[0].keys("*top:*")} >= {b"", b"a", b"ab", b"c", b"ij"}


async def test_misspellings_that_have_many_weighed_names_are_found_in_short_steps(
    app: Penstock, do: Do, held: Holds, nodes: list[Any]
):
    """Each misspelling has hundreds of weighed names. To sort them took a millisecond for each misspelling."""
    guild = app.directory("g")
    letters = [chr(0x4E00 + n) for n in range(12)]
    await do(guild.add_many, [(f"a{x}bc{n:03}", f"{x}{n}", n + 1) for x in letters for n in range(500)])
    for limit in (1, 10, 1000):
        await do(guild.complete, "abc", limit, by="weight", typos=True)
        before = nodes[0].info("commandstats")["cmdstat_zmscore"]["calls"]
        found = await held(guild.complete, "abc", limit, by="weight", typos=True)
        # A hundred elements each; one is for the reply.
        assert nodes[0].info("commandstats")["cmdstat_zmscore"]["calls"] - before <= (400 + 600) / 100 + 1
        assert found[0].weight == 500


async def test_several_words_cost_few_round_trips_whatever_they_match(
    app: Penstock, do: Do, held: Holds, nodes: list[Any]
):
    guild = app.directory("g", words=True)
    await do(guild.add_many, [f"Mc{n:04d} Bob" for n in range(3000)] + [f"Van {n:04d}" for n in range(3000)])
    await do(guild.add_many, ["Zed Mcx Vany", "Vanmc"])
    await do(guild.complete, "mc van")
    before = commands(nodes[0])
    assert names(await held(guild.complete, "mc van")) == ["Zed Mcx Vany"]
    assert commands(nodes[0]) - before <= 4


async def test_a_search_that_compares_too_many_names_returns_a_cursor(
    app: Penstock, do: Do, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("penstock.completion.search.MAX_ROUND_TRIPS", 2)
    guild = app.directory("g", words=True)
    await do(guild.add_many, [f"Ann {n:04d}" for n in range(6000)] + [f"Smith {n:04d}" for n in range(6000)])
    await do(guild.add_many, ["Ann Zed Smith", "Ann 0000 Smith"])
    found, cursor, pages = list[str](), None, 0
    while True:
        page = await do(guild.complete, "ann smith", 5, after=cursor)
        found += names(page)
        cursor, pages = page.cursor, pages + 1
        if cursor is None:
            break
    assert sorted(found) == ["Ann 0000 Smith", "Ann Zed Smith"]
    assert 2 <= pages <= 4
    assert MAX_ROUND_TRIPS == 50


async def test_a_large_page_of_short_names_is_one_round_trip(app: Penstock, do: Do, held: Holds, nodes: list[Any]):
    guild = app.directory("g")
    await do(guild.add_many, [f"Ann {n:04d}" for n in range(1200)])
    await do(guild.complete, "ann")
    before = commands(nodes[0])
    page = await do(guild.complete, "ann", 1000)
    assert commands(nodes[0]) - before == 1
    assert names(page) == [f"Ann {n:04d}" for n in range(1000)]
    assert names(await do(guild.complete, "ann", 1000, after=page.cursor)) == [
        f"Ann {n:04d}" for n in range(1000, 1200)
    ]


async def test_long_contacts_are_used_and_found_in_short_steps(app: Penstock, do: Do, held: Holds, nodes: list[Any]):
    for by in ("recency", "frequency"):
        contacts = app.contacts(by, by=by, limit=10_000)
        await do(contacts.touch, "Ann")
        people = [f"{'ﷺ' * 330}{n}" for n in range(150)]
        for name in people:
            await held(contacts.touch, name)
        assert await held(contacts.complete, "ﷺ" * 330, 1000) == people[::-1]
        assert await held(contacts.complete, "ann") == ["Ann"]
        await held(app.contacts(by, limit=3).touch, "Bo")
        await held(app.contacts(by, limit=3).touch, "Bo")
        assert len(await do(contacts.list)) == 3
        assert fold("ﷺ") == "صلى الله عليه وسلم"


async def test_an_import_reads_or_writes_the_index_once_for_each_id(app: Penstock, do: Do, nodes: list[Any]):
    guild = app.directory("g")
    await do(guild.add, "Zoe", "known")
    crowd = [(f"Ann {n:04d}", f"u{n}") for n in range(1000)]

    def calls() -> int:
        stats = [node.info("commandstats") for node in nodes]
        return sum(
            one.get(f"cmdstat_{name}", {"calls": 0})["calls"] for one in stats for name in ("hget", "hset", "hsetnx")
        )

    for times in ("new", "known"):
        before = calls()
        await do(guild.add_many, crowd)
        # Some more for chunks, and for buckets that are split.
        assert calls() - before <= 1100, times
    await do(guild.add_many, [("Zoey", "known"), ("Ann", "u0"), ("Bob", "new"), ("Cy", "newer")])
    assert names(await do(guild.complete, "")) == ["Ann", *(f"Ann {n:04d}" for n in range(1, 10))]
    assert names(await do(guild.complete, "z")) == ["Zoey"]
    assert await do(guild.count) == 1003
