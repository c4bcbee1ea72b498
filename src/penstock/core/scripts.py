"""Cuts the .lua files into named scripts and functions, and binds names to what a call sends.

A file of nouns (`record.lua`, `lane.lua`, …) holds functions, a file of bindings (`queue.lua`) scripts:

    --- function lane.push(level: int, tenant: str, entry: str) -> int
    --- script cancel
    --- keys: meta jobs schedule
    --- args: now: int, id: str, rest: *
    --- flags: allow-oom

What stands before the first section (key map, drawing of the states) is for the reader only. A function is
called by its name (`lane.push(…)`) and may use the keys and arguments of the scripts that reach it. A script
carries just the functions it reaches, because every function in it costs each call a fraction of a microsecond.
KEYS and ARGV become locals of the names given; `int` arguments become numbers, `str` ones stay as they came,
and `*` names the index in ARGV of the first of an open rest. A clause may be repeated to go on in a new line.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pkgutil import get_data
from typing import NamedTuple

_HEAD = re.compile(r"--- (?:function ([a-z_]+\.\w+)\((.*?)\)|script (\w+)$)")
_CLAUSE = re.compile(r"--- (keys|args|flags): *(.*)")
# A call of a function; strings and comments are matched first, so that a name in them is none.
_CALL = re.compile(r"""--[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|(?<![\w.:])([a-z_]+)\.(\w+)(?=\s*\()""")
_BINDING = {"int": "tonumber(ARGV[{0}])", "str": "ARGV[{0}]", "*": "{0}"}


@dataclass(frozen=True, eq=False)
class Script:
    """One transition: its text as the server gets it, and the names its caller binds, in order.

    `open_ended`: the last of `args` stands for any number of values.
    """

    name: str
    keys: tuple[str, ...]
    args: tuple[str, ...]
    flags: tuple[str, ...]
    source: str
    open_ended: bool = False

    @cached_property
    def sha(self) -> str:
        return hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()


class Library:
    """The scripts of some .lua files, named by folder and file: `library["enqueue"]` is the script of that name."""

    def __init__(self, *names: str) -> None:
        self.scripts = cut({name: _text(name) for name in names})

    def __getitem__(self, name: str) -> Script:
        return self.scripts[name]


def _text(name: str) -> str:
    """Not by importlib.resources, whose import alone takes 8 ms."""
    data = get_data("penstock", name)
    if data is None:
        raise FileNotFoundError(f"{name}: the loader of this package cannot read it")
    return data.decode()


def cut(texts: Mapping[str, str]) -> dict[str, Script]:
    """The scripts of these texts (file name -> text), each with the functions it reaches.

    ValueError names a section or clause that cannot be read, a name given twice, a call of a function that is
    not there, functions that call each other.
    """
    sections: dict[str, _Section] = {}
    for file, text in texts.items():
        for section in _sections(file, text):
            if section.name in sections:
                raise ValueError(f"{file}: there is a second {section.name}")
            sections[section.name] = section
    functions = [name for name, section in sections.items() if section.is_function]
    linked = {name: _link(section, functions) for name, section in sections.items()}
    try:
        # Lua knows a local only below its definition: a callee stands above its callers.
        order = list(TopologicalSorter({name: linked[name].calls for name in functions}).static_order())
    except CycleError as circle:
        raise ValueError(f"functions call each other: {' and '.join(circle.args[1][1:])}") from None
    library = [linked[name] for name in order]
    return {name: _assemble(linked[name], library) for name, section in sections.items() if not section.is_function}


@dataclass(frozen=True)
class _Section:
    name: str
    is_function: bool
    parameters: str
    clauses: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)


class _Linked(NamedTuple):
    """A section whose calls name locals, and the functions it calls, in order and without itself."""

    section: _Section
    code: str
    calls: list[str]


def _sections(file: str, text: str) -> list[_Section]:
    found: list[_Section] = []
    for number, line in enumerate(text.splitlines(), 1):
        if head := _HEAD.match(line):
            function, parameters, script = head.groups(default="")
            found.append(_Section(function or script, bool(function), ", ".join(n for n, _ in _typed(parameters))))
        elif (clause := _CLAUSE.match(line)) and found and not found[-1].is_function:
            clauses = found[-1].clauses
            clauses[clause[1]] = f"{clauses.get(clause[1], '')},{clause[2]}"
        elif line.startswith("--- "):
            raise ValueError(f"{file}:{number}: neither a section nor a clause of a script: {line!r}")
        elif found:
            found[-1].lines.append(line)
    return found


def _typed(text: str) -> Iterator[tuple[str, str]]:
    """The pairs of `name: type, name: type`."""
    for pair in text.split(","):
        name, _, kind = pair.partition(":")
        if name.strip():
            yield name.strip(), kind.strip()


def _link(section: _Section, functions: Sequence[str]) -> _Linked:
    nouns = {name.partition(".")[0] for name in functions}
    calls: dict[str, None] = {}

    def local(call: re.Match[str]) -> str:
        noun, verb = call.groups()
        if noun not in nouns:  # Lua's own, a string or a comment
            return call[0]
        if (name := f"{noun}.{verb}") not in functions:
            raise ValueError(f"{section.name} calls {name}, which is not there")
        calls[name] = None
        return _local(name)

    code = _CALL.sub(local, "\n".join(section.lines).strip())
    return _Linked(section, code, [name for name in calls if name != section.name])


def _assemble(script: _Linked, library: Sequence[_Linked]) -> Script:
    name, clauses = script.section.name, script.section.clauses
    keys = tuple(clauses.get("keys", "").replace(",", " ").split())
    flags = tuple(clauses.get("flags", "").replace(",", " ").split())
    args = list(_typed(clauses.get("args", "")))
    if unknown := [arg for arg, kind in args if kind not in _BINDING]:
        raise ValueError(f"{name}: an argument is int, str or *: {', '.join(unknown)}")
    if "*" in [kind for _, kind in args[:-1]]:
        raise ValueError(f"{name}: only the last argument can be *")

    lines = ["#!lua" + (f" flags={','.join(flags)}" if flags else "")]
    lines += [f"local {key} = KEYS[{i}]" for i, key in enumerate(keys, 1)]
    lines += [f"local {arg} = {_BINDING[kind].format(i)}" for i, (arg, kind) in enumerate(args, 1)]
    for function, code, _ in _reached(script, library):
        lines.append(f"local function {_local(function.name)}({function.parameters})\n{code}\nend")
    source = "\n".join([*lines, script.code])
    return Script(name, keys, tuple(arg for arg, _ in args), flags, source, bool(args) and args[-1][1] == "*")


def _reached(script: _Linked, library: Sequence[_Linked]) -> list[_Linked]:
    """The functions that `script` needs; `library` has callees before callers, and so has the answer."""
    needed = set(script.calls)
    for function in reversed(library):
        if function.section.name in needed:
            needed.update(function.calls)
    return [function for function in library if function.section.name in needed]


def _local(name: str) -> str:
    return name.replace(".", "_")
