"""Names that are found by a second spelling: replaced letters, and the pinyin of Chinese names."""

import random
import sys
from typing import Any

import pytest

from penstock import ConfigurationError, Entry, Penstock
from penstock.completion.spelling import pinyin_texts
from tests.conftest import Do

pytest.importorskip("pypinyin")


def names(entries: list[Entry]) -> list[str]:
    return [entry.name for entry in entries]


def marked(entry: Entry) -> str:
    return "".join(f"[{piece}]" if matched else piece for piece, matched in entry.pieces())


# --- equivalents ---


@pytest.mark.parametrize("rules", [{}, {"words": True}, {"shards": 3}], ids=str)
async def test_both_spellings_of_a_letter_find_each_other(app: Penstock, do: Do, rules: Any):
    guild = app.directory("g", equivalents={"ü": "ue", "ё": "е"}, **rules)
    await do(guild.add_many, ["Müller", "Mueller", "Muller", "Семён", "Семен"])
    for typed in ("müller", "mueller", "MUELLER", "mue", "mü"):
        assert set(names(await do(guild.complete, typed))) == {"Müller", "Mueller"}, typed
    assert names(await do(guild.complete, "muller")) == ["Muller"]
    assert set(names(await do(guild.complete, "mu"))) == {"Müller", "Mueller", "Muller"}
    for typed in ("семен", "семён", "семё"):
        assert set(names(await do(guild.complete, typed))) == {"Семён", "Семен"}, typed


async def test_without_accents_a_name_is_found_by_all_spellings(app: Penstock, do: Do):
    guild = app.directory("g", equivalents={"ü": "ue", "ø": "oe"}, accents=False)
    await do(guild.add_many, [("Müller", "u1", 5), "Jørgen"])
    for typed in ("müller", "mueller", "muller", "m"):
        assert names(await do(guild.complete, typed)) == ["Müller"], typed
        assert names(await do(guild.top, typed)) == ["Müller"], typed
    for typed in ("jorg", "joerg", "jørg", "jo"):
        assert names(await do(guild.complete, typed)) == ["Jørgen"], typed
    assert await do(guild.count) == 2
    assert await do(guild.rename, "u1", "Bo") is True
    assert names(await do(guild.complete, "m")) == []
    assert await do(guild.clear) == 2


async def test_a_table_of_equivalents_is_stored_with_the_names(app: Penstock, do: Do):
    await do(app.directory("g", equivalents={"ü": "ue"}).add, "Müller")
    assert names(await do(app.directory("g").complete, "mue")) == ["Müller"]
    assert names(await do(app.directory("g", equivalents={"Ü": "UE"}).complete, "mue")) == ["Müller"]
    for other in ({}, {"ü": "u"}):
        with pytest.raises(ConfigurationError, match=r"directory g was created with equivalents='ü:ue'"):
            await do(app.directory("g", equivalents=other).complete, "mue")


# --- pinyin ---


@pytest.mark.parametrize("rules", [{}, {"words": True}, {"shards": 3, "words": True}, {"accents": False}], ids=str)
async def test_chinese_names_are_found_by_pinyin_and_initials(app: Penstock, do: Do, rules: Any):
    guild = app.directory("g", pinyin=True, **rules)
    await do(guild.add_many, ["张伟", ("張偉", "u1", 3), "吕布", "曾国藩", "Zhang Wei", "王 Bob", "Zoë"])
    for typed in ("zhangw", "zhangwei", "zhang wei", "ZhangW", "zhang w"):
        assert {"张伟", "張偉", "Zhang Wei"} >= set(names(await do(guild.complete, typed))) >= {"张伟", "張偉"}, typed
    assert set(names(await do(guild.complete, "zw"))) == {"张伟", "張偉"}
    assert names(await do(guild.complete, "张")) == ["张伟"]
    for typed in ("lvbu", "lubu", "lb", "lü", "吕"):
        assert names(await do(guild.complete, typed)) == ["吕布"], typed
    for typed in ("zeng", "ceng", "zgf", "cgf"):
        assert names(await do(guild.complete, typed)) == ["曾国藩"], typed
    for typed in ("wang b", "w b", "王 b"):
        assert "王 Bob" in names(await do(guild.complete, typed)), typed
    found = await do(guild.complete, "z", 100)
    assert len(names(found)) == len(set(names(found))) == 5
    assert await do(guild.count) == 7
    assert names(await do(guild.top, "zh", 1)) == ["張偉"]
    assert (await do(guild.get, "u1")).weight == 3
    await do(guild.rename, "u1", "Bo")
    assert names(await do(guild.complete, "zw")) == ["张伟"]
    assert await do(guild.clear) == 7


