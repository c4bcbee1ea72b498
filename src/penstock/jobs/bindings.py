"""The scripts of a queue as round trips: the one place that knows the order of their arguments and their replies."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from penstock.core.clock import Clock, milliseconds
from penstock.core.idempotency import UNNUMBERED
from penstock.core.operations import Arg, Operation, RoundTrip
from penstock.core.scripts import Library
from penstock.errors import UniqueKeyHeld
from penstock.jobs.claims import Claim, Ending, Registration, Settlement, Trial, TurnReply
from penstock.jobs.constants import MOST_BYTES, NUMBER_BYTES
from penstock.jobs.counts import (
    Counts,
    QueueOverview,
    TenantCounts,
    WorkerInfo,
    read_counts,
    read_overview,
    tenant_counts,
    tenant_page,
)
from penstock.jobs.enqueue_reply import EnqueueReplies, OnDouble, OnRefusal
from penstock.jobs.keys import QueueKeys
from penstock.jobs.notes import split_result
from penstock.jobs.record import Record, StoredJob

if TYPE_CHECKING:
    from penstock.jobs.history import Moment
    from penstock.jobs.pauses import PausedScope

T = TypeVar("T")

SLICE: Final = 125
"""The most jobs that one round trip cancels or hands back. It bounds the time that the server spends on one script."""


@cache
def scripts() -> Library:
    return Library(
        "core/clock.lua",
        "core/notify.lua",
        "core/deputy.lua",
        "core/sleepers.lua",
        "core/batch.lua",
        "core/bucket.lua",
        "core/idempotency.lua",
        "core/writes.lua",
        "jobs/record.lua",
        "jobs/row.lua",
        "jobs/slice.lua",
        "jobs/counters.lua",
        "jobs/history.lua",
        "jobs/lane.lua",
        "jobs/linger.lua",
        "jobs/charging.lua",
        "jobs/releases.lua",
        "jobs/lease.lua",
        "jobs/unique.lua",
        "jobs/failures.lua",
        "jobs/recovery.lua",
        "jobs/expiry.lua",
        "jobs/cancelling.lua",
        "jobs/wake.lua",
        "jobs/results.lua",
        "jobs/finished.lua",
        "jobs/retention.lua",
        "jobs/notes.lua",
        "jobs/output.lua",
        "jobs/limits.lua",
        "jobs/holds.lua",
        "jobs/admitted.lua",
        "jobs/limited_runs.lua",
        "jobs/pauses.lua",
        "jobs/plain.lua",
        "jobs/intake.lua",
        "jobs/bounds.lua",
        "jobs/listeners.lua",
        "jobs/outbox.lua",
        "jobs/effects.lua",
        "jobs/flow.lua",
        "jobs/flow_rows.lua",
        "jobs/flow_tree.lua",
        "jobs/job.lua",
        "jobs/durable.lua",
        "jobs/children.lua",
        "jobs/settling.lua",
        "jobs/admission.lua",
        "jobs/bookings.lua",
        "jobs/queue.lua",
        "jobs/shards.lua",
        "jobs/receipts.lua",
        "jobs/editing.lua",
        "jobs/dead_letters.lua",
        "jobs/dead_groups.lua",
        "jobs/listing.lua",
        "jobs/inspect.lua",
        "jobs/why.lua",
        "jobs/removal.lua",
        "jobs/schedule.lua",
        "jobs/limit_settings.lua",
    )


class QueueBindings:
    """Builds the round trips of one queue. Sends nothing itself.

    All job ids here are ids within the queue (`Job.key`), without the queue's name.
    """

    def __init__(self, keys: QueueKeys, clock: Clock) -> None:
        self.keys = keys
        self.clock = clock
        self._declared = keys.declared
        self._scripts = scripts()
        self.replies = EnqueueReplies(keys.queue)

    def _call(self, name: str, args: tuple[Arg, ...], read: Any) -> RoundTrip[Any]:
        return RoundTrip(self._scripts[name], self._declared, args, read)

    # --- enqueue ---

    def enqueue(
        self,
        jobs: Iterable[Arg],
        *,
        durable: bool = False,
        on_double: OnDouble | None = None,
        on_refusal: OnRefusal | None = None,
    ) -> RoundTrip[list[int]]:
        """Enqueue `jobs`: id, record, id, record, … Returns the positions of ids that the queue has already.

        `on_double` is called for each job whose unique key another job holds: with its position and the other id.
        `on_refusal` is called for each job that a bound refuses; without it, the first refusal is raised.
        """
        args = (*UNNUMBERED, self.clock.now_ms, *jobs)
        read = partial(self.replies.positions, on_double=on_double, on_refusal=on_refusal)
        return RoundTrip(self._scripts["enqueue"], self._declared, args, read, durable)

    def enqueue_plain(self, job_id: str, record: bytes, job: T) -> RoundTrip[T]:
        """Enqueue one job that is due now, under an id that the library chose, and return `job`.

        It may go into the intake. Concurrent calls may travel together."""
        caller, number = UNNUMBERED
        args = (caller, number, str(self.clock.now_ms), job_id, record)

        def read(reply: int | list[Any]) -> T:
            if type(reply) is int:
                self.replies.may_take_in = reply != 0
            elif reply:
                self.replies.raise_refusal(reply, job_id)
            return job

        known = self._scripts
        shortcut = known["take_in"] if self.replies.may_take_in and len(record) <= MOST_BYTES else None
        return RoundTrip(known["enqueue"], self._declared, args, read, shortcut=shortcut, group_from=len(args) - 2)

    def take_in(self, *jobs: str | bytes) -> RoundTrip[bool]:
        """Accept plain jobs: id, record, … False: nothing was written; send `enqueue` with the same number."""
        return self._call("take_in", (*UNNUMBERED, self.clock.now_ms, *jobs), bool)

    # --- workers and claims ---

    def turn(
        self,
        incarnation: str,
        number: int,
        *,
        lease: float,
        want: int,
        settlements: Sequence[Settlement] = (),
        trial: Trial = "",
        address: str = "",
        sleep: float = 0.0,
        once: bool = False,
        memory: int = 0,
        registration: Registration | None = None,
        notes: Sequence[tuple[bytes, bytes]] = (),
        emitted: Sequence[tuple[bytes, bytes]] = (),
        rows: Callable[[Sequence[Settlement]], bytes] | None = None,
    ) -> RoundTrip[TurnReply]:
        """One round trip of a worker: settle jobs and claim others (see `queue.lua`).

        number        counts the turns of the incarnation from 1. A turn that is repeated with its number changes
                      nothing and gets the same reply
        lease         seconds from now until the incarnation's claims expire
        want          how many jobs to claim at most
        address       of the listener to notify while the worker is idle
        sleep         seconds for which to register the worker as idle if fewer than `want` jobs were claimed; 0: do not
                      register it
        once          the claim of a program without a worker: its incarnation ends as soon as it has no claims, and it
                      is registered as idle only if it got no job
        memory        KiB that the worker's process has in RAM; 0: as it last reported, or unknown
        registration  of a worker, in its first turn
        notes         tokens of running jobs and what they report (see `encode_notes`); those of jobs that the
                      incarnation does not hold are ignored
        emitted       tokens of running jobs and blocks of their output (see `pack_block`), as `notes`
        rows          makes the rows of the completed jobs, in this order (see `finished.py`)
        """
        batches = [s for s in settlements if s.jobs]
        completed = [s for s in settlements if s.ending is None and s.data == b"null" and not (s.effects or s.jobs)]
        rest = settlements if len(batches) + len(completed) < len(settlements) else ()
        with_result = [s for s in rest if s.ending is None and s.data != b"null" and not s.effects]
        staged = [s for s in rest if s.effects]
        others = [s for s in rest if s.ending is not None]
        done = (*completed, *with_result, *staged)
        ended = (*batches, *done)
        args: list[Arg] = [
            self.clock.now_ms, incarnation, number, milliseconds(lease), want, trial, address, milliseconds(sleep),
            int(once), memory, registration.pack() if registration else "",
            b"".join([s.token[:NUMBER_BYTES] for s in done]), rows(ended) if rows and ended else b"",
            len(batches), len(completed), len(with_result), len(staged),
        ]  # fmt: skip
        args += [s.pack_batch() for s in batches]
        args += [s.token[NUMBER_BYTES:] for s in completed]
        for s in with_result:
            args += (s.token[NUMBER_BYTES:], s.data)
        for s in staged:
            args += (s.token[NUMBER_BYTES:], s.data, s.effects)
        for token, text in notes:
            args += ("note", token, 0, text)
        for token, text in emitted:
            args += ("emit", token, 0, text)
        for s in others:
            args += (s.verb, s.token, milliseconds(s.delay), s.data)

        def read(reply: Sequence[Any]) -> TurnReply:
            if reply[0] == b"STALE":
                return TurnReply(False)
            _, stale, due_in, more, suspect, offers, first, now = reply[:8]
            received = time.monotonic()
            claims = [
                Claim(number.to_bytes(NUMBER_BYTES) + job_id, Record(body), now, received)
                for number, job_id, body in zip(itertools.count(first), reply[8::2], reply[9::2], strict=False)
                if body
            ]
            refused, buried = TurnReply.about((*ended, *others), stale)
            turn = TurnReply(True, refused, buried, _seconds(due_in), bool(more), claims, _seconds(suspect))
            return turn.with_offers(offers) if offers else turn

        return RoundTrip(self._scripts["turn"], self._declared, tuple(args), read)

    def settle(self, incarnation: str, settlement: Settlement, row: bytes = b"") -> RoundTrip[bool]:
        """Settle one claim outside of a turn. False: the incarnation no longer holds the job; nothing was written."""
        delay = milliseconds(settlement.delay)
        args = (self.clock.now_ms, incarnation, settlement.verb, settlement.token, delay, settlement.data, row)
        return self._call("settle", args, bool)

    def heartbeat(self, incarnation: str, lease: float, memory: int = 0) -> RoundTrip[list[bytes] | None]:
        """Extend all claims of the incarnation to `lease` seconds from now. `memory`: as in a turn.

        Returns what it is asked to do (cancelling.lua). None: its lease ran out before.
        """
        args = (self.clock.now_ms, incarnation, milliseconds(lease), memory)
        return self._call("heartbeat", args, lambda reply: list(reply[1:]) if reply[0] else None)

    def abandon(
        self,
        incarnation: str,
        ending: Ending = "release",
        reason: bytes = b"",
        started: Sequence[bytes] = (),
        *,
        more: bool = False,
    ) -> RoundTrip[tuple[int, bool, float | None]]:
        """End a slice of the claims of an incarnation that takes no more turns; repeat until no claim is left.

        Jobs whose tokens are in `started` end with `ending` and `reason`. The others are released, unless `more` says
        that further slices of started jobs follow. Returns how many claims are left, whether all of `started` are
        settled, and for how many seconds a suspect has waited (None: none waits).
        """
        args = (self.clock.now_ms, incarnation, ending, reason, int(more), *started)
        return self._call("abandon", args, lambda reply: (reply[0], bool(reply[1]), _seconds(reply[2])))

    # --- the outbox ---

    def deliver(self, sender: str, entries: Sequence[bytes]) -> RoundTrip[int]:
        """Deliver entries of the queue `sender` for this queue (see `outbox.lua`). Returns the number of the last one
        that has arrived."""
        return self._call("deliver", (self.clock.now_ms, sender, *entries), int)

    def delivered(self, queue: str, last: int) -> RoundTrip[list[bytes]]:
        """Remove the entries for `queue` up to the one with the number `last`. Returns the next entries."""
        return self._call("delivered", (self.clock.now_ms, queue, last), list)

    # --- one job ---

    def show(self, job_id: str) -> RoundTrip[StoredJob]:
        """Read the data that the server has stored about a job."""
        return self._call("show", (self.clock.now_ms, job_id), read_stored)

    def result(self, job_id: str, address: str) -> RoundTrip[StoredJob]:
        """As `show`; if the job is not finished, the listener at `address` is notified when it is. "": no listener."""
        return self._call("result", (self.clock.now_ms, job_id, address), read_stored)

    def forget(self, job_id: str, address: str) -> RoundTrip[None]:
        """Stop waiting for a result: deregister the listener."""
        return self._call("forget", (job_id, address), _nothing)

    def cancel(self, ids: Iterable[str]) -> RoundTrip[list[str]]:
        """Cancel waiting jobs, and ask workers to end running ones.

        Returns a word for each of the first ones, as many as one script can handle, at least one: cancelled, running,
        dead, done or none (unknown).
        """
        return self._call("cancel", (self.clock.now_ms, *ids), lambda reply: [word.decode() for word in reply])

    def cancel_all(self, ids: Sequence[str]) -> Operation[list[str]]:
        """The same, with as many round trips as it takes."""
        words: list[str] = []
        while len(words) < len(ids):
            words += yield self.cancel(ids[len(words) : len(words) + 100])
        return words

    def edit(
        self,
        job_id: str,
        *,
        due: float | datetime | None = None,
        priority: int | None = None,
        task: str = "",
        payload: bytes | None = None,
        tags: bytes = b"",
        key: str = "",
    ) -> RoundTrip[str]:
        """Change a waiting job. `due`: seconds from now, or a date. `task`: whose call `payload` is; "": a bare value.
        `tags`: the section that replaces that of the job; empty: it keeps its tags. `key`: what has sealed `payload`.

        Returns a word: edited, fixed or waits (unchanged), task (the job is of another), running, dead, done or none.
        """
        is_date = isinstance(due, datetime)
        when = -1 if due is None else milliseconds(due.timestamp() if isinstance(due, datetime) else due)
        args = (
            *UNNUMBERED, self.clock.now_ms, job_id, when, int(is_date), -1 if priority is None else priority,
            int(payload is not None), task, tags, key, payload or b"",
        )  # fmt: skip
        return self._call("edit", args, lambda reply: str(reply.decode()))

    def purge(
        self, tenant: str | None, offset: int, limit: int = SLICE, source: Literal["delayed", "suspects"] = "delayed"
    ) -> RoundTrip[tuple[int, int, bool, bool]]:
        """Cancel a slice of the waiting jobs of a tenant, or of all (None): those in lanes, then those in `source`.

        With a limit of 0 it only notifies listeners that are left. Returns how many were cancelled, the `offset` for
        the next call, whether `source` is done, and whether listeners are left to be notified.
        """
        args = (self.clock.now_ms, tenant or "", int(tenant is None), source, offset, limit)
        return self._call("purge", args, lambda reply: (reply[0], reply[1], bool(reply[2]), bool(reply[3])))

    def purge_parked(
        self, tenant: str | None, offset: int, limit: int = SLICE
    ) -> RoundTrip[tuple[int, int, bool, bool]]:
        """As `purge`, for parked jobs."""
        args = (self.clock.now_ms, tenant or "", int(tenant is None), offset, limit)
        return self._call("purge_parked", args, lambda reply: (reply[0], reply[1], bool(reply[2]), bool(reply[3])))

    # --- dead letters ---

    def list_dead(self, offset: int, limit: int) -> RoundTrip[list[tuple[str, float, Record | None, bytes]]]:
        """Dead letters, the latest first, at most 1 MiB of records: id, when it died, record, failure.

        Damaged bytes give None instead of a record.
        """

        def read(reply: Sequence[Any]) -> list[tuple[str, float, Record | None, bytes]]:
            rows = zip(reply[0::4], reply[1::4], map(Record.read, reply[2::4]), reply[3::4], strict=True)
            return [(i.decode(errors="replace"), float(at) / 1000, record, why or b"") for i, at, record, why in rows]

        return self._call("list_dead", (offset, limit), read)

    def dead_until(self, until: int, limit: int) -> RoundTrip[tuple[int, list[bytes]]]:
        """The time `until` (server ms; 0: now), and the ids of jobs that died up to then, the oldest first.

        The ids are bytes, because other programs may have written some that are not UTF-8.
        """
        return self._call("dead_until", (self.clock.now_ms, until, limit), lambda reply: (reply[0], reply[1:]))

    def count_dead(self, age: float) -> RoundTrip[tuple[int, int]]:
        """The time `age` seconds ago (server ms), and how many jobs had died by then."""
        return self._call("count_dead", (self.clock.now_ms, milliseconds(age)), tuple)

    def requeue(self, ids: Iterable[str | bytes]) -> RoundTrip[int]:
        """Make dead letters ready again. Returns how many of the ids were dead letters.

        A dead letter stays dead if another job holds its unique key. If it is the only id, raises UniqueKeyHeld.
        """
        chosen = [*ids]

        def read(reply: Sequence[Any]) -> int:
            if len(chosen) == 1 and len(reply) == 3:
                job, holder = (f"{self.keys.queue}:{name.decode(errors='replace')}" for name in reply[1:])
                raise UniqueKeyHeld(f"job {job} stays a dead letter: job {holder} holds its unique key", holder=holder)
            return int(reply[0])

        return self._call("requeue", (*UNNUMBERED, self.clock.now_ms, *chosen), read)

    def remove_dead(self, ids: Iterable[str | bytes]) -> RoundTrip[int]:
        """Delete dead letters. Returns how many of the ids were dead letters."""
        return self._call("remove_dead", (self.clock.now_ms, *ids), int)

    # --- settings ---

    def set_switch(self, name: Literal["paused", "due_first", "by_time"], on: bool, by: str = "") -> RoundTrip[None]:
        return self._call("set_switch", (self.clock.now_ms, name, int(on), by), _nothing)

    def set_weight(self, tenant: str, weight: float) -> RoundTrip[None]:
        return self._call("set_weight", (self.clock.now_ms, tenant, f"{weight:.9g}"), _nothing)

    def pause_scope(self, scope: str, on: bool, by: str = "") -> RoundTrip[int]:
        """Pause or resume a scope (`pauses.lua`). Returns 1; 0 if nothing changed; -1 if too many scopes are paused."""
        return self._call("pause_scope", (self.clock.now_ms, scope, int(on), by), int)

    # --- inspect ---

    def pauses(self) -> RoundTrip[list[PausedScope]]:
        from penstock.jobs.pauses import read_pauses

        return self._call("show_pauses", (self.clock.now_ms,), read_pauses)

    def counts(self) -> RoundTrip[Counts]:
        return self._call("counts", (self.clock.now_ms,), read_counts)

    def history(self, interval: int, count: int) -> RoundTrip[list[Moment]]:
        """The latest `count` rows of the history: of each 10 s, or of each 60 s."""
        from penstock.jobs.history import read_rows

        return self._call("history", (self.clock.now_ms, interval, count), read_rows)

    def tenant_counts(self, tenant: str) -> RoundTrip[TenantCounts]:
        return self._call("tenant_counts", (self.clock.now_ms, tenant), tenant_counts)

    def scan_tenants(self, cursor: str, count: int) -> RoundTrip[tuple[str, list[tuple[str, TenantCounts]]]]:
        """A page of about `count` tenants, and the cursor of the next page. The first and the last cursor are "0"."""
        return self._call("scan_tenants", (self.clock.now_ms, cursor, count), tenant_page)

    def overview(self, scan: int) -> RoundTrip[QueueOverview]:
        """`scan`: how many delayed jobs to search for jobs of unknown tasks."""
        return self._call("overview", (self.clock.now_ms, scan), read_overview)

    def entries_and_counters(self) -> RoundTrip[dict[str, tuple[int, int]]]:
        """For the keys of jobs by state: how many entries a key has, and how many the counters report."""

        def read(reply: Sequence[Any]) -> dict[str, tuple[int, int]]:
            jobs, delayed, owners, dead, *n = reply
            return {"jobs": (jobs, sum(n)), "delayed": (delayed, n[1]), "owners": (owners, n[2]), "dead": (dead, n[3])}

        return self._call("entries_and_counters", (self.clock.now_ms,), read)

    def workers(self, limit: int) -> RoundTrip[list[WorkerInfo]]:
        """Workers, and programs without a worker that have claims; the one with the longest lease first."""
        return self.scan_workers("", limit).then(lambda page: page[1])

    def scan_workers(self, cursor: str, count: int) -> RoundTrip[tuple[str, list[WorkerInfo]]]:
        """A page of about `count` workers, and the cursor of the next page. The first and the last cursor are "0"."""

        def read(reply: Sequence[Any]) -> tuple[str, list[WorkerInfo]]:
            now, next_cursor, *rows = reply
            found = [self._worker(now, *rows[at + 1 : at + 6]) for at in range(0, len(rows), 6)]
            return next_cursor.decode(), found

        return self._call("scan_workers", (self.clock.now_ms, count, cursor), read)

    def _worker(self, now: int, until: bytes, held: int, stored: bytes, asked: bytes, kib: int) -> WorkerInfo:
        queue, lease, word = self.keys.queue, (float(until) - now) / 1000, asked.decode().rpartition(" ")[2]
        if not stored:
            return WorkerInfo(queue, "", 0, None, held, lease)
        its = Registration.read(stored)
        memory = kib * 1024 if kib else None
        return WorkerInfo(queue, its.name, its.concurrency, its.since, held, lease, its.release.name, word, memory)


# --- replies ---


def _seconds(ms: int) -> float | None:
    """None for -1."""
    return None if ms < 0 else ms / 1000


def worker_name(registered: bytes | None) -> str:
    """`host:pid` from the entry of an incarnation in `workers`; "" for a program without a worker."""
    return Registration.read(registered).name if registered else ""


def _nothing(_: Any) -> None:
    return None


def read_stored(reply: Sequence[Any]) -> StoredJob:
    record, failures, done, owner, notes, waits, expires_in, *worker = reply
    ended, kept_notes = split_result(done)
    name = worker_name(worker[0]) if worker else ""
    left = None if expires_in is None else expires_in / 1000
    return StoredJob(Record.read(record), failures, ended, owner, notes or kept_notes, name, waits, left)
