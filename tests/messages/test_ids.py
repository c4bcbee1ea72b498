"""The ids that senders give: each belongs to its sender and is kept for ten minutes."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import BadCall, Chat, ConfigurationError, Keep, Mailbox, Penstock
from penstock.errors import TooManyIds
from penstock.messages.message import number_of
from tests.conftest import Do, Time


@pytest.fixture
def place() -> str:
    return "valkey"


@pytest.fixture
def box(app: Penstock) -> Mailbox:
    return app.mailbox("user:17")


async def test_an_id_belongs_to_its_sender(app: Penstock, box: Mailbox, do: Do):
    pairs = [("ada", "x"), ("bo", "x"), ("", "x"), ("ada", "y"), ("adax", ""), ("a", "dax"), ("1:a", "x"), ("", "1:ax")]
    sent = [await do(box.post, [sender, id], sender=sender, id=id or None) for sender, id in pairs]
    assert len({*sent}) == len(pairs)
    again = [await do(box.post, "no", sender=sender, id=id) for sender, id in pairs if id]
    assert again == [one for one, (_, id) in zip(sent, pairs, strict=True) if id]
    assert [message.body for message in await do(box.pull)] == [list(pair) for pair in pairs]
    chat = await do(app.chats.create, ["ada", "bo"])
    sent = [await do(chat.send, member, member, id="1") for member in ("ada", "bo", "ada")]
    assert sent[0] == sent[2] != sent[1]


async def test_an_id_is_kept_for_ten_minutes_however_many_messages_follow(box: Mailbox, do: Do, clock: Time, raw: Any):
    first = await do(box.post, "a", id="x")
    clock.advance(300)
    await do(box.post_many, range(3000), ids=map(str, range(3000)))
    info = await do(box.info)
    assert (info.ids, round(clock.now - info.ids_since)) == (3001, 300)
    clock.advance(299)
    assert await do(box.post, "a", id="x") == first
    clock.advance(2)
    second = await do(box.post, "a", id="x")
    assert number_of(second) > number_of(first)
    info = await do(box.info)
    assert (info.ids, round(clock.now - info.ids_since)) == (3001, 301)
    clock.advance(601)
    await do(box.post, "b", id="y")
    for n in range(40):
        await do(box.post, "b", id=f"more {n}")
    assert (await do(box.info)).ids < 3001
    keys = [key for key in raw.scan_iter(match="*:sent*") if not 0 < raw.pttl(key) <= 660_000]
    assert keys == []


async def test_a_post_that_would_push_out_a_younger_id_is_refused(box: Mailbox, do: Do, clock: Time):
    ids = [str(n) for n in range(10_000)]
    sent = await do(box.post_many, ids, ids=ids, sender="ada")
    clock.advance(100)
    with pytest.raises(TooManyIds, match="10,000 message ids of 'ada'"):
        await do(box.post, "one more", id="one more", sender="ada")
    with pytest.raises(TooManyIds, match="Nothing was sent"):
        await do(box.post, "one more", id="one more", sender="ada", wait=5)
    assert await do(box.post, "x", id="0", sender="ada") == sent[0]
    assert number_of(await do(box.post, "without an id", sender="ada")) == 10_001
    assert number_of(await do(box.post, "another sender", sender="bo", id="0")) == 10_002
    clock.advance(501)
    ten_minutes_later = await do(box.post_many, ids, ids=ids, sender="ada")
    assert number_of(ten_minutes_later[0]) == 10_003


async def test_a_log_keeps_a_hundred_thousand_ids(box: Mailbox, do: Do, clock: Time):
    for sender in range(10):
        await do(box.post_many, [0] * 10_000, ids=map(str, range(10_000)), sender=str(sender))
    with pytest.raises(TooManyIds, match="100,000 in all"):
        await do(box.post, 1, id="x", sender="another")
    clock.advance(601)
    await do(box.post_many, [0] * 500, ids=map(str, range(500)), sender="9")  # its ids are the last in line
    assert (await do(box.info)).last == 100_500


@pytest.mark.parametrize("id", ["", "x" * 1025, "\ud800"])
async def test_a_bad_id_is_refused_before_anything_is_sent(box: Mailbox, do: Do, id: str):
    with pytest.raises(ConfigurationError, match="message id"):
        await do(box.post, "a", id=id)
    with pytest.raises(ConfigurationError, match="message id"):
        await do(box.post_many, "ab", ids=["x", id])
    with pytest.raises(BadCall, match="1 ids for 2 messages"):
        await do(box.post_many, "ab", ids=["x"])
    assert await do(box.pull) == []


async def test_a_refused_post_keeps_no_id(box: Mailbox, do: Do):
    await do(box.keep, Keep(messages=1, full="refuse"))
    await do(box.post, "a")
    with pytest.raises(Exception, match="nothing was sent"):
        await do(box.post, "b", id="x")
    await do(box.ack, (await do(box.pull))[-1])
    assert number_of(await do(box.post, "b", id="x")) == 2


async def test_ids_are_forgotten_with_their_chat(app: Penstock, do: Do):
    chat: Chat = await do(app.chats.create, ["ada"], id="ops")
    await do(chat.send, "ada", "a", id="x")
    await do(chat.delete)
    await do(app.chats.create, ["ada"], id="ops")
    assert (await do(chat.info)).ids == 0
    assert number_of(await do(chat.send, "ada", "b", id="x")) == 2
