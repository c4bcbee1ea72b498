"""A source is cut into the same blocks by every sender, and from any resume point on."""

import gzip
import hashlib
import os
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from penstock.errors import FileChanged, FileDamaged, FilesError
from penstock.files import source_reader
from penstock.files.gunzip import library
from penstock.files.lines import LineCutter
from penstock.files.records import START_DIGEST, chain_digest
from penstock.files.regular_file import inode_at
from penstock.files.source import Source
from penstock.files.source_reader import BLOCK_SIZE, ResumePoint, SourceBlock, SourceReader, file_digest
from tests.files.test_source import write

LINES = [b"%d %s\n" % (n, b"x" * (n * 37 % 500)) for n in range(5000)]
TEXT = b"".join(LINES)
MODES = ["bytes", "plain", "packed"]


def source(path: Path) -> Source:
    return Source(path, path.name)


def made(folder: Path, mode: str, text: bytes = TEXT) -> Source:
    return source(write(folder / "access.log", gzip.compress(text, 1) if mode == "packed" else text))


def read(source: Source, mode: str, start: ResumePoint | None = None) -> list[SourceBlock]:
    with SourceReader(source, lines=mode != "bytes", start=start) as reader:
        return [*reader.blocks()]


def point_after(reader: SourceReader, block: SourceBlock) -> ResumePoint:
    return reader.resume_point(block)


def resume_points(source: Source, mode: str) -> list[ResumePoint]:
    with SourceReader(source, lines=mode != "bytes") as reader:
        return [point_after(reader, block) for block in reader.blocks()]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_reader, "BLOCK_SIZE", 8)
    monkeypatch.setattr(source_reader, "_CHUNK", 5)


# --- exact bytes ---


@pytest.mark.parametrize("size", [1, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, 3 * BLOCK_SIZE, 3 * BLOCK_SIZE + 7])
def test_exact_bytes_are_cut_into_whole_blocks(tmp_path: Path, size: int):
    content = os.urandom(size)
    blocks = read(source(write(tmp_path / "f", content)), "bytes")
    assert b"".join(block.data for block in blocks) == content
    assert [block.offset for block in blocks] == [*range(0, size, BLOCK_SIZE)]
    assert {(block.first_line, block.lines, block.last_line_continues) for block in blocks} == {(0, 0, False)}


def test_a_packed_file_is_not_inflated_if_bytes_are_read(tmp_path: Path):
    packed = gzip.compress(TEXT)[:-3]
    assert b"".join(block.data for block in read(source(write(tmp_path / "f.gz", packed)), "bytes")) == packed


@pytest.mark.parametrize("mode", MODES)
def test_an_empty_file_has_no_blocks(tmp_path: Path, mode: str):
    assert read(made(tmp_path, mode, b""), mode) == []


def test_the_digest_of_a_file_chains_the_digests_of_its_blocks(tmp_path: Path):
    content = os.urandom(2 * BLOCK_SIZE + 5)
    digest = bytes(32)
    for start in range(0, len(content), BLOCK_SIZE):
        block = hashlib.sha256(content[start : start + BLOCK_SIZE]).digest()
        digest = hashlib.sha256(digest + block).digest()
    assert file_digest(str(write(tmp_path / "f", content))) == digest.hex()
    assert file_digest(write(tmp_path / "empty")) == START_DIGEST.hex() == "0" * 64
    assert chain_digest(START_DIGEST, b"1" * 32) == hashlib.sha256(bytes(32) + b"1" * 32).digest()


# --- lines ---


def lines_of(blocks: list[SourceBlock]) -> list[bytes]:
    cutter = LineCutter(1 << 22)
    return [line for block in blocks for line in cutter.feed(block.data)] + cutter.finish()


def assert_cut_by_the_rules(blocks: list[SourceBlock], text: bytes, most: int = BLOCK_SIZE) -> None:
    """Check every rule for blocks of lines against the whole text."""
    assert b"".join(block.data for block in blocks) == text
    for block in blocks:
        end = block.offset + len(block.data)
        last = end == len(text)
        assert 0 < len(block.data) <= most
        assert text[block.offset : end] == block.data
        assert block.first_line == text.count(b"\n", 0, block.offset) + 1
        assert block.lines == block.data.count(b"\n") + (last and not text.endswith(b"\n"))
        assert block.last_line_continues == (not last and not block.data.endswith(b"\n"))
        assert block.data.endswith(b"\n") or last or (len(block.data) == most and b"\n" not in block.data)


