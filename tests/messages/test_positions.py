"""Where a reader reads: after a position that its caller names, and from a message that it marks as unread."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock import Chat, Penstock
from penstock.errors import BadCall, MessageError, NewBeginning, NoSpace
from penstock.info import Gap
from penstock.messages.constants import MOST_EVENTS
from penstock.messages.message import History, Keep
from tests.conftest import Do


async def chat_of(app: Penstock, do: Do, **more: Any) -> Chat:
    return await do(app.chats.create, ["ada", "bo"], **more)


def numbers(mail: Any) -> list[int]:
    return [message.number for message in mail]


@pytest.mark.parametrize("wait", [0, 5])
async def test_a_position_below_the_own_cursor_is_where_reading_begins(app: Penstock, do: Do, wait: float):
    """Two tabs of one user: one has acknowledged more than the other has seen."""
    chat = await chat_of(app, do)
    ids = await do(chat.send_many, "ada", range(1, 11))
    await do(chat.reader("bo").ack, ids[7])
    mail = await do(chat.reader("bo").pull, after=ids[1], wait=wait)
    assert (numbers(mail), mail.gap, mail.unread) == ([3, 4, 5, 6, 7, 8, 9, 10], None, 2)
    assert numbers(await do(chat.reader("bo").pull)) == [9, 10]
    follow = chat.follow("bo", after=ids[5], ack=False)
    assert numbers(await do(follow.fetch)) == [7, 8, 9, 10]


@pytest.mark.parametrize(("history", "first"), [(None, 9), (History(messages=5), 6)])
async def test_what_is_not_stored_after_a_position_is_a_gap(app: Penstock, do: Do, history: Any, first: int):
    chat = await chat_of(app, do, history=history)
    ids = await do(chat.send_many, "ada", range(1, 11))
    await do(chat.reader("ada").ack, ids[9])
    await do(chat.reader("bo").ack, ids[7])
    mail = await do(chat.reader("bo").pull, after=ids[1])
    assert numbers(mail) == [*range(first, 11)]
    assert (mail.gap, mail[0].missed) == (Gap(first, first - 3), first - 3)
    assert (await do(chat.reader("bo").pull, after=ids[7])).gap is None


async def test_a_mailbox_is_read_again_from_a_position(app: Penstock, do: Do):
    box = app.mailbox("m")
    await do(box.keep, history=History(messages=100))
    ids = await do(box.post_many, ["a", "b", "c"])
    await do(box.ack, ids[2])
    assert [m.body for m in await do(box.pull, after=ids[0])] == ["b", "c"]
    assert await do(box.pull) == []


# --- events ---


async def test_events_do_not_count_as_unread(app: Penstock, do: Do):
    chat = await chat_of(app, do)
    ids = await do(chat.send_many, "ada", ["a", "b"])
    reader = chat.reader("bo")
    await do(reader.ack, (await do(reader.pull))[-1])
    for text in ("x", "y"):
        await do(chat.edit, "ada", ids[0], text)
    await do(chat.redact, "bo", ids[1])
    assert await do(reader.unread) == 0
    mail = await do(reader.pull)
    assert ([m.event for m in mail], mail.unread) == (["edit", "edit", "redact"], 0)
    assert {(one.name, one.unread) for one in await do(chat.members)} == {("ada", 0), ("bo", 0)}
    await do(chat.send, "ada", "c")
    assert await do(reader.unread) == 1
    assert (await do(app.chats.of("bo").unread)) == {chat.id: 1}
    await do(reader.ack, mail[0])
    assert await do(reader.unread) == 1


@pytest.mark.parametrize("limits", ["keep", "history"])
async def test_events_push_no_messages_out(app: Penstock, do: Do, limits: str):
    more: Any = {"keep": Keep(messages=5)} if limits == "keep" else {"history": History(messages=5)}
    chat = await chat_of(app, do, **more)
    ids = await do(chat.send_many, "ada", range(5))
    if limits == "history":
        for name in ("ada", "bo"):
            await do(chat.reader(name).ack, ids[-1])
    for n in range(20):
        await do(chat.edit, "ada", ids[4], n)
    kept = await do(chat.reader("bo").history, 100)
    assert [m.body for m in kept if m.event is None] == [0, 1, 2, 3, 19]
    await do(chat.send_many, "ada", ["new", "newer"])
    if limits == "history":
        for name in ("ada", "bo"):
            await do(chat.reader(name).ack, (await do(chat.reader(name).pull))[-1])
    kept = await do(chat.reader("bo").history, 100)
    assert [m.body for m in kept if m.event is None] == [2, 3, 19, "new", "newer"]
    await do(chat.join, "cy", history=3)
    assert [m.body for m in await do(chat.reader("cy").pull) if m.event is None] == [19, "new", "newer"]


@pytest.mark.parametrize(("face", "place"), [("aio", "valkey")])
@pytest.mark.parametrize("keep", [Keep(), Keep(messages=5), Keep(messages=5, full="refuse")])
async def test_events_have_a_bound_of_their_own(app: Penstock, do: Do, keep: Keep):
    chat: Chat = await chat_of(app, do, keep=keep)
    (id,) = await do(chat.send_many, "ada", ["a"])
    drops = keep.messages is not None and keep.full == "drop"
    await do(chat.edit, "ada", id, "first")
    for n in range(0, MOST_EVENTS, 100):
        await asyncio.gather(*(chat.edit.aio("ada", id, n + m) for m in range(100)))
    if drops:
        await do(chat.send, "ada", "b")
        assert (await do(chat.info)).first > 1
    else:
        with pytest.raises(NoSpace, match="10,000 edits and redactions"):
            await do(chat.edit, "ada", id, "more")
        await do(chat.redact, "ada", id)  # always possible
        for name in ("ada", "bo"):
            while mail := await do(chat.reader(name).pull, 1000):
                await do(chat.reader(name).ack, mail[-1])
        (id,) = await do(chat.send_many, "ada", ["a"])
        await do(chat.edit, "ada", id, "more")


# --- marked as unread ---


@pytest.mark.parametrize("device", ["", "phone"])
async def test_a_reader_marks_messages_as_unread(app: Penstock, do: Do, device: str):
    chat = await chat_of(app, do, history=History(messages=100))
    ids = [id for pair in range(3) for id in (await do(chat.send, "ada", pair), await do(chat.send, "bo", pair))]
    reader = chat.reader("bo", device)
    await do(reader.pull)
    await do(reader.ack, ids[5])
    assert await do(reader.unread) == 0
    await do(reader.mark_unread, ids[2])
    assert await do(reader.unread) == 2  # two of the four are its own
    mail = await do(reader.pull)
    assert (numbers(mail), mail.unread) == ([3, 4, 5, 6], 2)
    await do(reader.mark_unread, mail[1])  # it was not acknowledged
    assert numbers(await do(reader.pull)) == [3, 4, 5, 6]
    await do(reader.ack, mail[3])
    assert await do(reader.pull) == []


async def test_only_what_is_stored_can_be_marked_as_unread(app: Penstock, do: Do):
    box = app.mailbox("m")
    ids = await do(box.post_many, ["a", "b", "c"])
    await do(box.ack, ids[1])
    with pytest.raises(MessageError, match=r"message 2 of .* is not stored any more, the oldest one is 3"):
        await do(box.mark_unread, ids[1])
    with pytest.raises(BadCall, match="mark_unread"):
        await do(box.mark_unread, 3)
    with pytest.raises(NewBeginning):
        await do(box.mark_unread, "3-17")
    (claimed,) = await do(box.claim)
    with pytest.raises(MessageError, match="workers claim"):
        await do(box.mark_unread, ids[2])
    await do(claimed.reject, "no use")
    assert [(one.body, one.reason) for one in await do(box.dead.list)] == [("c", "no use")]
