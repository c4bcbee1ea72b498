"""The scripts of this folder as round trips: a class for contacts (`contacts.lua`), and one for directories
(`directory.lua` and `search.lua`).

Only this module knows the order of arguments and the shapes of replies. It sends nothing. The result of each round trip
may be OtherRules, which `checked` raises.

A script that has worked for long enough leaves the rest of its items to the next call. Such a round trip returns how
many items were *done*, from the first one on; the caller sends the others again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any, TypeAlias, TypeVar

from penstock.completion.card import card, card_name, mark_words
from penstock.completion.constants import OLD, WORD
from penstock.completion.entry import EntryPage, FoundElement, Spans, entries_of, plain_entries
from penstock.completion.fold import cut, split_marks, stackable_marks
from penstock.completion.keys import CompletionKeys
from penstock.completion.name_rules import NameRules, OtherRules, or_other_rules
from penstock.completion.spelling import Spelling
from penstock.core.cached import cached_property
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
        "core/idempotency.lua",
        "completion/name_rules.lua",
        "completion/card.lua",
        "completion/match.lua",
        "completion/contacts.lua",
    )


@cache
def directory_scripts() -> Library:
    return Library(
        "core/batch.lua",
        "core/idempotency.lua",
        "completion/name_rules.lua",
        "completion/card.lua",
        "completion/match.lua",
        "completion/rank.lua",
        "completion/facts.lua",
        "completion/directory.lua",
        "completion/search.lua",
    )


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


def typed_args(texts: Sequence[str], *, words: bool = False) -> list[Arg]:
    """Typed texts as arguments of a script: first all the marks of which a letter may have several, as one text; then
    three arguments for each text.

    The marks are only needed, and only sent, if a text ends with a mark.
    """
    split = [split_marks(cut(text)) for text in texts]
    args: list[Arg] = [stackable_marks() if any(marks for _, marks in split) else ""]
    for start, marks in split:
        args += (start, marks, mark_words(start) if words else WORD + start.encode())
    return args


# --- contacts ---


@dataclass(frozen=True)
class ContactsRules(NameRules):
    OPTIONAL = frozenset({"equivalents", "pinyin", "fold"})

    by: str = "recency"
    accents: bool = True
    equivalents: str = ""
    pinyin: bool = False
    fold: int = 1

    @cached_property
    def spelling(self) -> Spelling:
        return Spelling(self.accents, self.equivalents, self.pinyin, version=self.fold)

    def card(self, name: str) -> bytes:
        return card(name, self.spelling.texts(name))


class ContactsBindings(RuledBindings):
    """The round trips of one user's contacts, with given rules."""

    def __init__(self, keys: CompletionKeys, rules: ContactsRules) -> None:
        super().__init__(keys, rules, contacts_scripts)
        self.rules = rules

    def touch(self, name: str, limit: int) -> Checked[None]:
        """Record one use. Above `limit` contacts, those at the end of the order are removed."""
        if self.rules.by == "recency":
            return self._call("touch_recent", limit, self.rules.card(name), read=_nothing)
        return self._numbered("touch_often", limit, self.rules.card(name), read=_nothing)

    def remove(self, name: str) -> Checked[bool]:
        """Remove a contact. Returns whether it was there."""
        return self._numbered("remove_contact", self.rules.card(name), read=_whether)

    def page(self, typed: str, offset: int, limit: int) -> Checked[tuple[int, list[str]]]:
        """The next offset, or -1 at the end; and names that begin with a folded text, best first.

        Searches the thousand contacts from `offset` on, and returns at most `limit` names.
        """
        return self._call("find_contacts", offset, limit, *typed_args([typed]), read=_contacts_page)


@or_other_rules
def _contacts_page(reply: Any) -> tuple[int, list[str]]:
    return reply[0], [card_name(found) for found in reply[1:]]


# --- directories ---


# A quick test for names whose card is only the name. It holds for most ids.
_PLAIN = re.compile(r"[0-9A-Za-z_:]{1,100}(?: [0-9A-Za-z_:]{1,100}){0,3}\Z")
_IN_ONE_WORD = re.compile(r"[0-9A-Za-z]{1,256}\Z")


