"""Paths become sources, sources become blocks: the same ones, wherever a sender goes on."""

import gzip
import hashlib
import os
import socket
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import penstock.files.source as module
from penstock.errors import FileChanged, FileDamaged, FilesError
from penstock.files.lines import Lines
from penstock.files.source import BLOCK, NO_BLOCKS, Block, Mark, Reading, Source, chain, file_digest, sources
from tests.speed import scaled

LINES = [b"%d %s\n" % (n, b"x" * (n * 37 % 500)) for n in range(5000)]
TEXT = b"".join(LINES)
MODES = ["bytes", "plain", "packed"]


def write(path: Path, content: bytes = b"") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def source(path: Path) -> Source:
    return Source(path, path.name)


def made(folder: Path, mode: str, text: bytes = TEXT) -> Source:
    return source(write(folder / "access.log", gzip.compress(text, 1) if mode == "packed" else text))


def read(source: Source, mode: str, start: Mark | None = None) -> list[Block]:
    with Reading(source, lines=mode != "bytes", start=start) as reading:
        return [*reading.blocks()]


def noted(reading: Reading, block: Block) -> Mark:
    return reading.mark(block, hashlib.sha256(block.data).digest())


def marks(source: Source, mode: str) -> list[Mark]:
    with Reading(source, lines=mode != "bytes") as reading:
        return [noted(reading, block) for block in reading.blocks()]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", 8)
    monkeypatch.setattr(module, "_STEP", 5)


# --- sources ---


def names(paths: Any) -> list[str]:
    return [found.name for found in sources(paths)]


def test_a_folder_stands_for_its_regular_files_in_name_order(tmp_path: Path):
    for name in ("b.log", "a.log.10", "a.log.2", ".hidden", "é", "deeper/c.log", "one\ttab"):
        write(tmp_path / name)
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "dangling").symlink_to("nothing")
    (tmp_path / "current").symlink_to("b.log")
    (tmp_path / "far").symlink_to("deeper/c.log")
    (tmp_path / "folder").symlink_to("deeper")
    assert names(tmp_path) == [".hidden", "a.log.10", "a.log.2", "b.log", "far", "one\ttab", "é"]
    assert names(str(tmp_path)) == names([tmp_path])
    assert names(tmp_path / "folder") == ["c.log"]


def test_sources_come_in_the_order_given(tmp_path: Path):
    b, a, folder = write(tmp_path / "b"), write(tmp_path / "a"), write(tmp_path / "d" / "0").parent
    given: list[str | Path] = [b, str(folder), a]
    assert sources(iter(given)) == [Source(b, "b"), Source(folder / "0", "0"), Source(a, "a")]


def test_an_empty_folder_has_nothing_to_send(tmp_path: Path):
    assert sources(tmp_path) == []


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["x/access.log"], ["access.log"]),
        (["web1/access.log", "web2/access.log", "x/error.log"], ["web1/access.log", "web2/access.log", "error.log"]),
        (["a/log/app", "b/log/app", "b/app"], ["a/log/app", "b/log/app", "b/app"]),
        (["a/log/app", "b/log/app", "c/app", "d/e"], ["a/log/app", "b/log/app", "c/app", "e"]),
        (["a/b/app", "b/app"], ["a/b/app", "{}/b/app"]),
        (["app", "a/app"], ["{}/app", "a/app"]),
        (["a/../b/app", "a/app"], ["b/app", "a/app"]),
        (["../{}/a/app", "b/app"], ["a/app", "b/app"]),
    ],
)
def test_files_of_one_name_are_told_apart_by_their_folders(tmp_path: Path, monkeypatch, paths, expected):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    given = [path.format(tmp_path.name) for path in paths]
    for path in given:
        write(tmp_path / path)
    assert names(given) == [name.format(tmp_path.name) for name in expected]


def test_a_link_keeps_its_name_and_a_step_up_behind_it_goes_where_it_leads(tmp_path: Path):
    write(tmp_path / "far" / "deep" / "x")
    write(tmp_path / "far" / "log", b"1")
    write(tmp_path / "near" / "log", b"2")
    (tmp_path / "near" / "link").symlink_to(tmp_path / "far" / "deep")
    given = [tmp_path / "near" / "link" / "x", f"{tmp_path}/near/link/../log", tmp_path / "near" / "log"]
    assert names(given) == ["x", "far/log", "near/log"]


