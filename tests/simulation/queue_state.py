"""The parts of the queue's state in the model: jobs, lists of ready jobs, incarnations."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from penstock.jobs.claims import Failure, Settlement
from penstock.jobs.constants import CALL, CLAIM, NUMBER_BYTES, TAILED, UNIQUE, UNIQUE_KEY
from penstock.jobs.failures import Attempt, AttemptOutcome
from penstock.jobs.record import pack_sections
from penstock.jobs.unique import unique_section
from tests.jobs.stand import READY, RUNNING, Dump

SUSPECT, KEEPS_REASON = 2, 4

_FLAGS_AT, _TENANT_AT = CLAIM["flags"][0], CLAIM["tenant"][0]

_HEADER = struct.Struct(">Bc 6s6s BBB 5s B")
_TAIL = struct.Struct(">6s6s HH BBB")


@dataclass
class Job:
    """A job that the queue has accepted and not finished."""

    id: str
    tenant: str
    level: int
    own: bool
    ttl: int
    expires: int
    payload: bytes = b"null"
    state: str = READY
    generation: int = 0
    enqueued: int = 0
    since: int = 0
    has_tail: bool = False
    """Whether its record ends with a tail. It keeps the one that it got."""
    attempts: int = 0
    deliveries: int = 0
    crashes: int = 0
    halves: int = 0
    """Halves of a loss. Four make a suspect."""
    suspect: bool = False
    host_deaths: int = 0
    """Trials that ended together with their host."""
    failures: list[Attempt] = field(default_factory=list)
    """The last five attempts that failed, the latest first. When they began is left out."""
    unique: tuple[str, str, int] | None = None
    """Its unique key, how long it is held (`keeping` in unique.lua), and the milliseconds of a throttle."""

    @property
    def flags(self) -> int:
        return SUSPECT * self.suspect | KEEPS_REASON * bool(self.failures) | UNIQUE * (self.unique is not None)

    def record(self) -> bytes:
        """By the table in `record.lua`. The record of a running job says that it is ready."""
        name, state = self.tenant.encode(), READY if self.state == RUNNING else self.state
        self.has_tail = self.has_tail or self.since != self.enqueued or self.expires > 0
        powers = UNIQUE_KEY * (self.unique is not None)
        times = (self.generation.to_bytes(6), self.since.to_bytes(6))
        header = _HEADER.pack(
            3 + TAILED * self.has_tail,
            state.encode(),
            *times,
            self.flags,
            self.level,
            powers,
            self.ttl.to_bytes(5),
            len(name),
        )
        body = header + name + b"\0\0" + self.sections + self.payload
        counts = (self.attempts, self.deliveries, self.halves, self.crashes, self.host_deaths)
        tail = _TAIL.pack(self.enqueued.to_bytes(6), self.expires.to_bytes(6), *counts)
        return body + tail * self.has_tail

    @property
    def sections(self) -> bytes:
        if not self.unique:
            return b""
        key, mode, ms = self.unique
        return pack_sections({UNIQUE_KEY: unique_section(key, mode.encode(), ms)})

    def held(self, number: int, now: int) -> bytes:
        """What an incarnation stores about its claim."""
        name = self.tenant.encode()
        held = (
            number.to_bytes(6)
            + now.to_bytes(6)
            + bytes([self.flags])
            + self.ttl.to_bytes(5)
            + bytes([len(name)])
            + name
        )
        return held + (self.unique[0].encode() if self.unique and self.unique[1] == "d" else b"")

    def die(self, ending: str, host_deaths: int) -> bool:
        """The process of the job has died. Returns whether the job is a dead letter now."""
        self.crashes += ending in ("crash", "contained")
        if self.suspect:
            self.host_deaths += ending == "host"
        else:
            self.halves += {"crash": 2, "loss": 2, "unseen": 1}.get(ending, 0)
            self.suspect = self.halves >= 4
        return self.crashes == 3 or (ending == "host" and 0 < host_deaths <= self.host_deaths)

    def fail(self, settlement: Settlement, now: int) -> None:
        """Keep why a run failed. A postponement replaces the one before it."""
        why = Failure.read(settlement.data)
        outcome: AttemptOutcome = "postponed"
        if settlement.ending in ("retry", "bury"):
            outcome = "failed"
        elif settlement.ending in ("crash", "contained", "loss", "unseen", "host"):
            outcome = "lost"
        attempt = Attempt(self.attempts + 1, outcome, None, now / 1000, why.worker, why.release, why.reason)
        replaces = outcome == "postponed" and self.failures and self.failures[0].outcome == outcome
        self.failures = [attempt, *self.failures[1 if replaces else 0 :]][:5]

    def edit(self, unique: tuple[str, str, int] | None, payload: bytes, now: int) -> None:
        """The dead letter gets the arguments of another call, and keeps the old ones among its attempts."""
        why = "its arguments were changed"
        old = Attempt(self.attempts, "edited", None, now / 1000, reason=why, arguments=json.loads(self.payload))
        self.failures = [old, *self.failures][:5]
        self.unique, self.payload = unique, payload

    def clear_deaths(self) -> None:
        self.crashes = self.halves = self.host_deaths = 0
        self.suspect = False

    def entry(self) -> bytes:
        """The entry of a record of up to 1 KiB, whose size class is 0."""
        return self.generation.to_bytes(6) + b"\0" + self.id.encode()


@dataclass
class ReadyJobs:
    """The ready jobs of one tenant at one level, in order: those in `front` go first."""

    front: list[str] = field(default_factory=list)
    lane: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[str]:
        return iter((*self.front, *self.lane))

    def remove(self, key: str) -> None:
        (self.front if key in self.front else self.lane).remove(key)


@dataclass
class Incarnation:
    """An incarnation as the server knows it: its lease, the claims it holds, and the reply to its last turn."""

    alive_until: int = 0
    worker: bool = False
    """It has registered; else it is a program without a worker."""
    supervised: bool = False
    host_deaths: int | None = None
    """Of a trial that is watched: how many of them a suspect survives together with its host."""
    held: dict[str, bytes] = field(default_factory=dict)
    """Key -> claim, as the server stores it; the first six bytes are its number."""
    idle: bool = False
    """Its last turn registered it as idle."""
    cancels: set[bytes] = field(default_factory=set)
    """Tokens of the jobs that it is asked to cancel."""
    number: int = 0
    stale: tuple[Settlement, ...] = ()
    given: tuple[bytes, ...] = ()

    def holds(self, token: bytes) -> bool:
        return self.held.get(token[NUMBER_BYTES:].decode(), b"")[:NUMBER_BYTES] == token[:NUMBER_BYTES]


def with_each_claim(dump: Dump) -> Dump:
    """The dump as if no claim was held as a batch, and no job was a call: the batches say that theirs are."""
    each: Dump = {name: held for name, held in dump.items() if not name.startswith("batches:")}
    held = {name: dict(claims) for name, claims in each.items() if name.startswith("held:")}
    for name in dump.keys() - each.keys():
        held["held:" + name.partition(":")[2]] |= dict(
            one for batch in dump[name].values() for one in _claims_of(batch)
        )
    return each | {
        name: {id: _not_of_a_call(claim) if id else claim for id, claim in claims.items()}
        for name, claims in held.items()
    }


def _claims_of(batch: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The id and the claim of each job of a batch that is held as one entry."""
    end = _TENANT_AT + 1 + batch[_TENANT_AT]
    first = int.from_bytes(batch[:NUMBER_BYTES])
    ids: list[str] = msgspec.msgpack.decode(batch[end:])
    for number, id in enumerate(ids, first):
        yield id.encode(), number.to_bytes(NUMBER_BYTES) + batch[NUMBER_BYTES:end]


def _not_of_a_call(claim: bytes) -> bytes:
    return claim[:_FLAGS_AT] + bytes([claim[_FLAGS_AT] & ~CALL]) + claim[_FLAGS_AT + 1 :]
