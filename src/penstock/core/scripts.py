"""Cuts the .lua files into scripts that the server can run.

Each file is valid Lua 5.1. It opens with comments for the reader (key map, state diagram). Constants, functions and
scripts follow, in any order; the first and the last line of each are not indented. `make constants` writes the
constants to the folder's `constants.py` for Python, except tables whose name begins with `_`, which only Lua uses.

    state = { READY = "r", RUNNING = "x" }

    -- Appends an entry to a tenant's lane. Returns the new length.
    --- (level: int, tenant: str, entry: str) -> int
    --- uses: base
    function lane.push(level, tenant, entry)
      return redis.call("RPUSH", base .. "lane:" .. level .. ":" .. tenant, entry)
    end

    -- Cancels jobs. Returns how many were cancelled.
    --- keys: base meta
    --- args: now: int, tenant: str, ids: *
    --- flags: allow-oom
    function script.cancel(base, meta, now, tenant, ids, ...)
      …
    end

A *function* is called by its name, noun.verb. Its `---` lines give the types of its parameters. `uses` lists the keys
and arguments of the script that the function reads by name, directly or through another function.

`--- inline` marks a function whose body is a single `return`. Its expression replaces each call, so the name costs
nothing at run time.

`--- seldom` marks a function that most calls of a script do not need. It is defined when it is called first, and so is
each function that only such functions need. Until then all of them together cost what one function costs.

A *layout* names the fields of a packed value, so that no line counts bytes; see `layouts.py`.

    entry = layout { generation = "I6", class = "B", id = "*" }

A *script* takes its keys, then its arguments. An `int` arrives as a number and a `str` as it was sent. The last
argument may have the type `*`, for any number of values: it is the index of the first of them in ARGV, and the
parameters end in `...`. A long clause may take several lines, each of which begins with its word, such as `--- args:`.

A *frame* holds the statements that many scripts share: those before their own, and those before their last `return`. A
script with `--- frame: change` begins with the statements of `frame.change` above the line `-- …`, and ends with those
below it. If a frame ends with a `return`, its `...` stands for the value that the script returns. `uses` lists the keys
and arguments that the script has to bind.

    --- uses: base given
    function frame.change()
      local s = row.load(given)
      -- …
      row.store(s)
    end

The server gets the body of a script without its `function … end`: keys and arguments become locals, constants become
their literals. Only the functions that the script calls, directly or not, are included, because every function costs
each call a fraction of a microsecond. Each is defined just before the first statement that needs it, and their table
before the first of them, so a script that returns early does not pay for the rest. Comments and indentation are
removed, so line numbers in the server's errors refer to `Script.source`. Long brackets (`[[ ]]`) are not supported.

Functions become fields of one table, `F`. As locals they were slower: each function would capture the others that it
calls, and Lua looks for a captured local among all that are captured. The 150 functions of a worker's turn spent a
fifth of the script's time on that.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pkgutil import get_data

from penstock.core import idempotency
from penstock.core.cached import cached_property
from penstock.core.sections import Names, Section, callees, check, link

# A line that continues a statement: it is indented, closes a bracket, or begins with one of these keywords.
_CONTINUATION = re.compile(r"[ \t})\]]|(?:end|else|elseif|until)\b")
_WORD = re.compile(r"\w+")
_BINDING = {"int": "tonumber(ARGV[{0}])", "str": "ARGV[{0}]", "*": "{0}"}

_LEAST_SELDOM = 3
"""A script with fewer seldom functions defines them as all others, because it costs as much to wait for their calls."""


@dataclass(frozen=True, eq=False)
class Script:
    """A script: its text as the server gets it, and the names of its keys and arguments, in order.

    `open_ended`: the last of `args` stands for any number of values.
    """

    name: str
    keys: tuple[str, ...]
    args: tuple[str, ...]
    flags: tuple[str, ...]
    source: str
    open_ended: bool = False

    @cached_property
    def is_numbered(self) -> bool:
        """Whether the script recognises a call that is sent again."""
        return self.args[:2] == idempotency.ARGUMENTS

    @cached_property
    def sha(self) -> str:
        return hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()


class Scripts(Mapping[str, Script]):
    """The scripts of some files by name. Each is assembled when it is first used, because a program uses few of them.

    Assembling all scripts of a queue takes ten times as long as those that a producer or a worker uses.
    """

    def __init__(self, names: Names) -> None:
        self._functions = names.functions
        self._sections = names.scripts
        self._made: dict[str, Script] = {}

    def __getitem__(self, name: str) -> Script:
        made = self._made.get(name)
        if made is None:
            # Two threads may assemble it at once; both get the same one.
            made = self._made.setdefault(name, _assemble(self._sections[name], self._functions))
        return made

    def __iter__(self) -> Iterator[str]:
        return iter(self._sections)

    def __len__(self) -> int:
        return len(self._sections)


class Library(dict[str, Script]):
    """The scripts of some .lua files, named by folder and file: `library["enqueue"]` is the script of that name.

    A dictionary of those that were used so far, because each call of a script looks its script up.
    """

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.names = names

    @cached_property
    def scripts(self) -> Scripts:
        """All of them. The files are read when the first script is used: not while a program defines its tasks."""
        return Scripts(link({name: read(name) for name in self.names}))

    def __missing__(self, name: str) -> Script:
        return self.setdefault(name, self.scripts[name])


def read(name: str) -> str:
    """The text of a .lua file. Does not use importlib.resources, because its import alone takes 8 ms."""
    data = get_data("penstock", name)
    if data is None:
        raise FileNotFoundError(f"{name}: the loader of this package cannot read it")
    return data.decode()


def cut(texts: Mapping[str, str]) -> Scripts:
    """The scripts of these texts (file name -> text), each with the functions it reaches.

    Raises ValueError, which names file and line where it can, for

    - a line outside of every section, or a clause that cannot be read
    - parameters that differ from those in the clauses
    - a name defined twice, or a function or constant that does not exist
    - functions that call each other
    - a call of a function whose `uses` lists a name that the caller neither binds nor lists itself
    """
    names = link(texts)
    check(names)
    return Scripts(names)


def _assemble(script: Section, functions: Mapping[str, Section]) -> Script:
    lines = ["#!lua" + (f" flags={','.join(script.flags)}" if script.flags else "")]
    lines += [f"local {key} = KEYS[{i}]" for i, key in enumerate(script.keys, 1)]
    lines += [f"local {arg} = {_BINDING[kind].format(i)}" for i, (arg, kind) in enumerate(script.args, 1)]
    source = "\n".join([*lines, *_body(script, functions)])
    names = tuple(arg for arg, _ in script.args)
    return Script(script.name, tuple(script.keys), names, tuple(script.flags), source, script.is_open)


def _body(script: Section, functions: Mapping[str, Section]) -> list[str]:
    """The lines of a script, with each function just before the first statement that needs it."""
    named = {function.flat_name: function for function in callees(script, functions)}
    first = callees(script, functions, lambda function: function.is_seldom)
    missing = {function.flat_name: function for function in first if not function.is_seldom}
    seldom = [function for name, function in named.items() if name not in missing]
    if len(seldom) < _LEAST_SELDOM:
        seldom, missing = [], {**named}
    # With its fields named at once, the table need not grow.
    fields = ", ".join(f"{name} = false" for name in missing)
    table = ["local F = {" + fields + "}", *_when_called(seldom)]
    lines: list[str] = []
    statement = 0  # where the present one begins
    for line in script.code.split("\n"):
        if not _CONTINUATION.match(line):
            statement = len(lines)
        for word in _WORD.findall(line):
            if word in named:
                function = named.pop(word)
                needed = [one for one in (*callees(function, functions), function) if one.flat_name in missing]
                made = [*table, *(one.as_field for one in needed)]
                lines[statement:statement], table = made, []
                statement += len(made)
                for one in needed:
                    del missing[one.flat_name]
        lines.append(line.lstrip())
    return lines


def _when_called(seldom: Sequence[Section]) -> list[str]:
    """The lines that define each of these functions when it is called first, which the server finds by its length."""
    if not seldom:
        return []
    lines = ["setmetatable(F, {__index = function(_, called)"]
    by_length = sorted(seldom, key=lambda function: len(function.flat_name))
    for length, some in groupby(by_length, lambda function: len(function.flat_name)):
        lines.append(f"if #called == {length} then")
        for one in some:
            lines.append(f'if called == "{one.flat_name}" then\n{one.as_field}\nreturn F.{one.flat_name}\nend')
        lines.append("end")
    return [*lines, "end})"]
