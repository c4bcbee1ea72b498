"""A file that cannot be saved is kept aside and reported, once, and the next files come."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock import Channel
from penstock.errors import BlocksMissed, FileDamaged, FileNotSaved
from penstock.files.bindings import UploadPiece
from penstock.files.partial_files import PartialFiles
from penstock.files.records import (
    BEGIN,
    DATA,
    END,
    START_DIGEST,
    BlockHeader,
    FileBegin,
    FileEnd,
    chain_digest,
    pack,
    pack_block,
)
from tests.files import test_recognition
from tests.servers import eventually

channel, place = test_recognition.channel, test_recognition.place  # fixtures

TEXT = b"text\n"
DIGEST = sha256(TEXT).digest()


def put(channel: Channel, upload_id: str, *records: tuple[str, bytes]) -> None:
    piece = UploadPiece(upload_id, upload_id, records, "", expected=b"", outcome="-")
    channel._driver.blocking.run(channel.bindings.put("t", [piece]))


def begin(name: str, **more: Any) -> tuple[str, bytes]:
    return BEGIN, pack(msgspec.structs.replace(FileBegin(name, len(TEXT), False), **more))


def block(name: str = "x", **more: Any) -> tuple[str, bytes]:
    return DATA, pack_block(msgspec.structs.replace(BlockHeader(name, 0, -1, False, False, DIGEST), **more), TEXT)


END_OF_TEXT = END, pack(FileEnd(len(TEXT), 0, chain_digest(START_DIGEST, DIGEST)))


def whole(name: str, **more: Any) -> list[tuple[str, bytes]]:
    return [begin(name, **more), block(name), END_OF_TEXT]


def raw(fields: bytes) -> list[tuple[str, bytes]]:
    return [(BEGIN, fields), block(), END_OF_TEXT]


def receive_all(channel: Channel, folder: Path, **more: Any) -> tuple[list[str], list[tuple[type[Exception], str]]]:
    """The names that were saved and the errors, each by a process of its own that ends with an error."""
    saved, errors = list[str](), list[tuple[type[Exception], str]]()
    for _ in range(20):
        try:
            saved += [one.name for one in channel.receiver("r").save(folder, wait=0, **more)]
        except Exception as error:
            errors.append((type(error), str(error)))  # its traceback would keep the stream, and its lease, alive
        else:
            return saved, errors
    raise AssertionError(errors)


BAD_NAMES = [
    "folder",
    "taken/below",
    "n" * 300,
    "d" * 300 + "/f",
    "n" * 5000,
    "a/" * 1500 + "b",
    "..",
    "a/../b",
    "/x",
    "a//b",
    ".penstock-r/x",
    "x\0y",
    ".",
    "x/",
]

FOREIGN = {
    **{f"name {name[:12]!r} of {len(name)}": [begin(name), block(), END_OF_TEXT] for name in BAD_NAMES},
    "name no UTF-8": raw(b"\x93\xa3\xff\xfe\xfd\x05\xc2"),
    "empty name": raw(b"\x93\xa0\x05\xc2"),
    "source no UTF-8": raw(b"\x99\xa1x\x05\xc2\xc2\x00\x00\x00\xc4\x00\xa2\xff\xff"),
    "nested for ever": raw(b"\x9d\xa1x\x05\xc2\xc2\x00\x00\x00\xc4\x00\xa1s\x00\x00\xa0" + b"\x91" * 50_000 + b"\x00"),
    "mode that is too large": [begin("x", mode=2**64 - 1), block(), END_OF_TEXT],
    "time that is too late": [begin("x", modified=2**63 - 1), block(), END_OF_TEXT],
    "offset of the file": [begin("x", offset=2**64 - 1, last_block_size=2**64 - 1), block(), END_OF_TEXT],
    "negative size": [begin("x", size=-1), block(), END_OF_TEXT],
    "offset of a block": [begin("x"), block(offset=2**64 - 1), END_OF_TEXT],
    "negative offset": [begin("x"), block(offset=-5), END_OF_TEXT],
    "not a block": [begin("x"), (DATA, b"\xff\xff"), END_OF_TEXT],
    "empty block": [begin("x"), (DATA, b""), END_OF_TEXT],
    "other bytes": [begin("x"), block(digest=bytes(32)), END_OF_TEXT],
    "other end": [begin("x"), block(), (END, pack(FileEnd(2**64 - 1, 0, b"")))],
    "no end": [begin("x"), block(), (END, b"")],
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_file_that_no_sender_of_this_library_wrote_costs_one_error(channel: Channel, tmp_path: Path, kind: str):
    folder = tmp_path / "in"
    (folder / "folder" / "x").mkdir(parents=True)
    (folder / "taken").write_bytes(b"a file")
    put(channel, "bad1", *FOREIGN[kind])
    put(channel, "good", *whole("good"))
    saved, errors = receive_all(channel, folder)
    assert saved == ["good"]
    assert [kind in {FileDamaged, FileNotSaved} for kind, _ in errors] == [True]
    (dead,) = channel.receiver("r").dead.list()
    assert dead.error[:100] == errors[0][1][:100]
    assert channel.info().receivers[0].dead_files == 1
    assert {path.name for path in tmp_path.iterdir()} == {"in"}
    assert channel.receiver("r").dead.remove(dead.id) == 1
    assert channel.receiver("r").dead.list() == []
    assert receive_all(channel, folder) == ([], [])
    assert [path.name for path in folder.glob(".penstock*")] == []


@pytest.mark.parametrize("share", [False, True])
def test_a_damaged_block_is_reported_once_to_readers_of_blocks(channel: Channel, share: bool):
    put(channel, "bad1", begin("bad", lines=True), block("bad", digest=bytes(32), lines_before=0))
    put(channel, "good", begin("good", lines=True), block("good", lines_before=0), END_OF_TEXT)
    with channel.receiver("r").batches(wait=0, share=share) as stream, pytest.raises(FileDamaged):
        list(stream)
    assert list(channel.receiver("r").lines(wait=0, share=share)) == [TEXT.strip()]
    assert [one.id for one in channel.receiver("r").dead.list()] == ["bad1"]


def test_a_file_is_saved_after_all_when_it_is_retried(channel: Channel, tmp_path: Path):
    folder = tmp_path / "in"
    (folder / "report" / "x").mkdir(parents=True)
    put(channel, "one", *whole("report", source="web-1", mode=0o640))
    assert receive_all(channel, folder)[0] == []
    dead = channel.receiver("r").dead
    (found,) = dead.list()
    assert (found.name, found.source, found.is_retried) == ("report", "web-1", False)
    assert Path(found.kept.partition(":")[2]).read_bytes() == TEXT
    assert dead.retry("another") == 0
    assert dead.retry(found.id) == 1
    assert dead.list()[0].is_retried
    assert receive_all(channel, folder) == ([], [])  # it cannot have its name yet
    assert [(one.is_retried, one.kept) for one in dead.list()] == [(False, found.kept)]
    (folder / "report" / "x").rmdir()
    (folder / "report").rmdir()
    channel.close()
    assert receive_all(channel, folder) == ([], [])
    assert dead.retry(found.id) == 1  # also when the receiver has received everything
    assert receive_all(channel, folder) == (["report"], [])
    assert (folder / "report").read_bytes() == TEXT
    assert (folder / "report").stat().st_mode & 0o777 == 0o640
    assert dead.list() == []
    assert [path.name for path in folder.iterdir()] == ["report"]


def test_a_finished_channel_is_kept_until_its_dead_files_are_decided(channel: Channel, tmp_path: Path, raw: Any):
    (tmp_path / "in" / "x" / "y").mkdir(parents=True)
    put(channel, "one", *whole("x"))
    channel.close()
    receive_all(channel, tmp_path / "in")
    state = channel.bindings.keys.declared[1]
    assert raw.pttl(state) == -1
    (dead,) = channel.receiver("r").dead.list()
    channel.receiver("r").dead.remove(dead.id)
    assert raw.pttl(state) > 0
    channel.open(["r"])  # as the fixture expects it


def fails_when_large(limit: int) -> Callable[..., Any]:
    """A disk on which a file cannot be larger than this."""
    write = PartialFiles.write

    def limited(self: Any, upload_id: str, header: BlockHeader, data: bytes) -> None:
        if header.offset + len(data) > limit:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(self, upload_id, header, data)

    return limited


def test_a_file_that_is_too_large_for_the_disk_does_not_stop_the_others(
    channel: Channel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    files = [tmp_path / "large", tmp_path / "small"]
    files[0].write_bytes(os.urandom(600_000))
    files[1].write_bytes(b"small")
    channel.send(files)
    monkeypatch.setattr(PartialFiles, "write", fails_when_large(400_000))
    saved, errors = receive_all(channel, tmp_path / "in")
    assert saved == ["small"]
    assert [kind for kind, _ in errors] == [FileNotSaved]
    assert "No space left" in errors[0][1]
    assert [(one.name, one.kept) for one in channel.receiver("r").dead.list()] == [("large", "")]
    monkeypatch.setattr(PartialFiles, "write", fails_when_large(0))
    channel.send(files[0], again=True)
    with pytest.raises(OSError, match="No space left"):  # nothing fits: the receiver stops, and receives it later
        list(channel.receiver("r").save(tmp_path / "in", wait=0))
    monkeypatch.undo()
    assert receive_all(channel, tmp_path / "in") == (["large"], [])


def test_a_gap_is_reported_to_one_process_only(channel: Channel, tmp_path: Path):
    channel.open([], limit=2 * 2**20, patience=0.05)
    (tmp_path / "a").write_bytes(os.urandom(3 * 2**20))
    list(channel.receiver("r").blocks(wait=0))
    sender = threading.Thread(target=channel.send, args=(tmp_path / "a",))
    sender.start()
    eventually(lambda: channel.info().receivers[0].state == "gone")
    sender.join(10)
    with pytest.raises(BlocksMissed):
        list(channel.receiver("r").blocks(wait=0))
    list(channel.receiver("r").blocks(wait=0))


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM, errno.EROFS, errno.EXDEV, errno.EBUSY, errno.EINVAL])
@pytest.mark.parametrize("size", [5, 400_000])
def test_a_file_that_must_not_have_its_name_is_kept(
    channel: Channel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, size: int
):
    for name in ("forbidden", "good"):
        (tmp_path / name).write_bytes(os.urandom(size))
    channel.send([tmp_path / "forbidden", tmp_path / "good"])
    rename = os.replace

    def refuse(file: Path, path: Path) -> None:
        if path.name == "forbidden":
            raise OSError(code, os.strerror(code))
        rename(file, path)

    monkeypatch.setattr(os, "replace", refuse)
    saved, errors = receive_all(channel, tmp_path / "in")
    assert (saved, [kind for kind, _ in errors]) == (["good"], [FileNotSaved])
    (dead,) = channel.receiver("r").dead.list()
    assert Path(dead.kept.partition(":")[2]).read_bytes() == (tmp_path / "forbidden").read_bytes()
    monkeypatch.undo()
    channel.receiver("r").dead.retry(dead.id)
    assert receive_all(channel, tmp_path / "in") == (["forbidden"], [])
    assert (tmp_path / "in" / "forbidden").read_bytes() == (tmp_path / "forbidden").read_bytes()


def test_a_disk_without_permissions_takes_the_files(channel: Channel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    (tmp_path / "a").write_bytes(b"a")
    channel.send(tmp_path / "a")
    monkeypatch.setattr(os, "fchmod", refuse)
    monkeypatch.setattr(os, "utime", refuse)
    assert receive_all(channel, tmp_path / "in") == (["a"], [])
