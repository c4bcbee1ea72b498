"""Files of a channel that are saved in a folder."""

from __future__ import annotations

import gc
import gzip
import hashlib
import os
import stat
import weakref
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

from penstock import Channel, Penstock, file_digest
from penstock.errors import FileDamaged, FilesError
from penstock.files.bindings import UploadPiece
from penstock.files.records import (
    ABORT,
    BEGIN,
    DATA,
    END,
    START_DIGEST,
    BlockHeader,
    FileBegin,
    FileEnd,
    pack,
    pack_block,
)
from penstock.files.saving import ReceiveProgress
from penstock.settings import MiB
from tests.conftest import Do
from tests.files.streams import gather, hidden, next_item

NAMES = [
    "../x",
    "/x",
    "a/../../x",
    "a//b",
    "./a",
    ".",
    "..",
    "",
    "a/",
    ".penstock-r/x",
    "nul\0byte",
    "x" * 300,
    "taken/x",
]

ONE = BlockHeader("x", 0, -1, False, False, hashlib.sha256(b"x").digest())
"""The header of a sound block."""

BOMB = pack_block(BlockHeader("x", 0, -1, False, True, hashlib.sha256(bytes(2 * MiB)).digest()), bytes(2 * MiB))


@pytest.fixture
def place() -> str:
    return "valkey"


async def test_a_file_appears_under_its_name_only_when_it_is_whole(
    channel: Channel, do: Do, face: str, tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch
):
    path, out = tmp_path / "log", tmp_path / "out"
    path.write_bytes(os.urandom(1000))
    out.mkdir()
    (out / "log").write_bytes(b"an older one")
    await do(channel.send, path, receivers=["r"], close=True)
    replace = os.replace
    seen: list[bytes] = []

    def publish(part: Path, final: Path) -> None:
        seen.extend((final.read_bytes(), part.read_bytes()))
        replace(part, final)

    monkeypatch.setattr(os, "replace", publish)
    (saved,) = await gather(face, channel.receiver("r").save(out))
    assert seen == [b"an older one", path.read_bytes()]
    assert (saved.path, saved.path.read_bytes()) == (out / "log", path.read_bytes())
    assert hidden(out) == []


async def test_an_impossible_name_raises_once_and_the_next_file_is_saved(
    channel: Channel, do: Do, face: str, tmp_path: Path
):
    out = tmp_path / "in" / "out"
    out.mkdir(parents=True)
    (out / "taken").write_bytes(b"a file")
    await do(channel.open, ["r"])
    for n, name in enumerate([*NAMES, "good"]):
        records = [(BEGIN, pack(FileBegin(name, 0, False))), (END, pack(FileEnd(0, 0, START_DIGEST)))]
        put = channel.bindings.put("t", [UploadPiece(f"k{n}", f"f{n}", records, "", expected=b"", outcome="-")])
        await anyio.to_thread.run_sync(channel._driver.blocking.run, put)
    await do(channel.close)
    errors, saved = [], []
    stream = channel.receiver("r").save(out)
    for _ in range(len(NAMES) + 1):
        try:
            saved += await gather(face, stream)
        except FilesError as error:
            errors.append(str(error))
    assert len(errors) == len(NAMES)
    assert [one.name for one in saved] == ["good"]
    dead = await do(channel.receiver("r").dead.list)
    assert sorted(one.name for one in dead) == sorted(NAMES)
    kept = [Path(one.kept.partition(":")[2]) for one in dead if one.kept]
    assert all(path.read_bytes() == b"" for path in kept)
    names = [path.name for path in tmp_path.rglob("*") if path not in kept and not path.name.startswith(".penstock")]
    assert sorted(names) == ["good", "in", "out", "taken"]


async def test_text_of_gzip_is_saved_under_the_name_of_the_text(channel: Channel, do: Do, face: str, tmp_path: Path):
    path = tmp_path / "a.log.gz"
    path.write_bytes(gzip.compress(b"one\ntwo\n"))
    await do(channel.send_lines, path, receivers=["r"])
    await do(channel.send, path, close=True)
    saved = await gather(face, channel.receiver("r").save(tmp_path / "out"))
    assert [(one.path.name, one.path.read_bytes()) for one in saved] == [
        ("a.log", b"one\ntwo\n"),
        ("a.log.gz", path.read_bytes()),
    ]
    assert saved[1].digest == file_digest(path)
    assert hidden(tmp_path / "out") == []


