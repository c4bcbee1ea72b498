"""A channel that begins again, or loses a key, while a process receives: reported, never skipped, never a spin."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock import Channel
from penstock.errors import ChannelRestarted, StateLost
from penstock.files.settlement import CountPiece
from tests.conftest import Do
from tests.files.manual_run import ManualRun
from tests.files.streams import gather
from tests.snapshots import fall_back, take_snapshot
from tests.speed import scaled


async def take(do: Do, stream: Any) -> list[bytes]:
    """What is there; waits if nothing is."""
    await do(stream.fetch)
    return [bytes(block) for block in stream.take_ready()]


async def send(do: Do, channel: Channel, path: Path, text: bytes) -> None:
    path.write_bytes(text)
    await do(channel.send, path, receivers=["r"])


async def raise_error(do: Do, stream: Any) -> None:
    """Take the error that follows the items."""
    await do(stream.fetch)
    if (error := stream.take_error()) is not None:
        raise error


@pytest.mark.parametrize("later", [1, 2, 3])
async def test_files_that_were_sent_after_the_server_fell_back_are_received(
    channel: Channel, do: Do, face: str, tmp_path: Path, raw: Any, later: int
):
    await send(do, channel, tmp_path / "a", b"a")
    stream = channel.receiver("r").blocks(wait=0)
    assert await take(do, stream) == [b"a"]
    await take(do, stream)  # settles it
    old = take_snapshot(raw)
    await send(do, channel, tmp_path / "lost", b"lost")
    assert await take(do, stream) == [b"lost"]
    await take(do, stream)
    fall_back(raw, old)
    for n in range(later):
        await send(do, channel, tmp_path / f"new{n}", b"%d" % n)
    with pytest.raises(ChannelRestarted, match="'r' continues after record 3"):
        await raise_error(do, stream)
    assert await gather(face, stream) == [b"%d" % n for n in range(later)]
    await do(stream.settle)


async def test_a_settlement_that_the_server_lost_is_made_again(
    channel: Channel, do: Do, face: str, tmp_path: Path, raw: Any
):
    """The records are the same as before: only the receiver's cursor, and what was counted, fell back."""
    for name in ("a", "b"):
        await send(do, channel, tmp_path / name, name.encode())
    stream = channel.receiver("r").blocks(wait=0)
    assert await take(do, stream) == [b"a", b"b"]
    old = take_snapshot(raw)
    await take(do, stream)  # settles them
    fall_back(raw, old)
    await send(do, channel, tmp_path / "new", b"new")
    with pytest.raises(ChannelRestarted, match="'r' continues after record 0"):
        await raise_error(do, stream)
    assert await gather(face, stream) == [b"a", b"b", b"new"]
    await do(stream.settle)


@pytest.mark.parametrize("parts", [0, 2])
async def test_a_settlement_that_the_server_lost_while_the_stream_waits_is_made_again(
    channel: Channel, do: Do, tmp_path: Path, raw: Any, parts: int
):
    """`parts`: how many parts of counts the settlement has. It is lost while the stream waits for more records, or
    while it adds the parts."""
    for name in ("a", "b"):
        await send(do, channel, tmp_path / name, name.encode())
    stream = channel.receiver("r").blocks(wait=60)
    assert await take(do, stream) == [b"a", b"b"]
    old = take_snapshot(raw)
    counts = [
        CountPiece(msgspec.msgpack.encode((1, 0, {"t": ("count 0", 0, {f"{n}": 1})}, [])), 1) for n in range(parts)
    ]
    stream.commit_with(lambda: counts)
    waiting = ManualRun(channel, stream.fill())
    while not raw.zscore(channel.bindings.keys.base + "readers", "r"):
        assert waiting.advance()
    fall_back(raw, old)
    waiting.run()
    assert waiting.error is None
    assert isinstance(stream.take_error(), ChannelRestarted)
    assert await take(do, stream) == [b"a", b"b"]


