"""Checks that the keys of a queue agree with each other.

Every job must be exactly where its record says: in a lane, the delayed jobs, a claim, or the dead letters. The
counters must equal a recount, and an incarnation that ended must have left no keys.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from penstock.jobs.claims import Registration
from penstock.jobs.constants import (
    CLAIM,
    DEAD,
    DELAYED,
    NUMBER_BYTES,
    OVERDUE,
    PARKED,
    READY,
    RUNNING,
    SLEEPING,
    WAITING,
)
from penstock.jobs.record import Record, entry_generation, entry_has_more, entry_id
from penstock.jobs.row import Row, read_row
from penstock.jobs.schedule import StoredSchedule
from penstock.testing.audit.flows import FlowsAudit
from penstock.testing.audit.limits import LimitsAudit

_COUNTED_STATES = {READY: 0, DELAYED: 1, RUNNING: 2, DEAD: 3, PARKED: 4, WAITING: 5, SLEEPING: 6}
"""State of a job -> index of its counter in the counts of a tenant."""


_TENANT_AT: Final = CLAIM["tenant"][0]


def _ids_of(batch: bytes) -> list[bytes]:
    """The ids of the jobs of a batch that is held as one entry: behind the tenant of its claim."""
    ids: list[str] = msgspec.msgpack.decode(batch[_TENANT_AT + 1 + batch[_TENANT_AT] :])
    return [id.encode() for id in ids]


class QueueAudit:
    """The keys of one queue that do not expire. Each goes by the rest of its name after the hash tag."""

    def __init__(self, keys: dict[str, Any]) -> None:
        self.keys = keys
        records = {id: Record.read(body) for id, body in keys.get("jobs", {}).items()}
        self.jobs = {id: rec for id, rec in records.items() if rec is not None and rec.state in _COUNTED_STATES}
        meta = keys.get("meta", {})
        self.row: Row | None = read_row(meta[b"row"]) if b"row" in meta else None
        self.owners = {id: incarnation for id, incarnation in keys.get("owners", {}).items() if id}

    def problems(self) -> Iterator[str]:
        """A sentence for each contradiction."""
        if damaged := set(self.keys.get("jobs", {})) - set(self.jobs):
            yield f"jobs: the records of {damaged} are damaged"
        if self.row is None:
            if set(self.keys) - {"weights"}:
                yield f"meta: no row, but {sorted(self.keys)}"
            return
        yield from self._counters()
        yield from self._lanes()
        yield from self._turns()
        yield from self._delayed_and_dead()
        yield from self._claims()
        yield from self._schedules()
        yield from self._unique_keys()
        yield from FlowsAudit(self.keys, self.jobs, self.row).problems()
        yield from LimitsAudit(self.keys, self.jobs, set(self.owners)).problems()
        if set(self.keys.get("failures", {})) != {id for id, record in self.jobs.items() if record.has_reason}:
            yield f"failures: {self.keys.get('failures')}"
        noted = {id for id, record in self.jobs.items() if record.has_notes}
        notes = set(self.keys.get("notes", {}))
        steps = {name.removeprefix("steps:").encode() for name in self.keys if name.startswith("steps:")}
        # A record may have the flag because of an output, which expires.
        if not notes | steps <= noted | set(self.owners):
            yield f"notes: {self.keys.get('notes')}, steps of {steps}, and the records of {noted} say so"

    def _schedules(self) -> Iterator[str]:
        """`ticks` has active schedules with a next tick, outboxes, and open flows. The row has the earliest time."""
        stored = [StoredSchedule.read(name, packed) for name, packed in self.keys.get("schedules", {}).items()]
        if gone := set(self.keys.get("runs", {})) - set(self.keys.get("schedules", {})):
            yield f"runs: of schedules that do not exist: {sorted(gone)}"
        planned = {one.name.encode() for one in stored if one.state in (b"a", b"u") and one.next_tick}
        planned |= {name.encode() for name in self.keys if name.startswith("outbox:")}
        ticks = self.keys.get("ticks", {})
        if "opened" in self.keys:
            planned.add(OVERDUE)
        if set(ticks) - {OVERDUE} != planned - {OVERDUE} or planned - set(ticks):
            yield f"ticks: {sorted(ticks)}, but the active schedules and the outbox have {sorted(planned)}"
        if self._row.next_tick != min(ticks.values(), default=0):
            yield f"row: the next tick is {self._row.next_tick}, but ticks has {sorted(ticks.values())[:3]}"

    def _unique_keys(self) -> Iterator[str]:
        """Each key is held by a job that has it and is not dead, and each job holds its key until it ends."""
        held = self.keys.get("unique", {})
        for key, id in held.items():
            record = self.jobs.get(id)
            if record is None or self._state(id) == DEAD or record.unique is None or record.unique[0] != key.decode():
                yield f"unique: {key!r} is held by {id!r}, which does not have it (any more)"
        for id, record in self.jobs.items():
            one = record.unique if self._state(id) != DEAD else None
            if (
                one is not None
                and (one[1] == "d" or (one[1] == "l" and self._state(id) != RUNNING))
                and held.get(one[0].encode()) != id
            ):
                yield f"unique: {id!r} does not hold its key {one[0]!r}"

    def leftovers(self) -> Iterator[str]:
        """A sentence for each worker, sleeper or listener that is registered although nothing runs."""
        busy = set(self._named("batches:"))
        if idle := {inc for inc in self._incarnations() - busy if set(self.keys.get(f"held:{inc}", {})) <= {b""}}:
            yield f"leases: {sorted(idle)} hold no jobs, and no worker should be left"
        for name in ("listeners", "sleepers"):
            if name in self.keys:
                yield f"{name}: {self.keys[name]}, and none should be left"
        if self.row and self.row.alone:
            yield f"sleepers: {self.row.alone}, and none should be left"

    def _named(self, start: str) -> dict[str, Any]:
        """The keys whose names begin with `start`, each under the rest of its name."""
        return {name.removeprefix(start): content for name, content in self.keys.items() if name.startswith(start)}

    def _in_state(self, state: bytes) -> set[bytes]:
        return {id for id in self.jobs if self._state(id) == state}

    def _state(self, id: bytes) -> bytes:
        """The state of a job. The record of a running job still has the state in which it was claimed."""
        return RUNNING if id in self.owners else self.jobs[id].state

    def _incarnations(self) -> set[str]:
        return {incarnation.decode() for incarnation in self.keys.get("leases", {})}

    def _counters(self) -> Iterator[str]:
        counted: dict[bytes, list[int]] = {}
        for id, record in self.jobs.items():
            counted.setdefault(record.tenant.encode(), [0] * 7)[_COUNTED_STATES[self._state(id)]] += 1
        packed = {tenant: _packed(n) for tenant, n in counted.items()}
        if packed != self.keys.get("tenants", {}):
            yield f"tenants: {self.keys.get('tenants')}, counted {counted}"
        for index, name in enumerate(("ready", "delayed", "running", "dead", "parked", "dependent", "sleeping")):
            total = sum(numbers[index] for numbers in counted.values())
            if getattr(self.row, name) != total:
                yield f"row {name}: {getattr(self.row, name)}, counted {total}"
        ages = Counter(self.jobs[id].since // 1000 for id in self._in_state(READY))
        stored = {int(second): int(n) for second, n in self.keys.get("age", {}).items()}
        if {int(second) for second in self.keys.get("ages", {})} != set(stored):
            yield f"ages: {self.keys.get('ages')}, but age has {sorted(stored)}"
        if newest := {int(self._row.second): self._row.second_ready} if self._row.second_ready else {}:
            stored |= newest
        if stored != ages:
            yield f"age: {stored}, counted {ages}"
        parked = Counter(self.jobs[id].since // 1000 for id in self._in_state(PARKED))
        held = {int(second): int(n) for second, n in self.keys.get("parked_age", {}).items()}
        if held != parked or {int(second) for second in self.keys.get("parked_ages", {})} != set(held):
            yield f"parked_age: {held}, {self.keys.get('parked_ages')}, counted {parked}"

    def _lanes(self) -> Iterator[str]:
        found: Counter[bytes] = Counter()
        entries_of_levels: Counter[int] = Counter()
        for level, tenant, entries in self._lists():
            entries_of_levels[level] += len(entries)
            if tenant not in self.keys.get(f"rotation:{level}", {}):
                yield f"level {level}, {tenant!r}: entries, but no turn"
            for entry in entries:
                record = self._ready(entry)
                if record is not None:
                    found[entry_id(entry)] += 1
                    if (level, tenant) != (record.priority, record.tenant.encode()):
                        yield f"level {level}, {tenant!r}: {entry!r} belongs to another lane"
        if self._row.entries() != entries_of_levels:
            yield f"row: entries {self._row.entries()}, counted {entries_of_levels}"
        if self._row.suspects != len(self.keys.get("suspects", {})):
            yield f"row: {self._row.suspects} suspects, counted {len(self.keys.get('suspects', {}))}"
        suspects = [entry_id(entry) for entry in self.keys.get("suspects", {}) if self._ready(entry)]
        if set(suspects) != {id for id in self._in_state(READY) if self.jobs[id].is_suspect}:
            yield f"suspects: {self.keys.get('suspects')}"
        found.update(suspects)
        if found != Counter(self._in_state(READY)):
            yield f"ready are {self._in_state(READY)}, in lanes are {found}"

    def _turns(self) -> Iterator[str]:
        for level, tenants in self._named("rotation:").items():
            for tenant in tenants:
                if (
                    tenant not in self.keys.get(f"heads:{level}", {})
                    and f"front:{level}:{tenant.decode()}" not in self.keys
                ):
                    yield f"rotation:{level}: {tenant!r} has a turn, but no entries"
        lingering = {
            f"{level}:{tenant.decode(errors='replace')}"
            for level, tenants in self._named("rotation:").items()
            for tenant, time in tenants.items()
            if time == math.inf
        }
        if lingering != {member.decode(errors="replace") for member in self.keys.get("lingering", {})}:
            yield f"lingering: {self.keys.get('lingering')}, but these wait for a whole batch: {sorted(lingering)}"
        if self._row.front != sum(map(len, self._named("front:").values())):
            yield f"row: {self._row.front} entries in front lists"
        for lane in self._named("lane:"):
            level, _, tenant = lane.partition(":")
            head = self.keys.get(f"heads:{level}", {}).get(tenant.encode())
            if head is None or not entry_has_more(head):
                yield f"lane:{lane}: entries, but the first entry {head!r} does not say so"

    def _lists(self) -> Iterator[tuple[int, bytes, list[bytes]]]:
        """Level, tenant and entries of each key in which a lane keeps some."""
        for level, heads in self._named("heads:").items():
            for tenant, entry in heads.items():
                yield int(level), tenant, [entry]
        for start in ("lane:", "front:"):
            for lane, entries in self._named(start).items():
                level, _, tenant = lane.partition(":")
                yield int(level), tenant.encode(), entries

    @property
    def _row(self) -> Row:
        assert self.row is not None
        return self.row

    def _ready(self, entry: bytes) -> Record | None:
        """The ready job of an entry; None if the entry is left over from a job that was cancelled."""
        record = self.jobs.get(entry_id(entry))
        valid = (
            record is not None
            and record.state == READY
            and entry_id(entry) not in self.owners
            and record.generation == entry_generation(entry)
        )
        return record if valid else None

    def _delayed_and_dead(self) -> Iterator[str]:
        found = {entry_id(entry): (entry_generation(entry), due) for entry, due in self.keys.get("delayed", {}).items()}
        delayed = self._in_state(DELAYED) | self._in_state(SLEEPING)
        expected = {id: (self.jobs[id].generation, self.jobs[id].since) for id in delayed}
        if found != expected:
            yield f"delayed: {found}, expected {expected}"
        waiting = {id: one for id, one in self.jobs.items() if self._state(id) not in (RUNNING, DEAD)}
        expiring = {id: int(at) for id, at in self.keys.get("expiring", {}).items()}
        if expiring != {id: one.expires for id, one in waiting.items() if one.expires}:
            yield f"expiring: {expiring}, expected {[(id, one.expires) for id, one in waiting.items() if one.expires]}"
        if expiring and not 0 < self._row.next_expiry <= min(expiring.values()):
            yield f"row: the next expiry is {self._row.next_expiry}, but expiring has {sorted(expiring.values())[:3]}"
        dead = {id: int(at) for id, at in self.keys.get("dead", {}).items()}
        if dead != {id: self.jobs[id].since for id in self._in_state(DEAD)}:
            yield f"dead: {self.keys.get('dead')}, expected {self._in_state(DEAD)}"

    def _claims(self) -> Iterator[str]:
        held = self._named("held:")
        if not set(held) <= self._incarnations():
            yield f"leases: {self.keys.get('leases')}, but {sorted(held)} hold jobs"
        if not set(self.keys.get("workers", {})) <= set(self.keys.get("leases", {})):
            yield f"workers: {self.keys['workers']}, but leases are {self.keys.get('leases')}"
        yield from self._releases()
        claims = {(id, incarnation.encode()) for incarnation, held_ in held.items() for id in held_ if id}
        for incarnation, batches in self._named("batches:").items():
            ids = [id for batch in batches.values() for id in _ids_of(batch)]
            if sum(int.from_bytes(name[NUMBER_BYTES:]) for name in batches) != len(ids):
                yield f"batches:{incarnation}: their names count other numbers of jobs: {batches}"
            claims |= {(id, incarnation.encode()) for id in ids}
        if claims != {(id, owner.partition(b" ")[0]) for id, owner in self.owners.items()}:
            yield f"owners: {self.owners}, held are {sorted(claims)}"
        if lost := set(self.owners) - set(self.jobs):
            yield f"owners: {lost} are held, but have no record"

    def _releases(self) -> Iterator[str]:
        """`releases` counts the workers of each code, and their tasks are kept as long as there is one."""
        codes = [Registration.read(packed).release.code.encode() for packed in self.keys.get("workers", {}).values()]
        counted = Counter(code for code in codes if code)
        stored = {code: int(value.partition(b" ")[0]) for code, value in self.keys.get("releases", {}).items()}
        if stored != counted:
            yield f"releases: {stored}, but the workers have {counted}"
        if tasks := {code.encode() for code in self._named("tasks:")} - set(counted):
            yield f"tasks: {tasks} are of releases without a worker"


def _packed(numbers: list[int]) -> bytes:
    """The counts of a tenant as stored. Trailing zeros among the last three counts are left out."""
    n = max([4, *(index for index in (5, 6, 7) if numbers[index - 1])])
    return struct.pack(f">{n}I", *numbers[:n])
