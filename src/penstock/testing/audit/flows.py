"""Checks that the flows of a queue agree: what each job waits for, and the edges of its predecessors to it."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from typing import Any

from penstock.jobs.constants import WAITING
from penstock.jobs.record import Record
from penstock.jobs.row import Row
from penstock.jobs.waits import WaitState

_EDGE = struct.Struct(">HIIB")


class FlowsAudit:
    """The keys of one queue's flows. An edge and the wait of its dependent have the same number."""

    def __init__(self, keys: dict[str, Any], jobs: dict[bytes, Record], row: Row) -> None:
        self.keys = keys
        self.jobs = jobs
        self.row = row
        self.waiting = {id for id, record in jobs.items() if record.state == WAITING}

    def problems(self) -> Iterator[str]:
        waits = self.keys.get("waiting", {})
        if set(waits) != self.waiting:
            yield f"waiting: {sorted(waits)}, but the records of {sorted(self.waiting)} say so"
        edges = self._edges()
        for id in self.waiting & set(waits):
            wait = WaitState.read(waits[id])
            found = edges[id, wait.number]
            far = sum(one[:1] != b"\0" for one in self.keys.get(f"predecessors:{id.decode()}", []))
            if not found <= wait.left <= found + far and not self.keys.get("events"):
                yield f"waiting: {id!r} has {wait.left} left, but {found} edges lead there"
            if not 0 <= wait.dead <= wait.left <= wait.total:
                yield f"waiting: {id!r} has {wait}"
        inputs = {name.removeprefix("inputs:").encode() for name in self.keys if name.startswith("inputs:")}
        if lost := inputs - self.waiting:
            yield f"inputs: {sorted(lost)} do not wait"
        gone = set(self.keys.get("dependents", {})) - set(self.jobs) - set(self.keys.get("opened", {}))
        if gone and not self.keys.get("events"):
            yield f"dependents: {sorted(gone)} are not jobs"
        marks = (1 if "dependents" in self.keys else 0) + (2 if "events" in self.keys else 0)
        if marks & ~int(self.row.flows):
            yield f"row: the marks of flows are {self.row.flows}, but there are {marks}"
        yield from self._children()

    def _children(self) -> Iterator[str]:
        """Each child that a job still waits for has an edge to it, and none is kept for a job that is gone."""
        if "events" in self.keys:
            return
        if orphans := sorted(name for name in self.keys if name.startswith("orphans:")):
            yield f"orphans: {orphans} belong to no event"
        for name, members in self.keys.items():
            parent = name.removeprefix("children:").encode()
            if not name.startswith("children:"):
                continue
            if parent not in self.jobs:
                yield f"{name}: there is no such job"
            children = {member[1:] for member in members if member[:1] == b"\0"}
            if lost := {child for child in children if not self._leads(child, parent)}:
                yield f"{name}: no edge leads there from {sorted(lost)}"

    def _leads(self, child: bytes, parent: bytes) -> bool:
        edge = self.keys.get("dependents", {}).get(child, b"")
        edges = [edge] if edge else self.keys.get(f"dependents:{child.decode(errors='replace')}", [])
        return any(one[:6] == bytes(6) and one.endswith(parent) for one in edges)

    def _edges(self) -> Counter[tuple[bytes, int]]:
        found: Counter[tuple[bytes, int]] = Counter()
        for id, edge in self.keys.get("dependents", {}).items():
            for one in [edge] if edge else self.keys.get(f"dependents:{id.decode()}", []):
                high, low, _, size = _EDGE.unpack_from(one)
                if not size:
                    found[one[_EDGE.size :], high << 32 | low] += 1
        return found
