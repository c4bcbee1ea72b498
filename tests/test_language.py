"""The language of the project: retired words do not come back, and sentences read at first sight.

CONTRIBUTING.md has the rules and the glossary. This file checks what a program can: words that the glossary retires, in
prose and in names, and markers of sentences that a reader has to read twice. A unit of prose is a docstring, a run of
comments, or a paragraph of a document.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ("src", "tests", "examples", "benchmarks")
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "docs")

# A retired word or phrase -> what to write instead.
RETIRED = {
    r"\btold\b|\btells?\b(?! apart)|\btelling\b": "report, notify, return, name",
    r"\b(?:for|of|by|to|with|from|and|but|as|than|where) who\b": "a noun before `who`",
    r"\bwhom\b": "a noun",
    r"\bgo(?:es|ing)? on\b|\bwent on\b|\bgone on\b": "continue, resume",
    r"\b(?:is|are|was|were) none\b": "does not exist, has no …",
    r"\b(?:lie|lies|lay|lying) (?:down|still|there)\b": "register as idle, wait",
    r"\bmourn\w*|\bblameless\b|\bexhume\w*|\bgraves?\b|\bstrangers?\b": "the glossary's word",
    r"\b(?:look|looks|looked|looking) in\b": "inspect",
    r"\b(?:bring|brings|brought|come|comes|came|take|takes|took) along\b": "include, carry",
    r"\btall(?:y|ies)\b": "counters",
    r"\bcrews?\b": "workers, processes",
    r"\bin hand\b": "claimed",
    r"\bglances?\b|\bstirs?\b": "check, wake-up",
    r"\ba lot of\b|\blots? of\b|\bin lots\b|\beach lot\b": "a batch, many",
    r"\b(?:no|any) \w+ of (?:ours|theirs|its own)\b": "say whose plainly",
    r"\bsays? so\b|\bsaid so\b": "report",
    r"\blet go of\b|\blets go of\b": "release",
    r"\bthe books\b": "the counters",
}

# Words of names: any part of an identifier between underscores or capitals.
RETIRED_NAMES = {
    "blameless",
    "crew",
    "exhume",
    "glance",
    "graves",
    "hatchery",
    "logbook",
    "lot",
    "lots",
    "mourn",
    "moves",
    "shelf",
    "shelves",
    "stir",
    "stranger",
    "strangers",
    "tell",
    "tells",
    "told",
    "whom",
}

# Markers of a sentence that is read twice: a clause without its noun, or a fragment.
MARKERS = (
    r"(?:^|[.;:] )Who (?!.*\?)",
    r"(?:^|[.;:] )What (?!.*\?)",
    r"(?:^|[.;:] )(?:The same|Of it|Of them|Of these|Of those|So it|So many)\b",
    r"\bstands? (?:in|on|at|there|beside|behind|before|above|below)\b",
    r"\b(?:and|but|or|for|of|to|that|if|when|until|as|where) who\b",
    r"\b(?:anybody|nobody|somebody|everybody)\b",
    r"\b(?:comes?|came) (?:by itself|anew|again)\b|\banew\b",
    r"\bnot any more\b|\bno more than\b|\bas it is\b|\bas they are\b",
    r"\bit is so\b|\bthat is so\b|\bis so\b",
)
MOST_MARKED = 0.02

CATALOGUE_ROW = re.compile(r"^ {4}(?:\w+\.(?:py|lua)(?:, )?)+(?= {2,}|$)", re.MULTILINE)
"""The names at the start of a row of a catalogue of modules; each row is a unit."""


class Unit(NamedTuple):
    """One piece of prose and where it begins."""

    place: str
    text: str


def python_units(path: str, source: str) -> Iterator[Unit]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            for row in CATALOGUE_ROW.split(node.value.value):
                yield Unit(f"{path}:{node.lineno}", _flat(row))
    comments = [
        token for token in tokenize.generate_tokens(io.StringIO(source).readline) if token.type == tokenize.COMMENT
    ]
    yield from _runs(path, [(token.start[0], token.string.lstrip("#")) for token in comments])


def lua_units(path: str, source: str) -> Iterator[Unit]:
    """Comments; not the lines with three dashes, which the cutter reads."""
    lines = enumerate(source.splitlines(), 1)
    found = [(number, line.partition("--")[2]) for number, line in lines if re.search(r"(?<!-)--(?!-)", line)]
    yield from _runs(path, found)


def document_units(path: str, source: str) -> Iterator[Unit]:
    """Paragraphs, list items and table rows; without code blocks."""
    prose = re.sub(
        r"^( *)```.*?^\1```$", lambda block: "\n" * block[0].count("\n"), source, flags=re.DOTALL | re.MULTILINE
    )
    line = 1
    for block in re.split(r"(\n\s*\n|\n(?=\s*(?:[-*|#]|\d+\.)))", prose):
        if block.strip():
            yield Unit(f"{path}:{line}", _flat(block))
        line += block.count("\n")


def _runs(path: str, comments: list[tuple[int, str]]) -> Iterator[Unit]:
    """Comments in lines that follow one another are one unit."""
    start, texts, last = 0, list[str](), -1
    for number, text in comments:
        if number != last + 1 and texts:
            yield Unit(f"{path}:{start}", _flat(" ".join(texts)))
            texts = []
        if not texts:
            start = number
        texts.append(text)
        last = number
    if texts:
        yield Unit(f"{path}:{start}", _flat(" ".join(texts)))


def _flat(text: str) -> str:
    """In one line, without what is code."""
    return " ".join(re.sub(r"``[^`]*``|`[^`\n]*`|\"[^\"]*\"", "`…`", text).split())


def retired_words(unit: Unit) -> list[str]:
    return [
        f"{unit.place}: {found[0]!r}: write {instead}"
        for pattern, instead in RETIRED.items()
        for found in re.finditer(pattern, unit.text, re.IGNORECASE)
    ]


def is_marked(unit: Unit) -> bool:
    return any(re.search(pattern, unit.text) for pattern in MARKERS)


def retired_names(path: str, source: str) -> list[str]:
    """Names that are defined here: of functions, classes, parameters and what is assigned."""
    faults = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
                | ast.arg(arg=name)
            ):
                pass
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                pass
            case _:
                continue
        words = {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}
        faults += [f"{path}:{node.lineno}: {name}: {word!r} is retired" for word in sorted(words & RETIRED_NAMES)]
    return faults


# --- the project's texts ---


def _paths(*roots: str) -> list[Path]:
    found = [
        path for root in roots for path in ([ROOT / root] if (ROOT / root).is_file() else (ROOT / root).rglob("*"))
    ]
    return sorted(path for path in found if path.suffix in {".py", ".lua", ".md"} and path != Path(__file__))


READ = {".py": python_units, ".lua": lua_units, ".md": document_units}
TEXTS = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in _paths(*SOURCES, *DOCUMENTS)}


@pytest.mark.parametrize("path", TEXTS)
def test_no_retired_word_comes_back(path: str):
    units = READ[Path(path).suffix](path, TEXTS[path])
    assert [fault for unit in units for fault in retired_words(unit)] == []


@pytest.mark.parametrize("path", [path for path in TEXTS if path.endswith(".py")])
def test_no_retired_name_comes_back(path: str):
    assert retired_names(path, TEXTS[path]) == []


def test_sentences_read_at_first_sight():
    units = [
        unit
        for path, text in TEXTS.items()
        if not path.startswith("tests/")
        for unit in READ[Path(path).suffix](path, text)
    ]
    marked = [f"{unit.place}: {unit.text[:100]}" for unit in units if is_marked(unit)]
    assert len(marked) <= MOST_MARKED * max(1, len(units)), marked


# --- texts with faults ---


@pytest.mark.parametrize(
    "text",
    [
        "The reader is told.",
        "For who was refused.",
        "Nobody goes on here.",
        "What a name in it is none.",
        "They lie down.",
    ],
)
def test_a_retired_word_is_found(text: str):
    assert retired_words(Unit("x", text))


def test_a_good_sentence_has_no_fault():
    unit = Unit("x", "A stopping worker deregisters as idle, so that wake-ups reach workers that can take a job.")
    assert retired_words(unit) == []
    assert not is_marked(unit)


@pytest.mark.parametrize("text", ["Who stops rises.", "It waits. What was sent counts.", "The same for a semaphore."])
def test_a_marked_sentence_is_found(text: str):
    assert is_marked(Unit("x", text))


def test_prose_is_found_in_every_kind_of_file():
    source = '"""One\ntwo."""\nx = 1  # three\n# four\n'
    assert [unit.text for unit in python_units("a.py", source)] == ["One two.", "three four"]
    assert [unit.text for unit in lua_units("a.lua", "-- one\n--- keys: a\nlocal x = 1 -- two\n")] == ["one", "two"]
    document = "One\ntwo.\n\n```\ncode told\n```\n- three `told`\n- four\n"
    assert [unit.text for unit in document_units("a.md", document)] == ["One two.", "- three `…`", "- four"]


def test_a_retired_name_is_found():
    found = retired_names("a.py", "def tell_them(told):\n    crew = 1\n    self.lots = 2\nclass ShelfOne: ...\n")
    assert {fault.split(": ")[1] for fault in found} == {"ShelfOne", "tell_them", "told", "crew", "lots"}
    assert retired_names("a.py", "def plot(ballots): ...") == []
