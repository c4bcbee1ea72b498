"""What an entry has besides its name: a weight, a payload, and the part of the name that was matched."""

import asyncio
import pickle
import random
import re
from typing import Any

import pytest

from penstock import Entry, Penstock
from penstock.completion.fold import fold
from penstock.errors import BadName, PayloadTooLarge
from penstock.info import EntryPage
from tests.conftest import Do, commands

RULES: list[dict[str, Any]] = [{}, {"words": True}, {"shards": 3, "words": True}]


def names(entries: list[Entry]) -> list[str]:
    return [entry.name for entry in entries]


def marked(entry: Entry) -> str:
    return "".join(f"[{piece}]" if matched else piece for piece, matched in entry.pieces())


# --- weights ---


@pytest.mark.parametrize("rules", RULES, ids=str)
async def test_bump_adds_to_a_weight_and_every_entry_has_its_weight(app: Penstock, do: Do, rules: Any):
    guild = app.directory("g", **rules)
    await do(guild.add_many, ["Ann Lee", ("Anna", "u1", 2.5), ("Andy Bo", "u2")])
    assert await do(guild.bump, "Ann Lee") == 1
    assert await do(guild.bump, "Ann Lee", 2) == 3
    assert await do(guild.bump, "u1", by=0.25) == 2.75
    assert await do(guild.bump, "u2", by=-1) == 0
    assert await do(guild.bump, "nobody") is None
    assert await do(guild.bump, "Anna") is None  # its id is u1
    for by in ("name", "weight"):
        found = await do(guild.complete, "an", by=by)
        assert {entry.name: entry.weight for entry in found} == {"Ann Lee": 3.0, "Anna": 2.75, "Andy Bo": 0.0}
    assert names(await do(guild.complete, "an", by="weight")) == ["Ann Lee", "Anna", "Andy Bo"]
    assert await do(guild.get, "u1") == Entry("Anna", "u1", 2.75)
    assert await do(guild.bump, "Ann Lee", -10) == 0
    assert names(await do(guild.top, "an")) == ["Anna", "Andy Bo", "Ann Lee"]
    await do(guild.rename, "u1", "Zoe Anna")
    assert await do(guild.bump, "u1", 1e17) == 2.75 + 1e17
    assert await do(guild.bump, "u1", 1e18) == 1e18
    await do(guild.remove, "u1")
    await do(guild.add, "Anna", "u1")
    assert await do(guild.bump, "u1") == 1


@pytest.mark.parametrize("rules", RULES[:2], ids=str)
async def test_concurrent_bumps_all_count_in_one_round_trip_each(app: Penstock, do: Do, nodes: list[Any], rules: Any):
    guild = app.directory("g", **rules)
    await do(guild.add, "Ann Lee", "u1")
    await do(guild.bump, "u1")
    before = sum(map(commands, nodes))
    await asyncio.gather(*(guild.bump.aio("u1") for _ in range(50)))
    assert sum(map(commands, nodes)) - before == 50
    assert (await do(guild.get, "u1")).weight == 51


@pytest.mark.parametrize("rules", RULES, ids=str)
async def test_typos_are_found_by_weight_too(app: Penstock, do: Do, rules: Any):
    guild = app.directory("g", **rules)
    await do(guild.add_many, [("Michael", "u1", 1), ("Michaela", "u2", 7), ("Mihcael", "u3", 9), "Micah", "Nichael"])
    await do(guild.weigh, "Nichael", 20)
    assert names(await do(guild.complete, "michael", by="weight", typos=True)) == [
        "Michaela",
        "Michael",
        "Nichael",
        "Mihcael",
    ]
    assert names(await do(guild.complete, "michael", 3, by="weight", typos=True)) == ["Michaela", "Michael", "Nichael"]
    assert names(await do(guild.complete, "michael", typos=True)) == ["Michael", "Michaela", "Mihcael", "Nichael"]


async def test_the_heaviest_of_many_names_with_a_typo_are_found(app: Penstock, do: Do):
    guild = app.directory("g")
    people = [(f"john {n:04d}", f"u{n}", float(n * 7919 % 900 + 1)) for n in range(900)]
    await do(guild.add_many, people)
    heaviest = [name for name, *_ in sorted(people, key=lambda one: -one[2])]
    for typed in ("jhon", "jon ", "johhn", "xohn", "ohn", "joh n"):
        assert names(await do(guild.complete, typed, 20, by="weight", typos=True)) == heaviest[:20], typed


@pytest.mark.parametrize("typed", ["xichael", "ichael", "imchael", "mmichael"])
async def test_the_first_letter_may_be_the_slip(app: Penstock, do: Do, typed: str):
    for n, rules in enumerate(RULES):
        guild = app.directory(f"g{n}", **rules)
        await do(guild.add_many, ["Michael", "Bo", "Zed", "名前", "Éric"])
        assert names(await do(guild.complete, typed, typos=True)) == ["Michael"]


# --- payloads ---