async def test_the_growth_of_a_saved_log_is_appended_even_after_a_crash(
    channel: Channel, do: Do, face: str, tmp_path: Path
):
    path, out = tmp_path / "log", tmp_path / "out"
    for text in (b"one\n", b"two\n"):
        with path.open("ab") as file:
            file.write(text)
        await do(channel.send_lines, path, receivers=["r"])
        first = channel.receiver("r").save(out, wait=5)
        saved = await next_item(face, first)
        assert saved.path.read_bytes() == path.read_bytes()
        gone = weakref.ref(first)
        del first, saved  # it dies before the server knows, and everything is delivered again
        while gone() is not None:  # its last thread may hold a reference for a moment
            await anyio.sleep(0.01)
            gc.collect()
        (again,) = await gather(face, channel.receiver("r").save(out, wait=0))
        assert again.path.read_bytes() == path.read_bytes()
    os.truncate(out / "log", 3)
    with path.open("ab") as file:
        file.write(b"three\n")
    await do(channel.send_lines, path)
    with pytest.raises(FileDamaged, match="first 8 bytes were sent before"):
        await gather(face, channel.receiver("r").save(out, wait=0))


@pytest.mark.parametrize("is_there", [True, False])
async def test_the_growth_of_a_renamed_log_is_appended_to_what_was_saved_of_it(
    channel: Channel, do: Do, face: str, tmp_path: Path, is_there: bool
):
    """And never to another file of its new name."""
    logs, out = tmp_path / "logs", tmp_path / "out"
    logs.mkdir()
    older, log = logs / "log.1", logs / "log"
    older.write_bytes(b"yesterday\n" * 50)
    log.write_bytes(b"today\n" * 10)
    await do(channel.send_lines, logs, receivers=["r"])
    assert len(await gather(face, channel.receiver("r").save(out, wait=0))) == 2
    older.rename(logs / "log.2")
    with log.rename(logs / "log.1").open("ab") as file:
        file.write(b"later\n" * 10)
    await do(channel.send_lines, logs)
    if is_there:
        (saved,) = await gather(face, channel.receiver("r").save(out, wait=0))
        assert (saved.path, saved.path.read_bytes()) == (out / "log.1", b"today\n" * 10 + b"later\n" * 10)
        return
    (out / "log").unlink()
    with pytest.raises(FileDamaged, match=r"log\.1: its first 60 bytes were sent before"):
        await gather(face, channel.receiver("r").save(out, wait=0))
    assert (out / "log.1").read_bytes() == b"yesterday\n" * 50


async def test_a_saved_file_keeps_its_permissions_and_its_time(channel: Channel, do: Do, face: str, tmp_path: Path):
    paths = [tmp_path / "script", tmp_path / "access.log"]
    for path, mode in zip(paths, (0o750, 0o640), strict=True):
        path.write_bytes(b"x\n")
        path.chmod(mode)
        os.utime(path, ns=(10**18, 10**18 + 123_456_789))
    await do(channel.send, paths[0], receivers=["r"])
    await do(channel.send_lines, paths[1], close=True)
    for saved, path in zip(await gather(face, channel.receiver("r").save(tmp_path / "out")), paths, strict=True):
        found, sent = saved.path.stat(), path.stat()
        assert (found.st_mode, found.st_mtime_ns) == (sent.st_mode, sent.st_mtime_ns)


