"""Gzip files of any shape are inflated to the text that was packed, or raise an error."""

import gzip
import random
import time
import tracemalloc
import zlib
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from penstock.errors import FileDamaged
from penstock.files import gunzip
from penstock.files.gunzip import Gunzip
from tests.speed import scaled


@pytest.fixture(params=["zlib", "isal.isal_zlib"], scope="module", autouse=True)
def library(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each test runs with both libraries."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gunzip, "library", lambda: pytest.importorskip(request.param))
        yield request.param


TEXT = b"".join(b"%d %s\n" % (n, b"x" * (n % 61)) for n in range(400))


def member(text: bytes, level: int = 6, flags: int = 0) -> bytes:
    """A member with every optional field of RFC 1952 that `flags` asks for."""
    header = b"\x1f\x8b\x08" + bytes([flags]) + b"\x01\x02\x03\x04\x00\x03"
    header += (b"\x05\x00extra" if flags & 4 else b"") + (b"name\0" if flags & 8 else b"")
    header += b"remark\0" if flags & 16 else b""
    header += (zlib.crc32(header) & 0xFFFF).to_bytes(2, "little") if flags & 2 else b""
    packer = zlib.compressobj(level, zlib.DEFLATED, -15)
    body = packer.compress(text) + packer.flush()
    return header + body + zlib.crc32(text).to_bytes(4, "little") + (len(text) & 0xFFFFFFFF).to_bytes(4, "little")


EMPTY = member(b"")
CHECKED = member(b"", flags=2)


def pieces(data: bytes, cuts: list[int] | None = None, max_piece: int = 64 * 1024) -> list[bytes]:
    """The pieces of text if the data is fed in these cuts."""
    inflater = Gunzip("a.gz", max_piece)
    places = [0, *sorted(min(cut, len(data)) for cut in cuts or []), len(data)]
    found = [piece for start, end in pairwise(places) for piece in inflater.feed(data[start:end])]
    inflater.finish()
    return found


def text(data: bytes) -> bytes:
    return b"".join(pieces(data))


Cuts = st.lists(st.integers(0, 3000), max_size=8)


@given(
    parts=st.lists(
        st.tuples(
            st.binary(max_size=600), st.integers(0, 9), st.sampled_from([0, 2, 4, 8, 16, 30]), st.integers(0, 40)
        ),
        min_size=1,
        max_size=5,
    ),
    cuts=Cuts,
    max_piece=st.integers(1, 700),
)
@example(parts=[(b"", 6, 0, 0), (b"", 6, 0, 513)], cuts=[1, 19, 20, 21, 22], max_piece=1)
def test_any_members_with_any_padding_are_inflated_in_any_split(parts, cuts, max_piece):
    packed = b"".join(member(part, level, flags) + bytes(zeros) for part, level, flags, zeros in parts)
    found = pieces(packed, cuts, max_piece)
    assert b"".join(found) == b"".join(part for part, *_ in parts)
    assert all(0 < len(piece) <= max_piece for piece in found)


@given(cut=st.integers(0, len(member(TEXT)) - 1), cuts=Cuts, before=st.sampled_from([b"", member(TEXT)]))
def test_a_file_that_was_truncated_anywhere_is_damaged(cut, cuts, before):
    packed = before + member(TEXT)[:cut]
    if before and not cut:
        assert b"".join(pieces(packed, cuts)) == TEXT  # the end of a member may be the end of the file
        return
    with pytest.raises(FileDamaged, match=r"^a\.gz is damaged: it (ends at byte [\d,]+, inside of member|is empty)"):
        pieces(packed, cuts)


@given(place=st.integers(0), change=st.integers(1, 255), cuts=Cuts)
@example(place=8, change=1, cuts=[])  # XFL, which has no effect
@example(place=-1, change=1, cuts=[])  # the padding
def test_a_changed_byte_changes_nothing_or_is_damage(place, change, cuts):
    packed = bytearray(member(TEXT) + member(TEXT, 0) + bytes(9))
    packed[place % len(packed)] ^= change
    try:
        found = b"".join(pieces(bytes(packed), cuts))
    except FileDamaged as error:
        assert str(error).startswith("a.gz is damaged: ")  # noqa: PT017
    else:
        assert found == TEXT + TEXT


@given(junk=st.binary(min_size=1, max_size=40), zeros=st.integers(0, 20), cuts=Cuts)
@example(junk=b"\x1f", zeros=0, cuts=[])
@example(junk=b"\x1f\x8b", zeros=3, cuts=[])
@example(junk=b"\x1f\0", zeros=3, cuts=[])
def test_other_bytes_after_a_member_are_damage(junk, zeros, cuts):
    assume(junk.strip(b"\0"))
    with pytest.raises(FileDamaged, match=r"^a\.gz is damaged: "):
        pieces(member(TEXT) + bytes(zeros) + junk, cuts)


@pytest.mark.parametrize(
    ("packed", "reason"),
    [
        (b"", "it is empty, without even one gzip member"),
        (b"plain text", "it has 70 6c at byte 0, where a gzip member begins with 1f 8b"),
        (bytes(20) + member(TEXT), "it has 00 00 at byte 0, where a gzip member begins with 1f 8b"),
        (zlib.compress(TEXT), "it has 78 9c at byte 0, where a gzip member begins with 1f 8b"),
        (EMPTY + b"\0\0junk", "6a 75 at byte 22, after member 1, is neither another member nor zeros"),
        (EMPTY + EMPTY[:-1], "it ends at byte 39, inside of member 2 (from byte 20)"),
        (EMPTY[:-8] + b"\1" + bytes(7), "member 1 (from byte 0) is broken before byte 20: incorrect data check"),
        (EMPTY[:-4] + b"\1" + bytes(3), "member 1 (from byte 0) is broken before byte 20: incorrect length check"),
        (b"\x1f\x8b\x07" + bytes(7), "member 1 (from byte 0) is broken before byte 10: unknown compression method"),
        (b"\x1f\x8b\x08\xe0" + bytes(6), "member 1 (from byte 0) is broken before byte 10: unknown header flags set"),
        (CHECKED[:10] + b"\0\0", "member 1 (from byte 0) is broken before byte 12: header crc mismatch"),
    ],
)
def test_the_error_names_place_and_reason_of_the_damage(packed, reason, library):
    with pytest.raises(FileDamaged) as caught:
        text(packed)
    found = str(caught.value)
    if (
        library != "zlib" and packed[3:4] == b"\0" and "broken before" in reason
    ):  # each has words of its own for the reason
        found, reason = (one[: one.rindex(": ")] for one in (found, reason))
    assert found == f"a.gz is damaged: {reason}"


@pytest.mark.parametrize("max_piece", [7, 50, 64 * 1024])
def test_a_truncated_file_gives_all_the_text_before_the_cut(max_piece):
    packed = member(TEXT)
    for cut in range(30, len(packed) - 8, 5):
        found = b"".join(Gunzip("a.gz", max_piece).feed(packed[:cut]))
        sound = zlib.decompressobj(31).decompress(packed[:cut])
        assert sound.startswith(found)
        assert len(sound) - len(found) <= 1  # isal needs a few more bits for the last one


def test_a_header_with_several_fields_may_come_in_any_two_pieces():
    packed = member(TEXT, flags=28)
    for cut in range(len(packed)):
        assert b"".join(pieces(packed, [cut])) == TEXT


def test_a_bomb_is_inflated_in_pieces_and_takes_no_memory():
    bomb = b"".join(gzip.compress(bytes(20_000_000), mtime=0) for _ in range(3))
    assert len(bomb) < 65_000
    inflater = Gunzip("a.gz")
    tracemalloc.start()
    sizes = [len(piece) for piece in inflater.feed(bomb)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    inflater.finish()
    assert sum(sizes) == 60_000_000
    assert max(sizes) == 64 * 1024
    assert peak < 400_000


def test_a_piece_may_end_where_the_text_does():
    for size in (64 * 1024, 128 * 1024):
        packed = member(bytes(size)) + member(b"b")
        assert pieces(packed) == [bytes(64 * 1024)] * (size // (64 * 1024)) + [b"b"]
        with pytest.raises(FileDamaged, match="inside of member 1"):
            text(member(bytes(size))[:-8])


def test_many_tiny_members_take_time_in_proportion():
    """Copying the rest of the file for each member would take quadratic time."""
    packed = member(b"a") * 100_000
    began = time.monotonic()
    assert text(packed) == b"a" * 100_000
    assert time.monotonic() - began < scaled(4)


def test_noise_ends_in_an_error_or_in_what_gzip_reads():
    chance = random.Random(7)
    ends = time.monotonic() + 1.5
    damaged = 0
    while time.monotonic() < ends:
        packed = bytearray(member(TEXT[: chance.randrange(900)]) + bytes(chance.randrange(3)) + member(TEXT[:99]))
        for _ in range(chance.randrange(1, 4)):
            start = chance.randrange(len(packed))
            packed[start : start + chance.randrange(4)] = chance.randbytes(chance.randrange(4))
        cuts = [chance.randrange(len(packed)) for _ in range(3)]
        try:
            found = b"".join(pieces(bytes(packed), cuts))
        except FileDamaged:
            damaged += 1
        else:
            assert found == gzip.decompress(packed)
    assert damaged > 100


def test_feeding_more_after_damage_raises_again():
    inflater = Gunzip("a.gz")
    with pytest.raises(FileDamaged):
        list(inflater.feed(member(TEXT)[:40] + b"\xff" * 40))
    with pytest.raises(FileDamaged):
        list(inflater.feed(member(TEXT)))