def test_a_file_at_the_root_needs_no_folder(monkeypatch):
    assert [*module._named([Path("/log"), Path("/a/log")])] == [(Path("/log"), "log"), (Path("/a/log"), "a/log")]


def test_all_that_cannot_be_sent_is_told_at_once(tmp_path: Path, monkeypatch):
    good = write(tmp_path / "good")
    write(tmp_path / "locked")
    folder = write(tmp_path / "d" / "f").parent
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "dangling").symlink_to("nothing")
    (tmp_path / "link").symlink_to("good")
    os.link(good, tmp_path / "d" / "hard")
    strange = tmp_path / os.fsdecode(b"n\xff")
    write(strange)
    opener = os.open
    monkeypatch.setattr(os, "open", lambda path, *rest: opener(_unlocked(path), *rest))
    given = ["missing", "good", "locked", "fifo", "dangling", "good", "link", "d", "d/f", "good/under", "a\0b"]
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
    with pytest.raises(FilesError) as caught:
        sources([*(f"{tmp_path}/{name}" for name in given), tmp_path / "socket", "/dev/null", strange, ""])
    assert str(caught.value).replace(str(tmp_path), "") == "\n  ".join(
        [
            "nothing was sent, because of",
            "/missing: No such file or directory",
            "/locked: Permission denied",
            "/fifo: a fifo, no regular file",
            "/dangling: No such file or directory",
            "/good: given twice",
            "/link: the same file as /good",
            "/d/hard: the same file as /good",
            "/d/f: given twice",
            "/good/under: Not a directory",
            "'/a\\x00b': embedded null byte",
            "/socket: a socket, no regular file",
            "/dev/null: a device, no regular file",
            ": an empty path",
            "'/n\\udcff': its name is no UTF-8, rename it",
        ]
    )
    assert names(folder) == ["f", "hard"]


def _unlocked(path: Any) -> Any:
    if str(path).endswith("locked"):
        raise PermissionError(13, "Permission denied")
    return path


def test_no_path_at_all_is_an_error_with_the_fix():
    with pytest.raises(FilesError, match="name at least one file or folder"):
        sources([])


def test_thousands_of_files_of_one_name_cost_time_in_proportion(tmp_path: Path):
    for number in range(2000):
        write(tmp_path / f"{number:05}" / "access.log")
    began = time.monotonic()
    found = names(sorted(tmp_path.glob("*/*")))
    assert time.monotonic() - began < scaled(10)
    assert found == [f"{number:05}/access.log" for number in range(2000)]


# --- exact bytes ---


@pytest.mark.parametrize("size", [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 3 * BLOCK + 7])
def test_exact_bytes_are_cut_into_whole_blocks(tmp_path: Path, size: int):
    content = os.urandom(size)
    blocks = read(source(write(tmp_path / "f", content)), "bytes")
    assert b"".join(block.data for block in blocks) == content
    assert [block.offset for block in blocks] == [*range(0, size, BLOCK)]
    assert {(block.first_line, block.lines, block.more) for block in blocks} == {(0, 0, False)}


def test_a_packed_file_is_sent_as_it_is_where_bytes_are_wanted(tmp_path: Path):
    packed = gzip.compress(TEXT)[:-3]
    assert b"".join(block.data for block in read(source(write(tmp_path / "f.gz", packed)), "bytes")) == packed


@pytest.mark.parametrize("mode", MODES)
def test_an_empty_file_has_no_blocks(tmp_path: Path, mode: str):
    assert read(made(tmp_path, mode, b""), mode) == []


def test_the_digest_of_a_file_is_that_of_its_blocks_chained(tmp_path: Path):
    content = os.urandom(2 * BLOCK + 5)
    digest = bytes(32)
    for start in range(0, len(content), BLOCK):
        block = hashlib.sha256(content[start : start + BLOCK]).digest()
        digest = hashlib.sha256(digest + block).digest()
    assert file_digest(str(write(tmp_path / "f", content))) == digest.hex()
    assert file_digest(write(tmp_path / "empty")) == NO_BLOCKS.hex() == "0" * 64
    assert chain(NO_BLOCKS, b"1" * 32) == hashlib.sha256(bytes(32) + b"1" * 32).digest()


