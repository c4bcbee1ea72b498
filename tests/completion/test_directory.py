"""The directory of a group, compared with a plain Python dictionary."""

import asyncio
import contextlib
import random
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unicodedata import normalize

import pytest

from penstock import ConfigurationError, Directory, Entry, Penstock, ServerError
from penstock.completion.bindings import DirectoryRules
from penstock.completion.entry import FoundElement
from penstock.completion.fold import Typed, fold, tails, words
from penstock.completion.search import Search
from penstock.completion.sharded_storage import open_storage
from penstock.core.operations import Parallel, Receive, Send
from penstock.errors import BadName, FormatTooNew, StateDamaged
from penstock.ops.raw_client import raw_client
from tests.conftest import Do, commands

RULES: list[dict[str, Any]] = [
    {},
    {"accents": False},
    {"words": True},
    {"shards": 3},
    {"shards": 5, "words": True, "accents": False},
]


def shown(entries: Iterable[Entry]) -> list[tuple[str, str]]:
    return [(entry.name, entry.id) for entry in entries]


class Model:
    """The names that a directory should have: id -> name."""

    def __init__(self, accents: bool = True, words: bool = False, shards: int = 1) -> None:
        self.names: dict[str, str] = {}
        self._accents, self._words = accents, words

    def fold(self, text: str) -> str:
        return fold(text, accents=self._accents)

    def complete(self, prefix: str) -> list[tuple[str, str]]:
        """In the order of the matching part, name, id; of equal names the one that is its own id first."""
        typed = self.fold(prefix)
        parts = [typed[a:b] for a, b in words(typed)]
        found = []
        for id, name in self.names.items():
            starts = tails(self.fold(name)) if self._words and typed else [self.fold(name)]
            if self._words and len(parts) > 1:
                if all(any(tail.startswith(part) for tail in starts) for part in parts):
                    found.append(("", name, "" if id == name else id))
            elif matching := [tail for tail in starts if tail.startswith(typed)]:
                found.append((min(matching), name, "" if id == name else id))
        return [(name, id or name) for _, name, id in sorted(found)]


# --- ids and names ---


async def test_names_are_found_as_they_are_typed(app: Penstock, do: Do):
    guild = app.directory("guild:9")
    await do(guild.add, "Ann")
    await do(guild.add, "名前", id="u1")
    assert await do(guild.add_many, [("Ma Smith", "u2"), "Émile", "emil"]) == 3
    assert shown(await do(guild.complete, "名", limit=10)) == [("名前", "u1")]
    assert shown(await do(guild.complete, "e")) == [("emil", "emil"), ("Émile", "Émile")]
    assert shown(await do(guild.complete, "É")) == [("Émile", "Émile")]
    assert shown(await do(guild.complete, "MA S")) == [("Ma Smith", "u2")]
    assert await do(guild.complete, "x") == []
    assert await do(guild.count) == 5
    assert await do(guild.count, "e") == 2
    assert await do(guild.get, "u2") == Entry("Ma Smith", "u2")
    assert await do(guild.get, "Ann") == Entry("Ann", "Ann")
    assert await do(guild.get, "u9") is None


@pytest.mark.parametrize("rules", RULES, ids=str)
async def test_an_id_has_one_name_and_a_name_without_one_is_its_own(app: Penstock, do: Do, rules: Any):
    guild = app.directory("g", **rules)
    await do(guild.add, "Ann")
    await do(guild.add, "Bob Bee", id="Ann")  # the id Ann had the name Ann
    assert shown(await do(guild.complete, "")) == [("Bob Bee", "Ann")]
    assert await do(guild.rename, "Ann", "Émile") is True
    assert shown(await do(guild.complete, "")) == [("Émile", "Ann")]
    assert await do(guild.get, "Émile") is None
    assert await do(guild.rename, "Émile", "Ann") is False
    assert await do(guild.rename, "Émile", "Émile") is False
    assert await do(guild.count) == 1
    await do(guild.add, "Ann")
    assert shown(await do(guild.complete, "")) == [("Ann", "Ann")]
    assert await do(guild.rename, "Ann", "Zed") is True
    assert await do(guild.rename, "Ann", "Ann") is True
    assert shown(await do(guild.complete, "")) == [("Ann", "Ann")]
    assert await do(guild.remove, "Ann", "Zed", "x") == 1
    assert await do(guild.count) == 0


