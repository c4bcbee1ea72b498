"""A key of a mailbox or chat that has vanished: each verb raises one named error, and none waits or answers nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock import Chat, Mailbox, Penstock
from penstock.errors import StateLost
from tests.conftest import Do
from tests.speed import scaled


@pytest.fixture
async def box(app: Penstock, do: Do) -> Mailbox:
    box = app.mailbox("user:17")
    await do(box.post_many, "abc")
    return box


@pytest.fixture
async def chat(app: Penstock, do: Do) -> Chat:
    chat: Chat = await do(app.chats.create, ["ada"], sender="bo", message="hi", id="ops")
    return chat


@pytest.mark.parametrize("name", ["log", "readers", "state"])
async def test_a_mailbox_without_a_key_of_its_own_says_so(box: Mailbox, do: Do, raw: Any, name: str):
    key = box._log.keys.base + name
    first = (await do(box.pull))[0]
    raw.delete(key)
    verbs: list[tuple[Any, dict[str, Any]]] = [
        (box.pull, {}),
        (box.pull, {"wait": 30}),
        (box.claim, {}),
        (box.claim, {"wait": 30}),
    ]
    if name != "readers":
        verbs += [(box.ack, {"upto": first}), (box.post, {"value": "d"}), (box.post_many, {"values": "de"})]
    if name != "log":
        verbs += [(box.unread, {}), (box.info, {})]
    for verb, options in verbs:
        async with asyncio.timeout(scaled(10)):
            with pytest.raises(StateLost, match="has vanished") as raised:
                await do(verb, **options)
        assert raised.value.key == key
    assert await do(box.delete)
    assert await do(box.pull) == []
    await do(box.post, "new")
    assert [message.body for message in await do(box.pull)] == ["new"]


@pytest.mark.parametrize("name", ["log", "readers", "state"])
async def test_a_chat_without_a_key_of_its_own_says_so(app: Penstock, chat: Chat, do: Do, raw: Any, name: str):
    raw.delete(chat._log.keys.base + name)
    verbs = [(chat.reader("ada").pull, ()), (chat.follow("ada").fetch, ()), (chat.send, ("ada", "x"))]
    for verb, args in verbs:
        async with asyncio.timeout(scaled(10)):
            with pytest.raises(StateLost, match="'ops'"):
                await do(verb, *args)
    with pytest.raises(StateLost):
        await do(app.chats.of("ada").pull)
    assert await do(chat.delete)


@pytest.mark.damages
async def test_a_waiting_reader_learns_of_a_key_that_vanishes(box: Mailbox, do: Do, raw: Any):
    await do(box.ack, (await do(box.pull))[-1])
    waiting = asyncio.create_task(do(box.pull, wait=60))
    await asyncio.sleep(0.2)
    raw.delete(box._log.keys.base + "readers")
    await do(box.post, "d")
    async with asyncio.timeout(scaled(10)):
        with pytest.raises(StateLost):
            await waiting
