"""A directory in several shards, each in a slot of its own; see `storage.py`."""

from __future__ import annotations

import binascii
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from penstock.completion.bindings import DirectoryBindings, DirectoryRules
from penstock.completion.card import card_size, elements
from penstock.completion.constants import LEAVING
from penstock.completion.entry import FoundElement, NewName, payload_change, weight_change
from penstock.completion.name_rules import checked
from penstock.completion.storage import DirectoryStorage, chunks, in_slices
from penstock.core.operations import Operation


def open_storage(prefix: str, name: str, rules: DirectoryRules) -> DirectoryStorage:
    return (DirectoryStorage if rules.shards == 1 else ShardedStorage)(prefix, name, rules)


class ShardedStorage(DirectoryStorage):
    """A directory in several shards."""

    def shards_with(self, start: bytes) -> list[DirectoryBindings]:
        return [self._shard_of(start)] if start else self._shards

    def _shard_of(self, start: bytes) -> DirectoryBindings:
        """The shard of the elements that begin with `start`."""
        # The code point decides, so that neighbours in the alphabet are in different shards.
        return self._shards[ord(start.decode(errors="replace")[:1] or "\0") % len(self._shards)]

    def _registry_of(self, id: str) -> DirectoryBindings:
        return self._shards[binascii.crc32(id.encode()) % len(self._shards)]

    def check_rules(self) -> Operation[None]:
        yield from checked(self._first.counts([]))

    # --- change ---

    def save(self, names: Sequence[NewName], *, existing_only: bool) -> Operation[int]:
        written = 0
        for chunk in chunks(names, lambda new: card_size(self.rules.card(new.name), new.id)):
            written += yield from self._save_chunk(chunk, existing_only=existing_only)
        return written

    def _save_chunk(self, names: Sequence[NewName], *, existing_only: bool) -> Operation[int]:
        cards: dict[str, bytes] = {}
        for name, id, *_ in names:
            if not existing_only or (yield from self.get(id)) is not None:
                cards[id] = b"" if id == name else self.rules.card(name)
        yield from checked(self._first.save_rules())
        old = yield from self._begin_changes(cards)
        new = {id: elements(card, id) if card else self._own_elements(id) for id, card in cards.items()}
        yield from self._add(new.values())
        changes = yield from self._changes(old, names)
        yield from self._change_elements(
            {element: changes[id] for id, found in new.items() for element in found if id in changes}
        )
        yield from self._remove(chain.from_iterable(old.values()))
        overtaken = yield from self._end_changes(cards)
        # Another process has given these ids other names since, so the names added here must not stay.
        yield from self._remove([new[id] for id in overtaken])
        return len(cards)

    def remove(self, ids: Sequence[str]) -> Operation[int]:
        removed = 0
        for chunk in chunks(ids, len):
            cards = dict.fromkeys(chunk, LEAVING)
            old = yield from self._begin_changes(cards)
            removed += yield from self._remove(chain.from_iterable(old.values()))
            yield from self._end_changes(cards)
        return removed

    def remove_elements(self, found: Sequence[bytes]) -> Operation[int]:
        return self._remove([one] for one in found)

    def change_id(self, id: str, weight: str, payload: bytes) -> Operation[float | None]:
        found = yield from self.get(id)
        if found is None:
            return None
        name, _ = found
        named = self._own_elements(id) if name == id else elements(self.rules.card(name), id)
        changed = yield from self._change_elements(dict.fromkeys(named, (weight, payload)))
        return changed.get(named[0])

    def delete_if_empty(self) -> Operation[None]:
        for shard in reversed(self._shards):  # the first shard comes last, because it has the rules
            yield from checked(shard.delete_if_empty())

    def _begin_changes(self, cards: Mapping[str, bytes]) -> Operation[dict[str, list[list[bytes]]]]:
        """Returns for each id the elements of the names that it had before."""
        old: dict[str, list[list[bytes]]] = {}
        for registry, group in self._by_registry(cards):
            replies = yield from checked(registry.begin_changes(group))
            for id, old_cards in replies.items():
                old[id] = [elements(card, id) for card in old_cards]
                old[id] += [self._own_elements(id)] if cards[id] else []
        return old

    def _end_changes(self, cards: Mapping[str, bytes]) -> Operation[list[str]]:
        """Returns the ids that another process has begun to change since `_begin_changes`."""
        overtaken: list[str] = []
        for registry, group in self._by_registry(cards):
            overtaken += yield from checked(registry.end_changes(group))
        return overtaken

    def _by_registry(self, cards: Mapping[str, bytes]) -> Iterable[tuple[DirectoryBindings, dict[str, bytes]]]:
        registries: dict[DirectoryBindings, dict[str, bytes]] = defaultdict(dict)
        for id, card in cards.items():
            registries[self._registry_of(id)][id] = card
        return registries.items()

    def _changes(
        self, old: Mapping[str, list[list[bytes]]], names: Sequence[NewName]
    ) -> Operation[dict[str, tuple[str, bytes]]]:
        """The changes of weight and payload for the new name of each id: those given, else those of its old name.

        If a change breaks off before they are stored, the weight and the payload of the old name are lost.
        """
        changes: dict[str, tuple[str, bytes]] = {}
        shards: dict[DirectoryBindings, dict[bytes, str]] = defaultdict(dict)
        for id, former in old.items():
            for first, *_ in former:
                shards[self._shard_of(first)][first] = id
        for shard, ids in shards.items():
            for one in (yield from checked(shard.look_up(ids))):
                if one.weight or one.payload:
                    changes[ids[one.element]] = weight_change(one.weight or None), payload_change(one.payload)
        for _, id, weight, payload in names:
            kept_weight, kept_payload = changes.get(id, ("", b""))
            change = (weight_change(weight) or kept_weight, payload_change(payload) or kept_payload)
            if any(change):
                changes[id] = change
        return changes

    def _change_elements(self, changes: Mapping[bytes, tuple[str, bytes]]) -> Operation[dict[bytes, float | None]]:
        """Returns the weights; None for an element that does not exist."""
        weights: dict[bytes, float | None] = {}
        shards: dict[DirectoryBindings, list[tuple[bytes, str, bytes]]] = defaultdict(list)
        for element, change in changes.items():
            shards[self._shard_of(element)].append((element, *change))
        for shard, rest in shards.items():
            while rest:
                done = yield from checked(shard.change_elements(rest))
                weights.update((element, weight) for (element, *_), weight in zip(rest, done, strict=False))
                rest = rest[len(done) :]
        return weights

    def _own_elements(self, id: str) -> list[bytes]:
        """The elements of a name that is its own id."""
        return elements(self.rules.card(id), "")

    def _add(self, names: Iterable[Sequence[bytes]]) -> Operation[None]:
        whole: dict[DirectoryBindings, list[bytes]] = defaultdict(list)
        later: dict[DirectoryBindings, list[bytes]] = defaultdict(list)
        for first, *rest in names:
            whole[self._shard_of(first)].append(first)
            for element in rest:
                later[self._shard_of(element)].append(element)
        for shard in {**whole, **later}:
            yield from checked(shard.add_elements(whole[shard], later[shard]))

    def _remove(self, names: Iterable[Sequence[bytes]]) -> Operation[int]:
        """Remove the elements of names, each in its shard. Returns how many names there were."""
        shards: dict[DirectoryBindings, list[tuple[bool, bytes]]] = defaultdict(list)
        for name in names:
            for position, element in enumerate(name):
                shards[self._shard_of(element)].append((position == 0, element))
        removed = 0
        for shard, pairs in shards.items():
            removed += yield from in_slices(pairs, shard.remove_elements)
        return removed

    # --- read ---

    def get(self, id: str) -> Operation[tuple[str, FoundElement | None] | None]:
        found = yield from checked(self._registry_of(id).find_id(id, b""))
        if found is None:
            own = self.rules.card(id)
            return (yield from checked(self._shard_of(self._own_elements(id)[0]).find_id("", own)))
        name, _ = found
        first = elements(self.rules.card(name), id)[0]
        known = yield from checked(self._shard_of(first).look_up([first]))
        return name, known[0] if known else None
