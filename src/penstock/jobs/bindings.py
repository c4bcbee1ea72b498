"""The scripts of a queue as round trips: argument order and reply shapes stand here and nowhere else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from struct import Struct
from typing import Any, Literal, TypeAlias

import msgspec

from penstock.core.clock import Clock, milliseconds
from penstock.core.operations import Arg, RoundTrip
from penstock.core.scripts import Library
from penstock.jobs.keys import QueueKeys
from penstock.jobs.record import Record

Ending: TypeAlias = Literal["retry", "later", "unknown", "release", "bury", "drop", "crash", "suspect"]
"""How a run ends other than complete: charged retry, uncharged retry, handed back by a worker that does not know the
task, handed back, dead letter, dropped, died with its process where it ran alone, or as one of several."""

Trial: TypeAlias = Literal["", "alone", "beside"]
"""Whether a turn may bring a suspect (see `job.lua`): no, in place of other jobs, or beside them."""


SLICE = 250
"""Jobs that one round trip cancels or takes from the dead."""


@cache
def scripts() -> Library:
    return Library(
        "core/batch.lua",
        "jobs/record.lua",
        "jobs/tally.lua",
        "jobs/lane.lua",
        "jobs/lease.lua",
        "core/wake.lua",
        "jobs/job.lua",
        "jobs/queue.lua",
        "jobs/dead_letters.lua",
        "jobs/inspect.lua",
    )


def _id(token: bytes) -> str:
    """The job a token is for; it comes after twelve digits of the claim's number."""
    return token[12:].decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Claim:
    """One job in hand: the token settles it."""

    token: bytes
    record: Record

    @property
    def id(self) -> str:
        return _id(self.token)


@dataclass(frozen=True, slots=True)
class Settlement:
    """What becomes of a claim. `ending` None is complete, with `data` its result as JSON."""

    token: bytes
    data: bytes = b"null"
    ending: Ending | None = None
    delay: float = 0.0

    @property
    def id(self) -> str:
        return _id(self.token)


@dataclass(frozen=True, slots=True)
class Turn:
    """The answer to a turn. `alive` False: the incarnation has ended, nothing was written."""

    alive: bool
    stale: tuple[Settlement, ...] = ()
    due_in: float | None = None
    more: bool = False
    claims: list[Claim] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Found:
    """What the server knows of a job: its record while it is not done, why it failed last, how it ended."""

    record: Record | None
    reason: bytes | None
    done: bytes | None


@dataclass(frozen=True, slots=True)
class Counts:
    """Jobs of a queue by state, what happened so far, and the age of the oldest ready job in seconds."""

    ready: int = 0
    scheduled: int = 0
    running: int = 0
    dead: int = 0
    completed: int = 0
    retried: int = 0
    buried: int = 0
    dropped: int = 0
    cancelled: int = 0
    expired: int = 0
    lost: int = 0
    oldest: float = field(default=0.0, kw_only=True)
    paused: bool = field(default=False, kw_only=True)
    due_first: bool = field(default=False, kw_only=True)

    @property
    def waiting(self) -> int:
        return self.ready + self.scheduled


@dataclass(frozen=True, slots=True)
class Survey:
    """What an operator asks beside the counts. Times are seconds."""

    used: bool
    """Whether anything was ever done with this queue."""

    tenants: int
    due_in: float | None
    """Until the next scheduled job; None: there is none."""

    looked: int
    """How many jobs at the head of the schedule were looked at."""

    strangers: dict[str, bytes]
    """Of those: id -> reason, where a worker handed the job back because it does not know the task."""


@dataclass(frozen=True, slots=True)
class TenantCounts:
    """Jobs of one tenant by state, the age of its oldest ready job in seconds, and its weight."""

    ready: int = 0
    scheduled: int = 0
    running: int = 0
    dead: int = 0
    oldest: float = 0.0
    weight: float = 1.0

    @property
    def waiting(self) -> int:
        return self.ready + self.scheduled


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker, or a program without one, that has claims in a queue or waits for some."""

    queue: str
    name: str
    """`host:pid`; "" for a program without a worker."""
    concurrency: int
    since: float | None
    """Seconds since 1970 by the server's clock of its first turn; None for a program."""
    held: int
    """Jobs in hand."""
    lease: float
    """Seconds for which it is believed alive without a further sign; below 0 it is not."""


class Introduction(msgspec.Struct):
    """What a worker says of itself in its first turn."""

    name: str
    concurrency: int


_FOUR = Struct(">4I")


def _nothing(_: Any) -> None:
    return None


def _found(reply: Sequence[Any]) -> Found:
    return Found(Record.read(reply[0]), reply[1], reply[2])


