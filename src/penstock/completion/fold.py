"""Names of people and groups in any script: which names are accepted, and when two of them match.

Completion compares the *fold* of a name. The fold is decomposed, so that part of a character is a prefix of it (`e`
finds `é`, 하 finds 한). It has no case, and it is the same for every Unicode form of a name.
"""

from __future__ import annotations

import re
from unicodedata import category, combining, normalize

from penstock.errors import BadName

MAX_BYTES = 1024
"""The longest name, id or prefix, in UTF-8. Names of people are far shorter, and an index is not for long texts."""

MAX_WORDS = 8
"""How many words of a name are indexed. A search finds the name by the beginning of any of these words."""

# Controls, line separators and halves of surrogate pairs do not belong in a name. 0x00 to 0x03 are our own separators.
_REFUSED = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")

# Default ignorable code points of Unicode: joiners, direction marks, variation selectors. Two names that differ only in
# these look the same.
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff"
    "\U000e0000-\U000e0fff]"
)

# Full case folding does not make the Turkish letters İ and ı equal to i: İ becomes i and a dot, ı stays. This does.
_TURKISH_I = re.compile("[iı]\u0307?")

_STROKES = str.maketrans({"ø": "o", "đ": "d", "ð": "d", "ħ": "h", "ł": "l", "ŧ": "t", "æ": "ae", "œ": "oe", "þ": "th"})


def fold(text: str, *, accents: bool = True) -> str:
    """NFKD, full case folding, NFKD (Unicode 3.13, D146), without invisible characters, and with one letter i.

    With `accents=False` it also drops accents, vowel points, and the strokes of letters such as ø and ł. It keeps signs
    that turn a letter into another one: Indic vowels, Thai tones, the voicing of kana.
    """
    if text.isascii():
        return text.lower()
    cased = _TURKISH_I.sub("i", _INVISIBLE.sub("", normalize("NFKD", text).casefold()))
    folded = normalize("NFKD", cased)
    return folded if accents else "".join(c for c in folded if not _is_accent(c)).translate(_STROKES)


def _is_accent(char: str) -> bool:
    """Whether the canonical combining class is that of an overlay (1), of a point of Hebrew, Arabic or Syriac (10 to
    36), or of a mark above, below or beside a letter (200 and up)."""
    place = combining(char)
    return place >= 200 or 10 <= place <= 36 or place == 1


def check_storable(text: str, what: str) -> str:
    """Return the text, or raise BadName with the fix. `what` names it in the error."""
    if not isinstance(text, str):
        raise BadName(f"{what} {text!r}: a text is wanted, not a {type(text).__name__}")
    if found := _REFUSED.search(text):
        raise BadName(f"{what} {_short(text)} has a control character at {found.start()}: {found[0]!r}; take it out")
    if len(text) > MAX_BYTES // 4 and (size := len(text.encode())) > MAX_BYTES:
        raise BadName(f"{what} {_short(text)} has {size:,} bytes, the limit is {MAX_BYTES:,}")
    return text


def check_name(name: str, what: str = "name") -> str:
    """Like `check_storable`. The name must also have a visible character."""
    check_storable(name, what)
    if not name.strip() or not fold(name).strip():
        raise BadName(f"{what} {name!r} is empty: it needs a character that can be seen")
    return name


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "…")


def words(folded: str) -> list[tuple[int, int]]:
    """Start and end of the first `MAX_WORDS` words of a folded text. Spaces and punctuation separate words."""
    spans: list[tuple[int, int]] = []
    start = None
    for position, char in enumerate(folded):
        if category(char)[0] in "ZP":
            if start is not None:
                spans.append((start, position))
            start = None
        elif start is None:
            start = position
    if start is not None:
        spans.append((start, len(folded)))
    return spans[:MAX_WORDS]


def tails(folded: str) -> list[str]:
    """The whole fold of a name, then the rest of it from each later word."""
    return [folded, *(folded[start:] for start, _ in words(folded) if start)]