async def test_files_of_two_hosts_are_kept_apart_or_the_loss_is_reported(
    channel: Channel, do: Do, face: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    await do(channel.open, ["apart", "mixed"])
    for host in ("web-1", "web-2"):
        path = tmp_path / host / "access.log"
        path.parent.mkdir()
        path.write_bytes(host.encode())
        await do(channel.send, path, source=host)
    await do(channel.close)
    apart = await gather(face, channel.receiver("apart").save(tmp_path / "apart", layout="{source}/{name}"))
    assert [one.path.relative_to(tmp_path / "apart").as_posix() for one in apart] == [
        "web-1/access.log",
        "web-2/access.log",
    ]
    assert [(one.source, one.replaced_source, one.path.read_text()) for one in apart] == [
        ("web-1", "", "web-1"),
        ("web-2", "", "web-2"),
    ]
    mixed = await gather(face, channel.receiver("mixed").save(tmp_path / "mixed"))
    try:
        os.getxattr(mixed[1].path, "user.penstock.source")
    except OSError:
        return  # this disk has no attributes
    assert [(one.source, one.replaced_source) for one in mixed] == [("web-1", ""), ("web-2", "web-1")]
    assert "of web-2 replaces that of web-1" in caplog.text


@pytest.mark.parametrize("layout", ["", "{source}", "/{name}", "{name", "{other}/{name}", "{0}"])
async def test_a_bad_layout_is_refused(channel: Channel, tmp_path: Path, layout: str):
    with pytest.raises(ValueError, match="layout="):
        channel.receiver("r").save(tmp_path, layout=layout)


async def test_a_layout_cannot_leave_the_folder(channel: Channel, do: Do, face: str, tmp_path: Path):
    begin = FileBegin("log", 0, False, source="..")  # Penstock refuses to send such a source
    records = [(BEGIN, pack(begin)), (END, pack(FileEnd(0, 0, START_DIGEST)))]
    await do(channel.open, ["r"])
    put = channel.bindings.put("t", [UploadPiece("k", "f", records, "", expected=b"", outcome="-")])
    await anyio.to_thread.run_sync(channel._driver.blocking.run, put)
    await do(channel.close)
    with pytest.raises(FileDamaged, match="would be outside the folder"):
        await gather(face, channel.receiver("r").save(tmp_path / "out", layout="{source}/{name}"))


async def test_progress_of_a_save_counts_the_bytes_of_each_file(channel: Channel, do: Do, face: str, tmp_path: Path):
    for name, size in (("a", 600_000), ("b", 1000)):
        (tmp_path / name).write_bytes(os.urandom(size))
    await do(channel.send, [tmp_path / "a", tmp_path / "b"], receivers=["r"], source="web-1", close=True)
    reports: list[ReceiveProgress] = []
    await gather(face, channel.receiver("r").save(tmp_path / "out", progress=reports.append))
    ends = {one.name: (one.source, one.done, one.size, one.received) for one in reports}
    assert ends == {"a": ("web-1", 600_000, 600_000, 600_000), "b": ("web-1", 1000, 1000, 601_000)}


async def test_a_saved_file_and_its_name_are_on_disk_before_it_is_given(
    channel: Channel, do: Do, face: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    logs, out = [tmp_path / side / "log" for side in ("a", "b")], tmp_path / "out"
    for log in logs:
        log.parent.mkdir()
        log.write_bytes(b"one\n")
    await do(channel.send, logs, receivers=["r"], close=True)
    kept, fsync = list[int](), os.fsync

    def noted(file: int) -> None:
        kept.append(os.fstat(file).st_ino)
        fsync(file)

    monkeypatch.setattr(os, "fsync", noted)
    for saved in await gather(face, channel.receiver("r").save(out)):
        assert {path.stat().st_ino for path in (saved.path, saved.path.parent, out)} <= set(kept)


async def test_a_link_in_place_of_the_hidden_folder_is_not_followed(
    channel: Channel, do: Do, face: str, tmp_path: Path
):
    path, out, theirs = tmp_path / "log", tmp_path / "out", tmp_path / "theirs"
    path.write_bytes(b"one\n")
    theirs.mkdir()
    (theirs / "key").write_bytes(b"secret")
    await do(channel.send, path, receivers=["r"])
    saving = channel.receiver("r").save(out, wait=0)
    out.mkdir()
    saving._partial_files.folder.symlink_to(theirs)
    with pytest.raises(FilesError, match="is a symbolic link"):
        await gather(face, saving)
    assert [path.name for path in theirs.iterdir()] == ["key"]


async def test_a_link_in_place_of_the_folder_for_temporary_files_is_refused(
    channel: Channel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "mine").mkdir()
    (tmp_path / f"penstock-{os.getuid()}").symlink_to(tmp_path / "mine")
    with pytest.raises(FilesError, match="choose another folder with spool="):
        channel.receiver("r").lines()


FOREIGN: list[tuple[str, list[tuple[str, bytes]]]] = [
    ("../../x", [(BEGIN, pack(FileBegin("x", 1, False))), (DATA, pack_block(ONE, b"x"))]),
    ("x" * 300, [(BEGIN, pack(FileBegin("x", 1, False))), (DATA, pack_block(ONE, b"x"))]),
    ("f", [(BEGIN, pack(FileBegin("x", 1, False))), (DATA, b"\0\2zz")]),
    ("f", [(BEGIN, pack(FileBegin("x" * 300, 1, False, False, 5)))]),
    ("f", [(BEGIN, pack(FileBegin("x", 1, False, False, -5)))]),
    ("f", [(BEGIN, pack(FileBegin("x", 1, False))), (ABORT, b"\xff")]),
    ("f", [(BEGIN, pack(FileBegin("x", 1, False))), (DATA, BOMB)]),
]


@pytest.mark.parametrize(("file", "records"), FOREIGN)
async def test_malformed_records_raise_once_and_the_next_file_arrives(
    channel: Channel, do: Do, face: str, tmp_path: Path, file: str, records: list[tuple[str, bytes]]
):
    good, out = tmp_path / "good", tmp_path / "a" / "b" / "out"
    good.write_bytes(b"good")
    await do(channel.open, ["r"])
    put = channel.bindings.put("t", [UploadPiece("k", file, records, "", expected=b"", outcome="-")])
    await anyio.to_thread.run_sync(channel._driver.blocking.run, put)
    await do(channel.send, good, close=True)
    saving = channel.receiver("r").save(out)
    with pytest.raises(FilesError):
        await gather(face, saving)
    (saved,) = await gather(face, saving)
    assert saved.path.read_bytes() == b"good"
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["good", "good"]


async def test_two_channels_can_save_in_one_folder_with_equal_receiver_names(
    app: Penstock, do: Do, face: str, tmp_path: Path, small: None
):
    path, out = tmp_path / "log", tmp_path / "out"
    path.write_bytes(os.urandom(1000))
    one, other = app.files("one"), app.files("other")
    await do(one.open, ["r"])

    def die(_: Any) -> None:
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError):
        await do(one.send, path, progress=die)
    assert await gather(face, one.receiver("r").save(out, wait=0)) == []
    await do(other.send, path, receivers=["r"], close=True)
    assert len(await gather(face, other.receiver("r").save(out))) == 1
    await do(one.send, path, close=True)
    (saved,) = await gather(face, one.receiver("r").save(out))
    assert saved.path.read_bytes() == path.read_bytes()
    assert hidden(out) == []


async def test_small_files_are_written_to_disk_together(
    channel: Channel, do: Do, face: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    sources, out = tmp_path / "in", tmp_path / "out"
    sources.mkdir()
    for n in range(30):
        (sources / f"{n:02}").write_bytes(b"%d" % n)
    await do(channel.send, sources, receivers=["r"], close=True)
    synced, unnamed, fsync = list[int](), list[int](), os.fsync

    def noted(file: int) -> None:
        status = os.fstat(file)
        synced.append(status.st_ino)
        if not stat.S_ISDIR(status.st_mode):
            unnamed.append(len(list(out.glob("[!.]*"))))
        fsync(file)

    monkeypatch.setattr(os, "fsync", noted)
    saved = await gather(face, channel.receiver("r").save(out))
    assert [(one.name, one.path.read_bytes()) for one in saved] == [(f"{n:02}", b"%d" % n) for n in range(30)]
    assert synced.count(out.stat().st_ino) == 1  # one wait for the names of all of them
    assert {one.path.stat().st_ino for one in saved} <= set(synced)
    assert set(unnamed) == {0}  # no file has its name before all are on disk
    assert hidden(out) == []


async def test_files_and_errors_come_in_the_order_in_which_they_were_sent(
    channel: Channel, do: Do, face: str, tmp_path: Path
):
    out = tmp_path / "out"
    (out / "taken").mkdir(parents=True)
    await do(channel.open, ["r"])
    other = pack(FileEnd(0, 0, b"another digest"))
    ends = [("a", None), ("taken", None), ("b", None), ("broken", other), ("c", None), ("also broken", other)]
    for n, (name, end) in enumerate(ends):
        records = [(BEGIN, pack(FileBegin(name, 0, False))), (END, end or pack(FileEnd(0, 0, START_DIGEST)))]
        put = channel.bindings.put("t", [UploadPiece(f"k{n}", f"f{n}", records, "", expected=b"", outcome="-")])
        await anyio.to_thread.run_sync(channel._driver.blocking.run, put)
    await do(channel.close)
    stream, seen = channel.receiver("r").save(out), list[str]()
    while True:
        try:
            seen.append((await next_item(face, stream)).name)
        except FilesError as error:
            seen.append(str(error).split()[0])
        except (StopIteration, StopAsyncIteration, RuntimeError):
            break
    assert seen == [name.split()[0] for name, _ in ends]
    assert {one.name for one in await do(channel.receiver("r").dead.list)} == {"taken", "broken", "also broken"}


async def test_files_that_were_saved_and_not_settled_are_saved_again(
    channel: Channel, do: Do, face: str, tmp_path: Path
):
    sources, out = tmp_path / "in", tmp_path / "out"
    sources.mkdir()
    for n in range(5):
        (sources / f"{n}").write_bytes(b"%d" % n)
    await do(channel.send, sources, receivers=["r"], close=True)
    first = channel.receiver("r").save(out)
    assert (await next_item(face, first)).name == "0"
    assert (await next_item(face, first)).name == "1"
    await do(first.settle)  # 0 is done
    assert sorted(path.name for path in out.glob("[!.]*")) == ["0", "1", "2", "3", "4"]
    again = await gather(face, channel.receiver("r").save(out))
    assert [(one.name, one.path.read_bytes()) for one in again] == [(f"{n}", b"%d" % n) for n in range(1, 5)]
    assert hidden(out) == []
