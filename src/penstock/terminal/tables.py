"""Prints the output of a command: a table that fits the terminal and never cuts an id, or one JSON document."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from typing import Any, Literal, TypeAlias, cast

import msgspec
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from penstock.ops.wording import terminal_safe

Kind: TypeAlias = Literal["name", "number", "text"]
"""The kind of a column: names are never cut, numbers are right-aligned, and texts are cut if space is short."""

GAP = 2
"""Spaces between two columns."""

LONGEST = 1024
"""Characters of a value in a table; the rest of a longer one is cut. No id or name that can be stored is longer."""

READABLE = 40
"""A text in the last column that has less room than this, and needs more, gets a line of its own."""

NARROWEST = 12
"""Columns are not shrunk below this width."""

ERRORS = ("reason", "error")
"""Facts that may have several lines."""

_WORD = re.compile("( *)([^ ]+)")


def headings(*texts: str) -> dict[str, Kind]:
    """The headings of a table with their kinds: `headings("job:name", "attempts", "reason:text")`. Most are numbers."""
    pairs = [heading.rpartition(":") if ":" in heading else (heading, "", "number") for heading in texts]
    return {heading: cast(Kind, kind) for heading, _, kind in pairs}


def show_json(answer: Any) -> None:
    """Print the answer, which may consist of dataclasses, as one JSON document."""
    _print_json(answer, indent=2)


def show_json_line(answer: Any) -> None:
    """Print one of several answers as a line of JSON."""
    _print_json(answer, indent=None)


def _print_json(answer: Any, indent: int | None) -> None:
    shown = msgspec.to_builtins(answer, enc_hook=str)  # only what is sealed and cannot be opened is no JSON
    text = json.dumps(shown, indent=indent, ensure_ascii=False)
    print(text if can_print(text) else json.dumps(shown, indent=indent), flush=True)


def can_print(text: str) -> bool:
    """Whether the encoding of stdout has all of these characters."""
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def show(*lines: str | Text) -> None:
    """Print lines of text. The terminal itself wraps long lines, so that they can be copied."""
    for line in lines:
        _console().print(
            Text("\n").join(map(cell, line.splitlines())) if isinstance(line, str) else line, soft_wrap=True
        )


def note(text: str) -> None:
    """Print a remark that is not part of the answer, as one line on stderr."""
    print(f"penstock: {terminal_safe(text)}", file=sys.stderr)


def show_beside(head: Text, text: str) -> None:
    """Print a text after its heading. On a terminal, wrap it between words and indent the lines that follow."""
    console = _console()
    room = max(NARROWEST, console.width - head.cell_len)
    lines = [part for line in text.splitlines() for part in _wrapped(cell(line).plain, room)]
    first, *others = lines if console.is_terminal and lines else [cell(text).plain]
    show(head + Text(first), *(Text(" " * head.cell_len + line) for line in others))


def show_sentence(text: str) -> None:
    """Print a line of text. On a terminal, wrap it between words; the lines that follow have more indent than it."""
    words = text.lstrip(" ")
    indent, plain, console = len(text) - len(words), prose(words).plain, _console()
    room = max(NARROWEST, console.width - indent)
    lines = _wrapped(plain, room, " " * GAP) if console.is_terminal else [plain]
    show(*(Text(" " * indent + line) for line in lines))


def _wrapped(text: str, room: int, indent: str = "", *, breaks_words: bool = False) -> list[str]:
    """The lines of a text that is wrapped between words, by the cells that it takes.

    A word that is longer than a line stays whole if it is ASCII, as an id is. Chinese has no spaces between its words.
    """
    lines: list[str] = []
    for spaces, word in _WORD.findall(text):
        is_broken = cell_len(word) > room - len(indent) and (breaks_words or not word.isascii())
        for piece in [spaces + word[0], *word[1:]] if is_broken else [spaces + word]:
            if not lines:
                lines.append(piece)
            elif cell_len(lines[-1] + piece) > room:
                lines.append(indent + piece.lstrip(" "))
            else:
                lines[-1] += piece
    return lines


def show_facts(facts: Mapping[str, object]) -> None:
    """Print names and values, one pair per line. On a terminal, a long text is wrapped between words.

    A value that is a `Text` already is to be copied whole: it is not wrapped. Only an error has lines of its own; the
    line ends of a name are escaped.
    """
    width = max(map(len, facts)) + GAP
    for name, value in facts.items():
        head = Text(f"{name:{width}}", "dim")
        text = str(value) if name in ERRORS else terminal_safe(str(value))
        show(head + value) if isinstance(value, Text) else show_beside(head, text)


def show_list(
    items: Sequence[object], columns: Mapping[str, Kind], lines: Iterable[Iterable[object]], *, none: str, as_json: bool
) -> None:
    """Print the answer of an `ls` command: a JSON document, or a table of `lines`, or `none` if there are no items."""
    if as_json:
        show_json(items)
    elif not items:
        show(none)
    else:
        show_table(columns, lines)


def show_table(columns: Mapping[str, Kind], lines: Iterable[Iterable[object]]) -> None:
    """Print a table; `columns` maps each heading to its kind.

    A name in the first column that is too long for the terminal gets a line of its own. If a text in the last column
    would be cut to a few words, it is in two lines below its row. If the table does not fit, its empty columns are left
    out; if it still does not fit, each row is its name, and below it the other values with their headings.
    """
    console = _console()
    rows = [[_table_cell(*pair) for pair in zip(line, columns.values(), strict=True)] for line in lines]
    if console.is_terminal and not _fits(columns, rows, console):
        filled = [not n or any(row[n].cell_len for row in rows) for n in range(len(columns))]
        columns = dict(compress(columns.items(), filled))
        rows = [list(compress(row, filled)) for row in rows]
    lengths = [[len(heading) for heading in columns], *([value.cell_len for value in row] for row in rows)]
    needed, kinds = [max(column) for column in zip(*lengths, strict=True)], list(columns.values())
    widths = _fitting(needed, kinds, console)
    is_below = len(kinds) > 1 and kinds[-1] == "text" and widths[-1] < min(READABLE, needed[-1])
    if is_below:
        kinds, widths = kinds[:-1], _fitting(needed[:-1], kinds[:-1], console)
    shown = len(kinds)
    if console.is_terminal and sum(widths) + GAP * (shown - 1) > console.width:
        _show_entries(list(columns), rows, console)
        return
    show(_line([Text(heading, "bold") for heading in columns][:shown], kinds, widths))
    show(Text(("─" if can_print("─") else "-") * (sum(widths) + GAP * (len(widths) - 1)), "dim"))
    for row in rows:
        if kinds[0] != "text" and row[0].cell_len > widths[0]:
            show(row[0])
            row[0] = Text()
        show(_line(row[:shown], kinds, widths))
        if is_below:
            show(*(Text(" " * GAP + line) for line in _first_lines(row[-1].plain, console.width - GAP)))


def _fits(columns: Mapping[str, Kind], rows: list[list[Text]], console: Console) -> bool:
    widths = [max(len(heading), *(row[n].cell_len for row in rows), 0) for n, heading in enumerate(columns)]
    return sum(widths) + GAP * (len(widths) - 1) <= console.width


def _first_lines(text: str, room: int) -> list[str]:
    """The first two lines of a text that is wrapped between words. The last one shows whether there is more."""
    lines, more = _wrapped(text, room, breaks_words=True), " …" if can_print("…") else " ..."
    if len(lines) > 2:
        lines[1] = _wrapped(lines[1], room - len(more), breaks_words=True)[0] + more
    return lines[:2]


def _show_entries(columns: list[str], rows: list[list[Text]], console: Console) -> None:
    indent = Text(" " * GAP)
    for name, *values in rows:
        show(name)
        line = indent.copy()
        for heading, value in zip(columns[1:], values, strict=True):
            if not value.cell_len:
                continue
            pair = Text.assemble((f"{heading.strip()} ", "dim"), value) if heading else value
            if line.cell_len > GAP and line.cell_len + GAP + pair.cell_len > console.width:
                show(line)
                line = indent.copy()
            if GAP + pair.cell_len > console.width and " " in value.plain:
                show_beside(indent + Text(f"{heading.strip()} ", "dim"), value.plain)
                continue
            line = line + indent + pair if line.cell_len > GAP else line + pair
        if line.cell_len > GAP:
            show(line)


def _fitting(needed: Sequence[int], kinds: Sequence[Kind], console: Console) -> list[int]:
    """The widths of columns on a terminal. Columns of text shrink first, from right to left; then the first column."""
    widths = list(needed)
    if console.is_terminal:
        for column in (*(n for n, kind in reversed([*enumerate(kinds)]) if kind == "text"), 0):
            excess = max(0, sum(widths) + GAP * (len(widths) - 1) - console.width)
            widths[column] = max(min(widths[column], NARROWEST), widths[column] - excess)
    return widths


def _line(row: list[Text], kinds: list[Kind], widths: list[int]) -> Text:
    for value, kind, width in zip(row, kinds, widths, strict=True):
        if kind == "text":
            value.truncate(width, overflow="ellipsis" if can_print("…") else "crop")
        spaces = width - value.cell_len
        value.pad_left(spaces) if kind == "number" else value.pad_right(spaces)
    line = Text(" " * GAP).join(row)
    line.rstrip()
    return line


def _table_cell(value: object, kind: Kind) -> Text:
    if isinstance(value, str) and len(value) > LONGEST:
        value = f"{value[:LONGEST]}{'…' if can_print('…') else '...'}"
    return prose(value) if kind == "text" and isinstance(value, str) else cell(value)


def prose(text: str) -> Text:
    """A text of several lines, such as an error, in one; everything that a terminal interprets is escaped."""
    return cell(" ".join(filter(None, map(str.strip, text.splitlines()))) if "\n" in text else text)


def cell(value: object, style: str = "") -> Text:
    """A value in one line, with everything escaped that a terminal interprets."""
    return value if isinstance(value, Text) else Text(terminal_safe(str(value)), style)


def _console() -> Console:
    return Console(highlight=False, emoji=False, markup=False)
