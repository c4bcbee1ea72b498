"""Mailboxes and chats of an app that seals."""

from typing import Any

import pytest

from penstock.errors import SealError
from tests.conftest import Do, MakeApp
from tests.seals import MARKER, TestSeal, listening, stored


async def test_no_body_of_a_message_reaches_the_server(make_app: MakeApp, nodes: list[Any], deployment: Any):
    app = make_app(seal=TestSeal("k1"))
    box = app.mailbox("user:17")
    with listening(getattr(deployment, "nodes", [deployment])) as wire:
        chat = await app.chats.create.aio(["ada", "bo"], sender="ada", message=MARKER, id="ops")
        await chat.send.aio("bo", {"text": MARKER}, id="m1")
        await chat.send.aio("bo", {"text": MARKER}, id="m1")
        await chat.send_many.aio("bo", [MARKER, [MARKER]])
        reader = chat.reader("ada")
        mail = await reader.pull.aio()
        assert [one.body for one in mail] == [MARKER, {"text": MARKER}, MARKER, [MARKER]]
        await chat.edit.aio("bo", mail[1], body={"new": MARKER})
        assert (await reader.history.aio())[1].body == {"new": MARKER}
        await box.post.aio({"text": MARKER})
        await box.post_many.aio([MARKER])
        (first,) = await box.claim.aio(1)
        assert first.body == {"text": MARKER}
        await first.fail.aio(MARKER)
        (letter,) = await box.dead.list.aio()
        assert (letter.body, letter.reason) == ({"text": MARKER}, MARKER)
        await box.dead.requeue.aio(letter.id)
        assert [one.body for one in await box.claim.aio(5)] == [MARKER, {"text": MARKER}]
        assert [key for node in nodes for key in stored(node, MARKER)] == []
    assert MARKER not in wire


async def test_a_reader_without_the_key_gets_an_error_from_the_body(make_app: MakeApp, do: Do):
    sender = make_app(seal=TestSeal("k1", "k2"))
    prefix = sender.settings.prefix
    await do(sender.mailbox("b").post, MARKER)
    for other in (make_app(prefix=prefix), make_app(prefix=prefix, seal=TestSeal("k1"))):
        (message,) = await do(other.mailbox("b").pull)
        with pytest.raises(SealError, match=r"message 1 of 'b' is sealed with key 'k2', and this program has no codec"):
            _ = message.body
        assert MARKER.encode() not in message.data
    (message,) = await do(make_app(prefix=prefix, seal=TestSeal("k2")).mailbox("b").pull)
    assert message.body == MARKER


async def test_senders_that_seal_and_senders_that_do_not_share_a_mailbox(make_app: MakeApp, do: Do):
    sealing = make_app(seal=TestSeal("k1"))
    plain = make_app(prefix=sealing.settings.prefix)
    await do(sealing.mailbox("b").post, 1)
    await do(plain.mailbox("b").post, 2)
    assert [one.body for one in await do(sealing.mailbox("b").pull)] == [1, 2]
