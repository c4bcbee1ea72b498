"""Names by weight, and names found in spite of a typo, compared with plain Python."""

import math
import random
import re
from typing import Any

import pytest

from penstock import Directory, Entry, Penstock
from penstock.completion.fold import fold, tails
from tests.conftest import Do

RULES: list[dict[str, Any]] = [{}, {"words": True}, {"shards": 3, "words": True, "accents": False}]
PEOPLE = ["Ann", "Anna", "Bo Ann", "Émile", "emil", "Zoë An", "名前", "한국", "Ma Smith", "Mary", "m"]


def names(entries: list[Entry]) -> list[str]:
    return [entry.name for entry in entries]


async def test_the_heaviest_names_come_first_then_the_others_in_order(app: Penstock, do: Do):
    guild = app.directory("g")
    await do(guild.add, "Maud", weight=1)
    await do(guild.add_many, ["Mary", ("Ma", "u1", 2.5), ("Mae", "u2", 2.5), "Max", ("Bo", "u3", 99)])
    assert names(await do(guild.top, "ma")) == ["Ma", "Mae", "Maud", "Mary", "Max"]
    assert names(await do(guild.top, "ma", 2)) == ["Ma", "Mae"]
    assert names(await do(guild.top, limit=1)) == ["Bo"]
    assert await do(guild.weigh, "Max", 3) is True
    assert await do(guild.weigh, "Mae", 3) is False  # Mae is a name; its id is u2
    assert await do(guild.weigh, "u1", 0) is True
    assert names(await do(guild.top, "ma")) == ["Max", "Mae", "Maud", "Ma", "Mary"]
    assert names(await do(guild.complete, "ma")) == ["Ma", "Mae", "Mary", "Maud", "Max"]
    await do(guild.remove, "Max")
    assert names(await do(guild.top, "ma", 1)) == ["Mae"]


@pytest.mark.parametrize("rules", RULES, ids=str)
async def test_a_weight_belongs_to_the_id_whatever_its_name(app: Penstock, do: Do, rules: Any):
    guild = app.directory("g", **rules)
    await do(guild.add, "Ann", weight=7)
    await do(guild.add_many, ["Zed", ("Bo", "u1", 3)])
    await do(guild.rename, "Ann", "Zoe Lee")
    await do(guild.add, "Yan", "u1")
    assert names(await do(guild.top)) == ["Zoe Lee", "Yan", "Zed"]
    await do(guild.add, "Ann")
    assert names(await do(guild.top)) == ["Ann", "Yan", "Zed"]
    assert names(await do(guild.top, "z")) == ["Zed"]
    await do(guild.clear)
    await do(guild.add_many, ["Ann", "Bo"])
    assert names(await do(guild.top)) == ["Ann", "Bo"]


@pytest.mark.parametrize("rules", RULES, ids=str)
async def test_any_history_of_weights_equals_sorting(app: Penstock, do: Do, face: str, rules: Any):
    chance = random.Random(f"{face}{rules}")
    guild, model = app.directory("g", **rules), dict[str, tuple[str, float]]()
    for _ in range(50):
        name, id = chance.choice(PEOPLE), f"u{chance.randrange(12)}"
        match chance.randrange(4):
            case 0:
                await do(guild.remove, id)
                model.pop(id, None)
            case 1:
                weight = float(chance.randrange(5))
                assert await do(guild.weigh, id, weight) == (id in model)
                if id in model:
                    model[id] = model[id][0], weight
            case 2:
                await do(guild.add, name, id, weight=9)
                model[id] = name, 9
            case _:
                await do(guild.add, name, id)
                model[id] = name, model.get(id, ("", 0))[1]
        typed = chance.choice(["", "a", "an", "m", "e", "名"])
        wanted = []
        for one, (name, weight) in model.items():
            folded = fold(name, accents=rules.get("accents", True))
            starts = tails(folded) if rules.get("words") and typed else [folded]
            if found := [tail for tail in starts if tail.startswith(typed)]:
                wanted.append((-weight, min(found), name, one))
        found = await do(guild.top, typed, 6)
        assert [(entry.name, entry.id) for entry in found] == [pair[2:] for pair in sorted(wanted)[:6]]


