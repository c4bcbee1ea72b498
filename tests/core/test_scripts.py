"""The cutter: what a .lua file may hold, and what the server gets of it."""

import ast
import hashlib
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import penstock
from penstock.core.scripts import Library, Script, Scripts, cut, read
from penstock.core.sections import check, constants, link

LANE = """\
-- What stands before the first section is for the reader: lane.push(…)
--
--   turns  ZSET  tenant -> time

kind = { LANE = "l", FRONT = "f" }

-- limits
most = {
  TENANTS = 100, -- in a turn
  -- Of one tenant.
  SHARE = 0.5,
  NEVER = -1,
}

--- (tenant: str) -> number
function lane.cost(tenant)
  return tenant == "" and most.NEVER or 1
end

-- Adds a tenant. It is passed over if it is paused.
--- (level: int, tenant: str) -> int
--- uses: turns
function lane.push(level, tenant)
  -- Not record.size(…), which is for others.
  local cost = lane.cost(tenant)

  if cost > most.TENANTS then
    return 0 -- never lane.pop(1)
  end
  return redis.call("ZADD", turns, level + cost, "lane.pop(1)" .. kind.LANE)
end

--- (level: int) -> str
--- uses: turns
function lane.pop(level)
  return redis.call("ZPOPMIN", turns, level)
end
"""

QUEUE = """\
-- Enqueues a job.
--- keys: turns jobs
--- args: now: int, id: str,
--- args: rest: *
--- flags: allow-oom
function script.enqueue(turns, jobs, now, id, rest, ...)
  return lane.push(now, id) + #ARGV - rest
end
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
        "local F = {lane_cost = false, lane_push = false}",
        "function F.lane_cost(tenant)",
        'return tenant == "" and -1 or 1',
        "end",
        "function F.lane_push(level, tenant)",
        "local cost = F.lane_cost(tenant)",
        "if cost > 100 then",
        "return 0",
        "end",
        'return redis.call("ZADD", turns, level + cost, "lane.pop(1)" .. "l")',
        "end",
        "return F.lane_push(now, id) + #ARGV - rest",
    ]
    assert (enqueue.name, enqueue.keys, enqueue.flags) == ("enqueue", ("turns", "jobs"), ("allow-oom",))
    assert (enqueue.args, enqueue.open_ended) == (("now", "id", "rest"), True)
    assert enqueue.sha == hashlib.sha1(enqueue.source.encode()).hexdigest()


def test_a_script_needs_no_clause():
    assert only("function script.ping()\n  return 1\nend").source == "#!lua\nreturn 1"


def test_a_callee_stands_above_its_caller_in_whatever_order_they_were_written():
    last_first = "function lane.b()\n  return lane.a()\nend\nfunction lane.a()\n  return 1\nend"
    source = only("function script.s()\n  return lane.b()\nend", lane=last_first).source
    assert source.index("function F.lane_a") < source.index("function F.lane_b")


def test_a_function_is_defined_just_before_the_first_statement_that_needs_it():
    """So a script that returns early does not pay for the others."""
    lane = "function lane.a()\n  return 1\nend\nfunction lane.b()\n  return lane.a() + 1\nend\n"
    script = """\
--- args: n: int
function script.s(n)
  if n == 0 then
    return 0
  end
  local t = {
    n,
    lane.a(),
  }
  if n == 1 then
    return t
  elseif lane.b() then
    return lane.a()
  end
  return lane.b()
end"""
    lines = only(script, lane=lane).source.split("\n")
    defined = {name: lines.index(f"function F.lane_{name}()") for name in "ab"}
    assert lines.index("return 0") < lines.index("local F = {lane_a = false, lane_b = false}") < defined["a"]
    assert defined["a"] < lines.index("local t = {") < defined["b"]
    assert defined["b"] < lines.index("if n == 1 then")
    assert sum(line.startswith("function ") for line in lines) == 2


def test_a_function_may_call_itself():
    lane = "--- (n: int)\nfunction lane.a(n)\n  return lane.a(n - 1)\nend"
    assert "return F.lane_a(n - 1)" in only("function script.s()\n  return lane.a(3)\nend", lane=lane).source


def test_a_name_in_a_comment_or_a_string_is_no_call():
    script = (
        """function script.s()\n  local t = { 'it\\'s lane.pop(1)', "kind.LANE" } -- lane.push(1)\n  return t\nend"""
    )
    assert only(script, lane=LANE).source.splitlines()[1:] == [
        """local t = { 'it\\'s lane.pop(1)', "kind.LANE" }""",
        "return t",
    ]


