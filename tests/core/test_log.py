"""`core/log.lua`: a noun of its own makes a log of it, without readers, members or messages."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.constants import ENTRY_OVERHEAD
from penstock.core.scripts import Script, cut, read

NOTES = """
_notes = { NUMBERS = "top first start at freed begun ended" }

--- (l: table, number: int) -> table | nil
function log.missing(l, number)
  return nil
end

--- (ends: str) -> table
--- uses: stream numbers
function notes.open(ends)
  local l = log.begin(stream, ends ~= "" and ends, 0)
  local stored = redis.call("HGETALL", numbers)
  for i = 1, #stored, 2 do l[stored[i]] = tonumber(stored[i + 1]) or false end
  return l
end

--- (l: table)
--- uses: numbers
function notes.store(l)
  for name in string.gmatch(_notes.NUMBERS, "%a+") do redis.call("HSET", numbers, name, tostring(l[name])) end
end

--- keys: stream numbers
--- args: ends: str, now: int, bodies: *
function script.append(stream, numbers, ends, now, bodies, ...)
  local l, last = notes.open(ends)
  for i = bodies, #ARGV do
    last = log.append(l, now, "me", ARGV[i])
    if not last then return "LOST" end
  end
  notes.store(l)
  return last
end

--- keys: stream numbers
--- args: ends: str, bytes: int, before: int
function script.trim(stream, numbers, ends, bytes, before)
  local l = notes.open(ends)
  local to = log.last_exceeding(l, l.first, bytes, before)
  if to >= l.first then log.free_to(l, to) end
  notes.store(l)
  return { l.first, l.ended - l.begun }
end

--- keys: stream numbers
--- args: ends: str, after: str, limit: int, room: int
function script.read(stream, numbers, ends, after, limit, room)
  local l, found = notes.open(ends), {}
  local number = log.locate(l, after)
  if not number then return "AGAIN" end
  local last = log.read(l, math.max(number, l.first - 1), limit, room, found)
  return { l.is_lost and 1 or 0, log.position(l, last), found }
end
"""


@pytest.fixture(scope="module")
def scripts() -> dict[str, Script]:
    return dict(cut({"core/log.lua": read("core/log.lua"), "test.lua": NOTES}))


@pytest.fixture(params=["", "{x}:ends"], ids=["without ends", "with ends"])
def call(client: Any, scripts: dict[str, Script], request: Any) -> Any:
    return lambda name, *args: client.eval(scripts[name].source, 2, "{x}:log", "{x}:numbers", request.param, *args)


def entries(reply: list[Any]) -> list[tuple[int, bytes]]:
    """The number and the body of each entry."""
    found = reply[2]
    return list(zip(found[0::5], found[3::5], strict=True))


def test_entries_have_numbers_without_gaps_and_are_read_in_pages(call: Any):
    assert call("append", 1000, "a", "bb") == b"2-1000"
    assert call("append", 2000, "ccc") == b"3-2000"
    assert call("read", "", 2, 100) == [0, b"2-1000", [1, 1000, b"me", b"a", b"", 2, 1000, b"me", b"bb", b""]]
    assert entries(call("read", "2-1000", 10, 100)) == [(3, b"ccc")]
    assert entries(call("read", "3-2000", 10, 100)) == []


def test_a_page_has_at_least_one_entry_and_no_more_bytes_than_allowed(call: Any):
    call("append", 1000, "a" * 50, "b" * 50, "c" * 50)
    assert [number for number, _ in entries(call("read", "", 10, 10))] == [1]
    assert [number for number, _ in entries(call("read", "", 10, 100))] == [1, 2]


def test_the_oldest_entries_are_freed_by_bytes_and_by_age(call: Any, client: Any):
    call("append", 1000, "a")
    call("append", 2000, "b")
    call("append", 3000, "c")
    size = len("me") + 1 + ENTRY_OVERHEAD
    assert call("trim", 3 * size, 0) == [1, 3 * size]
    assert call("trim", 2 * size, 0) == [2, 2 * size]
    assert entries(call("read", "", 10, 100)) == [(2, b"b"), (3, b"c")]
    assert call("trim", 0, 2000) == [3, size]
    assert call("trim", 0, 3000) == [4, 0]
    assert client.keys("*") == [b"{x}:numbers"]
    assert call("append", 4000, "d") == b"4-4000"


def test_a_position_of_another_beginning_is_recognised(call: Any, client: Any):
    call("append", 1000, "a", "b", "c")
    call("trim", 0, 1000)
    call("append", 2000, "d", "e")
    for position in ("4-1000", "5-2001", "6-2000", "3-999"):
        assert call("read", position, 10, 100) == b"AGAIN", position
    for position, number in (("1-1", 4), ("3-1000", 4), ("4-2000", 5)):
        assert entries(call("read", position, 10, 100))[0][0] == number, position


def test_a_stream_that_vanished_is_noticed_and_not_begun_again(call: Any, client: Any):
    call("append", 1000, "a", "b")
    client.delete("{x}:log")
    assert call("append", 2000, "c") == b"LOST"
    assert call("read", "", 10, 100)[0] == 1
