"""Cards (the stored form of a name) and elements (the entries that a search finds); see `card.lua`.

text     a fold of the name, cut after 512 bytes; a name has several if it can be typed in several ways
tail     256 bytes of a text, or fewer, from its beginning or that of a word
keys     the texts, separated by 0x04; if there are several tails, 0x01 marks the beginning of each
card     `keys 0x00 name`; or only the name if the server can make the keys of it (ASCII)
element  `tail 0x00 name 0x00 id 0x01 keys`, where the id is empty if the name is its own id. If there is only one tail,
         the keys are left out, and so is an empty id. A sorted set has the elements in byte order
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.completion.constants import FIELD, TEXT, WORD
from penstock.completion.fold import TAIL_BYTES, cut, tail_starts

_MARK = WORD.decode()


class ParsedElement(NamedTuple):
    tail: str
    name: str
    id: str


def card(name: str, texts: Sequence[str], *, words: bool = False) -> bytes:
    """The card of a name. With `words`, each word of its texts begins a tail."""
    texts = [cut(text, 2 * TAIL_BYTES) for text in texts]
    if len(texts) == 1:
        keys = texts[0]
        if words and (marked := mark_words(keys)).count(_MARK) > 1:
            keys = marked
    else:
        keys = TEXT.decode().join(map(mark_words, texts) if words else (_MARK + text for text in texts))
    if keys == (name.lower() if name.isascii() else name):
        return name.encode()
    return keys.encode() + FIELD + name.encode()


def mark_words(text: str) -> str:
    """The text with 0x01 at its beginning and before each further word."""
    starts = tail_starts(text)
    return "".join(_MARK + text[a:b] for a, b in zip(starts, [*starts[1:], None], strict=True))


def elements(card: bytes, id: str) -> list[bytes]:
    """The elements of a card; the first is that of the whole fold. `id`: "" if the name is its own id."""
    keys, separator, name = card.partition(FIELD)
    if not separator:
        keys, name = card.lower(), card
    if WORD not in keys:
        return [keys[:TAIL_BYTES] + FIELD + name + (FIELD + id.encode() if id else b"")]
    rest = FIELD + name + FIELD + id.encode() + WORD + keys
    return [
        b"".join(pieces[start:])[:TAIL_BYTES] + rest
        for pieces in (text.split(WORD) for text in keys.split(TEXT))
        for start in range(1, len(pieces))
    ]


def card_size(card: bytes, id: str) -> int:
    """An upper limit of the bytes that the card and its elements take together."""
    return (len(card) + len(id)) * (1 + 2 * max(1, card.count(WORD)))


def card_name(card: bytes) -> str:
    return card.rpartition(FIELD)[2].decode(errors="replace")


def element_rest(element: bytes) -> bytes:
    """The name of an element and its id, as stored. Its payload is stored under this text."""
    return element.partition(WORD)[0].partition(FIELD)[2]


def name_and_id(element: bytes) -> tuple[str, str]:
    """Never raises, even for stored bytes that a person wrote by hand."""
    rest = element.partition(WORD)[0].partition(FIELD)[2]  # as in `element_rest`; a search does this for each entry
    name, _, id = rest.decode("utf-8", "replace").partition("\0")
    return name, id or name


def split_elements(elements: Sequence[bytes]) -> list[list[str]]:
    """A list for each element: its tail, its name, and its id unless that is the name. Never raises.

    If all of them have one tail, as most do, they are decoded together: a search does this for each entry of a page.
    """
    joined = b"\n".join(elements)
    if WORD not in joined:
        found = [text.split("\0", 2) for text in joined.decode("utf-8", "replace").split("\n")]
        if len(found) == len(elements) and min(map(len, found)) > 1:
            return found
    return [["", *name_and_id(element)] for element in elements]


def parse_element(element: bytes) -> ParsedElement:
    """Never raises."""
    tail = element.partition(FIELD)[0]  # it may end in the middle of a character
    return ParsedElement(tail.decode(errors="ignore" if len(tail) == TAIL_BYTES else "replace"), *name_and_id(element))
