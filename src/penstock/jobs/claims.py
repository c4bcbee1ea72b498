"""Claims, which a queue gives to a worker, and settlements, which the worker returns.

A worker process serves a queue in *turns*. One turn is one round trip: it delivers the settlements of finished jobs and
returns the next claims.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import structs

from penstock import sealing
from penstock.jobs.constants import BURIED, LONGEST, NUMBER_BYTES, OFFER, OVERDUE
from penstock.jobs.record import Record
from penstock.jobs.release import Release
from penstock.settings import Seal

Ending: TypeAlias = Literal[
    "retry",
    "later",
    "until",
    "unknown",
    "unread",
    "changed",
    "release",
    "bury",
    "drop",
    "cancel",
    "crash",
    "loss",
    "contained",
    "suspend",
]
"""How a claim can end without completing its job:

retry    it failed and runs again; the attempt is counted
later    it runs again; the attempt is not counted
until    as `later`, and the delay is a date
unknown  the worker does not know the task: as `later`; after `Settlement.limit`, as `bury`
unread   the arguments do not fit the task: as `unknown` while a worker of another release is alive, else as `bury`
changed  its task has changed, and cannot continue what the job has recorded: as `later` while a worker of the release
         that has begun it is alive, else as `bury`
release  it was not started or was interrupted; it returns to the front of its lane as if it had not been claimed
bury     it becomes a dead letter
drop     it leaves the queue without a result
cancel   it was cancelled while it ran, and leaves the queue
crash    its supervised process died, and no other job ran there
loss     its process died, and several jobs ran there
suspend  it sleeps, or waits for a signal or for its children (`durable.lua`); with a delay of 0, until they come
contained  its own process died, in which it was isolated
"""

Trial: TypeAlias = Literal["", "alone", "only"]
"""Whether a turn claims a suspect (see `recovery.lua`): "" no; "alone": one, or other jobs; "only": one, or nothing."""


def _job_id(token: bytes) -> str:
    """A token is the claim's number, then the job's id in its queue."""
    return token[NUMBER_BYTES:].decode(errors="replace")


def claim_number(token: bytes) -> int:
    return int.from_bytes(token[:NUMBER_BYTES])


_ERROR: Final = re.compile(r"([A-Za-z_][\w.]*)(?:: |$)")
"""The class of an error at the beginning of a reason."""

_TEXTS: Final = tuple[str, str]


class Failure(msgspec.Struct, omit_defaults=True, kw_only=True):
    """Why a run failed, as the worker reports it (JSON).

    worker     `host:pid`
    reason     one line
    release    the release of the app that the worker runs
    traceback  of the exception; "" without one

    The longest fields come last, because rows of ended jobs keep only the beginning.
    """

    worker: str = ""
    reason: str
    release: str = ""
    traceback: str = ""

    def encode(self, seal: Seal | None = None) -> bytes:
        """As JSON, without the beginning of a traceback that the server would cut off.

        With `seal` only the class of the error stays readable: reason and traceback are sealed together.
        """
        found, text = self, self.traceback
        while len(data := msgspec.json.encode(found._sealed(seal))) > LONGEST and text:
            text = text[len(text) // 2 + 1 :]
            found = structs.replace(self, traceback=text)
        if seal is None or len(data) <= LONGEST:
            return data
        shown = f"{self._error} (its text is too long when it is sealed)".lstrip()
        return msgspec.json.encode(structs.replace(found, reason=shown))

    @property
    def _error(self) -> str:
        """The class of the error, with which the reason begins; "" if it is not about an error."""
        kind = _ERROR.match(self.reason)
        return kind[1] if kind else ""

    def _sealed(self, seal: Seal | None) -> Failure:
        if seal is None or not self.reason:
            return self
        text = sealing.seal_text(msgspec.json.encode((self.reason, self.traceback)).decode(), seal)
        key = sealing.key_of(text.encode())
        shown = f"{self._error} {f'(sealed with key {key})' if key else text}".lstrip()
        return structs.replace(self, reason=shown, traceback=text if key else "")

    @classmethod
    def read(cls, data: bytes | None, seal: Seal | None = None) -> Failure:
        """Never raises: bytes that are not JSON, written by another program, become the reason."""
        try:
            found = msgspec.json.decode(data or b"", type=cls)
        except (ValueError, RecursionError):
            return cls(reason=(data or b"").decode(errors="replace"))
        return found._opened(seal) if sealing.key_of(found.traceback.encode()[:100]) else found

    def _opened(self, seal: Seal | None) -> Failure:
        opened = sealing.opened_or_sealed(self.traceback.encode(errors="replace"), seal)
        try:
            reason, text = msgspec.json.decode(b"" if isinstance(opened, sealing.Sealed) else opened, type=_TEXTS)
        except ValueError:
            return structs.replace(self, traceback="")
        return structs.replace(self, reason=reason, traceback=text)


class Claim(msgspec.Struct, frozen=True, eq=False, gc=False):
    """One delivery of a job. To settle the job, name its token.

    A struct, as `Settlement` is, because a worker makes one of each for every job: a frozen dataclass takes four times
    as long to make. Neither can belong to a reference cycle, so the garbage collector need not visit them.
    """

    token: bytes
    record: Record
    claimed: int = 0
    """Server milliseconds."""
    received: float = 0.0
    """`time.monotonic()` of the reply."""

    @property
    def id(self) -> str:
        """The job's id in its queue."""
        return _job_id(self.token)

    @property
    def deliveries(self) -> int:
        """How often the job was handed to a worker, this time included."""
        return self.record.deliveries + 1


