"""Reads back what an app keeps in the server and compares it with itself and with the tables in `store/keys.py`.

A key must be in the tables and of the type they say. What a job owns must be of a job that is still there, the
counts must be those one gets by counting, and an incarnation that has gone must have left nothing. Read-only. It walks
the key space and reads every job, and it is no snapshot: for tests and diagnosis, on a queue that rests.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.jobs.keys import OWNED
from penstock.jobs.record import REASON, Record
from penstock.ops.audit.directories import Shelves
from penstock.ops.audit.messages import ChannelBook, LogBook, unlisted
from penstock.ops.key_tables import kind_of, parts, row

_READ: dict[str, Callable[[Any, bytes], Any]] = {
    "hash": lambda client, key: client.hgetall(key),
    "zset": lambda client, key: dict(client.zrange(key, 0, -1, withscores=True)),
    "list": lambda client, key: client.lrange(key, 0, -1),
    "set": lambda client, key: client.smembers(key),
    "string": lambda client, key: client.get(key),
    "stream": lambda client, key: client.xrange(key),
}
_PLACES = {b"r": 0, b"s": 1, b"x": 2, b"d": 3}


@dataclass(frozen=True, slots=True)
class Entry:
    """One key as it was found. `home`: its prefix and queue, None for a key that is not ours; `held`: what is in it,
    None where it goes by itself (`ttl` in ms, -1 for ever) or is not of the type it should be."""

    key: str
    home: tuple[str, str] | None
    suffix: str
    kind: str
    ttl: int
    held: Any = None

    def faults(self) -> Iterator[str]:
        """Against the tables of keys."""
        if self.home is None or (found := row(self.home[1], self.suffix)) is None:
            yield f"{self.key}: not in store/keys.py"
            return
        wanted, _, owner = found
        if wanted not in {self.kind.upper(), "any"}:
            yield f"{self.key}: a {self.kind}, not a {wanted}"
        if owner == "TTL" and self.ttl < 0:
            yield f"{self.key}: has no TTL"
        if owner == OWNED and self.ttl >= 0:
            yield f"{self.key}: the queue's own, but it expires"


def entries(client: Any, match: str = "*") -> Iterator[Entry]:
    """Every key that matches. `client`: of valkey-py or redis-py, blocking; on a cluster one of the cluster's."""
    found = list(dict.fromkeys(client.scan_iter(match=match, count=1000)))
    for key, kind, ttl in zip(found, _each(client, "type", found), _each(client, "pttl", found), strict=True):
        if kind == b"none" or ttl == -2:  # it went between two questions
            continue
        name, kind = key.decode(errors="backslashreplace"), kind.decode()
        prefix, queue, suffix = parts(name) or ("", "", "")
        listed = row(queue, suffix) if ttl < 0 else None
        held = _READ[kind](client, key) if listed is not None and listed[0] == kind.upper() else None
        yield Entry(name, (prefix, queue) if suffix else None, suffix, kind, ttl, held)


def _each(client: Any, command: str, keys: Iterable[bytes]) -> list[Any]:
    pipe = client.pipeline(transaction=False)
    for key in keys:
        getattr(pipe, command)(key)
    answers: list[Any] = pipe.execute()
    return answers


def books(found: Iterable[Entry]) -> dict[tuple[str, str], Books | Shelves | LogBook]:
    """By prefix and what stands behind it in the hash tag."""
    of_kind: dict[str, type[Books | Shelves | LogBook]] = {
        "queue": Books, "directory": Shelves, "chat": LogBook, "mailbox": LogBook, "files": ChannelBook,
    }  # fmt: skip
    homes = _homes(found).items()
    return {home: of_kind[kind](keys) for home, keys in homes if (kind := kind_of(home[1])) in of_kind}


def lost_members(found: Sequence[Entry]) -> Iterator[str]:
    """Members of chats that their users would never find."""
    indexes = {home: keys.get("mine", {}) for home, keys in _homes(found).items()}
    yield from unlisted(books(found), indexes)


def _homes(found: Iterable[Entry]) -> dict[tuple[str, str], dict[str, Any]]:
    homes: dict[tuple[str, str], dict[str, Any]] = {}
    for entry in found:
        if entry.home is not None and entry.held is not None:
            homes.setdefault(entry.home, {})[entry.suffix] = entry.held
    return homes


