"""A queue: put jobs in, claim and settle them. It works with or without tasks and workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, Unpack, cast

import msgspec

from penstock import codec
from penstock.core.arguments import check_wait, is_whole, shown
from penstock.core.clock import Clock
from penstock.core.ids import mint_id
from penstock.core.operations import (
    Driver,
    Operation,
    Receive,
    RoundTrip,
    Send,
    Unanswered,
    verb,
)
from penstock.errors import BadCall, ConfigurationError
from penstock.jobs.bindings import SLICE, OnDouble, QueueBindings
from penstock.jobs.claims import Ending
from penstock.jobs.constants import UNIQUE, UNIQUE_KEY
from penstock.jobs.dead_letters import DeadLetters
from penstock.jobs.item import Item, checked_lease
from penstock.jobs.job import Failure, Job
from penstock.jobs.keys import QueueKeys, check_queue_name
from penstock.jobs.middleware import EnqueueContext, JobDraft, MiddlewareStack
from penstock.jobs.operating import Tenant
from penstock.jobs.options import EnqueueManyOptions, EnqueueOptions, Options, record_start
from penstock.jobs.record import Record, has_powers
from penstock.jobs.sharded_queue import ShardedQueue
from penstock.jobs.status import Status
from penstock.settings import Settings

if TYPE_CHECKING:
    from penstock.jobs.job_list import Jobs
    from penstock.jobs.shard_table import TenantMap

R = TypeVar("R")

CHUNK: Final = 500
"""Jobs that one round trip of a bulk enqueue sends. They take the server a millisecond or two."""

CHUNK_TENANTS: Final = 250
"""Distinct tenants in such a round trip. Each costs several commands, so 500 of them would take the server 5 ms."""


def becomes_double_of(jobs: Sequence[Job[Any]]) -> OnDouble:
    """Makes each of these handles that is a double a handle on the job that holds its unique key."""

    def change(position: int, key: str) -> None:
        jobs[position].key = key

    return change


def claim_from_queues(queues: Iterable[Queue], n: int, lease: float | None) -> Operation[list[Item]]:
    """Claim up to `n` jobs without waiting: from the first queue, then from the next one."""
    return claim_in_order([queue.claim_from_parts for queue in queues], n, lease)


def claim_in_order(
    claims: Iterable[Callable[[int, float | None], Operation[list[Item]]]], n: int, lease: float | None
) -> Operation[list[Item]]:
    """Claim until there are `n` items. If one claim fails or is cancelled, the items of the others are released."""
    items: list[Item] = []
    try:
        for claim in claims:
            items += yield from claim(n - len(items), lease)
            if len(items) >= n:
                break
    except BaseException:
        for queue, incarnation in dict.fromkeys((item._queue, item._incarnation) for item in items):
            yield from cast("Queue", queue).abandon(incarnation)
        raise
    return items


class SentDrafts(NamedTuple):
    """A chunk of drafts that was sent to a queue or shard, and not answered yet."""

    unanswered: Unanswered
    queue: Queue
    known: TenantMap[Queue] | None
    drafts: Sequence[tuple[str, bytes]]
    jobs: Sequence[Job[Any]]

    def receive(self) -> Operation[None]:
        """Wait for the reply. Jobs that belong elsewhere since the shards were changed are enqueued there."""
        answer = yield Receive(self.unanswered)
        if self.known is not None and not isinstance(answer, list):
            shards = self.queue.shards
            assert shards is not None
            shards.learn(answer, self.known)
            yield from shards.enqueue(self.drafts, durable=False, jobs=self.jobs)


class Queue(ShardedQueue):
    """A named queue of the app. It works with or without tasks and workers."""

    def __init__(
        self,
        name: str,
        driver: Driver,
        settings: Settings,
        clock: Clock,
        middleware: MiddlewareStack | None = None,
    ) -> None:
        self.name = check_queue_name(name)
        self._driver = driver
        self.settings = settings
        self.middleware = middleware or MiddlewareStack()
        self.bindings = QueueBindings(QueueKeys(settings.prefix, name), clock)
        self.dead = DeadLetters(self)
        self.shards = None

    def __repr__(self) -> str:
        return f"<Queue {self.name}>"

    def tenant(self, name: str) -> Tenant:
        """A handle on one tenant of this queue. No round trip."""
        return Tenant(self, name)

    def job(self, job_id: str) -> Job[Any]:
        """A handle on a job of this queue, by its id or by the part after the colon. No round trip."""
        queue = self.shards.named_in(job_id) if self.shards is not None and self.is_split else self
        return Job(queue, queue.key_of(job_id))

    def jobs(
        self,
        *,
        state: Status | str | None = None,
        task: str | None = None,
        tenant: str | None = None,
        worker: str | None = None,
        id_prefix: str = "",
        older_than: float = 0.0,
    ) -> Jobs:
        """The jobs that match all of these: pages of them, their number, and actions on all of them. No round trip.

            for job in queue.jobs(state="ready", tenant="acme").page(20).jobs: ...
            queue.jobs(state="dead", task="send_email").requeue()

        state       delayed, ready, parked, running or dead
        task        the name of a task; "" for bare values
        worker      `host:pid`: only the jobs that it runs
        id_prefix   how the id begins, with or without the name of the queue
        older_than  seconds for which a job has been in its state; for which a delayed one has waited since its enqueue
        """
        from penstock.jobs.job_list import Jobs, job_filter

        return Jobs(
            self.parts if tenant is None else self.known_homes(tenant),
            job_filter(state, task, tenant, worker, id_prefix, older_than),
        )

    def key(self, name: str, tenant: str = "") -> str:
        """A key of your own in the slot of this tenant's jobs, for a transaction that also enqueues. No round trip.

        Unless the queue has shards, its tenants share one slot.
        """
        return self.shard_of(tenant).bindings.keys.user(name)

    def key_of(self, job_id: str) -> str:
        """The part of a job's id that identifies the job within this queue."""
        return job_id.removeprefix(f"{self.name}:")

    # --- put ---

    def draft(self, payload: bytes, options: Options) -> tuple[str, bytes]:
        """The key and the record of a new job that is a bare value."""
        if options.unique is None:
            return options.id or mint_id(), self.record_start(options) + payload
        from penstock.jobs.unique import encode_powers, exact_field, mark_keys

        fields = {"u": exact_field(options.unique)}
        powers = encode_powers(**(fields if self.shards is None else mark_keys(fields)))
        return options.id or mint_id(), self.record_start(options, UNIQUE, powers=UNIQUE_KEY) + powers + payload

    def record_start(
        self, options: Options, flags: int = 0, task: str = "", ttl: float | None = None, powers: int = 0
    ) -> bytes:
        """The record of a new job up to its powers and its payload. `task`: its name; `ttl`: its `result_ttl`."""
        if options.unique is not None and options.unique.debounce is not None:
            options = replace(options, delay=options.unique.debounce, unique=None)
        kept = next(t for t in (options.result_ttl, ttl, self.settings.result_ttl) if t is not None)
        return record_start(options, kept, flags, task, powers)

    def _draft_values(self, values: Iterable[Any], options: Options) -> list[tuple[str, bytes]]:
        limit = self.settings.max_payload
        return [self.draft(codec.encode(v, limit=limit, what="the value"), options) for v in values]

    @verb
    def put(self, value: Any, **options: Unpack[EnqueueOptions]) -> RoundTrip[Job[Any]] | Operation[Job[Any]]:
        """Enqueue one value (anything JSON can hold). `options`: see `Options`.

        When it returns, the job is accepted and will be handed out at least once. Raises BadCall for a value that JSON
        cannot hold, PayloadTooLarge, and ServerFull when the server is out of memory; then nothing was enqueued. With
        `durable` it also raises DurabilityUnavailable and NotDurable. One round trip.
        """
        chosen = Options(**options)
        ((key, record),) = self._draft_values([value], chosen)
        if self.is_split and chosen.unique is not None:
            from penstock.jobs.shards import check_unique_key

            check_unique_key(f"queue {self.name}", chosen.unique, chosen.tenant, uses_tenant=False)
        return self.enqueue_job(key, record, Job(self, key, ttl=chosen.result_ttl), chosen)

    @verb
    def put_many(self, values: Iterable[Any], **options: Unpack[EnqueueManyOptions]) -> Operation[list[Job[Any]]]:
        """Enqueue many values with the same options (see `Options`; an `id` of your own is not among them).

        All values are encoded before the first is sent. Raises what `put` raises. After an error of the
        server, the jobs that were sent before it stay enqueued. One round trip for each 500.
        """
        if "id" in options or "unique" in options:
            raise TypeError("put_many() takes no id, and no unique key: its jobs would all have the same one")
        chosen = Options(**options)
        drafts = self._draft_values(values, chosen)
        jobs: list[Job[Any]] = [Job(self, key, ttl=chosen.result_ttl) for key, _ in drafts]
        yield from self.enqueue_drafts(drafts, durable=chosen.durable, jobs=jobs)
        return jobs

    def enqueue_drafts(
        self, drafts: Iterable[tuple[str, bytes]], *, durable: bool, jobs: Sequence[Job[Any]] | None = None
    ) -> Operation[None]:
        """Enqueue drafts, 500 in a round trip. Each of `jobs` that is a double becomes a handle on the first job."""
        rest, start = iter(drafts), 0
        while chunk := list(islice(rest, CHUNK)):
            some = None if jobs is None else jobs[start : start + CHUNK]
            start += CHUNK
            if self.middleware.enqueue_hooks:
                given = [JobDraft(self.name, key, record) for key, record in chunk]
                with self.middleware.around_enqueue(EnqueueContext(self.name, given)):
                    yield from self._enqueue_chunk([(one.key, one.record) for one in given], durable, some)
            else:
                yield from self._enqueue_chunk(chunk, durable, some)

    def _enqueue_chunk(
        self, chunk: Sequence[tuple[str, bytes]], durable: bool, jobs: Sequence[Job[Any]] | None
    ) -> Operation[None]:
        if self.shards is not None:
            return (yield from self.shards.enqueue(chunk, durable=durable, jobs=jobs))
        parts = [part for draft in chunk for part in draft]
        yield self.bindings.enqueue(parts, durable=durable, on_double=None if jobs is None else becomes_double_of(jobs))

    def send_drafts(
        self,
        drafts: Sequence[tuple[str, bytes]],
        sent: SentDrafts | None,
        *,
        durable: bool,
        jobs: Sequence[Job[Any]],
        known: TenantMap[Queue] | None = None,
    ) -> Operation[SentDrafts | None]:
        """Send one chunk after the reply to the chunk `sent` before. Returns what the next call has to receive.

        So the caller prepares the next chunk while the server works, and the chunks keep their order whatever fails.
        `known`: where tenants belong, by which this shard was chosen; None: this queue has no shards.
        """
        if sent is not None:
            yield from sent.receive()
        if not self.may_send_ahead(known, durable=durable):
            yield from self.enqueue_drafts(drafts, durable=durable, jobs=jobs)
            return None
        parts = [part for draft in drafts for part in draft]
        call: RoundTrip[Any]
        if known is None:
            call = self.bindings.enqueue(parts, on_double=becomes_double_of(jobs))
        else:
            from penstock.jobs.shard_bindings import ShardBindings

            call = ShardBindings(self.bindings).enqueue(parts, known.table.text, on_double=becomes_double_of(jobs))
        return SentDrafts((yield Send(call)), self, known, [] if known is None else [*drafts], jobs)

    def may_send_ahead(self, known: TenantMap[Queue] | None, *, durable: bool) -> bool:
        """Whether a call can be sent before the last one was answered, or together with calls to other shards."""
        return not (durable or self.middleware.enqueue_hooks or (known is not None and not known.is_settled))

    def enqueue_job(
        self, key: str, record: bytes, job: Job[R], options: Options
    ) -> RoundTrip[Job[R]] | Operation[Job[R]]:
        """Enqueue one job. If it is a double, `job` becomes the first one."""
        if self.middleware.enqueue_hooks:
            return self._enqueue_as_draft(key, record, job, options)
        if self.shards is not None:
            return self._enqueue_in_shard(key, record, job, options)
        if options.is_plain and not has_powers(record):
            return self.bindings.enqueue_plain(key, record).then(lambda _: job)
        sent = self.bindings.enqueue((key, record), durable=options.durable, on_double=becomes_double_of([job]))
        return sent.then(lambda _: job)

    def _enqueue_as_draft(self, key: str, record: bytes, job: Job[R], options: Options) -> Operation[Job[R]]:
        yield from self.enqueue_drafts([(key, record)], durable=options.durable, jobs=[job])
        return job

    def _enqueue_in_shard(self, key: str, record: bytes, job: Job[R], options: Options) -> Operation[Job[R]]:
        assert self.shards is not None
        yield from self.shards.enqueue_one(
            key, record, job, options.tenant, durable=options.durable, plain=options.is_plain and not has_powers(record)
        )
        return job

    def add_to_pipeline(self, pipeline: Any, key: str, record: bytes) -> None:
        """Add an enqueue to a pipeline, inside the `enqueue` hooks.

        Raises BadCall for a unique job, and ConfigurationError for shards that are not checked yet.
        """
        if self.shards is not None and not self.shards.is_checked:
            raise ConfigurationError(
                f"queue {self.name}: ask the server once for the number of its shards, by queue.check_shards(), before "
                "you enqueue in a pipeline"
            )
        if Record(record).unique is not None:
            raise BadCall(
                f"queue {self.name}: a unique job cannot be enqueued in a pipeline, whose reply would say which job it "
                "is a double of: enqueue it by itself, or with enqueue_many"
            )
        job = JobDraft(self.name, key, record)
        with self.middleware.around_enqueue(EnqueueContext(self.name, [job])):
            self._driver.add_to_pipeline(pipeline, self.bindings.enqueue((job.key, job.record)))

    def put_in(self, pipeline: Any, value: Any, **options: Unpack[EnqueueOptions]) -> Job[Any]:
        """Enqueue one value in a pipeline or transaction of your own. Nothing is sent before you execute it.

        `pipeline` is a pipeline of the client library, blocking or asyncio. For your own data in a MULTI, use keys from
        `queue.key`, which are in the queue's slot. The pipeline also carries the script, because on a
        server without it the enqueue would fail while the rest of the MULTI is executed. `durable` has no effect here.
        """
        chosen = Options(**options)
        ((key, record),) = self._draft_values([value], chosen)
        home = self.shard_of(chosen.tenant)
        home.add_to_pipeline(pipeline, key, record)
        return Job(home, key, ttl=chosen.result_ttl)

    # --- claim ---

    @verb
    def claim(self, n: int = 1, *, wait: float | None = 0.0, lease: float | None = None) -> Operation[list[Item]]:
        """Claim up to `n` jobs, in the order of priorities and of the tenants' turns. `n` is at most 1000.

        wait   seconds to wait for the first job; 0: do not wait, None: no limit
        lease  seconds after which a job that is not settled goes to another program; None: the app's setting

        One round trip if there are jobs. While it waits, it sends about one command per 10 s.

        In a queue with shards it asks each shard, until it has `n` jobs. Then it waits for all shards, at that cost for
        each, and returns the jobs of the one that woke it.
        """
        if not is_whole(n, 1, 1000):
            raise ValueError(f"claim({shown(n)}): 1 to 1000 jobs")
        check_wait("claim", wait)
        if wait == 0:
            return self.claim_from_parts(n, lease)
        return self._claim_waiting(n, wait, self._lease(lease))

    def _lease(self, lease: float | None) -> float:
        return checked_lease(self.settings.lease if lease is None else lease)

    def claim_from_parts(self, n: int, lease: float | None) -> Operation[list[Item]]:
        """Claim without waiting, from each shard in turn, each time with another one first."""
        parts: tuple[Queue, ...] = (self,)
        if self.shards is not None and self.is_split:
            yield from self.shards.refresh()
            parts = self.shards.rotated()
        return (yield from claim_in_order([part.claim_now for part in parts], n, lease))

    def claim_now(self, n: int, lease: float | None) -> Operation[list[Item]]:
        while True:
            incarnation = mint_id()
            try:
                turn = yield self.bindings.turn(
                    incarnation, 1, lease=self._lease(lease), want=n, trial="alone", once=True
                )
            except BaseException:
                yield from self.abandon(incarnation)
                raise
            if turn.claims or not turn.more:
                return [Item(self, incarnation, claim) for claim in turn.claims]

    def _claim_waiting(self, n: int, wait: float | None, lease: float) -> Operation[list[Item]]:
        from penstock.jobs.waiting_claim import WaitingClaim

        if self.is_split and (items := (yield from self.claim_from_parts(n, lease))):
            return items
        return (yield from WaitingClaim(self, lease).wait(n, wait))

    def abandon(
        self,
        incarnation: str,
        started: Sequence[bytes] = (),
        ending: Ending = "release",
        cause: Failure | None = None,
    ) -> Operation[bool]:
        """End all claims of an incarnation that takes no more turns. Returns whether suspects wait for a trial.

        The claims in `started` end with `ending` and `cause`; the others are released.
        """
        suspect: float | None = None
        reason = msgspec.json.encode(cause) if cause else b""
        left, start = 1, 0
        while left:
            some, more = started[start : start + SLICE], start + SLICE < len(started)
            left, all_settled, suspect = yield self.bindings.abandon(incarnation, ending, reason, some, more=more)
            start += SLICE if all_settled else 0
        return suspect is not None
