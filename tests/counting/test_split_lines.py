"""Lines that a container runtime has split into pieces are joined, and a piece alone is never a line."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.counting import Tally, requests_per
from penstock.counting.pieces import has_pieces, join_pieces, open_from
from penstock.counting.request import LONGEST
from tests.counting.test_formats import CADDY, COMBINED

DAY = "2026-03-02"
AT = "2026-03-02T10:05:03.123456789Z"


def cri(text: str, *, last: bool = True, stream: str = "stdout") -> bytes:
    return f"{AT} {stream} {'F' if last else 'P'} {text}".encode()


def docker(text: str, *, last: bool = True, stream: str = "stdout") -> bytes:
    return json.dumps(
        {"log": f"{text}\n" if last else text, "stream": stream, "time": AT}, separators=(",", ":")
    ).encode()


WRITERS = {"cri": cri, "docker": docker}
writers = pytest.mark.parametrize("wrap", [cri, docker])


def count(*lines: bytes, format: str | None = None) -> Tally:
    return requests_per("host", format=format)(lines)


@writers
@pytest.mark.parametrize("line", [COMBINED, CADDY])
def test_the_pieces_of_a_line_are_one_request(wrap, line: str):
    for cuts in ([20], [0], [len(line)], [10, 50], [1, 2, 3]):
        edges = [0, *cuts, len(line)]
        pieces = [wrap(line[start:end], last=end == len(line)) for start, end in pairwise(edges)]
        pieces[:-1] = [wrap(line[start:end], last=False) for start, end in pairwise(edges[:-1])]
        tables, rejected = count(*pieces)
        assert tables["hosts"] == {"203.0.113.9": 1}
        assert tables["joined"] == {"pieces": len(cuts)}
        assert not rejected


@writers
def test_the_streams_of_a_container_are_joined_apart(wrap):
    tables, rejected = count(
        wrap(COMBINED[:30], last=False),
        wrap("an error", stream="stderr"),
        wrap("half an ", last=False, stream="stderr"),
        wrap(COMBINED[30:]),
        wrap("error", stream="stderr"),
        wrap(COMBINED),
    )
    assert tables == {"hosts": {"203.0.113.9": 2}, "joined": {"pieces": 2}}
    assert list(rejected) == [1, 4]


@writers
def test_a_tail_that_looks_like_a_line_is_none(wrap):
    forged = COMBINED.replace("203.0.113.9", "198.51.100.1")
    head = COMBINED.replace("/docs/?q=1", "/" + "a" * 16_000).partition(" HTTP")[0]
    tables, rejected = count(wrap(head, last=False), wrap(forged))
    assert set(tables["hosts"]) <= {"203.0.113.9"}
    assert sum(tables["hosts"].values()) + len(rejected) + tables["joined"]["pieces"] == 2


@writers
def test_pieces_without_an_end_are_rejected_with_the_reason(wrap):
    tables, rejected = count(wrap(COMBINED), wrap(COMBINED[:9], last=False), wrap(COMBINED[9:], last=False))
    assert tables == {"hosts": {"203.0.113.9": 1}}
    assert rejected == dict.fromkeys((1, 2), "a piece of a line whose end is missing")


@writers
def test_a_joined_line_is_bounded_like_any_other(wrap):
    agent = "x" * (LONGEST // 4)
    pieces = [wrap(COMBINED.removesuffix('"'), last=False), *[wrap(agent, last=False)] * 4, wrap('"')]
    tables, rejected = count(*pieces, wrap(COMBINED))
    assert tables["hosts"] == {"203.0.113.9": 1}
    assert rejected == {5: f"longer than {LONGEST:,} bytes"}


def test_a_format_without_a_prefix_joins_nothing():
    assert count(cri(COMBINED[:9], last=False), cri(COMBINED[9:]), format="combined").rejected.keys() == {0, 1}
    joined = count(cri(COMBINED[:9], last=False), cri(COMBINED[9:]), format="cri+combined")
    assert joined.tables["hosts"] == {"203.0.113.9": 1}


_text = st.text('ab\\n\n"{} \t', max_size=6) | st.sampled_from([COMBINED, "\\n", '\\n"', '{"log":'])


@given(
    st.sampled_from(sorted(WRITERS)),
    st.lists(st.tuples(_text, st.booleans(), st.sampled_from(["stdout", "stderr"])), max_size=12),
)
def test_joining_loses_no_text_and_no_line(name: str, parts: list[tuple[str, bool, str]]):
    wrap = WRITERS[name]
    parts = [(text.replace("\n", " "), last, stream) for text, last, stream in parts]
    text = b"".join(wrap(text, last=last, stream=stream) + b"\n" for text, last, stream in parts)
    wanted: list[str] = []
    waiting = {"stdout": "", "stderr": ""}
    for part, last, stream in parts:
        waiting[stream] += part
        if last:
            wanted.append(waiting[stream])
            waiting[stream] = ""
    found = join_pieces(text, LONGEST)
    assert found.text.count(b"\n") == len(parts)
    left = [
        line for index, line in enumerate(found.text.split(b"\n")[:-1]) if index not in {*found.joined, *found.open}
    ]
    plain = [
        json.loads(line)["log"].removesuffix("\n") if name == "docker" else line.decode().split(" ", 3)[3]
        for line in left
    ]
    assert plain == wanted
    assert len(found.open) == sum(not last for _, last, _ in parts) - len(found.joined)
    assert has_pieces(text) or not (found.joined or found.open)
    whole = text[: open_from(text)]
    assert not join_pieces(whole, LONGEST).open
