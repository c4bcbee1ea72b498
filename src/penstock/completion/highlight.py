"""Where a name matches what a user typed, in positions of the name as it is displayed.

A fold is often longer or shorter than its name. So the name is folded piece by piece, and each letter of the fold
remembers its piece: a character with its marks, and with invisible characters. A piece that is matched in part, such as
한 by 하, is marked as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple
from unicodedata import combining

from penstock.completion.entry import Spans
from penstock.completion.fold import is_attached, is_separator, split_marks, stackable_marks, words
from penstock.completion.spelling import Spelling, is_han, pinyin_syllables


class Letter(NamedTuple):
    """A character of a fold, and where its piece starts and ends in the name."""

    char: str
    start: int
    end: int


def find_spans(name: str, typed: Sequence[str], spelling: Spelling, *, in_words: bool, typo: bool = False) -> Spans:
    """The parts of a name that the typed texts match, as pairs of start and end; () if nothing matches.

    in_words  a text may match at the beginning of any word
    typo      the text matches even with one typo
    """
    match = _match_with_typo if typo else _match
    for letters, starts in _spelled(name, spelling, in_words=in_words):
        text = "".join(letter.char for letter in letters)
        if spans := _match_all(text, starts, typed, match):
            return _joined((letters[start].start, letters[end - 1].end) for start, end in spans)
    return ()


def _spelled(name: str, spelling: Spelling, *, in_words: bool) -> Iterator[tuple[list[Letter], list[int]]]:
    """Each text of a name as letters, and the positions where a typed text may match."""
    plain = replace(spelling, equivalents="")
    for fold in (spelling.fold, plain.fold) if spelling.equivalents else (spelling.fold,):
        letters = _letters(_folded_pieces(name, spelling, fold))
        text = "".join(letter.char for letter in letters)
        yield letters, [0, *(start for start, _ in words(text) if start and in_words)]
    if spelling.pinyin and any(map(is_han, name)):
        for syllables in pinyin_syllables(name):
            for length in (None, 1):
                pieces = ((s[:length] if is_han(name[n]) else spelling.fold(s), n) for n, s in enumerate(syllables))
                letters = [Letter(char, n, n + 1) for piece, n in pieces for char in piece]
                yield letters, [n for n, letter in enumerate(letters) if not n or letter.start > letters[n - 1].start]


def _folded_pieces(name: str, spelling: Spelling, fold: Callable[[str], str]) -> Iterator[tuple[str, int, int]]:
    """The fold of each piece, with where the piece starts and ends; "" for a piece that is folded to a space."""
    has_letters = any(map(str.isalnum, name))  # else its signs are its fold
    for start, end in _pieces(name):
        piece = name[start:end]
        folded = fold(piece)
        if has_letters and spelling.version > 1 and is_separator(piece[0]):
            folded = folded if folded and combining(folded[0]) else ""  # a mark stays behind the space
        if not has_letters or spelling.apostrophes or folded != "'":
            yield folded, start, end


def _pieces(name: str) -> Iterator[tuple[int, int]]:
    start = 0
    for at in range(1, len(name) + 1):
        if at == len(name) or not is_attached(name[at]):
            yield start, at
            start = at


def _letters(pieces: Iterable[tuple[str, int, int]]) -> list[Letter]:
    """`pieces`: the fold of each piece with its start and end; the fold of a space has only its marks, if any."""
    letters: list[Letter] = []
    for folded, start, end in pieces:
        if not folded or combining(folded[0]):
            folded = " " + folded
        if folded[0] == " " and (not letters or letters[-1].char == " "):
            folded = folded[1:]
        letters += (Letter(char, start, end) for char in folded)
    return letters


Match = Callable[[str, int, str], int | None]


def _match_all(text: str, starts: Sequence[int], typed: Sequence[str], match: Match) -> list[tuple[int, int]]:
    """Where each typed text matches, each at a start of its own; [] if one does not match."""
    spans: list[tuple[int, int]] = []
    for one in sorted(typed, key=len, reverse=True):
        free = (start for start in starts if start not in {taken for taken, _ in spans})
        found = ((start, end) for start in free if (end := match(text, start, one)))
        if (span := next(found, None)) is None:
            return []
        spans.append(span)
    return spans


def _match(text: str, start: int, typed: str) -> int | None:
    """The end of the typed text at this position, with all marks of its last letter."""
    base, marks = split_marks(typed)
    if not base or not text.startswith(base, start):
        return None
    end = start + len(base)
    while end < len(text) and text[end] in stackable_marks():
        marks = marks.removeprefix(text[end])
        end += 1
    return None if marks else end


def _match_with_typo(text: str, start: int, typed: str) -> int | None:
    for length in (len(typed), len(typed) + 1, len(typed) - 1):
        if len(text) >= start + length and _is_one_slip(text[start : start + length], typed):
            return start + length
    return None


def _is_one_slip(one: str, other: str) -> bool:
    """Whether two texts differ by one letter that is added, missing, replaced, or swapped with its neighbour."""
    same = 0
    while same < min(len(one), len(other)) and one[same] == other[same]:
        same += 1
    rest, other_rest = one[same:], other[same:]
    return (
        rest[1:] in {other_rest, other_rest[1:]}
        or rest == other_rest[1:]
        or (rest[:2] == other_rest[1::-1] and rest[2:] == other_rest[2:])
    )


def _joined(spans: Iterable[tuple[int, int]]) -> Spans:
    """The spans in order, those that touch each other as one."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return tuple(joined)