async def test_the_characters_behind_matched_pinyin_are_marked(app: Penstock, do: Do):
    guild = app.directory("g", pinyin=True)
    await do(guild.add, "张伟 Bob")
    for typed, shown in {"zhangw": "[张伟] Bob", "zw": "[张伟] Bob", "zhang": "[张]伟 Bob", "张": "[张]伟 Bob"}.items():
        assert [marked(entry) for entry in await do(guild.complete, typed)] == [shown], typed


async def test_a_directory_of_pinyin_equals_plain_python(app: Penstock, do: Do, face: str):
    chance = random.Random(face)
    guild, model = app.directory("g", pinyin=True, words=True), dict[str, str]()
    characters = "张伟王芳李娜吕曾单重"
    for n in range(40):
        name = "".join(chance.choices(characters, k=chance.randint(1, 3)))
        id = f"u{chance.randrange(15)}"
        await do(guild.add, name, id, weight=n % 3)
        model[id] = name
        typed = chance.choice(["z", "w", "zh", "li", "l", "zw", name, "zhangw", "na", "c"])
        wanted = {id for id, name in model.items() if finds(typed, name)}
        for by in ("name", "weight"):
            found = await do(guild.complete, typed, 100, by=by)
            assert sorted(entry.id for entry in found) == sorted(wanted), (typed, by)
            assert all(entry.matched for entry in found)


def finds(typed: str, name: str) -> bool:
    texts = [name, *pinyin_texts(name)]
    spaced = [text.split() for text in texts if " " in text]
    tails = [" ".join(some[n:]) for some in spaced for n in range(len(some))]
    return any(tail.strip().startswith(typed) for tail in [*texts, *tails])


def test_without_the_extra_the_error_names_the_fix(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pypinyin", None)
    with Penstock("redis://127.0.0.1:1") as app, pytest.raises(ConfigurationError, match=r"penstock\[pinyin\]"):
        app.directory("g", pinyin=True)


# --- contacts ---


async def test_contacts_are_found_by_both_spellings_of_a_letter(app: Penstock, do: Do):
    contacts = app.contacts("u", equivalents={"ü": "ue", "ё": "е"})
    for name in ("Muller", "Семён", "Mueller", "Müller"):
        await do(contacts.touch, name)
    for typed in ("müller", "mueller", "MUELLER", "mü"):
        assert await do(contacts.complete, typed) == ["Müller", "Mueller"], typed
    assert await do(contacts.complete, "muller") == ["Muller"]
    assert await do(app.contacts("u").complete, "семен") == ["Семён"]
    assert await do(app.contacts("u").remove, "Müller")
    with pytest.raises(ConfigurationError, match="equivalents="):
        await do(app.contacts("u", equivalents={}).touch, "Ann")


@pytest.mark.parametrize("by", ["recency", "frequency"])
async def test_contacts_are_found_by_pinyin(app: Penstock, do: Do, by: Any):
    contacts = app.contacts("u", pinyin=True, by=by)
    for name in ("张伟", "Zoë", "李雷", "张伟"):
        await do(contacts.touch, name)
    for typed in ("zhangw", "zhang w", "zw", "张"):
        assert await do(contacts.complete, typed) == ["张伟"], typed
    assert await do(contacts.complete, "z") == (["张伟", "Zoë"])
    assert await do(contacts.complete, "weiz") == []
    assert len(await do(contacts.list)) == 3
    assert await do(contacts.remove, "张伟")
    assert await do(contacts.complete, "zw") == []


async def test_contacts_without_accents_are_found_by_all_spellings(app: Penstock, do: Do):
    contacts = app.contacts("u", accents=False, equivalents={"ü": "ue"})
    long = "ü" * 300
    for name in ("Müller", long):
        await do(contacts.touch, name)
    for typed in ("muller", "mueller", "müll"):
        assert await do(contacts.complete, typed) == ["Müller"], typed
    for typed in ("u" * 300, "ue" * 300):
        assert await do(contacts.complete, typed) == [long]
    assert await do(contacts.complete, "u" * 301) == []


async def test_contacts_that_an_earlier_release_stored_are_still_read(app: Penstock, do: Do, raw: Any):
    """It did not know the settings for further spellings, and stored no text for them; its fold was the first."""
    contacts = app.contacts("u", by="frequency")
    await do(contacts.touch, "Zoë")
    assert raw.hget(contacts._keys.declared[1], "rules") == b"2 by=frequency accents=1 fold=2"
    raw.hset(contacts._keys.declared[1], "rules", "2 by=frequency accents=1")
    old = app.contacts("u")
    assert await do(old.complete, "zo") == ["Zoë"]
    await do(old.touch, "Jean-Luc")
    assert await do(old.complete, "jean-l") == ["Jean-Luc"]
    assert await do(old.complete, "jean l") == []