@pytest.mark.parametrize("rules", RULES, ids=str)
async def test_a_payload_belongs_to_the_id_and_comes_with_each_entry(
    app: Penstock, do: Do, nodes: list[Any], rules: Any
):
    guild = app.directory("g", **rules)
    await do(guild.add, "Ann Lee", payload=b"\0\xff\1")
    await do(guild.add_many, [("Anna", "u1", None, "täxt"), ("Andy Bo", "u2"), ("Ann Lee", "u3", 3, b"x" * 1024)])
    for by in ("name", "weight"):
        found = await do(guild.complete, "an", by=by)
        assert {entry.id: entry.payload for entry in found} == {
            "Ann Lee": b"\0\xff\1",
            "u1": "täxt".encode(),
            "u2": None,
            "u3": b"x" * 1024,
        }
    await do(guild.rename, "u1", "Zoe Smith")
    await do(guild.rename, "Ann Lee", "Bo Li")
    await do(guild.weigh, "u1", 5)
    (zoe,) = await do(guild.complete, "zoe")
    assert (zoe.name, zoe.weight, zoe.payload) == ("Zoe Smith", 5.0, "täxt".encode())
    assert await do(guild.get, "Ann Lee") == Entry("Bo Li", "Ann Lee", 0.0, b"\0\xff\1")
    await do(guild.add, "Zoe Smith", "u1")  # keeps the payload
    assert (await do(guild.get, "u1")).payload == "täxt".encode()
    assert await do(guild.set_payload, "u1", b"new") is True
    assert await do(guild.set_payload, "nobody", b"new") is False
    assert (await do(guild.complete, "zo", typos=True))[0].payload == b"new"
    assert await do(guild.set_payload, "u1", "") is True
    assert (await do(guild.get, "u1")).payload is None
    await do(guild.remove, "u3")
    await do(guild.add, "Ann Lee", "u3")
    assert await do(guild.get, "u3") == Entry("Ann Lee", "u3")
    await do(guild.clear)
    assert [key for node in nodes for key in node.keys("*payloads")] == []


@pytest.mark.parametrize("rules", RULES, ids=str)
async def test_any_history_of_weights_and_payloads_equals_that_of_a_dictionary(
    app: Penstock, do: Do, face: str, rules: Any
):
    chance = random.Random(f"{face}{rules}")
    people = ["Ann", "Ann Lee", "Lee Ann", "Émile", "u1", "u2", "o'lee"]
    ids = ["u1", "u2", "Ann", "Émile"]
    guild, model = app.directory("g", **rules), dict[str, Entry]()
    for step in range(50):
        name, id = chance.choice(people), chance.choice(ids)
        had = model.get(id)
        match chance.randrange(6):
            case 0:
                await do(guild.remove, id)
                model.pop(id, None)
            case 1:
                wanted = None if had is None else max(0.0, had.weight + step - 20)
                assert await do(guild.bump, id, step - 20) == wanted
                if had:
                    model[id] = Entry(had.name, id, wanted or 0, had.payload)
            case 2:
                assert await do(guild.set_payload, id, f"p{step}") == (had is not None)
                if had:
                    model[id] = Entry(had.name, id, had.weight, f"p{step}".encode())
            case 3:
                await do(guild.add, name, id, weight=step, payload=b"")
                model[id] = Entry(name, id, step)
            case 4:
                await do(guild.add_many, [(name, id, None, f"p{step}")])
                model[id] = Entry(name, id, had.weight if had else 0, f"p{step}".encode())
            case _:
                await do(guild.rename, id, name)
                if had:
                    model[id] = Entry(name, id, had.weight, had.payload)
        assert await do(guild.get, id) == model.get(id)
        found = await do(guild.complete, "", 100)
        assert {entry.id: entry for entry in found} == model
        heaviest = await do(guild.top)
        assert [entry.weight for entry in heaviest] == sorted((one.weight for one in model.values()), reverse=True)


# --- the matched part ---


@pytest.mark.parametrize(
    ("rules", "name", "typed", "shown"),
    [
        ({}, "Émile Zola", "e", "[É]mile Zola"),
        ({}, "Émile Zola", "émile z", "[Émile Z]ola"),
        ({}, "E\u0301mile", "é", "[E\u0301]mile"),
        ({}, "Straße 7", "strass", "[Straß]e 7"),
        ({}, "Straße 7", "stras", "[Straß]e 7"),
        ({}, "한국", "하", "[한]국"),
        ({}, "Nguyệt", "nguyê", "[Nguyệ]t"),
        ({}, "Ma   Smith", "ma s", "[Ma   S]mith"),
        ({}, " O’Brien", "o'b", " [O’B]rien"),
        ({}, "ﷺ x", "صلى", "[ﷺ] x"),
        ({}, "İstanbul", "ist", "[İst]anbul"),
        ({}, "Ann", "", "Ann"),
        ({}, "a\u200bnn", "an", "[a\u200bn]n"),
        ({}, "\u200fa\u00adnn", "ann", "\u200f[a\u00adnn]"),
        ({}, "A\u2060 B\u3164c", "a bc", "[A\u2060 B\u3164c]"),
        ({}, "ｶﾞｽ", "ガ", "[ｶﾞ]ｽ"),
        ({"words": True}, "Jo\u2060hn Ma\U000e0061ry", "mar joh", "[Jo\u2060h]n [Ma\U000e0061r]y"),
        ({"words": True}, "Ma Smith", "smi", "Ma [Smi]th"),
        ({"words": True}, "John Johnson", "jo jo", "[Jo]hn [Jo]hnson"),
        ({"words": True}, "Conan O'Brien", "o'br con", "[Con]an [O'Br]ien"),
        ({"words": True, "accents": False}, "Łódź Éric", "eri lod", "[Łód]ź [Éri]c"),
        ({"equivalents": {"ü": "ue"}}, "Müller", "muel", "[Mül]ler"),
        ({"equivalents": {"ü": "ue"}, "accents": False}, "Müller", "mul", "[Mül]ler"),
        ({"equivalents": {"ü": "ue"}}, "Mueller", "mü", "[Mue]ller"),
    ],
)
async def test_the_matched_part_of_a_name_is_marked(
    app: Penstock, do: Do, rules: Any, name: str, typed: str, shown: str
):
    guild = app.directory("g", **rules)
    await do(guild.add_many, [name, "Zzz"])
    for by in ("name", "weight"):
        assert shown in [marked(entry) for entry in await do(guild.complete, typed, by=by)]


