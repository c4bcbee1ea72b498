"""The move of a slot from one node of a cluster to another, step by step.

with SlotMove.of(cluster, key) as move:        begins; at the end both nodes are empty and the slot is back
    move.carry(key)                            this key is on the target now; scripts of the slot are refused
    move.finish()                              all keys are, and the target serves the slot
"""

from __future__ import annotations

import time
from typing import Self

from penstock.core.slots import slot
from tests.servers import Cluster, Server, eventually


class SlotMove:
    """Between `begin` and `finish` the source has the keys that were not carried yet, and the target the others."""

    def __init__(self, source: Server, target: Server, slot: int) -> None:
        self.source, self.target, self.slot = source, target, slot

    @classmethod
    def of(cls, cluster: Cluster, key: str) -> Self:
        """The slot of a key, from the node that has it to another one."""
        source = cluster.owner(key)
        return cls(source, next(node for node in cluster.nodes if node is not source), slot(key))

    @property
    def nodes(self) -> tuple[Server, Server]:
        return self.source, self.target

    def begin(self) -> None:
        here, there = (node.ask("CLUSTER", "MYID") for node in self.nodes)
        self.target.ask("CLUSTER", "SETSLOT", self.slot, "IMPORTING", here)
        self.source.ask("CLUSTER", "SETSLOT", self.slot, "MIGRATING", there)

    def carry(self, *keys: str | bytes) -> None:
        if keys:
            self.source.client.execute_command("MIGRATE", "127.0.0.1", self.target.port, "", 0, 5000, "KEYS", *keys)

    def finish(self, pause: float = 0.0) -> None:
        """Carry all other keys, and those that come meanwhile. `pause`: seconds after each key."""
        while keys := self.source.client.execute_command("CLUSTER", "GETKEYSINSLOT", self.slot, 1 if pause else 100):
            self.carry(*keys)
            time.sleep(pause)
        self._assign(self.target)

    def undo(self) -> None:
        """Delete what both nodes store, and give the slot back to the source, wherever it is."""
        for node in self.nodes:
            node.client.flushall()
        self._assign(self.source)
        eventually(lambda: serves(self.source, self.slot) and not serves(self.target, self.slot))

    def _assign(self, owner: Server) -> None:
        id = owner.ask("CLUSTER", "MYID")
        for node in (self.target, self.source):
            node.ask("CLUSTER", "SETSLOT", self.slot, "NODE", id)

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()


def serves(node: Server, slot: int) -> bool:
    """Whether the node says of itself that it serves the slot."""
    mine = next(line for line in node.ask("CLUSTER", "NODES").splitlines() if "myself" in line)
    ranges = [word.partition("-") for word in mine.split()[8:] if not word.startswith("[")]
    return any(int(first) <= slot <= int(last or first) for first, _, last in ranges)


def move_slot(source: Server, target: Server, slot: int, pause: float = 0.0) -> None:
    """Move a slot and its keys to another node. `pause`: seconds after each key."""
    move = SlotMove(source, target, slot)
    move.begin()
    move.finish(pause)
