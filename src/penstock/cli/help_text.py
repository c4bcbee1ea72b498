"""Prints the help of a command in the form of the overview of `penstock --help`: plain text, without boxes."""

from __future__ import annotations

import io
from collections.abc import Iterator
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from rich.console import Console

if TYPE_CHECKING:
    from cyclopts.help import HelpEntry, HelpPanel
    from rich.console import ConsoleOptions

INDENT = 2

WIDEST_LABEL = 24
"""The description of an option with a longer label begins in the line below it."""

READABLE = 40
"""Where a description would have less room beside the labels, each begins in the line below its label."""


class HelpText:
    """A formatter as cyclopts calls it: for the usage, the description, and each group of arguments or commands."""

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        if not panel.entries:
            return
        labels = [_label(entry) for entry in panel.entries]
        column = INDENT + 2 + max((len(label) for label in labels if len(label) <= WIDEST_LABEL), default=0)
        if console.width - column < READABLE:
            column = 3 * INDENT
        _print(console, f"{panel.title}:")
        for label, entry in zip(labels, panel.entries, strict=True):
            first = f"{'':{INDENT}}{label}"
            lines = wrap(_description(entry), max(READABLE // 2, console.width - column), break_on_hyphens=False)
            if lines and len(first) + 2 <= column:
                first = f"{first:{column}}{lines.pop(0)}"
            _print(console, first, *(f"{'':{column}}{line}" for line in lines))
        _print(console, "")

    def render_usage(self, console: Console, options: ConsoleOptions, usage: Any) -> None:
        text = f"Usage: {_plain(usage).removeprefix('Usage: ')}"
        _print(console, *wrap(text, console.width, subsequent_indent=" " * 7, break_on_hyphens=False), "")

    def render_description(self, console: Console, options: ConsoleOptions, description: Any) -> None:
        paragraphs = [paragraph for paragraph in _plain(description).split("\n\n") if paragraph]
        for paragraph in paragraphs:
            _print(console, *wrap(paragraph, console.width, break_on_hyphens=False), "")


def _print(console: Console, *lines: str) -> None:
    for line in lines:
        console.print(line, highlight=False, markup=False, emoji=False, soft_wrap=True)


def _label(entry: HelpEntry) -> str:
    return ", ".join(entry.display_labels_with_metavar)


def _description(entry: HelpEntry) -> str:
    return " ".join(filter(None, [_plain(entry.description), *_remarks(entry)]))


def _remarks(entry: HelpEntry) -> Iterator[str]:
    if entry.required:
        yield "[required]"
    if entry.choices:
        yield f"[choices: {', '.join(entry.choices)}]"
    if entry.default not in (None, '""'):
        yield f"[default: {entry.default}]"


def _plain(text: Any) -> str:
    """The text without styles, in which a line is a paragraph; `text` is whatever rich can print."""
    if text is None:
        return ""
    wide = Console(file=io.StringIO(), width=100_000, no_color=True, force_terminal=False, legacy_windows=False)
    with wide.capture() as captured:
        wide.print(text, highlight=False, markup=False, emoji=False)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()).strip()
