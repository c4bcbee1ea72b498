"""Checks of the limits of a queue: places, parked jobs and their lanes must agree with the records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from penstock.jobs.constants import PARKED, READY
from penstock.jobs.record import Record, entry_generation, entry_id


class LimitsAudit:
    """Compares the keys that limits use with the records of a queue's jobs."""

    def __init__(self, keys: Mapping[str, Any], jobs: Mapping[bytes, Record], running: set[bytes]) -> None:
        self.keys = keys
        self.jobs = jobs
        self.running = running

    def problems(self) -> Iterator[str]:
        used, parked = self._counted()
        places = {
            key.decode(errors="replace"): msgspec.msgpack.decode(b"\x94" + packed)
            for key, packed in self.keys.get("places", {}).items()
        }
        for key in sorted(places.keys() | used.keys() | parked.keys()):
            found = places.get(key, [0, 0, 0, []])
            if (found[0], found[1]) != (used[key], parked[key]):
                yield f"places: {key} has {found[:2]} in use and parked, counted {used[key]} and {parked[key]}"
        lanes = {key: self._entries(key) for key in places}
        if parking := {key.decode(errors="replace") for key in self.keys.get("parking", {})} ^ {
            key for key, entries in lanes.items() if entries
        }:
            yield f"parking: {sorted(parking)} are only in `parking`, or only have lanes"
        scopes = {key.decode(errors="replace") for key in self.keys.get("pauses", {})}
        held = {f"p:hold={key.decode(errors='replace')}" for key in self.keys.get("holds", {})}
        waiting = {key.decode(errors="replace") for key in self.keys.get("admissions", {})}
        if unowned := {key for key in places if key.startswith("p:")} - scopes - held - waiting:
            yield f"pauses: {sorted(unowned)} have parked jobs, but are not paused"
        for id, record in self.jobs.items():
            if record.state == PARKED:
                entry = (record.generation, id)
                expected = [_parked_at(record)] if _parked_at(record) else _scopes(record)
                if sum(lanes.get(key, []).count(entry) for key in expected) != 1:
                    yield f"parked: {id!r} is not in the lanes of {' or '.join(expected)}"
        names = {f"parked:{key}:" for key in places}
        if lost := [name for name in self.keys if name.startswith("parked:") and not name.startswith(tuple(names))]:
            yield f"parked: {lost} belong to no places"
        for member in self.keys.get("admitted", {}):
            start = 3 + int.from_bytes(member[:2])
            job = self.jobs.get(member[start + 6 :])
            is_admitted = job and job.state == READY and job.generation == int.from_bytes(member[start : start + 6])
            if not is_admitted or member[start + 6 :] in self.running:
                yield f"admitted: {member!r} was claimed, or is gone"

    def _counted(self) -> tuple[Counter[str], Counter[str]]:
        """Places in use and parked jobs by name=key, as the records say."""
        used: Counter[str] = Counter()
        parked: Counter[str] = Counter()
        for id, record in self.jobs.items():
            limits = [f"{name}={key}" for name, key in record.limits]
            key_of_parked = _parked_at(record)
            if key_of_parked:
                parked[key_of_parked] += 1
            if record.state == PARKED and not key_of_parked:
                continue  # a job that a pause has parked holds no place
            for key, cost in [*zip(limits, record.costs, strict=True)][: record.limits_passed]:
                used[key] += 0 if id in self.running and key.startswith("r:") else cost
        return used, parked

    def _entries(self, key: str) -> list[tuple[int, bytes]]:
        """Generation and id of each entry in the parked lanes of a key."""
        found: list[bytes] = []
        start = f"parked:{key}:"
        for name, content in self.keys.items():
            if name.startswith(start):
                kind = name.removeprefix(start).partition(":")[0]
                if kind == "heads":
                    found += content.values()
                elif kind in ("lane", "front"):
                    found += content
        return [(entry_generation(entry), entry_id(entry)) for entry in found]


def _parked_at(record: Record) -> str:
    """The name=key of the limit at which a job is parked; "" if it is not, or if a pause parked it."""
    if record.state != PARKED or record.limits_passed >= len(record.limits):
        return ""
    name, key = record.limits[record.limits_passed]
    return f"{name}={key}"


def _scopes(record: Record) -> list[str]:
    """The scopes in which the job may be parked: those of its tenant, of its task, and of holds of its rates."""
    rates = [f"p:hold={name}={key}" for name, key in record.limits if name.startswith("r:")]
    return [f"p:tenant={record.tenant}", f"p:task={record.task}", *rates]
