"""Names of people and groups in any script: which names are accepted, and when two of them match.

Completion compares the *fold* of a name. The fold is decomposed, so that part of a character is a prefix of it (`e`
finds `é`, 하 finds 한). It has no case, one kind of apostrophe and of quote, one kana, and single spaces instead of
hyphens and dots. It is the same for every Unicode form of a name.

A Korean syllable is folded to the letters in the order in which they are typed. So a name is found at every key: 한, on
the way to 하나, is the beginning of both.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from unicodedata import category, combining, normalize

from penstock.errors import BadName

MAX_BYTES = 1024
"""The longest name, id or prefix, in UTF-8. Names of people are far shorter, and an index is not for long texts."""

MAX_WORDS = 8
"""The most words of a name that are indexed. A search finds the name by the beginning of any of these words."""

TAIL_BYTES = 256
"""How much of a fold is indexed, from the beginning of a word on, in UTF-8. Words that begin later are not indexed.

A fold may be eleven times as long as its name. Longer queries are cut, and what they find is compared in full.
"""

NEWEST_FOLD = 2
"""A directory keeps the fold with which it was made. Fold 1 does not change hyphens, dots, quotes, katakana, Korean
syllables and the Arabic tatweel."""

# Controls, line separators and halves of surrogate pairs do not belong in a name. 0x00 to 0x04 separate stored fields.
_REFUSED = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")

# Default ignorable code points of Unicode: joiners, direction marks, variation selectors. Two names that differ only in
# these look the same.
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff"
    "\U000e0000-\U000e0fff]"
)

# Full case folding does not make the Turkish letters İ and ı equal to i: İ becomes i and a dot, ı stays. This does.
_TURKISH_I = re.compile("[iı]\u0307?")

# Hyphens and dashes become -, spaces become one space, and characters that people type as an apostrophe become one:
# quotes, primes, accents without a letter, and the letters ʹ to ˈ. NFKD has replaced some others before.
_DASHES = (
    "\u02d7\u058a\u05be\u1400\u1806\u2010\u2011\u2012\u2013\u2014\u2015\u2043\u2053\u2212\u2e17\u2e1a\u2e3a\u2e3b"
    "\u2e40\u2e5d\u301c\u3030\u30a0\U00010d6e\U00010ead"
)
_APOSTROPHES = (
    "`\u02b9\u02bb\u02bc\u02bd\u02be\u02bf\u02c8\u055a\u05f3\u07f4\u07f5\u2018\u2019\u201b\u2032\u2035\ua78b\ua78c"
)
_SIGNS = str.maketrans({**dict.fromkeys(_DASHES, "-"), **dict.fromkeys(_APOSTROPHES, "'"), "\u1680": " "})
_SIGN = re.compile(f"[{_DASHES}{_APOSTROPHES}\u1680]")

# Since fold 2: quotes become one, the tatweel, which only makes a word longer, is dropped, and hyphens, dots and middle
# dots become spaces.
_QUOTES = "\u02ba\u05f4\u201c\u201d\u201e\u201f\u00ab\u00bb\u300c\u300d\u300e\u300f\u301d\u301e\u301f"
_SEPARATORS = "-.\u00b7\u2022\u2027\u2219\u22c5\u30fb"
_TATWEELS = "\u0640\u07fa"

# Katakana become hiragana. The letters of a Korean syllable become those of the keyboard: first consonants and simple
# vowels, in the code points of conjoining letters. A doubled consonant is one key; ㄳ and ㅘ are two.
_KATAKANA = {chr(0x60 + code): chr(code) for code in [*range(0x3041, 0x3097), 0x309D, 0x309E]}
_FIRST = {name: chr(0x1100 + n) for n, name in enumerate("ㄱㄲㄴㄷㄸㄹㅁㅂㅃㅅㅆㅇㅈㅉㅊㅋㅌㅍㅎ")}
_LAST = {name: chr(0x11A8 + n) for n, name in enumerate("ㄱㄲㄳㄴㄵㄶㄷㄹㄺㄻㄼㄽㄾㄿㅀㅁㅂㅄㅅㅆㅇㅈㅊㅋㅌㅍㅎ")}
_VOWELS = {name: chr(0x1161 + n) for n, name in enumerate("ㅏㅐㅑㅒㅓㅔㅕㅖㅗㅘㅙㅚㅛㅜㅝㅞㅟㅠㅡㅢㅣ")}
_TWO_KEYS = {"ㄳ": "ㄱㅅ", "ㄵ": "ㄴㅈ", "ㄶ": "ㄴㅎ", "ㄺ": "ㄹㄱ", "ㄻ": "ㄹㅁ", "ㄼ": "ㄹㅂ", "ㄽ": "ㄹㅅ"}
_TWO_KEYS |= {"ㄾ": "ㄹㅌ", "ㄿ": "ㄹㅍ", "ㅀ": "ㄹㅎ", "ㅄ": "ㅂㅅ"}
_TWO_KEYS |= {"ㅘ": "ㅗㅏ", "ㅙ": "ㅗㅐ", "ㅚ": "ㅗㅣ", "ㅝ": "ㅜㅓ", "ㅞ": "ㅜㅔ", "ㅟ": "ㅜㅣ", "ㅢ": "ㅡㅣ"}
_KEYS = {
    letter: "".join((_FIRST | _VOWELS)[key] for key in _TWO_KEYS.get(name, name))
    for name, letter in [*_LAST.items(), *_VOWELS.items()]
}
_LETTERS = str.maketrans({**dict.fromkeys(_QUOTES, '"'), **dict.fromkeys(_TATWEELS), **_KATAKANA, **_KEYS})
_SPACED = str.maketrans(dict.fromkeys(_SEPARATORS, " "))

# NFKD turns an acute accent without a letter, as in O´Brien, and the breathings of Greek, into a space and a mark.
_LONE_ACCENT = re.compile(" [\u0301\u0313\u0314]")

_VISIBLE = re.compile("[!-~]")  # a quick test that most names pass

_STROKES = str.maketrans({"ø": "o", "đ": "d", "ð": "d", "ħ": "h", "ł": "l", "ŧ": "t", "æ": "ae", "œ": "oe", "þ": "th"})


def fold(
    text: str,
    *,
    accents: bool = True,
    apostrophes: bool = True,
    equivalents: Equivalents | None = None,
    version: int = NEWEST_FOLD,
) -> str:
    """NFKD, full case folding, NFKD (Unicode 3.13, D146), without invisible characters, with one letter i, and with one
    kind of apostrophe, quote, kana and space.

    With `accents=False` it also drops accents, vowel points, and the strokes of letters such as ø and ł. It keeps signs
    that turn a letter into another one: Indic vowels, Thai tones, the voicing of kana. With `apostrophes=False` it
    drops apostrophes. `equivalents` replaces letters. A text that has only hyphens, dots or apostrophes keeps them.
    """
    folded = _fold(text, accents=accents, equivalents=equivalents, version=version)
    found = folded if apostrophes else folded.replace("'", "")
    if version > 1:
        found = found.replace("-", " ").replace(".", " ") if found.isascii() else found.translate(_SPACED)
    return " ".join(found.split()) or folded


def is_separator(char: str) -> bool:
    """Whether a character is folded to a space."""
    return bool(normalize("NFKD", char).translate(_SIGNS).translate(_SPACED) == " ")


def _fold(text: str, *, accents: bool, equivalents: Equivalents | None, version: int) -> str:
    if text.isascii():
        folded = " ".join(text.lower().split()).replace("`", "'")
        return equivalents.replace(folded) if equivalents else folded
    cased = _INVISIBLE.sub("", normalize("NFKD", text).casefold())
    if "ı" in cased or "i\u0307" in cased:
        cased = _TURKISH_I.sub("i", cased)
    folded = normalize("NFKD", cased)
    if _SIGN.search(folded):
        folded = folded.translate(_SIGNS)
    if version > 1:
        folded = folded.translate(_LETTERS)
    if " " in folded:
        folded = _LONE_ACCENT.sub("'", folded)
    if equivalents:
        folded = equivalents.replace(folded)
    if not accents:
        folded = "".join(c for c in folded if not _is_accent(c)).translate(_STROKES)
    return " ".join(folded.split())


class Equivalents:
    """Letters that are replaced in each fold, such as ü by ue: then both spellings find each other.

    `table`: pairs of a letter and its replacement.
    """

    def __init__(self, table: tuple[tuple[str, str], ...]) -> None:
        self._table = {fold(letter): fold(replacement) for letter, replacement in table}
        letters = sorted(self._table, key=len, reverse=True)
        self._letters = re.compile("|".join(map(re.escape, letters)))

    def replace(self, folded: str) -> str:
        return self._letters.sub(lambda found: self._table[found[0]], folded)


def _is_accent(char: str) -> bool:
    """Whether the canonical combining class is that of an overlay (1), of a point of Hebrew, Arabic or Syriac (10 to
    36), or of a mark above, below or next to a letter (200 and up)."""
    kind = combining(char)
    return kind >= 200 or 10 <= kind <= 36 or kind == 1


def is_attached(char: str) -> bool:
    """Whether a character belongs to the one before it: a mark, also in its half-width form, a tatweel, or an invisible
    character."""
    if char in _TATWEELS:
        return True
    decomposed = char if char.isascii() else _INVISIBLE.sub("", normalize("NFKD", char))
    return not decomposed or combining(decomposed[0]) > 0


def check_storable(text: str, what: str) -> str:
    """Return the text, or raise BadName with the fix. `what` names it in the error."""
    if not isinstance(text, str):
        raise BadName(f"{what} {text!r}: a str is needed, and this is of type {type(text).__name__}")
    if found := _REFUSED.search(text):
        raise BadName(f"{what} {_short(text)} has a control character at {found.start()}: {found[0]!r}; take it out")
    if len(text) > MAX_BYTES // 4 and (size := len(text.encode())) > MAX_BYTES:
        raise BadName(f"{what} {_short(text)} has {size:,} bytes, the limit is {MAX_BYTES:,}")
    return text


def check_name(name: str, what: str = "name") -> str:
    """Like `check_storable`. The name must also have a visible character."""
    check_storable(name, what)
    if not _VISIBLE.search(name) and not fold(name):
        raise BadName(f"{what} {name!r} is empty: it needs a character that can be seen")
    return name


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "…")


def words(folded: str) -> list[tuple[int, int]]:
    """Start and end of the first `MAX_WORDS` words of a folded text. Spaces and punctuation separate words.

    A mark belongs to the character before it, so it begins no word.
    """
    spans: list[tuple[int, int]] = []
    start = None
    for position, char in enumerate(folded):
        if category(char)[0] in "ZP":
            if start is not None:
                spans.append((start, position))
                if len(spans) == MAX_WORDS:
                    return spans
            start = None
        elif start is None and not combining(char):
            start = position
    if start is not None:
        spans.append((start, len(folded)))
    return spans


def cut(text: str, size: int = TAIL_BYTES) -> str:
    """The beginning of a text, of at most `size` bytes."""
    return text if len(text) <= size // 4 else text.encode()[:size].decode(errors="ignore")


class Typed:
    """A typed text, prepared for comparison with names. Raises BadName.

    words       whether a name may match each word on its own
    fold        the fold of the text
    texts       the texts that a name has to match: the folds of the words, or `fold` alone
    long_texts  those of them that are longer than what the index has of a name
    start       what the index has of `fold`, without the marks of the last letter
    marks       these marks
    """

    def __init__(self, text: str, fold: Callable[[str], str], *, words: bool = False) -> None:
        self.fold = fold(check_storable(text, "prefix"))
        self.texts = (typed_words(text, fold) if words else []) or [self.fold]
        self.long_texts = [text for text in self.texts if cut(text) != text]
        self.start, self.marks = split_marks(cut(self.fold))

    def texts_of(self, tail: str) -> list[str]:
        """The texts by which the index finds this tail."""
        return [text for text in self.texts if begins(tail, cut(text))]


def typed_words(text: str, fold: Callable[[str], str]) -> list[str]:
    """The folds of the first `MAX_WORDS` words of a query. Only spaces separate them: `o'br` and `jean-l` are one."""
    found = []
    for piece in map(fold, text.split()):
        if spans := words(piece):
            # Punctuation around a word does not belong to it; the last span may be the eighth of many.
            end = spans[-1][1] if len(spans) < MAX_WORDS else len(piece)
            found.append(piece[spans[0][0] : end])
    return found[:MAX_WORDS]


def tail_starts(folded: str) -> list[int]:
    """Where the tails of a fold begin: at 0, and at each later word that is indexed."""
    early = len(cut(folded))
    return [0, *(start for start, _ in words(folded) if 0 < start < early)]


def tails(folded: str) -> list[str]:
    """The whole fold of a name, then the rest of it from each later word."""
    return [folded[start:] for start in tail_starts(folded)]


@cache
def stackable_marks() -> str:
    """The marks of Latin, Greek, Cyrillic, Hebrew, Arabic and Syriac, of which a letter may have several."""
    return "".join(
        char for char in map(chr, range(0x300, 0x750)) if combining(char) and normalize("NFKD", char) == char
    )


def begins(tail: str, typed: str) -> bool:
    """Whether a tail begins with a typed text, whose last letter also finds letters with more marks."""
    base, marks = split_marks(typed)
    if not tail.startswith(base):
        return False
    end = len(base)
    while marks and end < len(tail) and tail[end] in stackable_marks():
        marks = marks.removeprefix(tail[end])
        end += 1
    return not marks


def split_marks(folded: str) -> tuple[str, str]:
    """A folded text without the marks of its last letter, and these marks."""
    if folded.isascii():
        return folded, ""
    end = len(folded)
    while end and folded[end - 1] in stackable_marks():
        end -= 1
    return (folded[:end], folded[end:]) if end else (folded, "")
