"""A job's record: header and tail of `record.lua` on the Python side, and the other data that the server has of a job.

A client drafts a record: options in the header, then tenant, task, trace and payload. When it enqueues the record, the
server fills in what only the server knows: state, generation, and times by its own clock.

`record.lua` lists the fields of both. `Record` names those that Python reads, and `RecordView` what a public view
of a job has of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import msgspec

from penstock.jobs.constants import (
    AFTER_OTHERS,
    CALL,
    DEAD,
    DRAFT,
    ENTRY,
    FORMAT,
    LIMITS,
    NOTES,
    OPAQUE,
    READABLE,
    REASON,
    RECORD,
    SEALED,
    SUSPECT,
    TAGS,
    TAIL_BYTES,
    TAILED,
    UNIQUE_KEY,
)
from penstock.jobs.header import Number, TailNumber, set_fields
from penstock.jobs.tags import read_tags

HEADER_SIZE: Final = RECORD["tenant"][0] + 1
"""The bytes before the tenant's name; the last of them is the length of that."""

_NAMES_SIZE: Final = 3
"""The bytes that hold the lengths of tenant, task and trace; the first of them is part of the header."""

POWERS_AT: Final = RECORD["powers"][0]
"""The position of the byte that has the bits of the powers."""

FLAGS_AT: Final = RECORD["flags"][0]
FORMAT_AT: Final = RECORD["format"][0]
"""The position of the byte that is `FORMAT`, or more if the record ends with a tail."""

_STATE: Final = slice(RECORD["state"][0], RECORD["state"][0] + 1)
_GENERATION: Final = slice(RECORD["generation"][0], RECORD["generation"][0] + RECORD["generation"][1])
_ENTRY_ID: Final = ENTRY["id"][0]
_ENTRY_CLASS: Final = ENTRY["class"][0]
_MORE: Final = 128


def draft(
    *,
    flags: int,
    how: int,
    priority: int,
    tenant: bytes,
    task: bytes,
    delay_ms: int,
    expires_ms: int,
    ttl_ms: int,
    trace: bytes = b"",
    powers: int = 0,
) -> bytes:
    """A record without its payload. It is the same for all calls with the same options.

    If `powers` is not 0, their sections follow it (see `record.lua`), and then the payload.

    `how` says how the server reads the times; see `draft` in `record.lua`.
    """
    header = bytearray(HEADER_SIZE - 1)
    set_fields(header, DRAFT, how=how, due=delay_ms, expires=expires_ms)
    set_fields(header, RECORD, format=FORMAT, flags=flags, priority=priority, powers=powers, ttl=ttl_ms)
    return b"".join((header, bytes([len(tenant)]), tenant, bytes([len(task)]), task, bytes([len(trace)]), trace))


def kept_for(record: bytes, ttl_ms: int) -> bytes:
    """The draft, with a result that is kept for at least `ttl_ms`."""
    at, size = RECORD["ttl"]
    if int.from_bytes(record[at : at + size]) >= ttl_ms:
        return record
    return record[:at] + ttl_ms.to_bytes(size) + record[at + size :]


def with_trace(record: bytes, trace: bytes) -> bytes:
    """The record with another trace, of at most 255 bytes."""
    start = _trace_start(record)
    return record[: start - 1] + bytes([len(trace)]) + trace + record[start + record[start - 1] :]


def _trace_start(record: bytes) -> int:
    """Where the trace begins; the byte before it is its length. May be beyond the end of a damaged record."""
    task = HEADER_SIZE + record[HEADER_SIZE - 1] + 1
    return task + _byte(record, task - 1) + 1


def _byte(record: bytes, at: int) -> int:
    return record[at] if at < len(record) else 0


def redrafted(record: Record, how: int, due: int, expires: int) -> bytes:
    """The record, without powers that scripts read, as a draft again. A job that is not dead keeps its attempts."""
    body = bytearray(record.body)
    if record.has_tail and record.state == DEAD:
        del body[-TAIL_BYTES:]
        body[FORMAT_AT] = FORMAT
    set_fields(body, DRAFT, how=how, due=due, expires=expires)
    set_fields(body, RECORD, flags=record.flags & CALL, powers=body[POWERS_AT] & OPAQUE)
    return bytes(body)


