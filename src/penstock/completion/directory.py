"""The directory of a group: up to millions of names, completed as one types, in any script."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple, TypeAlias, TypeVar

from penstock.completion.bindings import DirectoryShape, Draft, Shelf
from penstock.completion.card import read, shown
from penstock.completion.fold import check, check_name, tails, words
from penstock.completion.name_rules import Shaped
from penstock.core.keys import check_label
from penstock.core.operations import Driver, Operation, verb
from penstock.errors import BadName

R = TypeVar("R")
T = TypeVar("T")

CHUNK = 500
"""Names in one round trip of a bulk change or of a search: some milliseconds of server time."""

WEIGHED = 100
"""Weights in one round trip: each stands in several orders."""

MOST_SHARDS = 64

MOST_NEAR = 100
"""Names with a slip in them that one query answers with."""

Named: TypeAlias = str | tuple[str, str] | tuple[str, str, float]
"""A name that is its own id, or a name and its id, or these and its weight."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A name of a directory. `cursor`: hand it to `complete(after=…)` for the page that follows."""

    name: str
    id: str
    _member: bytes = field(default=b"", compare=False, repr=False)

    @property
    def cursor(self) -> str:
        return base64.urlsafe_b64encode(self._member).decode()


class _Query(NamedTuple):
    """What was typed, folded: the part that is read in order, and the words that must be in the name as well."""

    prefix: str
    others: tuple[str, ...] = ()


