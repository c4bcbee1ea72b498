"""A file that was sent before is recognised by its content, however a rotation has renamed, copied or packed it."""

from __future__ import annotations

import bz2
import gzip
import itertools
import lzma
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import Channel
from penstock.errors import FilesError
from penstock.files.rotation import is_rotated, log_path
from penstock.files.sender import Copy, HeldBack
from penstock.files.source_reader import HEAD_SIZE
from tests.conftest import Apps, commands

_numbers = itertools.count(1)


@pytest.fixture
def place() -> str:
    return "valkey"


@pytest.fixture
def channel(apps: Apps) -> Iterator[Channel]:
    with apps.make() as app:
        made = app.files(f"c{next(_numbers)}")
        made.open(["r"])
        yield made
        made.delete()


def lines(name: str, n: int, width: int = 60) -> bytes:
    return b"".join(b"%s %06d %s\n" % (name.encode(), number, b"x" * width) for number in range(n))


def received(channel: Channel) -> Counter[bytes]:
    return Counter(line for batch in channel.receiver("r").batches(wait=0) for line in batch)


def once(*texts: bytes) -> Counter[bytes]:
    return Counter(line for text in texts for line in text.splitlines())


def age(path: Path, seconds: float = 100) -> None:
    then = path.stat().st_mtime - seconds
    os.utime(path, (then, then))


PACK: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


def pack(path: Path, suffix: str = ".gz") -> Path:
    packed = path.with_name(path.name + suffix)
    packed.write_bytes(PACK[suffix](path.read_bytes()))
    path.unlink()
    return packed


# --- rotation ---


def rotate(log: Path, how: str, kept: int = 7, while_copied: Callable[[Path], object] = lambda copy: None) -> None:
    """One rotation as logrotate does it. `how`: create, copytruncate, compress, delaycompress, or several of them.
    copytruncate calls `while_copied` between the copy and the truncation."""
    for number in range(kept, 0, -1):
        for suffix in ("", ".gz"):
            old = log.with_name(f"{log.name}.{number}{suffix}")
            if old.exists():
                old.rename(log.with_name(f"{log.name}.{number + 1}{suffix}"))
    first = log.with_name(f"{log.name}.1")
    if "copytruncate" in how:
        shutil.copy2(log, first)
        while_copied(first)
        os.truncate(log, 0)
    else:
        log.rename(first)
        log.touch()
    if "delaycompress" in how:
        first = log.with_name(f"{log.name}.2")
    if "compress" in how and first.exists():
        pack(first)


@pytest.mark.parametrize("size", [5, 400])
@pytest.mark.parametrize(
    "how", ["create", "create compress", "create compress delaycompress", "copytruncate", "copytruncate compress"]
)
def test_each_line_of_a_week_of_rotations_is_sent_once(channel: Channel, tmp_path: Path, how: str, size: int):
    """A cron job sends the folder before and after each rotation, with lines that came in between."""
    logs, written = tmp_path / "logs", list[bytes]()
    logs.mkdir()
    log = logs / "access.log"
    log.touch()
    for day in range(7):
        for part in range(3):
            text = lines(f"day {day} part {part}", size)
            written.append(text)
            with log.open("ab") as file:
                file.write(text)
            if part != 1:
                channel.send_lines(logs, settle=0)
        rotate(log, how)
        channel.send_lines(logs, settle=0)
    assert received(channel) == once(*written)


def test_a_single_path_is_enough_although_the_log_is_rotated(channel: Channel, tmp_path: Path):
    """What was written to the log between the last send and the rotation is found under its new name."""
    log, written = tmp_path / "access.log", list[bytes]()
    for day in range(4):
        text = [lines(f"day {day} {part}", 100) for part in "ab"]
        written += text
        log.write_bytes(text[0])
        channel.send_lines(log)
        with log.open("ab") as file:
            file.write(text[1])
        rotate(log, "create compress" if day % 2 else "create")
        log.unlink()
    log.write_bytes(b"last\n")
    channel.send_lines(log)
    assert received(channel) == once(*written, b"last\n")


@pytest.mark.parametrize("suffix", PACK)
def test_a_packed_copy_is_named_and_not_sent_again(channel: Channel, tmp_path: Path, suffix: str):
    log = tmp_path / "a.log"
    log.write_bytes(lines("a", 1000))
    assert channel.send_lines(log).files
    packed = pack(log, suffix).rename(tmp_path / f"elsewhere{suffix}")
    again = channel.send_lines(packed)
    assert (again.files, again.copies) == ([], [Copy(packed.name, "a.log")])
    assert channel.send_lines(packed).skipped == [packed.name]  # now it is known by its inode
    other = packed.rename(tmp_path / f"moved{suffix}")
    assert [file.lines for file in channel.send_lines(other, identity="path").files] == [1000]
    assert channel.send_lines(other, identity="path").skipped == [other.name]
    assert received(channel) == Counter(dict.fromkeys(lines("a", 1000).splitlines(), 2))


