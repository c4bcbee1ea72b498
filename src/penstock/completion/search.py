"""Searches in a directory: by prefix, by several words, by weight, and allowing for a typo."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain

from penstock.completion.bindings import DirectoryBindings
from penstock.completion.card import name_and_id, parse_element
from penstock.completion.entry import Entry, EntryPage, FoundElement, Spans, element_of, entries_of
from penstock.completion.fold import TAIL_BYTES, Typed, begins, check_storable, split_marks, tails
from penstock.completion.highlight import find_spans
from penstock.completion.name_rules import checked
from penstock.completion.storage import DirectoryStorage
from penstock.core.operations import Operation, RoundTrip
from penstock.errors import BadName

MIN_TYPO_LENGTH = 3
"""The shortest typed text for which a search allows for a typo, in characters."""

MAX_TYPO_LENGTH = 64
"""The longest typed text for which a search allows for a typo."""

MAX_SIMILAR = 100
"""The most names with a typo that one search returns."""

MAX_ROUND_TRIPS = 50
"""After this many calls, of up to 1000 names each, a search returns the names found so far, and a cursor."""


def ask_first_page(storage: DirectoryStorage, typed: str, limit: int) -> RoundTrip[EntryPage | None] | None:
    """A search in one call, as most are. Returns None for a text whose names are not in one range of the index, and the
    call returns None if one call is not enough; then use `Search`. Raises BadName.
    """
    rules = storage.rules
    if rules.has_several_tails:
        return None
    fold = rules.spelling.fold(check_storable(typed, "prefix"))
    if len(fold) > TAIL_BYTES // 4 or not fold or split_marks(fold)[1]:
        return None

    start = fold.encode()
    # Not a function of its own, which nobody could pickle.
    find = partial(find_spans, typed=[fold], spelling=rules.spelling, in_words=False)
    return storage.shards_with(start)[0].first_page(start, limit, find)


class Search:
    """Searches for a text in one directory."""

    def __init__(self, storage: DirectoryStorage, typed: Typed) -> None:
        self._storage = storage
        self._rules = storage.rules
        self._typed = typed
        in_one_range = not (typed.marks or self._rules.has_several_tails)
        self._start = typed.start.encode() if in_one_range else None

    def first(self, limit: int, last: bytes = b"") -> Operation[EntryPage]:
        """The first `limit` names that match, in the order of the guide; `last`: the element that they follow."""
        if last and not self._typed.texts_of(parse_element(last).tail):
            raise BadName(f"complete(after=…): {last!r} is not the cursor of a page of this prefix")
        start, ask = self._start, self._storage.ask
        main, shard_start = (yield from self._main(last)) if start is None else (0, start)
        found: list[FoundElement] = []
        for _ in range(MAX_ROUND_TRIPS):
            wanted = limit - len(found)
            if start is not None:
                pages = yield from ask(start, DirectoryBindings.page, start, last, wanted)
            else:
                pages = yield from ask(shard_start, DirectoryBindings.find, self._typed.texts, main, last, wanted)
            stop, more = pages[0] if len(pages) == 1 else _merged(pages, wanted)
            found += filter(self._matches_in_full, more) if self._typed.long_texts else more
            if len(found) == limit or not (stop or len(more) == wanted):
                page = entries_of(found, self._find_spans)
                return EntryPage(page, found[-1].element if len(page) == limit else b"")
            last = stop or more[-1].element
        return EntryPage(entries_of(found, self._find_spans), last)

    def _main(self, last: bytes) -> Operation[tuple[int, bytes]]:
        """The number of the text whose elements are read, and how they begin. In one slot, the script chooses it (0).

        With shards it is the rarest; for a later page, the rarest of those that can have found `last`, because the
        first page chose one of these.
        """
        texts = self._typed.texts
        if self._rules.shards == 1:
            return 0, b""
        possible = self._typed.texts_of(parse_element(last).tail) if last else texts
        main = possible[0]
        if len(possible) > 1:
            counts = []
            for text in possible:
                counts.append((yield from self._count(text)))
            main = possible[counts.index(min(counts))]
        return 1 + texts.index(main), main.encode()

    def _count(self, text: str) -> Operation[int]:
        counts = yield from self._storage.ask(text.encode(), DirectoryBindings.counts, [text])
        return sum(chain.from_iterable(counts))

    def _matches_in_full(self, found: FoundElement) -> bool:
        """Whether a name matches the texts that are too long for the index."""
        texts = self._rules.spelling.texts(name_and_id(found.element)[0])
        starts = [tail for text in texts for tail in (tails(text) if self._rules.words else [text])]
        return all(any(begins(tail, text) for tail in starts) for text in self._typed.long_texts)

    def _find_spans(self, name: str) -> Spans:
        return find_spans(name, self._typed.texts, self._rules.spelling, in_words=self._rules.words)

    def _find_spans_with_typo(self, name: str) -> Spans:
        return find_spans(name, [self._typed.fold], self._rules.spelling, in_words=self._rules.words, typo=True)

    def count(self) -> Operation[int]:
        """How many elements begin with the text; for an empty text, how many names there are."""
        if not self._typed.long_texts:
            texts = self._typed.texts
            return (yield from self._count(texts[0] if len(texts) == 1 else self._typed.fold))
        page = yield from self.first(1000)
        count = len(page)
        while page.cursor:
            page = yield from self.first(1000, element_of(page.cursor))
            count += len(page)
        return count

    def with_typo(self, limit: int, exact: Sequence[Entry], *, by_weight: bool) -> Operation[list[Entry]]:
        """Names that match in spite of one typo, without those in `exact`."""
        typed = self._typed.fold
        if not MIN_TYPO_LENGTH <= len(typed) <= MAX_TYPO_LENGTH:
            return []
        # The first letter may be the slip, so each shard may have such a name.
        similar = DirectoryBindings.similar
        pages = yield from self._storage.ask(b"", similar, typed, min(limit, MAX_SIMILAR), by_weight=by_weight)
        found = sorted(chain.from_iterable(pages), key=lambda one: (-one.weight if by_weight else 0, one.element))
        known = {entry.id for entry in exact}
        others: dict[str, Entry] = {}
        for entry in entries_of(found, self._find_spans_with_typo):
            if entry.id not in known:
                others.setdefault(entry.id, entry)
        return list(others.values())[:limit]

    def heaviest(self, limit: int) -> Operation[EntryPage]:
        """The heaviest names that match, then those without a weight, in the order of `first`."""
        if self._typed.long_texts:  # the index has the names by weight only with the beginning of this text
            page = yield from self.first(1000)
            return EntryPage(sorted(page, key=lambda entry: -entry.weight)[:limit])
        main, start = yield from self._main(b"")
        weighed: dict[str, FoundElement] = {}
        all_read = True
        for shard in (shards := self._storage.shards_with(start)):
            of_shard: dict[str, FoundElement] = {}
            offset = 0
            for _ in range(MAX_ROUND_TRIPS):
                call = shard.heaviest(self._typed.texts, main, offset, limit - len(of_shard))
                offset, more = yield from checked(call)
                of_shard.update((name_and_id(one.element)[1], one) for one in more)
                if offset < 0 or len(of_shard) == limit:
                    break
            all_read = all_read and offset < 0
            weighed.update(of_shard)
        elements = list(weighed.values())
        if len(shards) > 1:
            elements.sort(key=lambda one: (-one.weight, one.element))
        found = entries_of(elements[:limit], self._find_spans)
        if len(found) < limit and all_read:
            page = yield from self.first(limit + len(found))
            found += [entry for entry in page if entry.id not in weighed]
        return EntryPage(found[:limit])


def _merged(pages: Sequence[tuple[bytes, list[FoundElement]]], n: int) -> tuple[bytes, list[FoundElement]]:
    """The first `n` elements of all pages. If a page stopped early, the elements after its last one are unknown."""
    found = sorted(chain.from_iterable(elements for _, elements in pages), key=lambda one: one.element)
    stop = min((stop for stop, _ in pages if stop), default=b"")
    if stop:
        found = [one for one in found if one.element <= stop]
    return (stop, found) if len(found) < n else (b"", found[:n])