def test_a_signature_may_go_on_in_a_new_line():
    lane = "--- (a: int,\n---  b: str) -> int\nfunction lane.a(a, b)\n  return a .. b\nend"
    assert "function F.lane_a(a, b)" in only("function script.s()\n  return lane.a(3, '')\nend", lane=lane).source


def test_an_inline_function_is_an_expression_in_the_place_of_its_call():
    lane = """\
place = { ID = 13 }
--- (token: str) -> str
--- inline
function token.id(token)
  return string.sub(token, place.ID) -- behind the claim
end

--- (a: int, b: int) -> int
--- inline
function token.sum(a, b)
  return "b" .. a
    + b.b
end

--- (a: str) -> str
--- inline
function token.twice(a)
  return a .. a
end
"""
    script = """\
function script.s()
  local ids = { token.id(tokens[i]), token.id(token.id("a,)")) }
  local t = token.twice(ids[1]) .. token.twice(s.x)
  return token.sum(1 + 2, token.id(f(x, { y, "(" }))), ids
end
"""
    assert only(script, lane=lane).source.splitlines()[1:] == [
        """local ids = { (string.sub(tokens[i], 13)), (string.sub(((string.sub(("a,)"), 13))), 13)) }""",
        "local t = (ids[1] .. ids[1]) .. (s.x .. s.x)",
        """return ("b" .. (1 + 2) + ((string.sub((f(x, { y, "(" })), 13))).b), ids""",
    ]


def test_a_seldom_function_is_defined_when_it_is_called_first_and_so_are_those_that_only_it_needs():
    lane = """\
--- (a: int) -> int
function lane.cost(a)
  return a
end

--- (a: int) -> int
function lane.own(a)
  return lane.cost(a) + 1
end

--- (a: int) -> int
--- seldom
function lane.push(a)
  return lane.own(a)
end

--- (a: int) -> int
--- seldom
function lane.pop(a)
  return a
end
"""
    script = "function script.s()\n  local a = lane.cost(lane.pop(1))\n  return lane.push(a)\nend\n"
    assert only(script, lane=lane).source.splitlines()[1:] == [
        "local F = {lane_cost = false}",
        "setmetatable(F, {__index = function(_, called)",
        "if #called == 8 then",
        'if called == "lane_pop" then',
        "function F.lane_pop(a)",
        "return a",
        "end",
        "return F.lane_pop",
        "end",
        'if called == "lane_own" then',
        "function F.lane_own(a)",
        "return F.lane_cost(a) + 1",
        "end",
        "return F.lane_own",
        "end",
        "end",
        "if #called == 9 then",
        'if called == "lane_push" then',
        "function F.lane_push(a)",
        "return F.lane_own(a)",
        "end",
        "return F.lane_push",
        "end",
        "end",
        "end})",
        "function F.lane_cost(a)",
        "return a",
        "end",
        "local a = F.lane_cost(F.lane_pop(1))",
        "return F.lane_push(a)",
    ]


def test_a_script_with_few_seldom_functions_defines_them_as_all_others():
    lane = "--- seldom\nfunction lane.cost()\n  return 1\nend\n"
    assert only("function script.s()\n  return lane.cost()\nend\n", lane=lane).source.splitlines()[1:] == [
        "local F = {lane_cost = false}",
        "function F.lane_cost()",
        "return 1",
        "end",
        "return F.lane_cost()",
    ]


