"""A log is followed through its rotations, whatever its writer does."""

from __future__ import annotations

import gzip
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock import Channel
from penstock.errors import ConfigurationError, FileDamaged
from penstock.files import following
from penstock.files.sender import Sent
from tests.conftest import Apps, commands
from tests.files.test_recognition import lines, once, pack
from tests.servers import eventually
from tests.speed import scaled


@pytest.fixture
def place() -> str:
    return "valkey"


@pytest.fixture
def channel(apps: Apps, monkeypatch: pytest.MonkeyPatch) -> Iterator[Channel]:
    monkeypatch.setattr(following, "LOOK_INTERVAL", 0.05)
    with apps.make() as app:
        made = app.files("followed")
        made.open(["r"])
        yield made
        made.delete()


class Followed:
    """What has been received so far, and at the end the result of the send."""

    def __init__(self, channel: Channel) -> None:
        self.lines = Counter[bytes]()
        self.sent: Sent | None = None
        self._stream = channel.receiver("r").batches(wait=0)

    def has(self, *texts: bytes) -> bool:
        for batch in self._stream:
            self.lines.update(batch)
        assert max(self.lines.values(), default=1) == 1, "a line came twice"
        return self.lines == once(*texts)


@contextmanager
def followed(channel: Channel, paths: Any, **more: Any) -> Iterator[Followed]:
    stopped, result = threading.Event(), Followed(channel)

    def send() -> None:
        result.sent = channel.send_lines(paths, follow=lambda: not stopped.is_set(), **{"settle": 0.5, **more})

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield result
    finally:
        stopped.set()
        sender.join(scaled(30))


def wait_for(condition: Callable[[], bool]) -> None:
    eventually(condition)


def append(path: Path, text: bytes) -> None:
    with path.open("ab") as file:
        file.write(text)


def test_lines_arrive_when_they_are_whole_and_new_files_are_found(channel: Channel, tmp_path: Path):
    log = tmp_path / "a.log"
    log.write_bytes(b"one\ntw")
    with followed(channel, tmp_path) as result:
        wait_for(lambda: result.has(b"one\n"))
        append(log, b"o\nthr")
        wait_for(lambda: result.has(b"one\ntwo\n"))
        (tmp_path / "b.log").write_bytes(b"new\n")
        wait_for(lambda: result.has(b"one\ntwo\nnew\n"))
        append(log, b"ee\n")
    assert result.has(b"one\ntwo\nthree\nnew\n")
    assert result.sent is not None
    assert {(file.name, file.lines) for file in result.sent.files} == {("a.log", 3), ("b.log", 1)}


@pytest.mark.parametrize("size", [3, 300])
def test_a_log_is_read_to_its_end_after_it_was_renamed_and_deleted(channel: Channel, tmp_path: Path, size: int):
    log = tmp_path / "a.log"
    log.write_bytes(lines("old", size))
    with followed(channel, log) as result:
        wait_for(lambda: result.has(lines("old", size)))
        with log.open("ab") as writer:
            log.rename(tmp_path / "a.log.1")
            (tmp_path / "a.log.1").unlink()
            log.write_bytes(lines("new", size))
            writer.write(b"late\nhalf")  # the program has not reopened its log yet
        wait_for(lambda: result.has(lines("old", size), lines("new", size), b"late\nhalf\n"))


@pytest.mark.parametrize("packs", [False, True])
@pytest.mark.parametrize("size", [3, 300])
def test_a_copy_made_before_a_truncation_is_not_sent_again(channel: Channel, tmp_path: Path, size: int, packs: bool):
    log, copy = tmp_path / "a.log", tmp_path / "a.log.1"
    log.write_bytes(lines("old", size))
    with followed(channel, tmp_path) as result:
        wait_for(lambda: result.has(lines("old", size)))
        shutil.copy2(log, copy)
        append(log, lines("between", 3))  # in no file after the truncation
        wait_for(lambda: result.has(lines("old", size), lines("between", 3)))
        os.truncate(log, 0)
        if packs:
            (tmp_path / "a.log.1.gz").write_bytes(gzip.compress(copy.read_bytes()))
            copy.unlink()
        append(log, lines("new", 2))
        wait_for(lambda: result.has(lines("old", size), lines("between", 3), lines("new", 2)))
        time.sleep(1.2)  # the copy is old enough now to be taken for another log
    assert result.has(lines("old", size), lines("between", 3), lines("new", 2))


