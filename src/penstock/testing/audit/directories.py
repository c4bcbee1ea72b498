"""Checks that the keys of a directory on one shard agree with each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.completion.bindings import DirectoryRules
from penstock.completion.card import element_rest, elements, parse_element
from penstock.completion.constants import LEAVING, OLD
from penstock.completion.fold import cut


class DirectoryAudit:
    """The keys of one directory on one shard. Each goes by the rest of its name after the hash tag."""

    def __init__(self, keys: dict[str, Any]) -> None:
        self.meta = keys.get("meta", {})
        self.names = set(keys.get("names", {}))
        self.orders = {name.removeprefix("top:"): order for name, order in keys.items() if name.startswith("top:")}
        self.weighed = set(keys.get("weighed", {}))
        self.payloads = keys.get("payloads", {})
        hashes = [content for name, content in keys.items() if name.startswith("ids:")]
        self.cards = {id: card for cards in hashes for id, card in cards.items()}

    def problems(self) -> Iterator[str]:
        """A sentence for each contradiction."""
        rules = DirectoryRules().decode(self.meta[b"rules"], "this directory") if self.meta else DirectoryRules()
        found = [parse_element(element) for element in self.names]
        # A name is stored in full, and once more for each further tail.
        whole = [one for one in found if one.tail == cut(rules.spelling.fold(one.name))]
        for name, counted in (("names", len(whole)), ("ids", len(self.cards))):
            if int(self.meta.get(name.encode(), 0)) != counted:
                yield f"meta {name}: {self.meta.get(name.encode())}, counted {counted}"
        if not self.payloads.keys() <= {element_rest(element) for element in self.names}:
            yield f"payloads: {self.payloads}, but the names are {self.names}"
        if rules.shards == 1:
            if {one.id.encode() for one in whole if one.id != one.name} != set(self.cards):
                yield f"ids: {self.cards}, but the names are {self.names}"
            if not {one for id, card in self.cards.items() for one in elements(card, id.decode())} <= self.names:
                yield f"ids: {self.cards}, but the names are {self.names}"
            if len({one.id for one in whole}) != len(whole):
                yield f"names: {self.names}: two names have the same id"
        yield from self._weights()

    def _weights(self) -> Iterator[str]:
        weights = self.orders.get("", {})
        if set(weights) != self.weighed or not self.weighed <= self.names:
            yield f"weighed: {self.weighed}, with weights {weights}"
        for start, order in self.orders.items():
            if order != {one: weight for one, weight in weights.items() if one.startswith(start.encode())}:
                yield f"top:{start}: {order}, of all weights {weights}"

    def leftovers(self) -> Iterator[str]:
        """A sentence for each interrupted change that spans several shards."""
        if pending := {id: card for id, card in self.cards.items() if OLD in card or card in {b"", LEAVING}}:
            yield f"ids: the changes of {pending} are not finished"
