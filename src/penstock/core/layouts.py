"""Fields of packed values, which Lua names and the cutter locates (see `sections.py`).

    claim = layout {
      number = "I6", -- of the claim
      flags = "B",
      tenant = "Bc0",
      keys = "*",
    }

A layout lists the fields in the order of their bytes, each with its form in the server's `struct`: `B`, `H`, `I5` and
so on for big-endian numbers, `c1` for bytes of this length, `Bc0` or `Hc0` for a text after its length in one or two
bytes, `*` for the rest of the value. No other line of a file needs to know where a field is:

    claim.flags(held)                           one field
    claim.flags_bytes(held)                     the same, as its bytes
    claim.with(held, { flags = 1 })             a copy of the value with other fields; only of a fixed size
    claim.pack({ number = 1, flags = 0, … })    a new value, of all fields; only `*` may be missing
    claim.tenant_size(held)                     the length of the first text
    claim.AT_TENANT                             where a field begins, from 1; not for fields behind the first text

    local was = claim.fields(held)
    return was.number, was.tenant

The last form reads several fields at once. `was` is not a table: the cutter makes a local variable for each field that
the section names, and reads only those. So a section may also assign to `was.number`, but it cannot use `was` alone.

The cutter replaces each form by the code that one would write by hand, with `string.byte`, `string.sub`,
`struct.unpack` and `struct.pack`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

_STRING = r""""(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'"""
_PUNCTUATION = re.compile(rf"{_STRING}|[](){{}}[,]")
_CALL = re.compile(rf"{_STRING}|(?<![\w.:])([a-z_]+)\.(\w+)\(")
_ENTRY = re.compile(r"(\w+)\s*=(?!=)\s*(.+)\Z", re.DOTALL)
# `local name, others = `: the second group holds the other names.
_DECLARATION = re.compile(r"\blocal (\w+)(?:, ([\w, ]+))? = \Z")
# A name and its field. One pattern for every name, because compiling one for each takes longer than cutting a library.
_USE = re.compile(rf"{_STRING}|(?<![\w.:])(\w+)(?:\.(\w+))?")
_FORM = re.compile(r"(?:(B)|(H)|I([1-8])|c([1-9]\d*)|[BH]c0|\*)\Z")
# An argument that an expression may repeat: a name, a number or one element of a table.
_PLAIN = re.compile(r"[\w.]+(?:\[[^][]*\])?\Z")
_REST = "*"
_LONGEST = 32  # bytes of a number in the server's `struct`

VERBS = ("fields", "with", "pack")
"""The functions of a layout that are not named after a field."""

Fault = Callable[[str], ValueError]


@dataclass(frozen=True)
class LayoutField:
    """A field of a layout.

    at    its first byte, from 1; None behind the first text
    size  its number of bytes; 0 for a text, and for the rest of the value
    """

    name: str
    form: str
    at: int | None
    size: int

    @property
    def is_text(self) -> bool:
        return self.form.endswith("c0")

    def length(self, text: str) -> str:
        """The expression for the length of a text."""
        return (
            f"string.byte({text}, {self.at})"
            if self.form[0] == "B"
            else f'(struct.unpack(">H", {text}{_from(self.at)}))'
        )

    def starts(self) -> int:
        """Where the first text begins, behind its length."""
        return (self.at or 0) + (1 if self.form[0] == "B" else 2)


