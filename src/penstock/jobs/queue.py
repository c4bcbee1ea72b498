"""A queue: put, claim, settle, count, purge; with or without tasks and workers."""

from __future__ import annotations

import builtins
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from itertools import islice
from typing import Any, Literal

import msgspec

from penstock import codec
from penstock.core.clock import Clock, milliseconds
from penstock.core.ids import mint_id
from penstock.core.keys import check_name
from penstock.core.operations import Driver, Listen, Operation, RoundTrip, verb, wait_until_recheck
from penstock.errors import LeaseLost
from penstock.jobs.bindings import SLICE, QueueBindings
from penstock.jobs.claims import Claim, Ending, Settlement
from penstock.jobs.counts import Counts, TenantCounts, WorkerInfo
from penstock.jobs.definition import Options
from penstock.jobs.job import Failure, Job, QueueHandle, info_of
from penstock.jobs.keys import QueueKeys
from penstock.jobs.record import DUE_IS_DATE, EXPIRES_IS_DATE, OWN_ID, StoredJob, draft
from penstock.settings import SLEEPER_TTL_FACTOR, Settings

LETTERS = 50
"""Dead letters in one round trip of a change."""

CHUNK = 500
"""Jobs in one round trip of a bulk enqueue: one millisecond or two of server time."""


def _date_or_delay(date: datetime | float | None, default: float = 0.0) -> tuple[int, bool]:
    if isinstance(date, datetime):
        return milliseconds(date.timestamp()), True
    return milliseconds(default if date is None else date), False


@lru_cache(maxsize=4096)
def header_of(options: Options, ttl: float, flags: int) -> bytes:
    """The record of a call up to its payload. The same for all calls with the same options, so made once."""
    due, due_is_date = _date_or_delay(options.at, options.delay)
    expires, expires_is_date = _date_or_delay(options.expires)
    flags |= DUE_IS_DATE * due_is_date | EXPIRES_IS_DATE * expires_is_date | OWN_ID * (options.id is not None)
    return draft(
        flags=flags, priority=options.priority, tenant=options.tenant.encode(),
        delay_ms=due, expires_ms=expires, ttl_ms=milliseconds(ttl),
    )  # fmt: skip