# --- lines ---


def lines_of(blocks: list[Block]) -> list[bytes]:
    reader = Lines(1 << 22)
    return [line for block in blocks for line in reader.cut(block.data)] + reader.rest()


def follow_each_other(blocks: list[Block], text: bytes, most: int = BLOCK) -> None:
    """Every rule for blocks of lines, on the text as a whole."""
    assert b"".join(block.data for block in blocks) == text
    for block in blocks:
        end = block.offset + len(block.data)
        last = end == len(text)
        assert 0 < len(block.data) <= most
        assert text[block.offset : end] == block.data
        assert block.first_line == text.count(b"\n", 0, block.offset) + 1
        assert block.lines == block.data.count(b"\n") + (last and not text.endswith(b"\n"))
        assert block.more == (not last and not block.data.endswith(b"\n"))
        assert block.data.endswith(b"\n") or last or (len(block.data) == most and b"\n" not in block.data)


@pytest.mark.parametrize("mode", ["plain", "packed"])
@pytest.mark.parametrize("text", [TEXT, TEXT[:-1], b"a", b"\n", b"a\r\nb", b"\n" * (BLOCK + 3)], ids=len)
def test_blocks_of_lines_end_at_a_line_end(tmp_path: Path, mode: str, text: bytes):
    blocks = read(made(tmp_path, mode, text), mode)
    follow_each_other(blocks, text)
    assert all(len(block.data) > BLOCK - 600 for block in blocks[:-1])
    assert b"\n".join(lines_of(blocks)) == text.removesuffix(b"\n").replace(b"\r\n", b"\n")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300, deadline=None)
@given(
    text=st.lists(st.sampled_from([b"\n", b"a", b"bc\n", b"defg", b"h" * 9, b"i" * 8 + b"\n"]), max_size=14).map(
        b"".join
    ),
    mode=st.sampled_from(MODES),
)
@example(text=b"a" * 8, mode="plain")
@example(text=b"a" * 16, mode="packed")
@example(text=b"a" * 8 + b"\n", mode="plain")
@example(text=b"a" * 7 + b"\n" + b"b" * 7 + b"\n", mode="plain")
@example(text=b"a\n" + b"b" * 30, mode="packed")
@pytest.mark.usefixtures("small_blocks")
def test_any_text_is_cut_by_the_rules_and_alike_from_any_block_on(tmp_path: Path, text: bytes, mode: str):
    given = made(tmp_path, mode, text)
    content = given.path.read_bytes() if mode == "bytes" else text
    blocks = read(given, mode)
    if mode == "bytes":
        assert [block.data for block in blocks] == [content[i : i + 8] for i in range(0, len(content), 8)]
    else:
        follow_each_other(blocks, content, 8)
    for number, mark in enumerate(marks(given, mode), 1):
        assert read(given, mode, mark) == blocks[number:]


@pytest.mark.parametrize("mode", ["plain", "packed"])
def test_a_line_longer_than_a_block_is_spread_over_several(tmp_path: Path, mode: str):
    text = b"a\n" + b"b" * (2 * BLOCK + 10) + b"\nc\n" + b"d" * BLOCK
    blocks = read(made(tmp_path, mode, text), mode)
    follow_each_other(blocks, text)
    assert [(len(block.data), block.first_line, block.lines, block.more) for block in blocks] == [
        (2, 1, 1, False),
        (BLOCK, 2, 0, True),
        (BLOCK, 2, 0, True),
        (13, 2, 2, False),
        (BLOCK, 4, 1, False),
    ]


def test_members_and_padding_are_one_text(tmp_path: Path):
    packed = b"".join(gzip.compress(line) + bytes(7) for line in LINES[:50])
    blocks = read(source(write(tmp_path / "f", packed)), "packed")
    assert [block.data for block in blocks] == [b"".join(LINES[:50])]


