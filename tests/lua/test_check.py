"""`make lua` finds what it is for. Without luac and luacheck only .ci/run looks."""

from pathlib import Path

import pytest

from tests.lua import check

pytestmark = pytest.mark.skipif(bool(check.missing()), reason="needs luac and luacheck (Debian: lua5.1 and lua-check)")

LANE = """\
--- (tenant: str) -> str
--- uses: base
function lane.key(tenant)
  return base .. "lane:" .. tenant
end

--- (tenant: str, entry: str) -> int
--- uses: base
function lane.push(tenant, entry)
  return redis.call("RPUSH", lane.key(tenant), entry)
end

--- keys: base meta
--- args: now: int, tenant: str, entries: *
function script.push(base, meta, now, tenant, entries, ...)
  for i = entries, #ARGV do lane.push(tenant, ARGV[i]) end
  return now
end
"""


def test_a_file_without_a_fault_has_none():
    assert check.faults({"lane.lua": LANE}) == []


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("return now", "return nwo", "script push: (W113) accessing undefined variable 'nwo': return nwo"),
        ("return now", "return 0", "script push: (W211) unused variable 'now': local now = tonumber(ARGV[1])"),
        ("return now", "local n = 1\n  return now", "script push: (W211) unused variable 'n'"),
        ("return now", "n = now\n  return n", "script push: (W111) setting non-standard global variable 'n'"),
        ("return now", "return require(now)", "script push: (W113) accessing undefined variable 'require'"),
        (", entry)\nend", ", 1)\nend", "function lane.push: (W212) unused argument 'entry'"),
        ('base .. "lane:"', '"lane:"', "function lane.key: (W211) unused variable 'base'"),
        ('"lane:" .. t', "meta .. t", "function lane.key: (W113) accessing undefined variable 'meta'"),
        ("lane.key(tenant), e", '"x" .. tenant, e', "function lane.push: (W211) unused variable 'base'"),
    ],
)
def test_a_fault_is_found(old: str, new: str, fault: str):
    assert LANE.count(old) == 1
    assert [found for found in check.faults({"lane.lua": LANE.replace(old, new)}) if found.startswith(fault)]


def test_a_file_that_is_no_lua_is_found(tmp_path: Path):
    good, bad = tmp_path / "good.lua", tmp_path / "bad.lua"
    good.write_text(LANE)
    bad.write_text(LANE.replace("do lane", "lane"))
    assert check.invalid(good) == ""
    assert "bad.lua:16: 'do' expected" in check.invalid(good, bad)


def test_every_file_is_in_a_library():
    cut = {name for names in check.libraries() for name in names}
    assert cut == {path.relative_to(check.SRC).as_posix() for path in check.SRC.rglob("*.lua")}


def test_no_line_is_longer_than_120_characters():
    """A key map or a clause that is longer continues in the next line."""
    long = [
        f"{path.relative_to(check.SRC)}:{number}"
        for path in sorted(check.SRC.rglob("*.lua"))
        for number, line in enumerate(path.read_text("utf-8").split("\n"), 1)
        if len(line) > 120
    ]
    assert not long
