"""Searches in a directory: by prefix, by several words, by weight, and allowing for a typo."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.completion.card import parse_member
from penstock.completion.entry import Entry, entries
from penstock.completion.fold import tails, words
from penstock.completion.storage import DirectoryStorage
from penstock.core.operations import Operation
from penstock.errors import BadName

MEMBERS_PER_PAGE = 500
"""Members that one round trip reads while it looks for those that match several words."""

MIN_TYPO_LENGTH = 3
"""The shortest typed text for which a search allows for a typo, in characters."""

MAX_SIMILAR = 100
"""The most names with a typo that one search returns."""


class Query(NamedTuple):
    """A folded text to search for.

    prefix       the search reads the members that begin with it
    other_words  each must begin some word of the name, too
    """

    prefix: str
    other_words: tuple[str, ...] = ()


class Search:
    """Searches for a text in one directory."""

    def __init__(self, storage: DirectoryStorage, text: str) -> None:
        self._storage = storage
        self._rules = storage.rules
        self._folded = storage.rules.fold(text)

    def first(self, limit: int, last: bytes | None = None) -> Operation[list[Entry]]:
        """The first `limit` names that match, in the order of fold, name, id; `last`: the member that they follow."""
        query = (yield from self._query(last)) if self._rules.words else Query(self._folded)
        start = query.prefix.encode()
        if last is not None and not last.startswith(start):
            raise BadName(f"complete(after=…): {last!r} is not the cursor of a page of this prefix")
        if not self._rules.words:
            return entries((yield from self._storage.page(start, last, limit)))
        return (yield from self._matching(query, last, limit))

    def with_typo(self, limit: int, exact: Sequence[Entry]) -> Operation[list[Entry]]:
        """Names that match in spite of one typo, without those in `exact`."""
        if len(self._folded) < MIN_TYPO_LENGTH:
            return []
        found = yield from self._storage.similar(self._folded, min(limit, MAX_SIMILAR))
        known = {entry.id for entry in exact}
        return list({entry.id: entry for entry in entries(found) if entry.id not in known}.values())

    def heaviest(self, limit: int) -> Operation[list[Entry]]:
        """The heaviest names that match, then those without a weight, in the order of `first`."""
        query = Query(self._folded)
        found: list[Entry] = []
        offset = 0
        while len(found) < limit:
            page = yield from self._storage.heaviest(self._folded.encode(), offset, limit)
            found += [entry for entry in entries(page) if self._is_first_match(entry, query)]
            offset += limit
            if len(page) < limit:
                weighted = {entry.id for entry in found}
                others = yield from self.first(limit + len(found))
                found += [entry for entry in others if entry.id not in weighted]
                break
        return found[:limit]

    def _query(self, last: bytes | None) -> Operation[Query]:
        """Choose the word whose members are read: the rarest; for a later page, the one that the first page chose."""
        typed = dict.fromkeys(self._folded[start:end] for start, end in words(self._folded))
        if len(typed) < 2:
            return Query(self._folded)
        if last is None:
            counts = yield from self._storage.counts([word.encode() for word in typed])
            _, chosen = min(zip(counts, typed, strict=True))
        else:
            begun = (word for word in typed if last.startswith(word.encode()))
            chosen = max(begun, key=len, default=next(iter(typed)))
        return Query(chosen, tuple(word for word in typed if word != chosen))

    def _matching(self, query: Query, last: bytes | None, limit: int) -> Operation[list[Entry]]:
        """The names that match, each once, although the index has a member for each word of a name."""
        found: list[Entry] = []
        size = MEMBERS_PER_PAGE if query.other_words else limit
        while True:
            page = yield from self._storage.page(query.prefix.encode(), last, size)
            found += [entry for entry in entries(page) if self._is_first_match(entry, query)]
            if len(found) >= limit or len(page) < size:
                return found[:limit]
            last = page[-1]

    def _is_first_match(self, entry: Entry, query: Query) -> bool:
        """Whether this is the first member of its name to begin with the prefix, and the other words match too."""
        if not self._rules.words:
            return True
        starts = tails(self._rules.fold(entry.name))
        matching = (tail for tail in starts if tail.startswith(query.prefix))
        first = min(matching, default="") if query.prefix else starts[0]
        return parse_member(entry._member).tail == first and all(
            any(tail.startswith(word) for tail in starts) for word in query.other_words
        )
