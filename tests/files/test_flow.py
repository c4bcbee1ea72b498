"""The traffic between a channel and its senders and receivers: how much in one round trip, and how often."""

import asyncio
import contextlib
import os
import platform
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from penstock import Penstock
from penstock.core.constants import ENTRY_OVERHEAD
from penstock.core.operations import Receive, RoundTrip, RunInThread, Send
from penstock.files.channel import Channel
from penstock.files.exclusive_stream import ExclusiveStream
from penstock.files.receiver import Block
from penstock.files.replies import ReceiveReply
from penstock.files.source_reader import BLOCK_SIZE
from penstock.files.stream import ReceiverStream
from penstock.files.upload import BLOCKS_PER_PUT, Progress
from penstock.messages.bindings import PULL_BYTES
from tests.chaos.forker import ROOT
from tests.conftest import Do, Time, until
from tests.files.manual_run import ManualRun, sending
from tests.servers import Server


@pytest.fixture
async def channel(app: Penstock, do: Do) -> AsyncIterator[Channel]:
    made = app.files("flow")
    yield made
    await do(made.delete)


@pytest.fixture
def pulls(monkeypatch: pytest.MonkeyPatch) -> list[ReceiveReply]:
    """Every reply that a receiver accepts."""
    seen: list[ReceiveReply] = []
    accept = ExclusiveStream._accept

    def recorded(self: Any, reply: ReceiveReply, asked: float) -> Any:
        seen.append(reply)
        return accept(self, reply, asked)

    monkeypatch.setattr(ExclusiveStream, "_accept", recorded)
    return seen


def received(channel: Channel) -> list[bytes]:
    return [bytes(block) for block in channel.receiver("r").blocks()]


async def test_small_files_are_pulled_by_hundreds_and_large_ones_by_the_megabyte(
    channel: Channel, tmp_path: Path, pulls: list[ReceiveReply]
):
    data = [b"%d" % n for n in range(600)] + [os.urandom(3_000_000)] + [b"%d" % n for n in range(100)]
    for n, content in enumerate(data):
        (tmp_path / f"{n:04}").write_bytes(content)
    await channel.send.aio(tmp_path, receivers=["r"], close=True)
    blocks = await asyncio.to_thread(received, channel)
    assert b"".join(blocks) == b"".join(data)
    assert all(sum(len(record.body) for record in pull.records) <= PULL_BYTES for pull in pulls)
    assert sum(len(pull.records) for pull in pulls) == 3 * 700 + 14 + 1
    assert len(pulls) < 14


async def test_the_end_of_each_record_is_known_while_it_is_there(
    channel: Channel, app: Penstock, do: Do, tmp_path: Path, raw: Any
):
    base = channel.bindings.keys.base
    (tmp_path / "a").write_bytes(os.urandom(3_000_000))
    await do(channel.send, tmp_path / "a", receivers=["r", "s"])
    stream = channel.receiver("r").blocks(wait=0)
    for name in ("r", "s"):
        stream = channel.receiver(name).blocks(wait=0)
        for _ in range(3):
            await do(stream.fetch)
            list(stream.take_ready())
        await do(stream.settle)
        log = raw.xrange(base + "log")
        entries = [fields for _, fields in log]
        assert raw.lrange(base + "ends", 0, -1) == [fields[b"end"] + b" " + id.split(b"-")[1] for id, fields in log]
        info = await do(channel.info)
        assert info.bytes == sum(ENTRY_OVERHEAD + len(fields[b"by"]) + len(fields[b"body"]) for fields in entries)
    assert 0 < len(entries) < 14


async def test_a_sender_at_a_full_channel_is_woken_for_a_quarter_of_it_not_for_each_megabyte(
    channel: Channel, do: Do, tmp_path: Path
):
    size = 24 << 20
    (tmp_path / "a").write_bytes(os.urandom(size))
    reports: list[Progress] = []
    await do(channel.open, ["r"], limit=8 << 20)
    sending = asyncio.create_task(do(channel.send, tmp_path / "a", close=True, progress=reports.append))
    got = 0
    stream = channel.receiver("r").blocks()
    while got < size:
        await until(lambda: sending.done() or (reports and reports[-1].waiting))
        await do(stream.fetch)
        got += sum(map(len, stream.take_ready()))
    await do(stream.settle)
    await sending
    batches = sum(not progress.waiting for progress in reports)
    assert batches == 25
    assert 1 <= len(reports) - batches <= (batches - 7) // 2 + 1
    assert max(progress.held for progress in reports) <= 8 << 20


async def test_a_server_that_forgot_its_scripts_is_sent_them_and_returns_the_blocks(
    channel: Channel, do: Do, tmp_path: Path, nodes: list[Any]
):
    (tmp_path / "a").write_bytes(content := os.urandom(2_500_000))
    await do(channel.send, tmp_path / "a", receivers=["r"], close=True)
    stream, got = channel.receiver("r").blocks(), b""
    while len(got) < len(content):
        for node in nodes:
            node.script_flush()
        await do(stream.fetch)
        got += b"".join(stream.take_ready())
    await do(stream.settle)
    assert got == content


def effects(run: ManualRun) -> str:
    """The first letters of the effects of an operation that touch the disk or the server."""
    seen = ""
    while (effect := run.next_effect()) is not None:
        seen += {RunInThread: "t", Send: "S", Receive: "R", RoundTrip: "r"}.get(type(effect), "")
    assert run.error is None
    return seen


