"""The directory of a group: up to millions of names, completed as a user types, in any script."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

from penstock.completion.bindings import DirectoryRules
from penstock.completion.card import name_and_id
from penstock.completion.entry import Entry, NameLike, NewName, check_weight, member_of
from penstock.completion.fold import check_name, check_storable
from penstock.completion.name_rules import NameCollection
from penstock.completion.search import Search
from penstock.completion.storage import DirectoryStorage
from penstock.core.keys import check_label
from penstock.core.operations import Driver, Operation, verb

T = TypeVar("T")

CHUNK = 500
"""Names that one round trip of a bulk change sends; they take some milliseconds of server time."""

WEIGHTS_CHUNK = 100
"""Weights that one round trip sends. Each is stored in several sorted sets, so they take longer than names."""

MAX_SHARDS = 64


class Directory(NameCollection[DirectoryRules]):
    """The names of one group. Made by `app.directory(name)`, which sends nothing.

    Each id has one name at a time. A name that was added without an id is its own id.
    """

    def __init__(
        self,
        name: str,
        driver: Driver,
        prefix: str,
        *,
        accents: bool | None = None,
        words: bool | None = None,
        shards: int | None = None,
    ) -> None:
        self.name = check_label("directory", name)
        if shards is not None and not 1 <= shards <= MAX_SHARDS:
            raise ValueError(f"directory(shards={shards}): from 1 to {MAX_SHARDS}")
        chosen = {"accents": accents, "words": words, "shards": shards}
        super().__init__(f"directory {name}", DirectoryRules(), chosen)
        self._driver = driver
        self._prefix = prefix
        self._storage: DirectoryStorage | None = None

    def __repr__(self) -> str:
        return f"<Directory {self.name}>"

    def _with_storage(self, work: Callable[[DirectoryStorage], Operation[T]]) -> Operation[T]:
        def with_rules(rules: DirectoryRules) -> Operation[T]:
            if self._storage is None or self._storage.rules != rules:
                storage = DirectoryStorage.open(self._prefix, self.name, rules)
                yield from storage.check_rules()
                self._storage = storage
            return (yield from work(self._storage))

        return self._with_rules(with_rules)

    # --- write ---

    @verb
    def add(self, name: str, id: str | None = None, *, weight: float | None = None) -> Operation[None]:
        """Add a name. If the id exists, it gets this name instead of its old one, and keeps its weight.

        Raises BadName. May be repeated. One round trip, one more with a weight.
        """
        new = NewName.of(name, id, weight)
        yield from self._with_storage(lambda storage: _save(storage, [new]))

    @verb
    def add_many(self, names: Iterable[NameLike]) -> Operation[int]:
        """Add names, pairs of name and id, or triples of name, id and weight. For a repeated id, the last one counts.

        Returns how many ids were written. Raises BadName, before anything is sent, if any name is refused. If a server
        fails in between, the names sent so far stay stored: add all of them again. One round trip for each 500 names,
        and one for each 100 weights.
        """
        unique = {new.id: new for new in map(NewName.parse, names)}

        def save(storage: DirectoryStorage) -> Operation[int]:
            for chunk in _chunks(unique.values()):
                yield from _save(storage, chunk)
            return len(unique)

        return self._with_storage(save)

    @verb
    def rename(self, id: str, name: str) -> Operation[bool]:
        """Give an id another name. False if the id does not exist; nothing is written then.

        Raises BadName. May be repeated. One round trip.
        """
        new = NewName.of(name, id)
        return bool((yield from self._with_storage(lambda storage: storage.save([new], existing_only=True))))

    @verb
    def weigh(self, id: str, weight: float) -> Operation[bool]:
        """Give an id a weight for `top`; 0 removes it. False if the id does not exist.

        Raises BadName. May be repeated. One round trip, O(length of the name · log n).
        """
        weights = {check_name(id, "id"): check_weight(weight)}
        return bool((yield from self._with_storage(lambda storage: storage.set_weights(weights))))

    @verb
    def remove(self, *ids: str) -> Operation[int]:
        """Remove ids. A name that was added without an id is its own id. Returns how many ids were there.

        Raises BadName. One round trip for each 500.
        """
        unique = dict.fromkeys(check_storable(id, "id") for id in ids)

        def remove(storage: DirectoryStorage) -> Operation[int]:
            removed = 0
            for chunk in _chunks(unique):
                removed += yield from storage.remove(chunk)
            return removed

        return self._with_storage(remove)

    @verb
    def clear(self) -> Operation[int]:
        """Remove all names. Returns how many there were.

        The directory is consistent after each round trip, so you can repeat a `clear` that was interrupted. Two round
        trips for each 500 names.
        """

        def clear(storage: DirectoryStorage) -> Operation[int]:
            removed = 0
            while page := (yield from storage.page(b"", None, CHUNK)):
                known = yield from storage.remove(list({name_and_id(member)[1]: None for member in page}))
                if not known:  # these members were written by hand: they belong to no id
                    yield from storage.remove_members(page)
                removed += known
            yield from storage.delete_if_empty()
            return removed

        return self._with_storage(clear)

    # --- read ---

    @verb
    def complete(
        self, prefix: str, limit: int = 10, *, after: str | Entry | None = None, typos: bool = False
    ) -> Operation[list[Entry]]:
        """The first `limit` (1 to 1000) names that begin with `prefix`, in the order of fold, name, id.

        By default, `e` finds `é`, but `é` does not find `e`; the guide has all rules of matching. With `words=True`,
        each word in `prefix` must begin some word of the name, in any order.

        after  the last entry of the previous page, or its `cursor`. The next page starts after it, even if names were
               added or removed in between
        typos  add up to 100 names whose beginning differs by one typo: a letter added, missing or replaced, or two
               swapped. The prefix must have at least three letters, and the first must match

        Raises BadName, also for a cursor of another prefix; ValueError for the limit. Writes nothing. One round trip,
        O(log n + limit). Several words need one more, and one for each 500 names that match the rarest of them; `typos`
        needs one more, of some milliseconds.
        """
        _check_limit("complete", limit)
        check_storable(prefix, "prefix")
        if typos and after is not None:
            raise ValueError("complete(after=…, typos=True): names with a typo are found on the first page only")
        last = None if after is None else member_of(after)

        def complete(storage: DirectoryStorage) -> Operation[list[Entry]]:
            search = Search(storage, prefix)
            found = yield from search.first(limit, last)
            if typos and len(found) < limit:
                found += yield from search.with_typo(limit - len(found), found)
            return found

        return self._with_storage(complete)

    @verb
    def top(self, prefix: str = "", limit: int = 10) -> Operation[list[Entry]]:
        """The first `limit` (1 to 1000) names that begin with `prefix`, the heaviest first.

        Names without a weight follow, in the order of their fold.

        Raises BadName, ValueError. One round trip, two if fewer than `limit` names have a weight.
        """
        _check_limit("top", limit)
        check_storable(prefix, "prefix")
        return self._with_storage(lambda storage: Search(storage, prefix).heaviest(limit))

    @verb
    def get(self, id: str) -> Operation[Entry | None]:
        """The entry of an id, or None if it does not exist. Raises BadName. One round trip."""
        check_name(id, "id")
        name = yield from self._with_storage(lambda storage: storage.name_of(id))
        return None if name is None else Entry(name, id)

    @verb
    def count(self, prefix: str = "") -> Operation[int]:
        """How many names begin with `prefix`; "" counts all names.

        With `words=True`, it counts words that begin with `prefix`, so one name may count several times.

        Raises BadName. One round trip, O(log n).
        """
        return self.current_count(prefix)

    def current_count(self, prefix: str = "") -> Operation[int]:
        """`count` for another operation to build on."""
        check_storable(prefix, "prefix")

        def count(storage: DirectoryStorage) -> Operation[list[int]]:
            return storage.counts([storage.rules.fold(prefix).encode()])

        (found,) = yield from self._with_storage(count)
        return found


def _check_limit(verb: str, limit: int) -> None:
    if not 1 <= limit <= 1000:
        raise ValueError(f"{verb}(limit={limit}): from 1 to 1000")


def _save(storage: DirectoryStorage, names: Sequence[NewName]) -> Operation[None]:
    yield from storage.save(names, existing_only=False)
    for chunk in _chunks((new for new in names if new.weight is not None), WEIGHTS_CHUNK):
        yield from storage.set_weights({new.id: new.weight or 0 for new in chunk})


def _chunks(items: Iterable[T], size: int = CHUNK) -> Iterator[list[T]]:
    rest = iter(items)
    while chunk := list(islice(rest, size)):
        yield chunk
