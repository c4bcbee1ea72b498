"""A job's record: the header of `record.lua` on the Python side, and what the server stores beside a record.

A client drafts a record: options in the header, then tenant, trace and payload. When it enqueues the record, the server
fills in what only the server knows: state, generation, and times by its own clock.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

FORMAT: Final = 1
_HEADER: Final = struct.Struct(">BcBB HI HI HI HI HH BBI BB")
HEADER_SIZE: Final = _HEADER.size

CALL, DUE_IS_DATE, EXPIRES_IS_DATE, OWN_ID, SUSPECT, REASON = 1, 2, 4, 8, 16, 32


def _split(number: int) -> tuple[int, int]:
    """The upper 16 and the lower 32 bits: struct has no type of six bytes."""
    return number >> 32, number & 0xFFFFFFFF


def draft(
    *, flags: int, priority: int, tenant: bytes, delay_ms: int, expires_ms: int, ttl_ms: int, trace: bytes = b""
) -> bytes:
    """A record without its payload. It is the same for all calls with the same options."""
    header = _HEADER.pack(
        FORMAT, b"r", priority, flags, 0, 0, 0, 0, *_split(delay_ms), *_split(expires_ms), 0, 0, 0, *_split(ttl_ms),
        len(tenant), len(trace),
    )  # fmt: skip
    return header + tenant + trace


class Record:
    """A record as read from the server. Times are milliseconds since 1970 by the server's clock."""

    __slots__ = ("_fields", "body")

    def __init__(self, body: bytes) -> None:
        self.body = body
        self._fields = _HEADER.unpack_from(body)

    @classmethod
    def read(cls, body: bytes | None) -> Record | None:
        """None if there is no record, or if another program damaged it so that it is too short."""
        return cls(body) if body is not None and len(body) >= HEADER_SIZE else None

    @property
    def state(self) -> bytes:
        """One letter; see `record.lua`."""
        state: bytes = self._fields[1]
        return state

    @property
    def priority(self) -> int:
        return int(self._fields[2])

    @property
    def is_call(self) -> bool:
        """Whether the payload is the call of a task, rather than a bare value."""
        return bool(self._fields[3] & CALL)

    @property
    def is_suspect(self) -> bool:
        """Whether the job may have killed its worker."""
        return bool(self._fields[3] & SUSPECT)

    @property
    def enqueued(self) -> int:
        return int(self._fields[6] << 32 | self._fields[7])

    @property
    def since(self) -> int:
        """When the job became ready, is due, or died."""
        return int(self._fields[8] << 32 | self._fields[9])

    @property
    def expires(self) -> int:
        """0: never."""
        return int(self._fields[10] << 32 | self._fields[11])

    @property
    def attempts(self) -> int:
        """Runs that failed."""
        return int(self._fields[12])

    @property
    def deliveries(self) -> int:
        """How often the job was handed to a worker."""
        return int(self._fields[13])

    @property
    def crashes(self) -> int:
        """Whole crashes. The server counts in quarters; see `job.lua`."""
        return int(self._fields[14]) // 4

    @property
    def ttl(self) -> int:
        """Milliseconds for which the result is kept."""
        return int(self._fields[15] << 32 | self._fields[16])

    @property
    def tenant(self) -> str:
        return self.body[HEADER_SIZE : HEADER_SIZE + self._fields[17]].decode(errors="replace")

    @property
    def payload(self) -> bytes:
        return self.body[HEADER_SIZE + self._fields[17] + self._fields[18] :]


@dataclass(frozen=True, slots=True)
class StoredJob:
    """What the server has stored about one job.

    record   until the job is done; None also if the record is damaged
    failure  why the job failed last, as JSON (see `Failure`)
    done     how it ended, while its result is kept: one letter, then the result or a text
    """

    record: Record | None
    failure: bytes | None
    done: bytes | None
