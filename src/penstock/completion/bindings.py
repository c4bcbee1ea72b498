"""Where the names of a directory stand: its scripts as steps, on one shard or on many.

On one shard every change is one script. On many, a name stands in the shard of its fold's first character, where a
query finds it alone, and an id in its home, the shard of its hash. A change of an id then takes four kinds of steps,
each of which may be repeated: its home notes the new name and what is leaving (`enrol`), the new name is put and the
old one dropped where each stands, and the home forgets what has left (`confirm`). Broken off in between, the same
change done again, or any other of this id, ends it.
"""

from __future__ import annotations

import binascii
import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, islice
from typing import Any, NamedTuple

from penstock.completion.card import card, members, name_of
from penstock.completion.fold import fold
from penstock.completion.keys import ComponentKeys
from penstock.completion.name_rules import Shape, answer
from penstock.core.operations import Arg, Operation, RoundTrip
from penstock.core.scripts import Library

GONE = b"\3"
"""What a home notes of an id that is being taken out."""


@cache
def scripts() -> Library:
    return Library(
        "core/batch.lua", "core/repeated.lua",
        "completion/shape.lua", "completion/card.lua", "completion/rank.lua", "completion/directory.lua",
    )  # fmt: skip


@dataclass(frozen=True)
class DirectoryShape(Shape):
    """`shards` stands last: the scripts look whether the line ends with `shards=1`."""

    accents: bool = True
    words: bool = False
    shards: int = 1

    def fold(self, text: str) -> str:
        return fold(text, accents=self.accents)

    def card(self, name: str) -> bytes:
        return card(name, accents=self.accents, words=self.words)


class Draft(NamedTuple):
    """A name on its way in."""

    name: str
    id: str
    weight: float | None = None


class Shelf:
    """One directory in one shape."""

    def __init__(self, prefix: str, name: str, shape: DirectoryShape) -> None:
        self.shape = shape
        self._line = shape.line
        kinds = ["directory", *(f"directory/{n}" for n in range(1, shape.shards))]
        self._declared = [ComponentKeys(prefix, kind, name).declared for kind in kinds]

    @staticmethod
    def of(prefix: str, name: str, shape: DirectoryShape) -> Shelf:
        return (Shelf if shape.shards == 1 else ShardedShelf)(prefix, name, shape)

    def _step(self, shard: int, script: str, *args: Arg) -> RoundTrip[Any]:
        return RoundTrip(scripts()[script], self._declared[shard], args, lambda reply: reply)

    def _do(self, shard: int, script: str, *args: Arg) -> Operation[Any]:
        return answer(self._step(shard, script, self._line, *args))

    def _do_numbered(self, shard: int, script: str, *args: Arg) -> Operation[Any]:
        return answer(self._step(shard, script, "", 0, self._line, *args))

    def check(self) -> Operation[None]:
        """Raises OtherShape where another is stored and a step might not notice."""
        yield from ()

    def enter(self, drafts: Sequence[Draft], *, known: bool) -> Operation[int]:
        own = [self.shape.card(draft.name) for draft in drafts if draft.id == draft.name]
        rest: list[Arg] = []
        for name, id, _ in drafts:
            if id != name:
                rest += (self.shape.card(name), id, self.shape.card(id))
        return self._do(0, "enter", int(known), len(own), *own, *rest)

    def dismiss(self, ids: Sequence[str]) -> Operation[int]:
        return self._do_numbered(0, "dismiss", *(part for id in ids for part in (id, self.shape.card(id))))

    def discard(self, these: Sequence[bytes]) -> Operation[int]:
        """Drop members, whatever they stand for."""
        return self._do_numbered(0, "drop_members", 0, *these)

    def name(self, id: str) -> Operation[str | None]:
        found = yield from self._do(0, "find_id", id, self.shape.card(id))
        return name_of(found[0]) if found else None

    def read(self, prefix: bytes, last: bytes | None, n: int) -> Operation[list[bytes]]:
        """The next `n` members that begin so, after `last`."""
        return self._do(0, "page", *_bounds(prefix, last), n)

    def counts(self, prefixes: Sequence[bytes]) -> Operation[list[int]]:
        """How many members begin so; for an empty prefix, how many names there are."""
        return self._do(0, "amounts", *(part for prefix in prefixes for part in _bounds(prefix)))

    def weigh(self, weights: Mapping[str, float]) -> Operation[int]:
        """Give ids a weight. Answers how many are there."""
        return self._do(0, "weigh_ids", *(part for id, w in weights.items() for part in (id, self.shape.card(id), w)))

    def top(self, prefix: bytes, offset: int, n: int) -> Operation[list[bytes]]:
        """The `n` heaviest members that begin so and have a weight, after `offset` others."""
        page: list[bytes] = yield from self._do(0, "top", prefix, offset, n)
        return page[::2]

    def near(self, prefix: str, n: int) -> Operation[list[bytes]]:
        """Members that begin one edit away from the prefix."""
        return self._do(self._shard(prefix.encode()), "near", n, *prefix)

    def _shard(self, start: bytes) -> int:
        """Where a member stands, by how it begins."""
        return 0

    def dissolve(self) -> Operation[None]:
        """Take the last keys of an empty directory along."""
        yield from self._do(0, "dissolve")


