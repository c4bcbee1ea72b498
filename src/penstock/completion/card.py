"""Cards (the stored form of a name) and members (the entries that a search finds); see `card.lua`.

card     `fold 0x00 name`; or only the name if the server can fold it (ASCII)
tail     the fold from the beginning of a word to the end of the name; the first tail is the whole fold
member   `tail 0x00 name 0x00 id`; only `tail 0x00 name` if the name is its own id. A sorted set has them in byte order
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.completion.constants import PART, WORD
from penstock.completion.fold import fold
from penstock.completion.fold import words as words_of


class ParsedMember(NamedTuple):
    tail: str
    name: str
    id: str


def card(name: str, *, accents: bool, words: bool = False) -> bytes:
    """The card of a name. With `words`, 0x01 marks the beginning of each word in its fold but the first."""
    folded = fold(name, accents=accents)
    marked = _mark_words(folded) if words else folded
    if marked == (name.lower() if name.isascii() else name):
        return name.encode()
    return marked.encode() + PART + name.encode()


def _mark_words(folded: str) -> str:
    starts = [start for start, _ in words_of(folded) if start]
    return WORD.decode().join(folded[a:b] for a, b in zip([0, *starts], [*starts, None], strict=True))


def members(card: bytes, id: str) -> list[bytes]:
    """The members of a card; the first is that of the whole fold. `id`: "" if the name is its own id."""
    fold, separator, name = card.partition(PART)
    if not separator:
        fold, name = card.lower(), card
    rest = PART + name + (PART + id.encode() if id else b"")
    starts = [0, *(position + 1 for position, byte in enumerate(fold) if byte == 1)]
    return [fold[start:].replace(WORD, b"") + rest for start in starts]


def card_name(card: bytes) -> str:
    return card.rpartition(PART)[2].decode(errors="replace")


def name_and_id(member: bytes) -> tuple[str, str]:
    """Never raises, even for stored bytes that a person wrote by hand."""
    name, _, id = member.partition(PART)[2].decode(errors="replace").partition(PART.decode())
    return name, id or name


def parse_member(member: bytes) -> ParsedMember:
    """Never raises."""
    return ParsedMember(member.partition(PART)[0].decode(errors="replace"), *name_and_id(member))
