"""Binds the scripts that read and delete the counts of an aggregate. Counts are added by the scripts of receivers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from penstock.core.operations import RoundTrip
from penstock.messages.bindings import LogBindings

_decode_rejected: Any = msgspec.json.Decoder(list[str | int]).decode


PENDING = b"PENDING"
"""The reply to a call that reads counts if pieces of a settlement must be added first."""


class DeadBatchReply(NamedTuple):
    """The reply to the settlement of a dead batch; see ReceiveReply."""

    status: str


@dataclass(frozen=True, slots=True)
class Totals:
    """How many lines an aggregate has processed, and the names of its tables. Every line is counted or rejected:
    `lines` = `counted` + `rejected`."""

    lines: int
    counted: int
    rejected: int
    tables: tuple[str, ...]
    windows: tuple[str, ...] = ()
    """The tables of windows, as `<table>@<start>`."""
    version: int = field(default=0, compare=False)
    """Changes whenever counts are added."""
    dead: int = 0
    """Lines of dead batches, which the function could not count. They are not among `lines`."""


def read_number(kind: str, reply: Any) -> int:
    """A count; 0 for a key without one."""
    return int(reply or 0)


class _Rejected(NamedTuple):
    file: str
    line: int
    reason: str


class UncountedLine(_Rejected):
    """A line that was not counted: file, line number and reason. `source`: the host that has the file."""

    source: str

    def __new__(cls, file: str, line: int, reason: str, source: str = "") -> UncountedLine:
        row = super().__new__(cls, file, line, reason)
        row.source = source
        return row


class StoredBatch(NamedTuple):
    """The stored form of a dead batch. `lines`: how many; `known`: JSON, see `DeadBatch`; `is_retried`: the next run
    tries it again."""

    id: str
    died: float
    lines: int
    known: bytes
    is_retried: bool


class CountBindings(LogBindings):
    """The counts of a channel's aggregates, each of which belongs to a receiver.

    The calls that read counts return None if pieces of a settlement must be added first, see `settlement.py`.
    """

    def totals(self, receiver: str) -> RoundTrip[Totals | None]:
        def read(reply: Sequence[Any]) -> Totals | None:
            if reply[0] == PENDING:
                return None
            lines, rejected, version, kinds, dead = reply
            names = sorted(name.decode() for name in kinds[::2])
            windows = tuple(name for name in names if "@" in name)
            tables = tuple(name for name in names if "@" not in name)
            return Totals(lines, lines - rejected, rejected, tables, windows, version, dead)

        return RoundTrip(self._scripts["totals"], self._declared, (receiver,), read)

    def top_counts(
        self, receiver: str, table: str, offset: int, n: int, read_as: Callable[[str, Any], Any] = read_number
    ) -> RoundTrip[dict[str, Any] | None]:
        """Keys and their numbers, highest first. `read_as` returns a number, given the kind of the table and the reply
        of the server."""

        def read(reply: Sequence[Any]) -> dict[str, Any] | None:
            if reply[0] == PENDING:
                return None
            kind = reply[0].decode()
            return {key.decode(): read_as(kind, n) for key, n in zip(reply[1::2], reply[2::2], strict=True)}

        return RoundTrip(self._scripts["top_counts"], self._declared, (receiver, table, offset, n), read)

    def counts_of(
        self, receiver: str, table: str, keys: Sequence[str], read_as: Callable[[str, Any], Any] = read_number
    ) -> RoundTrip[dict[str, Any] | None]:
        """The numbers of these keys, as `top_counts` reads them; `read_as` is given None for a key without a number."""

        def read(reply: Sequence[Any]) -> dict[str, Any] | None:
            if reply[0] == PENDING:
                return None
            kind = reply[0].decode()
            return {key: read_as(kind, n) for key, n in zip(keys, reply[1:], strict=True)}

        return RoundTrip(self._scripts["counts_of"], self._declared, (receiver, table, *keys), read)

    def rejected(self, receiver: str, offset: int, n: int) -> RoundTrip[list[UncountedLine] | None]:
        def read(reply: Sequence[bytes]) -> list[UncountedLine] | None:
            return None if PENDING in reply[:1] else [UncountedLine(*_decode_rejected(row)) for row in reply]

        return RoundTrip(self._scripts["rejected"], self._declared, (receiver, offset, n), read)

    # --- settlements in pieces ---

    def deposit(self, receiver: str, id: str, index: int, counts: bytes) -> RoundTrip[str]:
        """Deposit piece number `index` of a settlement. Returns OK; or why it cannot be deposited now, see
        `deposits.lua`."""
        args = (self.clock.now_ms, receiver, id, index, counts)
        return self._call("deposit", args, lambda reply: str(reply[0].decode()), receiver, also=b"PENDING BUSY LOST")

    def add_piece(self, receiver: str, id: str = "") -> RoundTrip[int]:
        """Add the next piece of a committed deposit, or remove a deposit with this id that was not committed. Returns
        how many pieces are left."""
        return RoundTrip(self._scripts["add_piece"], self._declared, (self.clock.now_ms, receiver, id), int)

    # --- dead batches ---

    def dead_batches(self, receiver: str) -> RoundTrip[list[StoredBatch]]:
        """The dead batches, the oldest first."""

        def read(reply: Sequence[Any]) -> list[StoredBatch]:
            rows = []
            for id, stored, is_retried in zip(reply[::3], reply[1::3], reply[2::3], strict=True):
                died, lines, known = stored.split(b" ", 2)
                rows.append(StoredBatch(id.decode(), int(died) / 1000, int(lines), known, bool(is_retried)))
            return sorted(rows, key=lambda row: int(row.id))

        return RoundTrip(self._scripts["dead_batches"], self._declared, (receiver,), read)

    def dead_lines(self, receiver: str, id: str) -> RoundTrip[bytes]:
        """The packed lines of a dead batch, or b""."""
        return RoundTrip(self._scripts["dead_lines"], self._declared, (receiver, id), bytes)

    def settle_dead_batch(self, receiver: str, id: str, counts: bytes, known: str) -> RoundTrip[DeadBatchReply]:
        """Add the counts of a dead batch and remove it; or, without counts, store how it failed again, as `known`. Does
        nothing if there is no such batch."""
        args = (self.clock.now_ms, receiver, id, counts, known)

        def read(reply: Sequence[Any]) -> DeadBatchReply:
            return DeadBatchReply(reply[0].decode())

        return self._call("settle_dead_batch", args, read, receiver, also=b"PENDING BUSY LOST")

    def retry_dead_batches(self, receiver: str, ids: Sequence[str]) -> RoundTrip[int]:
        return RoundTrip(self._scripts["retry_dead_batches"], self._declared, (receiver, *ids), int)

    def remove_dead_batches(self, receiver: str, ids: Sequence[str]) -> RoundTrip[int]:
        return RoundTrip(self._scripts["remove_dead_batches"], self._declared, (receiver, *ids), int)

    def forget_counts(self, receiver: str) -> RoundTrip[bool]:
        return RoundTrip(self._scripts["forget_counts"], self._declared, (receiver,), bool)