async def test_a_channel_that_was_deleted_and_filled_again_is_received_whole(
    channel: Channel, do: Do, face: str, tmp_path: Path
):
    await send(do, channel, tmp_path / "a", b"a")
    stream = channel.receiver("r").blocks(wait=0)
    assert await take(do, stream) == [b"a"]
    await do(channel.delete)
    for n in range(3):
        await send(do, channel, tmp_path / f"new{n}", b"%d" % n)
    with pytest.raises(ChannelRestarted):
        await raise_error(do, stream)
    assert await gather(face, stream) == [b"0", b"1", b"2"]
    await do(stream.settle)


async def test_a_commit_into_a_channel_that_restarted_acknowledges_nothing(
    channel: Channel, do: Do, face: str, tmp_path: Path, raw: Any
):
    await send(do, channel, tmp_path / "a", b"a")
    stream = channel.receiver("r").blocks(wait=0)
    await take(do, stream)
    await take(do, stream)
    old = take_snapshot(raw)
    await send(do, channel, tmp_path / "lost", b"lost")
    assert await take(do, stream) == [b"lost"]
    fall_back(raw, old)
    await send(do, channel, tmp_path / "new", b"new")
    stream._done = stream._given
    with pytest.raises(ChannelRestarted):
        await do(stream.settle)
    assert await gather(face, channel.receiver("r").blocks(wait=0)) == [b"new"]


@pytest.mark.damages
@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("kept", [None, 0, 1])
@pytest.mark.parametrize("wait", [0, None])
async def test_a_receiver_of_a_channel_whose_records_have_vanished_says_so(
    channel: Channel, do: Do, tmp_path: Path, raw: Any, share: bool, wait: float | None, kept: int | None
):
    """`kept`: how many of the last records are left in the stream; None: the stream itself has vanished."""
    await send(do, channel, tmp_path / "a", b"a")
    if kept is None:
        raw.delete(channel.bindings.keys.log)
    else:
        raw.xtrim(channel.bindings.keys.log, maxlen=kept, approximate=False)
    stream: Any = channel.receiver("r").blocks(wait=wait, share=share)
    async with asyncio.timeout(scaled(10)):
        with pytest.raises(StateLost, match="log' of channel 'access' has vanished"):
            await take(do, stream)
    (tmp_path / "b").write_bytes(b"b")
    for verb, args in [(channel.send, (tmp_path / "b",)), (channel.close, ())] if kept is None else []:
        with pytest.raises(StateLost):
            await do(verb, *args)
    assert await do(channel.delete)


@pytest.mark.parametrize("share", [False, True])
async def test_a_new_process_resumes_where_the_restored_server_says(
    channel: Channel, do: Do, face: str, tmp_path: Path, raw: Any, share: bool
):
    """A process that begins after the fall-back has no position: the cursor in the server decides."""
    await send(do, channel, tmp_path / "a", b"a")
    old = take_snapshot(raw)
    assert await gather(face, channel.receiver("r").blocks(wait=0, share=share)) == [b"a"]
    await send(do, channel, tmp_path / "lost", b"lost")
    assert await gather(face, channel.receiver("r").blocks(wait=0, share=share)) == [b"lost"]
    fall_back(raw, old)
    await send(do, channel, tmp_path / "new", b"new")
    assert await gather(face, channel.receiver("r").blocks(wait=0, share=share)) == [b"a", b"new"]


@pytest.mark.parametrize("share", [False, True])
async def test_a_receiver_whose_cursor_is_above_the_last_record_begins_again(
    channel: Channel, do: Do, face: str, tmp_path: Path, raw: Any, share: bool
):
    """The records fell back to an older state, and the receivers did not."""
    await send(do, channel, tmp_path / "a", b"a")
    old = take_snapshot(raw)
    for name in ("b", "c"):
        await send(do, channel, tmp_path / name, name.encode())
    assert sorted(await gather(face, channel.receiver("r").blocks(wait=0, share=share))) == [b"a", b"b", b"c"]
    base = channel.bindings.keys.base
    for name in ("state", "log", "ends"):
        fall_back(raw, {key: one for key, one in old.items() if key == (base + name).encode()}, base + name)
    stream: Any = channel.receiver("r").blocks(wait=0, share=share)
    with pytest.raises(ChannelRestarted, match="'r' continues after record 0"):
        await raise_error(do, stream)
    await send(do, channel, tmp_path / "new", b"new")
    assert sorted(await gather(face, stream)) == [b"a", b"new"]
