"""The texts by which a name is found: its fold, and further spellings of it.

- Without accents, a name with a letter of the table of equivalents is found by both: `Müller` by `mueller` and by
  `muller`. With accents, the fold with replaced letters is enough, because `mü` is replaced in the query too.
- With initials, a Korean name is found by the first consonants of its syllables: 정보관리 by ㅈㅂㄱㄹ.
- A Chinese name is found by its pinyin (`zhangwei`, `zhang wei`) and by its initials (`zw`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any
from unicodedata import category, normalize

from penstock.completion.fold import NEWEST_FOLD, Equivalents, fold
from penstock.core.arguments import shown
from penstock.errors import BadName, ConfigurationError

MAX_EQUIVALENTS = 64
MAX_REPLACEMENT = 4
"""Letters that replace one letter."""

MAX_READINGS = 3
"""How many readings of a name are indexed, if its first character has several."""

_HAN = re.compile("[\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")


@dataclass(frozen=True)
class Spelling:
    """How names are spelled for the index. `equivalents`: as `encode_equivalents` returns it."""

    accents: bool = True
    equivalents: str = ""
    pinyin: bool = False
    apostrophes: bool = True
    initials: bool = False
    version: int = NEWEST_FOLD

    def fold(self, text: str) -> str:
        """The fold of a name or of a query."""
        if text.isalnum() and text.isascii() and not self.equivalents:  # most queries, and most ids
            return text.lower()
        return fold(
            text,
            accents=self.accents,
            apostrophes=self.apostrophes,
            equivalents=_table(self.equivalents) if self.equivalents else None,
            version=self.version,
        )

    def texts(self, name: str) -> list[str]:
        """All texts by which a name is found, the fold first, each once."""
        texts = [self.fold(name)]
        if not (self.equivalents or self.pinyin or self.initials):
            return texts
        if self.equivalents and not self.accents:
            texts.append(replace(self, equivalents="").fold(name))
        if self.initials and (initials := initial_consonants(name)):
            texts.append(self.fold(initials))
        if self.pinyin and any(map(is_han, name)):
            texts += (self.fold(text) for text in pinyin_texts(name))
        return list(dict.fromkeys(texts))


@lru_cache(maxsize=64)
def _table(encoded: str) -> Equivalents:
    return Equivalents(tuple(_pairs(encoded)))


def _pairs(encoded: str) -> list[tuple[str, str]]:
    return [(letter, replacement) for letter, _, replacement in (pair.partition(":") for pair in encoded.split(","))]


def encode_equivalents(table: Mapping[str, str]) -> str:
    """A table of equivalents as a text such as `ü:ue,ё:е`, sorted. Raises BadName for a table that cannot be used."""
    if not isinstance(table, Mapping):
        raise BadName(f"equivalents={shown(table)}: a table of letters, as in {{'ü': 'ue'}}")
    folded: dict[str, str] = {}
    for letter, replacement in table.items():
        pair = f"equivalents {letter!r}: {replacement!r}"
        if not (_is_word(letter) and len(fold(letter, accents=False)) == 1):
            raise BadName(f"{pair}: replace one letter by others, as in {{'ü': 'ue'}}")
        if not (_is_word(replacement) and len(replacement) <= MAX_REPLACEMENT):
            raise BadName(f"{pair}: replace the letter by 1 to {MAX_REPLACEMENT} letters")
        folded[fold(letter)] = fold(replacement)
    for letter, replacement in folded.items():
        if again := [other for other in folded if other in replacement]:
            raise BadName(
                f"equivalents {letter!r}: {replacement!r}: {again[0]!r} is replaced itself; use its replacement"
            )
    if len(folded) > MAX_EQUIVALENTS:
        raise BadName(f"{len(folded)} equivalents: at most {MAX_EQUIVALENTS}")
    return normalize("NFC", ",".join(f"{letter}:{replacement}" for letter, replacement in sorted(folded.items())))


def _is_word(text: object) -> bool:
    return isinstance(text, str) and bool(text) and all(category(char)[0] in "LM" for char in text)


_SYLLABLES = re.compile("[\uac00-\ud7a3]")


def initial_consonants(name: str) -> str:
    """A name with the first consonant instead of each Korean syllable; "" if it has none."""
    composed = normalize("NFC", name)
    found = _SYLLABLES.sub(lambda syllable: normalize("NFD", syllable[0])[0], composed)
    return found if found != composed else ""


def is_han(char: str) -> bool:
    """Whether a character is a Chinese one, which has a pinyin."""
    return bool(_HAN.match(char))


def pinyin_texts(name: str) -> list[str]:
    """The pinyin of a name in one piece and in words, and its initials. Other characters stay as they are."""
    texts: list[str] = []
    for syllables in pinyin_syllables(name):
        pairs = list(zip(name, syllables, strict=True))
        texts.append("".join(syllables))
        texts.append("".join(f" {syllable} " if is_han(char) else char for char, syllable in pairs))
        texts.append("".join(syllable[:1] if is_han(char) else char for char, syllable in pairs))
    return texts


def pinyin_syllables(name: str) -> list[tuple[str, ...]]:
    """The pinyin of a name in each spelling: for each of its characters a syllable, or the character if it has none.

    The syllable of 吕 is written lü, lv or lu; a query finds each. Of the readings of the first character, which is
    often that of a surname, the first three count. Needs `penstock[pinyin]`.
    """
    pypinyin = _pypinyin()
    usual: list[str] = pypinyin.lazy_pinyin(name, errors=list)
    (several,) = pypinyin.pinyin(name[0], style=pypinyin.Style.NORMAL, heteronym=True, errors=list)[:1]
    first = list(dict.fromkeys([usual[0], *several]))[:MAX_READINGS]
    readings = [(one, *usual[1:]) for one in first]
    return list(dict.fromkeys(tuple(s.replace("v", vowel) for s in reading) for vowel in "vuü" for reading in readings))


def require_pinyin() -> None:
    """Raises ConfigurationError if pypinyin is not installed."""
    _pypinyin()


def _pypinyin() -> Any:
    try:
        import pypinyin
    except ImportError:
        raise ConfigurationError("directory(pinyin=True) needs pypinyin: pip install 'penstock[pinyin]'") from None
    return pypinyin
