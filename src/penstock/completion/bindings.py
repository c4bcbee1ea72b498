"""The scripts of this folder as round trips: one class for each .lua file that holds scripts.

Argument order and reply shapes are written here and nowhere else. Nothing here sends anything. The answer of each round
trip may be OtherRules, which `checked` raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias, TypeVar

from penstock.completion.card import card, card_name
from penstock.completion.constants import OLD
from penstock.completion.entry import NewName
from penstock.completion.fold import fold
from penstock.completion.keys import CompletionKeys
from penstock.completion.name_rules import NameRules, OtherRules, or_other_rules
from penstock.core.idempotency import UNNUMBERED
from penstock.core.operations import Arg, RoundTrip
from penstock.core.scripts import Library

T = TypeVar("T")

Checked: TypeAlias = RoundTrip[T | OtherRules]


def _as_is(reply: Any) -> Any:
    return OtherRules(reply) if isinstance(reply, bytes) else reply


_whether = or_other_rules(bool)


@or_other_rules
def _nothing(reply: Any) -> None:
    return None


@cache
def contacts_scripts() -> Library:
    return Library(
        "core/idempotency.lua", "completion/name_rules.lua", "completion/card.lua", "completion/contacts.lua"
    )


@cache
def directory_scripts() -> Library:
    return Library(
        "core/batch.lua", "core/idempotency.lua",
        "completion/name_rules.lua", "completion/card.lua", "completion/rank.lua", "completion/directory.lua",
    )  # fmt: skip


class RuledBindings:
    """Calls of scripts that compare the rules, which are the first argument or follow the idempotency key."""

    def __init__(self, keys: CompletionKeys, rules: NameRules, library: Callable[[], Library]) -> None:
        self._declared = keys.declared
        self._encoded_rules = rules.encode()
        self._library = library

    def _call(self, script: str, *args: Arg, read: Callable[[Any], Any] = _as_is) -> RoundTrip[Any]:
        return RoundTrip(self._library()[script], self._declared, (self._encoded_rules, *args), read)

    def _numbered(self, script: str, *args: Arg, read: Callable[[Any], Any] = _as_is) -> RoundTrip[Any]:
        """A call that counts once, and returns the same answer, even if the driver sends it twice."""
        args = (*UNNUMBERED, self._encoded_rules, *args)
        return RoundTrip(self._library()[script], self._declared, args, read)


# --- contacts ---


@dataclass(frozen=True)
class ContactsRules(NameRules):
    by: str = "recency"
    accents: bool = True

    def fold(self, text: str) -> str:
        return fold(text, accents=self.accents)

    def card(self, name: str) -> bytes:
        return card(name, accents=self.accents)


class ContactsBindings(RuledBindings):
    """The round trips of one user's contacts, with given rules."""

    def __init__(self, keys: CompletionKeys, rules: ContactsRules) -> None:
        super().__init__(keys, rules, contacts_scripts)
        self.rules = rules

    def touch(self, name: str, limit: int) -> Checked[None]:
        """Record one use. Above `limit` contacts the last one is removed."""
        if self.rules.by == "recency":
            return self._call("touch_recent", limit, self.rules.card(name), read=_nothing)
        return self._numbered("touch_often", limit, self.rules.card(name), read=_nothing)

    def remove(self, name: str) -> Checked[bool]:
        """Remove a contact. Answers whether it was there."""
        return self._numbered("remove_contact", self.rules.card(name), read=_whether)

    def page(self, prefix: str, offset: int, limit: int) -> Checked[tuple[int, list[str]]]:
        """The next offset, or -1 at the end; and names that begin with `prefix`, best first.

        Searches the thousand contacts from `offset` on, and returns at most `limit` names.
        """
        return self._call("find_contacts", self.rules.fold(prefix), offset, limit, read=_contacts_page)


@or_other_rules
def _contacts_page(reply: Any) -> tuple[int, list[str]]:
    return reply[0], [card_name(found) for found in reply[1:]]


# --- directories ---


@dataclass(frozen=True)
class DirectoryRules(NameRules):
    """`shards` is the last field: the scripts test whether the encoded rules end with `shards=1`."""

    accents: bool = True
    words: bool = False
    shards: int = 1

    def fold(self, text: str) -> str:
        return fold(text, accents=self.accents)

    def card(self, name: str) -> bytes:
        return card(name, accents=self.accents, words=self.words)