def test_a_file_is_packed_if_its_content_or_its_name_says_so(tmp_path: Path):
    packed = gzip.compress(TEXT)
    for name, content, expected in [
        ("a", packed, True), ("a.gz", packed, True), ("b", TEXT, False), ("c.gz", TEXT, True), ("d", b"\x1f", False),
    ]:  # fmt: skip
        with Reading(source(write(tmp_path / name, content)), lines=True) as reading:
            assert reading.packed is expected
    for content, reason in [(b"", "it is empty"), (b"\x1f", "it ends at byte 1"), (TEXT, "30 20 at byte 0")]:
        with pytest.raises(FileDamaged, match=rf"e\.gz is damaged: {reason}"):
            read(source(write(tmp_path / "e.gz", content)), "packed")


@pytest.mark.parametrize("cut", [3, 40, 2000, -9, -1])
def test_a_packed_file_that_was_cut_off_is_told_behind_what_is_sound(tmp_path: Path, cut: int):
    packed = gzip.compress(TEXT, 1)[:cut]
    path = write(tmp_path / "f.gz", packed)
    found: list[Block] = []
    with (
        pytest.raises(FileDamaged, match=rf"{path} is damaged: it ends at byte"),
        Reading(source(path), lines=True) as r,
    ):
        found.extend(r.blocks())
    sound = zlib.decompressobj(31).decompress(packed)
    assert b"".join(block.data for block in found) == sound[: sound.rfind(b"\n") + 1]
    assert sum(block.lines for block in found) == sound.count(b"\n")


@pytest.mark.parametrize("mode", MODES)
def test_a_file_of_any_size_takes_a_few_blocks_of_memory(tmp_path: Path, mode: str):
    text = TEXT * 40
    given = made(tmp_path, mode, text)
    with Reading(given, lines=mode != "bytes") as reading:
        tracemalloc.start()
        size = sum(len(block.data) for block in reading.blocks())
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert size == len(text)
    assert peak < 8 * BLOCK


def test_a_bomb_takes_a_few_blocks_of_memory(tmp_path: Path):
    path = write(tmp_path / "f", gzip.compress(bytes(100_000_000)))
    with Reading(source(path), lines=True) as reading:
        tracemalloc.start()
        blocks = [(len(block.data), block.more) for block in reading.blocks()]
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert sum(size for size, _ in blocks) == 100_000_000
    assert blocks[-1][1] is False
    assert peak < 8 * BLOCK


# --- going on behind a mark ---


@pytest.mark.parametrize("mode", MODES)
def test_blocks_behind_a_mark_are_those_without_it(tmp_path: Path, mode: str):
    given = made(tmp_path, mode, TEXT + b"y" * (BLOCK + 5) + b"\n" + TEXT[:-1])
    blocks = read(given, mode)
    assert len(blocks) > 1
    found = marks(given, mode)
    assert [read(given, mode, mark) for mark in found] == [blocks[number:] for number in range(1, len(blocks) + 1)]
    assert read(given, mode, Mark(0, 0, b"", 0, found[0].size, found[0].place)) == blocks


@pytest.mark.parametrize("mode", ["bytes", "plain"])
def test_a_mark_costs_no_more_far_inside_of_a_file(tmp_path: Path, monkeypatch, mode: str):
    given = made(tmp_path, mode, TEXT * 20)
    mark = marks(given, mode)[-2]
    lengths = []
    pread = os.pread

    def counted(file: int, length: int, offset: int) -> bytes:
        lengths.append(length)
        return pread(file, length, offset)

    monkeypatch.setattr(os, "pread", counted)
    with Reading(given, lines=mode != "bytes", start=mark) as reading:
        next(reading.blocks())
    assert 0 < sum(lengths) <= 2 * BLOCK + 3


def test_the_attributes_of_a_reading_say_which_file_it_is(tmp_path: Path):
    given = made(tmp_path, "plain")
    status = given.path.stat()
    mark = marks(given, "plain")[0]
    with Reading(given) as whole, Reading(given, start=mark) as resumed:
        assert whole.place == resumed.place == f"{status.st_dev}:{status.st_ino}"
        assert whole.identity == resumed.identity == f"{whole.place}:{len(TEXT)}:{status.st_mtime_ns}"
        assert whole.size == resumed.size == len(TEXT)
        assert whole.read == 0
        [*_] = whole.blocks()
        assert whole.read == len(TEXT)
    os.utime(given.path, ns=(1, 1))
    with Reading(given) as touched:
        assert touched.identity != whole.identity