class Item(QueueHandle["Queue"]):
    """A job in the hands of a program: settle it before its lease runs out, or another gets it."""

    __slots__ = ("_claim", "_me")

    def __init__(self, queue: Queue, me: str, claim: Claim) -> None:
        self._queue = queue
        self._me = me
        self._claim = claim

    @property
    def id(self) -> str:
        return f"{self._queue.name}:{self._claim.id}"

    @property
    def body(self) -> Any:
        """The value that was put; for a task's call `[task, arguments]`. Raises BadCall for damaged bytes."""
        return codec.decode(self._claim.record.payload, what=f"the body of job {self.id}")

    @property
    def tenant(self) -> str:
        return self._claim.record.tenant

    @property
    def priority(self) -> int:
        return self._claim.record.priority

    @property
    def attempts(self) -> int:
        """How often it failed before."""
        return self._claim.record.attempts

    @property
    def deliveries(self) -> int:
        """How often it was handed out, this time included."""
        return self._claim.record.deliveries

    def __repr__(self) -> str:
        return f"<Item {self.id}>"

    def _settle(self, data: bytes, ending: Ending | None = None, delay: float = 0.0) -> RoundTrip[None]:
        settlement = Settlement(self._claim.token, data, ending, delay)
        return self._queue.bindings.settle(self._me, settlement).then(self._still_ours)

    def _still_ours(self, ours: bool) -> None:
        if not ours:
            raise LeaseLost(f"the lease on job {self.id} ran out: another may have it; drop the work")

    @verb
    def complete(self, result: Any = None) -> RoundTrip[None]:
        """Done: the job leaves the queue, its result is kept as long as it was enqueued to be.

        Raises LeaseLost when the claim is not ours any more, BadCall for a result that JSON cannot hold.
        One round trip; may be repeated.
        """
        limit = self._queue.settings.max_payload
        return self._settle(codec.encode(result, limit=limit, what=f"the result of job {self.id}"))

    @verb
    def fail(self, reason: str) -> RoundTrip[None]:
        """Make it a dead letter. Raises LeaseLost. One round trip."""
        return self._settle(msgspec.json.encode(Failure(reason)), "bury")

    @verb
    def retry(self, delay: float = 0.0, reason: str = "") -> RoundTrip[None]:
        """It failed: run it again after `delay` seconds, its attempts counted. Raises LeaseLost. One round trip."""
        if delay < 0:
            raise ValueError(f"retry(delay={delay}): seconds are 0 or more")
        return self._settle(msgspec.json.encode(Failure(reason)) if reason else b"", "retry", delay)

    @verb
    def release(self) -> RoundTrip[None]:
        """Hand it back as if it had not been claimed; it goes before the others of its tenant. One round trip."""
        return self._settle(b"", "release")

    @verb
    def extend(self, lease: float) -> RoundTrip[None]:
        """The lease of this claim, all items of it, now runs out in `lease` seconds from now.

        Raises LeaseLost when it had run out. One round trip.
        """
        return self._queue.bindings.heartbeat(self._me, self._queue._lease(lease)).then(self._still_ours)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A job that will not run again by itself."""

    id: str
    died: float
    reason: str
    traceback: str
    worker: str
    attempts: int
    deliveries: int
    crashes: int
    tenant: str
    body: Any


class DeadLetters(QueueHandle["Queue"]):
    """The dead letters of one queue: kept until someone requeues or removes them."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    @verb
    def list(self, limit: int = 50, offset: int = 0) -> Operation[list[DeadLetter]]:
        """A page of them, latest first; reason, traceback and attempts. One round trip for each MiB."""
        if not 1 <= limit <= 1000 or offset < 0:
            raise ValueError(f"list(limit={limit}, offset={offset}): limit 1 to 1000, offset 0 or more")
        return self.page(limit, offset)

    def page(self, limit: int, offset: int) -> Operation[builtins.list[DeadLetter]]:
        letters, end = [], offset + limit
        while offset < end:
            rows = yield self._queue.bindings.list_dead(offset, end - offset)
            if not rows:
                break
            offset += len(rows)
            letters += [self.letter(*row) for row in rows if row[2] is not None]
        return letters

    def letter(self, key: str, died: float, record: Any, reason: bytes | None) -> DeadLetter:
        """From what `graves` or `show` found. No round trip."""
        info = info_of(f"{self._queue.name}:{key}", StoredJob(record, reason, None))
        return DeadLetter(
            info.id, died, info.reason, info.traceback, Failure.read(reason).worker, info.attempts, info.deliveries,
            info.crashes, info.tenant, info.body,
        )  # fmt: skip

    @verb
    def requeue(self, *ids: str) -> Operation[int]:
        """Run these again, attempts at zero. Returns how many of the ids were dead letters.

        A round trip for each 50, because a script reads each whole, and they may be large.
        """
        return self._in_chunks(self._queue.bindings.requeue, ids)

    @verb
    def remove(self, *ids: str) -> Operation[int]:
        """Delete these for good. Returns how many of the ids were dead letters. A round trip for each 50."""
        return self._in_chunks(self._queue.bindings.remove_dead, ids)

    def _in_chunks(self, act: Callable[[Sequence[str]], RoundTrip[int]], ids: Iterable[str]) -> Operation[int]:
        total, rest = 0, map(self._queue.key_of, ids)
        while chunk := [*islice(rest, LETTERS)]:
            total += yield act(chunk)
        return total


class Tenant(QueueHandle["Queue"]):
    """One tenant of one queue: the party that fairness is between."""

    def __init__(self, queue: Queue, name: str) -> None:
        Options(tenant=name)
        self._queue = queue
        self.name = name

    @verb
    def count(self) -> RoundTrip[TenantCounts]:
        """Its jobs by state and the age of its oldest ready one. One round trip, O(1)."""
        return self._queue.bindings.tenant_counts(self.name)

    @verb
    def purge(self) -> Operation[int]:
        """Cancel all its jobs that wait. Returns how many. A round trip for each 250; others are served meanwhile."""
        return self._queue.purge_operation(self.name)

    @verb
    def weigh(self, weight: float) -> RoundTrip[None]:
        """Turns it gets where another has one; 1 is the default. Counts from its next turn. One round trip."""
        if not 0.001 <= weight <= 1000:
            raise ValueError(f"weigh({weight}): a weight is from 0.001 to 1000")
        return self._queue.bindings.set_weight(self.name, weight)