class Directory(Shaped[DirectoryShape]):
    """The names of one group. Made by `app.directory(name)`; costs nothing to make.

    An id has one name at a time; a name that was added without an id is its own id.
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
        if shards is not None and not 1 <= shards <= MOST_SHARDS:
            raise ValueError(f"directory(shards={shards}): from 1 to {MOST_SHARDS}")
        said = {"accents": accents, "words": words, "shards": shards}
        super().__init__(f"directory {name}", DirectoryShape(), said)
        self._driver = driver
        self._prefix = prefix
        self._shelf: Shelf | None = None

    def __repr__(self) -> str:
        return f"<Directory {self.name}>"

    def _on_shelf(self, work: Callable[[Shelf], Operation[R]]) -> Operation[R]:
        def on_shelf(shape: DirectoryShape) -> Operation[R]:
            if self._shelf is None or self._shelf.shape != shape:
                shelf = Shelf.of(self._prefix, self.name, shape)
                yield from shelf.check()
                self._shelf = shelf
            return (yield from work(self._shelf))

        return self._with_shape(on_shelf)

    # --- write ---

    @verb
    def add(self, name: str, id: str | None = None, *, weight: float | None = None) -> Operation[None]:
        """Add a name; an id that is there already gets this name instead, and keeps its weight. May be repeated.

        Raises BadName. One round trip, one more with a weight.
        """
        draft = _draft(name, id, weight)
        yield from self._on_shelf(lambda shelf: _add(shelf, [draft]))

    @verb
    def add_many(self, names: Iterable[Named]) -> Operation[int]:
        """Add names, pairs of name and id, or triples with a weight; of an id that comes twice the last counts.

        500 a round trip, and one more for each 100 weights.

        All are checked before the first is sent: BadName leaves the directory as it was. What was sent before a server
        failed stays; add them again. Returns how many ids were written.
        """
        drafts = {draft.id: draft for draft in map(_drafted, names)}

        def added(shelf: Shelf) -> Operation[int]:
            for chunk in _chunks(drafts.values()):
                yield from _add(shelf, chunk)
            return len(drafts)

        return self._on_shelf(added)

    @verb
    def rename(self, id: str, name: str) -> Operation[bool]:
        """Give the name of this id; the id stays. False: there is no such id, and nothing was done.

        Raises BadName. One round trip; may be repeated.
        """
        draft = _draft(name, id)
        return bool((yield from self._on_shelf(lambda shelf: shelf.enter([draft], known=True))))

    @verb
    def weigh(self, id: str, weight: float) -> Operation[bool]:
        """Give an id a weight for `top`; 0 takes it away. False: there is no such id. May be repeated.

        Raises BadName. One round trip, O(length of the name · log n).
        """
        weights = {check_name(id, "id"): _weight(weight)}
        return bool((yield from self._on_shelf(lambda shelf: shelf.weigh(weights))))

    @verb
    def remove(self, *ids: str) -> Operation[int]:
        """Take out by id (for a name without one: by name). Returns how many were there. A round trip for each 500.

        Raises BadName.
        """
        wanted = dict.fromkeys(check(id, "id") for id in ids)

        def removed(shelf: Shelf) -> Operation[int]:
            gone = 0
            for chunk in _chunks(wanted):
                gone += yield from shelf.dismiss(chunk)
            return gone

        return self._on_shelf(removed)

    @verb
    def clear(self) -> Operation[int]:
        """Take all names out, 500 in two round trips; whole at each moment, so it may be broken off and repeated.

        Returns how many there were.
        """

        def cleared(shelf: Shelf) -> Operation[int]:
            gone = 0
            while page := (yield from shelf.read(b"", None, CHUNK)):
                left = yield from shelf.dismiss(list({shown(member)[1]: None for member in page}))
                if not left:  # they were written by hand, under other ids than they say
                    yield from shelf.discard(page)
                gone += left
            yield from shelf.dissolve()
            return gone

        return self._on_shelf(cleared)

    # --- read ---

    @verb
    def complete(
        self, prefix: str, limit: int = 10, *, after: str | Entry | None = None, typos: bool = False
    ) -> Operation[list[Entry]]:
        """The first `limit` (1 to 1000) names that begin so, in the order of fold, name, id.

        A base letter finds its accented forms, a typed accent is respected; see the guide for the rules of matching.
        Where the directory finds words, a name counts from the word on that begins so, and of several words typed each
        must begin one of the name's, in any order.
        after  the last entry of the page before, or its `cursor`; a page goes on there whatever was added or taken out
               meanwhile
        typos  behind the names that begin so, up to 100 that begin with one letter more, less or another, or with two
               swapped; the first letter counts, and three must have been typed

        Raises BadName, also for a cursor of another prefix; ValueError for the limit. One round trip, O(log n + limit),
        and no write. With several words one more, and one for each 500 names that the rarest of them begins; with slips
        looked for one more, of some milliseconds.
        """
        _check_limit("complete", limit)
        check(prefix, "prefix")
        if typos and after is not None:
            raise ValueError("complete(after=…, typos=True): slips are looked for on the first page only")
        last = None if after is None else _last(after)

        def completed(shelf: Shelf) -> Operation[list[Entry]]:
            found = yield from _complete(shelf, shelf.shape.fold(prefix), last, limit)
            if typos and len(found) < limit:
                found += yield from _near(shelf, shelf.shape.fold(prefix), limit - len(found), found)
            return found

        return self._on_shelf(completed)

    @verb
    def top(self, prefix: str = "", limit: int = 10) -> Operation[list[Entry]]:
        """The `limit` (1 to 1000) heaviest names that begin so; behind those with a weight the others, in order.

        Raises BadName, ValueError. One round trip, two where fewer than `limit` have a weight.
        """
        _check_limit("top", limit)
        check(prefix, "prefix")
        return self._on_shelf(lambda shelf: _top(shelf, shelf.shape.fold(prefix), limit))

    @verb
    def get(self, id: str) -> Operation[Entry | None]:
        """The entry of this id, or None: whether it is a member. Raises BadName. One round trip."""
        check_name(id, "id")
        name = yield from self._on_shelf(lambda shelf: shelf.name(id))
        return None if name is None else Entry(name, id)

    @verb
    def count(self, prefix: str = "") -> Operation[int]:
        """How many names there are, or how many begin so; where the directory finds words, how many words begin so.

        Raises BadName. One round trip, O(log n).
        """
        return self.count_operation(prefix)

    def count_operation(self, prefix: str = "") -> Operation[int]:
        check(prefix, "prefix")
        (found,) = yield from self._on_shelf(lambda shelf: shelf.counts([shelf.shape.fold(prefix).encode()]))
        return found


def _check_limit(verb: str, limit: int) -> None:
    if not 1 <= limit <= 1000:
        raise ValueError(f"{verb}(limit={limit}): from 1 to 1000")


def _weight(weight: float) -> float:
    if not 0 <= weight < math.inf:
        raise BadName(f"weight {weight!r}: a number from 0 up")
    return float(weight)


def _draft(name: str, id: str | None = None, weight: float | None = None) -> Draft:
    check_name(name)
    own = name if id is None else check_name(id, "id")
    return Draft(name, own, None if weight is None else _weight(weight))


def _drafted(named: Named) -> Draft:
    match named:
        case str():
            return _draft(named)
        case (name, id):
            return _draft(name, id)
        case (name, id, int() | float() as weight):
            return _draft(name, id, weight)
        case _:
            raise BadName(f"{named!r} is neither a name, nor a pair of name and id, nor these and a weight")


def _add(shelf: Shelf, drafts: Sequence[Draft]) -> Operation[None]:
    yield from shelf.enter(drafts, known=False)
    for weighed in _chunks((draft for draft in drafts if draft.weight is not None), WEIGHED):
        yield from shelf.weigh({draft.id: draft.weight or 0 for draft in weighed})


def _chunks(all_of_them: Iterable[T], size: int = CHUNK) -> Iterator[list[T]]:
    rest = iter(all_of_them)
    while chunk := list(islice(rest, size)):
        yield chunk


def _last(after: str | Entry) -> bytes:
    """The member a cursor stands for."""
    try:
        member = after._member if isinstance(after, Entry) else base64.urlsafe_b64decode(after)
    except (binascii.Error, ValueError):
        member = b""
    if not member:
        raise BadName(f"complete(after={after!r}): not an entry of a page, nor its cursor")
    return member


def _entries(members: Iterable[bytes]) -> list[Entry]:
    return [Entry(*shown(member), member) for member in members]


# --- ways to look ---


def _complete(shelf: Shelf, folded: str, last: bytes | None, limit: int) -> Operation[list[Entry]]:
    query = (yield from _query(shelf, folded, last)) if shelf.shape.words else _Query(folded)
    start = query.prefix.encode()
    if last is not None and not last.startswith(start):
        raise BadName(f"complete(after=…): {last!r} is not the cursor of a page of this prefix")
    if not shelf.shape.words:
        return _entries((yield from shelf.read(start, last, limit)))
    return (yield from _distinct(shelf, query, last, limit))


def _near(shelf: Shelf, folded: str, limit: int, exact: Sequence[Entry]) -> Operation[list[Entry]]:
    if len(folded) < 3:
        return []
    page = yield from shelf.near(folded, min(limit, MOST_NEAR))
    known = {entry.id for entry in exact}
    return list({entry.id: entry for entry in _entries(page) if entry.id not in known}.values())


def _top(shelf: Shelf, folded: str, limit: int) -> Operation[list[Entry]]:
    found: list[Entry] = []
    offset = 0
    while len(found) < limit:
        page = yield from shelf.top(folded.encode(), offset, limit)
        found += [entry for entry in _entries(page) if _stands(shelf.shape, entry, _Query(folded))]
        offset += limit
        if len(page) < limit:
            heavy = {entry.id for entry in found}
            others = yield from _complete(shelf, folded, None, limit + len(found))
            found += [entry for entry in others if entry.id not in heavy]
            break
    return found[:limit]


def _query(shelf: Shelf, folded: str, last: bytes | None) -> Operation[_Query]:
    """Of several words the rarest is read, or the one whose page a cursor is of."""
    typed = dict.fromkeys(folded[start:end] for start, end in words(folded))
    if len(typed) < 2:
        return _Query(folded)
    if last is None:
        counts = yield from shelf.counts([word.encode() for word in typed])
        _, rarest = min(zip(counts, typed, strict=True))
    else:
        rarest = max((word for word in typed if last.startswith(word.encode())), key=len, default=next(iter(typed)))
    return _Query(rarest, tuple(word for word in typed if word != rarest))


def _distinct(shelf: Shelf, query: _Query, last: bytes | None, limit: int) -> Operation[list[Entry]]:
    """Each name once, under the first of its words that begins so."""
    found: list[Entry] = []
    slice_ = CHUNK if query.others else limit
    while True:
        page = yield from shelf.read(query.prefix.encode(), last, slice_)
        found += [entry for entry in _entries(page) if _stands(shelf.shape, entry, query)]
        if len(found) >= limit or len(page) < slice_:
            return found[:limit]
        last = page[-1]


def _stands(shape: DirectoryShape, entry: Entry, query: _Query) -> bool:
    if not shape.words:
        return True
    starts = tails(shape.fold(entry.name))
    here = min((tail for tail in starts if tail.startswith(query.prefix)), default="") if query.prefix else starts[0]
    return read(entry._member).tail == here and all(any(t.startswith(w) for t in starts) for w in query.others)
