"""Reads the functions, scripts, frames, constants and layouts of the .lua files, and links them by name.

`scripts.py` says how such a file is written, and what the server receives.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple, TypeAlias

from penstock.core.cached import cached_property
from penstock.core.layouts import Layout, arguments_of, expand

_STRING = r""""(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'"""
# A function or a script, with the comment right above it.
_SECTION = re.compile(
    r"^(?P<above>(?:--.*\n)*)function (?P<noun>\w+)\.(?P<verb>\w+)\((?P<parameters>[^)]*)\)\n"
    r"(?P<body>(?:(?:[ \t].*)?\n)*)end$",
    re.MULTILINE,
)
_CLAUSE = re.compile(r"^--- *(?:(keys|args|flags|uses|frame): *)?(.*)$", re.MULTILINE)
_SIGNATURE = re.compile(r"\((.*)\)(?: *->.+)?$")
_TABLE = re.compile(r"(?P<noun>[a-z_]+) = (?P<layout>layout )?\{(?P<fields>[^}]*)\}")
_FIELD = re.compile(
    r"""(?:\s|--.*\n)*([A-Z][A-Z\d_]*) = ("(?:[^"\\\n]|\\\d{1,3})*"|-?\d+(?:\.\d+)?) *(?:,|$)(?:[ \t]*--.*)?"""
)
_FORM = re.compile(r"""(?:\s|--.*\n)*([a-z_]+) = "([^"]+)" *(?:,|$)(?:[ \t]*--.*)?""")
# The line of a frame that the statements of a script replace; and the last `return` of a script, with its value.
_STATEMENTS = "  -- …\n"
_LAST_RETURN = re.compile(r"^  return\b *(?P<value>[^\n]*(?:\n(?:   |  [})\]])[^\n]*)*)\n\Z", re.MULTILINE)
# Empty lines, comment lines, and the indentation of a body. Deeper indentation is reduced to one space.
_BLANKS = re.compile(r"^[ \t]*(?:--.*)?\n|^(?:[ \t]{2,}(?=[ \t])|[ \t]{2})", re.MULTILINE)
# noun.CONSTANT, or noun.verb before a parenthesis. Comments and strings are matched first: a name in them is no match.
_NAME = re.compile(rf"[ \t]*--[^\n]*|{_STRING}|(?<![\w.:])([a-z_]+)\.(?:([A-Z][A-Z\d_]*)\b|(\w+)(?=\s*\())")
# One pattern for every call, because compiling one for each section doubles the time to cut a library.
_CALL = re.compile(rf"{_STRING}|\b(\w+)\(")
_PARAMETER = re.compile(rf"{_STRING}|(?<![\w.:])([a-zA-Z_]\w*)\b(?!\s*=[^=])")
# An argument that an inline expression may repeat: a name, a number or one element of a table.
_PLAIN = re.compile(r"[\w.]+(?:\[[^][]*\])?\Z")
_LONG_BRACKET = re.compile(r"\[=*\[")
_TYPES = ("int", "str", "*")
_LIBRARIES = {"string", "table", "math", "bit", "struct", "cmsgpack", "cjson", "redis", "server", "os"}

Literal: TypeAlias = str | int | float


def layouts(file: str, text: str) -> list[Layout]:
    """The layouts in one file."""
    return _parse(file, text)[2]


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
    """A function, a script or a frame.

    names  of everything in the files that are linked, which its body may use
    """

    file: str
    match: re.Match[str]
    names: Names
    parameters: Sequence[str] = ()
    keys: Sequence[str] = ()
    args: Sequence[tuple[str, str]] = ()
    flags: Sequence[str] = ()
    uses: Sequence[str] = ()
    is_inline: bool = False
    is_seldom: bool = False
    frame: str = ""

    @property
    def is_script(self) -> bool:
        return self.match["noun"] == "script"

    @cached_property
    def name(self) -> str:
        return self.match["verb"] if self.is_script else f"{self.match['noun']}.{self.match['verb']}"

    @property
    def is_frame(self) -> bool:
        return self.match["noun"] == "frame"

    @cached_property
    def flat_name(self) -> str:
        return self.name.replace(".", "_")

    @cached_property
    def as_field(self) -> str:
        """The text that defines the function in a script."""
        body = "\n".join([line.lstrip() for line in self.code.split("\n")])
        return f"function F.{self.flat_name}({', '.join(self.parameters)})\n{body}\nend"

    @property
    def body(self) -> str:
        """Its statements as written, including those of the frame that a script names."""
        return _in_frame(self, self.names.frames) if self.frame else self.match["body"]

    @property
    def code(self) -> str:
        """The body as the server receives it."""
        return self._resolved[0]

    @property
    def calls(self) -> Mapping[str, None]:
        """The names of the functions that it calls directly."""
        return self._resolved[1]

    @cached_property
    def _resolved(self) -> tuple[str, Mapping[str, None]]:
        return _resolve(self, self.names)

    @property
    def is_open(self) -> bool:
        return bool(self.args) and self.args[-1][1] == "*"

    def fault(self, text: str) -> ValueError:
        return _fault(self.file, self.match.string, self.match.start("noun"), f"{self.name} {text}")


