"""A name and what it is found by, as the server keeps it: see card.lua."""

from __future__ import annotations

from typing import NamedTuple

from penstock.completion.fold import fold
from penstock.completion.fold import words as words_of


class Member(NamedTuple):
    """One entry of a directory's order: what of the fold the name is found by, the name, its id."""

    tail: str
    name: str
    id: str


def card(name: str, *, accents: bool, words: bool = False) -> bytes:
    """The fold and the name, or the name alone where the server can fold it."""
    folded = fold(name, accents=accents)
    marked = _marked(folded) if words else folded
    if marked == (name.lower() if name.isascii() else name):
        return name.encode()
    return f"{marked}\0{name}".encode()


def _marked(folded: str) -> str:
    """0x01 before each word but one that begins the name."""
    starts = [start for start, _ in words_of(folded) if start]
    return "\1".join(folded[a:b] for a, b in zip([0, *starts], [*starts, None], strict=True))


def members(card: bytes, id: str) -> list[bytes]:
    """Under what a card stands in the order of a directory, the whole fold first; `id` "": the name is its own."""
    fold, cut, name = card.partition(b"\0")
    if not cut:
        fold, name = card.lower(), card
    rest = b"\0" + name + (b"\0" + id.encode() if id else b"")
    starts = [0, *(place + 1 for place, byte in enumerate(fold) if byte == 1)]
    return [fold[start:].replace(b"\1", b"") + rest for start in starts]


def name_of(card: bytes) -> str:
    return card.rpartition(b"\0")[2].decode(errors="replace")


def shown(member: bytes) -> tuple[str, str]:
    """The name and the id of a member. Never raises: what is kept may have been written by hand."""
    name, _, id = member.partition(b"\0")[2].decode(errors="replace").partition("\0")
    return name, id or name


def read(member: bytes) -> Member:
    """All of it. Never raises."""
    return Member(member.partition(b"\0")[0].decode(errors="replace"), *shown(member))