class ShardedShelf(Shelf):
    """A directory over several slots."""

    def _shard(self, start: bytes) -> int:
        """Neighbours in the alphabet go to different shards."""
        return ord(start.decode(errors="replace")[:1] or "\0") % self.shape.shards

    def _home(self, id: str) -> int:
        return binascii.crc32(id.encode()) % self.shape.shards

    def check(self) -> Operation[None]:
        yield from self._do(0, "amounts")

    def enter(self, drafts: Sequence[Draft], *, known: bool) -> Operation[int]:
        cards: dict[str, bytes] = {}
        for name, id, _ in drafts:
            if not known or (yield from self.name(id)) is not None:
                cards[id] = b"" if id == name else self.shape.card(name)
        yield from self._do(0, "found")
        leaving = yield from self._enrol(cards)
        coming = {id: members(new, id) if new else self._own(id) for id, new in cards.items()}
        yield from self._all("put_members", coming.values())
        yield from self._hand_on_weights(leaving, coming)
        yield from self._all("drop_members", chain.from_iterable(leaving.values()))
        lost = yield from self._confirm(cards)
        yield from self._all("drop_members", [coming[id] for id in lost])
        return len(cards)

    def dismiss(self, ids: Sequence[str]) -> Operation[int]:
        cards = dict.fromkeys(ids, GONE)
        leaving = yield from self._enrol(cards)
        gone = yield from self._all("drop_members", chain.from_iterable(leaving.values()))
        yield from self._confirm(cards)
        return gone

    def _hand_on_weights(
        self, leaving: dict[str, list[list[bytes]]], coming: dict[str, list[bytes]]
    ) -> Operation[None]:
        """Broken off before this, a change leaves its name without the weight."""
        shards: dict[int, list[tuple[bytes, str]]] = defaultdict(list)
        for id, names in leaving.items():
            for first, *_ in names:
                shards[self._shard(first)].append((first, id))
        for shard, pairs in shards.items():
            weights = yield from self._do(shard, "weights", *(first for first, _ in pairs))
            for (_, id), weight in zip(pairs, weights, strict=True):
                if weight != b"0":
                    yield from self._press(coming[id], -float(weight))

    def _press(self, these: Sequence[bytes], weight: float) -> Operation[bool]:
        known = 0
        for one in these:
            known += yield from self._do(self._shard(one), "weigh_members", one, weight)
        return known > 0

    def weigh(self, weights: Mapping[str, float]) -> Operation[int]:
        known = 0
        for id, weight in weights.items():
            name = yield from self.name(id)
            if name is not None:
                found = self._own(id) if name == id else members(self.shape.card(name), id)
                known += yield from self._press(found, weight)
        return known

    def top(self, prefix: bytes, offset: int, n: int) -> Operation[list[bytes]]:
        found: list[tuple[float, bytes]] = []
        for shard in [self._shard(prefix)] if prefix else range(self.shape.shards):
            page = yield from self._do(shard, "top", prefix, 0, offset + n)
            found += zip(map(float, page[1::2]), page[::2], strict=True)
        return [one for _, one in sorted(found)[offset : offset + n]]

    def discard(self, these: Sequence[bytes]) -> Operation[int]:
        return self._all("drop_members", ([one] for one in these))

    def _own(self, id: str) -> list[bytes]:
        """The members of a name that is its own id."""
        return members(self.shape.card(id), "")

    def _enrol(self, cards: dict[str, bytes]) -> Operation[dict[str, list[list[bytes]]]]:
        """Note the new cards in their homes. Answers the members of each name that leaves."""
        leaving: dict[str, list[list[bytes]]] = {}
        for home, ids in self._by_home(cards).items():
            replies = yield from self._do(home, "enrol", *(part for id in ids for part in (id, cards[id])))
            for id, reply in zip(ids, replies, strict=True):
                leaving[id] = [members(old, id) for old in reply.split(b"\2") if old]
                leaving[id] += [self._own(id)] if cards[id] else []
        return leaving

    def _confirm(self, cards: dict[str, bytes]) -> Operation[list[str]]:
        """The homes forget what has left. Answers the ids that somebody else has changed meanwhile."""
        lost: list[str] = []
        for home, ids in self._by_home(cards).items():
            replies = yield from self._do(home, "confirm", *(part for id in ids for part in (id, cards[id])))
            lost += [id for id, still in zip(ids, replies, strict=True) if not still]
        return lost

    def _by_home(self, ids: Iterable[str]) -> dict[int, list[str]]:
        homes: dict[int, list[str]] = defaultdict(list)
        for id in ids:
            homes[self._home(id)].append(id)
        return homes

    def _all(self, script: str, names: Iterable[Sequence[bytes]]) -> Operation[int]:
        """Put or drop the members of names, each where it stands. Answers how many names that made more or less."""
        whole: dict[int, list[bytes]] = defaultdict(list)
        later: dict[int, list[bytes]] = defaultdict(list)
        for first, *rest in names:
            whole[self._shard(first)].append(first)
            for one in rest:
                later[self._shard(one)].append(one)
        changed, do = 0, self._do if script == "put_members" else self._do_numbered
        for shard in {**whole, **later}:
            here = whole[shard]
            changed += yield from do(shard, script, len(here), *here, *later[shard])
        return changed

    def name(self, id: str) -> Operation[str | None]:
        found = yield from self._do(self._home(id), "find_id", id, b"")
        if found:
            return name_of(found[0])
        own = self.shape.card(id)
        there = yield from self._do(self._shard(self._own(id)[0]), "find_id", "", own)
        return id if there else None

    def read(self, prefix: bytes, last: bytes | None, n: int) -> Operation[list[bytes]]:
        if prefix:
            page: list[bytes] = yield from self._do(self._shard(prefix), "page", *_bounds(prefix, last), n)
            return page
        pages = []
        for shard in range(self.shape.shards):
            pages.append((yield from self._do(shard, "page", *_bounds(prefix, last), n)))
        return [*islice(heapq.merge(*pages), n)]

    def counts(self, prefixes: Sequence[bytes]) -> Operation[list[int]]:
        counts = []
        for prefix in prefixes:
            found = 0
            for shard in [self._shard(prefix)] if prefix else range(self.shape.shards):
                found += (yield from self._do(shard, "amounts", *_bounds(prefix)))[0]
            counts.append(found)
        return counts

    def dissolve(self) -> Operation[None]:
        for shard in reversed(range(self.shape.shards)):
            yield from self._do(shard, "dissolve")


def _bounds(prefix: bytes, last: bytes | None = None) -> tuple[bytes, bytes]:
    """What BYLEX reads: 0xFF comes in no UTF-8, so it is above every name of this prefix."""
    return b"(" + last if last else b"[" + prefix, b"(" + prefix + b"\xff"
