"""A sender may die between any two round trips, and the file may change meanwhile: every byte arrives once."""

from __future__ import annotations

import errno
import gzip
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import Channel, Penstock
from penstock.errors import FileChanged, FilesError, SentElsewhere
from penstock.files import source_reader, upload
from tests.conftest import Apps
from tests.driver.proxy import Proxy
from tests.files.manual_run import ManualRun, sending
from tests.servers import Server

TEXT = b"".join(b"line %d of the file\n" % n for n in range(40))
OTHER = b"".join(b"another %d\n" % n for n in range(30))
MORE = b"what came later\nand later\n"

_numbers = itertools.count(1)


@pytest.fixture
def place() -> str:
    return "valkey"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_reader, "BLOCK_SIZE", 150)
    monkeypatch.setattr(upload, "BLOCKS_PER_PUT", 2)


@pytest.fixture
def app(apps: Apps) -> Iterator[Penstock]:
    with apps.make() as made:
        yield made


def new(app: Penstock) -> Channel:
    return app.files(f"c{next(_numbers)}")


def received(channel: Channel) -> tuple[list[tuple[str, bytes]], list[str]]:
    """Name and content of each file, in the order in which they began; and the errors of other files."""
    channel.close()
    found: list[tuple[str, bytes]] = []
    errors: list[str] = []
    blocks = channel.receiver("r").blocks()
    while True:
        try:
            for block in blocks:
                content = b""
                if block.offset:
                    at = next(at for at in reversed(range(len(found))) if len(found[at][1]) == block.offset)
                    content = found.pop(at)[1]
                found.append((block.file, content + block))
            return found, errors
        except FilesError as error:
            errors.append(str(error))
            found.pop()


Event = Callable[[Path], object]


def nothing(path: Path) -> None:
    pass


def rotated(path: Path) -> None:
    path.rename(f"{path}.1")
    path.write_bytes(OTHER)


def truncated(path: Path) -> None:
    path.write_bytes(OTHER)


def replaced(path: Path) -> None:
    new = path.with_name("new")
    new.write_bytes(OTHER)
    new.replace(path)


def grown(path: Path) -> None:
    with path.open("ab") as file:
        file.write(gzip.compress(MORE, mtime=0) if path.suffix == ".gz" else MORE)


def killed_after_every_effect(
    app: Penstock, folder: Path, lines: bool, event: Event, name: str = "log"
) -> Iterator[Any]:
    """Kill a sender after 0, 1, 2, … effects, then let `event` happen. Yields the channel, the path, and whether the
    upload had begun."""
    for effects in itertools.count():
        channel, here = new(app), folder / str(effects)
        here.mkdir()
        path = here / name
        path.write_bytes(gzip.compress(TEXT, 0, mtime=0) if name.endswith(".gz") else TEXT)
        first = sending(channel, [path], ["r"], lines=lines)
        advanced = [first.advance() for _ in range(effects)]
        began = channel.bindings is not None and bool(advanced) and _last(channel) > 0
        first.kill()
        event(path)
        yield channel, path, began
        channel.delete()
        if advanced and not advanced[-1]:
            assert effects > 8
            return


def _last(channel: Channel) -> int:
    try:
        return channel.info().last
    except FilesError:
        return 0


def content(path: Path, lines: bool) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if lines and data[:2] == b"\x1f\x8b" else data


@pytest.mark.parametrize("lines", [False, True])
@pytest.mark.parametrize("name", ["log", "log.gz"])
def test_a_sender_that_is_started_again_resumes(app: Penstock, tmp_path: Path, lines: bool, name: str):
    for channel, path, _ in killed_after_every_effect(app, tmp_path, lines, nothing, name):
        again = sending(channel, [path], ["r"], lines=lines).run()
        assert again.error is None
        third = sending(channel, [path], ["r"], lines=lines).run()
        assert (third.answer.files, third.answer.skipped) == ([], [name])
        assert received(channel) == ([(name, content(path, lines))], [])


@pytest.mark.parametrize("lines", [False, True])
@pytest.mark.parametrize("order", [1, -1])
def test_a_sender_resumes_in_a_file_that_was_rotated_meanwhile(app: Penstock, tmp_path: Path, lines: bool, order: int):
    for channel, path, began in killed_after_every_effect(app, tmp_path, lines, rotated):
        given = [path, path.with_name("log.1")][::order]
        assert sending(channel, given, ["r"], lines=lines).run().error is None
        found, errors = received(channel)
        assert errors == []
        assert sorted(found, key=lambda one: one[1]) == [("log", OTHER), ("log" if began else "log.1", TEXT)]


