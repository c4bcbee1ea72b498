"""Zstandard files of any shape are inflated to the text that was packed, or raise an error."""

import random
import sys
import time
import tracemalloc
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import FileDamaged, FilesError
from penstock.files.source import Source
from penstock.files.source_reader import SourceReader
from penstock.files.unpack import Unzstd

LIBRARY = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
TEXT = b"".join(b"%d %s\n" % (n, b"x" * (n % 61)) for n in range(400))


@pytest.fixture(scope="module", autouse=True)
def zstd() -> Any:
    return pytest.importorskip(LIBRARY)


def frame(text: bytes, level: int = 3) -> bytes:
    library = import_module(LIBRARY)
    parameter = library.CompressionParameter
    return library.compress(text, options={parameter.compression_level: level, parameter.checksum_flag: 1})


def skipped(length: int) -> bytes:
    return b"\x50\x2a\x4d\x18" + length.to_bytes(4, "little") + bytes(length)


def pieces(data: bytes, cuts: list[int] | None = None, max_piece: int = 64 * 1024) -> list[bytes]:
    inflater = Unzstd("a.zst", max_piece)
    places = [0, *sorted(min(cut, len(data)) for cut in cuts or []), len(data)]
    found = [piece for start, end in pairwise(places) for piece in inflater.feed(data[start:end])]
    inflater.finish()
    return found


Cuts = st.lists(st.integers(0, 3000), max_size=8)


@given(
    parts=st.lists(st.tuples(st.binary(max_size=600), st.sampled_from([-5, 1, 19])), min_size=1, max_size=5),
    between=st.integers(-1, 20),
    cuts=Cuts,
    max_piece=st.integers(1, 700),
)
def test_any_frames_are_inflated_in_any_split(parts, between, cuts, max_piece):
    gap = skipped(between) if between >= 0 else b""
    packed = gap.join(frame(part, level) for part, level in parts)
    found = pieces(packed, cuts, max_piece)
    assert b"".join(found) == b"".join(part for part, _ in parts)
    assert all(0 < len(piece) <= max_piece for piece in found)


@given(cut=st.integers(1), cuts=Cuts)
def test_a_file_that_was_truncated_anywhere_is_damaged(cut, cuts):
    packed = frame(TEXT)
    for before in (b"", packed):
        with pytest.raises(FileDamaged, match=r"^a\.zst is damaged: it ends at byte [\d,]+, inside of frame [12]"):
            pieces(before + packed[: 1 + cut % (len(packed) - 1)], cuts)


@given(place=st.integers(0), change=st.integers(1, 255), cuts=Cuts)
def test_a_changed_byte_changes_nothing_or_is_damage(place, change, cuts):
    packed = bytearray(frame(TEXT) + frame(TEXT[:900], 1))
    packed[place % len(packed)] ^= change
    try:
        found = b"".join(pieces(bytes(packed), cuts))
    except FileDamaged:
        return
    # If a magic number becomes that of a skippable frame, the frame is skipped: the format cannot detect this.
    assert found in {TEXT + TEXT[:900], TEXT, TEXT[:900]}


@pytest.mark.parametrize(
    ("junk", "reason"),
    [
        (b"junk", "frame 3 (from byte {0:,}) is broken before byte {1:,}: Unknown frame descriptor"),
        (bytes(9), "frame 3 (from byte {0:,}) is broken before byte {1:,}: Unknown frame descriptor"),
        (b"\x28", "it ends at byte {1:,}, inside of frame 3 (from byte {0:,})"),
    ],
)
def test_other_bytes_after_a_frame_are_damage_and_the_error_names_the_place(junk, reason):
    packed = frame(TEXT) + frame(bytes(200_000))
    with pytest.raises(FileDamaged) as caught:
        pieces(packed + junk)
    assert str(caught.value) == f"a.zst is damaged: {reason.format(len(packed), len(packed + junk))}"


def test_an_empty_file_is_damaged():
    with pytest.raises(FileDamaged, match="it is empty, without even one Zstandard frame"):
        pieces(b"")


def test_a_bomb_is_inflated_in_pieces_and_takes_no_memory():
    bomb = frame(bytes(60_000_000)) * 2
    inflater = Unzstd("a.zst")
    tracemalloc.start()
    sizes = [len(piece) for piece in inflater.feed(bomb)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    inflater.finish()
    assert sum(sizes) == 120_000_000
    assert max(sizes) == 64 * 1024
    assert peak < 20_000_000  # includes the buffer of the library


def test_many_tiny_frames_cost_the_same_in_one_piece_as_in_many():
    """Copying the rest of the file for each frame would take quadratic time."""
    packed = frame(b"a") * 100_000

    def seconds(cuts: list[int]) -> float:
        began = time.monotonic()
        assert b"".join(pieces(packed, cuts)) == b"a" * 100_000
        return time.monotonic() - began

    assert seconds([]) < 2 * seconds([*range(0, len(packed), 16 * 1024)]) + 0.5


def test_noise_ends_in_an_error_or_in_what_the_library_reads(zstd: Any):
    chance = random.Random(7)
    ends = time.monotonic() + 1
    while time.monotonic() < ends:
        packed = bytearray(frame(TEXT[: chance.randrange(900)]) + frame(TEXT[:99]))
        start = chance.randrange(len(packed))
        packed[start : start + chance.randrange(4)] = chance.randbytes(chance.randrange(4))
        try:
            found = b"".join(pieces(bytes(packed), [chance.randrange(len(packed)) for _ in range(3)]))
        except FileDamaged:
            continue
        assert found == zstd.decompress(packed)


@pytest.mark.parametrize("name", ["access.log", "access.log.zst", "misnamed.gz"])
def test_lines_are_read_and_resume_at_any_point(tmp_path: Path, name: str):
    text = TEXT * 100
    (tmp_path / name).write_bytes(frame(text[:99_999]) + frame(text[99_999:]))
    source = Source(tmp_path / name, name)
    with SourceReader(source, lines=True) as reader:
        assert reader.packed
        blocks = [*reader.blocks()]
    assert b"".join(block.data for block in blocks) == text
    assert all(block.data.endswith(b"\n") for block in blocks)
    mark = reader.resume_point(blocks[0])
    with SourceReader(source, lines=True, start=mark) as resumed:
        assert [*resumed.blocks()] == blocks[1:]


def test_a_name_alone_makes_a_file_packed(tmp_path: Path):
    (tmp_path / "a.zst").write_bytes(b"plain text\n")
    with SourceReader(Source(tmp_path / "a.zst", "a.zst"), lines=True) as reader, pytest.raises(FileDamaged):
        next(reader.blocks())


def test_without_the_library_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "a.zst").write_bytes(frame(TEXT))
    monkeypatch.setitem(sys.modules, LIBRARY, None)
    reason = r"a\.zst is packed with Zstandard, which this Python lacks: install penstock\[zstd\]$"
    with (
        SourceReader(Source(tmp_path / "a.zst", "a.zst"), lines=True) as reader,
        pytest.raises(FilesError, match=reason),
    ):
        next(reader.blocks())
    with SourceReader(Source(tmp_path / "a.zst", "a.zst")) as reader:
        assert [block.data for block in reader.blocks()] == [(tmp_path / "a.zst").read_bytes()]
