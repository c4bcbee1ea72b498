"""The cutter: what stands in a .lua file, and what the server gets."""

import hashlib
from importlib import import_module

import pytest

from penstock.core.scripts import Library, Script, cut

LANE = """\
-- What stands before the first section is for the reader: lane.push(…)

--- function lane.cost(tenant: str) -> number
return 1

--- function lane.push(level: int, tenant: str) -> int
-- Not record.size(…), which is for others.
local cost = lane.cost(tenant)
return redis.call("ZADD", turns, level + cost, "lane.pop(1)")

--- function lane.pop(level: int) -> str
return redis.call("ZPOPMIN", turns)
"""

QUEUE = """\
--- script enqueue
--- keys: turns jobs
--- args: now: int, id: str,
--- args: rest: *
--- flags: allow-oom
return lane.push(now, id) + #ARGV - rest
"""


def only(script: str, **nouns: str) -> Script:
    (found,) = cut({**{f"{noun}.lua": text for noun, text in nouns.items()}, "queue.lua": script}).values()
    return found


def test_a_script_binds_names_and_carries_what_it_reaches():
    enqueue = only(QUEUE, lane=LANE)
    assert enqueue.source.splitlines() == [
        "#!lua flags=allow-oom",
        "local turns = KEYS[1]",
        "local jobs = KEYS[2]",
        "local now = tonumber(ARGV[1])",
        "local id = ARGV[2]",
        "local rest = 3",
        "local function lane_cost(tenant)",
        "return 1",
        "end",
        "local function lane_push(level, tenant)",
        "-- Not record.size(…), which is for others.",
        "local cost = lane_cost(tenant)",
        'return redis.call("ZADD", turns, level + cost, "lane.pop(1)")',
        "end",
        "return lane_push(now, id) + #ARGV - rest",
    ]
    assert (enqueue.name, enqueue.keys, enqueue.flags) == ("enqueue", ("turns", "jobs"), ("allow-oom",))
    assert (enqueue.args, enqueue.open_ended) == (("now", "id", "rest"), True)
    assert enqueue.sha == hashlib.sha1(enqueue.source.encode()).hexdigest()


def test_a_script_needs_no_clause():
    assert only("--- script ping\nreturn 1").source == "#!lua\nreturn 1"


def test_a_callee_stands_above_its_caller_in_whatever_order_they_were_written():
    last_first = "--- function lane.b()\nreturn lane.a()\n--- function lane.a()\nreturn 1"
    source = only("--- script s\nreturn lane.b()", lane=last_first).source
    assert source.index("local function lane_a") < source.index("local function lane_b")


def test_a_function_may_call_itself():
    source = only("--- script s\nreturn lane.a(3)", lane="--- function lane.a(n: int)\nreturn lane.a(n - 1)").source
    assert "return lane_a(n - 1)" in source


def test_a_name_in_a_comment_or_a_string_is_no_call():
    source = only("""--- script s\nlocal t = { 'it\\'s lane.pop(1)' } -- lane.push(1)\nreturn t""", lane=LANE).source
    assert "local function" not in source
    assert "lane.pop(1)" in source


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        ("--- skript s\nreturn 1", "queue.lua:1: neither a section nor a clause"),
        ("--- function push(a: int)\nreturn 1", "neither"),
        ("--- function lane.much()\n--- keys: meta", "queue.lua:2: neither"),
        ("--- script s\n--- key: meta\nreturn 1", "queue.lua:2: neither"),
        ("--- script s\nreturn 1\n--- script s\nreturn 2", "second s"),
        ("--- function lane.pop()\nreturn 1", "second lane.pop"),
        ("--- script s\n--- args: now\nreturn 1", "int, str or \\*: now"),
        ("--- script s\n--- args: now: float\nreturn 1", "int, str or \\*: now"),
        ("--- script s\n--- args: rest: *, now: int\nreturn 1", "only the last"),
        ("--- script s\nreturn lane.psuh(1)", "s calls lane.psuh, which is not there"),
        ("--- script s\nreturn a.b()\n--- function a.b()\na.c()\n--- function a.c()\na.b()", "call each other"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(script: str, complaint: str):
    with pytest.raises(ValueError, match=complaint):
        cut({"lane.lua": LANE, "queue.lua": script})


@pytest.mark.parametrize(
    "module",
    ["jobs.bindings", "completion.contacts", "completion.bindings", "locks.lock", "locks.semaphore",
     "locks.rate_limit", "locks.transaction", "messages.log", "messages.chat_index", "files.bindings"],
)  # fmt: skip
def test_a_noun_can_cut_its_files(module: str):
    library: Library = import_module(f"penstock.{module}").scripts()
    for name, script in library.scripts.items():
        assert library[name] is script
        assert script.source.startswith("#!lua")
