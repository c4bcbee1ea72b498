"""What people type: other apostrophes, hyphens and spaces, accents on the way to stacked ones, and several words."""

import itertools
import random
from functools import partial
from typing import Any

import pytest

from penstock import Entry, Penstock
from penstock.completion.fold import fold, split_marks, tails, typed_words
from tests.conftest import Do

RULES: list[dict[str, Any]] = [{}, {"words": True}, {"shards": 3, "words": True}, {"accents": False, "words": True}]


def names(entries: list[Entry]) -> list[str]:
    return [entry.name for entry in entries]


# --- signs ---


@pytest.mark.parametrize("rules", RULES, ids=str)
@pytest.mark.parametrize(
    ("name", "typed"),
    [
        ("O'Brien", ["o’b", "O'B", "oʼbrien", "o´brien", "o`br", "o′b"]),
        ("O’Brien", ["o'b", "o´b"]),
        ("Jean-Luc", ["jean‑l", "jean–luc", "jean-luc", "JEAN−L"]),
        ("Jean\u2011Luc", ["jean-l", "jean\u2010luc"]),
        ("Ma Smith", ["ma  s", "ma smith ", " ma", "ma\u00a0smi", "ma\u3000\u2003s", "ma "]),
        ("Ma  Smith ", ["ma s", "ma smith", "ma  smith "]),
        ("\u00a0Émile\u2009Zola", ["émile z", " É", "émile zola  "]),
    ],
)
async def test_signs_that_look_alike_find_each_other(app: Penstock, do: Do, rules: Any, name: str, typed: list[str]):
    guild, contacts = app.directory("g", **rules), app.contacts("u")
    await do(guild.add_many, [name, "Zed"])
    await do(contacts.touch, name)
    for text in typed:
        assert names(await do(guild.complete, text)) == [name], text
        assert names(await do(guild.top, text)) == [name], text
        assert await do(guild.count, text) == 1 or rules.get("words"), text
        assert await do(contacts.complete, text) == [name], text


async def test_a_trailing_space_is_ignored_and_exact_names_come_first(app: Penstock, do: Do):
    guild = app.directory("g")
    await do(guild.add_many, ["Anna", "Ann Lee", "Ann"])
    assert names(await do(guild.complete, "ann ")) == ["Ann", "Ann Lee", "Anna"]


# --- accents ---


@pytest.mark.parametrize("rules", RULES[:3], ids=str)
async def test_an_accent_finds_letters_that_have_more_marks(app: Penstock, do: Do, rules: Any):
    guild = app.directory("g", **rules)
    await do(guild.add_many, ["Nguyệt", "Nguyễn", "Nguyên", "Nguyen", "Nguyẹn", "Ngọc", "Nguyêt Mai"])
    await do(guild.add, "Nguyền Ân", weight=5)
    for typed, found in {
        "nguye": {"Nguyệt", "Nguyễn", "Nguyên", "Nguyen", "Nguyẹn", "Nguyêt Mai", "Nguyền Ân"},
        "nguyê": {"Nguyệt", "Nguyễn", "Nguyên", "Nguyêt Mai", "Nguyền Ân"},
        "nguyẹ": {"Nguyệt", "Nguyẹn"},
        "nguyệ": {"Nguyệt"},
        "nguyễ": {"Nguyễn"},
        "nguyẽ": {"Nguyễn"},
        "nguyêt": {"Nguyêt Mai"},
    }.items():
        assert set(names(await do(guild.complete, typed))) == found, typed
        assert set(names(await do(guild.top, typed))) == found, typed
        assert await do(guild.count, typed) == len(found), typed
    assert names(await do(guild.top, "nguyê", 1)) == ["Nguyền Ân"]


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("ợ", "Ợ"),
        ("ơ", "Ợ"),
        ("o\u0323", "ợ"),
        ("שּ", "שּׁ"),
        ("ب\u0651", "ب\u0651\u064e"),
        ("ὰ", "ᾂ"),
        ("ǖ", "Ǖ"),
        ("ū", "Ǖ"),
    ],
)
async def test_stacked_marks_of_other_scripts_are_found_by_one_of_them(app: Penstock, do: Do, typed: str, name: str):
    guild, contacts = app.directory("g"), app.contacts("u")
    await do(guild.add_many, [f"{name}x", "x", typed[0]])
    await do(contacts.touch, f"{name}x")
    assert f"{name}x" in names(await do(guild.complete, typed))
    assert await do(contacts.complete, typed) == [f"{name}x"]


async def test_pages_of_an_accent_follow_each_other(app: Penstock, do: Do):
    guild = app.directory("g")
    people = [f"{start}{n:02d}" for start in ("ê", "ệ", "ề", "ể", "e", "é", "Ê") for n in range(9)]
    await do(guild.add_many, people)
    wanted = sorted((p for p in people if p[0] in "êệềểÊ"), key=lambda p: (fold(p).encode(), p.encode()))
    assert names(await do(guild.complete, "ê", 1000)) == wanted
    pages, cursor = list[str](), None
    while page := await do(guild.complete, "ê", 4, after=cursor):
        pages += names(page)
        cursor = page[-1].cursor
    assert pages == wanted