@pytest.mark.parametrize("rules", RULES, ids=str)
async def test_any_history_equals_that_of_a_dictionary(app: Penstock, do: Do, face: str, rules: Any):
    chance = random.Random(f"{face}{rules}")
    people = [
        "Ann",
        "ann",
        "ÁNN",
        "Ann Lee",
        "Lee Ann",
        "Émile de Lee",
        "emil",
        "E\u0301mile",
        "名前",
        "名",
        "한국",
        "하나",
    ]
    people += ["Straße", "strasse", "O’Lee", "o", "Zoë 1", "😀 Ann", "Ann Ann"]
    ids = [*people[:4], "u1", "u2", "Ü3"]
    guild, model = app.directory("g", **rules), Model(**rules)
    for _ in range(60):
        name, id = chance.choice(people), chance.choice(ids)
        match chance.randrange(6):
            case 0:
                await do(guild.add, name)
                model.names[name] = name
            case 1 | 2:
                await do(guild.add, name, id)
                model.names[id] = name
            case 3:
                known = id in model.names
                assert await do(guild.rename, id, name) == known
                model.names |= {id: name} if known else {}
            case 4:
                gone = {id, name} & model.names.keys()
                assert await do(guild.remove, id, name) == len(gone)
                model.names = {i: n for i, n in model.names.items() if i not in gone}
            case _:
                some = [chance.choice([other, (other, chance.choice(ids))]) for other in chance.sample(people, 5)]
                await do(guild.add_many, some)
                model.names |= {
                    one if isinstance(one, str) else one[1]: one if isinstance(one, str) else one[0] for one in some
                }
        typed = chance.choice(["", "a", "e", "é", "lee", "ann l", "l an", name[:1], name])
        found = shown(await do(guild.complete, typed, 1000))
        if guild._rules.words and len(words(fold(typed))) > 1:
            found.sort()
            assert found == sorted(model.complete(typed))
        else:
            assert found == model.complete(typed)
        assert await do(guild.count) == len(model.names)
    for id in ids:
        held = await do(guild.get, id)
        assert held == (Entry(model.names[id], id) if id in model.names else None)
    assert await do(guild.clear) == len(model.names)


# --- words ---


async def test_the_start_of_every_word_finds_a_name_once(app: Penstock, do: Do):
    guild = app.directory("g", words=True)
    await do(guild.add_many, ["Ma Smith", "Smith Smithson", "Smiley-Bob", "Mary Anne Smithers", "Émile Smö"])
    assert [name for name, _ in shown(await do(guild.complete, "smi"))] == [
        "Smiley-Bob",
        "Ma Smith",
        "Smith Smithson",
        "Mary Anne Smithers",
    ]
    assert shown(await do(guild.complete, "bob")) == [("Smiley-Bob", "Smiley-Bob")]
    assert await do(guild.count) == 5
    assert await do(guild.count, "smi") == 5


async def test_several_words_find_a_name_in_any_order(app: Penstock, do: Do):
    guild = app.directory("g", words=True)
    await do(guild.add_many, ["Ma Smith", "Smith Mary", "Mara Jones", "Smith Anne Maria", "Ma"])
    everyone = {"Ma Smith", "Smith Mary", "Smith Anne Maria"}
    assert {entry.name for entry in await do(guild.complete, "ma smi")} == everyone
    assert {entry.name for entry in await do(guild.complete, "smi ma")} == everyone
    assert {entry.name for entry in await do(guild.complete, "ma s")} == everyone
    assert shown(await do(guild.complete, "maria an smith")) == [("Smith Anne Maria", "Smith Anne Maria")]
    first = await do(guild.complete, "ma smi", 2)
    rest = await do(guild.complete, "ma smi", 2, after=first[-1])
    assert {entry.name for entry in first + rest} == everyone
    assert len(rest) == 1


async def test_several_words_skip_many_names_that_have_only_one_of_them(app: Penstock, do: Do):
    guild = app.directory("g", words=True)
    await do(guild.add_many, [f"Smith {n:04d}" for n in range(1100)] + [f"Ann {n:04d}" for n in range(1100)])
    await do(guild.add, "Zoe Smith Ann")
    assert shown(await do(guild.complete, "ann smith")) == [("Zoe Smith Ann", "Zoe Smith Ann")]


# --- pages ---


