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

`--- seldom` marks a function that most calls of a script do not need. It is defined when it is called first, together
with the functions that only it needs. Until then all of them cost what one function costs.

A *script* takes its keys, then its arguments. An `int` arrives as a number and a `str` as it was sent. The last
argument may have the type `*`, for any number of values: it is the index of the first of them in ARGV, and the
parameters end in `...`. A long clause may take several lines, each of which begins with its word, such as `--- args:`.

The server gets the body of a script without its `function … end`: keys and arguments become locals, constants become
their literals. Only the functions that the script calls, directly or not, are included, because every function costs
each call a fraction of a microsecond. Each is defined just before the first statement that needs it, so a script that
returns early does not pay for the rest. Comments and indentation are removed, so line numbers in the server's errors
refer to `Script.source`. Long brackets (`[[ ]]`) are not supported.

Functions become fields of one table, `F`. As locals they were slower: each function would capture the others that it
calls, and Lua looks for a captured local among all that are captured. The 150 functions of a worker's turn spent a
fifth of the script's time on that.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pkgutil import get_data
from typing import TypeAlias

from penstock.core import idempotency
from penstock.core.cached import cached_property

_STRING = r""""(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'"""
# A function or a script, with the comment right above it.
_SECTION = re.compile(
    r"^(?P<above>(?:--.*\n)*)function (?P<noun>\w+)\.(?P<verb>\w+)\((?P<parameters>[^)]*)\)\n"
    r"(?P<body>(?:(?:[ \t].*)?\n)*)end$",
    re.MULTILINE,
)
_CLAUSE = re.compile(r"^--- *(?:(keys|args|flags|uses): *)?(.*)$", re.MULTILINE)
_SIGNATURE = re.compile(r"\((.*)\)(?: *->.+)?$")
_TABLE = re.compile(r"(?P<noun>[a-z_]+) = \{(?P<fields>[^}]*)\}")
_FIELD = re.compile(
    r"""(?:\s|--.*\n)*([A-Z][A-Z\d_]*) = ("(?:[^"\\\n]|\\\d{1,3})*"|-?\d+(?:\.\d+)?) *(?:,|$)(?:[ \t]*--.*)?"""
)
# Empty lines, comment lines, and the indentation of a body. Of deeper indentation one space stays.
_BLANKS = re.compile(r"^[ \t]*(?:--.*)?\n|^(?:[ \t]{2,}(?=[ \t])|[ \t]{2})", re.MULTILINE)
# A line, not indented, that begins no statement.
_CONTINUATION = re.compile(r"[ \t})\]]|(?:end|else|elseif|until)\b")
_WORD = re.compile(r"\w+")
# noun.CONSTANT, or noun.verb before a parenthesis. Comments and strings are matched first: a name in them is no match.
_NAME = re.compile(rf"[ \t]*--[^\n]*|{_STRING}|(?<![\w.:])([a-z_]+)\.(?:([A-Z][A-Z\d_]*)\b|(\w+)(?=\s*\())")
_PUNCTUATION = re.compile(rf"{_STRING}|[](){{}}[,]")
# One pattern for every call, because compiling one for each section doubles the time to cut a library.
_CALL = re.compile(rf"{_STRING}|\b(\w+)\(")
_PARAMETER = re.compile(rf"{_STRING}|(?<![\w.:])([a-zA-Z_]\w*)\b(?!\s*=[^=])")
# An argument that an inline expression may repeat: a name, a number or one element of a table.
_PLAIN = re.compile(r"[\w.]+(?:\[[^][]*\])?\Z")
_LONG_BRACKET = re.compile(r"\[=*\[")
_BINDING = {"int": "tonumber(ARGV[{0}])", "str": "ARGV[{0}]", "*": "{0}"}
_LIBRARIES = {"string", "table", "math", "bit", "struct", "cmsgpack", "cjson", "redis", "server", "os"}

Literal: TypeAlias = str | int | float


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