FRAMES = """\
--- uses: base given
function frame.change()
  local s = base .. given
  -- …
  redis.call("SET", base, s)
end

--- uses: base given
function frame.once(...)
  if given == 0 then return 0 end
  -- …
  return keeping.store(base, ...)
end

--- (key: str, value: any) -> any
function keeping.store(key, value)
  return value
end
"""


def framed(frame: str, *lines: str) -> list[str]:
    """The lines that the server gets of these statements in a frame."""
    statements = "".join(f"  {line}\n" for line in lines)
    clauses = f"--- keys: base\n--- args: given: int\n--- frame: {frame}\n"
    source = only(f"{clauses}function script.s(base, given)\n{statements}end", frames=FRAMES).source
    return source.split("\n")[3:]


def test_a_frame_surrounds_the_statements_of_a_script_up_to_its_last_return():
    opening, closing = "local s = base .. given", 'redis.call("SET", base, s)'
    assert framed("change", "s = s .. 1", "return s") == [opening, "s = s .. 1", closing, "return s"]
    branch = ["if given == 1 then", "  return 1", "end"]
    assert framed("change", *branch) == [opening, *(line.lstrip() for line in branch), closing]
    assert framed("change", "return {", "  s, given,", "}") == [opening, closing, "return {", "s, given,", "}"]


def test_a_frame_may_pass_on_what_the_script_returns():
    lines = framed("once", "local n = 1", "return { n, 2 }")
    assert lines.index("if given == 0 then return 0 end") < lines.index("local n = 1")
    assert lines[-1] == "return F.keeping_store(base, { n, 2 })"
    assert framed("once", "redis.call('DEL', base)")[-1] == "return F.keeping_store(base, nil)"


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        (
            "--- keys: base\n--- frame: other\nfunction script.s(base)\nend",
            "s has the frame other, which does not exist",
        ),
        ("--- keys: base\n--- frame: change\nfunction script.s(base)\nend", "s has the frame change: bind given as"),
        ("--- frame: change\nfunction lane.half()\nend", "has a line that no function may have"),
    ],
)
def test_a_frame_that_does_not_fit_is_refused(script: str, complaint: str):
    with pytest.raises(ValueError, match=complaint):
        only(script, frames=FRAMES)


def test_the_servers_own_names_stay():
    script = "function script.s()\n  redis.log(redis.LOG_WARNING, struct.pack('B', 1))\nend"
    assert only(script).source.splitlines()[1] == "redis.log(redis.LOG_WARNING, struct.pack('B', 1))"


def test_constants_have_the_type_that_they_were_written_with():
    assert constants("lane.lua", LANE) == {
        "kind": {"LANE": "l", "FRONT": "f"},
        "most": {"TENANTS": 100, "SHARE": 0.5, "NEVER": -1},
    }
    assert constants("queue.lua", QUEUE) == {}


def script(body: str, clauses: str = "", parameters: str = "") -> str:
    return f"{clauses}function script.s({parameters})\n  {body}\nend"


