"""Checks that the keys of a queue agree with each other.

Every job must be in the one place that its record names: a lane, the delayed jobs, a claim, or the dead letters. The
counters must equal a recount, and an incarnation that ended must have left no keys.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from typing import Any

from penstock.jobs.constants import DEAD, DELAYED, READY, RUNNING
from penstock.jobs.record import Record, entry_generation, entry_id

_COUNTED_STATES = {READY: 0, DELAYED: 1, RUNNING: 2, DEAD: 3}
"""State of a job -> index of its counter in the counts of a tenant."""


class QueueAudit:
    """The keys of one queue that do not expire. Each is named by the part of its name after the hash tag."""

    def __init__(self, keys: dict[str, Any]) -> None:
        self.keys = keys
        records = {id: Record.read(body) for id, body in keys.get("jobs", {}).items()}
        self.jobs = {id: rec for id, rec in records.items() if rec is not None and rec.state in _COUNTED_STATES}
        self.meta = keys.get("meta", {})

    def problems(self) -> Iterator[str]:
        """A sentence for each contradiction."""
        if damaged := set(self.keys.get("jobs", {})) - set(self.jobs):
            yield f"jobs: the records of {damaged} are damaged"
        yield from self._counters()
        yield from self._lanes()
        yield from self._turns()
        yield from self._delayed_and_dead()
        yield from self._claims()
        if set(self.keys.get("reasons", {})) != {id for id, record in self.jobs.items() if record.has_reason}:
            yield f"reasons: {self.keys.get('reasons')}"

    def leftovers(self) -> Iterator[str]:
        """A sentence for each worker, sleeper or listener that is registered although nothing runs."""
        if idle := self._incarnations() - set(self._named("held:")):
            yield f"leases: {sorted(idle)} hold no jobs, and no worker should be left"
        for name in ("listeners", "sleepers"):
            if name in self.keys:
                yield f"{name}: {self.keys[name]}, and none should be left"

    def _named(self, start: str) -> dict[str, Any]:
        """The keys whose names begin with `start`, each under the rest of its name."""
        return {name.removeprefix(start): content for name, content in self.keys.items() if name.startswith(start)}

    def _in_state(self, state: bytes) -> set[bytes]:
        return {id for id, record in self.jobs.items() if record.state == state}

    def _incarnations(self) -> set[str]:
        return {incarnation.decode() for incarnation in self.keys.get("leases", {})}

    def _counters(self) -> Iterator[str]:
        counted: dict[bytes, list[int]] = {}
        for record in self.jobs.values():
            counted.setdefault(record.tenant.encode(), [0, 0, 0, 0])[_COUNTED_STATES[record.state]] += 1
        packed = {tenant: struct.pack(">4I", *numbers) for tenant, numbers in counted.items()}
        if packed != self.keys.get("tenants", {}):
            yield f"tenants: {self.keys.get('tenants')}, counted {counted}"
        for place, name in enumerate((b"ready", b"delayed", b"running", b"dead")):
            total = sum(numbers[place] for numbers in counted.values())
            if int(self.meta.get(name, 0)) != total:
                yield f"meta {name.decode()}: {self.meta.get(name)}, counted {total}"
        ages = Counter(record.since // 1000 for record in self.jobs.values() if record.state == READY)
        if {int(second): int(n) for second, n in self.keys.get("age", {}).items()} != ages:
            yield f"age: {self.keys.get('age')}, counted {ages}"
        if {int(second) for second in self.keys.get("ages", {})} != set(ages):
            yield f"ages: {self.keys.get('ages')}, counted {sorted(ages)}"

    def _lanes(self) -> Iterator[str]:
        found: Counter[bytes] = Counter()
        for start in ("lane:", "front:"):
            for lane, entries in self._named(start).items():
                level, _, tenant = lane.partition(":")
                if tenant.encode() not in self.keys.get(f"turns:{level}", {}):
                    yield f"{start}{lane}: entries, but no turn"
                for entry in entries:
                    record = self._ready(entry)
                    if record is not None:
                        found[entry_id(entry)] += 1
                        if (level, tenant) != (str(record.priority), record.tenant):
                            yield f"{start}{lane}: {entry!r} belongs to another lane"
        suspects = [entry_id(entry) for entry in self.keys.get("suspects", {}) if self._ready(entry)]
        if set(suspects) != {id for id in self._in_state(READY) if self.jobs[id].is_suspect}:
            yield f"suspects: {self.keys.get('suspects')}"
        found.update(suspects)
        if found != Counter(self._in_state(READY)):
            yield f"ready are {self._in_state(READY)}, in lanes are {found}"

    def _turns(self) -> Iterator[str]:
        for level, tenants in self._named("turns:").items():
            for tenant in tenants:
                if not {f"{start}{level}:{tenant.decode()}" for start in ("lane:", "front:")} & set(self.keys):
                    yield f"turns:{level}: {tenant!r} has a turn, but no entries"
        if int(self.meta.get(b"front", 0)) != sum(map(len, self._named("front:").values())):
            yield f"meta front: {self.meta.get(b'front')}"

    def _ready(self, entry: bytes) -> Record | None:
        """The ready job of an entry; None if the entry is left over from a job that was cancelled."""
        record = self.jobs.get(entry_id(entry))
        valid = record is not None and record.state == READY and record.generation == entry_generation(entry)
        return record if valid else None

    def _delayed_and_dead(self) -> Iterator[str]:
        found = {entry_id(entry): (entry_generation(entry), due) for entry, due in self.keys.get("delayed", {}).items()}
        expected = {id: (self.jobs[id].generation, self.jobs[id].since) for id in self._in_state(DELAYED)}
        if found != expected:
            yield f"delayed: {found}, expected {expected}"
        dead = {id: int(at) for id, at in self.keys.get("dead", {}).items()}
        if dead != {id: self.jobs[id].since for id in self._in_state(DEAD)}:
            yield f"dead: {self.keys.get('dead')}, expected {self._in_state(DEAD)}"

    def _claims(self) -> Iterator[str]:
        held = self._named("held:")
        if not set(held) <= self._incarnations():
            yield f"leases: {self.keys.get('leases')}, but {sorted(held)} hold jobs"
        if not set(self.keys.get("workers", {})) <= set(self.keys.get("leases", {})):
            yield f"workers: {self.keys['workers']}, but leases are {self.keys.get('leases')}"
        if Counter(id for claims in held.values() for id in claims) != Counter(self._in_state(RUNNING)):
            yield f"running are {self._in_state(RUNNING)}, held are {held}"