class DirectoryBindings(RuledBindings):
    """The round trips of one directory in one slot: the whole directory, or one shard of it."""

    def __init__(self, keys: CompletionKeys, rules: DirectoryRules) -> None:
        super().__init__(keys, rules, directory_scripts)
        self.rules = rules

    # --- a directory in one slot ---

    def save(self, names: Sequence[NewName], *, existing_only: bool) -> Checked[int]:
        """Store names. Each replaces the name that its id had before. Answers how many were written.

        `existing_only`: skip ids that do not exist.
        """
        own = [self.rules.card(new.name) for new in names if new.id == new.name]
        rest: list[Arg] = []
        for name, id, _ in names:
            if id != name:
                rest += (self.rules.card(name), id, self.rules.card(id))
        return self._call("save", int(existing_only), len(own), *own, *rest)

    def remove(self, ids: Iterable[str]) -> Checked[int]:
        """Remove ids. Answers how many of them were there."""
        return self._numbered("remove", *(part for id in ids for part in (id, self.rules.card(id))))

    def set_weights(self, weights: Mapping[str, float]) -> Checked[int]:
        """Set the weights of ids; 0 removes one. Answers how many of the ids exist."""
        triples = (part for id, weight in weights.items() for part in (id, self.rules.card(id), weight))
        return self._call("set_weights", *triples)

    # --- changes of a directory with several shards ---

    def save_rules(self) -> Checked[Any]:
        return self._call("save_rules")

    def begin_changes(self, cards: Mapping[str, bytes]) -> Checked[dict[str, list[bytes]]]:
        """Register new cards with their ids. Answers the cards that each id had before.

        A card is b"" for a name that is its own id, and LEAVING for an id that is removed.
        """

        @or_other_rules
        def read(reply: Any) -> dict[str, list[bytes]]:
            return {id: [old for old in joined.split(OLD) if old] for id, joined in zip(cards, reply, strict=True)}

        return self._call("begin_changes", *(part for pair in cards.items() for part in pair), read=read)

    def end_changes(self, cards: Mapping[str, bytes]) -> Checked[list[str]]:
        """Forget the cards that each id had before. Answers the ids that another process has changed since then."""

        @or_other_rules
        def read(reply: Any) -> list[str]:
            return [id for id, unchanged in zip(cards, reply, strict=True) if not unchanged]

        return self._call("end_changes", *(part for pair in cards.items() for part in pair), read=read)

    def add_members(self, whole: Sequence[bytes], later: Sequence[bytes]) -> Checked[int]:
        """Add members: of whole folds, and of later words. Answers how many names are new."""
        return self._call("add_members", len(whole), *whole, *later)

    def remove_members(self, whole: Sequence[bytes], later: Sequence[bytes]) -> Checked[int]:
        """Remove members: of whole folds, and of later words. Answers how many names were there."""
        return self._numbered("remove_members", len(whole), *whole, *later)

    def set_member_weight(self, member: bytes, weight: float) -> Checked[int]:
        """Answers 1 if the member exists, else 0."""
        return self._call("set_member_weights", member, weight)

    def member_weights(self, members: Iterable[bytes]) -> Checked[list[float]]:
        """The weight of each member; 0 for one that has no weight."""
        return self._call("member_weights", *members, read=_weights)

    def delete_if_empty(self) -> Checked[Any]:
        """Delete the remaining keys of a directory without names."""
        return self._call("delete_if_empty")

    # --- read ---

    def find_id(self, id: str, own_card: bytes) -> Checked[str | None]:
        """The name of an id. `own_card`: the card of the name that equals the id, in case this name is its own id.

        If the two belong to different shards, call each shard with the other argument empty.
        """
        return self._call("find_id", id, own_card, read=_name)

    def page(self, prefix: bytes, last: bytes | None, n: int) -> Checked[list[bytes]]:
        """The next `n` members that begin with `prefix`, after `last`."""
        return self._call("page", *_bounds(prefix, last), n)

    def counts(self, prefixes: Iterable[bytes]) -> Checked[list[int]]:
        """How many members begin with each prefix; for an empty prefix, how many names there are."""
        return self._call("counts", *(bound for prefix in prefixes for bound in _bounds(prefix)))

    def heaviest(self, prefix: bytes, offset: int, n: int) -> Checked[list[tuple[float, bytes]]]:
        """At most `n` members with a weight that begin with `prefix`, heaviest first, as pairs of weight and member."""
        return self._call("heaviest", prefix, offset, n, read=_weighted)

    def similar(self, prefix: str, n: int) -> Checked[list[bytes]]:
        """Members whose beginning differs from `prefix` by one typo."""
        return self._call("similar", n, *prefix)


def _bounds(prefix: bytes, last: bytes | None = None) -> tuple[bytes, bytes]:
    """Bounds for BYLEX. The byte 0xFF is in no UTF-8 text, so it sorts after every name that begins with `prefix`."""
    return b"(" + last if last else b"[" + prefix, b"(" + prefix + b"\xff"


@or_other_rules
def _name(reply: Any) -> str | None:
    return card_name(reply[0]) if reply else None


# The server stores the negative of each weight, so that the heaviest member is the first of a sorted set.


@or_other_rules
def _weights(reply: Any) -> list[float]:
    return [0.0 - float(weight) for weight in reply]


@or_other_rules
def _weighted(reply: Any) -> list[tuple[float, bytes]]:
    return [(0.0 - float(weight), member) for member, weight in zip(reply[0::2], reply[1::2], strict=True)]