@dataclass(frozen=True)
class DirectoryRules(NameRules):
    """`shards` is the last field: the scripts test whether the encoded rules end with `shards=1`."""

    OPTIONAL = frozenset({"apostrophes", "initials", "fold"})

    accents: bool = True
    words: bool = False
    equivalents: str = ""
    pinyin: bool = False
    apostrophes: bool = True
    initials: bool = False
    fold: int = 1
    shards: int = 1

    @cached_property
    def spelling(self) -> Spelling:
        return Spelling(self.accents, self.equivalents, self.pinyin, self.apostrophes, self.initials, self.fold)

    @cached_property
    def has_several_tails(self) -> bool:
        """Whether a name may have several elements."""
        return self.words or self.pinyin or self.initials or bool(self.equivalents and not self.accents)

    def card(self, name: str) -> bytes:
        if not self.equivalents and (_IN_ONE_WORD if self.words else _PLAIN).match(name):
            return name.encode()
        return card(name, self.spelling.texts(name), words=self.words)


class DirectoryBindings(RuledBindings):
    """The round trips of one directory in one slot: the whole directory, or one shard of it."""

    def __init__(self, keys: CompletionKeys, rules: DirectoryRules) -> None:
        super().__init__(keys, rules, directory_scripts)
        self.rules = rules

    # --- a directory in one slot ---

    def save(self, names: Iterable[Sequence[Arg]], *, existing_only: bool) -> Checked[tuple[int, int]]:
        """Store names. Each replaces the name that its id had before. Returns how many were done, and how many written.

        names          for each: card, id, own card of the id, change of the weight, change of the payload
        existing_only  skip ids that do not exist
        """
        return self._call("save", int(existing_only), *chain.from_iterable(names), read=_pair)

    def remove(self, ids: Iterable[str]) -> Checked[tuple[int, int]]:
        """Remove ids. Returns how many were done, and how many of them were there."""
        return self._numbered("remove", *(arg for id in ids for arg in (id, self.rules.card(id))), read=_pair)

    def change_ids(self, changes: Iterable[tuple[str, str, bytes]]) -> Checked[list[float | None]]:
        """Change weights and payloads, given as triples of an id and both changes. Returns the weights of the ids that
        were done; None for an id that does not exist.
        """
        fours = (arg for id, weight, payload in changes for arg in (id, self.rules.card(id), weight, payload))
        return self._numbered("change_ids", *fours, read=_weights)

    # --- changes of a directory with several shards ---

    def save_rules(self) -> Checked[Any]:
        return self._call("save_rules")

    def begin_changes(self, cards: Mapping[str, bytes]) -> Checked[dict[str, list[bytes]]]:
        """Register new cards with their ids. Returns the cards that each id had before.

        A card is b"" for a name that is its own id, and LEAVING for an id that is removed.
        """

        @or_other_rules
        def read(reply: Any) -> dict[str, list[bytes]]:
            return {id: [old for old in joined.split(OLD) if old] for id, joined in zip(cards, reply, strict=True)}

        return self._call("begin_changes", *(arg for pair in cards.items() for arg in pair), read=read)

    def end_changes(self, cards: Mapping[str, bytes]) -> Checked[list[str]]:
        """Forget the cards that each id had before. Returns the ids that another process has changed since then."""

        @or_other_rules
        def read(reply: Any) -> list[str]:
            return [id for id, unchanged in zip(cards, reply, strict=True) if not unchanged]

        return self._call("end_changes", *(arg for pair in cards.items() for arg in pair), read=read)

    def add_elements(self, whole: Sequence[bytes], later: Sequence[bytes]) -> Checked[int]:
        """Add elements: of whole folds, and of later tails. Returns how many names are new."""
        return self._call("add_elements", len(whole), *whole, *later)

    def remove_elements(self, found: Iterable[tuple[bool, bytes]]) -> Checked[tuple[int, int]]:
        """Remove elements, each given with whether it belongs to a whole fold.

        Returns how many elements were done, and how many names were there.
        """
        pairs = (arg for whole, element in found for arg in (int(whole), element))
        return self._numbered("remove_elements", *pairs, read=_pair)

    def change_elements(self, changes: Iterable[tuple[bytes, str, bytes]]) -> Checked[list[float | None]]:
        """Change weights and payloads, each as an element and both changes. Returns as `change_ids` does."""
        threes = (arg for element, weight, payload in changes for arg in (element, weight, payload))
        return self._numbered("change_elements", *threes, read=_weights)

    def delete_if_empty(self) -> Checked[Any]:
        """Delete the remaining keys of a directory without names."""
        return self._call("delete_if_empty")

    # --- read ---

    def find_id(self, id: str, own_card: bytes) -> Checked[tuple[str, FoundElement | None] | None]:
        """The name of an id and its first element. `own_card`: the card of the name that equals the id; by it the
        script finds a name that is its own id.

        If the id and this card belong to different shards, call each shard with the other argument empty.
        """
        return self._call("find_id", id, own_card, read=_name)

    def look_up(self, elements: Iterable[bytes]) -> Checked[list[FoundElement]]:
        """Those of the given elements that exist, with their weights and payloads."""
        return self._call("look_up", *elements, read=_elements)

    def page(self, prefix: bytes, last: bytes, n: int) -> Checked[tuple[bytes, list[FoundElement]]]:
        """The next `n` elements that begin with `prefix`, after `last`; b"" for the first ones.

        Returns b"", or the last element if it stopped early; and the elements.
        """
        low = b"(" + last if last else b"[" + prefix
        # The byte 0xFF is in no UTF-8 text, so it sorts after every name that begins with `prefix`.
        return self._call("page", low, b"(" + prefix + b"\xff", n, read=_found)

    def first_page(self, prefix: bytes, n: int, find_spans: Callable[[str], Spans]) -> RoundTrip[EntryPage | None]:
        """The first `n` names that begin with `prefix`; None if one call does not find them all, or the rules differ.

        It makes none of the objects that a search of several calls needs: this is the call for each letter that a user
        types, and they took half of its time.
        """

        def read(reply: Any) -> EntryPage | None:
            if isinstance(reply, bytes) or reply[0]:
                return None
            elements = reply[1]
            entries = (
                plain_entries(elements, find_spans)
                if len(reply) == 2
                else entries_of(_read_elements(reply), find_spans)
            )
            return EntryPage(entries, elements[-1] if len(elements) == n else b"")

        args = (self._encoded_rules, b"[" + prefix, b"(" + prefix + b"\xff", str(n))
        return RoundTrip(self._library()["page"], self._declared, args, read)

    def find(self, texts: Sequence[str], main: int, last: bytes, n: int) -> Checked[tuple[bytes, list[FoundElement]]]:
        """The next `n` elements that match all texts, after `last`, one for each name. Returns what `page` does.

        main  the number of the text whose elements are read, from 1; 0 if the script chooses the rarest text
        """
        return self._call("find", n, last, main, *typed_args(texts, words=self.rules.words), read=_found)

    def heaviest(self, texts: Sequence[str], main: int, offset: int, n: int) -> Checked[tuple[int, list[FoundElement]]]:
        """The `n` heaviest elements that match all texts and have a weight; and the next offset, -1 at the end.

        main  as for `find`
        """
        return self._call("heaviest", n, offset, main, *typed_args(texts, words=self.rules.words), read=_found)

    def similar(self, text: str, n: int, *, by_weight: bool) -> Checked[list[FoundElement]]:
        """Elements whose beginning differs from `text` by one typo, in no order."""
        return self._call("similar", n, int(by_weight), *text, read=_elements)

    def counts(self, texts: Sequence[str]) -> Checked[list[int]]:
        """How many elements begin with each text; for an empty text, how many names there are."""

        @or_other_rules
        def read(reply: Any) -> list[int]:
            if len(reply) != len(texts):  # Lua ends an array at a number that cannot be read
                raise ValueError("a count is missing")
            return list(reply)

        return self._call("counts", *typed_args(texts, words=self.rules.words), read=read)


@or_other_rules
def _pair(reply: Any) -> tuple[int, int]:
    return reply[0], reply[1]


# The server stores the negative of each weight, so that the heaviest element is the first of a sorted set.


@or_other_rules
def _weights(reply: Any) -> list[float | None]:
    return [None if weight == b"" else 0.0 - float(weight) for weight in reply[1:]]


def _read_elements(reply: Any) -> list[FoundElement]:
    if len(reply) == 2:
        return [FoundElement(element) for element in reply[1]]
    return [
        FoundElement(element, 0.0 - float(weight or 0), payload)
        for element, weight, payload in zip(*reply[1:], strict=True)
    ]


@or_other_rules
def _elements(reply: Any) -> list[FoundElement]:
    return _read_elements(reply)


@or_other_rules
def _found(reply: Any) -> tuple[Any, list[FoundElement]]:
    return reply[0], _read_elements(reply)


@or_other_rules
def _name(reply: Any) -> tuple[str, FoundElement | None] | None:
    if not reply:
        return None
    return card_name(reply[0]), _read_elements(reply[1])[0]
