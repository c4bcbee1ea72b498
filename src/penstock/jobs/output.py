"""The output of a job: what it emits while it runs, as workers send it and as others read it. See `output.lua`."""

from __future__ import annotations

import logging
import math
import re
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock import codec, sealing
from penstock.core.arguments import check_wait, check_whole, shown
from penstock.core.operations import Driver, Listen, Operation, RoundTrip, Wait, refuse_for_in_loop, verb
from penstock.errors import BadCall, JobNotFound, SealError
from penstock.jobs.constants import KEPT_CHUNKS
from penstock.settings import Seal

if TYPE_CHECKING:
    from penstock.jobs.bindings import QueueBindings
    from penstock.jobs.shard import Shard

log = logging.getLogger("penstock.worker")

MOST_CHUNK: Final = 262_144
"""Bytes of one chunk as JSON."""

_SENT: Final = struct.Struct(">QIIH")
_ABOUT: Final = struct.Struct(">QIIH")
_POSITION: Final = re.compile(r"([1-9]\d{0,14})-(\d{1,15})\Z", re.ASCII)
_RECHECK: Final = 60.0
"""Seconds after which a reader looks again: a script that has many readers to notify does not notify all of them."""


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


@dataclass(frozen=True, slots=True)
class OutputPage:
    """What one round trip reads.

    lives       whether the job is not done
    is_known    whether there is such a job, or was one until recently
    expires_in  seconds until a waiting job expires; None: it does not
    is_last     whether there is nothing after these parts yet
    begins_at   number of the chunk before these parts
    """

    lives: bool
    is_known: bool
    expires_in: float | None
    is_last: bool
    begins_at: int
    parts: list[OutputPart]


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
    return OutputPage(bool(lives), bool(is_known), waits, position >= top, begins_at, parts)


def _chunks(encoded: bytes | sealing.Sealed, count: int) -> list[Any]:
    """Damaged bytes, which another program wrote, give None for each chunk."""
    if isinstance(encoded, sealing.Sealed):
        return [encoded] * count
    try:
        found: list[Any] = msgspec.json.decode(encoded, type=list[Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        found = []
    return found if len(found) == count else [None] * count


def check_position(what: str, after: OutputPart | str | None) -> str:
    """The position of a part; "" for None. Raises BadCall for anything else."""
    if after is None:
        return ""
    position = after.id if isinstance(after, OutputPart) else after
    if not isinstance(position, str) or not _POSITION.match(position):
        raise BadCall(f"{what}({shown(after)}): give a part of this output, or its `id`, such as '17-1767225600000'")
    return position


class JobOutput:
    """The output of one job, from `job.output()`: iterate over it with `for` or `async for`.

    The loop gets each part that is stored and each one that the job still emits, in order, and ends when the job does.
    It does not raise how the job ended: `job.result()` does.
    """

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
        check_wait("output", wait)
        if last is not None:
            check_whole("output", "last", last, 1, KEPT_CHUNKS, f"from 1 to {KEPT_CHUNKS:,}")
            if after is not None:
                raise BadCall("output(): give `after` or `last`, not both")
        self._shard, self._key, self._wait, self._shows_sealed = shard, key, wait, shows_sealed
        self._after = check_position("output(after=…)", after)
        self._last = last or 0
        self._parts: deque[OutputPart] = deque()
        self._was_seen = False
        """Whether the job existed at an earlier read."""
        self._is_at_end = False
        """Whether the last read returned all that there was."""
        self.has_ended = False
        """Whether the job is done, or a dead letter, and every part was fetched."""

    @property
    def _driver(self) -> Driver:
        return self._shard._driver

    @verb
    def fetch(self, wait: float | None = None) -> Operation[list[OutputPart]]:
        """Return the next parts, at most about 256 KiB of them, for a loop that you write.

        wait  seconds to wait for the first one; 0 answers at once, None waits until the job ends

        Returns an empty list if no part came in time, or if the job has ended; then `has_ended` is set. Raises
        JobNotFound for a job that is unknown, or whose output has expired, and SealError for chunks that are sealed
        with a key that this program does not have. One round trip when there are parts; else
        two or three, between which it waits for a message, and one in a minute.
        """
        check_wait("fetch", wait)
        return self._fetch(wait)

    def _fetch(self, wait: float | None) -> Operation[list[OutputPart]]:
        deadline = math.inf if wait is None else time.monotonic() + wait
        parts: list[OutputPart] = []
        if wait == 0 or not self._is_at_end:
            parts = (yield from self._read("", register=False)).parts
        while not parts and not self.has_ended and time.monotonic() < deadline:
            parts = (yield from self._wait_for_more(deadline)).parts
        return parts

    def _wait_for_more(self, deadline: float) -> Operation[OutputPage]:
        """Register a listener, read, and if there is nothing, wait and read again."""
        listener = yield Listen(self._shard.bindings.keys.base + self._key, shared=True)
        is_registered = True
        try:
            page = yield from self._read(listener.address, register=True)
            if page.parts or self.has_ended:
                return page
            ends = min(deadline, time.monotonic() + _RECHECK)
            if page.expires_in is not None:
                ends = min(ends, time.monotonic() + page.expires_in)
            while (messages := (yield Wait(listener, max(0.0, ends - time.monotonic())))) and all(
                message.startswith("progress ") for message in messages
            ):
                pass
            # While other waiters in this process share the address, it stays registered.
            is_registered = listener.close()
            page = yield from self._read(listener.address if is_registered else "", register=False)
            is_registered = False
            return page
        finally:
            if is_registered and listener.close() and not self.has_ended:
                yield self._shard.bindings.forget(self._key, listener.address)

    def _read(self, address: str, *, register: bool) -> Operation[OutputPage]:
        seal = self._shard.settings.seal
        page: OutputPage = yield read_after(
            self._shard.bindings,
            self._key,
            self._after,
            address,
            register=register,
            last=self._last,
            seal=seal,
            shows_sealed=self._shows_sealed,
        )
        if not page.is_known and not self._was_seen:
            raise JobNotFound(
                f"no job {self._shard.name}:{self._key}: never enqueued here, or it ended and its output has expired"
            )
        self._was_seen, self._last = True, 0
        self._is_at_end = page.is_last
        self.has_ended = page.is_last and not page.lives
        if page.parts:
            self._after = page.parts[-1].id
        return page

    def __iter__(self) -> JobOutput:
        refuse_for_in_loop()
        return self

    def __next__(self) -> OutputPart:
        if not self._parts and not self.has_ended:
            self._parts.extend(self.fetch(self._wait))
        if not self._parts:
            raise StopIteration
        return self._parts.popleft()

    def __aiter__(self) -> JobOutput:
        return self

    async def __anext__(self) -> OutputPart:
        if not self._parts and not self.has_ended:
            self._parts.extend(await self.fetch.aio(self._wait))
        if not self._parts:
            raise StopAsyncIteration
        return self._parts.popleft()