def test_a_packed_log_that_has_more_than_was_sent_continues(channel: Channel, tmp_path: Path):
    log = tmp_path / "a.log"
    log.write_bytes(lines("a", 500))
    channel.send_lines(log)
    with log.open("ab") as file:
        file.write(lines("later", 10))
    (sent,) = channel.send_lines(pack(log)).files
    assert sent.lines == 510
    assert received(channel) == once(lines("a", 500), lines("later", 10))


def test_a_different_or_shorter_file_is_new(channel: Channel, tmp_path: Path):
    first = tmp_path / "a.log"
    first.write_bytes(lines("a", 9000))  # several blocks
    channel.send_lines(first)
    text = bytearray(first.read_bytes())
    text[len(text) // 2] ^= 1
    others = [bytes(text), bytes(text[: len(text) // 3]), first.read_bytes()[: len(text) // 2]]
    for number, other in enumerate(others):
        path = tmp_path / f"other{number}.log"
        path.write_bytes(other[: other.rfind(b"\n") + 1])
    assert len(channel.send_lines(sorted(tmp_path.glob("other*"))).files) == 3


@pytest.mark.parametrize("size", [3, 200])
def test_two_copies_in_one_send_are_sent_once_if_they_are_no_short_files(channel: Channel, tmp_path: Path, size: int):
    for name in ("a.log", "b.log"):
        (tmp_path / name).write_bytes(lines("same", size))
    sent = channel.send_lines(tmp_path)
    assert len(sent.files) == (2 if size == 3 else 1)
    assert sent.copies == ([] if size == 3 else [Copy("b.log", "a.log")])


def test_short_equal_logs_of_several_days_are_all_sent(channel: Channel, tmp_path: Path):
    """Each day the log has the same line. A packed one is not sent again nevertheless."""
    log = tmp_path / "restart.log"
    log.touch()
    for _ in range(5):
        log.write_bytes(b"started\n")
        channel.send_lines(tmp_path, settle=0)
        rotate(log, "create compress delaycompress")
        channel.send_lines(tmp_path, settle=0)
    assert received(channel) == {b"started": 5}


def test_equal_files_of_bytes_are_all_sent(channel: Channel, tmp_path: Path):
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / name).write_bytes(b"a photo" * 5000)
    assert len(channel.send(tmp_path).files) == 2
    assert channel.send(tmp_path).skipped == ["a.jpg", "b.jpg"]


def test_the_same_log_of_two_hosts_is_two_logs(channel: Channel, tmp_path: Path):
    log = tmp_path / "a.log"
    log.write_bytes(lines("a", 200))
    for host in ("web-1", "web-2"):
        assert len(channel.send_lines(log, source=host).files) == 1
    assert {batch.source for batch in channel.receiver("r").batches(wait=0)} == {"web-1", "web-2"}


def test_a_copy_that_is_being_written_waits(channel: Channel, tmp_path: Path):
    log, copy = tmp_path / "a.log", tmp_path / "a.log.1"
    text = lines("a", 300)
    log.write_bytes(text)
    channel.send_lines(tmp_path)
    copy.write_bytes(text[:1000])  # copytruncate at work
    assert channel.send_lines(tmp_path).waiting == ["a.log.1"]
    copy.write_bytes(text)
    assert [one.name for one in channel.send_lines(tmp_path).copies] == ["a.log.1"]
    os.truncate(log, 0)
    part = gzip.compress(text)[:-20]
    (tmp_path / "a.log.1.gz").write_bytes(part)
    assert "a.log.1.gz" in channel.send_lines(tmp_path).waiting
    (tmp_path / "a.log.1.gz").write_bytes(gzip.compress(text))
    copy.unlink()
    channel.send_lines(tmp_path)
    assert received(channel) == once(text)


def test_a_log_that_was_short_when_it_was_first_sent_is_known_by_all_of_its_beginning(channel: Channel, tmp_path: Path):
    """Its first bytes identify it, up to 256 KiB, as far as it has grown."""
    log, text = tmp_path / "a.log", b""
    for part, size in enumerate((3, 30, 300, 6000)):
        text += lines(f"part {part}", size)
        log.write_bytes(text)
        channel.send_lines(log)
    other = bytearray(text)
    other[HEAD_SIZE - 1000] ^= 1
    (tmp_path / "other.txt").write_bytes(other)
    (tmp_path / "copy.txt").write_bytes(text)
    log.unlink()
    sent = channel.send_lines(tmp_path)
    assert (sent.copies, [file.name for file in sent.files]) == ([Copy("copy.txt", "a.log")], ["other.txt"])


# --- an upload that was interrupted ---


def test_an_upload_resumes_in_the_packed_log(channel: Channel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    log, other = tmp_path / "a.log", lines("new", 300)
    log.write_bytes(lines("a", 30_000))

    def die(_: object) -> None:
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError):
        channel.send_lines(log, progress=die)
    packed = pack(log)
    log.write_bytes(other)
    sent = channel.send_lines([log, packed])
    assert [(file.name, file.resumed) for file in sent.files] == [("a.log", True), ("a.log", False)]
    assert received(channel) == once(lines("a", 30_000), other)


# --- unfinished lines ---


def test_an_unfinished_line_is_held_back_until_it_ends(channel: Channel, tmp_path: Path):
    log = tmp_path / "a.log"
    log.write_bytes(b"one\ntw")
    sent = channel.send_lines(log)
    assert sent.held_back == [HeldBack("a.log", 2)]
    assert sum(received(channel).values()) == 1
    for text in (b"o\nth", b"r", b"ee\n"):
        with log.open("ab") as file:
            file.write(text)
        channel.send_lines(log)
    assert received(channel) == {b"two": 1, b"three": 1}


@pytest.mark.parametrize("how", ["packed", "renamed", "final", "close"])
def test_a_last_line_of_a_finished_file_is_a_line(channel: Channel, tmp_path: Path, how: str):
    log = tmp_path / "a.log"
    log.write_bytes(b"one\ntwo")
    assert channel.send_lines(log).held_back
    if how == "packed":
        log = pack(log)
    elif how == "renamed":
        log = log.rename(tmp_path / "a.log.1")
        channel.send_lines(log)
        assert received(channel) == {b"one": 1}
        age(log)
    assert channel.send_lines(log, final=True if how == "final" else None, close=how == "close").held_back == []
    found = received(channel)
    assert found[b"two"] == 1
    assert found[b"one"] <= 1


def test_a_file_with_half_a_line_only_is_not_begun(channel: Channel, tmp_path: Path):
    (tmp_path / "a.log").write_bytes(b"half")
    for _ in range(2):
        sent = channel.send_lines(tmp_path / "a.log")
        assert [one.bytes for one in sent.held_back] == [4]
    with (tmp_path / "a.log").open("ab") as file:
        file.write(b" a line\n")
    channel.send_lines(tmp_path / "a.log")
    assert received(channel) == {b"half a line": 1}


def test_a_very_long_unfinished_line_is_held_back_whole(channel: Channel, tmp_path: Path):
    log = tmp_path / "a.log"
    log.write_bytes(b"short\n" + b"x" * 700_000)
    assert channel.send_lines(log).held_back == [HeldBack("a.log", 700_000)]
    with log.open("ab") as file:
        file.write(b"y\n")
    channel.send_lines(log)
    assert received(channel) == {b"short": 1, b"x" * 700_000 + b"y": 1}


# --- a file that changes while it is sent ---


@pytest.mark.parametrize("verb", ["send", "send_lines"])
def test_a_file_that_is_changed_in_place_while_it_is_sent_is_reported(channel: Channel, tmp_path: Path, verb: str):
    log = tmp_path / "a.log"
    log.write_bytes(lines("a", 40_000))
    age(log)
    changed = list[int]()

    def change(_: Any) -> None:
        if not changed:
            changed.append(1)
            with log.open("r+b") as file:
                file.write(b"B")

    with pytest.raises(FilesError, match="changed in place while it was sent"):
        getattr(channel, verb)(log, progress=change)
    with pytest.raises(FilesError, match="changed in place"):
        list(channel.receiver("r").blocks(wait=0))


def test_a_log_that_grows_while_it_is_sent_is_sound(channel: Channel, tmp_path: Path):
    log = tmp_path / "a.log"
    log.write_bytes(lines("a", 40_000))

    def grow(_: Any) -> None:
        with log.open("ab") as file:
            file.write(b"more\n")

    channel.send_lines(log, progress=grow)
    channel.send_lines(log)
    found = received(channel)
    assert found.pop(b"more") >= 3
    assert found == once(lines("a", 40_000))


# --- names ---


@pytest.mark.parametrize(
    ("name", "log"),
    [
        ("access.log", "access.log"),
        ("access.log.1", "access.log"),
        ("access.log.12.gz", "access.log"),
        ("access.log-20260302", "access.log"),
        ("access.log-20260302.xz", "access.log"),
        ("access-20260302.log", "access.log"),
        ("access.1.log", "access.log"),
        ("a.log.2026-03-02_13", "a.log"),
        ("messages-20260302-1763800000", "messages"),
        ("a.log.old", "a.log"),
        ("20260302.log", "20260302.log"),
        ("f0001.txt", "f0001.txt"),
        ("node12.log", "node12.log"),
        ("a.log.1.zst", "a.log"),
        ("a.log.bz2", "a.log"),
    ],
)
def test_the_name_of_a_rotated_log_leads_to_its_log(name: str, log: str):
    assert log_path(f"/logs/{name}") == f"/logs/{log}"


def test_only_a_log_beside_its_rotated_one_proves_a_rotation(tmp_path: Path):
    rotated = tmp_path / "worker.1"
    rotated.touch()
    assert not is_rotated(str(rotated))
    (tmp_path / "worker").touch()
    assert is_rotated(str(rotated))
    assert not is_rotated(str(tmp_path / "worker"))


def test_small_files_share_round_trips(channel: Channel, tmp_path: Path, nodes: list[Any]):
    for number in range(300):
        (tmp_path / f"f{number:03}").write_bytes(b"%03d" % number * 300)
    before = sum(map(commands, nodes))
    assert len(channel.send(tmp_path).files) == 300
    assert sum(map(commands, nodes)) - before <= 20
    assert {block.file: bytes(block) for block in channel.receiver("r").blocks(wait=0)} == {
        path.name: path.read_bytes() for path in tmp_path.iterdir()
    }


@pytest.mark.parametrize(("size", "sent_before"), [(5, 1), (5, 60), (400, 0), (400, 1), (400, 60)])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("sent_meanwhile", [1, 5, 40])
def test_a_copy_that_was_made_long_before_the_log_was_truncated_is_known(
    channel: Channel, tmp_path: Path, size: int, packed: bool, sent_before: int, sent_meanwhile: int
):
    """copytruncate copies a large log for so long that the log is sent several times meanwhile."""
    logs, written = tmp_path / "logs", list[bytes]()
    logs.mkdir()
    log, copy = logs / "access.log", logs / "access.log.1"

    def write(name: str) -> None:
        written.append(lines(name, size))
        with log.open("ab") as file:
            file.write(written[-1])

    write("first")
    for n in range(sent_before):
        channel.send_lines(logs)
        write(f"before {n}")
    copy.write_bytes(log.read_bytes())
    for n in range(sent_meanwhile):
        channel.send_lines(logs)
        write(f"while copied {n}")
    channel.send_lines(logs)
    os.truncate(log, 0)
    if packed:
        pack(copy)
    write("after")
    sent = channel.send_lines(logs, settle=0)
    assert received(channel) == once(*written)
    assert "access.log.1" + ".gz" * packed in {*sent.skipped, *(one.name for one in sent.copies)}


def test_a_new_log_may_begin_like_the_one_before(channel: Channel, tmp_path: Path):
    """Each day, the program writes the same first lines."""
    log = tmp_path / "a.log"
    for day in range(3):
        for text in (b"started\n", b"ready\n", b"day %d\n" % day):
            with log.open("ab") as file:
                file.write(text)
            channel.send_lines(tmp_path)
        log.rename(tmp_path / f"a.log.{3 - day}")
    assert received(channel) == Counter({b"started": 3, b"ready": 3, b"day 0": 1, b"day 1": 1, b"day 2": 1})


@pytest.mark.parametrize("how", ["copytruncate", "copytruncate compress", "copytruncate compress delaycompress"])
@pytest.mark.parametrize("grows", [False, True])
@pytest.mark.parametrize("size", [5, 300])
def test_copies_of_several_days_are_known_although_the_log_was_sent_while_it_was_copied(
    channel: Channel, tmp_path: Path, size: int, grows: bool, how: str
):
    """`grows`: after the truncation the log becomes larger than it was, before it is sent again."""
    logs, written = tmp_path / "logs", list[bytes]()
    logs.mkdir()
    log = logs / "access.log"

    def write(name: str, n: int) -> None:
        written.append(lines(name, n))
        with log.open("ab") as file:
            file.write(written[-1])

    def send_while_copied(copy: Path) -> None:
        for part in range(4):
            channel.send_lines(logs)
            write(f"day {day} while copied {part}", size)
            channel.send_lines(logs)
            assert copy.name not in {file.name for file in channel.send_lines(logs).files}

    for day in range(4):
        write(f"day {day}", size * (4**day if grows else 1))
        channel.send_lines(logs, settle=0)
        write(f"day {day} unsent", size)
        rotate(log, how, kept=day, while_copied=send_while_copied)
    write("last", size)
    channel.send_lines(logs, settle=0)
    channel.send_lines(logs, settle=0)
    assert received(channel) == once(*written)