@pytest.mark.parametrize("rules", RULES, ids=str)
async def test_each_page_starts_where_the_last_one_ended(app: Penstock, do: Do, rules: Any):
    guild = app.directory("g", **rules)
    await do(guild.add_many, [(f"Ann {n % 7}", f"u{n:02d}") for n in range(40)] + ["Zed", "Émile"])
    for prefix in ("a", "", "ann 3"):
        whole = shown(await do(guild.complete, prefix, 1000))
        pages, cursor = list[tuple[str, str]](), None
        while page := await do(guild.complete, prefix, 3, after=cursor):
            pages += shown(page)
            cursor = page[-1].cursor
        assert pages == whole
        assert len(whole) >= 5


async def test_pages_neither_miss_nor_repeat_a_name_that_stayed(app: Penstock, do: Do):
    guild = app.directory("g")
    await do(guild.add_many, ["a1", "a2", "a3", "a4", "a5"])
    first = await do(guild.complete, "a", 2)
    await do(guild.remove, "a1", "a2", "a3")
    await do(guild.add_many, ["a0", "a33"])
    assert shown(await do(guild.complete, "a", 9, after=first[-1])) == [(n, n) for n in ("a33", "a4", "a5")]


# --- any script ---


async def test_each_form_of_a_name_finds_the_others(app: Penstock, do: Do):
    names = ["Émile", "Ångström", "ﬁsh", "한국어", "ガンダム", "Ⅳ", "Straße", "İstanbul", "ΌΣΟΣ", "नृत्य", "Nguyễn", "①"]
    guild = app.directory("g")
    await do(guild.add_many, names)
    for name in names:
        for form in ("NFC", "NFD", "NFKC", "NFKD"):
            found = await do(guild.complete, normalize(form, name))
            assert [entry.name for entry in found] == [name], (form, name)


async def test_a_name_is_returned_exactly_as_it_was_given(app: Penstock, do: Do):
    names = [
        "E\u0301mile",
        " Ann ",
        "👩\u200d🚀 Zoë",
        "\u200fדוד",
        "{a}",
        "\ufb01sh",
        "a\u00a0b",
        "-",
        "\\x00",
        "%s",
        "\ufffd",
    ]
    guild = app.directory("g")
    await do(guild.add_many, [(name, f"id {n} {name}") for n, name in enumerate(names)])
    assert {entry.name for entry in await do(guild.complete, "", 100)} == set(names)
    for n, name in enumerate(names):
        assert await do(guild.get, f"id {n} {name}") == Entry(name, f"id {n} {name}")


@pytest.mark.parametrize(("face", "place"), [("blocking", "valkey")])  # a pure comparison of folds
@pytest.mark.parametrize(
    ("file", "prefixes"),
    [
        ("humannames.txt", {"ma": 6224, "jo": 677}),
        ("given-names-male-unicode.txt", {"é": 18, "jo": 0, "ma": 0, "ž": 0, "м": 0, "": 0}),
    ],
)
async def test_real_lists_of_names_are_found_as_python_finds_them(
    app: Penstock, do: Do, file: str, prefixes: dict[str, int]
):
    path = Path(__file__).parents[3] / "shared" / "data" / "names" / file
    if not path.exists():
        pytest.skip(f"needs {path}")
    names = sorted({name for name in path.read_text("utf-8").split("\n") if name}, key=lambda n: (fold(n), n))
    guild = app.directory("g")
    await do(guild.add_many, names)
    for prefix, known in prefixes.items():
        wanted = [name for name in names if fold(name).startswith(fold(prefix))]
        assert await do(guild.count, prefix) == len(wanted)
        assert known in {0, len(wanted)}
        assert [entry.name for entry in await do(guild.complete, prefix, 200)] == wanted[:200]


# --- costs ---


async def test_reading_writes_nothing(app: Penstock, do: Do, nodes: list[Any]):
    for n, rules in enumerate(RULES):
        await do(app.directory(f"g{n}", **rules).add_many, ["Ann Lee", ("Bo", "u1", 5), "名前"])
    for node in nodes:
        node.config_resetstat()
    for n, rules in enumerate(RULES):
        guild = app.directory(f"g{n}", **rules)
        for prefix in ("", "a", "ann l", "名", "x"):
            await do(guild.complete, prefix)
            await do(guild.count, prefix)
            await do(guild.top, prefix)
        await do(guild.complete, "ano", typos=True)
        await do(guild.get, "u1")
        await do(guild.get, "Ann Lee")
    sent = {name.removeprefix("cmdstat_") for node in nodes for name in node.info("commandstats")}
    ours = {"evalsha", "eval", "script|load", "zrange", "zlexcount", "zscore", "zmscore", "hget", "hmget", "exists"}
    setup = {
        "info",
        "config|resetstat",
        "client|setinfo",
        "hello",
        "select",
        "cluster|slots",
        "command",
        "ping",
        "auth",
    }
    assert sent - setup <= ours
    assert {"zrange", "zlexcount"} <= sent