def _counts(reply: Sequence[Any]) -> Counts:
    now, oldest, *rest = reply
    *numbers, paused, due_first = (int(n or 0) for n in rest)
    age = max(0.0, now / 1000 - int(oldest)) if oldest is not None else 0.0
    return Counts(*numbers, oldest=age, paused=bool(paused), due_first=bool(due_first))


def _tenant_counts(reply: Sequence[Any]) -> TenantCounts:
    now, oldest, ready, scheduled, running, dead, weight = reply
    age = max(0, now - oldest) / 1000 if oldest is not None else 0.0
    return TenantCounts(ready, scheduled, running, dead, age, float(weight or 1))


def _survey(reply: Sequence[Any]) -> Survey:
    used, tenants, due, looked, *rest = reply
    strangers = {job.decode(errors="replace"): why for job, why in zip(rest[0::2], rest[1::2], strict=True)}
    return Survey(bool(used), tenants, due / 1000 if due >= 0 else None, looked, strangers)


def _some_tenants(reply: Sequence[Any]) -> tuple[str, list[tuple[str, TenantCounts]]]:
    cursor, found = reply
    rows = zip(found[0::2], found[1::2], strict=True)
    return cursor.decode(), [(t.decode(errors="replace"), TenantCounts(*_FOUR.unpack(packed))) for t, packed in rows]