def has_powers(record: bytes) -> bool:
    """Whether the job uses a power that scripts look at, such as a unique key."""
    return record[POWERS_AT] & ~OPAQUE > 0


def pack_sections(sections: Mapping[int, bytes]) -> bytes:
    """The bytes of a record behind its trace: one section for each power."""
    return b"".join(len(sections[bit]).to_bytes(2) + sections[bit] for bit in sorted(sections))


def read_sections(powers: int, packed: bytes, at: int = 0) -> tuple[dict[int, bytes], int]:
    """The sections that begin at `at`, and where they end. `powers`: the bits that have one."""
    found: dict[int, bytes] = {}
    while powers:
        bit = powers & -powers
        end = at + 2 + int.from_bytes(packed[at : at + 2])
        found[bit], at, powers = packed[at + 2 : end], end, powers - bit
    return found, at


def with_power(record: bytes, bit: int) -> bytes:
    """The start of a record, up to its sections, with one more power."""
    return record[:POWERS_AT] + bytes([record[POWERS_AT] | bit]) + record[POWERS_AT + 1 :]


class Record(msgspec.Struct, eq=False, gc=False):
    """A record as read from the server. Times are milliseconds since 1970 by the server's clock.

    A field is decoded only when it is read, because most fields never are.
    """

    body: bytes

    @classmethod
    def read(cls, body: bytes | None) -> Record | None:
        """None if there is no record, or if another program damaged it so that it is too short."""
        if body is None or len(body) < HEADER_SIZE + _NAMES_SIZE - 1:
            return None
        task = HEADER_SIZE + body[HEADER_SIZE - 1]
        trace = task + 1 + body[task] if task < len(body) else len(body)
        return cls(body) if trace < len(body) and trace + 1 + body[trace] <= len(body) else None

    @property
    def state(self) -> bytes:
        """One letter; see `state` in `record.lua`. A running job has the state that it was claimed in: ready."""
        return self.body[_STATE]

    generation = Number()
    """The number of its entry in a lane or among the delayed jobs. Each entry has a higher one."""

    @property
    def generation_bytes(self) -> bytes:
        return self.body[_GENERATION]

    @property
    def has_tail(self) -> bool:
        """Whether the record ends with a tail; see `record.lua`."""
        return self.body[FORMAT_AT] >= TAILED

    enqueued = TailNumber("since")
    since = Number()
    """When the job became ready, is due, or died."""
    expires = TailNumber()
    """0: never, or it was started in time."""
    priority = Number()
    attempts = TailNumber()
    """Runs that failed."""
    deliveries = TailNumber()
    """How often the job was handed to a worker, before the present run."""
    crashes = TailNumber()
    """Crashes charged to the job; see `recovery.lua`."""
    host_deaths = TailNumber()
    """Trials of the job that ended together with their host."""
    ttl = Number()
    """Milliseconds for which the result is kept."""

    @property
    def flags(self) -> int:
        return self.body[FLAGS_AT]

    @property
    def is_call(self) -> bool:
        """Whether the job is the call of a task, rather than a bare value."""
        return bool(self.body[FLAGS_AT] & CALL)

    @property
    def is_plain_call(self) -> bool:
        """Whether the job is the call of a task, and has no power."""
        return not self.body[POWERS_AT] and bool(self.body[FLAGS_AT] & CALL)

    @property
    def is_suspect(self) -> bool:
        """Whether the job may have killed its worker."""
        return bool(self.flags & SUSPECT)

    @property
    def has_reason(self) -> bool:
        """Whether the server has stored failed attempts of the job."""
        return bool(self.flags & REASON)

    @property
    def has_notes(self) -> bool:
        """Whether the server has stored progress or a log of the job. Of a running job, the claim says that."""
        return bool(self.body[FLAGS_AT] & NOTES)

    @property
    def tenant(self) -> str:
        return self.body[HEADER_SIZE : HEADER_SIZE + self.body[HEADER_SIZE - 1]].decode(errors="replace")

    @property
    def task(self) -> str:
        """The name of the task; "" for a bare value."""
        start = HEADER_SIZE + self.body[HEADER_SIZE - 1] + 1
        return self.body[start : start + _byte(self.body, start - 1)].decode(errors="replace")

    @property
    def call(self) -> tuple[bytes, bytes]:
        """The encoded name of the task, and the payload: all that a worker reads of most records, in one go."""
        body = self.body
        task = HEADER_SIZE + body[HEADER_SIZE - 1] + 1
        try:
            trace = task + body[task - 1] + 1
            end = trace + body[trace - 1]
            if body[POWERS_AT] or body[FORMAT_AT] != FORMAT:
                return body[task : trace - 1], self._behind_sections(end)
            return body[task : trace - 1], body[end:]
        except IndexError:  # damaged
            return self.task.encode(), self.payload

    @property
    def names(self) -> bytes:
        """Tenant and task, each behind its length."""
        return self.body[HEADER_SIZE - 1 : _trace_start(self.body) - 1]

    @property
    def trace(self) -> str:
        """A text of the application that travels with the job (see `middleware.py`)."""
        start = _trace_start(self.body)
        return self.body[start : start + _byte(self.body, start - 1)].decode(errors="replace")

    @property
    def payload(self) -> bytes:
        start = _trace_start(self.body)
        return self._behind_sections(start + _byte(self.body, start - 1))

    def _behind_sections(self, at: int) -> bytes:
        """The payload. `at`: where the sections begin."""
        start = read_sections(self.body[POWERS_AT], self.body, at)[1]
        return self.body[start : -TAIL_BYTES if self.has_tail else None]

    @property
    def sections(self) -> dict[int, bytes]:
        """What each power of the job has stored, by its bit; {} for most jobs."""
        start = _trace_start(self.body)
        return read_sections(self.body[POWERS_AT], self.body, start + _byte(self.body, start - 1))[0]

    @property
    def is_understood(self) -> bool:
        """Whether this release knows all powers of the job."""
        return not self.body[POWERS_AT] & ~READABLE

    @property
    def needs_opening(self) -> bool:
        """Whether the payload is sealed, or waits for results of other jobs, which may be sealed."""
        return bool(self.body[POWERS_AT] & (AFTER_OTHERS | SEALED))

    @property
    def sealed_by(self) -> str | None:
        """The id of the key with which the payload is sealed; None if it is not sealed."""
        return self.sections[SEALED].decode(errors="replace") if self.body[POWERS_AT] & SEALED else None

    @property
    def waits_for_others(self) -> bool:
        """Whether the job waits, or waited, for other jobs (`flow.lua`)."""
        return bool(self.body[POWERS_AT] & AFTER_OTHERS)

    @property
    def unique(self) -> tuple[str, str, int] | None:
        """The unique key of the job, how long it is held, and milliseconds; see `unique.lua`."""
        if not self.body[POWERS_AT] & UNIQUE_KEY:
            return None
        packed = self.sections[UNIQUE_KEY]
        return packed[6:].decode(), chr(packed[0]), int.from_bytes(packed[1:6])

    @property
    def limits(self) -> list[tuple[str, str]]:
        """Name and key of each limit of the job, in the order in which it passes them."""
        if not self.body[POWERS_AT] & LIMITS:
            return []
        packed, at, found = self.sections[LIMITS], 0, []
        while at < len(packed):
            size = int.from_bytes(packed[at + 24 : at + 26])
            name, _, key = packed[at + 26 : at + 26 + size].decode().partition("=")
            found.append((name, key))
            at += 26 + size
        return found

    @property
    def costs(self) -> list[int]:
        """What the job costs in each of its limits; 1 in a limit of concurrency."""
        packed, at, found = self.sections[LIMITS] if self.body[POWERS_AT] & LIMITS else b"", 0, []
        while at < len(packed):
            found.append(int.from_bytes(packed[at + 20 : at + 24]))
            at += 26 + int.from_bytes(packed[at + 24 : at + 26])
        return found

    @property
    def indexes_of_results(self) -> dict[str, int | list[int]]:
        """Which arguments get which results of the jobs that this one waited for (see `awaited.py`)."""
        return msgspec.msgpack.decode(self.sections[AFTER_OTHERS]).get("i", {}) if self.waits_for_others else {}

    @property
    def tags(self) -> tuple[str, ...]:
        return read_tags(self.sections[TAGS]) if self.body[POWERS_AT] & TAGS else ()

    @property
    def limits_passed(self) -> int:
        """How many of its limits the job has passed. It has a place in each of them."""
        return self.flags >> 5 & 3

    @property
    def parked_at(self) -> tuple[str, str] | None:
        """Name and key of the limit at which a job is parked; None if a pause has parked it."""
        limits, passed = self.limits, self.limits_passed
        return limits[passed] if passed < len(limits) else None


