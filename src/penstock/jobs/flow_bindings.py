"""The scripts of `flow.lua` as round trips, and what a waiting job waits for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from penstock.core.idempotency import UNNUMBERED
from penstock.core.operations import Arg, RoundTrip
from penstock.errors import BadCall, JobNotFound
from penstock.jobs.record import Record, StoredJob
from penstock.jobs.shard_bindings import Elsewhere

if TYPE_CHECKING:
    from penstock.jobs.bindings import QueueBindings

ROWS: Final = 250
"""Rows of a flow that one round trip sends. They take the server a millisecond or two."""

Side: TypeAlias = Literal["predecessors", "dependents"]
"""The jobs that a job waits or waited for; those that wait for it."""


class FlowRow(NamedTuple):
    """One row of a flow; see `enqueue_flow` in `flow_rows.lua`."""

    verb: str
    key: str
    draft: bytes = b""
    dependent: str | bytes = ""

    @property
    def is_new(self) -> bool:
        """Whether the row brings a job."""
        return self.verb.startswith(("open", "job"))


class FirstRows(NamedTuple):
    """The reply if nothing was enqueued, because the results of the jobs in the rows are too large for one call.

    rows  how many rows to send first, before the others
    """

    rows: int


class Related(NamedTuple):
    """A predecessor or a dependent of a job.

    queue       "" for the same
    total       how many predecessors it has itself
    awaited_by  how many jobs wait for it
    """

    queue: str
    key: str
    stored: StoredJob
    total: int
    awaited_by: int

    @classmethod
    def read(cls, entry: bytes, fields: Sequence[Any]) -> Related:
        """`entry`: as in `predecessors:<id>`. `fields`: see `flow.describe`."""
        size = entry[0]
        record, owner, done, waits, total, awaited_by = fields
        stored = StoredJob(Record.read(record), None, done, owner, waits=waits)
        return cls(entry[1 : 1 + size].decode(), entry[1 + size :].decode(errors="replace"), stored, total, awaited_by)


def far_edge(number: int, index: int, *, policy: bytes, wants: bool, queue: str, dependent: str) -> bytes:
    """An edge that leads to a dependent of another queue (see `flow.lua`)."""
    named = policy + (b"w" if wants else b"-") + queue.encode()
    return number.to_bytes(6) + index.to_bytes(4) + bytes([len(named)]) + named + dependent.encode()


def known_job(job: str) -> BadCall:
    """The error for a job of a flow whose id the queue has already."""
    return BadCall(f"job {job} is in the queue already: enqueue a flow without ids of your own")


class FlowBindings:
    """Builds the round trips about the flows of one queue. Sends nothing itself."""

    def __init__(self, queue: QueueBindings) -> None:
        self._queue = queue

    def enqueue(
        self, rows: Sequence[FlowRow], *, durable: bool, table: str = "", moving: Sequence[str] = ()
    ) -> RoundTrip[bool | Elsewhere | FirstRows]:
        """Enqueue a piece of a flow, all of it or nothing. Returns False if its first job is in the queue already.

        table   of the shards, if the piece is for a shard
        moving  tenants of these jobs that are to move to another shard, or have moved already

        Raises BadCall if another job is in the queue already, and JobNotFound if a job to wait for is gone.
        """
        start: tuple[Arg, ...] = (*UNNUMBERED, self._queue.clock.now_ms, table, len(moving), *moving)
        args = (*start, *(part for row in rows for part in row))

        def read(reply: Sequence[Any]) -> bool | Elsewhere | FirstRows:
            if not reply:
                return True
            if reply[0] in (b"TABLE", b"MOVED"):
                return Elsewhere.read(reply)
            word, position, *moved = reply
            if word == b"split":
                return FirstRows(position)
            job = f"{self._queue.keys.queue}:{rows[position].key}"
            if word == b"gone" and moved[0]:
                there = f"{moved[0].decode()}:{rows[position].key}"
                raise JobNotFound(f"no job {job} to wait for: it was moved to another queue: wait for {there}")
            if word == b"gone":
                raise JobNotFound(
                    f"no job {job} to wait for: never enqueued here, or it ended and its result is gone: wait for "
                    "a job while it is in the queue or its result is kept (result_ttl)"
                )
            if position:
                raise known_job(job)
            return False

        return RoundTrip(self._queue._scripts["enqueue_flow"], self._queue._declared, args, read, durable)

    def related(self, side: Side, key: str, offset: int, limit: int) -> RoundTrip[tuple[int, list[Related]]]:
        """How many jobs there are on this side of a job, and a page of them: fewer than `limit` if their records are
        large. Of a job in another queue only the id is known; see `jobs`.
        """

        def read(reply: Sequence[Any]) -> tuple[int, list[Related]]:
            rows = zip(*[iter(reply[1:])] * 7, strict=True)
            return reply[0], [Related.read(entry, fields) for entry, *fields in rows]

        return self._queue._call(side, (self._queue.clock.now_ms, key, offset, limit), read)

    def jobs(self, keys: Sequence[str]) -> RoundTrip[list[Related]]:
        """As `related`, about jobs that are related to jobs of another queue; fewer if their records are large."""

        def read(reply: Sequence[Any]) -> list[Related]:
            rows = zip(*[iter(reply)] * 6, strict=True)
            return [Related.read(b"\0" + key.encode(), fields) for key, fields in zip(keys, rows, strict=False)]

        return self._queue._call("flow_jobs", (self._queue.clock.now_ms, *keys), read)

    def give_up_open(self) -> RoundTrip[int]:
        """Cancel dependents whose flow was not enqueued whole in ten minutes. Returns how many it examined."""
        return self._queue._call("give_up_open", (self._queue.clock.now_ms,), int)
