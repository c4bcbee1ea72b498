"""The directory of a group: up to millions of names, completed as a user types, in any script."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal, TypeAlias, TypeVar

from penstock.completion.bindings import DirectoryBindings, DirectoryRules
from penstock.completion.card import name_and_id
from penstock.completion.entry import (
    Entry,
    EntryPage,
    NameLike,
    NewName,
    check_increment,
    check_payload,
    check_weight,
    element_of,
    payload_change,
    weight_change,
)
from penstock.completion.fold import NEWEST_FOLD, Typed, check_name, check_storable
from penstock.completion.name_rules import NameCollection
from penstock.completion.search import Search, ask_first_page
from penstock.completion.sharded_storage import open_storage
from penstock.completion.spelling import encode_equivalents, require_pinyin
from penstock.completion.storage import CHUNK, DirectoryStorage
from penstock.core.arguments import check_flag, check_many, check_whole
from penstock.core.keys import check_label
from penstock.core.operations import Driver, Operation, verb

T = TypeVar("T")

SearchOrder: TypeAlias = Literal["name", "weight"]

MAX_SHARDS = 64


class Directory(NameCollection[DirectoryRules]):
    """The names of one group. Made by `app.directory(name)`, which sends nothing.

    Each id has one name at a time. A name that was added without an id is its own id.

    The round trips named below are those of a directory in one slot. With several shards, a change takes at least four,
    and a search with an empty prefix one for each shard. The first call may take one more, to read the rules with which
    the directory was created.
    """

    def __init__(
        self,
        name: str,
        driver: Driver,
        prefix: str,
        *,
        accents: bool | None = None,
        words: bool | None = None,
        equivalents: Mapping[str, str] | None = None,
        pinyin: bool | None = None,
        apostrophes: bool | None = None,
        initials: bool | None = None,
        shards: int | None = None,
    ) -> None:
        self.name = check_label("directory", name)
        if shards is not None:
            check_whole("directory", "shards", shards, 1, MAX_SHARDS, f"from 1 to {MAX_SHARDS}")
        if pinyin:
            require_pinyin()
        table = None if equivalents is None else encode_equivalents(equivalents)
        chosen = {
            "accents": accents,
            "words": words,
            "equivalents": table,
            "pinyin": pinyin,
            "apostrophes": apostrophes,
            "initials": initials,
            "shards": shards,
        }
        super().__init__(f"directory {name}", DirectoryRules(fold=NEWEST_FOLD), chosen)
        self._driver = driver
        self._prefix = prefix
        self._storage: DirectoryStorage | None = None

    def __repr__(self) -> str:
        return f"<Directory {self.name}>"

    def _with_storage(self, work: Callable[[DirectoryStorage], Operation[T]]) -> Operation[T]:
        def with_rules(rules: DirectoryRules) -> Operation[T]:
            storage = self._storage
            return self._open(rules, work) if storage is None or storage.rules is not rules else work(storage)

        return self._with_rules(with_rules)

    def _open(self, rules: DirectoryRules, work: Callable[[DirectoryStorage], Operation[T]]) -> Operation[T]:
        storage = open_storage(self._prefix, self.name, rules)
        yield from storage.check_rules()
        self._storage = storage
        return (yield from work(storage))

    # --- write ---

    @verb
    def add(
        self, name: str, id: str | None = None, *, weight: float | None = None, payload: str | bytes | None = None
    ) -> Operation[None]:
        """Add a name. If the id exists, it gets this name instead of its old one.

        weight   for a search by weight; 0 removes it, None keeps that of the id
        payload  at most 1 KiB that only the application understands; "" removes it, None keeps that of the id

        Raises BadName and PayloadTooLarge. May be repeated. One round trip.
        """
        new = NewName.of(name, id, weight, payload)
        yield from self._with_storage(lambda storage: storage.save([new], existing_only=False))

    @verb
    def add_many(self, names: Iterable[NameLike]) -> Operation[int]:
        """Add names. Each is a name, or a tuple of name and id, to which a weight and a payload may be added.

        For a repeated id, the last one counts. Returns how many ids were written. Raises as `add`, before anything is
        sent, if any name is refused. If a server fails in between, the names sent so far stay stored: add all of them
        again. One round trip for each 100 names or 64 KiB; each holds the server for a few milliseconds.
        """
        check_many("add_many", "names", names)
        unique = list({new.id: new for new in map(NewName.parse, names)}.values())
        yield from self._with_storage(lambda storage: storage.save(unique, existing_only=False))
        return len(unique)

    @verb
    def rename(self, id: str, name: str) -> Operation[bool]:
        """Give an id another name. False if the id does not exist; nothing is written then.

        Raises BadName. May be repeated. One round trip.
        """
        new = NewName.of(name, id)
        return bool((yield from self._with_storage(lambda storage: storage.save([new], existing_only=True))))

    @verb
    def weigh(self, id: str, weight: float) -> Operation[bool]:
        """Give an id a weight; 0 removes it. False if the id does not exist.

        Raises BadName. May be repeated. One round trip, O(length of the name · log n).
        """
        change = weight_change(check_weight(weight))
        return (yield from self._change_id(id, change, b"")) is not None

    @verb
    def bump(self, id: str, by: float = 1) -> Operation[float | None]:
        """Add to the weight of an id, for example at each use. Returns the new weight, None if the id does not exist.

        A negative `by` lowers the weight; at 0 or below the id has no weight any more. A call that the driver sends
        again counts once. Raises BadName. One round trip, O(length of the name · log n).
        """
        return self._change_id(id, f"+{check_increment(by)!r}", b"")

    @verb
    def set_payload(self, id: str, payload: str | bytes) -> Operation[bool]:
        """Give an id a payload; "" removes it. False if the id does not exist.

        Raises BadName and PayloadTooLarge. May be repeated. One round trip.
        """
        change = payload_change(check_payload(payload))
        return (yield from self._change_id(id, "", change)) is not None

    def _change_id(self, id: str, weight: str, payload: bytes) -> Operation[float | None]:
        check_name(id, "id")
        return self._with_storage(lambda storage: storage.change_id(id, weight, payload))

    @verb
    def remove(self, *ids: str) -> Operation[int]:
        """Remove the names with these ids. A name that was added without an id is its own id. Returns how many of the
        ids existed.

        Raises BadName. One round trip for each 100.
        """
        unique = list(dict.fromkeys(check_storable(id, "id") for id in ids))
        return self._with_storage(lambda storage: storage.remove(unique))

    @verb
    def clear(self) -> Operation[int]:
        """Remove all names. Returns how many there were.

        The directory is consistent after each round trip, so you can repeat a `clear` that was interrupted. Two round
        trips for each 100 names.
        """

        def clear(storage: DirectoryStorage) -> Operation[int]:
            removed = 0
            while True:
                pages = yield from storage.ask(b"", DirectoryBindings.page, b"", b"", CHUNK)
                found = [one.element for _, elements in pages for one in elements]
                if not found:
                    break
                known = yield from storage.remove(list({name_and_id(element)[1]: None for element in found}))
                if not known:  # these elements were written by hand: they belong to no id
                    yield from storage.remove_elements(found)
                removed += known
            yield from storage.delete_if_empty()
            return removed

        return self._with_storage(clear)

    # --- read ---

    @verb
    def complete(
        self,
        prefix: str,
        limit: int = 10,
        *,
        by: SearchOrder = "name",
        after: str | Entry | None = None,
        typos: bool = False,
    ) -> Operation[EntryPage]:
        """The first `limit` (1 to 1000) names that begin with `prefix`, in the order of fold, name, id.

        By default, `e` finds `é`, but `é` does not find `e`; the guide has all rules of matching. With `words=True`,
        each word of `prefix` must begin a different word of the name, in any order.

        by     "weight": the heaviest names first; those without a weight follow in the order of their fold
        after  the last entry of the previous page, or a `cursor`. The next page starts after it, even if names were
               added or removed in between
        typos  add up to 100 names whose beginning differs by one typo: a letter added, missing or replaced, or two
               swapped. The prefix must have 3 to 64 letters

        Returns a list of entries with a `cursor`, which asks for the next page.

        Raises BadName, also for a cursor of another prefix; ValueError for the limit, and for options that do not fit.
        Writes nothing. One round trip, O(log n + limit). Several words, or weights below a long prefix, need one for
        each 1000 names that are compared, at most 50; `typos` needs one more, of some milliseconds.
        """
        check_whole("complete", "limit", limit, 1, 1000, "from 1 to 1000")
        if by not in ("name", "weight"):
            raise ValueError(f"complete(by={by!r}): 'name' or 'weight'")
        check_flag("complete", "typos", typos)
        if typos and after is not None:
            raise ValueError("complete(after=…, typos=True): names with a typo are found on the first page only")
        if by == "weight" and after is not None:
            raise ValueError("complete(after=…, by='weight'): only pages in the order of names have a next one")
        if by == "name" and after is None and not typos and (storage := self._storage) is not None:
            call = ask_first_page(storage, prefix, limit)
            page: EntryPage | None = None if call is None else (yield call)
            if page is not None:
                return page
        last = b"" if after is None else element_of(after)

        def complete(search: Search) -> Operation[EntryPage]:
            found = yield from search.heaviest(limit) if by == "weight" else search.first(limit, last)
            if typos and len(found) < limit:
                found += yield from search.with_typo(limit - len(found), found, by_weight=by == "weight")
            return found

        return (yield from self._search(prefix, complete))

    def _search(self, prefix: str, work: Callable[[Search], Operation[T]]) -> Operation[T]:
        def search(storage: DirectoryStorage) -> Operation[T]:
            rules = storage.rules
            return work(Search(storage, Typed(prefix, rules.spelling.fold, words=rules.words)))

        return self._with_storage(search)

    @verb
    def top(self, prefix: str = "", limit: int = 10) -> Operation[EntryPage]:
        """The heaviest names that begin with `prefix`, or the heaviest of all. Does the same as
        `complete(prefix, limit, by="weight")`, with the same errors and cost."""
        check_whole("top", "limit", limit, 1, 1000, "from 1 to 1000")
        return self._search(prefix, lambda search: search.heaviest(limit))

    @verb
    def get(self, id: str) -> Operation[Entry | None]:
        """The entry of an id, or None if it does not exist. Raises BadName. One round trip."""
        check_name(id, "id")
        found = yield from self._with_storage(lambda storage: storage.get(id))
        if found is None:
            return None
        name, element = found
        return Entry(name, id, element.weight, element.payload) if element else Entry(name, id)

    @verb
    def count(self, prefix: str = "") -> Operation[int]:
        """How many names begin with `prefix`; "" counts all names.

        With `words=True`, it counts words that begin with `prefix`, so one name may count several times.

        Raises BadName. One round trip, O(log n).
        """
        return self.current_count(prefix)

    def current_count(self, prefix: str = "") -> Operation[int]:
        """`count` for another operation to build on."""
        return self._search(prefix, Search.count)