async def test_many_different_marks_in_an_index_do_not_hide_a_name(app: Penstock, do: Do):
    """The search for stacked marks is bounded. Beyond the bound, what was typed still finds itself."""
    guild = app.directory("g")
    marks = [chr(n) for n in range(0x300, 0x340)]
    await do(guild.add_many, [f"e{a}{b}" for a, b in itertools.product(marks, marks)])
    found = names(await do(guild.complete, "ê", 1000))
    assert {f"e\u0302{mark}" for mark in marks if fold(f"e\u0302{mark}").startswith("e\u0302")} <= set(found)


# --- words ---


async def test_each_typed_word_needs_a_word_of_its_own(app: Penstock, do: Do):
    guild = app.directory("g", words=True)
    await do(guild.add_many, ["John Johnson", "Jo Smith", "John Jo", "Jo", "Joan", "Jo-Jo", "Smith Joan"])
    assert set(names(await do(guild.complete, "jo jo"))) == {"John Johnson", "John Jo", "Jo-Jo"}
    assert set(names(await do(guild.complete, "jo john"))) == {"John Johnson", "John Jo"}
    assert set(names(await do(guild.complete, "john john"))) == {"John Johnson"}
    assert names(await do(guild.complete, "jo jo jo")) == []
    assert set(names(await do(guild.top, "jo jo"))) == {"John Johnson", "John Jo", "Jo-Jo"}


@pytest.mark.parametrize("rules", RULES[1:], ids=str)
async def test_an_apostrophe_separates_no_typed_words(app: Penstock, do: Do, rules: Any):
    guild = app.directory("g", **rules)
    await do(guild.add_many, ["Conan O'Brien", "Brian Olsen", "Omar Brown", "Jean-Luc O’Brady", "Luc Jean"])
    assert names(await do(guild.complete, "o'br")) == ["Jean-Luc O’Brady", "Conan O'Brien"]
    assert names(await do(guild.complete, "o'br con")) == ["Conan O'Brien"]
    assert names(await do(guild.complete, "con o’b")) == ["Conan O'Brien"]
    assert names(await do(guild.complete, "brien")) == ["Conan O'Brien"]
    assert names(await do(guild.complete, "jean-l")) == ["Jean-Luc O’Brady"]
    assert set(names(await do(guild.complete, "luc jean"))) == {"Jean-Luc O’Brady", "Luc Jean"}


@pytest.mark.parametrize("rules", RULES[1:], ids=str)
async def test_any_typed_words_find_what_plain_python_finds(app: Penstock, do: Do, face: str, rules: Any):
    chance = random.Random(f"{face}{rules}")
    parts = ["a", "ab", "abc", "b", "ba", "ê", "ệ", "e", "a'b", "b-a", "Ab", "é"]
    people = {
        "".join(chance.choice([" ", "  ", "-", " (", "'"]).join(chance.choices(parts, k=chance.randint(1, 5))))
        for _ in range(80)
    }
    guild = app.directory("g", **rules)
    await do(guild.add_many, ((name, name, chance.randrange(4)) for name in people))
    weights = {name: (await do(guild.get, name)).weight for name in people}
    for _ in range(40):
        typed = " ".join(chance.choice(parts) for _ in range(chance.randint(2, 4)))
        wanted = {name for name in people if has_own_words(name, typed, accents=rules.get("accents", True))}
        found = await do(guild.complete, typed, 1000)
        assert sorted(names(found)) == sorted(wanted), typed
        heaviest = await do(guild.complete, typed, 1000, by="weight")
        assert sorted(names(heaviest)) == sorted(wanted), typed
        assert [entry.weight for entry in heaviest] == sorted((weights[name] for name in wanted), reverse=True)
        pages, cursor = list[str](), None
        while page := await do(guild.complete, typed, 3, after=cursor):
            pages += names(page)
            cursor = page.cursor
            if cursor is None:
                break
        assert pages == names(found)


def has_own_words(name: str, typed: str, *, accents: bool) -> bool:
    """Whether some assignment gives each typed word a tail of its own that begins with it."""
    spell = partial(fold, accents=accents)
    starts, texts = tails(spell(name)), typed_words(typed, spell)
    return any(
        all(begins(tail, text) for tail, text in zip(chosen, texts, strict=True))
        for chosen in itertools.permutations(starts, len(texts))
    )


def begins(tail: str, text: str) -> bool:
    base, marks = split_marks(text)
    if not tail.startswith(base):
        return False
    rest = iter(split_marks_at(tail, len(base)))
    return all(mark in rest for mark in marks)


def split_marks_at(tail: str, at: int) -> str:
    end = at
    while end < len(tail) and "\u0300" <= tail[end] < "\u0370":
        end += 1
    return tail[at:end]