@pytest.mark.parametrize("mode", MODES)
def test_what_is_appended_while_a_file_is_sent_is_not_sent(tmp_path: Path, mode: str):
    given = made(tmp_path, mode)
    blocks, found = read(given, mode), marks(given, mode)
    with Reading(given, lines=mode != "bytes") as reading, given.path.open("ab") as writer:
        size, identity = reading.size, reading.identity
        going = reading.blocks()
        first = next(going)
        writer.write(TEXT)
        writer.flush()
        assert [first, *going] == blocks
        assert (reading.size, reading.identity) == (size, identity)
    assert read(given, mode, found[0]) == blocks[1:]
    with Reading(given, start=found[0]) as resumed:
        assert resumed.size == found[0].size


@pytest.mark.parametrize("mode", MODES)
def test_a_file_is_found_again_under_the_name_that_a_rotation_gave_it(tmp_path: Path, mode: str):
    given = made(tmp_path, mode)
    blocks, found = read(given, mode), marks(given, mode)
    given.path.rename(tmp_path / "access.log.1")
    assert read(given, mode, found[0]) == blocks[1:]
    write(given.path, b"new")
    write(tmp_path / "access.log.2", TEXT)
    (tmp_path / "loop").symlink_to("loop")
    with Reading(given, lines=mode != "bytes", start=found[0]) as reading:
        assert (reading.source, reading.place) == (given, found[0].place)
        assert [*reading.blocks()] == blocks[1:]
    (tmp_path / "access.log.1").unlink()
    with pytest.raises(FileChanged, match="another file has its name, and it is in its folder under no other"):
        read(given, mode, found[0])


def _rotate(folder: Path, name: str, to: str) -> None:
    (folder / name).rename(folder / to)
    write(folder / name, b"new")


@pytest.mark.parametrize(
    ("rotations", "looks"),
    [
        ([("access.log", "access.log.1")], 1),
        ([("access.log", "access.log.1"), ("access.log.1", "access.log.2")], 2),
    ],
    ids=["seen at its path, opened after", "listed, gone when looked at"],
)
def test_a_file_that_is_rotated_while_it_is_looked_for_is_found(tmp_path: Path, monkeypatch, rotations, looks):
    given = made(tmp_path, "plain")
    found, blocks = marks(given, "plain"), read(given, "plain")
    *before, last = rotations
    for rotation in before:
        _rotate(tmp_path, *rotation)
    place = module._place_of
    looked: list[Path] = []

    def slow(path: Path) -> str | None:
        answer = place(path)
        looked.append(path)
        if len(looked) == looks:
            _rotate(tmp_path, *last)
        return answer

    monkeypatch.setattr(module, "_place_of", slow)
    assert read(given, "plain", found[0]) == blocks[1:]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rotate", ["rename", "remove", "replace"])
def test_a_rotation_while_a_file_is_read_changes_nothing(tmp_path: Path, mode: str, rotate: str):
    given = made(tmp_path, mode)
    blocks = read(given, mode)
    with Reading(given, lines=mode != "bytes") as reading:
        going = reading.blocks()
        first = next(going)
        match rotate:
            case "rename":
                given.path.rename(tmp_path / "access.log.1")
            case "remove":
                given.path.unlink()
            case "replace":
                os.replace(write(tmp_path / "new", b"new"), given.path)
        assert [first, *going] == blocks


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [0, 1, 1000, -1])
def test_a_file_that_was_truncated_while_it_is_read_is_told(tmp_path: Path, mode: str, size: int):
    given = made(tmp_path, mode, TEXT + os.urandom(3 * BLOCK))
    full = given.path.stat().st_size
    with Reading(given, lines=mode != "bytes") as reading:
        going = reading.blocks()
        next(going)
        os.truncate(given.path, size % full)
        with pytest.raises(FileChanged, match=rf"changed since its sending began: it had {full:,} bytes, and has"):
            list(going)


