"""The streams of a receiver: lines, batches and files; in one process, in several by turns, or shared."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

from penstock import Channel, Penstock
from penstock.errors import FileDamaged, FilesError
from penstock.files import source_reader
from penstock.files.shared_stream import SharedStream
from penstock.files.stream import ReceiverStream
from penstock.files.upload import Progress, Upload
from penstock.info import CutLine
from penstock.settings import MiB
from tests.chaos.forker import ROOT
from tests.conftest import Do, Time, commands, until
from tests.files.manual_run import sending
from tests.files.streams import Entered, gather, hidden, next_item
from tests.servers import Server, eventually
from tests.speed import scaled


@pytest.fixture
def place() -> str:
    return "valkey"


# --- lines ---

ENDS = b"unix\ndos\r\nempty\n\n\r\nlone\rcr\n\xff\xfe\nlong " + b"x" * 500 + b"\n\xc3\xa9\nlast"
LINES = [b"unix", b"dos", b"empty", b"", b"", b"lone\rcr", b"\xff\xfe", b"long " + b"x" * 45, b"\xc3\xa9", b"last"]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("verb", ["send", "send_lines"])
async def test_lines_are_the_same_however_they_were_sent(
    channel: Channel, do: Do, face: str, tmp_path: Path, small: None, verb: str, packed: bool
):
    path = tmp_path / ("log.gz" if packed else "log")
    path.write_bytes(gzip.compress(ENDS) if packed else ENDS)
    await do(getattr(channel, verb), path, receivers=["r", "s", "b"], close=True)
    lines = await gather(face, channel.receiver("r").lines(longest=50, spool=tmp_path / "spool"))
    assert lines == LINES
    assert [type(line) for line in lines] == [CutLine if len(line) == 50 else bytes for line in LINES]
    text = await gather(face, channel.receiver("s").lines(encoding="utf-8", longest=50))
    assert (text[0], text[6], text[8]) == ("unix", b"\xff\xfe", "é")
    batches = await gather(face, channel.receiver("b").batches())
    assert [batch.first for batch in batches] == [1, *(b.first + len(b) for b in batches)][:-1]
    assert {batch.file for batch in batches} == {path.name}
    assert hidden(tmp_path / "spool") == []


async def test_files_of_several_senders_interleave_without_waiting_for_each_other(
    channel: Channel, do: Do, face: str, tmp_path: Path
):
    """Each batch of blocks ends within a line, and the channel has room for only one more."""
    paths = [tmp_path / name for name in "abc"]
    for path in paths:
        path.write_bytes(b"".join(b"%s %d %s\n" % (path.name.encode(), n, b"x" * 990) for n in range(3000)))
    await do(channel.open, ["r"], limit=2 * MiB)
    sends = [
        asyncio.create_task(do(verb, path))
        for verb, path in zip((channel.send, channel.send, channel.send_lines), paths, strict=True)
    ]
    found: dict[bytes, list[int]] = {}
    stream = channel.receiver("r").lines()
    reading = asyncio.create_task(gather(face, stream))
    async with asyncio.timeout(scaled(60)):
        await asyncio.gather(*sends)
        await do(channel.close)
        for line in await reading:
            name, number, _ = line.split()
            found.setdefault(name, []).append(int(number))
    assert found == {name: list(range(3000)) for name in (b"a", b"b", b"c")}


async def test_a_line_that_is_longer_than_the_limit_passes_through_it(
    channel: Channel, do: Do, face: str, tmp_path: Path
):
    path = tmp_path / "log"
    path.write_bytes(b"x" * (5 * MiB) + b"\nnext\n")
    await do(channel.open, ["r"], limit=2 * MiB)
    sent = asyncio.create_task(do(channel.send, path, close=True))
    async with asyncio.timeout(scaled(60)):
        lines = await gather(face, channel.receiver("r").lines(longest=4 * MiB))
        await sent
    assert [(len(line), type(line).__name__) for line in lines] == [(4 * MiB, "CutLine"), (4, "bytes")]


@pytest.mark.parametrize("wait", [0, 0.3])
async def test_a_loop_with_a_wait_ends_and_another_continues(
    channel: Channel, do: Do, face: str, tmp_path: Path, wait: float
):
    path = tmp_path / "log"
    path.write_bytes(b"1\n2\n")
    assert await gather(face, channel.receiver("r").lines(wait=wait)) == []
    await do(channel.send_lines, path, receivers=["r"])
    for wanted in ([b"1", b"2"], []):
        began = time.monotonic()
        assert await gather(face, channel.receiver("r").lines(wait=wait)) == wanted
        assert time.monotonic() - began < scaled(wait + 5)


@pytest.mark.parametrize("left", ["with", "with, by an error", "break"])
async def test_leaving_a_loop_settles_only_finished_items(
    channel: Channel, do: Do, face: str, tmp_path: Path, small: None, left: str
):
    path = tmp_path / "log"
    path.write_bytes(b"".join(b"%d" % n * 100 for n in range(6)))
    await do(channel.send, path, receivers=["r"], close=True)

    async def three() -> None:
        stream = channel.receiver("r").blocks()
        if left == "break":
            for _ in "123":
                await next_item(face, stream)
            return
        async with Entered(face, stream):
            for _ in "123":
                await next_item(face, stream)
            if "error" in left:
                raise KeyError("in the third")

    with contextlib.suppress(KeyError):
        await three()
    rest = await gather(face, channel.receiver("r").blocks())
    first = {"with": b"3", "with, by an error": b"2", "break": b"0"}[left]
    assert b"".join(rest) == path.read_bytes()[100 * int(first) :]


async def test_lines_of_an_unfinished_batch_are_delivered_again(channel: Channel, do: Do, face: str, tmp_path: Path):
    path = tmp_path / "log"
    path.write_bytes(b"1\n2\n3\n")
    await do(channel.send, path, receivers=["r"], close=True)

    def one() -> Any:
        with channel.receiver("r").lines() as lines:
            return next(iter(lines))

    async def aio_one() -> Any:
        async with channel.receiver("r").lines() as lines:
            return await anext(aiter(lines))

    assert await (aio_one() if face == "aio" else anyio.to_thread.run_sync(one)) == b"1"
    assert await gather(face, channel.receiver("r").lines()) == [b"1", b"2", b"3"]


@pytest.mark.parametrize(
    "text",
    [gzip.compress(b"a\n" * 100)[:-4], gzip.compress(b"a\n" * 100) + b"x", b"\x1f\x8bno"],
    ids=["cut", "more", "none"],
)
async def test_damaged_gzip_that_was_sent_as_bytes_is_named(
    channel: Channel, do: Do, face: str, tmp_path: Path, text: bytes
):
    bad, good = tmp_path / "bad.gz", tmp_path / "good.gz"
    bad.write_bytes(text)
    good.write_bytes(gzip.compress(b"good\n"))
    await do(channel.send, [bad, good], receivers=["r"], close=True)
    stream = channel.receiver("r").batches(spool=tmp_path / "spool")
    with pytest.raises(FileDamaged, match=r"bad\.gz"):
        await gather(face, stream)
    (batch,) = await gather(face, stream)
    assert (batch.file, [*batch]) == ("good.gz", [b"good"])
    assert hidden(tmp_path / "spool") == []


# --- several share one receiver ---


async def test_shared_blocks_are_unpacked_in_a_thread(
    channel: Channel, do: Do, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "log").write_bytes(b"one\n")
    await do(channel.send_lines, tmp_path / "log", receivers=["r"], close=True)
    work, threads = SharedStream._process, list[threading.Thread]()

    def noted(sharing: SharedStream[Any]) -> None:
        threads.append(threading.current_thread())
        work(sharing)

    monkeypatch.setattr(SharedStream, "_process", noted)
    assert [batch async for batch in channel.receiver("r").batches(share=True)] == [(b"one",)]
    assert threading.main_thread() not in threads


async def test_each_shared_block_goes_to_one_process_and_to_another_if_that_dies(
    channel: Channel, do: Do, face: str, tmp_path: Path, small: None, clock: Time
):
    path = tmp_path / "log"
    path.write_bytes(b"".join(b"%04d\n" % n for n in range(400)))
    await do(channel.send_lines, path, receivers=["r"], close=True)
    dead = channel.receiver("r").blocks(share=True, lease=10)
    first = await next_item(face, dead)
    others = [channel.receiver("r").blocks(share=True, lease=10, wait=0) for _ in range(3)]
    found = [block for blocks in await asyncio.gather(*(gather(face, one) for one in others)) for block in blocks]
    assert len({block.offset for block in found}) == len(found) < 20
    assert first.offset not in {block.offset for block in found}
    clock.advance(11)
    found += await gather(face, channel.receiver("r").blocks(share=True))
    assert b"".join(sorted(found)) == path.read_bytes()
    assert await gather(face, channel.receiver("r").blocks(share=True)) == []
    await do(dead.settle)  # it wakes up, and another process has its blocks


async def test_files_that_were_sent_as_bytes_have_no_lines_to_share(
    channel: Channel, do: Do, face: str, tmp_path: Path
):
    path = tmp_path / "log"
    path.write_bytes(b"1\n2\n")
    await do(channel.send, path, receivers=["r"], close=True)
    with pytest.raises(FilesError, match=r"log was sent as bytes.*with share=True, send files with send_lines"):
        await gather(face, channel.receiver("r").lines(share=True))


# --- one process replaces another ---


async def test_a_second_process_waits_and_continues_where_the_first_has_left(
    channel: Channel, do: Do, face: str, tmp_path: Path, small: None, nodes: list[Any]
):
    path = tmp_path / "log"
    path.write_bytes(b"".join(b"%d" % n * 100 for n in range(6)))
    await do(channel.send, path, receivers=["r"], close=True)
    first: ReceiverStream[Any] = channel.receiver("r").blocks()
    got = [await next_item(face, first) for _ in "123"]
    assert await gather(face, channel.receiver("r").blocks(wait=0)) == []
    waiting = asyncio.create_task(gather(face, channel.receiver("r").blocks()))
    await asyncio.sleep(0.3)
    before = sum(map(commands, nodes))
    await asyncio.sleep(1)
    assert sum(map(commands, nodes)) - before <= 1
    assert not waiting.done()
    began = time.monotonic()
    await do(first.settle)
    async with asyncio.timeout(scaled(30)):
        rest = await waiting
    assert time.monotonic() - began < scaled(5)
    assert b"".join(got[:2] + rest) == path.read_bytes()


async def test_a_process_that_was_frozen_for_a_lease_drops_its_items(
    channel: Channel, do: Do, face: str, tmp_path: Path, small: None, clock: Time
):
    out, paths = tmp_path / "out", [tmp_path / name for name in "abc"]
    for path in paths:
        path.write_bytes(os.urandom(500))
    await do(channel.send, paths, receivers=["r"], close=True)
    frozen = channel.receiver("r").save(out)
    first = await next_item(face, frozen)
    assert first.name == "a"
    assert frozen._lease is not None
    frozen._lease.renewing = False  # as if the process was frozen for eleven seconds
    frozen._lease.valid_until -= 11
    clock.advance(11)
    rest = await gather(face, channel.receiver("r").save(out))
    assert [saved.name for saved in rest] == ["a", "b", "c"]
    for path in out.iterdir():
        path.write_bytes(b"changed since")
    assert await gather(face, frozen) == []
    assert {path.read_bytes() for path in out.iterdir()} == {b"changed since"}
    assert {one.state for one in (await do(channel.info)).receivers} == {"done"}


async def test_a_frozen_process_that_was_not_replaced_continues(
    channel: Channel, do: Do, face: str, tmp_path: Path, small: None, clock: Time
):
    path = tmp_path / "log"
    path.write_bytes(os.urandom(500))
    await do(channel.send, path, receivers=["r"], close=True)
    stream: Any = channel.receiver("r").blocks()
    first = await next_item(face, stream)
    stream._lease.valid_until -= 11
    clock.advance(11)
    assert first + b"".join(await gather(face, stream)) == path.read_bytes()


async def test_a_cancelled_wait_can_be_continued(channel: Channel, tmp_path: Path):
    path = tmp_path / "log"
    path.write_bytes(b"1\n")
    await channel.open.aio(["r"])
    stream = channel.receiver("r").lines()
    one = channel.receiver("r").batches()
    waiting = asyncio.create_task(one.__anext__())
    await asyncio.sleep(0.2)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await channel.send.aio(path, close=True)
    assert [*await one.__anext__()] == [b"1"]
    await one.settle.aio()  # the loop has not asked for the next item
    assert [line async for line in stream] == [b"1"]


async def test_a_wait_that_is_cancelled_within_a_file_continues_there(
    channel: Channel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(source_reader, "BLOCK_SIZE", 7)
    path = tmp_path / "log"
    path.write_bytes(b"one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\n")

    def die(_: Any) -> None:
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError):
        await channel.send.aio(path, receivers=["r"], progress=die)
    stream = channel.receiver("r").batches()
    found = [line for _ in range(4) for line in await anext(stream)]
    waiting = asyncio.create_task(anext(stream))
    await asyncio.sleep(0.2)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await channel.send.aio(path, close=True)
    found += [line async for batch in stream for line in batch]
    assert found == path.read_bytes().split()


async def test_a_cancelled_send_resumes_when_it_is_called_again(channel: Channel, tmp_path: Path):
    path = tmp_path / "log"
    path.write_bytes(os.urandom(3 * MiB))
    waiting = asyncio.create_task(channel.send.aio(path, receivers=["r"], limit=2 * MiB))
    info: Any = None
    async with asyncio.timeout(scaled(30)):
        while info is None or info.bytes < MiB:
            await asyncio.sleep(0.05)
            try:
                info = await channel.info.aio()
            except FilesError:
                continue
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    again = asyncio.create_task(channel.send.aio(path, close=True))
    assert b"".join([block async for block in channel.receiver("r").blocks()]) == path.read_bytes()
    assert (await again).files[0].resumed


@pytest.mark.parametrize("is_resumed", [False, True])
async def test_a_send_that_is_cancelled_while_it_opens_a_file_closes_it(
    channel: Channel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_resumed: bool
):
    """The thread that opens the file ends first, and nobody gets what it returns."""
    path, opened = tmp_path / "log", list[Upload]()
    reports = list[Progress]()
    path.write_bytes(os.urandom(3 * MiB))
    goes_on, begin = threading.Event(), Upload.__init__

    def slowly(upload: Upload, *args: Any, **options: Any) -> None:
        begin(upload, *args, **options)
        opened.append(upload)
        goes_on.wait(30)

    if is_resumed:
        busy = asyncio.create_task(channel.send.aio(path, receivers=["r"], limit=2 * MiB, progress=reports.append))
        await until(lambda: reports and reports[-1].waiting)
        busy.cancel()
        await asyncio.wait([busy])
    monkeypatch.setattr(Upload, "__init__", slowly)
    busy = asyncio.create_task(channel.send.aio(path, receivers=["r"], limit=2 * MiB))
    await until(lambda: opened)
    busy.cancel()
    goes_on.set()
    await asyncio.wait([busy])
    assert busy.cancelled()
    assert [one.reader._file.closed for one in opened] == [True]


# --- dying processes ---

RECEIVE = """
import sys
from penstock import Penstock, Settings
address, out, lease = sys.argv[1:]
app = Penstock(address, prefix="p", settings=Settings(lease=float(lease)))
for saved in app.files("c").receiver("r").save(out):
    print(saved.name, flush=True)