INLINE = "--- (a: int) -> int\n--- inline\nfunction lane.half(a)\n  {}\nend"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        # --- a line that belongs nowhere ---
        ("local x = 1\n" + script("return 1"), "queue.lua:1: neither a constant, nor in a function"),
        ("-- one\n\nskript.s()\n  return 1\nend", "queue.lua:3: neither"),
        ("function script.s()\nreturn 1\nend", "queue.lua:1: neither"),
        ("function script.s()\n  return 1\n", "queue.lua:1: neither"),
        ("function script.s() return 1 end", "queue.lua:1: neither"),
        ("function push(a)\n  return 1\nend", "queue.lua:1: neither"),
        ("--- keys: base\n\n" + script("return 1"), "queue.lua:1: neither"),
        (script("local text = [[\n  --- keys: base\n]]"), "queue.lua:2: long brackets"),
        # --- constants ---
        ("kinds = { A = 1 + 1 }", "queue.lua:1: kinds may only hold NAME = literal: 'A = 1 [+] 1'"),
        ("kinds = {\n  A = 1,\n  B = base,\n}", "queue.lua:3: kinds may only hold"),
        ("kinds = { a = 1 }", "queue.lua:1: kinds may only hold"),
        ("kinds = { A = 'x' }", "queue.lua:1: kinds may only hold"),
        ("kinds = { A = 1, A = 1 }", "queue.lua:1: kinds.A is defined twice"),
        ('\nkind = { LANE = "l" }', "queue.lua:2: kind.LANE is defined twice"),
        (script("return kind.LAIN"), "queue.lua:1: s names the constant kind.LAIN, which does not exist"),
        (script("return kin.LANE"), "queue.lua:1: s names the constant kin.LANE"),
        # --- names ---
        (f"{script('return 1')}\n\n{script('return 2')}", "queue.lua:5: s is defined twice"),
        ("function lane.pop()\n  return 1\nend", "queue.lua:1: lane.pop is defined twice"),
        (script("return lain.push(1)"), "queue.lua:1: s calls lain.push, which does not exist"),
        (script("return lane.psuh(1)"), "queue.lua:1: s calls lane.psuh, which does not exist"),
        (
            script("return a.b()") + "\nfunction a.b()\n  a.c()\nend\nfunction a.c()\n  a.b()\nend",
            "functions call each other: a.. and a..",
        ),
        # --- clauses ---
        (script("return 1", "--- key: meta\n"), "queue.lua:2: s has a line that no script may have: 'key: meta'"),
        (script("return 1", "--- (a: int)\n"), "queue.lua:2: s has a line that no script may have"),
        (script("return 1", "--- uses: base\n"), "queue.lua:2: s has a line that no script may have: 'base'"),
        (
            "--- keys: base\nfunction lane.much(base)\n  return 1\nend",
            "queue.lua:2: lane.much has a line that no function",
        ),
        ("--- adds one\nfunction lane.much()\n  return 1\nend", "queue.lua:2: lane.much .* form .name: type"),
        (script("return 1", "--- args: now\n", "now"), "queue.lua:2: s gives no type for now"),
        ("--- (a: int, b)\nfunction lane.much(a, b)\n  return 1\nend", "queue.lua:2: lane.much gives no type for b"),
        (script("return 1", "--- args: now: float\n", "now"), "neither int, str nor [*]: now"),
        (script("return 1", "--- args: rest: *, now: int\n", "rest, now, ..."), "[*] that is not the last"),
        # --- parameters ---
        (script("return 1", "--- keys: base\n"), "queue.lua:2: s takes [(][)], but the lines above say [(]base[)]"),
        (script("return 1", "--- keys: base\n--- args: a: int\n", "a, base"), "say [(]base, a[)]"),
        (script("return 1", "--- args: a: int, b: *\n", "a, b"), r"say [(]a, b, \.\.\.[)]"),
        (script("return 1", "--- args: a: int\n", "a, ..."), "say [(]a[)]"),
        (script("return 1", "", "a"), "takes [(]a[)], but the lines above say [(][)]"),
        ("--- (b: int)\nfunction lane.much(a)\n  return 1\nend", "lane.much takes [(]a[)], .* say [(]b[)]"),
        ("function lane.much(a)\n  return 1\nend", "lane.much takes [(]a[)], but the lines above say [(][)]"),
        # --- inline functions ---
        (
            INLINE.format("return a + a") + "\n\n" + script("return lane.half(1 + 1)"),
            "queue.lua:7: s .* uses a twice: pass a local",
        ),
        (INLINE.format("return 1"), "queue.lua:3: lane.half is inline: it does not use a"),
        (INLINE.format("return 'a'"), "lane.half is inline: it does not use a"),
        (INLINE.format("local b = a"), "lane.half is inline: its body must be one `return`"),
        (
            INLINE.format("return lane.whole(a)") + "\n--- inline\nfunction lane.whole()\n  return 1\nend",
            "lane.half is inline: .* calls no inline function",
        ),
        (INLINE.format("return lane.half(a)"), "lane.half is inline: .* calls no inline function"),
        (
            INLINE.format("return a") + "\n\n" + script("return lane.half(1, 2)"),
            "calls lane.half with 2 arguments, not 1",
        ),
        (INLINE.format("return a") + "\n\n" + script("return lane.half()"), "calls lane.half with 0 arguments, not 1"),
        (script("return 1", "--- inline\n"), "queue.lua:2: s has a line that no script may have: 'inline'"),
        # --- names of the script ---
        (
            script("return lane.pop(1)"),
            "queue.lua:1: s calls lane.pop, which uses turns: bind it as a key or an argument",
        ),
        (
            script("return lane.many()", "--- keys: turns\n", "turns")
            + "\n\nfunction lane.many()\n  return lane.pop(9)\nend",
            "queue.lua:6: lane.many calls lane.pop, which uses turns: add it to its own `--- uses:`",
        ),
        (
            "--- (turns: str)\n--- uses: turns\nfunction lane.much(turns)\n  return turns\nend",
            "queue.lua:3: lane.much takes and uses turns",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(text: str, complaint: str):
    with pytest.raises(ValueError, match=complaint):
        cut({"lane.lua": LANE, "queue.lua": text})


def libraries() -> Iterator[tuple[str, str]]:
    """Module and name of each function that makes a Library."""
    package = Path(penstock.__file__).parent
    for path in sorted(package.rglob("*.py")):
        text = path.read_text("utf-8")
        for node in ast.walk(ast.parse(text)) if "Library(" in text else ():
            if isinstance(node, ast.FunctionDef) and any(
                isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Library"
                for call in ast.walk(node)
            ):
                yield ".".join(path.relative_to(package.parent).with_suffix("").parts), node.name


@pytest.mark.parametrize(("module", "function"), list(libraries()))
def test_every_noun_can_cut_its_files(module: str, function: str):
    library: Library = getattr(import_module(module), function)()
    cut({name: read(name) for name in library.names})  # checks all of it
    for name, script in library.scripts.items():
        assert library[name] is script
        assert script.source.startswith("#!lua")


def test_every_noun_has_a_library():
    assert {module.split(".")[1] for module, _ in libraries()} == {"completion", "files", "jobs", "locks", "messages"}


def test_a_script_is_assembled_when_it_is_first_used():
    scripts = cut({"lane.lua": LANE, "queue.lua": QUEUE})
    assert scripts._made == {}
    (name,) = scripts
    assert scripts._made == {}
    assert scripts[name] is scripts[name]
    assert [*scripts._made] == [name]


def test_a_program_that_enqueues_assembles_no_script_of_workers():
    code = """if True:
        from penstock import Penstock
        from penstock.jobs.bindings import scripts
        app = Penstock("unix:///nowhere")
        @app.task
        def work(n: int) -> None: ...
        type(work).enqueue.operation(work, 1)
        print(*sorted(scripts().scripts._made))
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["enqueue"]


def test_a_program_that_defines_tasks_reads_no_lua():
    code = """if True:
        from penstock import Penstock
        from penstock.core import scripts
        def read(name): raise AssertionError(name)
        scripts.read = read
        app = Penstock("unix:///nowhere")
        @app.task(queue="mail")
        def work(n: int) -> None: ...
        work.call(1)
        app.queue("raw", shards=2)
    """
    subprocess.run([sys.executable, "-c", code], check=True)


def test_only_the_functions_that_a_script_reaches_are_read():
    lane = "function lane.a()\n  return 1\nend\nfunction lane.b()\n  return lane.nowhere()\nend"
    unread = "--- keys: none\nfunction lane.c()\n  return 1\nend"
    queue = "function script.s()\n  return lane.a()\nend"
    names = link({"lane.lua": lane, "queue.lua": queue})
    assert "F.lane_a" in Scripts(names)["s"].source
    with pytest.raises(ValueError, match=r"lane.lua:4: lane.b calls lane.nowhere, which does not exist"):
        check(names)
    with pytest.raises(ValueError, match=r"c.lua:2: lane.c has a line that no function may have"):
        check(link({"c.lua": unread}))