@pytest.mark.parametrize("mode", MODES)
def test_a_file_that_was_truncated_or_written_anew_since_its_mark_is_told(tmp_path: Path, mode: str):
    given = made(tmp_path, mode, TEXT * 2)
    found = marks(given, mode)
    content = given.path.read_bytes()
    for changed in (b"", content[:-1], content[: len(content) // 2]):
        given.path.write_bytes(changed)
        with pytest.raises(FileChanged, match="it had"):
            Reading(given, lines=mode != "bytes", start=found[0])
    other = TEXT.replace(b"x", b"y") * 2
    given.path.write_bytes((gzip.compress(other, 1) if mode == "packed" else other) + b"\0" * 999)
    assert given.path.stat().st_ino == int(found[0].place.partition(":")[2])
    with pytest.raises(FileChanged, match=r"what stands before byte [\d,]+ is not what was sent"):
        read(given, mode, found[0])
    given.path.write_bytes(content)
    assert read(given, mode, found[0]) == read(given, mode)[1:]


@pytest.mark.parametrize("mode", MODES)
def test_a_mark_from_nowhere_is_told(tmp_path: Path, mode: str):
    given = made(tmp_path, mode)
    [mark, *_] = marks(given, mode)
    for offset, length in [(10**9, 100), (mark.offset + 1, mark.length), (mark.offset, mark.length - 1)]:
        with pytest.raises(FileChanged):
            read(given, mode, Mark(offset, 1, mark.last, length, mark.size, mark.place))


# --- files that cannot be read ---


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: None, "No such file or directory"),
        (Path.mkdir, "a folder, no regular file"),
        (os.mkfifo, "a fifo, no regular file"),
        (lambda path: path.symlink_to(path), "Too many levels of symbolic links"),
    ],
)
def test_what_cannot_be_opened_is_told(tmp_path: Path, make: Callable[[Path], Any], reason: str):
    make(tmp_path / "f")
    with pytest.raises(FilesError, match=rf"^{tmp_path}/f cannot be read: {reason}$"):
        Reading(source(tmp_path / "f"))
    with pytest.raises(FilesError):
        file_digest(tmp_path / "f")


def test_a_fifo_that_takes_a_file_s_place_before_it_is_opened_does_not_block(tmp_path: Path, monkeypatch):
    os.mkfifo(tmp_path / "f")
    status = write(tmp_path / "g").stat()
    monkeypatch.setattr(Path, "stat", lambda path: status)
    with pytest.raises(FilesError, match="a fifo, no regular file"):
        Reading(source(tmp_path / "f"))


def test_a_folder_that_is_gone_is_told(tmp_path: Path):
    given = made(tmp_path / "logs", "plain")
    [mark, *_] = marks(given, "plain")
    (tmp_path / "logs").rename(tmp_path / "old")
    with pytest.raises(FilesError, match="cannot be read: No such file or directory"):
        read(given, "plain", mark)


@pytest.mark.parametrize("mode", MODES)
def test_a_disk_that_cannot_read_is_told(tmp_path: Path, monkeypatch, mode: str):
    given = made(tmp_path, mode, TEXT + os.urandom(2 * BLOCK))
    blocks = read(given, mode)
    pread = os.pread

    def broken(file: int, length: int, offset: int) -> bytes:
        if offset:
            raise OSError(5, "Input/output error")
        return pread(file, length, offset)

    with Reading(given, lines=mode != "bytes") as reading:
        monkeypatch.setattr(os, "pread", broken)
        with pytest.raises(FilesError, match=r"access\.log cannot be read: Input/output error"):
            [*reading.blocks()]
    monkeypatch.setattr(os, "pread", lambda file, length, offset: pread(file, min(length, 70_000), offset))
    assert read(given, mode) == blocks


def test_a_file_that_ends_early_is_told_though_it_is_long_again_at_once(tmp_path: Path, monkeypatch):
    given = made(tmp_path, "plain")
    with Reading(given) as reading:
        monkeypatch.setattr(os, "pread", lambda file, length, offset: b"")
        with pytest.raises(FileChanged):
            list(reading.blocks())


def test_a_reading_that_was_closed_reads_no_other_file(tmp_path: Path):
    given = made(tmp_path, "plain")
    with Reading(given) as reading:
        going: Iterator[Block] = reading.blocks()
        next(going)
    with pytest.raises(ValueError, match="closed"):
        next(going)
