"""A job's record: the header of `record.lua` on the Python side, and what the server stores beside a record.

A client drafts a record: options in the header, then tenant, task, trace and payload. When it enqueues the record, the
server fills in what only the server knows: state, generation, and times by its own clock.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

import msgspec

from penstock.jobs.constants import AFTER_OTHERS, CALL, DEAD, FORMAT, LIMITS, NOTES, REASON, SUSPECT, UNIQUE_KEY

_HEADER: Final = struct.Struct(">BB HI HI HI HI BB HH BBBB BI B")
HEADER_SIZE: Final = _HEADER.size
"""The bytes before the tenant's name."""

_NAMES_SIZE: Final = 3
"""The bytes that hold the lengths of tenant, task and trace; the first of them is part of the header."""

POWERS_AT: Final = 35
"""Where the bits of the powers are."""

_ENTRY_START: Final = 7
_MORE: Final = 128


def _split(number: int) -> tuple[int, int]:
    """The upper and the lower 32 bits: struct has no types of five and of six bytes."""
    return number >> 32, number & 0xFFFFFFFF


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

    If `powers` is not 0, the fields of the powers follow it (see `record.lua`), and then the payload.

    `how` says how the server reads the times; see `draft` in `record.lua`.
    """
    header = _HEADER.pack(
        FORMAT, how, 0, 0, 0, 0, *_split(delay_ms), *_split(expires_ms), flags, priority, 0, 0, 0, 0, 0, powers,
        *_split(ttl_ms), len(tenant),
    )  # fmt: skip
    return b"".join((header, tenant, bytes([len(task)]), task, bytes([len(trace)]), trace))


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
    """The record as a draft again, without powers. The job keeps its attempts, unless it is dead."""
    body = record.body
    counts = bytes(7) if record.state == DEAD else body[28:35]
    start = struct.pack(
        ">BB HI HI HI HI BB", FORMAT, how, 0, 0, 0, 0, *_split(due), *_split(expires), body[26] & CALL, body[27]
    )
    return start + counts + bytes(1) + body[36:]


def has_powers(record: bytes) -> bool:
    """Whether the job uses a power, such as a unique key."""
    return record[POWERS_AT] > 0


class Record(msgspec.Struct, eq=False, gc=False):
    """A record as read from the server. Times are milliseconds since 1970 by the server's clock.

    The fields are read when they are asked for, because most of them never are.
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

    def _number(self, start: int, size: int) -> int:
        return int.from_bytes(self.body[start : start + size])

    @property
    def state(self) -> bytes:
        """One letter; see `state` in `record.lua`. A running job has the state that it was claimed in: ready."""
        return self.body[1:2]

    @property
    def generation(self) -> int:
        """The number of its entry in a lane or among the delayed jobs. Each entry has a higher one."""
        return self._number(2, 6)

    @property
    def enqueued(self) -> int:
        return self._number(8, 6)

    @property
    def since(self) -> int:
        """When the job became ready, is due, or died."""
        return self._number(14, 6)

    @property
    def expires(self) -> int:
        """0: never, or it was started in time."""
        return self._number(20, 6)

    @property
    def is_call(self) -> bool:
        """Whether the job is the call of a task, rather than a bare value."""
        return bool(self.body[26] & CALL)

    @property
    def is_suspect(self) -> bool:
        """Whether the job may have killed its worker."""
        return bool(self.body[26] & SUSPECT)

    @property
    def has_reason(self) -> bool:
        """Whether the server has stored why the job failed last."""
        return bool(self.body[26] & REASON)

    @property
    def has_notes(self) -> bool:
        """Whether the server has stored progress or a log of the job. Of a running job, the claim says that."""
        return bool(self.body[26] & NOTES)

    @property
    def priority(self) -> int:
        return self.body[27]

    @property
    def attempts(self) -> int:
        """Runs that failed."""
        return self._number(28, 2)

    @property
    def deliveries(self) -> int:
        """How often the job was handed to a worker, before the present run."""
        return self._number(30, 2)

    @property
    def crashes(self) -> int:
        """Crashes charged to the job; see `recovery.lua`."""
        return self.body[33]

    @property
    def host_deaths(self) -> int:
        """Trials of the job that ended together with their host."""
        return self.body[34]

    @property
    def ttl(self) -> int:
        """Milliseconds for which the result is kept."""
        return self._number(36, 5)

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
            if body[POWERS_AT]:
                end += 2 + int.from_bytes(body[end : end + 2])
            return body[task : trace - 1], body[end:]
        except IndexError:  # damaged
            return self.task.encode(), self.payload

    @property
    def trace(self) -> str:
        """A text of the application that travels with the job (see `middleware.py`)."""
        start = _trace_start(self.body)
        return self.body[start : start + _byte(self.body, start - 1)].decode(errors="replace")

    @property
    def payload(self) -> bytes:
        start = _trace_start(self.body)
        end = start + _byte(self.body, start - 1)
        if self.body[POWERS_AT]:
            end += 2 + int.from_bytes(self.body[end : end + 2])
        return self.body[end:]

    @property
    def powers(self) -> dict[str, msgspec.Raw]:
        """The map that the powers of the job need, in MessagePack (see `record.lua`); {} for most jobs."""
        if not self.body[POWERS_AT]:
            return {}
        start = _trace_start(self.body)
        at = start + _byte(self.body, start - 1)
        size = int.from_bytes(self.body[at : at + 2])
        return msgspec.msgpack.decode(self.body[at + 2 : at + 2 + size], type=dict[str, msgspec.Raw])

    @property
    def waits_for_others(self) -> bool:
        """Whether the job waits, or waited, for other jobs (`flow.lua`)."""
        return bool(self.body[POWERS_AT] & AFTER_OTHERS)

    @property
    def unique(self) -> tuple[str, str, int] | None:
        """The unique key of the job, how long it is held, and milliseconds; see `unique.lua`."""
        if not self.body[POWERS_AT] & UNIQUE_KEY:
            return None
        key, mode, ms, *_ = msgspec.msgpack.decode(self.powers["u"])
        return key, mode, ms

    @property
    def limits(self) -> list[tuple[str, str]]:
        """Name and key of each limit of the job, in the order in which it passes them."""
        if not self.body[POWERS_AT] & LIMITS:
            return []
        rows = msgspec.msgpack.decode(self.powers["l"])
        return [(name, key) for name, key, *_ in rows]

    @property
    def limits_passed(self) -> int:
        """In how many of its limits the job has a place."""
        return self.body[26] >> 5 & 3