class Books:
    """The keys of one queue that stay, by suffix."""

    def __init__(self, keys: dict[str, Any]) -> None:
        self.keys = keys
        found = {key: Record.read(body) for key, body in keys.get("jobs", {}).items()}
        self.jobs = {key: record for key, record in found.items() if record is not None and record.state in _PLACES}
        self.meta = keys.get("meta", {})

    def many(self, suffix: str) -> dict[str, Any]:
        return {name.removeprefix(suffix): held for name, held in self.keys.items() if name.startswith(suffix)}

    def of_state(self, state: bytes) -> set[bytes]:
        return {key for key, record in self.jobs.items() if record.state == state}

    def faults(self) -> Iterator[str]:
        """One sentence for each thing that does not fit the rest."""
        if damaged := set(self.keys.get("jobs", {})) - set(self.jobs):
            yield f"jobs: the records of {damaged} are damaged"
        yield from self._counts()
        yield from self._lanes()
        yield from self._turns()
        yield from self._delayed()
        yield from self._claims()
        if set(self.keys.get("reasons", {})) != {key for key, record in self.jobs.items() if record.body[3] & REASON}:
            yield f"reasons: {self.keys.get('reasons')}"

    def waits(self) -> Iterator[str]:
        """Who is still written down as waiting or working: a fault where nobody does any more."""
        if idle := self._alive() - set(self.many("held:")):
            yield f"leases: {sorted(idle)} hold no jobs, but nobody works any more"
        for name in ("waiters", "sleepers"):
            if name in self.keys:
                yield f"{name}: {self.keys[name]}, but nobody waits any more"

    def _alive(self) -> set[str]:
        return {me.decode() for me in self.keys.get("leases", {})}

    def _counts(self) -> Iterator[str]:
        rows: dict[bytes, list[int]] = {}
        for record in self.jobs.values():
            rows.setdefault(record.tenant.encode(), [0, 0, 0, 0])[_PLACES[record.state]] += 1
        packed = {tenant: struct.pack(">4I", *row) for tenant, row in rows.items()}
        if packed != self.keys.get("tenants", {}):
            yield f"tenants: {self.keys.get('tenants')}, counted {rows}"
        for place, name in enumerate((b"ready", b"delayed", b"running", b"dead")):
            total = sum(row[place] for row in rows.values())
            if int(self.meta.get(name, 0)) != total:
                yield f"meta {name.decode()}: {self.meta.get(name)}, counted {total}"
        ages = Counter(record.since // 1000 for record in self.jobs.values() if record.state == b"r")
        if {int(second): int(n) for second, n in self.keys.get("age", {}).items()} != ages:
            yield f"age: {self.keys.get('age')}, counted {ages}"
        if {int(second) for second in self.keys.get("ages", {})} != set(ages):
            yield f"ages: {self.keys.get('ages')}, counted {sorted(ages)}"

    def _lanes(self) -> Iterator[str]:
        found: Counter[bytes] = Counter()
        for suffix in ("lane:", "front:"):
            for place, waiting in self.many(suffix).items():
                level, _, tenant = place.partition(":")
                if tenant.encode() not in self.keys.get(f"turns:{level}", {}):
                    yield f"{suffix}{place}: entries, but no turn"
                for entry in waiting:
                    record = self._ready(entry)
                    if record is not None:
                        found[entry[11:]] += 1
                        if (level, tenant) != (str(record.priority), record.tenant):
                            yield f"{suffix}{place}: {entry!r} is in another's lane"
        suspects = [entry[11:] for entry in self.keys.get("suspects", {}) if self._ready(entry)]
        if set(suspects) != {key for key in self.of_state(b"r") if self.jobs[key].is_suspect}:
            yield f"suspects: {self.keys.get('suspects')}"
        found.update(suspects)
        if found != Counter(self.of_state(b"r")):
            yield f"ready are {self.of_state(b'r')}, in lanes are {found}"

    def _turns(self) -> Iterator[str]:
        for level, tenants in self.many("turns:").items():
            for tenant in tenants:
                if not {f"{suffix}{level}:{tenant.decode()}" for suffix in ("lane:", "front:")} & set(self.keys):
                    yield f"turns:{level}: {tenant!r} has a turn, but no entries"
        if int(self.meta.get(b"front", 0)) != sum(map(len, self.many("front:").values())):
            yield f"meta front: {self.meta.get(b'front')}"

    def _ready(self, entry: bytes) -> Record | None:
        """The ready job that an entry stands for; None for one that was cancelled."""
        record = self.jobs.get(entry[11:])
        stands = record is not None and record.state == b"r" and _generation(record) == int(entry[:10], 16)
        return record if stands else None

    def _delayed(self) -> Iterator[str]:
        found = {entry[11:]: (int(entry[:10], 16), due) for entry, due in self.keys.get("delayed", {}).items()}
        wanted = {key: (_generation(self.jobs[key]), self.jobs[key].since) for key in self.of_state(b"s")}
        if found != wanted:
            yield f"delayed: {found}, wanted {wanted}"
        if {key: int(at) for key, at in self.keys.get("dead", {}).items()} != {
            key: self.jobs[key].since for key in self.of_state(b"d")
        }:
            yield f"dead: {self.keys.get('dead')}, wanted {self.of_state(b'd')}"

    def _claims(self) -> Iterator[str]:
        held = self.many("held:")
        if not set(held) <= self._alive():
            yield f"leases: {self.keys.get('leases')}, but {sorted(held)} hold jobs"
        if not set(self.keys.get("workers", {})) <= set(self.keys.get("leases", {})):
            yield f"workers: {self.keys['workers']}, but alive are {self.keys.get('leases')}"
        if Counter(key for claims in held.values() for key in claims) != Counter(self.of_state(b"x")):
            yield f"running are {self.of_state(b'x')}, held are {held}"


def _generation(record: Record) -> int:
    return int.from_bytes(record.body[4:10])