def test_a_short_log_that_was_packed_is_read_to_its_end(channel: Channel, tmp_path: Path):
    """A program writes to its log after the log was packed, and the packed copy was recognised already."""
    log = tmp_path / "a.log"
    log.write_bytes(lines("old", 3))
    with followed(channel, tmp_path, settle=3) as result:
        wait_for(lambda: result.has(lines("old", 3)))
        with log.open("ab") as writer:
            renamed = log.rename(tmp_path / "a.log.1")
            log.write_bytes(lines("new", 3))
            pack(renamed)
            wait_for(lambda: result.has(lines("old", 3), lines("new", 3)))
            time.sleep(0.3)
            writer.write(b"late\n")
        wait_for(lambda: result.has(lines("old", 3), lines("new", 3), b"late\n"))
    assert result.has(lines("old", 3), lines("new", 3), b"late\n")


def test_the_end_of_following_may_be_final_and_close_the_channel(channel: Channel, tmp_path: Path):
    (tmp_path / "a.log").write_bytes(b"one\nhalf")
    with followed(channel, tmp_path, close=True) as result:
        wait_for(lambda: result.has(b"one\n"))
    assert result.sent is not None
    assert result.sent.closed
    assert result.has(b"one\nhalf\n")


def test_following_sends_few_commands_while_nothing_happens(channel: Channel, tmp_path: Path, nodes: list[Any]):
    (tmp_path / "a.log").write_bytes(b"one\n")
    with followed(channel, tmp_path) as result:
        wait_for(lambda: result.has(b"one\n"))
        time.sleep(0.5)
        before = sum(map(commands, nodes))
        time.sleep(2)
        assert sum(map(commands, nodes)) - before <= 6  # once a second it looks whether a file is finished


def test_damaged_and_vanished_files_do_not_end_following(
    channel: Channel, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    (tmp_path / "bad.gz").write_bytes(b"no gzip")
    (tmp_path / "a.log").write_bytes(b"one\n")
    stream = channel.receiver("r").batches(wait=0)
    with followed(channel, tmp_path):
        eventually(lambda: "bad.gz is damaged" in caplog.text)
        (tmp_path / "a.log").unlink()
        (tmp_path / "b.log").write_bytes(b"two\n")
        time.sleep(0.5)
    found, damaged = Counter[bytes](), ""
    for _ in range(3):
        try:
            for batch in stream:
                found.update(batch)
        except FileDamaged as error:
            damaged = str(error)
    assert "bad.gz is damaged" in damaged
    assert found == {b"one": 1, b"two": 1}


@pytest.mark.parametrize("size", [3, 300])
@pytest.mark.parametrize("empties_first", [True, False])
def test_a_truncated_log_that_begins_with_the_same_text_is_read_again(
    channel: Channel, tmp_path: Path, size: int, empties_first: bool
):
    log = tmp_path / "a.log"
    text = b"started\n" + lines("old", size)
    log.write_bytes(text)
    received = Counter[bytes]()
    stream = channel.receiver("r").batches(wait=0)

    def has(*texts: bytes) -> bool:
        for batch in stream:
            received.update(batch)
        return received == once(*texts)

    with followed(channel, log):
        wait_for(lambda: has(text))
        os.truncate(log, 0)
        if empties_first:
            time.sleep(0.3)  # it is seen while it is empty
        append(log, b"started\n")
        wait_for(lambda: has(text, b"started\n"))
        append(log, lines("old", size))
        wait_for(lambda: has(text, text))


def test_a_log_that_begins_again_between_two_sends_is_read_again(channel: Channel, tmp_path: Path):
    log = tmp_path / "a.log"
    for text in (b"one\ntwo\n", b"", b"one\n", b"one\ntwo\n", b"one\ntwo\nthree\n"):
        log.write_bytes(text)
        channel.send_lines(log)
    received = Counter(line for batch in channel.receiver("r").batches(wait=0) for line in batch)
    assert received == {b"one": 2, b"two": 2, b"three": 1}


@pytest.mark.parametrize("path", ["a.log", "later/a.log", "later"])
def test_a_path_that_does_not_exist_yet_is_waited_for(channel: Channel, tmp_path: Path, path: str):
    log = tmp_path / ("later/a.log" if "later" in path else path)
    with followed(channel, tmp_path / path) as result:
        time.sleep(0.2)
        log.parent.mkdir(exist_ok=True)
        log.write_bytes(b"one\n")
        wait_for(lambda: result.has(b"one\n"))


@pytest.mark.parametrize("source", [".", "..", ".penstock-r"])
def test_a_source_that_cannot_be_a_folder_is_refused(channel: Channel, tmp_path: Path, source: str):
    (tmp_path / "a.log").write_bytes(b"x\n")
    with pytest.raises(ConfigurationError, match="receivers may save"):
        channel.send_lines(tmp_path / "a.log", source=source)