"""


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for one in started:
        with one:
            one.kill()


def test_after_a_kill_inside_a_file_another_process_resumes_at_once_and_a_frozen_one_changes_nothing(
    server: Server, tmp_path: Path, processes: list[subprocess.Popen[str]]
):
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    data = random.Random(7).randbytes(7 * MiB)
    (folder / "big").write_bytes(data)
    (folder / "small").write_bytes(b"small")
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}

    def receive(lease: float) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", RECEIVE, server.address, str(out), str(lease)]
        processes.append(subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True))
        return processes[-1]

    with Penstock(server.address, prefix="p") as app:
        channel = app.files("c")
        first = sending(channel, [folder / "big"], ["r"], limit=2 * MiB, close=True)

        def pulled(upto: int) -> bool:
            first.advance()
            return channel.info().last - channel.info().receivers[0].behind >= upto

        for _ in range(6):
            first.advance()
        one = receive(60)
        eventually(lambda: pulled(8))
        two = receive(2)
        time.sleep(0.7)
        began = time.monotonic()
        one.send_signal(signal.SIGKILL)
        one.wait()
        eventually(lambda: pulled(16))
        assert time.monotonic() - began < scaled(30)  # sooner than a lease of a minute
        assert not (out / "big").exists()
        two.send_signal(signal.SIGSTOP)
        three = receive(60)
        first.run()
        assert first.error is None
        eventually(lambda: three.poll() is not None)
        assert three.communicate()[0] == "big\n"
        assert (out / "big").read_bytes() == data
        two.send_signal(signal.SIGCONT)
        eventually(lambda: two.poll() is not None)
        assert two.communicate()[0] == ""
        assert (out / "big").read_bytes() == data
        assert hidden(out) == []
        assert channel.delete()