class Settlement(msgspec.Struct, frozen=True, gc=False):
    """How a claim ends.

    Without an `ending` the job is completed and `data` is its result as JSON; with one, `data` is the reason.
    """

    token: bytes
    data: bytes = b"null"
    ending: Ending | None = None
    delay: float = 0.0
    """Seconds until the job runs again. With the ending `until`: the date of that, in seconds since 1970."""
    limit: float = 0.0
    """With the endings `unknown` and `unread`: seconds after which the job becomes a dead letter."""
    effects: bytes = b""
    """The effects that a completed job has staged (see `Stage.pack`)."""
    weight: int = 0
    """The bytes of the effects, plus a number of bytes for the time that each effect takes the server."""
    jobs: tuple[bytes, ...] = ()
    """The tokens of a batch whose jobs are completed together, without results: claims whose numbers rise by one.
    `token` is the first of them. Empty: the settlement of one job."""

    @property
    def tokens(self) -> tuple[bytes, ...]:
        return self.jobs or (self.token,)

    def each(self) -> Iterator[Settlement]:
        """The settlement of each job."""
        for token in self.tokens:
            yield structs.replace(self, token=token, jobs=())

    def pack_batch(self) -> bytes:
        """The name of a batch (`_batched` in lease.lua), and the ids of its jobs."""
        ids = [_job_id(token) for token in self.jobs]  # as texts: the server knows no other type
        return self.token[:NUMBER_BYTES] + len(ids).to_bytes(2) + msgspec.msgpack.encode(ids)

    @property
    def verb(self) -> str:
        """How the scripts name the ending."""
        if self.ending in ("unknown", "unread", "changed"):
            return f"{self.ending}:{round(self.limit * 1000)}"
        return self.ending or "complete"

    @property
    def id(self) -> str:
        """The job's id in its queue."""
        return _job_id(self.token)

    def sealed(self, seal: Seal) -> Settlement:
        """The settlement as it is sent: with a reason that is sealed. A result is sealed already."""
        if self.ending in _WITH_FAILURE and self.data:
            return structs.replace(self, data=Failure.read(self.data).encode(seal))
        if self.ending == "drop":
            return structs.replace(self, data=sealing.seal_text(self.data.decode(errors="replace"), seal).encode())
        return self


_WITH_FAILURE: Final = frozenset({"retry", "later", "until", "unread", "bury"})
"""The endings whose data is a `Failure` that may quote arguments, because the task or its data was the reason."""


