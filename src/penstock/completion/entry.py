"""Names to store in a directory, and the entries that it returns."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Self, TypeAlias

import msgspec

from penstock.completion.card import split_elements
from penstock.completion.fold import check_name
from penstock.core.arguments import is_number, shown
from penstock.errors import BadName, PayloadTooLarge

NameLike: TypeAlias = str | tuple[str, str] | tuple[str, str, float | None] | tuple[str, str, float | None, str | bytes]
"""A name that is its own id, or a tuple of name and id, to which a weight and a payload may be added."""

Spans: TypeAlias = tuple[tuple[int, int], ...]

MAX_PAYLOAD = 1024
"""The largest payload of an entry, in bytes."""

MAX_WEIGHT = 1e18
"""No weight is higher, so that a sum of weights never becomes infinite."""


class NewName(NamedTuple):
    """A name to store. `id` equals `name` for a name that is its own id. None: keep what the id has."""

    name: str
    id: str
    weight: float | None = None
    payload: bytes | None = None

    @classmethod
    def of(
        cls, name: str, id: str | None = None, weight: float | None = None, payload: str | bytes | None = None
    ) -> Self:
        """Raises BadName and PayloadTooLarge. `id`: None if the name is its own id."""
        check_name(name)
        own = name if id is None else check_name(id, "id")
        return cls(name, own, None if weight is None else check_weight(weight), check_payload(payload))

    @classmethod
    def parse(cls, value: NameLike) -> Self:
        """Raises as `of`, and BadName for a value of another form."""
        match value:
            case str():
                return cls.of(value)
            case (name, id):
                return cls.of(name, id)
            case (name, id, None | int() | float() as weight):
                return cls.of(name, id, weight)
            case (name, id, None | int() | float() as weight, None | str() | bytes() as payload):
                return cls.of(name, id, weight, payload)
            case _:
                raise BadName(
                    f"{value!r} is neither a name, nor a tuple of name and id and perhaps a weight and a payload"
                )


def check_weight(weight: float) -> float:
    """Raises BadName."""
    if not is_number(weight, 0, MAX_WEIGHT):
        raise BadName(f"weight {shown(weight)}: a number from 0 up, at most {MAX_WEIGHT:.0e}")
    return float(weight)


def check_increment(by: float) -> float:
    """Raises BadName."""
    if not is_number(by, -MAX_WEIGHT, MAX_WEIGHT):
        raise BadName(f"bump(by={shown(by)}): a number from {-MAX_WEIGHT:.0e} to {MAX_WEIGHT:.0e}")
    return float(by)


def check_payload(payload: str | bytes | None) -> bytes | None:
    """The payload as bytes. Raises BadName and PayloadTooLarge."""
    if payload is None:
        return None
    if not isinstance(payload, str | bytes):
        raise BadName(f"payload of type {type(payload).__name__}: bytes or a str; encode a value, for example as JSON")
    try:
        encoded = payload.encode() if isinstance(payload, str) else payload
    except UnicodeEncodeError:
        raise BadName("payload: half a character (a lone surrogate) cannot be stored; pass bytes") from None
    if len(encoded) > MAX_PAYLOAD:
        raise PayloadTooLarge(
            f"payload of {len(encoded):,} bytes, the limit is {MAX_PAYLOAD:,}: store it elsewhere, and a reference to "
            "it here"
        )
    return encoded


def weight_change(weight: float | None) -> str:
    """The change that sets a weight, or for None leaves it unchanged, in the form of `facts.lua`."""
    return "" if weight is None else f"={weight!r}"


def payload_change(payload: bytes | None) -> bytes:
    return b"" if payload is None else b"=" + payload


class FoundElement(msgspec.Struct, frozen=True):
    """An element of the index, with the weight and the payload of its name."""

    element: bytes
    weight: float = 0.0
    payload: bytes | None = None


class Entry(msgspec.Struct, frozen=True, eq=False, gc=False):  # a dataclass takes ten times as long to make
    """A name of a directory and its id, with its weight and payload.

    weight   0 if it has none
    payload  None if it has none; a str that was stored comes back as its UTF-8 bytes
    """

    name: str
    id: str
    weight: float = 0.0
    payload: bytes | None = None
    _element: bytes = b""
    _find_spans: Callable[[str], Spans] | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Entry) and self._shown() == other._shown()

    def __hash__(self) -> int:
        return hash(self._shown())

    def __repr__(self) -> str:
        return f"Entry(name={self.name!r}, id={self.id!r}, weight={self.weight!r}, payload={self.payload!r})"

    def _shown(self) -> tuple[str, str, float, bytes | None]:
        return self.name, self.id, self.weight, self.payload

    @property
    def cursor(self) -> str:
        """A text for `complete(after=…)`, which then returns the page that follows this entry."""
        return encode_cursor(self._element)

    @property
    def matched(self) -> Spans:
        """The pieces of `name` that the query matched, as pairs of start and end, for `name[start:end]`."""
        return self._find_spans(self.name) if self._find_spans else ()

    def pieces(self) -> list[tuple[str, bool]]:
        """The name in pieces, each with whether the query matched it; for a page that marks the matched letters.

        Escape each piece before you put it into HTML.
        """
        pieces, at = [], 0
        for start, end in self.matched:
            pieces += [(self.name[at:start], False), (self.name[start:end], True)]
            at = end
        pieces.append((self.name[at:], False))
        return [piece for piece in pieces if piece[0]]


class EntryPage(list[Entry]):
    """The entries that `complete` and `top` return, and where the next page begins.

    cursor  for `complete(after=…)`, which returns what follows; None if nothing follows. A page with a
            cursor may have fewer entries than asked for: the search stopped after it had compared many names
    """

    __slots__ = ("_last",)

    def __init__(self, entries: Iterable[Entry] = (), last: bytes = b"") -> None:
        list.__init__(self, entries)
        self._last = last

    @property
    def cursor(self) -> str | None:
        """Where the next page begins, for `complete(after=…)`; None if nothing follows."""
        return encode_cursor(self._last) if self._last else None


def entries_of(elements: Sequence[FoundElement], find_spans: Callable[[str], Spans]) -> list[Entry]:
    """The entries of these elements of the index."""
    texts = split_elements([one.element for one in elements])
    return [
        Entry(text[1], text[-1] or text[1], one.weight, one.payload, one.element, find_spans)
        for text, one in zip(texts, elements, strict=True)
    ]


def plain_entries(elements: Sequence[bytes], find_spans: Callable[[str], Spans]) -> list[Entry]:
    """The entries of elements of a directory in which no name has a weight or a payload."""
    return [
        Entry(text[1], text[-1] or text[1], 0.0, None, element, find_spans)
        for text, element in zip(split_elements(elements), elements, strict=True)
    ]


def encode_cursor(element: bytes) -> str:
    return base64.urlsafe_b64encode(element).decode()


def element_of(after: str | Entry) -> bytes:
    """The element of an entry or of its cursor. Raises BadName."""
    try:
        element = after._element if isinstance(after, Entry) else base64.urlsafe_b64decode(after)
    except (binascii.Error, ValueError, TypeError):
        element = b""
    if not element:
        raise BadName(f"complete(after={shown(after)}): not an entry of a page, nor its cursor")
    return element