@pytest.mark.parametrize("mode", ["plain", "packed"])
@pytest.mark.parametrize("text", [TEXT, TEXT[:-1], b"a", b"\n", b"a\r\nb", b"\n" * (BLOCK_SIZE + 3)], ids=len)
def test_blocks_of_lines_end_at_a_line_end(tmp_path: Path, mode: str, text: bytes):
    blocks = read(made(tmp_path, mode, text), mode)
    assert_cut_by_the_rules(blocks, text)
    assert all(len(block.data) > BLOCK_SIZE - 600 for block in blocks[:-1])
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
def test_any_text_is_cut_by_the_rules_and_alike_from_any_resume_point(tmp_path: Path, text: bytes, mode: str):
    given = made(tmp_path, mode, text)
    content = given.path.read_bytes() if mode == "bytes" else text
    blocks = read(given, mode)
    if mode == "bytes":
        assert [block.data for block in blocks] == [content[i : i + 8] for i in range(0, len(content), 8)]
    else:
        assert_cut_by_the_rules(blocks, content, 8)
    for number, point in enumerate(resume_points(given, mode), 1):
        assert read(given, mode, point) == blocks[number:]


@pytest.mark.parametrize("mode", ["plain", "packed"])
def test_a_line_longer_than_a_block_is_spread_over_several(tmp_path: Path, mode: str):
    text = b"a\n" + b"b" * (2 * BLOCK_SIZE + 10) + b"\nc\n" + b"d" * BLOCK_SIZE
    blocks = read(made(tmp_path, mode, text), mode)
    assert_cut_by_the_rules(blocks, text)
    assert [(len(block.data), block.first_line, block.lines, block.last_line_continues) for block in blocks] == [
        (2, 1, 1, False),
        (BLOCK_SIZE, 2, 0, True),
        (BLOCK_SIZE, 2, 0, True),
        (13, 2, 2, False),
        (BLOCK_SIZE, 4, 1, False),
    ]


def test_gzip_members_and_padding_become_one_text(tmp_path: Path):
    packed = b"".join(gzip.compress(line) + bytes(7) for line in LINES[:50])
    blocks = read(source(write(tmp_path / "f", packed)), "packed")
    assert [block.data for block in blocks] == [b"".join(LINES[:50])]


def test_a_file_is_packed_if_its_content_or_its_name_says_so(tmp_path: Path):
    packed = gzip.compress(TEXT)
    for name, content, expected in [
        ("a", packed, True),
        ("a.gz", packed, True),
        ("b", TEXT, False),
        ("c.gz", TEXT, True),
        ("d", b"\x1f", False),
    ]:
        with SourceReader(source(write(tmp_path / name, content)), lines=True) as reader:
            assert reader.packed is expected
    for content, reason in [
        (b"", "it is empty"),
        (b"\x1f", "it ends at byte 1"),
        (TEXT, "it has 30 20 at byte 0, where a gzip member begins with 1f 8b"),
    ]:
        with pytest.raises(FileDamaged, match=rf"e\.gz is damaged: {reason}"):
            read(source(write(tmp_path / "e.gz", content)), "packed")


@pytest.mark.parametrize("cut", [3, 40, 2000, -9, -1])
def test_a_truncated_packed_file_raises_after_its_whole_lines(tmp_path: Path, cut: int):
    packed = gzip.compress(TEXT, 1)[:cut]
    path = write(tmp_path / "f.gz", packed)
    found: list[SourceBlock] = []
    with (
        pytest.raises(FileDamaged, match=rf"{path} is damaged: it ends at byte"),
        SourceReader(source(path), lines=True) as reader,
    ):
        found.extend(reader.blocks())
    sound = library().decompressobj(31).decompress(packed)  # of the last bytes isal may return one less than zlib
    assert b"".join(block.data for block in found) == sound[: sound.rfind(b"\n") + 1]
    assert sum(block.lines for block in found) == sound.count(b"\n")


@pytest.mark.parametrize("mode", MODES)
def test_a_file_of_any_size_takes_a_few_blocks_of_memory(tmp_path: Path, mode: str):
    text = TEXT * 40
    given = made(tmp_path, mode, text)
    with SourceReader(given, lines=mode != "bytes") as reader:
        tracemalloc.start()
        size = sum(len(block.data) for block in reader.blocks())
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert size == len(text)
    assert peak < 8 * BLOCK_SIZE


def test_a_bomb_takes_a_few_blocks_of_memory(tmp_path: Path):
    path = write(tmp_path / "f", gzip.compress(bytes(100_000_000)))
    with SourceReader(source(path), lines=True) as reader:
        tracemalloc.start()
        blocks = [(len(block.data), block.last_line_continues) for block in reader.blocks()]
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert sum(size for size, _ in blocks) == 100_000_000
    assert blocks[-1][1] is False
    assert peak < 8 * BLOCK_SIZE


# --- resuming ---