@pytest.mark.parametrize(
    ("typed", "shown"),
    [("micheal", "[Michael]a"), ("mihcae", "[Michae]la"), ("xicha", "[Micha]ela"), ("ichaela", "[Michaela]")],
)
async def test_a_name_with_a_typo_is_marked_as_far_as_it_matches(app: Penstock, do: Do, typed: str, shown: str):
    guild = app.directory("g")
    await do(guild.add, "Michaela")
    assert [marked(entry) for entry in await do(guild.complete, typed, typos=True)] == [shown]


async def test_the_parts_of_any_name_make_up_the_name(app: Penstock, do: Do, face: str):
    chance = random.Random(face)
    letters = "aßé名한ﷺ´' -İıŁe\u0301\u0323\u200dǖ\u200b\u00adｶﾞ"
    people = {f"x{''.join(chance.choices(letters, k=6))}" for _ in range(60)}
    guild = app.directory("g", words=True)
    await do(guild.add_many, people)
    for name in people:
        for typed in (name, name[:1]):
            found = await do(guild.complete, typed, 100)
            assert name in names(found)
            for entry in found:
                assert "".join(piece for piece, _ in entry.pieces()) == entry.name
                assert entry.matched, (typed, entry)
                start, end = entry.matched[0]
                assert fold(entry.name[:end]) or start


# --- pages ---


async def test_a_page_can_be_pickled(app: Penstock, do: Do):
    directory = app.directory("guild:9")
    await do(directory.add_many, [("Ann", "u1"), ("Anna", "u2"), ("Bo", "u3")])
    await do(directory.complete, "a")  # from now on, most searches are one call without a `Search`

    for page in (await do(directory.complete, "an", 2), await do(directory.complete, "an", typos=True)):
        copy = pickle.loads(pickle.dumps(page))

        assert copy == page
        assert copy.cursor == page.cursor
        assert [entry.matched for entry in copy] == [((0, 2),), ((0, 2),)]


async def test_a_page_knows_whether_more_follows(app: Penstock, do: Do):
    guild = app.directory("g")
    await do(guild.add_many, ["a1", "a2", "a3"])
    page = await do(guild.complete, "a", 2)
    assert isinstance(page, EntryPage)
    rest = await do(guild.complete, "a", 2, after=page.cursor)
    assert (names(rest), rest.cursor) == (["a3"], None)
    assert (await do(guild.complete, "a", 2, by="weight")).cursor is None


# --- bad input ---


async def test_bad_weights_and_payloads_are_refused_and_nothing_is_written(app: Penstock, do: Do):
    guild = app.directory("g")
    for verb in (
        lambda payload: do(guild.add, "Ann", payload=payload),
        lambda payload: do(guild.add_many, ["Bo", ("Ann", "u1", 1, payload)]),
        lambda payload: do(guild.set_payload, "Ann", payload),
    ):
        with pytest.raises(PayloadTooLarge, match=re.escape("payload of 1,025 bytes, the limit is 1,024")):
            await verb(b"x" * 1025)
        with pytest.raises(PayloadTooLarge):
            await verb("é" * 513)
        for wrong in ({"a": 1}, 5, "\ud800"):
            with pytest.raises(BadName):
                await verb(wrong)
    assert await do(guild.count) == 0
    await do(guild.add, "Ann")
    for by in (float("nan"), float("inf"), 1e19, "1", None):
        with pytest.raises(BadName, match="bump"):
            await do(guild.bump, "Ann", by)
    with pytest.raises(BadName, match="weight"):
        await do(guild.weigh, "Ann", 1e19)
    with pytest.raises(ValueError, match=re.escape("complete(by='size'): 'name' or 'weight'")):
        await do(guild.complete, "a", by="size")
    with pytest.raises(ValueError, match="only pages in the order of names"):
        await do(guild.complete, "a", by="weight", after="x")
    assert await do(guild.get, "Ann") == Entry("Ann", "Ann")
