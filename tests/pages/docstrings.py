"""Turns a docstring of this project into Markdown.

Our docstrings are almost Markdown already: paragraphs, `code`, and examples that are indented by four. The exception is
a list of names with their meanings in columns, as `wait   seconds to wait`, which becomes a list of Markdown.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

# A name, or several, and after two or more spaces what it means.
COLUMNS = re.compile(r"^(?P<names>\S+(?:, \S+)*) {2,}(?P<meaning>\S.*)$")
INDENTED = re.compile(r"^ {4,}\S")


def markdown(docstring: str | None) -> str:
    """The docstring as Markdown, "" for none."""
    return "\n\n".join(_blocks(inspect.cleandoc(docstring))) if docstring else ""


def first_sentence(docstring: str | None) -> str:
    """Up to the first full stop that ends a sentence, in one line."""
    text = " ".join((inspect.cleandoc(docstring) if docstring else "").partition("\n\n")[0].split())
    return re.split(r"(?<=[.:])\s(?=[A-Z`])", text, maxsplit=1)[0]


def _blocks(text: str) -> Iterator[str]:
    paragraphs = re.split(r"\n\s*\n", text)
    while paragraphs:
        lines = paragraphs.pop(0).splitlines()
        if all(INDENTED.match(line) for line in lines):
            code = [lines]
            while paragraphs and all(INDENTED.match(line) for line in paragraphs[0].splitlines()):
                code.append(paragraphs.pop(0).splitlines())
            yield _example("\n\n".join("\n".join(part) for part in code))
        elif COLUMNS.match(lines[0]) and all(COLUMNS.match(line) or INDENTED.match(line) for line in lines):
            yield _listed(lines)
        else:
            yield _prose(lines)


def _prose(lines: list[str]) -> str:
    """A paragraph. It may be followed, without an empty line, by an example or by columns."""
    for number, line in enumerate(lines[1:], 1):
        if INDENTED.match(line) and not lines[0].startswith(("- ", "|")):
            return "\n".join(lines[:number]) + "\n\n" + "\n\n".join(_blocks("\n".join(lines[number:])))
    return "\n".join(lines)


def _example(code: str) -> str:
    shown = inspect.cleandoc("\n" + code)
    kind = (
        "python"
        if re.search(r"[()=]", shown) and not re.search(r"[─│├]|->\s|^\S+ {3,}", shown, re.MULTILINE)
        else "text"
    )
    return f"```{kind}\n{shown}\n```"


def _listed(lines: list[str]) -> str:
    entries: list[str] = []
    for line in lines:
        if found := COLUMNS.match(line):
            names = ", ".join(f"`{name}`" for name in found["names"].strip("`").split(", "))
            entries.append(f"- {names}: {found['meaning']}")
        else:
            entries[-1] += " " + line.strip()
    return "\n".join(entries)
