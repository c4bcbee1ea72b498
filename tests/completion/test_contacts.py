"""The contacts of a user: the last used, or the most used, found by a typed prefix."""

import random
import re
from typing import Any

import pytest

from penstock import ConfigurationError, Penstock
from penstock.completion.fold import fold
from penstock.errors import BadName, FormatTooNew
from tests.conftest import Do, commands


async def test_the_last_used_contact_is_first_and_each_is_there_once(app: Penstock, do: Do):
    contacts = app.contacts("user:17")
    for name in ("Zoë", "Ann", "Bo", "Zoë"):
        await do(contacts.touch, name)
    assert await do(contacts.list) == ["Zoë", "Bo", "Ann"]


async def test_a_typed_prefix_finds_contacts_in_any_script(app: Penstock, do: Do):
    contacts = app.contacts("ülo@example.com")
    for name in ("Zoë", "zora", "ZOE", "한국", "Straße 7", "名前", "{odd} one", "Émile"):
        await do(contacts.touch, name)
    assert await do(contacts.complete, "zo") == ["ZOE", "zora", "Zoë"]
    assert await do(contacts.complete, "zo", 2) == ["ZOE", "zora"]
    assert await do(contacts.complete, "zoë") == ["Zoë"]
    assert await do(contacts.complete, "하") == ["한국"]
    assert await do(contacts.complete, "strasse") == ["Straße 7"]
    assert await do(contacts.complete, "{") == ["{odd} one"]
    assert await do(contacts.complete, "x") == []
    assert await do(contacts.complete, "", 3) == ["Émile", "{odd} one", "名前"]


async def test_accents_can_be_ignored_altogether(app: Penstock, do: Do):
    contacts = app.contacts("u", accents=False)
    for name in ("Éric", "Erica", "Łukasz"):
        await do(contacts.touch, name)
    assert await do(contacts.complete, "eri") == ["Erica", "Éric"]
    assert await do(contacts.complete, "éri") == ["Erica", "Éric"]
    assert await do(app.contacts("u").complete, "luk") == ["Łukasz"]


@pytest.mark.parametrize("by", ["recency", "frequency"])
async def test_no_more_contacts_than_the_limit_are_kept(app: Penstock, do: Do, by: Any):
    contacts = app.contacts("u", limit=3, by=by)
    for name in "abcde":
        await do(contacts.touch, name)
    assert await do(contacts.list) == ["e", "d", "c"]
    await do(app.contacts("u", limit=1).touch, "f")
    assert await do(contacts.list) == ["f"]


async def test_by_frequency_the_most_used_contacts_are_first(app: Penstock, do: Do):
    contacts = app.contacts("u", by="frequency", limit=3)
    for name in ("Ann", "Bo", "Ann", "Cy", "Bo", "Ann"):
        await do(contacts.touch, name)
    assert await do(contacts.list) == ["Ann", "Bo", "Cy"]
    await do(contacts.touch, "Di")  # a new contact replaces the least used one
    assert await do(contacts.list) == ["Ann", "Bo", "Di"]
    await do(contacts.touch, "Cy")
    await do(contacts.touch, "Cy")
    assert await do(contacts.list) == ["Ann", "Cy", "Bo"]


async def test_a_removed_contact_is_gone_and_with_the_last_one_all_keys(app: Penstock, do: Do, nodes: list[Any]):
    for by in ("recency", "frequency"):
        contacts = app.contacts(by, by=by)
        await do(contacts.touch, "Ann")
        await do(contacts.touch, "Émile")
        assert await do(contacts.remove, "Ann") is True
        assert await do(contacts.remove, "Ann") is False
        assert await do(contacts.list) == ["Émile"]
        assert await do(contacts.remove, "Émile") is True
        assert await do(contacts.list) == []
    assert [key for node in nodes for key in node.keys("*") if node.ttl(key) < 0] == []


async def test_ten_thousand_by_frequency_are_all_found(app: Penstock, do: Do):
    contacts = app.contacts("u", by="frequency", limit=10_000)
    touch = contacts.touch.__wrapped__
    names = [f"n{n:04d}" for n in range(2_300)]
    await app._driver.aio.run(touch(contacts, "zed"))
    for name in names:
        await app._driver.aio.run(touch(contacts, name))
    assert await do(contacts.complete, "zed") == ["zed"]
    assert await do(contacts.complete, "n22", 1000) == [f"n{n:04d}" for n in range(2_299, 2_199, -1)]
    assert await do(contacts.list) == [*reversed(names), "zed"]


async def test_any_history_equals_that_of_a_list(app: Penstock, do: Do, face: str):
    chance = random.Random(face)
    people = ["Ann", "ann", "Anna", "Émile", "Emil", "名前", "名", "Bo", "Zoë", "한국"]
    contacts, model = app.contacts("u", limit=6), list[str]()
    for _ in range(120):
        name = chance.choice(people)
        if chance.random() < 0.2:
            assert await do(contacts.remove, name) == (name in model)
            model = [other for other in model if other != name]
        else:
            await do(contacts.touch, name)
            model = [name, *(other for other in model if other != name)][:6]
        prefix = chance.choice(people)[: chance.randint(0, 2)]
        assert await do(contacts.complete, prefix) == [n for n in model if fold(n).startswith(fold(prefix))]
    assert await do(contacts.list) == model


async def test_a_write_and_a_read_are_one_round_trip_each(app: Penstock, do: Do, nodes: list[Any]):
    contacts = app.contacts("u", by="frequency")
    await do(contacts.touch, "Ann")
    await do(contacts.complete, "a")
    await do(contacts.remove, "Bo")
    before = sum(map(commands, nodes))
    await do(contacts.touch, "Ann")
    await do(contacts.complete, "a")
    await do(contacts.remove, "Bo")
    assert sum(map(commands, nodes)) - before == 3


async def test_rules_are_fixed_by_the_first_contact(app: Penstock, do: Do):
    await do(app.contacts("u", by="frequency").touch, "Ann")
    await do(app.contacts("u").touch, "Ann")
    with pytest.raises(
        ConfigurationError,
        match=r"created with by='frequency', and this program passes 'recency': leave out this setting, "
        r"or use another name, or remove everything from contacts u first",
    ):
        await do(app.contacts("u", by="recency").touch, "Ann")


@pytest.mark.damages
async def test_a_newer_format_is_refused_by_name(app: Penstock, do: Do, raw: Any):
    await do(app.contacts("u").touch, "Ann")
    raw.hset(f"{{{app.settings.prefix}:contacts:u}}:meta", "rules", "3 something=else")
    with pytest.raises(FormatTooNew, match=r"contacts u is stored in format 3, this Penstock reads 2"):
        await do(app.contacts("u").list)


async def test_bad_input_is_refused_before_anything_is_sent(app: Penstock, do: Do):
    contacts = app.contacts("u")
    for name in ("", "a\0b", "x" * 10_240, "\u200b"):
        with pytest.raises(BadName):
            await do(contacts.touch, name)
    for limit in (-1, 0, 1001):
        with pytest.raises(ValueError, match=re.escape(f"complete(limit={limit}): from 1 to 1000")):
            await do(contacts.complete, "a", limit)
    with pytest.raises(BadName):
        await do(contacts.complete, "a\0")
    assert await do(contacts.list) == []
    for kind in ({"limit": 0}, {"limit": 10_001}, {"by": "size"}):
        with pytest.raises(ValueError, match="contacts"):
            app.contacts("u", **kind)
    for name in ("", "a b", "a}b", "x" * 201):
        with pytest.raises(ConfigurationError, match="contacts name"):
            app.contacts(name)
