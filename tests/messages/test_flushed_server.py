"""The server deletes all keys while readers, workers, receivers and senders wait: each hears of it at once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock import Penstock
from penstock.errors import ChannelError, ChatGone
from tests.conftest import Do
from tests.servers import Server
from tests.speed import scaled


async def test_whoever_waits_for_messages_or_files_hears_of_flushall(
    do: Do, start: Callable[..., Server], tmp_path: Path
):
    own_server = start()
    app, other = Penstock(own_server.address), Penstock(own_server.address)
    chat = await other.chats.create.aio(["ada"])
    await other.files("logs").open.aio(["r"])
    await other.files("full").open.aio(["away"], limit=2 * 2**20)
    (tmp_path / "large").write_bytes(os.urandom(3 * 2**20))
    gone = [
        asyncio.create_task(do(chat.reader("ada").pull, wait=60)),
        asyncio.create_task(do(app.files("full").send, tmp_path / "large")),
    ]
    stream: Any = app.files("logs").receiver("r").blocks(wait=60)
    later = [
        asyncio.create_task(do(app.mailbox("M").claim, wait=60)),
        asyncio.create_task(do(app.chats.of("bo").pull, wait=60)),
        asyncio.create_task(do(stream.fetch)),
    ]
    await asyncio.sleep(0.7)
    own_server.client.flushall()
    async with asyncio.timeout(scaled(3)):
        found = await asyncio.gather(*gone, return_exceptions=True)
    assert [type(error) for error in found] == [ChatGone, ChannelError]
    await other.mailbox("M").post.aio("x")
    await other.chats.create.aio(["bo"], sender="cy", message="y")
    (tmp_path / "small").write_bytes(b"z")
    await other.files("logs").send.aio(tmp_path / "small", receivers=["r"])
    async with asyncio.timeout(scaled(3)):
        claimed, mail, _ = await asyncio.gather(*later)
    assert ([one.body for one in claimed], [one.body for one in mail]) == (["x"], ["y"])
    assert [bytes(block) for block in stream.take_ready()] == [b"z"]
    await app.aclose()
    await other.aclose()
