"""Searches in a directory: by prefix, by several words, by weight, and allowing for a typo."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from penstock.completion.bindings import Typed, typed_args
from penstock.completion.card import name_and_id, parse_element
from penstock.completion.entry import Entry, EntryPage, FoundElement, Spans, element_of, encode_cursor
from penstock.completion.fold import begins, cut, split_marks, tails, typed_words
from penstock.completion.highlight import find_spans
from penstock.completion.storage import DirectoryStorage
from penstock.core.operations import Operation
from penstock.errors import BadName

MIN_TYPO_LENGTH = 3
"""The shortest typed text for which a search allows for a typo, in characters."""

MAX_TYPO_LENGTH = 64
"""The longest typed text for which a search allows for a typo."""

MAX_SIMILAR = 100
"""The most names with a typo that one search returns."""

MAX_ROUND_TRIPS = 50
"""After this many calls, of up to 1000 names each, a search returns the names found so far, and a cursor."""


class Search:
    """Searches for a text in one directory. The text is folded and prepared once, for all methods."""

    def __init__(self, storage: DirectoryStorage, text: str) -> None:
        self._storage = storage
        self._rules = rules = storage.rules
        fold = rules.spelling.fold
        self._folded = fold(text)
        self._texts = (typed_words(text, fold) if rules.words else []) or [self._folded]
        self._long_texts = [text for text in self._texts if cut(text) != text]
        start, marks = split_marks(cut(self._folded))
        self._typed = Typed(
            typed_args(self._texts, words=rules.words),
            None if marks or rules.has_several_tails else start.encode(),
            self._texts[0].encode(),
        )

    def first(self, limit: int, last: bytes = b"") -> Operation[EntryPage]:
        """The first `limit` names that match, in the order of the guide; `last`: the element that they follow."""
        if last and not self._texts_of(last):
            raise BadName(f"complete(after=…): {last!r} is not the cursor of a page of this prefix")
        start = self._typed.start
        typed = (yield from self._with_main(last)) if start is None else self._typed
        found: list[FoundElement] = []
        for _ in range(MAX_ROUND_TRIPS):
            wanted = limit - len(found)
            if start is not None:
                stop, more = yield from self._storage.page(start, last, wanted)
            else:
                stop, more = yield from self._storage.find(typed, last, wanted)
            found += filter(self._matches_in_full, more) if self._long_texts else more
            if len(found) == limit or not (stop or len(more) == wanted):
                page = _entries(found, self._find_spans)
                return EntryPage(page, page[-1].cursor if len(page) == limit else None)
            last = stop or more[-1].element
        return EntryPage(_entries(found, self._find_spans), encode_cursor(last))

    def _with_main(self, last: bytes) -> Operation[Typed]:
        """The query with the text whose elements are read. In one slot, the script chooses it.

        With shards it is the rarest; for a later page, the rarest of those that can have found `last`, because the
        first page chose one of these.
        """
        if self._rules.shards == 1:
            return self._typed
        texts = self._texts_of(last) if last else self._texts
        counts = (yield from self._storage.counts(texts)) if len(texts) > 1 else [0]
        text = texts[counts.index(min(counts))]
        return self._typed._replace(main=text.encode(), position=1 + self._texts.index(text))

    def _texts_of(self, element: bytes) -> list[str]:
        """The texts that can have found this element."""
        tail = parse_element(element).tail
        return [text for text in self._texts if begins(tail, cut(text))]

    def _matches_in_full(self, found: FoundElement) -> bool:
        """Whether a name matches the texts that are too long for the index."""
        texts = self._rules.spelling.texts(name_and_id(found.element)[0])
        starts = [tail for text in texts for tail in (tails(text) if self._rules.words else [text])]
        return all(any(begins(tail, text) for tail in starts) for text in self._long_texts)

    def _find_spans(self, name: str) -> Spans:
        return find_spans(name, self._texts, self._rules.spelling, in_words=self._rules.words)

    def _find_spans_with_typo(self, name: str) -> Spans:
        return find_spans(name, [self._folded], self._rules.spelling, in_words=self._rules.words, typo=True)

    def count(self) -> Operation[int]:
        """How many elements begin with the text; for an empty text, how many names there are."""
        if not self._long_texts:
            texts = self._texts if len(self._texts) == 1 else [self._folded]
            return (yield from self._storage.counts(texts))[0]
        page = yield from self.first(1000)
        count = len(page)
        while page.cursor:
            page = yield from self.first(1000, element_of(page.cursor))
            count += len(page)
        return count

    def with_typo(self, limit: int, exact: Sequence[Entry], *, by_weight: bool) -> Operation[list[Entry]]:
        """Names that match in spite of one typo, without those in `exact`."""
        if not MIN_TYPO_LENGTH <= len(self._folded) <= MAX_TYPO_LENGTH:
            return []
        found = yield from self._storage.similar(self._folded, min(limit, MAX_SIMILAR), by_weight=by_weight)
        found.sort(key=lambda one: (-one.weight if by_weight else 0, one.element))
        known = {entry.id for entry in exact}
        others: dict[str, Entry] = {}
        for entry in _entries(found, self._find_spans_with_typo):
            if entry.id not in known:
                others.setdefault(entry.id, entry)
        return list(others.values())[:limit]

    def heaviest(self, limit: int) -> Operation[EntryPage]:
        """The heaviest names that match, then those without a weight, in the order of `first`."""
        if self._long_texts:  # the index has the names by weight only with the beginning of this text
            page = yield from self.first(1000)
            return EntryPage(sorted(page, key=lambda entry: -entry.weight)[:limit])
        typed = yield from self._with_main(b"")
        found: dict[str, Entry] = {}
        offset = 0
        for _ in range(MAX_ROUND_TRIPS):
            offset, more = yield from self._storage.heaviest(typed, offset, limit - len(found))
            found.update((entry.id, entry) for entry in _entries(more, self._find_spans))
            if offset < 0 or len(found) == limit:
                break
        if len(found) < limit and offset < 0:
            for entry in (yield from self.first(limit + len(found))):
                found.setdefault(entry.id, entry)
        return EntryPage(list(found.values())[:limit])


def _entries(elements: Iterable[FoundElement], find_spans: Callable[[str], Spans]) -> list[Entry]:
    """The entries of these elements of the index."""
    found: list[Entry] = []
    for element, weight, payload in elements:
        name, id = name_and_id(element)
        found.append(Entry(name, id, weight, payload, element, find_spans))
    return found