async def test_one_query_or_change_is_one_round_trip_on_one_node(app: Penstock, do: Do, nodes: list[Any]):
    guild = app.directory("g")
    verbs = [
        (guild.add, "Ann"),
        (guild.add, "Bo", "u1"),
        (guild.rename, "u1", "Cy"),
        (guild.complete, "a"),
        (guild.count,),
        (guild.get, "u1"),
        (guild.remove, "u1"),
        (guild.remove, "Ann"),
    ]
    for verb in verbs:
        await do(*verb)  # now the server has the scripts
    for verb in verbs:
        before = [commands(node) for node in nodes]
        await do(*verb)
        assert sum(commands(node) - old for node, old in zip(nodes, before, strict=True)) == 1, verb


async def test_a_search_in_a_sharded_directory_uses_one_slot(app: Penstock, do: Do, nodes: list[Any]):
    guild = app.directory("g", shards=8)
    names = [f"{letter}{n}" for letter in "abcdefgh" for n in range(3)]
    await do(guild.add_many, names)
    found = {key.decode().partition("}")[0] for node in nodes for key in node.keys("*names")}
    assert len(found) == 8
    for letter in "abcdefgh":
        await do(guild.complete, letter)  # each node knows the script from now on
        before = sum(map(commands, nodes))
        assert [entry.name for entry in await do(guild.complete, letter)] == [f"{letter}{n}" for n in range(3)]
        assert sum(map(commands, nodes)) - before == 1
    assert [entry.name for entry in await do(guild.complete, "", 100)] == names
    assert await do(guild.count) == len(names)


def test_a_search_without_a_prefix_asks_all_shards_at_the_same_time():
    storage = open_storage("pst", "g", DirectoryRules(shards=8))
    search = Search(storage, Typed("", storage.rules.spelling.fold)).first(3)
    asked = next(search)
    assert isinstance(asked, Parallel)
    assert len(asked.round_trips) == 8
    pages = [(b"", [FoundElement(b"%d\0%d" % (n, n))]) for n in range(8)]
    with pytest.raises(StopIteration) as ended:
        search.send(pages)
    assert [entry.name for entry in ended.value.value] == ["0", "1", "2"]


async def test_buckets_of_many_ids_stay_packed(app: Penstock, do: Do, raw: Any, nodes: list[Any]):
    guild = app.directory("g")
    await do(guild.add_many, [(f"Name {n}", f"u{n}") for n in range(4000)])
    buckets = [key for node in nodes for key in node.keys("*ids:*")]
    assert 120 <= len(buckets) <= 125
    assert {raw.object("encoding", key) for key in buckets} == {b"listpack"}
    assert max(raw.hlen(key) for key in buckets) < 256
    for n in (0, 1, 63, 64, 65, 1999, 3999):
        assert await do(guild.get, f"u{n}") == Entry(f"Name {n}", f"u{n}")
    assert await do(guild.remove, *(f"u{n}" for n in range(3990))) == 3990
    assert shown(await do(guild.complete, "")) == [(f"Name {n}", f"u{n}") for n in range(3990, 4000)]


# --- interrupted and concurrent changes ---


@pytest.mark.parametrize("rules", RULES, ids=str)
async def test_an_interrupted_import_leaves_whole_names_and_can_be_repeated(
    app: Penstock, do: Do, face: str, rules: Any
):
    names: list[Any] = [(f"Ann {n}", f"u{n}") for n in range(700)] + [f"Bo {n}" for n in range(700)]
    guild = app.directory("g", **rules)
    await do(guild.add, "Old Name", "u3")
    for round_trips in (1, 2, 3, 5, 8, 13, 40):
        await interrupted(app, guild.add_many, round_trips, names)
        for entry in await do(guild.complete, "", 1000):
            assert entry.name.startswith(("Ann", "Bo", "Old"))
    assert await do(guild.add_many, names) == 1400
    assert await do(guild.count) == 1400
    assert await do(guild.count, "old") == 0
    assert await do(guild.get, "u3") == Entry("Ann 3", "u3")
    await do(guild.clear)


