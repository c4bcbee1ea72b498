"""The output of a job: what it emits while it runs, as workers send it and as others read it. See `output.lua`."""

from __future__ import annotations

import logging
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from penstock import codec, sealing
from penstock.core.operations import RoundTrip
from penstock.errors import SealError
from penstock.jobs.constants import KEPT_CHUNKS
from penstock.jobs.following import Followed, FollowedPage
from penstock.settings import Seal

if TYPE_CHECKING:
    from penstock.jobs.bindings import QueueBindings
    from penstock.jobs.shard import Shard

log = logging.getLogger("penstock.worker")

MOST_CHUNK: Final = 262_144
"""Bytes of one chunk as JSON."""

_SENT: Final = struct.Struct(">QIIH")
_ABOUT: Final = struct.Struct(">QIIH")


def encode_chunk(value: Any) -> bytes:
    """Raises BadCall for a value that JSON cannot hold, and PayloadTooLarge above 256 KiB."""
    return codec.encode(value, limit=MOST_CHUNK, what="the chunk of emit()", untyped=True)


def pack_block(first: int, chunks: Sequence[bytes], *, missed: int, attempt: int, seal: Seal | None = None) -> bytes:
    """What a worker sends: chunks in order, of which the first has the number `first` in its claim.

    missed  chunks before it that were dropped
    seal    seals the block. Never raises: chunks that cannot be sealed are replaced by a remark
    """
    body = b"[" + b",".join(chunks) + b"]"
    if seal is not None:
        try:
            body = sealing.seal_body(body, seal, "a block of output")[1]
        except SealError as error:
            log.error("%s", error)
            body = msgspec.json.encode(["(this chunk could not be sealed)"] * len(chunks))
    return _SENT.pack(first, len(chunks), missed, attempt) + body


@dataclass(frozen=True, slots=True)
class OutputPart:
    """One chunk that a job emitted.

    id       its position, from which `job.output(after=…)` continues. A text that a client may keep, such as the
             `Last-Event-ID` of a browser
    chunk    the value that was emitted
    attempt  the run that emitted it: its `current().attempt`, or more if an earlier run has emitted with that number.
             A higher number than before means that the job emits from its beginning again
    at       when the server got it, in seconds since 1970 by the server's clock
    missed   chunks before this one that the reader does not get, because they were freed; mostly 0
    """

    id: str
    chunk: Any
    attempt: int
    at: float
    missed: int = 0


OutputPage: TypeAlias = FollowedPage[OutputPart]


def read_after(
    bindings: QueueBindings,
    key: str,
    after: str,
    address: str,
    *,
    register: bool,
    last: int = 0,
    seal: Seal | None = None,
    shows_sealed: bool = False,
) -> RoundTrip[OutputPage]:
    """Read the parts after a position; "": from the beginning, or the `last` ones. If `register`, the listener at
    `address` is notified of further ones; else it is deregistered.
    """

    def open_block(body: bytes) -> bytes | sealing.Sealed:
        if shows_sealed:
            return sealing.opened_or_sealed(body, seal)
        return sealing.open_body(body, seal, f"the output of job {bindings.keys.queue}:{key}")

    number, _, began = after.partition("-")
    args = (bindings.clock.now_ms, key, number or -last, began, address, int(register))
    return bindings._call("read_output", args, partial(_page, open_block))


def _page(open_block: Callable[[bytes], bytes | sealing.Sealed], reply: Sequence[Any]) -> OutputPage:
    lives, is_known, expires_in, top, begins_at, *blocks = reply
    parts: list[OutputPart] = []
    position = begins_at
    for name, about, encoded in zip(*[iter(blocks)] * 3, strict=True):
        last, _, began = name.decode().partition("-")
        at, count, missed, attempt = _ABOUT.unpack_from(about)
        first = int(last) - count + 1
        missed = missed + first - position - 1 if first > position else 0
        for number, chunk in enumerate(_chunks(open_block(encoded), count), first):
            if number > position:
                parts.append(OutputPart(f"{number}-{began}", chunk, attempt, at / 1000, missed))
                missed = 0
        position = int(last)
    waits = None if expires_in < 0 else expires_in / 1000
    return FollowedPage(bool(lives), bool(is_known), waits, position >= top, parts)


def _chunks(encoded: bytes | sealing.Sealed, count: int) -> list[Any]:
    """Damaged bytes, which another program wrote, give None for each chunk."""
    if isinstance(encoded, sealing.Sealed):
        return [encoded] * count
    try:
        found: list[Any] = msgspec.json.decode(encoded, type=list[Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        found = []
    return found if len(found) == count else [None] * count


class JobOutput(Followed[OutputPart]):
    """The output of one job, from `job.output()`: iterate over it with `for` or `async for`.

    The loop gets each part that is stored and each one that the job still emits, in order, and ends when the job does.
    It does not raise how the job ended: `job.result()` does.
    """

    _what = "output"
    _others = ("progress ", "log")
    _part = OutputPart
    _form = re.compile(r"([1-9]\d{0,14})-(\d{1,15})\Z", re.ASCII)
    _give = "a part of this output, or its `id`, such as '17-1767225600000'"

    def __init__(
        self,
        shard: Shard,
        key: str,
        after: OutputPart | str | None,
        wait: float | None,
        *,
        last: int | None = None,
        shows_sealed: bool = False,
    ) -> None:
        super().__init__(shard, key, after, wait, last=last, most=KEPT_CHUNKS)
        self._shows_sealed = shows_sealed

    def _request(self, address: str, *, register: bool) -> RoundTrip[OutputPage]:
        return read_after(
            self._shard.bindings,
            self._key,
            self._after,
            address,
            register=register,
            last=self._last,
            seal=self._shard.settings.seal,
            shows_sealed=self._shows_sealed,
        )
