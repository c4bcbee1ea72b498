"""Bytes in any pieces are cut into the same lines."""

import time
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.files.lines import CutLine, LineCutter
from tests.speed import scaled


def expected(data: bytes, longest: int) -> list[bytes]:
    """Apply the rules to all data in one go."""
    *ended, last = data.split(b"\n")
    lines = [line.removesuffix(b"\r") for line in ended] + [last] * bool(last)
    return [CutLine(line[:longest]) if len(line) > longest else line for line in lines]


def cut(data: bytes, places: list[int], longest: int = 1 << 20) -> list[bytes]:
    cutter = LineCutter(longest)
    places = [0, *sorted(min(place, len(data)) for place in places), len(data)]
    found = [line for start, end in pairwise(places) for line in cutter.feed(data[start:end])]
    return found + cutter.finish()


def typed(lines: list[bytes]) -> list[tuple[type, bytes]]:
    return [(type(line), line) for line in lines]


@settings(max_examples=500)
@given(
    data=st.lists(st.sampled_from([b"\n", b"\r", b"\r\n", b"a", b"bc", b"\0", b"\xff" * 5]), max_size=40).map(b"".join),
    places=st.lists(st.integers(0, 60), max_size=12),
    longest=st.integers(1, 9),
)
@example(data=b"abc\r\n", places=[4], longest=3)
@example(data=b"abc\r\n", places=[], longest=3)
@example(data=b"abc\rd\n", places=[4], longest=3)
@example(data=b"abc\r", places=[3], longest=3)
@example(data=b"abcd\n", places=[], longest=3)
@example(data=b"\r\r\n\r", places=[1, 2, 3], longest=1)
@example(data=b"ab\r\r\n", places=[2, 3, 4], longest=3)
@example(data=b"ab\ncdefg\nh", places=[4], longest=2)
def test_any_split_of_any_bytes_gives_the_same_lines(data, places, longest):
    assert typed(cut(data, places, longest)) == typed(expected(data, longest))


@given(
    data=st.binary(max_size=300).map(lambda data: data.replace(b"\x01", b"\n")), places=st.lists(st.integers(0, 300))
)
def test_any_bytes_can_be_a_line(data, places):
    assert cut(data, places) == expected(data, 1 << 20)


def test_lines_lose_their_ends_and_nothing_else():
    assert cut(b"a\nb\r\n\n\rc\r\r\n\xff\xfe\n d", []) == [b"a", b"b", b"", b"\rc\r", b"\xff\xfe", b" d"]


@pytest.mark.parametrize("data", [b"", b"a\n", b"a", b"\n", b"a\r\n"])
def test_there_is_no_line_after_the_last_line_end(data):
    assert cut(data, []) == ([b"" if data == b"\n" else b"a"] if data else [])


def test_the_unfinished_line_counts_towards_the_longest():
    cutter = LineCutter(3)
    carried = []
    for data in (b"ab\ncd", b"ef", b"gh", b"ij", b"\nk\n", b"", b"l"):
        cutter.feed(data)
        carried.append((len(cutter.unfinished), cutter.in_long_line))
    assert carried == [(2, False), (4, False), (0, True), (0, True), (0, False), (0, False), (1, False)]
    assert (cutter.finish(), cutter.unfinished, cutter.finish()) == ([b"l"], b"", [])


def test_another_cutter_can_continue_inside_a_line_that_was_cut():
    first = LineCutter(3)
    assert typed(first.feed(b"a\nbcdefg")) == [(bytes, b"a"), (CutLine, b"bcd")]
    second = LineCutter(3, in_long_line=first.in_long_line)
    assert second.feed(b"hij") + second.feed(b"k\r\nl\n") == [b"l"]


def test_a_cutter_can_begin_the_next_file_after_finish():
    cutter = LineCutter()
    assert cutter.feed(b"a\nb") + cutter.finish() + cutter.feed(b"c\n") == [b"a", b"b", b"c"]


def test_a_line_of_any_length_takes_no_more_memory_than_the_longest():
    cutter, piece = LineCutter(100_000), b"x" * 250_000
    tracemalloc.start()
    lines = [line for _ in range(200) for line in cutter.feed(piece)]
    [line, last] = lines + cutter.feed(b"\nb\n")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (type(line), line, last) == (CutLine, piece[:100_000], b"b")
    assert peak < 700_000


def test_a_long_line_in_tiny_pieces_takes_linear_time():
    cutter = LineCutter()
    began = time.monotonic()
    for _ in range(200_000):
        cutter.feed(b"abcde")
    assert len(cutter.finish()[0]) == 1_000_000
    assert time.monotonic() - began < scaled(10)


def test_a_block_of_whole_lines_is_split_without_a_further_copy():
    """Peak memory: the lines themselves, and no second copy of the block."""
    block = (b"x" * 199 + b"\n") * 50_000
    lines = 50_000 * (33 + 199 + 8)
    tracemalloc.start()
    found = LineCutter(1 << 24).feed(block)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(found) == 50_000
    assert peak < lines + len(block) / 2


@pytest.mark.parametrize("longest", [0, -1])
def test_a_line_must_be_allowed_one_byte(longest):
    with pytest.raises(ValueError, match=r"LineCutter\(longest=.*\): at least 1 byte"):
        LineCutter(longest)