@pytest.mark.parametrize("rules", RULES, ids=str)
@pytest.mark.parametrize("verb", ["rename", "remove", "add"])
async def test_an_interrupted_change_is_completed_by_repeating_it(app: Penstock, do: Do, verb: str, rules: Any):
    args = {"rename": ("u1", "Zed Zoe"), "remove": ("u1",), "add": ("Zed Zoe", "u1")}[verb]
    for round_trips in range(18):
        guild = app.directory(f"g{round_trips}", **rules)
        await do(guild.add_many, [("Ann Lee", "u1"), ("Bo", "u2"), "Cy"])
        await interrupted(app, getattr(guild, verb), round_trips, *args)
        assert await do(guild.get, "u2") == Entry("Bo", "u2")
        await do(getattr(guild, verb), *args)
        wanted = [("Bo", "u2"), ("Cy", "Cy")] + [("Zed Zoe", "u1")] * (verb != "remove")
        assert shown(await do(guild.complete, "")) == wanted
        assert shown(await do(guild.complete, "zed")) == wanted[2:]
        assert await do(guild.complete, "ann") == []
        assert await do(guild.count) == len(wanted)


@pytest.mark.parametrize("rules", RULES, ids=str)
async def test_concurrent_changes_of_one_id_leave_it_one_name(app: Penstock, do: Do, rules: Any):
    guild = app.directory("g", **rules)
    people = ["Ann Lee", "Bo", "Cy", "Émile", "名前", "u1", "Zoe"]

    async def change(number: int) -> None:
        chance = random.Random(number)
        for _ in range(12):
            name = chance.choice(people)
            match chance.randrange(4):
                case 0:
                    await guild.remove.aio("u1")
                case 1:
                    await guild.rename.aio("u1", name)
                case _:
                    await guild.add.aio(name, "u1")

    await asyncio.gather(*(change(number) for number in range(6)))
    await do(guild.add, "Last One", "u1")
    assert shown(await do(guild.complete, "", 100)) == [("Last One", "u1")]
    assert await do(guild.count) == 1


@pytest.mark.parametrize("before", ["begin_changes", "add_elements", "remove_elements", "end_changes"])
async def test_an_overtaken_change_removes_its_own_name_again(app: Penstock, do: Do, before: str):
    guild = app.directory("g", shards=3, words=True)
    await do(guild.add, "Ann Lee", "u1")
    slow = guild.add.__wrapped__(guild, "Bo Cy", "u1")
    effect: Any = next(slow)
    while effect.script.name != before:
        effect = slow.send(await app._driver.aio.run(effect))
    await do(guild.add, "Di Eve", "u1")
    with contextlib.suppress(StopIteration):
        while True:
            effect = slow.send(await app._driver.aio.run(effect))
    last = ("Bo Cy" if before == "begin_changes" else "Di Eve", "u1")
    assert await do(guild.get, "u1") == Entry(*last)
    assert shown(await do(guild.complete, "")) == [last]
    assert await do(guild.count) == 1


async def interrupted(app: Penstock, verb: Any, round_trips: int, *args: Any) -> None:
    """Stop after so many round trips, as if the process died."""
    work = verb.__wrapped__(verb._owner, *args)
    try:
        effect = next(work)
        for _ in range(round_trips):
            if isinstance(effect, Receive):
                effect = work.send(effect.unanswered)
            call = effect.round_trip if isinstance(effect, Send) else effect
            effect = work.send(await app._driver.aio.run(call))  # after a `Send` the reply is there at once
    except StopIteration:
        pass


# --- rules that are fixed by the first name ---


async def test_stored_rules_are_adopted(app: Penstock, do: Do):
    for n, rules in enumerate(RULES):
        await do(app.directory(f"g{n}", **rules).add_many, ["Éric Lee", ("Bo", "u1"), "Cy", "Di"])
        guild = app.directory(f"g{n}")
        assert await do(guild.count) == 4
        assert len(await do(guild.complete, "eric")) == (rules.get("accents") is False)
        assert len(await do(guild.complete, "lee")) == bool(rules.get("words"))
        assert await do(app.directory(f"g{n}").get, "u1") == Entry("Bo", "u1")
        assert await do(app.directory(f"g{n}").rename, "Cy", "Cyd") is True
        assert await do(app.directory(f"g{n}").count, "cyd") == 1