@pytest.mark.parametrize("mode", MODES)
def test_the_blocks_from_a_resume_point_on_are_the_same(tmp_path: Path, mode: str):
    given = made(tmp_path, mode, TEXT + b"y" * (BLOCK_SIZE + 5) + b"\n" + TEXT[:-1])
    blocks = read(given, mode)
    assert len(blocks) > 1
    found = resume_points(given, mode)
    assert [read(given, mode, point) for point in found] == [blocks[number:] for number in range(1, len(blocks) + 1)]
    assert read(given, mode, ResumePoint(0, 0, b"", 0, found[0].file_size, found[0].inode)) == blocks


@pytest.mark.parametrize("mode", ["bytes", "plain"])
def test_resuming_far_inside_a_file_reads_one_block(tmp_path: Path, monkeypatch, mode: str):
    given = made(tmp_path, mode, TEXT * 20)
    point = resume_points(given, mode)[-2]
    lengths = []
    pread = os.pread

    def counted(file: int, length: int, offset: int) -> bytes:
        lengths.append(length)
        return pread(file, length, offset)

    monkeypatch.setattr(os, "pread", counted)
    with SourceReader(given, lines=mode != "bytes", start=point) as reader:
        next(reader.blocks())
    assert 0 < sum(lengths) <= 2 * BLOCK_SIZE + 12


def test_a_reader_identifies_its_file(tmp_path: Path):
    given = made(tmp_path, "plain")
    status = given.path.stat()
    point = resume_points(given, "plain")[0]
    with SourceReader(given) as whole, SourceReader(given, start=point) as resumed:
        assert whole.inode == resumed.inode == f"{status.st_dev}:{status.st_ino}"
        assert whole.identity == resumed.identity == f"{whole.inode}:{len(TEXT)}:{status.st_mtime_ns}"
        assert whole.size == resumed.size == len(TEXT)
        assert whole.bytes_read == 0
        [*_] = whole.blocks()
        assert whole.bytes_read == len(TEXT)
    os.utime(given.path, ns=(1, 1))
    with SourceReader(given) as touched:
        assert touched.identity != whole.identity


@pytest.mark.parametrize("mode", MODES)
def test_bytes_appended_during_an_upload_are_not_read(tmp_path: Path, mode: str):
    given = made(tmp_path, mode)
    blocks, found = read(given, mode), resume_points(given, mode)
    with SourceReader(given, lines=mode != "bytes") as reader, given.path.open("ab") as writer:
        size, identity = reader.size, reader.identity
        going = reader.blocks()
        first = next(going)
        writer.write(TEXT)
        writer.flush()
        assert [first, *going] == blocks
        assert (reader.size, reader.identity) == (size, identity)
    assert read(given, mode, found[0]) == blocks[1:]
    with SourceReader(given, start=found[0]) as resumed:
        assert resumed.size == found[0].file_size


@pytest.mark.parametrize("mode", MODES)
def test_a_rotated_file_is_found_under_its_new_name(tmp_path: Path, mode: str):
    given = made(tmp_path, mode)
    blocks, found = read(given, mode), resume_points(given, mode)
    given.path.rename(tmp_path / "access.log.1")
    assert read(given, mode, found[0]) == blocks[1:]
    write(given.path, b"new")
    write(tmp_path / "access.log.2", TEXT)
    (tmp_path / "loop").symlink_to("loop")
    with SourceReader(given, lines=mode != "bytes", start=found[0]) as reader:
        assert (reader.source, reader.inode) == (given, found[0].inode)
        assert [*reader.blocks()] == blocks[1:]
    (tmp_path / "access.log.1").unlink()
    with pytest.raises(
        FileChanged, match="another file has its name, and the file that was being sent is not in its folder"
    ):
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
def test_a_file_that_is_rotated_during_the_search_is_found(tmp_path: Path, monkeypatch, rotations, looks):
    given = made(tmp_path, "plain")
    found, blocks = resume_points(given, "plain"), read(given, "plain")
    *before, last = rotations
    for rotation in before:
        _rotate(tmp_path, *rotation)
    looked: list[Path] = []

    def slow(path: Path) -> str | None:
        answer = inode_at(path)
        looked.append(path)
        if len(looked) == looks:
            _rotate(tmp_path, *last)
        return answer

    monkeypatch.setattr(source_reader, "inode_at", slow)
    assert read(given, "plain", found[0]) == blocks[1:]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rotate", ["rename", "remove", "replace"])
def test_a_rotation_while_a_file_is_read_changes_nothing(tmp_path: Path, mode: str, rotate: str):
    given = made(tmp_path, mode)
    blocks = read(given, mode)
    with SourceReader(given, lines=mode != "bytes") as reader:
        going = reader.blocks()
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
def test_truncating_a_file_during_reading_raises(tmp_path: Path, mode: str, size: int):
    given = made(tmp_path, mode, TEXT + os.urandom(3 * BLOCK_SIZE))
    full = given.path.stat().st_size
    with SourceReader(given, lines=mode != "bytes") as reader:
        going = reader.blocks()
        next(going)
        os.truncate(given.path, size % full)
        with pytest.raises(FileChanged, match=rf"changed since its upload began: it had {full:,} bytes, and has"):
            list(going)