@pytest.mark.parametrize("lines", [False, True])
@pytest.mark.parametrize("event", [truncated, replaced])
def test_receivers_learn_that_a_file_was_replaced(app: Penstock, tmp_path: Path, lines: bool, event: Event):
    for channel, path, began in killed_after_every_effect(app, tmp_path, lines, event):
        whole = began and channel.info().sending == 0
        assert sending(channel, [path], ["r"], lines=lines).run().error is None
        found, errors = received(channel)
        assert found == [("log", TEXT)] * whole + [("log", OTHER)]
        assert len(errors) == (began and not whole)
        assert all(str(path) in text for text in errors)


def test_receivers_learn_that_a_file_was_replaced_once_there_is_space(app: Penstock, tmp_path: Path):
    channel, path = new(app), tmp_path / "log"
    path.write_bytes(TEXT)
    first = sending(channel, [path], ["r"])
    while _last(channel) < 3:
        first.advance()
    first.kill()
    replaced(path)
    again = sending(channel, [path], limit=channel.info().bytes + 100)
    for _ in range(20):
        again.advance()
    assert not again.ended, again.error
    channel.open(limit=2 << 20)
    assert again.run().error is None
    found, errors = received(channel)
    assert (found, len(errors)) == ([("log", OTHER)], 1)


@pytest.mark.parametrize("name", ["log", "log.gz"])
def test_of_a_log_that_grew_only_the_growth_is_sent_as_lines(app: Penstock, tmp_path: Path, name: str):
    for channel, path, _ in killed_after_every_effect(app, tmp_path, True, grown, name):
        sending(channel, [path], ["r"], lines=True).run()
        rotated = path.rename(path.with_name(f"old-{name}"))
        assert sending(channel, [rotated], ["r"], lines=True).run().error is None
        channel.close()
        batches = list(channel.receiver("r").batches())
        assert b"".join(line + b"\n" for batch in batches for line in batch) == TEXT + MORE
        numbers = [batch.first + at for batch in batches for at in range(len(batch))]
        assert numbers == list(range(1, 43))
        assert {batch.file for batch in batches} <= {name, f"old-{name}"}


def test_a_file_of_bytes_that_grew_is_sent_whole_again(app: Penstock, tmp_path: Path):
    for channel, path, began in killed_after_every_effect(app, tmp_path, False, grown):
        for _ in range(3):
            sending(channel, [path], ["r"]).run()
        assert received(channel) == ([("log", TEXT)] * began + [("log", TEXT + MORE)], [])


def test_a_file_that_became_shorter_after_it_was_sent_is_sent_whole(app: Penstock, tmp_path: Path):
    channel, path = new(app), tmp_path / "log"
    for text in (TEXT, OTHER):
        path.write_bytes(text)
        sending(channel, [path], ["r"], lines=True).run()
    path.write_bytes(OTHER * 2)  # looks like a file that has grown: its beginning is the same
    sending(channel, [path], lines=True).run()
    path.write_bytes(TEXT * 2)
    sending(channel, [path], lines=True).run()
    assert b"".join(data for _, data in received(channel)[0]) == TEXT + OTHER * 2 + TEXT * 2
    channel.delete()


