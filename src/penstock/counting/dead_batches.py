"""Dead batches: lines that the function of an aggregate could not count, kept until they are counted or removed."""

from __future__ import annotations

import builtins
import zlib
from base64 import b85decode, b85encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from penstock.core.operations import Driver, Operation, RoundTrip, verb
from penstock.files.batches import LineBatch
from penstock.files.count_bindings import CountBindings, StoredBatch


@dataclass(frozen=True, slots=True)
class DeadBatch:
    """A batch of lines that the function of an aggregate could not count.

    file, first, source  as in LineBatch
    lines                how many lines it has
    attempts             how often the function was called for it
    error                the last error that it raised
    died                 when it became a dead batch, in seconds since 1970 by the server's clock
    is_retried           the next run of the aggregate counts it again
    """

    id: str
    file: str
    first: int
    lines: int
    source: str
    attempts: int
    error: str
    died: float
    is_retried: bool


class CountingFailure(NamedTuple):
    """The facts of a dead batch, without its lines."""

    file: str
    first: int
    source: str
    attempts: int
    error: str


_pack = msgspec.msgpack.Encoder().encode
_unpack: Any = msgspec.msgpack.Decoder(tuple[list[bytes], list[int]]).decode
_decode_failure: Any = msgspec.json.Decoder(CountingFailure).decode


def encode_failure(failure: CountingFailure) -> str:
    return msgspec.json.encode(failure).decode()


def pack_lines(lines: Sequence[bytes], numbers: Sequence[int]) -> str:
    """The lines as text, because the server's MessagePack has no bytes. `numbers`: those of the lines; [] if they
    follow one another."""
    return b85encode(zlib.compress(_pack(([*lines], [*numbers])), 1)).decode()


def unpack_batch(batch: DeadBatch, packed: bytes) -> tuple[LineBatch, Sequence[int]]:
    """The lines of a dead batch, and their numbers."""
    lines, numbers = _unpack(zlib.decompress(b85decode(packed)))
    whole = LineBatch(lines, batch.file, batch.first, batch.source)
    return whole, numbers or range(batch.first, batch.first + len(lines))


def _read(stored: StoredBatch) -> DeadBatch:
    failure: CountingFailure = _decode_failure(stored.known)
    return DeadBatch(
        stored.id,
        failure.file,
        failure.first,
        stored.lines,
        failure.source,
        failure.attempts,
        failure.error,
        stored.died,
        stored.is_retried,
    )


class DeadBatches:
    """The dead batches of one aggregate: at most 256. They are kept until they are counted or removed, or the counts
    are reset."""

    def __init__(self, channel: CountBindings, receiver: str, driver: Driver) -> None:
        self._channel = channel
        self._receiver = receiver
        self._driver = driver

    @verb
    def list(self) -> RoundTrip[builtins.list[DeadBatch]]:
        """All dead batches, the oldest first. One round trip."""
        return self.all()

    def all(self) -> RoundTrip[builtins.list[DeadBatch]]:
        return self._channel.dead_batches(self._receiver).then(lambda found: [_read(stored) for stored in found])

    @verb
    def lines(self, id: str) -> Operation[LineBatch]:
        """The lines of a dead batch; none if there is no such batch. Two round trips."""
        return self._lines(id)

    def _lines(self, id: str) -> Operation[LineBatch]:
        found: builtins.list[DeadBatch] = yield self.all()
        packed: bytes = yield self._channel.dead_lines(self._receiver, id)
        for batch in found:
            if batch.id == id and packed:
                return unpack_batch(batch, packed)[0]
        return LineBatch()

    @verb
    def retry(self, *ids: str) -> RoundTrip[int]:
        """Have the next `run` of the aggregate count these batches. Those for which its function fails again stay dead
        batches. Returns how many of the ids are dead batches. One round trip."""
        return self._channel.retry_dead_batches(self._receiver, ids)

    @verb
    def remove(self, *ids: str) -> RoundTrip[int]:
        """Delete these batches: their lines are never counted. Returns how many of the ids were dead batches. One round
        trip."""
        return self._channel.remove_dead_batches(self._receiver, ids)
