"""The screen of `penstock top`: the rows of a view, sorted and filtered, in as many lines as the terminal has."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from rich.text import Text

from penstock.ops.wording import age, terminal_safe

View: TypeAlias = Literal["queues", "tenants", "workers"]
Row: TypeAlias = dict[str, float | str]

COLUMNS: Final[dict[View, dict[str, int]]] = {
    "queues": {
        "queue": 0,
        "ready": 9,
        "oldest": 7,
        "delayed": 8,
        "parked": 7,
        "running": 8,
        "in/s": 7,
        "out/s": 7,
        "fail/s": 7,
        "dead": 6,
        "sleeping": 9,
    },
    "tenants": {
        "tenant": 0,
        "ready": 10,
        "delayed": 9,
        "sleeping": 9,
        "parked": 8,
        "waiting": 8,
        "running": 8,
        "dead": 8,
    },
    "workers": {"worker": 0, "queue": 14, "jobs": 7, "at once": 8, "release": 14, "lease": 8},
}
"""The headings of each view and their widths; the first column takes the rest."""

SHORTEST_NAME: Final = 14
"""Cells that the first column has at least, before columns are left out."""

HELP: Final = "q quit  s sort  r reverse  / filter  space hold  t tenants  w workers  b back"

_NAMES: Final = ("queue", "tenant", "worker", "release")
_AGES: Final = ("oldest", "lease")


@dataclass
class Screen:
    """The state of the display, which keys change."""

    view: View = "queues"
    sort: str = "ready"
    is_reversed: bool = False
    filter: str = ""
    is_typing: bool = False
    is_held: bool = False
    selected: int = 0
    queue: str = ""
    """The queue whose tenants or workers are shown."""
    shown: list[Row] = field(default_factory=list)

    def press(self, key: str) -> bool:
        """Handle one key. Returns False for the key that ends the program."""
        if self.is_typing:
            self._type(key)
        elif key in {"q", "\x03"}:
            return False
        elif key == "s":
            names = list(COLUMNS[self.view])
            self.sort = names[(names.index(self.sort) + 1) % len(names)]
        elif key == "r":
            self.is_reversed = not self.is_reversed
        elif key == "/":
            self.is_typing, self.filter = True, ""
        elif key == " ":
            self.is_held = not self.is_held
        elif key in {"up", "k"}:
            self.selected = max(0, self.selected - 1)
        elif key in {"down", "j"}:
            self.selected = min(max(0, len(self.shown) - 1), self.selected + 1)
        elif key in {"t", "w", "\r", "\n"} and self.view == "queues" and self.shown:
            self.queue = str(self.shown[self.selected]["queue"])
            self._look_at("workers" if key == "w" else "tenants")
        elif key in {"b", "\x1b"} and self.view != "queues":
            self._look_at("queues")
        return True

    def _look_at(self, view: View) -> None:
        self.view, self.filter, self.selected = view, "", 0
        self.sort = "jobs" if view == "workers" else "ready"

    def _type(self, key: str) -> None:
        if key in {"\r", "\n", "\x1b"}:
            self.is_typing = False
            self.filter = "" if key == "\x1b" else self.filter
        elif key in {"\x7f", "\b"}:
            self.filter = self.filter[:-1]
        elif len(key) == 1 and key.isprintable():
            self.filter += key

    def arrange(self, rows: list[Row]) -> list[Row]:
        """The rows that the filter leaves, in order: the largest number first, or names from a to z."""
        first = next(iter(COLUMNS[self.view]))
        named = [row for row in rows if self.filter.lower() in str(row[first]).lower()]
        named.sort(key=lambda row: str(row[first]))
        down = (self.sort not in _NAMES) != self.is_reversed
        self.shown = sorted(named, key=lambda row: row[self.sort], reverse=down)
        self.selected = min(self.selected, max(0, len(self.shown) - 1))
        return self.shown

    def lines(self, rows: list[Row], title: str, totals: str, width: int, height: int) -> list[Text]:
        """The whole display: at most `height` lines of at most `width` cells."""
        columns, arranged = self._columns(width), self.arrange(rows)
        room = max(1, height - 4)
        start = max(0, min(self.selected - room + 1, len(arranged) - room))
        held = "  held" if self.is_held else ""
        lines = [_cut(Text(f"{title}{held}", "bold"), width), _cut(Text(totals), width)]
        heading = {name: f"{name}{'↑' if self.is_reversed else '↓'}" if name == self.sort else name for name in columns}
        lines.append(_line(heading, columns, width, "reverse"))
        for number, row in enumerate(arranged[start : start + room], start):
            cells = {name: shown(name, row[name]) for name in columns}
            lines.append(_line(cells, columns, width, "bold" if number == self.selected else ""))
        lines += [Text()] * (height - 1 - len(lines))
        last = (
            f"filter: {self.filter}▏" if self.is_typing else HELP + (f"  filter: {self.filter}" if self.filter else "")
        )
        return [*lines[: height - 1], _cut(Text(last, "dim"), width)]

    def _columns(self, width: int) -> dict[str, int]:
        """The columns that fit next to the first one: those on the left, and the one that sorts."""
        first, *others = COLUMNS[self.view].items()
        found, left = dict([first]), width - SHORTEST_NAME
        wanted = sorted(others, key=lambda column: column[0] != self.sort)
        kept = {name for name, space in wanted if (left := left - space) >= 0}
        return found | {name: space for name, space in others if name in kept}


def shown(name: str, value: float | str) -> str:
    if isinstance(value, str):
        return terminal_safe(value)
    if name in _AGES:
        return age(value) if value > 0 else ""
    if name.endswith("/s"):
        return f"{value:,.0f}" if value >= 10 or not value else f"{value:.1f}"
    return f"{value:,.0f}" if value < 1e6 else f"{value / 1e6:,.1f}M"


def _line(cells: dict[str, str], columns: dict[str, int], width: int, style: str) -> Text:
    first = max(8, width - sum(columns.values()))
    line = Text(style=style)
    for name, space in columns.items():
        cell = _cut(Text(cells[name]), space - 1 if space else first)
        (cell.pad_left if space else cell.pad_right)(max(0, (space or first) - cell.cell_len))
        line += cell
    return _cut(line, width)


def _cut(text: Text, width: int) -> Text:
    text.truncate(max(1, width), overflow="ellipsis")
    return text