class Layout:
    """The fields of one kind of value, by their names."""

    def __init__(self, noun: str, forms: Iterable[tuple[str, str]], fault: Fault) -> None:
        self.noun = noun
        self.fields: dict[str, LayoutField] = {}
        at: int | None = 1
        for name, form in forms:
            found = _FORM.match(form)
            if not found or name in VERBS or name in self.fields:
                raise fault(f"{noun}.{name} = {form!r} is no field: see layouts.py")
            byte, short, number, length = found.groups()
            size = 1 if byte else 2 if short else int(number or length or 0)
            if size and at is None:
                raise fault(f"{noun}.{name} is behind a text, where only other texts may be")
            self.fields[name] = LayoutField(name, form, at, size)
            at = at + size if size and at else None
        self.texts = [field for field in self.fields.values() if field.is_text]
        self.size = f"{self.texts[0].name}_size" if self.texts else ""

    def has(self, verb: str) -> bool:
        return verb in {*VERBS, self.size} or verb in self.fields or verb.removesuffix("_bytes") in self.fields

    def constants(self) -> dict[str, str]:
        return {f"{self.noun}.AT_{field.name.upper()}": str(field.at) for field in self.fields.values() if field.at}

    def field(self, name: str, fault: Fault) -> LayoutField:
        if name not in self.fields:
            raise fault(f"names the field {self.noun}.{name}, which does not exist")
        return self.fields[name]

    def read(self, name: str, text: str, fault: Fault) -> str:
        """The expression for one field of `text`."""
        if name == self.size:
            return self.texts[0].length(text)
        if name not in self.fields:
            field = self.field(name.removesuffix("_bytes"), fault)
            return f"string.sub({text}, {field.at}, {(field.at or 0) + field.size - 1})"
        field = self.fields[name]
        if field.form == "B":
            return f"string.byte({text}, {field.at})"
        if field.form[0] == "c":
            return f"string.sub({text}, {field.at}, {(field.at or 0) + field.size - 1})"
        if field.size:
            return f'(struct.unpack(">{field.form}", {text}{_from(field.at)}))'
        if field.at and field.form == _REST:
            return f"string.sub({text}, {field.at})"
        if not _PLAIN.match(text):
            raise fault(f"reads {self.noun}.{name} from an expression: pass a local")
        first = self.texts[0]
        if field is first:
            return f"string.sub({text}, {first.starts()}, {first.starts() - 1} + {first.length(text)})"
        if field.form == _REST and len(self.texts) == 1:
            return f"string.sub({text}, {first.starts()} + {first.length(text)})"
        if field.form == _REST:
            raise fault(f"reads {self.noun}.{name}, which is behind several texts")
        texts = self.texts[: self.texts.index(field) + 1]
        forms = "".join(one.form for one in texts)
        return f'(select({len(texts)}, struct.unpack(">{forms}", {text}{_from(first.at)})))'

    def unpack(self, names: Iterable[str], prefix: str, text: str, fault: Fault) -> str:
        """The statement that reads these fields into locals whose names begin with `prefix`."""
        wanted = {name if name == self.size else self.field(name, fault).name for name in names}
        if len(wanted) == 1:
            (name,) = wanted
            return f"local {prefix}_{name} = {self.read(name, text, fault)}"
        forms: list[str] = []
        results: list[str] = []
        start, gap, left, cut = None, 0, len(wanted), ""
        for field in self.fields.values():
            if not left:
                break
            if field.form == _REST:
                if not _PLAIN.match(text):
                    raise fault(f"reads {self.noun}.{field.name} from an expression: pass a local")
                forms += _skip(gap, results)
                rest = f"{prefix}_{field.name}"
                results.append(rest)  # at first the position that `struct` returns behind the values
                cut = f"; {rest} = string.sub({text}, {rest})"
                break
            name = field.name if field.name in wanted or not field.is_text else f"{field.name}_size"
            if name in wanted or field.is_text:
                forms += _skip(gap, results)
                forms.append(field.form[0] if name != field.name and name in wanted else field.form)
                results.append(f"{prefix}_{name}" if name in wanted else "_")
                start, gap, left = start or field.at, 0, left - (name in wanted)
            elif start:
                gap += field.size
        form = "".join(forms)
        return f'local {", ".join(results)} = struct.unpack(">{form}", {text}{_from(start)}){cut}'

    def splice(self, text: str, values: Mapping[str, str], fault: Fault) -> str:
        """The expression for a copy of `text` with these fields."""
        if not _PLAIN.match(text):
            raise fault(f"copies a {self.noun} from an expression: pass a local")
        if fixed := [name for name in values if not self.field(name, fault).size]:
            raise fault(f"sets {self.noun}.{fixed[0]}, which has no fixed size")
        pieces: list[str] = []
        run: list[LayoutField] = []
        end = 1  # the bytes before it are in `pieces` or `run` already
        for field in self.fields.values():
            if field.name in values:
                if not run and field.at and field.at > end:
                    pieces.append(f"string.sub({text}, {end}, {field.at - 1})")
                run.append(field)
                end = (field.at or 0) + field.size
            elif run:
                pieces.append(_packed(run, values))
                run = []
        if run:
            pieces.append(_packed(run, values))
        if any(not field.at or field.at >= end for field in self.fields.values()):
            pieces.append(f"string.sub({text}, {end})")
        return f"({' .. '.join(pieces)})"

    def packed(self, values: Mapping[str, str], fault: Fault) -> str:
        """The expression for a new value."""
        for name in values:
            self.field(name, fault)
        if missing := [one.name for one in self.fields.values() if one.name not in values and one.form != _REST]:
            raise fault(f"packs a {self.noun} without {' and '.join(missing)}")
        packed = _packed([field for field in self.fields.values() if field.form != _REST], values)
        rest = [_operand(values[name]) for name in values if self.fields[name].form == _REST]
        return f"({' .. '.join([packed, *rest])})" if rest else packed


