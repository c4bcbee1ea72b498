"""A job's record: the header of `record.lua` on the Python side, and what the server stores beside a record.

A client drafts a record: options in the header, then tenant, trace and payload. When it enqueues the record, the server
fills in what only the server knows: state, generation, and times by its own clock.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from penstock.jobs.constants import CALL, CRASH, FORMAT, GENERATION_DIGITS, READY, REASON, SUSPECT

_HEADER: Final = struct.Struct(">BcBB HI HI HI HI HH BBI BB")
HEADER_SIZE: Final = _HEADER.size

# The fields of the header, as struct unpacks them. A number of five or six bytes takes two fields.
(
    _, _STATE, _PRIORITY, _, _GENERATION, _, _ENQUEUED, _, _SINCE, _, _EXPIRES, _,
    _ATTEMPTS, _DELIVERIES, _RECOVERY, _TTL, _, _, _,
) = range(19)  # fmt: skip

# Where the bytes are that a worker reads of every job, so that it need not unpack the whole header.
_FLAGS_AT: Final = 3
_TENANT_SIZE_AT: Final = HEADER_SIZE - 2
_TRACE_SIZE_AT: Final = HEADER_SIZE - 1


def _split(number: int) -> tuple[int, int]:
    """The upper 16 and the lower 32 bits: struct has no type of six bytes."""
    return number >> 32, number & 0xFFFFFFFF


def draft(
    *, flags: int, priority: int, tenant: bytes, delay_ms: int, expires_ms: int, ttl_ms: int, trace: bytes = b""
) -> bytes:
    """A record without its payload. It is the same for all calls with the same options."""
    header = _HEADER.pack(
        FORMAT, READY, priority, flags, 0, 0, 0, 0, *_split(delay_ms), *_split(expires_ms), 0, 0, 0, *_split(ttl_ms),
        len(tenant), len(trace),
    )  # fmt: skip
    return header + tenant + trace


def with_trace(record: bytes, trace: bytes) -> bytes:
    """The record with another trace, of at most 255 bytes."""
    tenant, old = record[_TENANT_SIZE_AT], record[_TRACE_SIZE_AT]
    end = HEADER_SIZE + tenant
    return record[: HEADER_SIZE - 1] + bytes([len(trace)]) + record[HEADER_SIZE:end] + trace + record[end + old :]


class Record(msgspec.Struct, eq=False, gc=False):
    """A record as read from the server. Times are milliseconds since 1970 by the server's clock.

    The header is unpacked when the first field is read that a worker does not need of every job.
    """

    body: bytes
    _unpacked: tuple[Any, ...] | None = None

    @property
    def _fields(self) -> tuple[Any, ...]:
        if self._unpacked is None:
            self._unpacked = _HEADER.unpack_from(self.body)
        return self._unpacked

    @classmethod
    def read(cls, body: bytes | None) -> Record | None:
        """None if there is no record, or if another program damaged it so that it is too short."""
        return cls(body) if body is not None and len(body) >= HEADER_SIZE else None

    def _number(self, field: int) -> int:
        return int(self._fields[field] << 32 | self._fields[field + 1])

    @property
    def state(self) -> bytes:
        """One letter; see `state` in `record.lua`."""
        state: bytes = self._fields[_STATE]
        return state

    @property
    def priority(self) -> int:
        return int(self._fields[_PRIORITY])

    @property
    def is_call(self) -> bool:
        """Whether the payload is the call of a task, rather than a bare value."""
        return bool(self.body[_FLAGS_AT] & CALL)

    @property
    def is_suspect(self) -> bool:
        """Whether the job may have killed its worker, so that it runs only in trials."""
        return bool(self.body[_FLAGS_AT] & SUSPECT)

    @property
    def has_reason(self) -> bool:
        """Whether the server has stored why the job failed last."""
        return bool(self.body[_FLAGS_AT] & REASON)

    @property
    def generation(self) -> int:
        """The number of its entry in a lane or among the delayed jobs. It rises with each enqueue."""
        return self._number(_GENERATION)

    @property
    def enqueued(self) -> int:
        return self._number(_ENQUEUED)

    @property
    def since(self) -> int:
        """When the job became ready, is due, or died."""
        return self._number(_SINCE)

    @property
    def expires(self) -> int:
        """0: never."""
        return self._number(_EXPIRES)

    @property
    def attempts(self) -> int:
        """Runs that failed."""
        return int(self._fields[_ATTEMPTS])

    @property
    def deliveries(self) -> int:
        """How often the job was handed to a worker."""
        return int(self._fields[_DELIVERIES])

    @property
    def crashes(self) -> int:
        """Crashes charged to the job; see `recovery.lua`."""
        return int(self._fields[_RECOVERY]) // CRASH

    @property
    def ttl(self) -> int:
        """Milliseconds for which the result is kept."""
        return self._number(_TTL)

    @property
    def tenant(self) -> str:
        return self.body[HEADER_SIZE : HEADER_SIZE + self.body[_TENANT_SIZE_AT]].decode(errors="replace")

    @property
    def trace(self) -> str:
        """A text of the application that travels with the job (see `middleware.py`)."""
        start = HEADER_SIZE + self.body[_TENANT_SIZE_AT]
        return self.body[start : start + self.body[_TRACE_SIZE_AT]].decode(errors="replace")

    @property
    def payload(self) -> bytes:
        return self.body[HEADER_SIZE + self.body[_TENANT_SIZE_AT] + self.body[_TRACE_SIZE_AT] :]


def entry_id(entry: bytes) -> bytes:
    """The job's id, which is the last part of an entry; the generation and a letter for the size precede it."""
    return entry[GENERATION_DIGITS + 1 :]


def entry_generation(entry: bytes) -> int:
    return int(entry[:GENERATION_DIGITS], 16)


@dataclass(frozen=True, slots=True)
class StoredJob:
    """The data that the server has stored about one job.

    record   None once the job is done, or if the record is damaged
    failure  why the job failed last, as JSON (see `Failure`)
    done     how the job ended, as long as its result is kept: one letter, then the result or a text
    """

    record: Record | None
    failure: bytes | None
    done: bytes | None
