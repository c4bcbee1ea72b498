"""How a command answers: a table for people, which fits the terminal and cuts no id, or one JSON document."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from textwrap import wrap
from typing import Any, Literal, TypeAlias

import msgspec
from rich.console import Console
from rich.text import Text

from penstock.ops.wording import printable

Kind: TypeAlias = Literal["name", "number", "text"]
"""Of a column: a name is never cut, a number stands to the right, a text gives way."""

GAP = 2
NARROWEST = 12


def show_json(answer: Any) -> None:
    """One document, of dataclasses too."""
    print(json.dumps(msgspec.to_builtins(answer), indent=2, ensure_ascii=False), flush=True)


def show(*lines: str | Text) -> None:
    """Lines of text; the terminal itself wraps what is too long, so that it can be copied."""
    for line in lines:
        _console().print(
            Text("\n").join(map(cell, line.splitlines())) if isinstance(line, str) else line, soft_wrap=True
        )


def note(text: str) -> None:
    """What is to be known beside the answer, in one line on stderr."""
    print(f"penstock: {printable(text)}", file=sys.stderr)


def show_beside(head: Text, text: str) -> None:
    """A text beside its head; at a terminal it goes on below itself, broken between words only."""
    console, said = _console(), cell(text).plain
    room = max(NARROWEST, console.width - head.cell_len) if console.is_terminal else len(said) + 1
    first, *others = wrap(said, room, break_long_words=False, break_on_hyphens=False) or [""]
    show(head + Text(first), *(Text(" " * head.cell_len + line) for line in others))


def show_facts(facts: Mapping[str, object]) -> None:
    """Names and values, a line each."""
    width = max(map(len, facts)) + GAP
    show(*(Text.assemble((f"{name:{width}}", "dim"), cell(value)) for name, value in facts.items()))


def show_table(columns: Mapping[str, Kind], lines: Iterable[Iterable[object]]) -> None:
    """Heading -> kind. Where the first column has a name too long for the terminal, it takes a line of its own."""
    console, rows = _console(), [[cell(value) for value in line] for line in lines]
    lengths = [[len(heading) for heading in columns], *([value.cell_len for value in row] for row in rows)]
    widths = [max(column) for column in zip(*lengths, strict=True)]
    if console.is_terminal:
        # What may be cut gives way first, from the right, then the first column.
        for place in (*(n for n, kind in reversed([*enumerate(columns.values())]) if kind == "text"), 0):
            excess = max(0, sum(widths) + GAP * (len(widths) - 1) - console.width)
            widths[place] = max(min(widths[place], NARROWEST), widths[place] - excess)
    kinds = list(columns.values())
    show(_line([Text(heading, "bold") for heading in columns], kinds, widths))
    show(Text("─" * (sum(widths) + GAP * (len(widths) - 1)), "dim"))
    for row in rows:
        if kinds[0] != "text" and row[0].cell_len > widths[0]:
            show(row[0])
            row[0] = Text()
        show(_line(row, kinds, widths))


def _line(row: list[Text], kinds: list[Kind], widths: list[int]) -> Text:
    for value, kind, width in zip(row, kinds, widths, strict=True):
        if kind == "text":
            value.truncate(width, overflow="ellipsis")
        spaces = width - value.cell_len
        value.pad_left(spaces) if kind == "number" else value.pad_right(spaces)
    line = Text(" " * GAP).join(row)
    line.rstrip()
    return line


def cell(value: object, style: str = "") -> Text:
    """A value in one line, with nothing in it that a terminal would obey."""
    return value if isinstance(value, Text) else Text(printable(str(value)), style)


def _console() -> Console:
    return Console(highlight=False, emoji=False, markup=False)
