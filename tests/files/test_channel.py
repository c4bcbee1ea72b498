"""A channel of files: every byte arrives at every receiver, through a fixed limit, and then the channel ends."""

import asyncio
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

from penstock import Channel, ConfigurationError, Penstock, file_digest
from penstock.errors import BlocksMissed, ChannelClosed, ChannelError, FilesError, NoReceiver
from penstock.files import source_reader
from penstock.settings import MiB
from tests.conftest import Do, MakeApp, Time, commands, until
from tests.speed import scaled

Gather = Callable[[Any], Any]


@pytest.fixture
def place() -> str:
    return "valkey"


@pytest.fixture
def gather(face: str) -> Gather:
    """Every item of a stream, by either face."""

    async def aio(stream: Any) -> list[Any]:
        return [item async for item in stream]

    async def blocking(stream: Any) -> list[Any]:
        return await anyio.to_thread.run_sync(lambda: list(stream))

    return aio if face == "aio" else blocking


def write(folder: Path, **files: bytes) -> list[Path]:
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return [folder / name for name in files]


def joined(blocks: list[Any]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for block in blocks:
        assert block.offset == len(found.get(block.file, b""))
        found[block.file] = found.get(block.file, b"") + block
    return found


# --- exact copies ---


@pytest.mark.parametrize("how_many", [1, 3, 10])
async def test_each_receiver_gets_every_byte_through_a_smaller_channel(
    channel: Channel, do: Do, gather: Gather, tmp_path: Path, how_many: int
):
    names = [f"r{n}" for n in range(how_many)]
    sent = {"a": random.Random(1).randbytes(3 * MiB + 12345), "b": b"", "c": os.urandom(255 * 1024 * 2)}
    paths = write(tmp_path, **sent)
    sending = asyncio.create_task(do(channel.send, paths, receivers=names, close=True, limit=2 * MiB))
    await do(channel.open, names)
    async with asyncio.timeout(scaled(60)):
        found = await asyncio.gather(*(gather(channel.receiver(name).blocks()) for name in names))
    answer = await sending
    assert [file.digest for file in answer.files] == [file_digest(path) for path in paths]
    assert (answer.bytes, answer.skipped, answer.closed) == (sum(map(len, sent.values())), [], True)
    for blocks in found:
        assert joined(blocks) | {"b": b""} == sent
    info = await do(channel.info)
    assert info.peak <= 2 * MiB
    assert {(one.state, one.behind) for one in info.receivers} == {("done", 0)}


@pytest.mark.parametrize("place", ["cluster"])
async def test_files_arrive_on_a_cluster(channel: Channel, do: Do, gather: Gather, tmp_path: Path):
    (path,) = write(tmp_path, a=os.urandom(600_000))
    await do(channel.send, path, receivers=["r"], close=True)
    (saved,) = await gather(channel.receiver("r").save(tmp_path / "out"))
    assert saved.path.read_bytes() == path.read_bytes()
    assert saved.digest == file_digest(path)


async def test_files_arrive_in_the_order_of_their_names_whatever_the_names(
    channel: Channel, do: Do, gather: Gather, tmp_path: Path
):
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    names = [
        "E",
        "CLOSE",
        "B",
        "D",
        " a b ",
        "%7D}{",
        "名前 ✓",
        "e\u0301",
        "é",
        "new\nline",
        ".hidden",
        "-x",
        "a'\"$;|*?",
    ]
    for name in names:
        (folder / name).write_bytes(name.encode())
    sent = await do(channel.send, folder, receivers=["r"], close=True)
    assert [file.name for file in sent.files] == sorted(names)
    saved = await gather(channel.receiver("r").save(out))
    assert [one.name for one in saved] == sorted(names)
    assert {path.name: path.read_bytes().decode() for path in out.iterdir()} == {name: name for name in names}


async def test_an_empty_file_arrives_and_an_empty_folder_is_refused(
    channel: Channel, do: Do, gather: Gather, tmp_path: Path
):
    (path,) = write(tmp_path, empty=b"")
    (tmp_path / "none").mkdir()
    with pytest.raises(FilesError):
        await do(channel.send, [], receivers=["r"])
    await do(channel.send, path, receivers=["r"], close=True)
    (saved,) = await gather(channel.receiver("r").save(tmp_path / "out"))
    assert (saved.size, saved.path.read_bytes()) == (0, b"")


# --- close, and after it ---


async def test_a_closed_channel_takes_no_files_until_all_are_received_then_opens_again(
    channel: Channel, do: Do, gather: Gather, tmp_path: Path
):
    a, b = write(tmp_path, a=b"1", b=b"2")
    await do(channel.send, a, receivers=["r", "s"], close=True)
    assert len(await gather(channel.receiver("r").blocks())) == 1
    assert await gather(channel.receiver("r").blocks()) == []
    with pytest.raises(ChannelClosed, match="1 of its receivers"):
        await do(channel.send, b, receivers=["r"])
    for _ in range(2):  # a sender that was killed after its close and is started again does nothing
        again = await do(channel.send, a, receivers=["r", "s"], close=True)
        assert (again.files, again.skipped, again.closed) == ([], ["a"], True)
    assert len(await gather(channel.receiver("s").blocks())) == 1
    again = await do(channel.send, a, receivers=["r", "s"], close=True)
    assert again.skipped == ["a"]
    assert await gather(channel.receiver("r").blocks()) == []
    anew = await do(channel.send, [a, b], receivers=["r"], close=True)
    assert ([file.name for file in anew.files], anew.skipped) == (["b"], ["a"])
    assert [bytes(block) for block in await gather(channel.receiver("r").blocks())] == [b"2"]
    with pytest.raises(NoReceiver, match="'s'"):
        await gather(channel.receiver("s").blocks())
    assert [file.name for file in (await do(channel.send, a, receivers=["r"], again=True)).files] == ["a"]


async def test_closing_in_the_middle_of_a_file_raises_at_the_receiver(
    channel: Channel, do: Do, gather: Gather, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(source_reader, "BLOCK_SIZE", 100)
    (path,) = write(tmp_path, half=b"x" * 5000)
    await do(channel.open, ["r"])

    def stop(progress: Any) -> None:
        raise RuntimeError("the sender dies")

    with pytest.raises(RuntimeError):
        await do(channel.send, path, progress=stop)
    await do(channel.close)
    stream = channel.receiver("r").blocks()
    with pytest.raises(FilesError, match="closed before these files were sent whole: half"):
        await gather(stream)
    assert await gather(stream) == []


async def test_a_deleted_channel_is_gone_and_can_be_made_again(
    channel: Channel, do: Do, gather: Gather, tmp_path: Path, raw: Any
):
    (path,) = write(tmp_path, a=b"1")
    await do(channel.send, path, receivers=["r"])
    assert await do(channel.delete)
    assert not await do(channel.delete)
    assert [key for key in raw.scan_iter(match="*files*") if raw.pttl(key) < 0] == []
    for verb in (channel.info, channel.close, channel.receiver("r").join):
        with pytest.raises(ChannelError, match="no channel"):
            await do(verb)
    assert await gather(channel.receiver("r").blocks(wait=0)) == []
    await do(channel.send, path, receivers=["r"], close=True)
    assert len(await gather(channel.receiver("r").blocks())) == 1


# --- receivers ---


async def test_a_late_receiver_begins_with_the_next_file(channel: Channel, do: Do, gather: Gather, tmp_path: Path):
    a, b = write(tmp_path, a=b"1", b=b"2")
    late = channel.receiver("late")
    with pytest.raises(ChannelError):
        await do(late.join)
    await do(channel.send, a, receivers=["r"])
    with pytest.raises(NoReceiver, match="late"):
        await gather(late.blocks(wait=0))
    assert await do(late.join)
    assert not await do(late.join)
    await do(channel.send, b, close=True)
    assert [bytes(block) for block in await gather(late.blocks())] == [b"2"]
    assert [bytes(block) for block in await gather(channel.receiver("r").blocks())] == [b"1", b"2"]


async def test_a_receiver_that_leaves_holds_up_no_other(channel: Channel, do: Do, gather: Gather, tmp_path: Path):
    (path,) = write(tmp_path, a=os.urandom(3 * MiB))
    await do(channel.open, ["r", "lazy"], limit=2 * MiB)
    sending = asyncio.create_task(do(channel.send, path, close=True))
    receiving = asyncio.create_task(gather(channel.receiver("r").blocks()))
    await until(lambda: channel_bytes(channel) > MiB)
    await asyncio.sleep(0.1)
    assert not sending.done()
    assert await do(channel.receiver("lazy").leave)
    assert not await do(channel.receiver("lazy").leave)
    async with asyncio.timeout(scaled(30)):
        await sending
        assert b"".join(await receiving) == path.read_bytes()


def channel_bytes(channel: Channel) -> int:
    """Asks by the blocking face, though the test runs in a loop."""
    client = channel._driver.blocking
    info: Any = client.run(channel.bindings.info())
    return int(info.bytes)


async def test_when_the_last_receiver_leaves_everything_is_freed_and_the_send_fails(
    channel: Channel, do: Do, tmp_path: Path
):
    (path,) = write(tmp_path, a=os.urandom(3 * MiB))
    await do(channel.open, ["r"], limit=2 * MiB)
    sending = asyncio.create_task(do(channel.send, path))
    await until(lambda: channel_bytes(channel) > MiB)
    await do(channel.receiver("r").leave)
    with pytest.raises(NoReceiver):
        await asyncio.wait_for(sending, scaled(30))
    assert (await do(channel.info)).bytes == 0


async def test_limits_change_while_a_sender_waits(channel: Channel, do: Do, gather: Gather, tmp_path: Path):
    (path,) = write(tmp_path, a=os.urandom(3 * MiB))
    reports: list[Any] = []
    await do(channel.open, ["r"], limit=2 * MiB)
    sending = asyncio.create_task(do(channel.send, path, progress=reports.append))
    await until(lambda: any(progress.waiting for progress in reports))
    assert not sending.done()
    began = time.monotonic()
    await do(channel.open, limit=4 * MiB)
    await asyncio.wait_for(sending, scaled(30))
    assert time.monotonic() - began < scaled(10)
    assert (reports[-1].done, reports[-1].sent, reports[-1].total, reports[-1].slowest) == (
        3 * MiB,
        3 * MiB,
        3 * MiB,
        "r",
    )
    assert (await do(channel.info)).limit == 4 * MiB


async def test_a_waiting_sender_and_a_waiting_receiver_send_no_commands(
    app: Penstock, do: Do, gather: Gather, tmp_path: Path, nodes: list[Any]
):
    full, idle = app.files("full"), app.files("idle")
    (path,) = write(tmp_path, a=os.urandom(3 * MiB))
    await do(full.open, ["r"], limit=2 * MiB)
    await do(idle.open, ["r"])
    waiting = [
        asyncio.create_task(do(full.send, path, close=True)),
        asyncio.create_task(gather(idle.receiver("r").blocks())),
    ]
    await until(lambda: channel_bytes(full) > MiB)
    await asyncio.sleep(0.5)
    before = sum(map(commands, nodes))
    await asyncio.sleep(2)
    assert sum(map(commands, nodes)) - before <= 2  # of two waiting processes, in two of ten seconds
    await do(idle.close)
    received = await gather(full.receiver("r").blocks())
    async with asyncio.timeout(scaled(30)):
        await asyncio.gather(*waiting)
    assert b"".join(received) == path.read_bytes()


# --- patience ---


@pytest.mark.parametrize("over", [False, True])
async def test_a_receiver_that_is_away_is_passed_over_and_learns_of_the_gap_once(
    channel: Channel, do: Do, gather: Gather, tmp_path: Path, clock: Time, over: bool
):
    a, b, c = write(tmp_path, a=os.urandom(MiB), b=os.urandom(MiB), c=b"whole")
    await do(channel.send, a, receivers=["r", "gone"], limit=2 * MiB, patience=60)
    clock.advance(3600)
    assert {one.state for one in (await do(channel.info)).receivers} == {"reading"}
    stream = channel.receiver("r").blocks(wait=0)
    assert len(await gather(stream)) == 5
    sent = await do(channel.send, b)
    assert len(sent.files) == 1
    assert {one.name: one.state for one in (await do(channel.info)).receivers} == {"r": "reading", "gone": "gone"}
    await do(channel.send, c, close=True)
    if over:
        await gather(channel.receiver("r").blocks())
    back = channel.receiver("gone").blocks()
    with pytest.raises(BlocksMissed, match="'gone' was away for too long"):
        await gather(back)
    found = joined(await gather(back)) if not over else await gather(back)
    assert found == ([] if over else {"b": b.read_bytes(), "c": b"whole"})
    assert await gather(channel.receiver("gone").blocks()) == []


async def test_one_of_the_processes_that_share_learns_of_the_gap(
    channel: Channel, do: Do, gather: Gather, tmp_path: Path, clock: Time
):
    a, b = write(tmp_path, a=os.urandom(MiB), b=os.urandom(MiB))
    await do(channel.send, a, receivers=["r", "gone"], limit=2 * MiB, patience=60)
    clock.advance(3600)
    assert len(await gather(channel.receiver("r").blocks(wait=0))) == 5
    await do(channel.send, b, close=True)
    one, two = (channel.receiver("gone").blocks(share=True, wait=0) for _ in range(2))
    with pytest.raises(BlocksMissed, match="'gone' was away for too long"):
        await gather(one)
    found = [*await gather(two), *await gather(one)]
    assert joined(sorted(found, key=lambda block: block.offset)) == {"b": b.read_bytes()}


async def test_a_sharing_process_that_leaves_releases_its_blocks_at_once(
    channel: Channel, do: Do, gather: Gather, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(source_reader, "BLOCK_SIZE", 100)
    (path,) = write(tmp_path, a=os.urandom(1000))
    await do(channel.send, path, receivers=["r"], close=True)
    leaves = channel.receiver("r").blocks(share=True, lease=60)
    await do(leaves.fetch)
    first = leaves._next(StopIteration)
    leaves._finish(None)
    await do(leaves.settle)
    async with asyncio.timeout(scaled(30)):
        rest = await gather(channel.receiver("r").blocks(share=True))
    assert joined(sorted([first, *rest], key=lambda block: block.offset)) == {"a": path.read_bytes()}


@pytest.mark.damages
async def test_a_missing_block_is_reported_and_the_next_file_arrives(
    channel: Channel, do: Do, gather: Gather, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raw: Any
):
    monkeypatch.setattr(source_reader, "BLOCK_SIZE", 100)
    a, b = write(tmp_path, a=b"x" * 500, b=b"whole")
    await do(channel.send, [a, b], receivers=["r"], close=True)
    key = f"{channel.bindings.keys.base}log"
    raw.xdel(key, raw.xrange(key)[3][0])
    stream = channel.receiver("r").blocks()
    with pytest.raises(FilesError, match="a is damaged: its block at byte 200 is missing"):
        await gather(stream)
    assert [bytes(block) for block in await gather(stream)] == [b"whole"]


# --- bad input ---


@pytest.mark.parametrize(
    ("wrong", "error", "match"),
    [
        ({"receivers": ["a b"]}, ConfigurationError, "receiver name"),
        ({"receivers": ["名"]}, ConfigurationError, "receiver name"),
        ({"receivers": ["r"], "limit": 2 * MiB - 1}, ValueError, "2 MiB"),
        ({"receivers": ["r"], "patience": -1}, ValueError, "patience"),
        ({}, NoReceiver, "receivers="),
        ({"receivers": ["r"], "paths": ["missing"]}, FilesError, "missing"),
        ({"receivers": ["r"], "paths": ["a", "a"]}, FilesError, "twice"),
    ],
)
@pytest.mark.parametrize("verb", ["send", "send_lines"])
async def test_bad_input_raises_once_and_nothing_is_sent(
    channel: Channel, do: Do, tmp_path: Path, raw: Any, verb: str, wrong: dict[str, Any], error: Any, match: str
):
    write(tmp_path, a=b"1")
    wrong = {"paths": ["a"], **wrong}
    wrong["paths"] = [tmp_path / name for name in wrong["paths"]]
    with pytest.raises(error, match=match):
        await do(getattr(channel, verb), **wrong)
    assert [key for key in raw.scan_iter(match="*files*") if b"replay" not in key] == []


async def test_invalid_receiver_names_and_times_are_refused(channel: Channel, make_app: MakeApp, tmp_path: Path):
    receiver = channel.receiver("r")
    for make in (
        lambda: channel.receiver("a/b"),
        lambda: make_app().files(""),
        lambda: receiver.blocks(wait=-1),
        lambda: receiver.blocks(share=True, lease=0),
        lambda: receiver.lines(longest=0),
        lambda: receiver.batches(longest=0, share=True),
        lambda: receiver.save(tmp_path, wait=-1),
    ):
        with pytest.raises(ValueError, match=r"name|wait|lease|longest"):
            make()