class Sections(Mapping[str, Section]):
    """Functions, frames or scripts by name. Each is read when it is first used."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[str, re.Match[str], Names]] = {}
        self._read: dict[str, Section] = {}

    def add(self, name: str, file: str, match: re.Match[str], names: Names) -> None:
        if name in self._found:
            raise _section(file, match, names).fault("is defined twice")
        self._found[name] = file, match, names

    def __getitem__(self, name: str) -> Section:
        section = self._read.get(name)
        if section is None:
            section = self._read.setdefault(name, _section(*self._found[name]))
        return section

    def __contains__(self, name: object) -> bool:
        return name in self._found

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


class Names(NamedTuple):
    """What some files define, by name."""

    functions: Sections
    frames: Sections
    scripts: Sections
    literals: dict[str, str]
    layouts: dict[str, Layout]


def link(texts: Mapping[str, str]) -> Names:
    """What these files define.

    To read all of them, and to make their code, would take ten times as long as to find them, and a program uses few
    scripts. So an error in a section is raised when the section is used, or by `check`.
    """
    names = Names(Sections(), Sections(), Sections(), {}, {})
    for file, text in texts.items():
        matches, fields, layouts = _parse(file, text)
        for match in matches:
            noun, verb = match["noun"], match["verb"]
            if noun == "script":
                names.scripts.add(verb, file, match, names)
            elif noun == "frame":
                names.frames.add(verb, file, match, names)
            else:
                names.functions.add(f"{noun}.{verb}", file, match, names)
        for at, noun, name, literal in fields:
            if f"{noun}.{name}" in names.literals:
                raise _fault(file, text, at, f"{noun}.{name} is defined twice")
            names.literals[f"{noun}.{name}"] = literal
        for layout in layouts:
            names.layouts[layout.noun] = layout
            names.literals.update(layout.constants())
    return names


def check(names: Names) -> None:
    """Read everything that `link` has found. Raises as `cut` does."""
    for section in (*names.frames.values(), *names.functions.values(), *names.scripts.values()):
        if not section.is_frame:
            _check_uses(section, names.functions)
    try:
        TopologicalSorter({name: section.calls for name, section in names.functions.items()}).prepare()
    except CycleError as circle:
        raise ValueError(f"functions call each other: {' and '.join(circle.args[1][1:])}") from None


def callees(
    section: Section, functions: Mapping[str, Section], ends_at: Callable[[Section], bool] = lambda _: False
) -> list[Section]:
    """The functions that a section calls, directly or not, callees first.

    functions  all functions by name, as `link` returns them
    ends_at    returns True for a function whose own calls are not followed
    """
    needed: dict[str, Section] = {}
    seen = set[str]()

    def add(called: Iterable[str]) -> None:
        for name in called:
            if name not in seen:
                seen.add(name)
                if not ends_at(functions[name]):
                    add(functions[name].calls)
                needed[name] = functions[name]

    add(section.calls)
    return [*needed.values()]


# --- reading ---


def _parse(file: str, text: str) -> tuple[list[re.Match[str]], list[tuple[int, str, str, str]], list[Layout]]:
    """The functions, scripts and frames of a file, not read yet; its constants as (position, noun, name, literal);
    its layouts.
    """
    if bracket := _LONG_BRACKET.search(text):
        raise _fault(file, text, bracket.start(), "long brackets are not supported")
    sections: list[re.Match[str]] = []
    fields: list[tuple[int, str, str, str]] = []
    layouts: list[Layout] = []
    end = 0
    for match in _SECTION.finditer(text):
        fields += _constants_between(file, text, end, match.start(), layouts)
        sections.append(match)
        end = match.end()
    fields += _constants_between(file, text, end, len(text), layouts)
    return sections, fields, layouts


def _constants_between(
    file: str, text: str, at: int, end: int, layouts: list[Layout]
) -> Iterator[tuple[int, str, str, str]]:
    """The constants between two sections. Appends their layouts to `layouts`. Other code there is an error."""
    while at < end:
        if table := _TABLE.match(text, at, end):
            if table["layout"]:
                layouts.append(_layout(file, text, table))
            else:
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


def _layout(file: str, text: str, table: re.Match[str]) -> Layout:
    forms: list[tuple[str, str]] = []
    at, end = table.span("fields")
    while found := _FORM.match(text, at, end):
        forms.append((found[1], found[2]))
        at = found.end()
    if rest := text[at:end].strip():
        raise _fault(file, text, at + 1, f'the layout {table["noun"]} may only hold name = "form": {rest!r}')
    return Layout(table["noun"], forms, lambda what: _fault(file, text, table.start(), what))


def _section(file: str, match: re.Match[str], names: Names) -> Section:
    section = Section(file, match, names, match["parameters"].replace(",", " ").split())
    clauses: dict[str, str] = {}
    for clause, text in _CLAUSE.findall(match["above"]):
        if text == "inline" and not section.is_script:
            section.is_inline = True
            continue
        if text == "seldom" and not section.is_script:
            section.is_seldom = True
            continue
        joint = "," if clause else " "  # a signature may continue anywhere on the next line
        clauses[clause] = f"{clauses[clause]}{joint}{text}" if clause in clauses else text
    noun, forbidden = (
        ("script", {"", "uses"}) if section.is_script else ("function", {"keys", "args", "flags", "frame"})
    )
    if found := [text for clause, text in clauses.items() if clause in forbidden]:
        raise section.fault(f"has a line that no {noun} may have: {found[0]!r}")
    section.flags, section.uses = _words(clauses.get("flags", "")), _words(clauses.get("uses", ""))
    section.frame = clauses.get("frame", "").strip()
    if section.is_script:
        section.keys, section.args = _words(clauses.get("keys", "")), _name_type_pairs(section, clauses.get("args", ""))
        if unknown := [arg for arg, kind in section.args if kind not in _TYPES]:
            raise section.fault(f"has an argument that is neither int, str nor *: {', '.join(unknown)}")
        if any(kind == "*" for _, kind in section.args[:-1]):
            raise section.fault("has a * that is not the last argument")
        expected = [*section.keys, *(arg for arg, _ in section.args), *(["..."] if section.is_open else [])]
    else:
        signature = _SIGNATURE.match(clauses.get("", "()"))
        if not signature:
            raise section.fault(f"has a line that is not of the form (name: type, …) -> type: {clauses['']!r}")
        expected = [name for name, _ in _name_type_pairs(section, signature[1])]
        if section.is_frame and section.parameters == ["..."]:
            expected = ["..."]  # what the script returns
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


def _in_frame(script: Section, frames: Mapping[str, Section]) -> str:
    """The statements of the frame around those of the script: the last ones before its last `return`."""
    frame = frames.get(script.frame)
    if not frame:
        raise script.fault(f"has the frame {script.frame}, which does not exist")
    known = {*script.keys, *(arg for arg, _ in script.args)}
    if lacking := [name for name in frame.uses if name not in known]:
        raise script.fault(f"has the frame {script.frame}: bind {' and '.join(lacking)} as a key or an argument")
    opening, _, closing = frame.body.partition(_STATEMENTS)
    statements, value = script.match["body"], ""
    if found := _LAST_RETURN.search(statements):
        statements, value = statements[: found.start()], found["value"]
    if "  return " in closing:
        closing = closing.replace("...", value or "nil")
    elif value:
        closing = f"{closing}  return {value}\n"
    return opening + statements + closing


def _resolve(section: Section, names: Names) -> tuple[str, Mapping[str, None]]:
    """The `code` and the `calls` of a section. Functions become fields of `F`, and constants become their literals."""
    functions, layouts = names.functions, names.layouts

    def resolved(found: re.Match[str]) -> str:
        noun, constant, verb = found.groups()
        if noun is None:
            return found[0] if found[0][0] in "\"'" else ""  # a string, or a comment behind code
        name = f"{noun}.{constant or verb}"
        if constant:
            return _literal(section, name, names.literals)
        if noun in _LIBRARIES:
            return name
        if noun in layouts and layouts[noun].has(verb):
            packed.add(noun)
            return name
        if name not in functions:
            raise section.fault(f"calls {name}, which does not exist")
        if functions[name].is_inline:
            inlined[functions[name].flat_name] = functions[name]
            return functions[name].flat_name
        if name != section.name:
            calls[name] = None
        return f"F.{functions[name].flat_name}"

    calls: dict[str, None] = {}
    inlined: dict[str, Section] = {}
    packed: set[str] = set()
    code = _NAME.sub(resolved, _BLANKS.sub("", section.body)).rstrip()
    if packed:
        code = expand(code, layouts, section.fault)
    if section.is_inline:
        return _expression(section, code, inlined), calls
    for function in inlined.values():
        calls |= function.calls
    return _inline(section, code, inlined) if inlined else code, calls


def _literal(section: Section, name: str, literals: Mapping[str, str]) -> str:
    if name not in literals and name.partition(".")[0] not in _LIBRARIES:
        raise section.fault(f"names the constant {name}, which does not exist")
    return literals.get(name, name)


def _expression(function: Section, code: str, inlined: Mapping[str, Section]) -> str:
    """The code of an inline function, in one line."""
    if not code.startswith("return ") or inlined or f"F.{function.flat_name}(" in code:
        raise function.fault("is inline: its body must be one `return`, which calls no inline function")
    code = re.sub(r"\n ?", " ", code)
    names = _names(code)
    if unused := [name for name in function.parameters if name not in names]:
        raise function.fault(f"is inline: it does not use {' and '.join(unused)}")
    return code


def _names(code: str) -> list[str]:
    return [found[1] for found in _PARAMETER.finditer(code) if found[1]]


def _inline(section: Section, code: str, functions: Mapping[str, Section]) -> str:
    """The code of a section with each inline call replaced by its expression.

    The last call comes first, so that a call in an argument is replaced before the call around it.
    """
    for call in reversed([*_CALL.finditer(code)]):
        if call[1] not in functions:
            continue
        function, (found, end) = functions[call[1]], arguments_of(code, call.end())
        arguments = [argument if _PLAIN.match(argument) else f"({argument})" for argument in found]
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