async def test_a_prefix_has_its_own_order_only_while_many_names_share_it(app: Penstock, do: Do, nodes: list[Any]):
    chance = random.Random(5)
    weights = {f"anna {n:04d}": float(chance.randrange(1, 300)) for n in range(1200)}
    weights |= {f"bo {n:04d}": float(n + 1) for n in range(40)}
    guild = app.directory("g")
    for some in (list(weights)[::2], list(weights)[1::2]):
        await do(guild.add_many, [(name, f"id {name}", weights[name]) for name in some])
    lists = {key.rpartition(b":top:")[2].decode() for node in nodes for key in node.keys("*top:*")}
    assert {"", "a", "an", "ann", "anna"} <= lists <= {"", *("anna 0123456789"[:n] for n in range(9)), "anna 1"}
    for typed in ("", "a", "anna 0", "anna 07", "b", "bo 00"):
        wanted = sorted((-w, name) for name, w in weights.items() if name.startswith(typed))
        assert names(await do(guild.top, typed, 50)) == [name for _, name in wanted[:50]]
    gone = [name for name in weights if name.startswith("anna")][100:]
    assert await do(guild.remove, *(f"id {name}" for name in gone)) == len(gone)
    assert sum(len(node.keys("*top:*")) for node in nodes) == 1
    kept = sorted((-w, name) for name, w in weights.items() if name not in gone)
    assert names(await do(guild.top, "", 200)) == [name for _, name in kept]


# --- typos ---


@pytest.mark.parametrize(
    "typed", ["micheal", "michel", "michaell", "mixhael", "mihcael", "michae", "mchael", "michaelx"]
)
async def test_a_name_is_found_in_spite_of_one_typo(app: Penstock, do: Do, typed: str):
    guild = app.directory("g")
    await do(guild.add_many, ["Michael", "Mitch", "Mick", "Nichael", "Bo"])
    found = names(await do(guild.complete, typed, typos=True))
    assert found == ["Michael", "Nichael"] if typed == "michae" else found == ["Michael"]
    assert names(await do(guild.complete, typed)) == ["Michael"] * (typed == "michae")


@pytest.mark.parametrize("rules", RULES, ids=str)
async def test_names_with_a_typo_are_those_that_plain_python_finds(app: Penstock, do: Do, face: str, rules: Any):
    chance = random.Random(f"{face}{rules}")
    alphabet = "abcé한"
    people = {"".join(chance.choices(alphabet, k=chance.randint(1, 6))) for _ in range(60)}
    guild = app.directory("g", **rules)
    await do(guild.add_many, people)
    for _ in range(25):
        typed = "".join(chance.choices(alphabet, k=chance.randint(2, 5)))
        folded = {name: fold(name, accents=rules.get("accents", True)) for name in people}
        start = fold(typed, accents=rules.get("accents", True))
        exact = {name for name in people if folded[name].startswith(start)}
        near = {name for name in people - exact if len(start) > 2 and one_typo(start, folded[name])}
        wanted = [name for some in (exact, near) for _, name in sorted((folded[name], name) for name in some)]
        assert names(await do(guild.complete, typed, 90, typos=True)) == wanted
        assert names(await do(guild.complete, typed, 3, typos=True)) == wanted[:3]


def one_typo(typed: str, folded: str) -> bool:
    """Whether a prefix of `folded` is one edit away."""
    letters = set(folded)
    edits = {typed[:i] + typed[i + 1 :] for i in range(len(typed))}
    edits |= {typed[:i] + typed[i + 1] + typed[i] + typed[i + 2 :] for i in range(len(typed) - 1)}
    edits |= {typed[:i] + x + typed[i + 1 :] for i in range(len(typed)) for x in letters}
    edits |= {typed[:i] + x + typed[i:] for i in range(len(typed)) for x in letters}
    return any(folded.startswith(edit) for edit in edits)


async def test_typos_cost_a_bounded_search_in_a_large_alphabet(app: Penstock, do: Do):
    guild = app.directory("g")
    await do(guild.add_many, [f"名{chr(code)}x{n}" for code in range(0x4E00, 0x5800) for n in range(2)])
    assert names(await do(guild.complete, "名乂y", 100, typos=True)) == ["名乂x0", "名乂x1"]


async def test_bad_input_is_refused(app: Penstock, do: Do):
    guild: Directory = app.directory("g")
    for weight in (-1, math.nan, math.inf):
        with pytest.raises(ValueError, match=re.escape("a number from 0 up")):
            await do(guild.add, "Ann", weight=weight)
        with pytest.raises(ValueError, match=re.escape("a number from 0 up")):
            await do(guild.weigh, "Ann", weight)
    assert await do(guild.count) == 0
    await do(guild.add_many, ["Ann", "Anna"])
    with pytest.raises(ValueError, match="first page only"):
        await do(guild.complete, "ann", 1, after=(await do(guild.complete, "ann"))[0], typos=True)
    with pytest.raises(ValueError, match=re.escape("top(limit=0): from 1 to 1000")):
        await do(guild.top, "a", 0)
