"""Rows of jobs that have ended: what a worker sends of those that it completed, and what people read.

`finished.lua` says how the server keeps them: in blocks of segments. Nothing in the server reads rows. A reader gets
whole blocks, the latest first, and chooses from them here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

import msgspec

from penstock.core.ids import packed_id, text_of_id
from penstock.core.operations import RoundTrip
from penstock.jobs import constants
from penstock.jobs.bindings import QueueBindings
from penstock.jobs.claims import Claim, Settlement
from penstock.jobs.constants import (
    BLOCKS,
    FAILED_ATTEMPTS,
    FORMAT,
    LINKS,
    NUMBER_BYTES,
    PURGE,
    RECORD,
    ROW,
    SEGMENT,
    TAGS,
    TAIL,
    TAIL_BYTES,
    TAILED,
    TURN,
)
from penstock.jobs.failures import Attempt, Failures, beginning_of
from penstock.jobs.header import struct_of
from penstock.jobs.record import FORMAT_AT, HEADER_SIZE, POWERS_AT, Record
from penstock.jobs.status import Status
from penstock.jobs.tags import read_tags
from penstock.sealing import open_text
from penstock.settings import Seal

RowList: TypeAlias = Literal["finished", "failed"]
"""The rows of completed, cancelled, expired and dropped jobs; those of jobs that became dead letters."""

OUTCOMES: Final = {
    constants.COMPLETED: "completed",
    constants.CANCELLED: "cancelled",
    constants.EXPIRED: "expired",
    constants.DROPPED: "dropped",
    constants.DEAD: "failed",
}
"""The letters of outcomes in rows."""

ENDED: Final = "ended"
"""Stands for all outcomes in a filter."""

ENDED_STATES: Final = (*OUTCOMES.values(), ENDED)
"""The states of a filter that choose among rows."""

_HEAD: Final = struct.Struct(">c3s6s")
_BLOCK: Final = struct.Struct(">II6s6s")
BLOCK_HEAD: Final = _BLOCK.size
"""The bytes before the segments of a closed block."""

_JOB: Final = struct.Struct(">cBHH6s6s6s")
_of_row = struct_of(RECORD, "format", "since", "priority", "powers").unpack_from
_of_tail = struct_of(TAIL, "enqueued", "attempts", "deliveries").unpack_from
_RUNNING_NOT: Final = -1
_TAGS_AT: Final = 10

_FEW: Final = 8
"""Rows of a turn whose ids are packed. In larger turns the rows are short, because they share the names."""

_MANY: Final = 500
"""Names of tasks and tenants that are kept although the rows that are left need only some of them."""


@dataclass(frozen=True, slots=True)
class FinishedJob:
    """The row of a job that has ended. Times are seconds since 1970 by the server's clock.

    outcome   completed, cancelled, expired, dropped, or failed: it became a dead letter, which may run again
    due       when it became ready for its last run, or was due
    started   of its last run; None: it did not run
    ended     when it ended; of a completed job, when its run ended
    reason    how a job ended that was not completed, up to 200 bytes
    failures  its last failed attempts, the latest first, as far as a row keeps their texts
    jobs      1; more in the row of a purge, which has no id
    """

    id: str
    outcome: str
    task: str
    tenant: str
    priority: int
    tags: tuple[str, ...]
    enqueued: float
    due: float
    started: float | None
    ended: float
    attempts: int
    deliveries: int
    worker: str
    release: str
    reason: str = ""
    jobs: int = 1
    failures: tuple[Attempt, ...] = ()

    @property
    def status(self) -> Status:
        """The status of a job with this outcome."""
        return Status.DEAD if self.outcome == OUTCOMES[constants.DEAD] else Status(self.outcome)

    @property
    def duration(self) -> float | None:
        """Seconds of its last run."""
        return None if self.started is None else max(0.0, self.ended - self.started)


# --- what a worker sends ---


class CompletedRows:
    """The rows of jobs that a worker has completed, until it sends them.

    Each is made when its job has ended, because the server then works on the latest turn. If all were made together
    with the next turn, the server would wait for them.
    """

    def __init__(self, worker: str = "", release: str = "") -> None:
        self._worker, self._release = worker, release
        self._rows: dict[bytes, tuple[Any, ...]] = {}
        """By the tokens of the claims."""
        self._names: dict[str, int] = {}
        self._known: dict[bytes, tuple[int, int]] = {}
        """The positions of task and tenant in `_names`, by the bytes of both in the record."""

    def add(self, claim: Claim, began: float = 0.0, ended: float | None = None) -> None:
        """Make the row of a completed job. Its times are counted from the server's time of the claim.

        began, ended  `time.monotonic()` of the run; None: it began with the claim
        """
        # No method of Record does this, because it is done for every job.
        record, token, body = claim.record, claim.token, claim.record.body
        format_, high, since, priority, powers = _of_row(body)
        enqueued = since = high << 32 | since
        attempts = deliveries = 0
        if format_ >= TAILED:
            high, enqueued, attempts, deliveries = _of_tail(body, len(body) - TAIL_BYTES)
            enqueued |= high << 32
        at = HEADER_SIZE + body[HEADER_SIZE - 1]
        both = body[HEADER_SIZE - 1 : at + 1 + body[at] if at < len(body) else at]
        task, tenant = self._known.get(both) or self._learn(record, both)
        waited, took = claim.claimed - enqueued, _RUNNING_NOT
        if ended is not None:
            waited += int(1000 * (began - claim.received) + 0.5) if began > claim.received else 0
            took = int(1000 * (ended - began) + 0.5) if ended > began else 0
        row = (
            token[NUMBER_BYTES:].decode("utf-8", "replace"), task, tenant, priority, enqueued, since - enqueued, waited,
            took, attempts, deliveries + 1,
        )  # fmt: skip
        self._rows[token] = (*row, *record.tags) if powers & TAGS else row

    def add_together(self, claims: Sequence[Claim], began: float, ended: float) -> None:
        """As `add`, for jobs of one turn that a worker has completed in one call: their times are those of the call."""
        if not claims:
            return
        of_turn, bodies = claims[0], [claim.record.body for claim in claims]
        names = of_turn.record.names
        if any(
            body[POWERS_AT] & TAGS or body[FORMAT_AT] != FORMAT or not body.startswith(names, HEADER_SIZE - 1)
            for body in bodies
        ):
            for claim in claims:
                self.add(claim, began, ended)
            return
        task, tenant = self._known.get(names) or self._learn(of_turn.record, names)
        started = of_turn.claimed + max(0, int(1000 * (began - of_turn.received) + 0.5))
        took = max(0, int(1000 * (ended - began) + 0.5))
        rows = self._rows
        for claim, body in zip(claims, bodies, strict=True):
            _, high, enqueued, priority, _ = _of_row(body)
            enqueued, token = high << 32 | enqueued, claim.token
            rows[token] = (
                token[NUMBER_BYTES:].decode("utf-8", "replace"), task, tenant, priority, enqueued, 0,
                started - enqueued, took, 0, 1,
            )  # fmt: skip

    def _learn(self, record: Record, both: bytes) -> tuple[int, int]:
        names = self._names
        task = names.setdefault(record.task, len(names))
        known = self._known[both] = (task, names.setdefault(record.tenant, len(names)))
        return known

    def take(self, settlements: Sequence[Settlement]) -> bytes:
        """The rows of these jobs, in the order of their settlements, to be sent. A job that was not added has none."""
        rows = [self._rows.pop(token, None) for settlement in settlements for token in settlement.tokens]
        names = [*self._names]
        if len(names) > 2 * len(rows):  # the others are of rows that an earlier turn carried, or that a later one does
            names, rows = _with_own_names(names, rows)
        if len(rows) <= _FEW:
            rows = [row and (packed_id(row[0]), *row[1:]) for row in rows]
        packed = msgspec.msgpack.encode((self._worker, self._release, names, rows))
        if not self._rows or len(self._names) > _MANY + 2 * len(self._rows):
            self._forget_names()
        return packed

    def _forget_names(self) -> None:
        """Keep only the names of rows that are left."""
        names, rows = _with_own_names([*self._names], self._rows.values())
        self._names = {name: position for position, name in enumerate(names)}
        self._rows = {token: row for token, row in zip(self._rows, rows, strict=True) if row is not None}
        self._known.clear()

    def clear(self) -> None:
        """Forget all rows."""
        self._rows.clear()
        self._forget_names()


def _with_own_names(
    names: Sequence[str], rows: Iterable[tuple[Any, ...] | None]
) -> tuple[list[str], list[tuple[Any, ...] | None]]:
    """The names that these rows need, and the rows with the positions of their names among those."""
    own: dict[str, int] = {}

    def moved(position: int) -> int:
        return own.setdefault(names[position], len(own))

    changed: list[tuple[Any, ...] | None] = []
    for row in rows:
        changed.append(row and (row[0], moved(row[1]), moved(row[2]), *row[3:]))
    return [*own], changed


# --- what is read ---


class _Turn(msgspec.Struct, array_like=True):
    worker: str
    release: str
    names: list[str]
    rows: list[tuple[Any, ...] | None]


_DECODE: Final = msgspec.msgpack.Decoder(_Turn)


def read_block(
    queue: str, segments: bytes, tag: str | None = None, seal: Seal | None = None
) -> list[FinishedJob | None]:
    """The rows of a block, the earliest first. Rows that another program has damaged are left out.

    `seal` opens failed attempts. `tag`: a completed job without it is read as None, because most of the time of a
    search is spent on making objects of rows.
    """
    found: list[FinishedJob | None] = []
    failures: dict[str, tuple[Attempt, ...]] = {}
    at = 0
    while at + SEGMENT <= len(segments):
        kind, size, ms = _HEAD.unpack_from(segments, at)
        start = at + SEGMENT
        at = start + int.from_bytes(size)
        body, ended = segments[start:at], int.from_bytes(ms)
        try:
            if kind == TURN:
                found += _turn(queue, body, ended, tag)
            elif kind == ROW:
                found.append(_row(queue, body, ended))
            elif kind == PURGE:
                found.append(_purge(body, ended))
            elif kind == FAILED_ATTEMPTS:
                key, attempts = body[1 : 1 + body[0]].decode(errors="replace"), body[1 + body[0] :]
                failures[f"{queue}:{key}"] = Failures.read(b"\0" * 7 + attempts, seal).attempts
        except (ValueError, IndexError, TypeError, struct.error, msgspec.MsgspecError):
            continue
    if failures:
        return [replace(row, failures=failures[row.id]) if row and row.id in failures else row for row in found]
    return found


def read_links(segments: bytes) -> Iterator[tuple[str, tuple[str, str]]]:
    """Pairs of a job that has ended, by its key, and a job that waited for it: its queue ("": the same) and its key."""
    at = 0
    while at + SEGMENT <= len(segments):
        kind, size, _ = _HEAD.unpack_from(segments, at)
        start = at + SEGMENT
        at = start + int.from_bytes(size)
        if kind == LINKS and len(body := segments[start:at]) > 2:
            first = 2 + int.from_bytes(body[:2])
            name_end = 3 + body[2]
            queue, dependent = body[3:name_end].decode(errors="replace"), body[name_end:first].decode(errors="replace")
            while first < len(body):
                end = first + 1 + body[first]
                yield body[first + 1 : end].decode(errors="replace"), (queue, dependent)
                first = end


def _turn(queue: str, body: bytes, at: int, tag: str | None) -> Iterator[FinishedJob | None]:
    refused_number = int.from_bytes(body[2:4])
    refused = {int.from_bytes(body[n : n + 2]) for n in range(4, 4 + 2 * refused_number, 2)}
    turn = _DECODE.decode(body[4 + 2 * refused_number :])
    for position, row in enumerate(turn.rows):
        if row is None or position in refused:
            continue
        if tag is not None and tag not in row[_TAGS_AT:]:
            yield None
            continue
        key, task, tenant, priority, enqueued, due, started, took, attempts, deliveries, *tags = row
        began = enqueued + started
        if isinstance(key, bytes):
            key = text_of_id(key)
        yield FinishedJob(
            f"{queue}:{key}", "completed", turn.names[task], turn.names[tenant], priority, tuple(tags),
            enqueued / 1000, (enqueued + due) / 1000, began / 1000, (at if took < 0 else began + took) / 1000,
            attempts, deliveries, turn.worker, turn.release,
        )  # fmt: skip


def _row(queue: str, body: bytes, at: int) -> FinishedJob:
    outcome, priority, attempts, deliveries, *times = _JOB.unpack_from(body)
    enqueued, due, started = (int.from_bytes(time) for time in times)
    texts, start = list[bytes](), _JOB.size
    for width in (1, 1, 1, 1, 1, 2, 2):
        end = start + width + int.from_bytes(body[start : start + width])
        texts.append(body[start + width : end])
        start = end
    key, tenant, task, worker, release = (text.decode(errors="replace") for text in texts[:5])
    return FinishedJob(
        f"{queue}:{key}", OUTCOMES[outcome], task, tenant, priority, read_tags(texts[5]), enqueued / 1000, due / 1000,
        started / 1000 if started else None, at / 1000, attempts, deliveries, worker, release, _reason(texts[6]),
    )  # fmt: skip


def _purge(body: bytes, at: int) -> FinishedJob:
    jobs, tenant = int.from_bytes(body[:4]), body[4:].decode(errors="replace")
    return FinishedJob(
        "", "cancelled", "", tenant, 0, (), at / 1000, at / 1000, None, at / 1000, 0, 0, "", "", "purged", jobs
    )


def _reason(text: bytes) -> str:
    """A plain text, or the `reason` at the beginning of a failure in JSON, which may be cut off."""
    text_of_job = beginning_of(text)["reason"]
    return open_text(text_of_job, None)[:200]  # cut off, so that no codec could open it


@dataclass(frozen=True, slots=True)
class BlockSlice:
    """Some blocks of a shard, the latest first.

    now     server seconds
    blocks  number and segments of each
    is_last whether no earlier block is left
    """

    now: float
    blocks: list[tuple[int, bytes]]
    is_last: bool

    @property
    def before(self) -> int:
        """The number before which the next slice begins; 0 if no block is left. Block 1 is the first of all."""
        earliest = self.blocks[-1][0] if self.blocks else 0
        return 0 if self.is_last or earliest <= 1 else earliest


def read_blocks(bindings: QueueBindings, rows: RowList, before: int, limit: int = BLOCKS) -> RoundTrip[BlockSlice]:
    """The blocks whose numbers are below `before`; 0: all, from the open one on. At most `limit`, up to 64."""

    def read(reply: Sequence[Any]) -> BlockSlice:
        now, open_number, *texts = reply
        found: list[tuple[int, bytes]] = []
        asked = limit
        if before == 0 or before > open_number:
            found.append((open_number, texts.pop(0)))
            asked -= 1
        for text in texts:
            if len(text) >= _BLOCK.size:
                found.append((_BLOCK.unpack_from(text)[0], text[_BLOCK.size :]))
        return BlockSlice(now / 1000, found, len(texts) < asked)

    return bindings._call("read_finished", (bindings.clock.now_ms, rows, before, limit), read)