def entry_id(entry: bytes) -> bytes:
    """The job's id, which is the last part of an entry; the generation and a byte for the size precede it."""
    return entry[_ENTRY_START:]


def entry_has_more(entry: bytes) -> bool:
    """Whether the first entry of a lane says that others may follow it."""
    return entry[_ENTRY_START - 1] >= _MORE


def entry_generation(entry: bytes) -> int:
    return int.from_bytes(entry[: _ENTRY_START - 1])


def claimed_at(owner: bytes | None) -> float | None:
    """When a job was claimed, by what `owners` has of it. None for none, or if an older release has claimed it."""
    ms = (owner or b"").partition(b" ")[2].partition(b" ")[0]
    return int(ms) / 1000 if ms else None


@dataclass(frozen=True, slots=True)
class StoredJob:
    """The data that the server has stored about one job.

    record   None once the job is done, or if the record is damaged
    failure  why the job failed last, as JSON (see `Failure`)
    done     how the job ended, as long as its result is kept: one letter, then the result or a text
    owner    the incarnation that runs it, and when it claimed the job (see `claimed_at`)
    notes    its progress and its log (see `read_notes`)
    worker   `host:pid` of the worker that runs it, if it was asked for
    waits    what it waits for (see `WaitState`)
    """

    record: Record | None
    failure: bytes | None
    done: bytes | None
    owner: bytes | None = None
    notes: bytes | None = None
    worker: str = ""
    waits: bytes | None = None

    @property
    def claimed(self) -> float | None:
        """When the running job was claimed, in seconds since 1970; None if it does not run."""
        return claimed_at(self.owner)
