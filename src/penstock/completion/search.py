"""Searches in a directory: by prefix, by several words, by weight, and allowing for a typo."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from penstock.completion.bindings import Chosen
from penstock.completion.card import name_and_id, parse_member
from penstock.completion.entry import Entry, EntryPage, FoundMember, encode_cursor, entries, member_of
from penstock.completion.fold import begins, cut, split_marks, tails, typed_words
from penstock.completion.highlight import find_spans
from penstock.completion.storage import DirectoryStorage
from penstock.core.operations import Operation
from penstock.errors import BadName

MIN_TYPO_LENGTH = 3
"""The shortest typed text for which a search allows for a typo, in characters."""

MAX_TYPO_LENGTH = 64
"""The longest one."""

MAX_SIMILAR = 100
"""The most names with a typo that one search returns."""

MAX_ROUND_TRIPS = 50
"""After so many calls, of up to 1000 names each, a search returns what it has found, and a cursor to continue."""


class Search:
    """Searches for a text in one directory."""

    def __init__(self, storage: DirectoryStorage, text: str) -> None:
        self._storage = storage
        self._rules = storage.rules
        fold = storage.rules.spelling.fold
        self._folded = fold(text)
        self._texts = (typed_words(text, fold) if self._rules.words else []) or [self._folded]
        self._long_texts = [text for text in self._texts if cut(text) != text]
        self._find_spans = partial(
            find_spans, typed=self._texts, spelling=self._rules.spelling, in_words=self._rules.words
        )

    def first(self, limit: int, last: bytes = b"") -> Operation[EntryPage]:
        """The first `limit` names that match, in the order of the guide; `last`: the member that they follow."""
        if last and not self._begins(last):
            raise BadName(f"complete(after=…): {last!r} is not the cursor of a page of this prefix")
        found, stop = yield from self._members(limit, last)
        page = entries(found, self._find_spans)
        if stop:
            return EntryPage(page, encode_cursor(stop))
        return EntryPage(page, page[-1].cursor if len(page) == limit else None)

    def _begins(self, member: bytes) -> bool:
        tail = parse_member(member).tail
        return any(begins(tail, cut(text)) for text in self._texts)

    def _members(self, limit: int, last: bytes) -> Operation[tuple[list[FoundMember], bytes]]:
        """The members that match, and the last member read if the search was given up."""
        by_prefix = not self._rules.has_several_tails and not split_marks(cut(self._folded))[1]
        query = Chosen(self._texts) if by_prefix else (yield from self._storage.choose(self._texts, last))
        found: list[FoundMember] = []
        for _ in range(MAX_ROUND_TRIPS):
            wanted = limit - len(found)
            if by_prefix:
                stop, more = yield from self._storage.page(cut(self._folded).encode(), last, wanted)
            else:
                stop, more = yield from self._storage.find(query, last, wanted)
            found += filter(self._matches_in_full, more)
            if len(found) == limit or not (stop or len(more) == wanted):
                return found, b""
            last = stop or more[-1].member
        return found, last

    def _matches_in_full(self, found: FoundMember) -> bool:
        """Whether a name matches the texts that are too long for the index."""
        if not self._long_texts:
            return True
        texts = self._rules.spelling.texts(name_and_id(found.member)[0])
        starts = [tail for text in texts for tail in (tails(text) if self._rules.words else [text])]
        return all(any(begins(tail, text) for tail in starts) for text in self._long_texts)

    def count(self) -> Operation[int]:
        """How many members begin with the text; for an empty text, how many names there are."""
        if not self._long_texts:
            counted = self._texts if len(self._texts) == 1 else [self._folded]
            return (yield from self._storage.counts(counted))[0]
        page = yield from self.first(1000)
        count = len(page)
        while page.cursor:
            page = yield from self.first(1000, member_of(page.cursor))
            count += len(page)
        return count

    def with_typo(self, limit: int, exact: Sequence[Entry], *, by_weight: bool) -> Operation[list[Entry]]:
        """Names that match in spite of one typo, without those in `exact`."""
        if not MIN_TYPO_LENGTH <= len(self._folded) <= MAX_TYPO_LENGTH:
            return []
        found = yield from self._storage.similar(self._folded, min(limit, MAX_SIMILAR), by_weight=by_weight)
        found.sort(key=lambda one: (-one.weight if by_weight else 0, one.member))
        known = {entry.id for entry in exact}
        mark = partial(
            find_spans, typed=[self._folded], spelling=self._rules.spelling, in_words=self._rules.words, typo=True
        )
        others: dict[str, Entry] = {}
        for entry in entries(found, mark):
            if entry.id not in known:
                others.setdefault(entry.id, entry)
        return list(others.values())[:limit]

    def heaviest(self, limit: int) -> Operation[EntryPage]:
        """The heaviest names that match, then those without a weight, in the order of `first`."""
        if self._long_texts:  # the index has the names by weight only with the beginning of this text
            page = yield from self.first(1000)
            return EntryPage(sorted(page, key=lambda entry: -entry.weight)[:limit])
        query = yield from self._storage.choose(self._texts, b"")
        found: dict[str, Entry] = {}
        offset = 0
        for _ in range(MAX_ROUND_TRIPS):
            offset, more = yield from self._storage.heaviest(query, offset, limit - len(found))
            found.update((entry.id, entry) for entry in entries(more, self._find_spans))
            if offset < 0 or len(found) == limit:
                break
        if len(found) < limit and offset < 0:
            for entry in (yield from self.first(limit + len(found))):
                found.setdefault(entry.id, entry)
        return EntryPage(list(found.values())[:limit])
