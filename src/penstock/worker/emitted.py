"""Keeps what the running jobs of a process emit until a turn carries it to the server. See `jobs/output.lua`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Final

from penstock.jobs.claims import Claim, Settlement
from penstock.jobs.constants import KEPT_BYTES, KEPT_CHUNKS
from penstock.jobs.output import pack_block
from penstock.settings import Seal
from penstock.worker.notes import PendingReports

_INTERVAL: Final = 0.05
"""Seconds between two turns that are taken for what jobs emit."""

_MOST_BLOCKS: Final = 100
"""Blocks in one turn. A block costs the server about five commands."""

_TURN_BYTES: Final = 524_288
_BLOCK_BYTES: Final = 65_536
_BLOCK_CHUNKS: Final = 2_000

_EACH: Final = 8
"""Bytes that a chunk counts in addition to its own."""


class _Chunks:
    """What one claim has emitted and no turn has carried.

    first   the number of the first chunk in its claim
    missed  chunks before that one that were dropped
    """

    __slots__ = ("chunks", "first", "missed", "size")

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.size = 0
        self.first = 1
        self.missed = 0

    def add(self, chunk: bytes) -> None:
        self.chunks.append(chunk)
        self.size += len(chunk) + _EACH
        if self.size > KEPT_BYTES or len(self.chunks) > KEPT_CHUNKS:
            self._drop()

    def _drop(self) -> None:
        """Drop the oldest chunks, which the server would not keep either: an eighth, so that this happens seldom."""
        n = 0
        while self.size > KEPT_BYTES * 7 // 8 or len(self.chunks) - n > KEPT_CHUNKS * 7 // 8:
            self.size -= len(self.chunks[n]) + _EACH
            n += 1
        del self.chunks[:n]
        self.first += n
        self.missed += n

    def take(self, attempt: int, seal: Seal | None) -> bytes:
        """Remove and return the next block, sealed if the app has a codec."""
        n = size = 0
        for chunk in self.chunks[:_BLOCK_CHUNKS]:
            size += len(chunk) + _EACH
            if n and size > _BLOCK_BYTES:
                size -= len(chunk) + _EACH
                break
            n += 1
        block = pack_block(self.first, self.chunks[:n], missed=self.missed, attempt=attempt, seal=seal)
        del self.chunks[:n]
        self.size -= size
        self.first += n
        self.missed = 0
        return block


class PendingOutput(PendingReports):
    """What one queue's jobs have emitted and no turn has carried.

    `emit` is called in any thread, everything else on the worker's loop.
    """

    def __init__(self, seal: Seal | None = None) -> None:
        super().__init__(seal)
        self._claims: dict[bytes, _Chunks] = {}
        """Of each claim that has emitted, also where nothing is pending, because the numbers continue."""
        self._pending: dict[bytes, _Chunks] = {}
        self._taken_at = 0.0

    def emit(self, token: bytes, chunk: bytes) -> None:
        with self._lock:
            of_claim = self._pending.get(token)
            is_first = not self._pending
            if of_claim is None:
                of_claim = self._pending[token] = self._claims.setdefault(token, _Chunks())
            of_claim.add(chunk)
        if is_first:
            self._plan_turn()

    def _delay(self) -> float:
        """A turn is taken at once, but not earlier than 50 ms after the last one that carried output."""
        return max(0.0, self._taken_at + _INTERVAL - time.monotonic())

    def __bool__(self) -> bool:
        return bool(self._pending)

    def take(self, first: Iterable[bytes], held: Mapping[bytes, Claim]) -> list[tuple[bytes, bytes]]:
        """Remove and return tokens and blocks for one turn. Claims in `first` go before others; those that are not in
        `held` have ended, and what they emit is dropped.
        """
        if not self._pending:
            return []
        taken: list[tuple[bytes, bytes]] = []
        size = 0
        with self._lock:
            for token in [token for token in self._pending if token not in held]:
                del self._pending[token], self._claims[token]
            order = dict.fromkeys([*(token for token in first if token in self._pending), *self._pending])
            for token in order:
                attempt, of_claim = held[token].record.attempts + 1, self._pending[token]
                while of_claim.chunks and len(taken) < _MOST_BLOCKS and size < _TURN_BYTES:
                    taken.append((token, of_claim.take(attempt, self._seal)))
                    size += len(taken[-1][1])
                if of_claim.chunks:
                    break
                del self._pending[token]
            self._time_is_up = bool(self._pending)
        self._taken_at = time.monotonic()
        return taken

    def has(self, token: bytes) -> bool:
        """Whether something of this claim is pending."""
        return token in self._pending

    def forget(self, settled: Iterable[Settlement]) -> None:
        """Forget claims that have ended."""
        if self._claims:
            with self._lock:
                for token in [token for one in settled for token in one.tokens]:
                    self._claims.pop(token, None)
                    self._pending.pop(token, None)

    def clear(self) -> None:
        with self._lock:
            self._claims.clear()
            self._pending.clear()