@dataclass(frozen=True, slots=True)
class OutboxOffer:
    """Entries that this worker is to deliver to another queue (see `outbox.lua`)."""

    queue: str
    entries: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class TurnReply:
    """The server's reply to a turn.

    alive   False: the incarnation has ended, for example because its lease ran out. The turn changed nothing
    stale   the settlements that were refused, because the incarnation no longer holds the job
    buried  those that handed a job back for which there is no other worker: it is a dead letter
    due_in  seconds after which the worker takes its next turn even without a message; None: it waits for a message
    more    whether another turn would find more jobs now
    suspect for how many seconds a suspect has waited for its trial; None: none waits
    ticks   the schedules whose due ticks are offered to this worker: the server's time, name, schedule, …
    outbox  what it is to deliver to another queue
    has_overdue_flows  whether it is to give up flows that are open for too long (see `flow_rows.lua`)
    """

    alive: bool
    stale: tuple[Settlement, ...] = ()
    buried: tuple[Settlement, ...] = ()
    due_in: float | None = None
    more: bool = False
    claims: list[Claim] = field(default_factory=list)
    suspect: float | None = None
    ticks: Sequence[Any] = ()
    outbox: OutboxOffer | None = None
    has_overdue_flows: bool = False

    @staticmethod
    def about(
        sent: Sequence[Settlement], positions: Sequence[int]
    ) -> tuple[tuple[Settlement, ...], tuple[Settlement, ...]]:
        """The stale settlements, and the buried ones, by the positions that the server returned."""
        each = [one for settlement in sent for one in settlement.each()] if positions else []
        stale = tuple(each[at] for at in positions if at < BURIED)
        return stale, tuple(each[at - BURIED] for at in positions if at >= BURIED)

    def with_offers(self, offers: Sequence[Any]) -> TurnReply:
        """The reply with what `schedule.offer` returned."""
        if len(offers) < 2:
            return self
        name = bytes(offers[1])
        if name == OVERDUE:
            return replace(self, has_overdue_flows=True)
        if name.startswith(OFFER):
            return replace(self, outbox=OutboxOffer(name.removeprefix(OFFER).decode(), offers[2]))
        return replace(self, ticks=offers)


class Registration(msgspec.Struct, omit_defaults=True):
    """The facts about itself that a worker reports in its first turn. `releases.lua` says how they are stored.

    name         `host:pid`
    concurrency  how many jobs it runs at once
    address      of its listener, for the message that a running job was cancelled
    supervised   another process watches it, and reports its death
    trial        it runs one suspect at a time, and nothing else
    batch        where the queue has a batch handler: size, milliseconds to linger, and 1 if a batch is of one tenant
    host_deaths  of a trial that another process watches: after how many trials that ended with their host a suspect
                 becomes a dead letter; 0: never
    release      the release of the app that it runs (see `release.py`)
    """

    name: str
    concurrency: int
    address: str = ""
    supervised: bool = False
    trial: bool = False
    host_deaths: int | None = None
    batch: tuple[int, int, int] | None = None
    release: Release = Release()
    since: float = 0.0
    """Seconds since 1970 by the server's clock. The server fills it in."""

    def pack(self) -> bytes:
        """What the first turn sends: the names of the tasks, then what the server stores behind the time."""
        for_people = msgspec.json.encode({"concurrency": self.concurrency, "trial": self.trial}).decode()
        values = (
            self.release.tasks, self.name, self.address, self.supervised, self.host_deaths, self.batch,
            self.release.name, self.release.code, for_people,
        )  # fmt: skip
        return b"".join(map(msgspec.msgpack.encode, values))

    @classmethod
    def read(cls, packed: bytes) -> Registration:
        """Never raises: bytes that another program wrote give a worker without a name."""
        try:
            # The values follow each other without a head, so put one before them.
            since, name, address, supervised, host_deaths, batch, release, code, text = msgspec.msgpack.decode(
                bytes([_ARRAY + _STORED]) + packed
            )
            rest = msgspec.json.decode(text)
            return cls(
                name, rest["concurrency"], address, supervised, rest["trial"], host_deaths, batch,
                Release(release, code), since / 1000,
            )  # fmt: skip
        except (ValueError, TypeError, KeyError):
            return cls("", 0)


_ARRAY: Final = 0x90
"""MessagePack: the head of an array of n values is this plus n, for n below 16."""

_STORED: Final = 9
"""The values of a stored registration."""
