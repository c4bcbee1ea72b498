"""The names of a directory in the server, in one slot or in several shards.

In one slot, every change is one script. With shards, the first character of a name's fold selects the shard of the
name, so that a search by prefix reads one shard. The hash of an id selects its *home*, the shard that registers it. A
change of an id then takes four kinds of calls, each of which may be repeated:

    begin    the home registers the new name, and returns the names that the id had before
    add      the new name is added to its shards
    remove   the old names are removed from theirs
    end      the home forgets the old names

If a change breaks off in between, the same change, or any other change of this id, completes it.
"""

from __future__ import annotations

import binascii
import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, islice

from penstock.completion.bindings import DirectoryBindings, DirectoryRules
from penstock.completion.card import members
from penstock.completion.constants import LEAVING
from penstock.completion.entry import NewName
from penstock.completion.keys import CompletionKeys
from penstock.completion.name_rules import OtherRules, checked
from penstock.core.operations import Operation, RoundTrip


class DirectoryStorage:
    """A directory in one slot, with given rules. Each operation raises OtherRules if the stored rules differ."""

    def __init__(self, prefix: str, name: str, rules: DirectoryRules) -> None:
        self.rules = rules
        kinds = ["directory", *(f"directory/{n}" for n in range(1, rules.shards))]
        self._shards = [DirectoryBindings(CompletionKeys(prefix, kind, name), rules) for kind in kinds]

    @staticmethod
    def open(prefix: str, name: str, rules: DirectoryRules) -> DirectoryStorage:
        return (DirectoryStorage if rules.shards == 1 else ShardedStorage)(prefix, name, rules)

    @property
    def _first(self) -> DirectoryBindings:
        return self._shards[0]

    def check_rules(self) -> Operation[None]:
        """Raise OtherRules if other rules are stored and the operation that follows might not notice.

        In one slot, it always notices, because the rules and the names are in the same slot.
        """
        yield from ()

    # --- change ---

    def save(self, names: Sequence[NewName], *, existing_only: bool) -> Operation[int]:
        """Add names, and give ids that exist their new names. Returns how many were written."""
        return checked(self._first.save(names, existing_only=existing_only))

    def remove(self, ids: Sequence[str]) -> Operation[int]:
        """Remove ids. Returns how many of them were there."""
        return checked(self._first.remove(ids))

    def remove_members(self, found: Sequence[bytes]) -> Operation[int]:
        """Remove members that belong to no id, because they were written by hand."""
        return checked(self._first.remove_members([], found))

    def set_weights(self, weights: Mapping[str, float]) -> Operation[int]:
        """Set the weights of ids; 0 removes one. Returns how many of the ids exist."""
        return checked(self._first.set_weights(weights))

    def delete_if_empty(self) -> Operation[None]:
        """Delete the remaining keys of a directory without names."""
        yield from checked(self._first.delete_if_empty())

    # --- read ---

    def name_of(self, id: str) -> Operation[str | None]:
        return checked(self._first.find_id(id, self.rules.card(id)))

    def page(self, prefix: bytes, last: bytes | None, n: int) -> Operation[list[bytes]]:
        """The next `n` members that begin with `prefix`, after `last`."""
        return checked(self._first.page(prefix, last, n))

    def counts(self, prefixes: Sequence[bytes]) -> Operation[list[int]]:
        """How many members begin with each prefix; for an empty prefix, how many names there are."""
        return checked(self._first.counts(prefixes))

    def heaviest(self, prefix: bytes, offset: int, n: int) -> Operation[list[bytes]]:
        """The `n` heaviest members that begin with `prefix` and have a weight, after the first `offset` of them."""
        found = yield from checked(self._first.heaviest(prefix, offset, n))
        return [member for _, member in found]

    def similar(self, prefix: str, n: int) -> Operation[list[bytes]]:
        """Members whose beginning differs from `prefix` by one typo, not in the first character."""
        return checked(self._shard_of(prefix.encode()).similar(prefix, n))

    def _shard_of(self, start: bytes) -> DirectoryBindings:
        """The shard of the members that begin with `start`."""
        return self._first


