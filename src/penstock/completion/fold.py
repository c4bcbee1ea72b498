"""Names of people and groups in any script: which are accepted, and what makes two of them match.

`fold` is what completion compares instead of the name itself: decomposed, so that a prefix stays a prefix (`e` finds
`é`, 하 finds 한), without case, and the same for every Unicode form of a name.
"""

from __future__ import annotations

import re
from unicodedata import category, combining, normalize

from penstock.errors import BadName

LONGEST = 1024
"""Bytes of UTF-8 of a name, an id or a prefix. People's names end far below; an index is no place for texts."""

WORDS = 8
"""Word starts by which one name can be found."""

# Controls, line separators, halves of surrogate pairs: nobody means them in a name, and 0 and 1 are separators of ours.
_REFUSED = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")

# What Unicode calls default ignorable: joiners, marks of direction, variation selectors. Two names that differ in these
# alone look the same.
_UNSEEN = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff"
    "\U000e0000-\U000e0fff]"
)

# Full case folding leaves the two Turkish letters i apart from I and each other: İ has a dot of its own, ı is alone.
_TURKISH = re.compile("[iı]\u0307?")

_STROKES = str.maketrans({"ø": "o", "đ": "d", "ð": "d", "ħ": "h", "ł": "l", "ŧ": "t", "æ": "ae", "œ": "oe", "þ": "th"})


def fold(text: str, *, accents: bool = True) -> str:
    """What is compared: NFKD, full case folding, NFKD (Unicode 3.13, D146), less what cannot be seen, and one letter i.

    `accents` False drops accents and vowel points as well, and the strokes of letters such as ø and ł; signs that make
    another letter of a letter (Indic vowels, Thai tones, the voicing of kana) stay.
    """
    if text.isascii():
        return text.lower()
    cased = _TURKISH.sub("i", _UNSEEN.sub("", normalize("NFKD", text).casefold()))
    folded = normalize("NFKD", cased)
    return folded if accents else "".join(c for c in folded if not _is_accent(c)).translate(_STROKES)


def _is_accent(char: str) -> bool:
    """By canonical combining class: overlays; points of Hebrew, Arabic and Syriac; what stands above, below, beside."""
    place = combining(char)
    return place >= 200 or 10 <= place <= 36 or place == 1


def check(text: str, what: str) -> str:
    """The text if it can be kept, else BadName with the fix. `what` names it in the error."""
    if not isinstance(text, str):
        raise BadName(f"{what} {text!r}: a text is wanted, not a {type(text).__name__}")
    if found := _REFUSED.search(text):
        raise BadName(f"{what} {_short(text)} has a control character at {found.start()}: {found[0]!r}; take it out")
    if len(text) > LONGEST // 4 and (size := len(text.encode())) > LONGEST:
        raise BadName(f"{what} {_short(text)} has {size:,} bytes, the limit is {LONGEST:,}")
    return text


def check_name(name: str, what: str = "name") -> str:
    """As `check`, and there must be something to see."""
    check(name, what)
    if not name.strip() or not fold(name).strip():
        raise BadName(f"{what} {name!r} is empty: it needs a character that can be seen")
    return name


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "…")


def words(folded: str) -> list[tuple[int, int]]:
    """Where the words of a folded text begin and end, the first `WORDS` of them: what spaces and punctuation part."""
    spans: list[tuple[int, int]] = []
    start = None
    for place, char in enumerate(folded):
        if category(char)[0] in "ZP":
            if start is not None:
                spans.append((start, place))
            start = None
        elif start is None:
            start = place
    if start is not None:
        spans.append((start, len(folded)))
    return spans[:WORDS]


def tails(folded: str) -> list[str]:
    """A folded name from each of its words on, the whole of it first."""
    return [folded, *(folded[start:] for start, _ in words(folded) if start)]
