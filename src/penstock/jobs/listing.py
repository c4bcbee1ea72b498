"""The scripts of `listing.lua` as round trips."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.core.idempotency import UNNUMBERED
from penstock.core.operations import Arg, RoundTrip
from penstock.jobs.bindings import QueueBindings, worker_name
from penstock.jobs.finished_list import FinishedFilter
from penstock.jobs.record import Record
from penstock.jobs.status import STATES, Status
from penstock.jobs.worker_requests import Registered, registrations


@dataclass(frozen=True, slots=True)
class JobFilter:
    """The conditions for a job; None and empty values match every job. See `Queue.jobs`.

    text   within a name or a value of the arguments, as JSON spells it
    ended  for rows of jobs that have ended, instead of the others
    """

    state: Status | None = None
    task: str | None = None
    tenant: str | None = None
    worker: str | None = None
    id_prefix: str = ""
    older_than: float = 0.0
    tag: str | None = None
    text: str = ""
    ended: FinishedFilter | None = None


class FoundJob(msgspec.Struct, frozen=True):
    """A job as a page found it. A change names generation and owner, so that it does nothing if they have changed."""

    key: str
    owner: bytes
    record: Record
    worker: str


class HeldJob(msgspec.Struct, frozen=True):
    """A job that is being moved. `due`: server milliseconds at which it was due; 0: it was ready or dead."""

    key: str
    due: int
    record: Record


class FoundJobs(msgspec.Struct, frozen=True):
    following: bytes
    examined: int
    of: int
    matching: int
    rows: list[FoundJob]


class ListingBindings:
    """Builds the round trips of `listing.lua`. Sends nothing itself."""

    def __init__(self, queue: QueueBindings) -> None:
        self._queue = queue

    def page(self, source: str, cursor: bytes, limit: int, wanted: JobFilter) -> RoundTrip[FoundJobs]:
        letters = {status: letter for letter, status in STATES.items()} | {Status.RUNNING: b"x", None: b""}
        args: tuple[Arg, ...] = (
            self._queue.clock.now_ms,
            source,
            cursor,
            limit,
            letters[wanted.state],
            _given(wanted.tenant),
            _given(wanted.task),
            wanted.id_prefix,
            math.ceil(wanted.older_than * 1000),
            wanted.tag or "",
            wanted.text,
        )
        return self._queue._call("list_jobs", args, _read_rows)

    def change(self, change: str, rows: Sequence[FoundJob]) -> RoundTrip[tuple[int, int]]:
        """Change some jobs. Returns how many of them were reached, and how many of these were changed."""
        name, verbs = ("requeue_jobs", ()) if change == "requeue" else ("change_jobs", (change,))
        args = (*UNNUMBERED, self._queue.clock.now_ms, *verbs, *_versions(rows))
        return self._queue._call(name, args, lambda reply: (reply[0], len(reply) - 1))

    def move(self, queue: str, rows: Sequence[FoundJob]) -> RoundTrip[tuple[int, list[int]]]:
        """Remove jobs that `queue` has as well. Returns how many were reached, and the positions of those removed.

        A job stays if it was changed, has started, or has become one that others wait for.
        """
        args = (*UNNUMBERED, self._queue.clock.now_ms, f"move {queue}", *_versions(rows))
        return self._queue._call("change_jobs", args, lambda reply: (reply[0], reply[1:]))

    def hold(self, seconds: float, rows: Sequence[FoundJob]) -> RoundTrip[tuple[int, list[HeldJob]]]:
        """Delay waiting jobs while they are moved. Returns how many were reached, and those that can be moved."""

        def read(reply: Sequence[Any]) -> tuple[int, list[HeldJob]]:
            held = zip(reply[1::3], reply[2::3], map(Record.read, reply[3::3]), strict=True)
            return reply[0], [HeldJob(key.decode(errors="replace"), due, body) for key, due, body in held if body]

        args = (*UNNUMBERED, self._queue.clock.now_ms, round(seconds * 1000), *_versions(rows))
        return self._queue._call("hold_jobs", args, read)

    def incarnations(self, worker: str, cursor: str) -> RoundTrip[tuple[str, list[tuple[bytes, int]]]]:
        """The incarnations with this name on a page of the workers, and how many jobs each has; and the next cursor."""

        def named(page: tuple[str, list[Registered]]) -> tuple[str, list[tuple[bytes, int]]]:
            return page[0], [(one.incarnation, one.held) for one in page[1] if one.name == worker]

        return registrations(self._queue, cursor, 1000).then(named)


def _versions(rows: Sequence[FoundJob]) -> list[Arg]:
    return [part for row in rows for part in (row.key, row.record.generation_bytes, row.owner)]


def _given(value: str | None) -> str:
    return "" if value is None else f"={value}"


def _read_rows(reply: Sequence[Any]) -> FoundJobs:
    following, examined, of, matching, _, workers, *rows = reply
    names = {inc: worker_name(text) for inc, text in zip(workers[0::2], workers[1::2], strict=True)}
    found = []
    for key, owner, body in zip(rows[0::3], rows[1::3], rows[2::3], strict=True):
        if (record := Record.read(body)) is not None:
            found.append(FoundJob(key.decode(errors="replace"), owner, record, names.get(owner.partition(b" ")[0], "")))
    return FoundJobs(following, examined, of, matching, found)
