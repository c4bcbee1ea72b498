"""The scripts of `flow.lua` as round trips, and what a waiting job waits for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.core.idempotency import UNNUMBERED
from penstock.core.operations import Arg, RoundTrip
from penstock.errors import BadCall, JobNotFound
from penstock.jobs.record import Record, StoredJob

if TYPE_CHECKING:
    from penstock.jobs.bindings import QueueBindings

ROWS: Final = 250
"""Rows of a flow that one round trip sends. They take the server a millisecond or two."""


class FlowRow(NamedTuple):
    """One step in building a flow; see `enqueue_flow` in `flow.lua`."""

    verb: str
    key: str
    draft: bytes = b""
    dependent: str = ""


class Predecessor(NamedTuple):
    """A job that another one waits or waited for. `total`: how many it has itself."""

    key: str
    stored: StoredJob
    total: int


class FlowBindings:
    """Builds the round trips about the flows of one queue. Sends nothing itself."""

    def __init__(self, queue: QueueBindings) -> None:
        self._queue = queue

    def enqueue(self, rows: Sequence[FlowRow], *, durable: bool) -> RoundTrip[bool]:
        """Enqueue a part of a flow, all of it or nothing. Returns False if its first job is in the queue already.

        Raises BadCall if another job is in the queue already, and JobNotFound for a job to wait for that is gone.
        """
        args: tuple[Arg, ...] = (*UNNUMBERED, self._queue.clock.now_ms, *(part for row in rows for part in row))

        def read(reply: Sequence[Any]) -> bool:
            if not reply:
                return True
            word, position = reply
            job = f"{self._queue.keys.queue}:{rows[position].key}"
            if word == b"gone":
                raise JobNotFound(
                    f"no job {job} to wait for: never enqueued here, or it ended and its result is gone: wait for "
                    "a job while it is in the queue or its result is kept (result_ttl)"
                )
            if position:
                raise BadCall(f"job {job} is in the queue already: enqueue a flow without ids of your own")
            return False

        return RoundTrip(self._queue._scripts["enqueue_flow"], self._queue._declared, args, read, durable)

    def predecessors(self, key: str, offset: int, limit: int) -> RoundTrip[tuple[int, list[Predecessor]]]:
        """How many predecessors a job has, and a page of them: fewer than `limit` if their records are large."""

        def read(reply: Sequence[Any]) -> tuple[int, list[Predecessor]]:
            found = [
                Predecessor(
                    entry[1:].decode(errors="replace"),
                    StoredJob(Record.read(record), None, done, owner, waits=waits),
                    total,
                )
                for entry, record, owner, done, waits, total in zip(*[iter(reply[1:])] * 6, strict=True)
            ]
            return reply[0], found

        return self._queue._call("predecessors", (self._queue.clock.now_ms, key, offset, limit), read)