class ShardedStorage(DirectoryStorage):
    """A directory in several shards."""

    def _shard_of(self, start: bytes) -> DirectoryBindings:
        # The code point decides, so that neighbours in the alphabet are in different shards.
        return self._shards[ord(start.decode(errors="replace")[:1] or "\0") % len(self._shards)]

    def _home_of(self, id: str) -> DirectoryBindings:
        return self._shards[binascii.crc32(id.encode()) % len(self._shards)]

    def check_rules(self) -> Operation[None]:
        yield from checked(self._first.counts([]))

    # --- change ---

    def save(self, names: Sequence[NewName], *, existing_only: bool) -> Operation[int]:
        cards: dict[str, bytes] = {}
        for name, id, _ in names:
            if not existing_only or (yield from self.name_of(id)) is not None:
                cards[id] = b"" if id == name else self.rules.card(name)
        yield from checked(self._first.save_rules())
        old = yield from self._begin_changes(cards)
        new = {id: members(card, id) if card else self._own_members(id) for id, card in cards.items()}
        yield from self._add(new.values())
        yield from self._carry_weights_over(old, new)
        yield from self._remove(chain.from_iterable(old.values()))
        overtaken = yield from self._end_changes(cards)
        # Another process has given these ids other names since, so the names added here must not stay.
        yield from self._remove([new[id] for id in overtaken])
        return len(cards)

    def remove(self, ids: Sequence[str]) -> Operation[int]:
        cards = dict.fromkeys(ids, LEAVING)
        old = yield from self._begin_changes(cards)
        removed = yield from self._remove(chain.from_iterable(old.values()))
        yield from self._end_changes(cards)
        return removed

    def remove_members(self, found: Sequence[bytes]) -> Operation[int]:
        return self._remove([one] for one in found)

    def set_weights(self, weights: Mapping[str, float]) -> Operation[int]:
        known = 0
        for id, weight in weights.items():
            name = yield from self.name_of(id)
            if name is not None:
                found = self._own_members(id) if name == id else members(self.rules.card(name), id)
                known += yield from self._set_member_weights(found, weight)
        return known

    def delete_if_empty(self) -> Operation[None]:
        for shard in reversed(self._shards):  # the first shard comes last, because it has the rules
            yield from checked(shard.delete_if_empty())

    def _begin_changes(self, cards: Mapping[str, bytes]) -> Operation[dict[str, list[list[bytes]]]]:
        """Returns for each id the members of the names that it had before."""
        old: dict[str, list[list[bytes]]] = {}
        for home, group in self._by_home(cards):
            replies = yield from checked(home.begin_changes(group))
            for id, old_cards in replies.items():
                old[id] = [members(card, id) for card in old_cards]
                old[id] += [self._own_members(id)] if cards[id] else []
        return old

    def _end_changes(self, cards: Mapping[str, bytes]) -> Operation[list[str]]:
        """Returns the ids that another process has begun to change since `_begin_changes`."""
        overtaken: list[str] = []
        for home, group in self._by_home(cards):
            overtaken += yield from checked(home.end_changes(group))
        return overtaken

    def _by_home(self, cards: Mapping[str, bytes]) -> Iterable[tuple[DirectoryBindings, dict[str, bytes]]]:
        homes: dict[DirectoryBindings, dict[str, bytes]] = defaultdict(dict)
        for id, card in cards.items():
            homes[self._home_of(id)][id] = card
        return homes.items()

    def _carry_weights_over(
        self, old: Mapping[str, list[list[bytes]]], new: Mapping[str, list[bytes]]
    ) -> Operation[None]:
        """Give the new name of each id the weight of its old one. A change that breaks off before this loses it."""
        shards: dict[DirectoryBindings, list[tuple[bytes, str]]] = defaultdict(list)
        for id, names in old.items():
            for first, *_ in names:
                shards[self._shard_of(first)].append((first, id))
        for shard, pairs in shards.items():
            weights = yield from checked(shard.member_weights(first for first, _ in pairs))
            for (_, id), weight in zip(pairs, weights, strict=True):
                if weight:
                    yield from self._set_member_weights(new[id], weight)

    def _set_member_weights(self, found: Sequence[bytes], weight: float) -> Operation[bool]:
        known = 0
        for member in found:
            known += yield from checked(self._shard_of(member).set_member_weight(member, weight))
        return known > 0

    def _own_members(self, id: str) -> list[bytes]:
        """The members of a name that is its own id."""
        return members(self.rules.card(id), "")

    def _add(self, names: Iterable[Sequence[bytes]]) -> Operation[int]:
        return self._in_each_shard(names, DirectoryBindings.add_members)

    def _remove(self, names: Iterable[Sequence[bytes]]) -> Operation[int]:
        return self._in_each_shard(names, DirectoryBindings.remove_members)

    def _in_each_shard(
        self,
        names: Iterable[Sequence[bytes]],
        change: Callable[[DirectoryBindings, Sequence[bytes], Sequence[bytes]], RoundTrip[int | OtherRules]],
    ) -> Operation[int]:
        """Add or remove the members of names, each in its shard. Returns how many were added or removed."""
        whole: dict[DirectoryBindings, list[bytes]] = defaultdict(list)
        later: dict[DirectoryBindings, list[bytes]] = defaultdict(list)
        for first, *rest in names:
            whole[self._shard_of(first)].append(first)
            for member in rest:
                later[self._shard_of(member)].append(member)
        changed = 0
        for shard in {**whole, **later}:
            changed += yield from checked(change(shard, whole[shard], later[shard]))
        return changed

    # --- read ---

    def name_of(self, id: str) -> Operation[str | None]:
        name = yield from checked(self._home_of(id).find_id(id, b""))
        if name is not None:
            return name
        own = self.rules.card(id)
        found = yield from checked(self._shard_of(self._own_members(id)[0]).find_id("", own))
        return None if found is None else id

    def page(self, prefix: bytes, last: bytes | None, n: int) -> Operation[list[bytes]]:
        if prefix:
            return (yield from checked(self._shard_of(prefix).page(prefix, last, n)))
        pages = []
        for shard in self._shards:
            pages.append((yield from checked(shard.page(prefix, last, n))))
        return [*islice(heapq.merge(*pages), n)]

    def counts(self, prefixes: Sequence[bytes]) -> Operation[list[int]]:
        counts = []
        for prefix in prefixes:
            found = 0
            for shard in self._shards_with(prefix):
                found += (yield from checked(shard.counts([prefix])))[0]
            counts.append(found)
        return counts

    def heaviest(self, prefix: bytes, offset: int, n: int) -> Operation[list[bytes]]:
        found: list[tuple[float, bytes]] = []
        for shard in self._shards_with(prefix):
            found += yield from checked(shard.heaviest(prefix, 0, offset + n))
        found.sort(key=lambda pair: (-pair[0], pair[1]))
        return [member for _, member in found[offset : offset + n]]

    def _shards_with(self, prefix: bytes) -> list[DirectoryBindings]:
        """The shards that may have members that begin with `prefix`."""
        return [self._shard_of(prefix)] if prefix else self._shards