@pytest.mark.parametrize(
    ("was", "said"),
    [
        ({}, {"accents": False}),
        ({"words": True}, {"words": False}),
        ({}, {"shards": 3}),
        ({"shards": 3}, {"shards": 2}),
    ],
)
async def test_rules_that_differ_from_the_stored_ones_are_refused(app: Penstock, do: Do, was: Any, said: Any):
    await do(app.directory("g", **was).add, "Ann")
    other: Directory = app.directory("g", **said)
    for verb in ((other.add, "Bo"), (other.complete, "zo"), (other.count,), (other.get, "x"), (other.remove, "x")):
        with pytest.raises(ConfigurationError, match=r"directory g was created with .*this program passes"):
            await do(*verb)
    assert shown(await do(app.directory("g").complete, "")) == [("Ann", "Ann")]
    await do(app.directory("g").clear)
    await do(app.directory("g", **said).add, "Bo")
    assert await do(app.directory("g").count) == 1


@pytest.mark.damages
async def test_a_newer_format_is_refused_by_name(app: Penstock, do: Do, raw: Any):
    await do(app.directory("g").add, "Ann")
    raw.hset(f"{{{app.settings.prefix}:directory:g}}:meta", "rules", "3 accents=1 words=0 shards=1")
    for verb in ((app.directory("g").add, "Bo"), (app.directory("g").complete, "a")):
        with pytest.raises(FormatTooNew, match=r"directory g is stored in format 3"):
            await do(*verb)


@pytest.mark.damages
async def test_an_older_format_is_refused_with_the_fix(app: Penstock, do: Do, raw: Any):
    await do(app.directory("g").add, "Ann")
    raw.hset(f"{{{app.settings.prefix}:directory:g}}:meta", "rules", "1 accents=1 words=0 shards=1")
    for verb in ((app.directory("g").add, "Bo"), (app.directory("g").complete, "a")):
        with pytest.raises(ServerError, match=r"stored in format 1 of an older Penstock, .* add them again"):
            await do(*verb)


@pytest.mark.damages
async def test_damaged_entries_are_shown_and_break_nothing(app: Penstock, do: Do, raw: Any):
    guild = app.directory("g")
    await do(guild.add, "Ann")
    raw.zadd(f"{{{app.settings.prefix}:directory:g}}:names", {b"a": 0, b"a\0\xff": 0, b"\xff\0\0\0": 0})
    assert [entry.name for entry in await do(guild.complete, "a")] == ["", "\ufffd", "Ann"]
    assert await do(guild.clear) == 1
    assert await do(guild.complete, "") == []


# --- bad input ---


async def test_bad_input_is_refused_and_nothing_is_written(app: Penstock, do: Do):
    guild = app.directory("g")
    for name in ("", " ", "a\0b", "a\tb", "x" * 10_240, "\ud800"):
        for verb in ((guild.add, name), (guild.add, "Ann", name), (guild.rename, "u", name)):
            with pytest.raises(BadName):
                await do(*verb)
        with pytest.raises(BadName):
            await do(guild.add_many, [*(f"Ann {n}" for n in range(2000)), name])
    for wrong in (("a", "b", "c"), 5, None, ("a",), ("a", 5), ("a", "b", 1, 5), ("a", "b", 1, "c", "d")):
        with pytest.raises(BadName):
            await do(guild.add_many, ["Ann", wrong])
    assert await do(guild.count) == 0
    for limit in (-1, 0, 1001):
        with pytest.raises(ValueError, match=re.escape(f"complete(limit={limit}): from 1 to 1000")):
            await do(guild.complete, "a", limit)
    await do(guild.add_many, ["Ann", "Bo"])
    (bo,) = await do(guild.complete, "b")
    for cursor in (bo, bo.cursor, "no cursor", "é", "", await do(guild.get, "Ann")):
        with pytest.raises(ValueError, match="cursor"):
            await do(guild.complete, "a", after=cursor)
    for prefix in ("a\0", "\n", "x" * 2000):
        with pytest.raises(BadName):
            await do(guild.complete, prefix)
    for shards in (0, 65):
        with pytest.raises(ValueError, match="shards"):
            app.directory("g", shards=shards)
    with pytest.raises(ConfigurationError, match="directory name 'a b'"):
        app.directory("a b")


@pytest.mark.damages
async def test_a_damaged_count_is_a_named_error(app: Penstock, do: Do):
    guild = app.directory("guild")
    await do(guild.add, "Ann")
    with raw_client(app) as client:
        meta = f"{{{app.settings.prefix}:directory:guild}}:meta"
        client.hset(meta, "names", b"\xff not ours")
    with pytest.raises(StateDamaged, match="directory 'guild' may be damaged"):
        await do(guild.count)