class Library:
    """The scripts of some .lua files, named by folder and file: `library["enqueue"]` is the script of that name."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.scripts = cut({name: read(name) for name in names})

    def __getitem__(self, name: str) -> Script:
        return self.scripts[name]


def read(name: str) -> str:
    """The text of a .lua file. Does not use importlib.resources, because its import alone takes 8 ms."""
    data = get_data("penstock", name)
    if data is None:
        raise FileNotFoundError(f"{name}: the loader of this package cannot read it")
    return data.decode()


def cut(texts: Mapping[str, str]) -> dict[str, Script]:
    """The scripts of these texts (file name -> text), each with the functions it reaches.

    Raises ValueError, which names file and line where it can, for

    - a line outside of every section, or a clause that cannot be read
    - parameters that differ from those in the clauses
    - a name defined twice, or a function or constant that does not exist
    - functions that call each other
    - a call of a function whose `uses` lists a name that the caller neither binds nor lists itself
    """
    sections = link(texts)
    return {section.name: _assemble(section, sections) for section in sections if section.is_script}


def constants(file: str, text: str) -> dict[str, dict[str, Literal]]:
    """The tables of constants in one file: noun -> name -> value."""
    found: dict[str, dict[str, Literal]] = {}
    for _, noun, name, literal in _parse(file, text)[1]:
        found.setdefault(noun, {})[name] = _value(literal)
    return found


def _value(literal: str) -> Literal:
    if literal[0] == '"':
        return re.sub(r"\\(\d+)", lambda code: chr(int(code[1])), literal[1:-1])
    return float(literal) if "." in literal else int(literal)


@dataclass(eq=False)
class Section:
    """A function or a script. `code`: its body as the server gets it. `calls`: the functions that it calls directly."""

    file: str
    match: re.Match[str]
    parameters: Sequence[str] = ()
    keys: Sequence[str] = ()
    args: Sequence[tuple[str, str]] = ()
    flags: Sequence[str] = ()
    uses: Sequence[str] = ()
    is_inline: bool = False
    is_seldom: bool = False
    code: str = ""
    calls: dict[str, None] = field(default_factory=dict)

    @property
    def is_script(self) -> bool:
        return self.match["noun"] == "script"

    @cached_property
    def name(self) -> str:
        return self.match["verb"] if self.is_script else f"{self.match['noun']}.{self.match['verb']}"

    @property
    def flat_name(self) -> str:
        return self.name.replace(".", "_")

    @property
    def is_open(self) -> bool:
        return bool(self.args) and self.args[-1][1] == "*"

    def fault(self, text: str) -> ValueError:
        return _fault(self.file, self.match.string, self.match.start("noun"), f"{self.name} {text}")


def link(texts: Mapping[str, str]) -> list[Section]:
    """All functions, callees before callers, then all scripts. Raises as `cut` does."""
    sections: dict[str, Section] = {}
    literals: dict[str, str] = {}
    for file, text in texts.items():
        found, fields = _parse(file, text)
        for section in found:
            if section.name in sections:
                raise section.fault("is defined twice")
            sections[section.name] = section
        for at, noun, name, literal in fields:
            if f"{noun}.{name}" in literals:
                raise _fault(file, text, at, f"{noun}.{name} is defined twice")
            literals[f"{noun}.{name}"] = literal
    functions = {name: section for name, section in sections.items() if not section.is_script}
    for section in sorted(sections.values(), key=lambda section: not section.is_inline):
        _resolve(section, functions, literals)
        _check_uses(section, functions)
    try:
        order = [*TopologicalSorter({name: section.calls for name, section in functions.items()}).static_order()]
    except CycleError as circle:
        raise ValueError(f"functions call each other: {' and '.join(circle.args[1][1:])}") from None
    return [functions[name] for name in order] + [section for section in sections.values() if section.is_script]


def callees(
    section: Section, sections: Sequence[Section], ends_at: Callable[[Section], bool] = lambda _: False
) -> list[Section]:
    """The functions that a section calls, directly or not, in the order of `sections`: callees first.

    `ends_at`: for which functions not to include what they call.
    """
    needed = set(section.calls)
    for function in reversed(sections):
        if function.name in needed and not function.is_script and not ends_at(function):
            needed.update(function.calls)
    return [function for function in sections if function.name in needed and not function.is_script]


def _assemble(script: Section, sections: Sequence[Section]) -> Script:
    lines = ["#!lua" + (f" flags={','.join(script.flags)}" if script.flags else "")]
    lines += [f"local {key} = KEYS[{i}]" for i, key in enumerate(script.keys, 1)]
    lines += [f"local {arg} = {_BINDING[kind].format(i)}" for i, (arg, kind) in enumerate(script.args, 1)]
    source = "\n".join([*lines, *_body(script, sections)])
    names = tuple(arg for arg, _ in script.args)
    return Script(script.name, tuple(script.keys), names, tuple(script.flags), source, script.is_open)


def _body(script: Section, sections: Sequence[Section]) -> list[str]:
    """The lines of a script, with each function just before the first statement that needs it."""
    shared = callees(script, sections, lambda function: function.is_seldom)
    missing = {function.flat_name: function for function in shared}
    # With its fields named at once, the table need not grow.
    fields = ", ".join(f"{name} = false" for name in missing)
    lines = ["local F = {" + fields + "}"] if missing else []
    statement = 0  # where the present one begins
    for line in script.code.split("\n"):
        if not _CONTINUATION.match(line):
            statement = len(lines)
        for word in _WORD.findall(line):
            if word in missing:
                needed = [one for one in callees(missing[word], sections) if one.flat_name in missing]
                needed.append(missing[word])
                lines[statement:statement] = [
                    _when_called(
                        one,
                        [
                            private
                            for private in callees(one, sections, set(shared).__contains__)
                            if private not in shared
                        ],
                    )
                    if one.is_seldom
                    else as_field(one)
                    for one in needed
                ]
                statement += len(needed)
                for one in needed:
                    del missing[one.flat_name]
        lines.append(line.lstrip())
    return lines


def as_field(function: Section) -> str:
    """The text that defines the function in a script."""
    body = "\n".join(line.lstrip() for line in function.code.split("\n"))
    return f"function F.{function.flat_name}({', '.join(function.parameters)})\n{body}\nend"


def _when_called(function: Section, private: Sequence[Section]) -> str:
    """The text that defines a seldom function, and the functions that only it needs, when it is called first."""
    inner = "\n".join(map(as_field, [*private, function]))
    return f"function F.{function.flat_name}(...)\n{inner}\nreturn F.{function.flat_name}(...)\nend"


# --- reading ---


def _parse(file: str, text: str) -> tuple[list[Section], list[tuple[int, str, str, str]]]:
    """The functions and scripts of a file, and its constants as (position, noun, name, literal)."""
    if bracket := _LONG_BRACKET.search(text):
        raise _fault(file, text, bracket.start(), "long brackets are not supported")
    sections: list[Section] = []
    fields: list[tuple[int, str, str, str]] = []
    end = 0
    for match in _SECTION.finditer(text):
        fields += _constants_between(file, text, end, match.start())
        sections.append(_section(file, match))
        end = match.end()
    fields += _constants_between(file, text, end, len(text))
    return sections, fields


def _constants_between(file: str, text: str, at: int, end: int) -> Iterator[tuple[int, str, str, str]]:
    """The constants between two sections. Anything but constants and comments is an error there."""
    while at < end:
        if table := _TABLE.match(text, at, end):
            yield from _constants_of(file, text, table)
            at = table.end()
        stop = text.find("\n", at, end) if "\n" in text[at:end] else end
        line = text[at:stop].strip()
        if line and (not line.startswith("--") or line.startswith("--- ")):
            raise _fault(file, text, at, f"neither a constant, nor in a function or script with its `end`: {line!r}")
        at = stop + 1


def _constants_of(file: str, text: str, table: re.Match[str]) -> Iterator[tuple[int, str, str, str]]:
    at, end = table.span("fields")
    while found := _FIELD.match(text, at, end):
        yield found.start(1), table["noun"], found[1], found[2]
        at = found.end()
    if rest := text[at:end].strip():
        raise _fault(file, text, at + 1, f"{table['noun']} may only hold NAME = literal: {rest!r}")


def _section(file: str, match: re.Match[str]) -> Section:
    section = Section(file, match, match["parameters"].replace(",", " ").split())
    clauses: dict[str, str] = {}
    for clause, text in _CLAUSE.findall(match["above"]):
        if text == "inline" and not section.is_script:
            section.is_inline = True
            continue
        if text == "seldom" and not section.is_script:
            section.is_seldom = True
            continue
        joint = "," if clause else " "  # a signature continues in the middle
        clauses[clause] = f"{clauses[clause]}{joint}{text}" if clause in clauses else text
    noun, forbidden = ("script", {"", "uses"}) if section.is_script else ("function", {"keys", "args", "flags"})
    if found := [text for clause, text in clauses.items() if clause in forbidden]:
        raise section.fault(f"has a line that no {noun} may have: {found[0]!r}")
    section.flags, section.uses = _words(clauses.get("flags", "")), _words(clauses.get("uses", ""))
    if section.is_script:
        section.keys, section.args = _words(clauses.get("keys", "")), _name_type_pairs(section, clauses.get("args", ""))
        if unknown := [arg for arg, kind in section.args if kind not in _BINDING]:
            raise section.fault(f"has an argument that is neither int, str nor *: {', '.join(unknown)}")
        if any(kind == "*" for _, kind in section.args[:-1]):
            raise section.fault("has a * that is not the last argument")
        expected = [*section.keys, *(arg for arg, _ in section.args), *(["..."] if section.is_open else [])]
    else:
        signature = _SIGNATURE.match(clauses.get("", "()"))
        if not signature:
            raise section.fault(f"has a line that is not of the form (name: type, …) -> type: {clauses['']!r}")
        expected = [name for name, _ in _name_type_pairs(section, signature[1])]
    if section.parameters != expected:
        raise section.fault(f"takes ({', '.join(section.parameters)}), but the lines above say ({', '.join(expected)})")
    if taken := [name for name in section.uses if name in expected]:
        raise section.fault(f"takes and uses {' and '.join(taken)}: one name for two things")
    return section


def _words(clause: str) -> list[str]:
    return clause.replace(",", " ").split()


def _name_type_pairs(section: Section, text: str) -> list[tuple[str, str]]:
    """The pairs of `name: type, name: type`."""
    pairs = [(name.strip(), kind.strip()) for name, _, kind in (pair.partition(":") for pair in text.split(","))]
    if bare := [name for name, kind in pairs if name and not kind]:
        raise section.fault(f"gives no type for {' and '.join(bare)}")
    return [pair for pair in pairs if pair[0]]


# --- linking ---


def _resolve(section: Section, functions: Mapping[str, Section], literals: Mapping[str, str]) -> None:
    """Set `code` and `calls`. Functions become fields of `F`, and constants become their literals."""

    def resolved(found: re.Match[str]) -> str:
        noun, constant, verb = found.groups()
        if noun is None:
            return found[0] if found[0][0] in "\"'" else ""  # a string, or a comment behind code
        name = f"{noun}.{constant or verb}"
        if constant:
            if name not in literals and noun not in _LIBRARIES:
                raise section.fault(f"names the constant {name}, which does not exist")
            return literals.get(name, name)
        if noun in _LIBRARIES:
            return name
        if name not in functions:
            raise section.fault(f"calls {name}, which does not exist")
        if functions[name].is_inline:
            inlined[functions[name].flat_name] = functions[name]
            return functions[name].flat_name
        if name != section.name:
            section.calls[name] = None
        return f"F.{functions[name].flat_name}"

    inlined: dict[str, Section] = {}
    section.code = _NAME.sub(resolved, _BLANKS.sub("", section.match["body"])).rstrip()
    if section.is_inline:
        _check_inline(section, inlined)
    elif inlined:
        section.code = _inline(section, inlined)


def _check_inline(function: Section, inlined: Mapping[str, Section]) -> None:
    if not function.code.startswith("return ") or function.calls or inlined:
        raise function.fault("is inline: its body must be one `return`, which calls none of our functions")
    function.code = re.sub(r"\n ?", " ", function.code)
    names = _names(function.code)
    if unused := [name for name in function.parameters if name not in names]:
        raise function.fault(f"is inline: it does not use {' and '.join(unused)}")


def _names(code: str) -> list[str]:
    return [found[1] for found in _PARAMETER.finditer(code) if found[1]]


def _inline(section: Section, functions: Mapping[str, Section]) -> str:
    """The section's code with each inline call replaced by its expression.

    The last call comes first, so that a call in an argument is replaced before the call around it.
    """
    code = section.code
    for call in reversed([*_CALL.finditer(code)]):
        if call[1] not in functions:
            continue
        function, (arguments, end) = functions[call[1]], _arguments(code, call.end())
        if len(arguments) != len(function.parameters):
            raise section.fault(
                f"calls {function.name} with {len(arguments)} arguments, not {len(function.parameters)}"
            )
        values, names = dict(zip(function.parameters, arguments, strict=True)), _names(function.code)
        if twice := [name for name, value in values.items() if names.count(name) > 1 and not _PLAIN.match(value)]:
            raise section.fault(
                f"calls {function.name}, which is inline and uses {twice[0]} twice: pass a local, not an expression"
            )
        expression = _PARAMETER.sub(
            lambda found, values=values: values.get(found[1], found[0]),  # type: ignore[misc]
            function.code.removeprefix("return "),
        )
        code = f"{code[: call.start()]}({expression}){code[end:]}"
    return code


def _arguments(code: str, at: int) -> tuple[list[str], int]:
    """The arguments of the call whose parenthesis opens before `at`, and where the call ends."""
    found, depth = [], 0
    for sign in _PUNCTUATION.finditer(code, at):
        if sign[0] in "({[":
            depth += 1
        elif sign[0] in "]})" and depth:
            depth -= 1
        elif sign[0] in ",)" and not depth:
            found.append(code[at : sign.start()].strip())
            at = sign.end()
            if sign[0] == ")":
                break
    return [arg if _PLAIN.match(arg) else f"({arg})" for arg in found if arg], at


def _check_uses(section: Section, functions: Mapping[str, Section]) -> None:
    if section.is_script:
        known = {*section.keys, *(arg for arg, _ in section.args)}
    else:
        known = {*section.uses}
    for name in section.calls:
        if lacking := [used for used in functions[name].uses if used not in known]:
            raise section.fault(
                f"calls {name}, which uses {' and '.join(lacking)}: "
                + ("bind it as a key or an argument" if section.is_script else "add it to its own `--- uses:`")
            )


def _fault(file: str, text: str, at: int, what: str) -> ValueError:
    return ValueError(f"{file}:{text.count(chr(10), 0, at) + 1}: {what}")
