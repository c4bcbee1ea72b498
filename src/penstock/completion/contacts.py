"""The contacts of a user: who was written to last, or most often, completed as one types."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeAlias

from penstock.completion.card import card, name_of
from penstock.completion.fold import check, check_name, fold
from penstock.completion.keys import ComponentKeys
from penstock.completion.name_rules import Shape, Shaped, answer
from penstock.core.keys import check_label
from penstock.core.operations import Arg, Driver, Operation, RoundTrip, verb
from penstock.core.scripts import Library

Order: TypeAlias = Literal["recency", "frequency"]
Names: TypeAlias = list[str]

MOST = 10_000
"""Contacts of one user: what a script can look through in a few slices."""


@cache
def scripts() -> Library:
    return Library("core/repeated.lua", "completion/shape.lua", "completion/contacts.lua")


@dataclass(frozen=True)
class ContactsShape(Shape):
    by: str = "recency"
    accents: bool = True


class Contacts(Shaped[ContactsShape]):
    """The last `limit` names a user had to do with, each once. Made by `app.contacts(name)`; costs nothing to make."""

    def __init__(
        self, name: str, driver: Driver, prefix: str, *, limit: int = 100, by: Order | None, accents: bool | None
    ) -> None:
        self.name = check_label("contacts", name)
        if not 1 <= limit <= MOST:
            raise ValueError(f"contacts(limit={limit}): from 1 to {MOST:,}")
        if by not in {None, "recency", "frequency"}:
            raise ValueError(f"contacts(by={by!r}): 'recency' or 'frequency'")
        super().__init__(f"contacts {name}", ContactsShape(), {"by": by, "accents": accents})
        self.limit = limit
        self._driver = driver
        self._keys = ComponentKeys(prefix, "contacts", name)

    def __repr__(self) -> str:
        return f"<Contacts {self.name}>"

    def _step(self, script: str, *args: Arg) -> RoundTrip[Any]:
        return RoundTrip(scripts()[script], self._keys.declared, args, lambda reply: reply)

    def _card(self, shape: ContactsShape, name: str) -> bytes:
        return card(name, accents=shape.accents)

    @verb
    def touch(self, name: str) -> Operation[None]:
        """This contact was used now: it comes first, or counts one use more; one above `limit` goes.

        Two names are one contact when their texts are equal. Raises BadName. One round trip; counts once, though it
        be sent twice.
        """
        check_name(name, "contact")

        def touched(shape: ContactsShape) -> Operation[None]:
            args = (shape.line, self.limit, self._card(shape, name))
            if shape.by == "recency":
                yield from answer(self._step("touch_recent", *args))
            else:
                yield from answer(self._step("touch_often", "", 0, *args))

        return self._with_shape(touched)

    @verb
    def remove(self, name: str) -> Operation[bool]:
        """Forget a contact. Whether it was there. Raises BadName. One round trip."""
        check_name(name, "contact")

        def removed(shape: ContactsShape) -> Operation[bool]:
            return bool((yield from answer(self._step("untouch", "", 0, shape.line, self._card(shape, name)))))

        return self._with_shape(removed)

    @verb
    def complete(self, prefix: str, limit: int = 10) -> Operation[Names]:
        """The names that begin so, best first: last used, or most used (of those the last used).

        A base letter finds its accented forms, a typed accent is respected; see the guide for the rules of matching.
        Raises BadName, ValueError for a limit that is not 1 to 1000. One round trip for each 1000 contacts looked at.
        """
        if not 1 <= limit <= 1000:
            raise ValueError(f"complete(limit={limit}): from 1 to 1000")
        return self._matching(check(prefix, "prefix"), limit)

    @verb
    def list(self) -> Operation[Names]:
        """All of them, best first. A round trip for each 1000."""
        return self._matching("", MOST)

    def _matching(self, prefix: str, limit: int) -> Operation[Names]:
        def matching(shape: ContactsShape) -> Operation[Names]:
            folded = fold(prefix, accents=shape.accents)
            found: dict[str, None] = {}  # a contact touched meanwhile may come twice
            offset = 0
            while offset >= 0 and len(found) < limit:
                step = self._step("contacts", shape.line, folded, offset, limit - len(found))
                offset, *cards = yield from answer(step)
                found.update(dict.fromkeys(map(name_of, cards)))
            return [*found][:limit]

        return self._with_shape(matching)
