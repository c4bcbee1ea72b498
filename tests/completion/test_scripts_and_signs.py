"""Other scripts and other signs: Korean letters, kana, dots and quotes, and the options that ignore some."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import ConfigurationError, Entry, Penstock
from penstock.completion.fold import fold
from penstock.errors import FormatTooNew
from tests.conftest import Do

RULES: list[dict[str, Any]] = [{}, {"words": True, "shards": 3}]


def names(entries: list[Entry]) -> list[str]:
    return [entry.name for entry in entries]


@pytest.mark.parametrize(
    ("name", "typed"),
    [
        ("하나", "ㅎ 하 한 하나"),
        ("달걀", "ㄷ 다 달 닭 달갸 달걀"),
        ("아이유", "ㅇ 아 앙 아이 아잉 아이유"),
        ("과일", "ㄱ 고 과 광 과이 과일"),
        ("의사", "ㅇ 으 의 읫 의사"),
        ("왜관", "오 왜 왝 왜고 왜과 왜관"),
        ("닭", "다 달 닭"),
        ("값싸", "가 갑 값 값ㅆ 값싸"),
        ("밖", "바 밖"),
        ("까치", "ㄲ 까 깣 까치"),
        ("김민수", "ㄱ 기 김 김ㅁ 김미 김민 김민ㅅ 김민수"),
    ],
)
def test_a_korean_name_is_found_at_every_key(name: str, typed: str):
    for text in typed.split(" "):
        assert fold(name).startswith(fold(text)), text
        assert fold(name).startswith(fold(text, accents=False)), text


def test_korean_syllables_that_differ_stay_different():
    folds = {fold(chr(code)) for code in range(0xAC00, 0xD7A4)}
    assert len(folds) == 0xD7A4 - 0xAC00
    assert fold("가나").startswith(fold("간"))
    assert not fold("가나").startswith(fold("갇"))
    assert not fold("까").startswith(fold("가"))


@pytest.mark.parametrize("rules", RULES, ids=str)
@pytest.mark.parametrize(
    ("name", "typed"),
    [
        ("하나", ["한", "하ㄴ"]),
        ("Jean Luc", ["jean-l", "jean\u2011luc", "jean·l"]),
        ("Jean-Luc", ["jean l", "jean-l", "jean–"]),
        ("J. R. R. Tolkien", ["j.r.r.", "j.r.r. to", "J. R", "j r r t"]),
        ("J.R.R. Tolkien", ["j. r. r.", "j.r.r.t"]),
        ("アンナ", ["あん", "ｱﾝ", "アン"]),
        ("あんな", ["アン", "ｱﾝﾅ"]),
        ("ガリレオ", ["が", "ｶﾞﾘ", "ガリ"]),
        ("محـمد", ["محمد", "محـ"]),
        ("محمد", ["محـمد"]),
        ("约翰·史密斯", ["约翰・史", "约翰•史", "约翰 史", "约翰‧史"]),
        ("צה״ל", ['צה"', "צה״ל", "צה”"]),
        ("“Rock” J", ['"r', "„ro", "«rock»"]),
    ],
)
async def test_signs_and_scripts_find_each_other(app: Penstock, do: Do, rules: Any, name: str, typed: list[str]):
    guild, contacts = app.directory("g", **rules), app.contacts("u")
    await do(guild.add_many, [name, "Zed"])
    await do(contacts.touch, name)
    for text in typed:
        found = await do(guild.complete, text)
        assert names(found) == [name], text
        assert found[0].matched, text
        assert names(await do(guild.top, text)) == [name], text
        assert await do(contacts.complete, text) == [name], text
    assert await do(guild.remove, name) == 1
    assert await do(guild.count) == 1


async def test_signs_around_a_typed_word_do_not_count(app: Penstock, do: Do):
    guild = app.directory("g", words=True)
    await do(guild.add_many, ["John Smith", "Mama (Ann)", "Dwayne “The Rock” J", "Smith, John"])
    for typed, found in {
        "smith,": {"John Smith", "Smith, John"},
        "(mama": {"Mama (Ann)"},
        "(ann)": {"Mama (Ann)"},
        '"rock': {"Dwayne “The Rock” J"},
        "“rock”": {"Dwayne “The Rock” J"},
        "smith, jo": {"John Smith", "Smith, John"},
        "'smi": {"John Smith", "Smith, John"},
    }.items():
        page = await do(guild.complete, typed)
        assert set(names(page)) == found, typed
        assert all(entry.matched for entry in page), typed
        assert await do(guild.count, typed) == len(found) or " " in typed, typed
        assert set(names(await do(guild.top, typed))) == found, typed


@pytest.mark.parametrize("rules", RULES, ids=str)
async def test_apostrophes_can_be_ignored(app: Penstock, do: Do, rules: Any):
    guild = app.directory("g", apostrophes=False, **rules)
    await do(guild.add_many, ["O'Brien", "D’Arc", "O", "'"])
    for typed, name in {"obri": "O'Brien", "o’brien": "O'Brien", "darc": "D’Arc", "d'a": "D’Arc"}.items():
        found = await do(guild.complete, typed)
        assert names(found) == [name]
        assert found[0].matched == ((0, len(typed) + ("'" not in typed and "’" not in typed)),)
    assert names(await do(guild.complete, "'")) == ["'"]
    with pytest.raises(ConfigurationError, match="apostrophes=False"):
        await do(app.directory("g", apostrophes=True).count)


@pytest.mark.parametrize("rules", RULES, ids=str)
async def test_first_consonants_find_a_korean_name(app: Penstock, do: Do, rules: Any):
    guild = app.directory("g", initials=True, **rules)
    await do(guild.add_many, ["정보관리", "정비", "Ann 정", "장발장"])
    assert set(names(await do(guild.complete, "ㅈㅂ"))) == {"정보관리", "정비", "장발장"}
    assert names(await do(guild.complete, "ㅈㅂㄱㄹ")) == ["정보관리"]
    assert set(names(await do(guild.complete, "정ㅂ"))) == {"정보관리", "정비"}
    assert names(await do(guild.complete, "ann ㅈ")) == ["Ann 정"]
    assert set(names(await do(guild.complete, "ㅈ"))) >= {"정보관리", "정비", "장발장"}
    assert await do(guild.remove, "정보관리") == 1
    assert await do(guild.complete, "ㅈㅂㄱ") == []


async def test_a_directory_keeps_the_fold_with_which_it_was_made(app: Penstock, do: Do, raw: Any):
    meta = f"{{{app.settings.prefix}:directory:g}}:meta"
    await do(app.directory("g").add, "Ann")
    raw.hset(meta, "rules", "2 accents=1 words=0 equivalents= pinyin=0 shards=1")  # as an earlier release stored them
    old = app.directory("g")
    await do(old.add_many, ["Jean-Luc", "하나", "アンナ"])
    assert names(await do(old.complete, "jean-")) == ["Jean-Luc"]
    assert names(await do(old.complete, "アン")) == ["アンナ"]
    assert names(await do(old.complete, "하")) == ["하나"]
    assert await do(old.complete, "jean l") == await do(old.complete, "あん") == await do(old.complete, "한") == []
    assert await do(old.clear) == 4
    new = app.directory("g")
    await do(new.add, "Jean-Luc")
    assert names(await do(new.complete, "jean l")) == ["Jean-Luc"]
    raw.hset(meta, "rules", "2 accents=1 words=0 equivalents= pinyin=0 fold=3 shards=1")
    with pytest.raises(FormatTooNew, match="fold 3"):
        await do(app.directory("g").count)
    raw.hset(meta, "rules", "2 accents=1 words=0 equivalents= pinyin=0 fold=2 shards=1")
