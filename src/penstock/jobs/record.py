"""A job's record on the Python side: the same header as in `record.lua`, and the minting of ids.

A client drafts a record with its delay and its time to live; the server fills in what only it may say
(state, generation, times by its own clock).
"""

from __future__ import annotations

import struct
from typing import Final

FORMAT: Final = 1
_HEADER: Final = struct.Struct(">BcBB HI HI HI HI HH BBI BB")
HEADER_SIZE: Final = _HEADER.size

CALL, DUE_IS_DATE, EXPIRES_IS_DATE, OWN_ID, SUSPECT, REASON = 1, 2, 4, 8, 16, 32


def _split(number: int) -> tuple[int, int]:
    return number >> 32, number & 0xFFFFFFFF


def draft(
    *, flags: int, priority: int, tenant: bytes, delay_ms: int, expires_ms: int, ttl_ms: int, trace: bytes = b""
) -> bytes:
    """Everything of a record but its payload; the same for all calls with the same options."""
    header = _HEADER.pack(
        FORMAT, b"r", priority, flags, 0, 0, 0, 0, *_split(delay_ms), *_split(expires_ms), 0, 0, 0, *_split(ttl_ms),
        len(tenant), len(trace),
    )  # fmt: skip
    return header + tenant + trace


class Record:
    """A record as read from the server. Times are server milliseconds."""

    __slots__ = ("_fields", "body")

    def __init__(self, body: bytes) -> None:
        self.body = body
        self._fields = _HEADER.unpack_from(body)

    @classmethod
    def read(cls, body: bytes | None) -> Record | None:
        """None where there is no record, or where somebody cut it by hand."""
        return cls(body) if body is not None and len(body) >= HEADER_SIZE else None

    @property
    def state(self) -> bytes:
        state: bytes = self._fields[1]
        return state

    @property
    def priority(self) -> int:
        return int(self._fields[2])

    @property
    def is_call(self) -> bool:
        return bool(self._fields[3] & CALL)

    @property
    def is_suspect(self) -> bool:
        return bool(self._fields[3] & SUSPECT)

    @property
    def enqueued(self) -> int:
        return int(self._fields[6] << 32 | self._fields[7])

    @property
    def since(self) -> int:
        return int(self._fields[8] << 32 | self._fields[9])

    @property
    def expires(self) -> int:
        return int(self._fields[10] << 32 | self._fields[11])

    @property
    def attempts(self) -> int:
        return int(self._fields[12])

    @property
    def deliveries(self) -> int:
        return int(self._fields[13])

    @property
    def crashes(self) -> int:
        """Whole ones: the server counts in quarters."""
        return int(self._fields[14]) // 4

    @property
    def ttl(self) -> int:
        return int(self._fields[15] << 32 | self._fields[16])

    @property
    def tenant(self) -> str:
        return self.body[HEADER_SIZE : HEADER_SIZE + self._fields[17]].decode(errors="replace")

    @property
    def payload(self) -> bytes:
        return self.body[HEADER_SIZE + self._fields[17] + self._fields[18] :]