def test_a_long_line_is_cut_even_after_a_restart(app: Penstock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(upload, "BLOCKS_PER_PUT", 1)
    path = tmp_path / "long"
    path.write_bytes(b"short\n" + b"x" * 1000 + b"\nend")
    for effects in range(24):
        channel = new(app)
        first = sending(channel, [path], ["r"], lines=True)
        for _ in range(effects):
            first.advance()
        first.kill()
        sending(channel, [path], ["r"], lines=True).run()
        channel.close()
        batches = list(channel.receiver("r").batches(share=True))
        found = [(batch.first + at, type(line).__name__) for batch in batches for at, line in enumerate(batch)]
        assert found == [(1, "bytes"), (2, "CutLine"), (3, "bytes")]
        channel.delete()


def test_a_full_last_block_without_a_line_end_is_a_shared_line(app: Penstock, tmp_path: Path):
    path, channel = tmp_path / "full", new(app)
    path.write_bytes(b"a\n" * 75 + b"y" * 150)
    sending(channel, [path], ["r"], lines=True, close=True).run()
    lines = [line for batch in channel.receiver("r").batches(share=True) for line in batch]
    assert lines == [b"a"] * 75 + [b"y" * 150]
    channel.delete()


# --- several senders, and failures ---


def test_of_two_senders_of_a_file_the_older_stops_and_every_byte_arrives_once(app: Penstock, tmp_path: Path):
    path = tmp_path / "log"
    path.write_bytes(TEXT)
    for older, newer in itertools.product(range(0, 16, 2), repeat=2):
        channel = new(app)
        first, second = (sending(channel, [path], ["r"]) for _ in range(2))
        for one, effects in ((first, older), (second, newer)):
            for _ in range(effects):
                one.advance()
        for one in (first, second):
            one.run()
            assert one.error is None or type(one.error) is SentElsewhere
        assert first.error is None or second.error is None
        assert received(channel) == ([("log", TEXT)], [])
        channel.delete()


def test_a_sender_that_was_replaced_raises(app: Penstock, tmp_path: Path):
    path, channel = tmp_path / "log", new(app)
    path.write_bytes(TEXT)
    first = sending(channel, [path], ["r"])
    while _last(channel) == 0:
        first.advance()
    assert sending(channel, [path], ["r"]).run().answer.files[0].resumed
    assert isinstance(first.run().error, SentElsewhere)
    assert received(channel) == ([("log", TEXT)], [])
    channel.delete()


def test_files_that_were_sent_are_sent_again_on_request(app: Penstock, tmp_path: Path):
    path, channel = tmp_path / "log", new(app)
    path.write_bytes(TEXT)
    for again, lines in ((False, False), (False, True), (True, False), (True, True)):
        assert len(sending(channel, [path], ["r"], lines=lines, again=again).run().answer.files) == 1
    assert received(channel) == ([("log", TEXT)] * 4, [])
    channel.delete()


def test_a_read_error_costs_only_its_own_file(app: Penstock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_bytes(TEXT)
    b.write_bytes(OTHER)
    read, broken = os.pread, [True]

    def pread(file: int, length: int, offset: int) -> bytes:
        if broken[0] and os.fstat(file).st_ino == a.stat().st_ino and offset > 400:
            raise OSError(errno.EIO, "Input/output error")
        return read(file, length, offset)

    monkeypatch.setattr(os, "pread", pread)
    channel = new(app)
    with pytest.raises(FilesError, match=r"1 of 2 files.*a cannot be read: Input/output error"):
        channel.send([a, b], receivers=["r"])
    broken[0] = False
    again = channel.send([a, b])
    assert ([file.name for file in again.files], again.skipped) == (["a"], ["b"])
    found, (errors,) = received(channel)
    assert found == [("b", OTHER), ("a", TEXT)]
    assert "Input/output error" in errors
    channel.delete()


def test_a_file_that_shrinks_during_its_upload_is_aborted(app: Penstock, tmp_path: Path):
    path, channel = tmp_path / "log", new(app)
    path.write_bytes(TEXT)
    with pytest.raises(FilesError, match=r"changed since its upload began"):
        channel.send(path, receivers=["r"], progress=lambda _: os.truncate(path, 100))
    found, (errors,) = received(channel)
    assert (found, "changed since" in errors) == ([], True)
    assert issubclass(FileChanged, FilesError)
    channel.delete()


@pytest.mark.parametrize(
    "text",
    [b"", b"no gzip at all", gzip.compress(TEXT)[:-9], gzip.compress(TEXT) + b"x"],
    ids=["empty", "text", "cut", "more"],
)
def test_damaged_gzip_is_named_and_the_next_file_is_sent(app: Penstock, tmp_path: Path, text: bytes):
    bad, good, channel = tmp_path / "bad.gz", tmp_path / "good.gz", new(app)
    bad.write_bytes(text)
    good.write_bytes(gzip.compress(OTHER))
    with pytest.raises(FilesError, match=r"1 of 2 files.*bad\.gz"):
        channel.send_lines([bad, good], receivers=["r"])
    channel.close()
    lines, errors = [], []
    stream = channel.receiver("r").lines()
    for _ in range(2):
        try:
            lines += list(stream)
        except FilesError as error:
            errors.append(str(error))
    assert len(errors) == 1
    assert "bad.gz" in errors[0]
    assert b"".join(line + b"\n" for line in lines).endswith(OTHER)
    channel.delete()


def test_lost_replies_change_nothing(start: Callable[..., Server], tmp_path: Path):
    server = start()
    proxy = Proxy(server)
    path = tmp_path / "log"
    path.write_bytes(TEXT)
    with Penstock(proxy.address) as app:
        channel = app.files("c")
        proxy.lose_replies(3)
        channel.send(path, receivers=["r"], progress=lambda _: proxy.lose_replies(1))
        proxy.lose_replies(1)
        assert not channel.receiver("r").join()
        proxy.lose_replies(1)
        assert channel.close()
        found = b""
        proxy.lose_replies(2)
        blocks = channel.receiver("r").blocks()
        while True:
            blocks.fetch()
            items = [*blocks.take_ready()]
            assert blocks.take_error() is None
            if not items:
                break
            found += b"".join(items)
            proxy.lose_replies(1)
        assert found == TEXT
        assert proxy.lost >= 8
    proxy.close()


def test_a_stepping_keeps_its_error(app: Penstock, tmp_path: Path):
    (tmp_path / "log").write_bytes(b"")
    failed: ManualRun = sending(new(app), [tmp_path / "log"]).run()
    assert isinstance(failed.error, FilesError)