class QueueBindings:
    """Builds the steps of one queue. Pure: sends nothing."""

    def __init__(self, keys: QueueKeys, clock: Clock) -> None:
        self.keys = keys
        self.clock = clock
        self._declared = keys.declared
        self._scripts = scripts().scripts
        self._enqueue = self._scripts["enqueue"]
        self._turn = self._scripts["turn"]

    def _step(self, name: str, args: tuple[Arg, ...], read: Any) -> RoundTrip[Any]:
        return RoundTrip(self._scripts[name], self._declared, args, read)

    def enqueue(self, jobs: Iterable[Arg], *, durable: bool = False) -> RoundTrip[list[int]]:
        """id, record, id, record, …; answers with the places of ids that are in the queue already."""
        return RoundTrip(self._enqueue, self._declared, ("", "", self.clock.now_ms, *jobs), list, durable)

    def turn(
        self,
        me: str,
        number: int,
        *,
        lease: float,
        want: int,
        settlements: Sequence[Settlement] = (),
        trial: Trial = "",
        address: str = "",
        sleep: float = 0.0,
        once: bool = False,
        who: Introduction | None = None,
    ) -> RoundTrip[Turn]:
        """One round trip of a worker; see `queue.lua`. `sleep` 0: do not lie down."""
        plain = [s for s in settlements if s.ending is None and s.data == b"null"]
        kept = [s for s in settlements if s.ending is None and s.data != b"null"]
        ended = [s for s in settlements if s.ending is not None]
        order = (*plain, *kept, *ended)
        args: list[Arg] = [
            self.clock.now_ms, me, number, milliseconds(lease), want, trial, address, milliseconds(sleep), int(once),
            msgspec.json.encode(who) if who else "", len(plain), len(kept),
        ]  # fmt: skip
        args += [s.token for s in plain]
        for s in kept:
            args += (s.token, s.data)
        for s in ended:
            args += (s.ending or "", s.token, milliseconds(s.delay), s.data)

        def read(reply: Sequence[Any]) -> Turn:
            if reply[0] == b"STALE":
                return Turn(False)
            _, stale, due_in, more = reply[:4]
            claims = [Claim(token, Record(body)) for token, body in zip(reply[4::2], reply[5::2], strict=True)]
            due = None if due_in < 0 else due_in / 1000
            return Turn(True, tuple(order[place] for place in stale), due, bool(more), claims)

        return RoundTrip(self._turn, self._declared, tuple(args), read)

    def settle(self, me: str, settlement: Settlement) -> RoundTrip[bool]:
        """End one claim on its own; False: it is not ours any more, and nothing was written."""
        verb = settlement.ending or "complete"
        delay = milliseconds(settlement.delay)
        return self._step("settle", (self.clock.now_ms, me, verb, settlement.token, delay, settlement.data), bool)

    def beat(self, me: str, lease: float) -> RoundTrip[bool]:
        return self._step("beat", (self.clock.now_ms, me, milliseconds(lease)), bool)

    def abandon(
        self, me: str, ending: Ending = "release", cause: bytes = b"",
        started: Sequence[bytes] = (), *, more: bool = False,
    ) -> RoundTrip[tuple[int, bool]]:  # fmt: skip
        """How many claims are left, and whether all of `started` are settled."""
        args = (self.clock.now_ms, me, ending, cause, int(more), *started)
        return self._step("abandon", args, lambda reply: (reply[0], bool(reply[1])))

    def cancel(self, ids: Iterable[str]) -> RoundTrip[list[str]]:
        return self._step("cancel", (self.clock.now_ms, *ids), lambda reply: [word.decode() for word in reply])

    def purge(
        self, tenant: str | None, offset: int, slice_: int = SLICE, list_: Literal["schedule", "suspects"] = "schedule"
    ) -> RoundTrip[tuple[int, int, bool]]:
        args = (self.clock.now_ms, tenant or "", int(tenant is None), list_, offset, slice_)
        return self._step("purge", args, lambda reply: (reply[0], reply[1], bool(reply[2])))

    def show(self, job_id: str) -> RoundTrip[Found]:
        return self._step("show", (job_id,), _found)

    def result(self, job_id: str, address: str) -> RoundTrip[Found]:
        return self._step("result", (job_id, address), _found)

    def forget(self, job_id: str, address: str) -> RoundTrip[int]:
        return self._step("forget", (job_id, address), int)

    def graves(self, offset: int, limit: int) -> RoundTrip[list[tuple[str, float, Record | None, bytes]]]:
        """At most 1 MiB of them; no record where somebody damaged it."""

        def read(reply: Sequence[Any]) -> list[tuple[str, float, Record | None, bytes]]:
            rows = zip(reply[0::4], reply[1::4], map(Record.read, reply[2::4]), reply[3::4], strict=True)
            return [(i.decode(errors="replace"), float(at) / 1000, record, why or b"") for i, at, record, why in rows]

        return self._step("graves", (offset, limit), read)

    def buried(self, till: int, limit: int) -> RoundTrip[tuple[int, list[bytes]]]:
        """The ids as they are in the server: somebody else may have written some that are no text."""
        return self._step("buried", (self.clock.now_ms, till, limit), lambda reply: (reply[0], reply[1:]))

    def requeue(self, ids: Iterable[str | bytes]) -> RoundTrip[int]:
        return self._step("requeue", (self.clock.now_ms, *ids), int)

    def exhume(self, ids: Iterable[str | bytes]) -> RoundTrip[int]:
        return self._step("exhume", (self.clock.now_ms, *ids), int)

    def switch(self, name: Literal["paused", "due_first"], on: bool) -> RoundTrip[None]:
        return self._step("switch", (self.clock.now_ms, name, int(on)), _nothing)

    def weigh(self, tenant: str, weight: float) -> RoundTrip[None]:
        return self._step("weigh", (tenant, f"{weight:.9g}"), _nothing)

    def workers(self, limit: int) -> RoundTrip[list[WorkerInfo]]:
        return self.some_workers("", limit).then(lambda page: page[1])

    def some_workers(self, cursor: str, count: int) -> RoundTrip[tuple[str, list[WorkerInfo]]]:
        """A slice of those that are no bare program, and the next cursor; 0 begins and ends."""

        def read(reply: Sequence[Any]) -> tuple[str, list[WorkerInfo]]:
            now, following, *rows = reply
            found = [self._worker(now, *rows[at + 1 : at + 4]) for at in range(0, len(rows), 4)]
            return following.decode(), found

        return self._step("workers", (self.clock.now_ms, count, cursor), read)

    def _worker(self, now: int, till: bytes, held: int, said: bytes | None) -> WorkerInfo:
        since, _, text = (said or b"").partition(b" ")
        who = msgspec.json.decode(text, type=Introduction) if said else Introduction("", 0)
        lease = (float(till) - now) / 1000
        return WorkerInfo(self.keys.queue, who.name, who.concurrency, int(since) / 1000 if said else None, held, lease)

    def counts(self) -> RoundTrip[Counts]:
        return self._step("counts", (self.clock.now_ms,), _counts)

    def survey(self, look: int) -> RoundTrip[Survey]:
        return self._step("survey", (self.clock.now_ms, look), _survey)

    def books(self) -> RoundTrip[dict[str, tuple[int, int]]]:
        """Key -> how many are in it, and how many are by the counts that are kept."""

        def read(reply: Sequence[Any]) -> dict[str, tuple[int, int]]:
            jobs, scheduled, dead, *kept = (int(n or 0) for n in reply)
            return {"jobs": (jobs, sum(kept)), "schedule": (scheduled, kept[1]), "dead": (dead, kept[3])}

        return self._step("books", (), read)

    def some_tenants(self, cursor: str, count: int) -> RoundTrip[tuple[str, list[tuple[str, TenantCounts]]]]:
        return self._step("some_tenants", (cursor, count), _some_tenants)

    def tenant_counts(self, tenant: str) -> RoundTrip[TenantCounts]:
        return self._step("tenant_counts", (self.clock.now_ms, tenant), _tenant_counts)