class DraftView:
    """What the public views of a job have of the draft of its record."""

    __slots__ = ()

    @property
    def _record(self) -> Record:
        raise NotImplementedError

    @property
    def task(self) -> str:
        """The name of the task; "" for a bare value."""
        return self._record.task

    @property
    def tenant(self) -> str:
        """The tenant of the job; "" if its call named none."""
        return self._record.tenant

    @property
    def priority(self) -> int:
        """0 is most urgent, 9 least."""
        return self._record.priority


class RecordView(DraftView):
    """What the public views of a job have of its record. Times are seconds since 1970 by the server's clock."""

    __slots__ = ()

    @property
    def _runs(self) -> bool:
        """Whether the present run counts as a delivery, which the record does not have yet."""
        return False

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags of its task and of its call."""
        return self._record.tags

    @property
    def attempts(self) -> int:
        """How often the job failed before."""
        return self._record.attempts

    @property
    def attempt(self) -> int:
        """1 for the first run, and one more after each failure."""
        return self._record.attempts + 1

    @property
    def deliveries(self) -> int:
        """How often the job was handed to a worker, this time included."""
        return self._record.deliveries + self._runs

    @property
    def crashes(self) -> int:
        """How often in a row its process died while no other job ran there."""
        return self._record.crashes

    @property
    def enqueued(self) -> float:
        """When the server accepted the job."""
        return self._record.enqueued / 1000

    @property
    def since(self) -> float:
        """When it became ready, is due, or died."""
        return self._record.since / 1000

    @property
    def expires(self) -> float | None:
        """The time until which the job may start; None: it may start at any time."""
        return self._record.expires / 1000 or None


class Seen(RecordView):
    """A view of any record. `runs`: the job is with a worker now."""

    __slots__ = ("_of", "_with_worker")

    def __init__(self, record: Record, runs: bool = False) -> None:
        self._of = record
        self._with_worker = runs

    @property
    def _record(self) -> Record:
        return self._of

    @property
    def _runs(self) -> bool:
        return self._with_worker

    def values(self, kind: Any) -> dict[str, Any]:
        """The arguments of a dataclass that have the name of something here."""
        return {name: getattr(self, name) for name in _shared_names(kind)}


@cache
def _shared_names(kind: Any) -> tuple[str, ...]:
    return tuple(name for name in kind.__dataclass_fields__ if hasattr(RecordView, name))


def entry_id(entry: bytes) -> bytes:
    """The job's id, which is the last part of an entry; the generation and a byte for the size precede it."""
    return entry[_ENTRY_ID:]