@pytest.mark.parametrize("mode", MODES)
def test_truncating_or_rewriting_a_file_before_the_resume_point_raises(tmp_path: Path, mode: str):
    given = made(tmp_path, mode, TEXT * 2)
    found = resume_points(given, mode)
    content = given.path.read_bytes()
    for changed in (b"", content[:-1], content[: len(content) // 2]):
        given.path.write_bytes(changed)
        with pytest.raises(FileChanged, match="it had"):
            SourceReader(given, lines=mode != "bytes", start=found[0])
    other = TEXT.replace(b"x", b"y") * 2
    given.path.write_bytes((gzip.compress(other, 1) if mode == "packed" else other) + b"\0" * 999)
    assert given.path.stat().st_ino == int(found[0].inode.partition(":")[2])
    with pytest.raises(FileChanged, match=r"its content before byte [\d,]+ is not what was sent"):
        read(given, mode, found[0])
    given.path.write_bytes(content)
    assert read(given, mode, found[0]) == read(given, mode)[1:]


@pytest.mark.parametrize("mode", MODES)
def test_an_impossible_resume_point_raises(tmp_path: Path, mode: str):
    given = made(tmp_path, mode)
    [point, *_] = resume_points(given, mode)
    for offset, length in [
        (10**9, 100),
        (point.offset + 1, point.last_block_size),
        (point.offset, point.last_block_size - 1),
    ]:
        with pytest.raises(FileChanged):
            read(given, mode, ResumePoint(offset, 1, point.last_block_digest, length, point.file_size, point.inode))


# --- files that cannot be read ---


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: None, "No such file or directory"),
        (Path.mkdir, "a folder, not a regular file"),
        (os.mkfifo, "a fifo, not a regular file"),
        (lambda path: path.symlink_to(path), "Too many levels of symbolic links"),
    ],
)
def test_an_unreadable_file_raises_with_the_reason(tmp_path: Path, make: Callable[[Path], Any], reason: str):
    make(tmp_path / "f")
    with pytest.raises(FilesError, match=rf"^{tmp_path}/f cannot be read: {reason}$"):
        SourceReader(source(tmp_path / "f"))
    with pytest.raises(FilesError):
        file_digest(tmp_path / "f")


def test_a_fifo_that_replaces_a_file_before_it_is_opened_does_not_block(tmp_path: Path, monkeypatch):
    os.mkfifo(tmp_path / "f")
    status = write(tmp_path / "g").stat()
    monkeypatch.setattr(Path, "stat", lambda path: status)
    with pytest.raises(FilesError, match="a fifo, not a regular file"):
        SourceReader(source(tmp_path / "f"))


def test_a_missing_folder_raises(tmp_path: Path):
    given = made(tmp_path / "logs", "plain")
    [point, *_] = resume_points(given, "plain")
    (tmp_path / "logs").rename(tmp_path / "old")
    with pytest.raises(FilesError, match="cannot be read: No such file or directory"):
        read(given, "plain", point)


@pytest.mark.parametrize("mode", MODES)
def test_a_read_error_raises(tmp_path: Path, monkeypatch, mode: str):
    given = made(tmp_path, mode, TEXT + os.urandom(2 * BLOCK_SIZE))
    blocks = read(given, mode)
    pread = os.pread

    def broken(file: int, length: int, offset: int) -> bytes:
        if offset:
            raise OSError(5, "Input/output error")
        return pread(file, length, offset)

    with SourceReader(given, lines=mode != "bytes") as reader:
        monkeypatch.setattr(os, "pread", broken)
        with pytest.raises(FilesError, match=r"access\.log cannot be read: Input/output error"):
            [*reader.blocks()]
    monkeypatch.setattr(os, "pread", lambda file, length, offset: pread(file, min(length, 70_000), offset))
    assert read(given, mode) == blocks


def test_a_file_that_ends_early_raises_though_it_is_long_again_at_once(tmp_path: Path, monkeypatch):
    given = made(tmp_path, "plain")
    with SourceReader(given) as reader:
        monkeypatch.setattr(os, "pread", lambda file, length, offset: b"")
        with pytest.raises(FileChanged):
            list(reader.blocks())


def test_a_closed_reader_reads_no_other_file(tmp_path: Path):
    given = made(tmp_path, "plain")
    with SourceReader(given) as reader:
        going: Iterator[SourceBlock] = reader.blocks()
        next(going)
    with pytest.raises(ValueError, match="closed"):
        next(going)