async def test_the_next_blocks_are_read_while_the_server_stores_those_before(channel: Channel, do: Do, tmp_path: Path):
    path = tmp_path / "file"
    path.write_bytes(os.urandom(3 * BLOCKS_PER_PUT * BLOCK_SIZE - 1))
    seen = effects(sending(channel, [path], ["r"]))
    assert seen.endswith("StRStRr"), seen
    await do(channel.close)
    assert b"".join(await asyncio.to_thread(received, channel)) == path.read_bytes()


async def test_the_next_blocks_are_asked_for_while_those_before_are_checked(channel: Channel, do: Do, tmp_path: Path):
    path = tmp_path / "file"
    path.write_bytes(os.urandom(2 * BLOCKS_PER_PUT * BLOCK_SIZE))
    await do(channel.send, path, receivers=["r"], close=True)
    stream = channel.receiver("r").blocks()
    filled, blocks = list[str](), list[bytes]()
    while not getattr(stream, "_ended", False):
        filled.append(effects(ManualRun(channel, stream.fill())))
        blocks += stream.take_ready()
        stream._done = stream._given
    assert b"".join(blocks) == path.read_bytes()
    assert filled[0].endswith("StR"), filled
    assert "".join(filled).count("S") == 2, filled


@pytest.mark.parametrize("has_left", [True, False])
async def test_blocks_that_another_process_received_meanwhile_are_not_given(
    channel: Channel, do: Do, tmp_path: Path, clock: Time, has_left: bool
):
    path = tmp_path / "file"
    path.write_bytes(os.urandom(3 * BLOCKS_PER_PUT * BLOCK_SIZE))
    await do(channel.send, path, receivers=["r"], close=True)
    stream, other = channel.receiver("r").blocks(), channel.receiver("r").blocks()
    first = ManualRun(channel, stream.fill())
    while not isinstance(first.next_effect(), Send):  # the server executes it when its reply is received
        pass
    clock.advance(60)
    await do(other.fetch)
    blocks = [*other.take_ready()]
    if has_left:
        other._finish(None)
        await do(other.settle)
    assert isinstance(first.next_effect(), RunInThread)
    assert len(stream._ready) == len(blocks) > 0
    assert isinstance(first.next_effect(), Receive)
    first.next_effect()
    assert not stream._ready
    if has_left:
        blocks += await the_rest(do, stream, first)
        assert b"".join(blocks) == path.read_bytes()
    else:
        first.interrupt()
        assert not stream._ready


async def the_rest(do: Do, stream: ReceiverStream[Block], fetching: ManualRun) -> list[Block]:
    """What a stream gives from now on, which is being fetched."""
    fetching.run()
    blocks = [*stream.take_ready()]
    while len(blocks) < 100 and not getattr(stream, "_ended", False):
        stream._done = stream._given
        await do(stream.fetch)
        blocks += stream.take_ready()
    return blocks


async def test_a_reply_that_another_process_has_taken_over_waits_until_the_blocks_before_are_checked(
    app: Penstock, tmp_path: Path, clock: Time, monkeypatch: pytest.MonkeyPatch
):
    """On an event loop the reply arrives while a thread makes items. Dropping them meanwhile would leave some."""
    channel = app.files("taken")
    path = tmp_path / "file"
    path.write_bytes(os.urandom(3 * BLOCKS_PER_PUT * BLOCK_SIZE))
    await channel.send.aio(path, receivers=["r"], close=True)
    stream, other = channel.receiver("r").blocks(), channel.receiver("r").blocks()
    assert isinstance(stream, ExclusiveStream)
    pull_ahead, on_block, taken = stream._pull_ahead, stream._on_block, list[Block]()

    def after_another(pieces: Any) -> Any:
        clock.advance(60)
        yield RunInThread(lambda: taken.append(next(iter(other))))
        yield from pull_ahead(pieces)

    def slowly(*block: Any) -> Any:
        time.sleep(0.3)
        return on_block(*block)

    monkeypatch.setattr(stream, "_pull_ahead", after_another)
    monkeypatch.setattr(stream, "_on_block", slowly)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stream.fetch.aio(), 4)
    assert taken
    assert not stream._ready
    assert stream._reached.number == 0


TRANSFER = """
import os, resource, sys
from penstock import Penstock
address, path = sys.argv[1:]
with open(path, "wb") as file:
    for _ in range(384):
        file.write(os.urandom(64 * 1024))

def faults_of(work):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    work()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 24

with Penstock(address, prefix="faults") as app:
    for n in range(2):  # the first time also imports modules
        channel = app.files(f"again-{n}")
        sent = faults_of(lambda: channel.send(path, receivers=["r"], close=True))
        received = faults_of(lambda: sum(map(len, channel.receiver("r").blocks())))
        channel.delete()
    print(sent, received)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators keep memory by other rules")
def test_the_memory_of_sent_and_received_blocks_is_used_again(server: Server, tmp_path: Path):
    words = [sys.executable, "-c", TRANSFER, server.address, str(tmp_path / "file")]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}

    done = subprocess.run(words, env=env, capture_output=True, text=True, check=True)

    sent, received = map(int, done.stdout.split())
    assert sent < 60  # page faults per MiB; 256 if each page of each block was new
    assert received < 60


KEPT = """
import resource
from penstock.files.records import keep_freed_memory

keep_freed_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    keep_freed_memory()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_many_transfers_of_a_process_write_to_no_memory_that_they_only_reserve():
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}

    done = subprocess.run([sys.executable, "-c", KEPT], env=env, capture_output=True, text=True, check=True)

    assert int(done.stdout) < 100  # page faults; 1,024 if 4 MiB were written to