def entry_has_more(entry: bytes) -> bool:
    """Whether the first entry of a lane says that others may follow it."""
    return entry[_ENTRY_CLASS] >= _MORE


def entry_generation(entry: bytes) -> int:
    return int.from_bytes(entry[:_ENTRY_CLASS])


def claimed_at(owner: bytes | None) -> float | None:
    """When a job was claimed, by what `owners` has of it. None for none, or if an older release has claimed it."""
    ms = (owner or b"").partition(b" ")[2].partition(b" ")[0]
    return int(ms) / 1000 if ms else None


@dataclass(frozen=True, slots=True)
class StoredJob:
    """The data that the server has stored about one job.

    record   None once the job is done, or if the record is damaged
    failures  its last failed attempts (see `Failures`)
    done     how the job ended, as long as its result is kept: one letter, then the result or a text
    owner    the incarnation that runs it, and when it claimed the job (see `claimed_at`)
    notes    its progress and its log (see `read_notes`)
    worker   `host:pid` of the worker that runs it, if it was asked for
    waits    what it waits for (see `WaitState`)
    expires_in  seconds until a job that waits expires; None: it does not
    """

    record: Record | None
    failures: bytes | None
    done: bytes | None
    owner: bytes | None = None
    notes: bytes | None = None
    worker: str = ""
    waits: bytes | None = None
    expires_in: float | None = None

    @property
    def claimed(self) -> float | None:
        """When the running job was claimed, in seconds since 1970; None if it does not run."""
        return claimed_at(self.owner)
