"""Names that go into a directory, and entries that come out."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Self, TypeAlias

from penstock.completion.card import name_and_id
from penstock.completion.fold import check_name
from penstock.errors import BadName

NameLike: TypeAlias = str | tuple[str, str] | tuple[str, str, float]
"""A name that is its own id, a pair of name and id, or a triple of name, id and weight."""


class NewName(NamedTuple):
    """A name to store. `id` equals `name` for a name that is its own id."""

    name: str
    id: str
    weight: float | None = None

    @classmethod
    def of(cls, name: str, id: str | None = None, weight: float | None = None) -> Self:
        """Raises BadName. `id`: None if the name is its own id."""
        check_name(name)
        own = name if id is None else check_name(id, "id")
        return cls(name, own, None if weight is None else check_weight(weight))

    @classmethod
    def parse(cls, value: NameLike) -> Self:
        """Raises BadName, also for a value of another form."""
        match value:
            case str():
                return cls.of(value)
            case (name, id):
                return cls.of(name, id)
            case (name, id, int() | float() as weight):
                return cls.of(name, id, weight)
            case _:
                raise BadName(f"{value!r} is neither a name, nor a pair of name and id, nor these and a weight")


def check_weight(weight: float) -> float:
    """Raises BadName."""
    if not 0 <= weight < math.inf:
        raise BadName(f"weight {weight!r}: a number from 0 up")
    return float(weight)


@dataclass(frozen=True, slots=True)
class Entry:
    """A name of a directory and its id."""

    name: str
    id: str
    _member: bytes = field(default=b"", compare=False, repr=False)

    @property
    def cursor(self) -> str:
        """A text for `complete(after=…)`, which then returns the page that follows this entry."""
        return base64.urlsafe_b64encode(self._member).decode()


def entries(members: Iterable[bytes]) -> list[Entry]:
    """The entries of these members of the index."""
    return [Entry(*name_and_id(member), member) for member in members]


def member_of(after: str | Entry) -> bytes:
    """The member of an entry or of its cursor. Raises BadName."""
    try:
        member = after._member if isinstance(after, Entry) else base64.urlsafe_b64decode(after)
    except (binascii.Error, ValueError):
        member = b""
    if not member:
        raise BadName(f"complete(after={after!r}): not an entry of a page, nor its cursor")
    return member