def expand(code: str, layouts: Mapping[str, Layout], fault: Fault) -> str:
    """The code of a section, with each use of a layout replaced by plain Lua."""
    for call in reversed([*_CALL.finditer(code)]):
        layout = layouts.get(call[1] or "")
        if not layout or not layout.has(call[2]):
            continue
        arguments, end = arguments_of(code, call.end())
        verb, (text, *others) = call[2], arguments or [""]
        before, after = code[: call.start()], code[end:]
        if len(arguments) != (2 if verb == "with" else 1):
            raise fault(f"calls {layout.noun}.{verb} with {len(arguments)} arguments")
        if verb == "fields":
            found = _DECLARATION.search(before)
            if not found:
                raise fault(f"calls {layout.noun}.fields, but does not begin with `local name = `")
            if found[2]:
                after = f"\nlocal {found[2]} ={after.removeprefix(',')}"
            code = _bind(layout, found[1], text, before[: found.start()], after, fault)
        elif verb == "with":
            code = f"{before}{layout.splice(text, _entries(others[0], fault), fault)}{after}"
        elif verb == "pack":
            code = f"{before}{layout.packed(_entries(text, fault), fault)}{after}"
        else:
            code = f"{before}{layout.read(verb, text, fault)}{after}"
    return code


def _bind(layout: Layout, name: str, text: str, before: str, after: str, fault: Fault) -> str:
    """Replace the declaration, and each `name.field` after it, by locals."""
    uses = [found for found in _USE.finditer(after) if found[1] == name]
    if any(found[2] is None for found in uses):
        raise fault(f"uses {name} without a field: it is no table, but stands for fields of {layout.noun}")
    names = [found[2] for found in uses]
    if not names:
        raise fault(f"does not use {name}")
    for found in reversed(uses):
        after = f"{after[: found.start()]}{name}_{found[2]}{after[found.end() :]}"
    return f"{before}{layout.unpack(names, name, text, fault)}{after}"


def _skip(gap: int, results: list[str]) -> Iterator[str]:
    """The forms that skip `gap` bytes: unused numbers, which `struct` reads faster than it skips single bytes."""
    while gap > 1:
        results.append("_")
        yield f"I{min(gap, _LONGEST)}"
        gap -= min(gap, _LONGEST)
    yield from ["x"] * gap


def _from(at: int | None) -> str:
    return "" if at == 1 else f", {at}"


def _packed(fields: Iterable[LayoutField], values: Mapping[str, str]) -> str:
    fields = [*fields]
    if len(fields) == 1 and fields[0].form == "B":
        return f"string.char({values[fields[0].name]})"
    if len(fields) == 1 and fields[0].form[0] == "c":
        return _operand(values[fields[0].name])
    forms = "".join(field.form for field in fields)
    arguments = [
        f"#{_operand(values[field.name])}, {values[field.name]}" if field.is_text else values[field.name]
        for field in fields
    ]
    return f'struct.pack(">{forms}", {", ".join(arguments)})'


def _operand(expression: str) -> str:
    return expression if _PLAIN.match(expression) or expression[0] == '"' else f"({expression})"


def _entries(table: str, fault: Fault) -> dict[str, str]:
    """The entries of `{ name = expression, … }`."""
    if table[:1] != "{" or table[-1:] != "}":
        raise fault(f"gives no table of fields: {table!r}")
    entries = [_ENTRY.match(entry) for entry in arguments_of(table[1:-1] + ")", 0)[0]]
    if None in entries:
        raise fault(f"gives a table in which not every value has a name: {table!r}")
    return {entry[1]: entry[2] for entry in entries if entry}


def arguments_of(code: str, at: int) -> tuple[list[str], int]:
    """The arguments of the call whose parenthesis opens before `at`, and where the call ends."""
    found, depth = [], 0
    for sign in _PUNCTUATION.finditer(code, at):
        if sign[0] in "({[":
            depth += 1
        elif sign[0] in "]})" and depth:
            depth -= 1
        elif sign[0] in ",)" and not depth:
            found.append(re.sub(r"\s*\n\s*", " ", code[at : sign.start()].strip()))
            at = sign.end()
            if sign[0] == ")":
                break
    return [argument for argument in found if argument], at