class Queue:
    """A named queue of the app. Works without tasks and without a worker."""

    def __init__(self, name: str, driver: Driver, settings: Settings, clock: Clock) -> None:
        self.name = check_name("queue", name)
        self._driver = driver
        self.settings = settings
        self.bindings = QueueBindings(QueueKeys(settings.prefix, name), clock)
        self.dead = DeadLetters(self)

    def __repr__(self) -> str:
        return f"<Queue {self.name}>"

    def tenant(self, name: str) -> Tenant:
        return Tenant(self, name)

    def job(self, job_id: str) -> Job[Any]:
        """A handle on a job of this queue, by its id or its part after the colon. No round trip."""
        return Job(self, self.key_of(job_id))

    def key(self, name: str) -> str:
        """A key of your own in this queue's slot, for transactions together with the queue."""
        return self.bindings.keys.user(name)

    def key_of(self, job_id: str) -> str:
        return job_id.removeprefix(f"{self.name}:")

    # --- put ---

    def draft(self, payload: bytes, options: Options, flags: int, ttl: float | None = None) -> tuple[str, bytes]:
        """An id and a record, ready to enqueue."""
        kept = next(t for t in (options.result_ttl, ttl, self.settings.result_ttl) if t is not None)
        return options.id or mint_id(), header_of(options, kept, flags) + payload

    def _values(self, values: Iterable[Any], options: Options) -> list[tuple[str, bytes]]:
        limit = self.settings.max_payload
        return [self.draft(codec.encode(v, limit=limit, what="the value"), options, 0) for v in values]

    @verb
    def put(
        self,
        value: Any,
        *,
        delay: float = 0.0,
        at: datetime | None = None,
        priority: int = 5,
        tenant: str = "",
        expires: float | datetime | None = None,
        result_ttl: float | None = None,
        id: str | None = None,
        durable: bool = False,
    ) -> RoundTrip[Job[Any]]:
        """Enqueue one value (anything JSON can hold). Options as in `task.using`. One round trip.

        Once it returns, the job is accepted and will be handed out at least once.
        """
        options = Options(delay, at, priority, tenant, expires, result_ttl, id, durable)
        ((key, record),) = self._values([value], options)
        return self.bindings.enqueue((key, record), durable=durable).then(lambda _: Job(self, key, ttl=result_ttl))

    @verb
    def put_many(
        self,
        values: Iterable[Any],
        *,
        delay: float = 0.0,
        at: datetime | None = None,
        priority: int = 5,
        tenant: str = "",
        expires: float | datetime | None = None,
        result_ttl: float | None = None,
        durable: bool = False,
    ) -> Operation[list[Job[Any]]]:
        """Enqueue many values, 500 a round trip. All values are encoded before the first is sent."""
        options = Options(delay, at, priority, tenant, expires, result_ttl, None, durable)
        jobs = self._values(values, options)
        yield from self.enqueue_drafts(jobs, durable=durable)
        return [Job(self, key, ttl=result_ttl) for key, _ in jobs]

    def enqueue_drafts(self, jobs: Sequence[tuple[str, bytes]], *, durable: bool) -> Operation[None]:
        rest = iter(jobs)
        while chunk := list(islice(rest, CHUNK)):
            yield self.bindings.enqueue([part for job in chunk for part in job], durable=durable)

    def put_in(self, pipeline: Any, value: Any, **options: Any) -> Job[Any]:
        """Enqueue inside a pipeline or transaction of your own; nothing is sent before you execute it.

        `pipeline` is one of the client's, blocking or asyncio; in a MULTI use keys of this slot (`queue.key`). Options
        as in `put`. The script is loaded in the same transaction, so it runs whole or not at all.
        """
        chosen = Options(**options)
        ((key, record),) = self._values([value], chosen)
        self._driver.add_to_pipeline(pipeline, self.bindings.enqueue((key, record)))
        return Job(self, key, ttl=chosen.result_ttl)

    # --- claim ---

    @verb
    def claim(self, n: int = 1, *, wait: float | None = 0.0, lease: float | None = None) -> Operation[list[Item]]:
        """Up to `n` jobs, in the order of priorities and tenants' turns.

        wait   seconds to wait for the first one; 0 answers at once, None waits for ever
        lease  seconds until jobs that are not settled go to another; None: the app's setting

        One round trip when there are jobs. While it waits it sends about one command per 10 s.
        """
        if not 1 <= n <= 1000:
            raise ValueError(f"claim({n}): 1 to 1000 jobs")
        if wait is not None and wait < 0:
            raise ValueError(f"claim(wait={wait}): seconds from 0, or None for ever")
        if wait == 0:
            return self.claim_now(n, lease)
        return self._claim_waiting(n, wait, self._lease(lease))

    def _lease(self, lease: float | None) -> float:
        chosen = self.settings.lease if lease is None else lease
        if not 0.05 <= chosen <= 7 * 86400:
            raise ValueError(f"lease={chosen}: seconds from 0.05 to a week")
        return chosen

    def claim_now(self, n: int, lease: float | None) -> Operation[list[Item]]:
        while True:
            me = mint_id()
            try:
                turn = yield self.bindings.turn(me, 1, lease=self._lease(lease), want=n, trial="alone", once=True)
            except BaseException:
                yield from self.abandon(me)
                raise
            if turn.claims or not turn.more:
                return [Item(self, me, claim) for claim in turn.claims]

    def _claim_waiting(self, n: int, wait: float | None, lease: float) -> Operation[list[Item]]:
        me = mint_id()
        deadline = None if wait is None else time.monotonic() + wait
        waiter = yield Listen(self.bindings.keys.inbox)
        number = 0
        try:
            while True:
                number += 1
                left = None if deadline is None else deadline - time.monotonic()
                last = left is not None and left <= 0
                sleep = 0.0 if last else self.settings.sleep * SLEEPER_TTL_FACTOR
                turn = yield self.bindings.turn(
                    me, number, lease=lease, want=n, trial="alone", address=waiter.address, sleep=sleep, once=True
                )
                if turn.claims or (last and turn.alive and not turn.more):
                    return [Item(self, me, claim) for claim in turn.claims]
                if not turn.alive or turn.more:
                    me, number = mint_id(), 0  # with empty hands and awake it has left
                else:
                    every = self.settings.sleep
                    yield from wait_until_recheck(
                        waiter, every if turn.due_in is None else min(every, turn.due_in), deadline
                    )
        except BaseException:
            yield from self.abandon(me)
            yield self.bindings.turn(mint_id(), 1, lease=lease, want=0, address=waiter.address, once=True)
            raise
        finally:
            waiter.close()

    def abandon(
        self, me: str, started: Sequence[bytes] = (), ending: Ending = "release", cause: Failure | None = None
    ) -> Operation[None]:
        """End a dead incarnation: what was `started` ends so, for this cause; the rest is handed back."""
        text = msgspec.json.encode(cause) if cause else b""
        left, at = 1, 0
        while left:
            some, rest = started[at : at + SLICE], at + SLICE < len(started)
            left, done = yield self.bindings.abandon(me, ending, text, some, more=rest)
            at += SLICE if done else 0

    # --- look after ---

    @verb
    def count(self) -> RoundTrip[Counts]:
        """Jobs by state, totals so far, and the age of the oldest ready job. One round trip, O(1)."""
        return self.bindings.counts()

    @verb
    def purge(self) -> Operation[int]:
        """Cancel all jobs that wait; running ones go on. Returns how many. A round trip for each 250."""
        return self.purge_operation(None)

    def purge_operation(self, tenant: str | None) -> Operation[int]:
        total = 0
        counts = yield self.bindings.counts()
        lists: tuple[Literal["delayed", "suspects"], ...] = ("delayed", "suspects")
        for list_ in lists:
            offset, finished = 0, False
            while total < counts.waiting and not finished:
                cancelled, offset, finished = yield self.bindings.purge(tenant, offset, source=list_)
                total += cancelled
        return total

    @verb
    def workers(self, limit: int = 1000) -> RoundTrip[list[WorkerInfo]]:
        """Who works here, the one with the longest lease first. One round trip."""
        return self.bindings.workers(limit)

    @verb
    def pause(self) -> RoundTrip[None]:
        """Hand out no more jobs until `resume()`; running ones go on, new ones are accepted. One round trip."""
        return self.bindings.set_switch("paused", True)

    @verb
    def resume(self) -> RoundTrip[None]:
        """Hand out jobs again. One round trip."""
        return self.bindings.set_switch("paused", False)

    @verb
    def due_first(self, on: bool = True) -> RoundTrip[None]:
        """Jobs that become due go before the others of their tenant and level. One round trip; kept in the server."""
        return self.bindings.set_switch("due_first", on)
