"""Reads back what a directory keeps on one shard and compares it with itself; see `audit.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.completion.card import members, read
from penstock.completion.fold import fold


class Shelves:
    """The keys of one directory on one shard, by suffix."""

    def __init__(self, keys: dict[str, Any]) -> None:
        self.meta = keys.get("meta", {})
        self.names = set(keys.get("names", {}))
        self.orders = {name.removeprefix("top:"): held for name, held in keys.items() if name.startswith("top:")}
        self.weighed = set(keys.get("weighed", {}))
        self.cards = {id: card for name, held in keys.items() if name.startswith("ids:") for id, card in held.items()}

    def faults(self) -> Iterator[str]:
        """One sentence for each thing that does not fit the rest."""
        shape = self.meta.get(b"shape", b"").decode()
        found = [read(member) for member in self.names]
        whole = [one for one in found if one.tail == fold(one.name, accents="accents=1" in shape)]
        for name, counted in (("names", len(whole)), ("ids", len(self.cards))):
            if int(self.meta.get(name.encode(), 0)) != counted:
                yield f"meta {name}: {self.meta.get(name.encode())}, counted {counted}"
        if shape.endswith("shards=1"):
            if {one.id.encode() for one in whole if one.id != one.name} != set(self.cards):
                yield f"ids: {self.cards}, but the names are {self.names}"
            if not {one for id, card in self.cards.items() for one in members(card, id.decode())} <= self.names:
                yield f"ids: {self.cards}, but the names are {self.names}"
            if len({one.id for one in whole}) != len(whole):
                yield f"names: {self.names}: an id twice"

        yield from self._weights()

    def _weights(self) -> Iterator[str]:
        weights = self.orders.get("", {})
        if set(weights) != self.weighed or not self.weighed <= self.names:
            yield f"weighed: {self.weighed}, with weights {weights}"
        for start, held in self.orders.items():
            if held != {one: weight for one, weight in weights.items() if one.startswith(start.encode())}:
                yield f"top:{start}: not the order of those that begin so"

    def waits(self) -> Iterator[str]:
        """What a change that broke off has left to be ended."""
        if pending := {id: card for id, card in self.cards.items() if b"\2" in card or card in {b"", b"\3"}}:
            yield f"ids: {pending} wait for the end of a change"
