"""A queue: put jobs in, claim and settle them, and operate it. It works with or without tasks and workers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack

from penstock import codec
from penstock.core.arguments import names_options, utf8_size
from penstock.core.clock import Clock
from penstock.core.ids import mint_id
from penstock.core.operations import Driver, Operation, RoundTrip, verb
from penstock.errors import BadCall, ConfigurationError
from penstock.jobs import effort
from penstock.jobs.constants import UNIQUE
from penstock.jobs.counts import Counts, WorkerInfo, total_counts
from penstock.jobs.dead_letters import DeadLetters
from penstock.jobs.item import Item, check_claim, checked_lease
from penstock.jobs.job import Job, becomes_double_of
from penstock.jobs.keys import check_queue_name
from penstock.jobs.middleware import EnqueueContext, JobDraft, MiddlewareStack
from penstock.jobs.options import EnqueueManyOptions, EnqueueOptions, Options, job_start, options_of, value_sections
from penstock.jobs.queue_limits import QueueLimits
from penstock.jobs.queue_settings import QueueSettings
from penstock.jobs.record import Record, has_powers, pack_sections
from penstock.jobs.sealed import encode_limit, new_record
from penstock.jobs.shard import Shard
from penstock.jobs.shards import ShardMap, ask_all, set_all
from penstock.settings import Settings

if TYPE_CHECKING:
    from penstock.jobs.bounds import Refusals
    from penstock.jobs.editing import EncodedCall
    from penstock.jobs.job_list import Jobs, Wanted
    from penstock.jobs.pauses import Named, PausedScope
    from penstock.jobs.tenant import Tenant

R = TypeVar("R")

CHUNK: Final = 500
"""Jobs that one round trip of a bulk enqueue sends. They take the server a millisecond or two."""


class Queue(QueueSettings, QueueLimits):
    """A named queue of the app. It works with or without tasks and workers."""

    def __init__(
        self,
        name: str,
        driver: Driver,
        settings: Settings,
        clock: Clock,
        middleware: MiddlewareStack | None = None,
        *,
        table: str | None = None,
    ) -> None:
        """`table`: of its shards, if that was just read from the server (see `ShardMap.stored`)."""
        self.name = check_queue_name(name)
        self._driver = driver
        self.settings = settings
        self.middleware = middleware or MiddlewareStack()

        def make(shard: str) -> Shard:
            return Shard(shard, driver, settings, clock, self.middleware)

        self.shards = ShardMap(name, make) if table is None else ShardMap.stored(name, make, table)
        self.first = self.shards.first
        """Shard 0. It has all jobs of a queue that is not split, and the table of one that is."""
        self.new_jobs_in = self.shards
        """The shards of its new jobs. If this is a shard by its name (`mail~3`), they are those of the queue."""
        self.dead = DeadLetters(self.shards)
        self._claims = 0

    def __repr__(self) -> str:
        return f"<Queue {self.name}>"

    def tenant(self, name: str) -> Tenant:
        """A handle on one tenant of this queue. No round trip."""
        from penstock.jobs.tenant import Tenant

        return Tenant(self.shards, name)

    def job(self, job_id: str) -> Job[Any]:
        """A handle on a job of this queue, by its id, or by what follows the colon in it. No round trip."""
        utf8_size("job id", job_id)
        shard = self.shards.of_job(job_id)
        return Job(shard, shard.key_of(job_id))

    def jobs(self, **wanted: Unpack[Wanted]) -> Jobs:
        """The jobs that match all of these: pages of them, their number, and actions on all of them. No round trip.

            for job in queue.jobs(state="ready", tenant="acme").page(20).jobs: ...
            queue.jobs(state="dead", task="send_email").requeue()

        state       delayed, sleeping, ready, parked, running, waiting or dead; or, of the last jobs that have ended,
                    completed, cancelled, expired, dropped, failed (became a dead letter), or ended for all of them
        task        the name of a task; "" for bare values
        worker      `host:pid`: only the jobs that it runs
        id_prefix   how the id begins, with or without the name of the queue
        older_than  seconds that a job has been in its state at least; since its enqueue if it is delayed or sleeping
        tag         one of its tags
        text        a text within a name or a value of its arguments; nothing matches in sealed ones
        since       seconds: only those that ended in the last ones
        longer_than seconds that the last run took at least
        """
        from penstock.jobs.job_list import Jobs, job_filter

        chosen, tenant = job_filter(**wanted), wanted.get("tenant")  # checks the tenant before it is routed
        return Jobs(self.shards.current.known if tenant is None else self.shards.current.may_hold(tenant), chosen)

    @verb
    def run_again(self, job_id: str, call: EncodedCall | None = None) -> Operation[Job[Any]]:
        """Run a job of this queue that has ended again, as a new job, which is due now. Returns the new job.

        It has the task, tenant, priority, tags and `result_ttl` of the old one, and its arguments, if the queue keeps
        them (`keep(arguments=True)`). Limits and bounds hold as for every new job. If another job holds its unique key,
        that job is returned.

        call  with these arguments, as in `queue.run_again(id, send.call("bo@example.com"))`. Then the old ones need not
              be kept

        Raises CannotRunAgain for a job that has not ended, and for one without kept arguments; JobNotFound for one
        without a row; BadCall for the call of another task; SealError if the kept arguments are sealed and this program
        has no codec for those of `call`; and what `put` raises. Then nothing was enqueued. Five round trips, and one
        more for each 2000 rows of ended jobs after the first ones.
        """
        from penstock.jobs.running_again import draft_again, find_ended

        row, kept = yield from find_ended(self.shards, job_id, call)
        if kept is not None:
            key, record = mint_id(), draft_again(kept, row.id, in_shards=self.shards.named is not None)
            job: Job[Any] = Job(self.shard_for(row.tenant), key, ttl=kept.ttl / 1000)
            sent = self.enqueue_job(key, record, job, Options(tenant=row.tenant))
        else:
            assert call is not None
            again = call.belonging_to(self, row.tenant, row.priority, row.tags)
            key, record = again.draft()
            sent = self.enqueue_job(key, record, again.job(key), again.task.options)
        return (yield sent) if isinstance(sent, RoundTrip) else (yield from sent)

    def key(self, name: str, tenant: str = "") -> str:
        """A key of your own in the slot of this tenant's jobs, for a transaction that also enqueues. No round trip.

        Unless the queue has shards, its tenants share one slot.
        """
        utf8_size("key", name)
        utf8_size("tenant", tenant)
        return self.shards.current.for_new(tenant).bindings.keys.user(name)

    # --- put ---

    def draft(self, payload: bytes, options: Options) -> tuple[str, bytes]:
        """The key and the record of a new job that is a bare value."""
        if options.unique is None and not options.tags and self.settings.seal is None:
            return options.id or mint_id(), job_start(self.settings, options) + payload
        sections = value_sections(options, in_shards=self.shards.named is not None)
        start = job_start(self.settings, options, UNIQUE * (options.unique is not None), powers=sum(sections))
        return options.id or mint_id(), new_record(start, pack_sections(sections), payload, self.settings, "the value")

    def _draft_values(self, values: Iterable[Any], options: Options) -> list[tuple[str, bytes]]:
        limit = encode_limit(self.settings)
        return [self.draft(codec.encode(v, limit=limit, what="the value", untyped=True), options) for v in values]

    @verb
    def put(self, value: Any, **options: Unpack[EnqueueOptions]) -> RoundTrip[Job[Any]] | Operation[Job[Any]]:
        """Enqueue one value (anything JSON can hold). `options`: see `Options`.

        When it returns, the job is accepted, and a worker will get it at least once. Raises BadCall for a value that
        JSON cannot hold, PayloadTooLarge, QueueFull when the queue is at its bound, and ServerFull when the server is
        out of memory; then nothing was enqueued. With `durable` it also raises DurabilityUnavailable and NotDurable.
        One round trip.
        """
        chosen = options_of(f"put() to queue {self.name}", options)
        ((key, record),) = self._draft_values([value], chosen)
        if self.shards.named is not None and chosen.unique is not None:
            from penstock.jobs.sharded_enqueue import check_unique_key

            check_unique_key(f"queue {self.name}", chosen.unique, chosen.tenant, uses_tenant=False)
        return self.enqueue_job(key, record, Job(self.shard_for(chosen.tenant), key, ttl=chosen.result_ttl), chosen)

    @verb
    def put_many(self, values: Iterable[Any], **options: Unpack[EnqueueManyOptions]) -> Operation[list[Job[Any]]]:
        """Enqueue many values with the same options (see `Options`; an `id` of your own is not among them).

        All values are encoded before the first is sent. Raises what `put` raises. After an error of the
        server, the jobs that were sent before it stay enqueued. QueueFull says which jobs a bound has refused, after
        all were sent. One round trip for each 500.
        """
        if "id" in options or "unique" in options:
            raise TypeError("put_many() takes no id, and no unique key: its jobs would all have the same one")
        from penstock.jobs.bounds import Refusals

        chosen = options_of(f"put() to queue {self.name}", options)
        drafts = self._draft_values(values, chosen)
        shard = self.shard_for(chosen.tenant)
        jobs: list[Job[Any]] = [Job(shard, key, ttl=chosen.result_ttl) for key, _ in drafts]
        refusals = Refusals()
        yield from self.enqueue_drafts(drafts, durable=chosen.durable, jobs=jobs, refusals=refusals)
        refusals.raise_first(jobs)
        return jobs

    def enqueue_drafts(
        self,
        drafts: Iterable[tuple[str, bytes]],
        *,
        durable: bool,
        jobs: Sequence[Job[Any]],
        refusals: Refusals | None = None,
    ) -> Operation[None]:
        """Enqueue drafts, 500 in a round trip, or fewer if they have limits or unique keys. Each of `jobs` that is a
        double becomes a handle on the first job.

        Notes in `refusals` the jobs that a bound refuses; without it, raises the first refusal.
        """
        start = 0
        for chunk in effort.slices(drafts, lambda one: effort.of_draft(one[1]), CHUNK):
            some = jobs[start : start + len(chunk)]
            start += len(chunk)
            if self.middleware.enqueue_hooks:
                given = [
                    JobDraft(job.shard.name, *draft, self.settings.seal) for job, draft in zip(some, chunk, strict=True)
                ]
                with self.middleware.around_enqueue(EnqueueContext(some[0].shard.name, given)):
                    chunk = [(one.key, one.record) for one in given]
                    yield from self._enqueue_chunk(chunk, durable, some, refusals)
                    if refusals is not None:  # middleware counts what was enqueued
                        given[:] = [one for one, job in zip(given, some, strict=True) if job not in refusals]
            else:
                yield from self._enqueue_chunk(chunk, durable, some, refusals)

    def _enqueue_chunk(
        self, chunk: Sequence[tuple[str, bytes]], durable: bool, jobs: Sequence[Job[Any]], refusals: Refusals | None
    ) -> Operation[None]:
        if self.new_jobs_in.named is not None:
            from penstock.jobs.sharded_enqueue import enqueue_in_shards

            return (yield from enqueue_in_shards(self.new_jobs_in, chunk, jobs, durable=durable, refusals=refusals))
        texts, on_refusal = [text for draft in chunk for text in draft], None if refusals is None else refusals.of(jobs)
        yield self.first.bindings.enqueue(
            texts, durable=durable, on_double=becomes_double_of(jobs), on_refusal=on_refusal
        )

    def shard_for(self, tenant: str) -> Shard:
        """The shard of a tenant's next job, as far as this program knows. Enqueueing it may find another one."""
        shards = self.new_jobs_in
        return self.first if shards.named is None else shards.current.for_new(tenant)

    def enqueue_job(
        self, key: str, record: bytes, job: Job[R], options: Options
    ) -> RoundTrip[Job[R]] | Operation[Job[R]]:
        """Enqueue one job. If it is a double, `job` becomes the first one. Afterwards `job` has the right shard."""
        if self.middleware.enqueue_hooks or self.new_jobs_in.named is not None:
            return self._enqueue_or_route(key, record, job, options)
        bindings = self.first.bindings
        if options.is_plain and not has_powers(record):
            return bindings.enqueue_plain(key, record, job)
        sent = bindings.enqueue((key, record), durable=options.durable, on_double=becomes_double_of([job]))
        return sent.then(lambda _: job)

    def _enqueue_or_route(self, key: str, record: bytes, job: Job[R], options: Options) -> Operation[Job[R]]:
        if self.middleware.enqueue_hooks:
            yield from self.enqueue_drafts([(key, record)], durable=options.durable, jobs=[job])
            return job
        from penstock.jobs.sharded_enqueue import enqueue_one_in_shard

        yield from enqueue_one_in_shard(
            self.new_jobs_in,
            key,
            record,
            job,
            options.tenant,
            durable=options.durable,
            plain=options.is_plain and not has_powers(record),
        )
        return job

    def add_to_pipeline(self, pipeline: Any, shard: Shard, key: str, record: bytes) -> None:
        """Add an enqueue in a shard to a pipeline, inside the `enqueue` hooks.

        Raises BadCall for a unique job, and ConfigurationError for shards that are not checked yet.
        """
        if self.shards.named is not None and not self.shards.is_checked:
            raise ConfigurationError(
                f"queue {self.name}: ask the server once for the number of its shards, by queue.check_shards(), before "
                "you enqueue in a pipeline"
            )
        if Record(record).unique is not None:
            raise BadCall(
                f"queue {self.name}: a unique job cannot be enqueued in a pipeline, whose reply would say which job it "
                "is a double of: enqueue it by itself, or with enqueue_many"
            )
        job = JobDraft(shard.name, key, record, self.settings.seal)
        with self.middleware.around_enqueue(EnqueueContext(shard.name, [job])):
            self._driver.add_to_pipeline(pipeline, shard.bindings.enqueue((job.key, job.record)))

    def put_in(self, pipeline: Any, value: Any, **options: Unpack[EnqueueOptions]) -> Job[Any]:
        """Enqueue one value in a pipeline or transaction of your own. Nothing is sent before you execute it.

        `pipeline` is a pipeline of the client library, blocking or asyncio. For your own data in a MULTI, use keys from
        `queue.key`, which are in the queue's slot. The pipeline also carries the script, because on a
        server without it the enqueue would fail while the rest of the MULTI is executed. `durable` has no effect here.
        """
        chosen = options_of(f"put() to queue {self.name}", options)
        ((key, record),) = self._draft_values([value], chosen)
        shard = self.shard_for(chosen.tenant)
        self.add_to_pipeline(pipeline, shard, key, record)
        return Job(shard, key, ttl=chosen.result_ttl)

    # --- claim ---

    @verb
    @names_options
    def claim(self, n: int = 1, *, wait: float | None = 0.0, lease: float | None = None) -> Operation[list[Item]]:
        """Claim up to `n` jobs, in the order of priorities, and from the tenants in rotation. `n` is at most 1000.

        wait   seconds to wait for the first job; 0: do not wait, None: no limit
        lease  seconds after which a job that is not settled goes to another program; None: the app's setting

        One round trip if there are jobs. While it waits, it sends about one command per 10 s.

        In a queue with shards it asks each shard, until it has `n` jobs. Then it waits for all shards, at that cost for
        each, and returns the jobs of the one that woke it.
        """
        check_claim(n, wait)
        if wait == 0:
            return self.claim_now(n, lease)
        return self._claim_waiting(n, wait, lease)

    def claim_now(self, n: int, lease: float | None) -> Operation[list[Item]]:
        """Claim without waiting, from one shard after another. Each call begins with another shard."""
        from penstock.jobs.claiming import claim_in_order, claim_now

        known = (yield from self.shards.refresh()).known
        first = self._claims % len(known)
        self._claims += 1
        seconds = self._lease(lease)
        claims = [partial(claim_now, shard, lease=seconds) for shard in known[first:] + known[:first]]
        return (yield from claim_in_order(claims, n))

    def _claim_waiting(self, n: int, wait: float | None, lease: float | None) -> Operation[list[Item]]:
        from penstock.jobs.claiming import WaitingClaim

        if self.shards.named is not None and (items := (yield from self.claim_now(n, lease))):
            return items
        return (yield from WaitingClaim([self.shards], self._lease(lease)).wait(n, wait))

    def _lease(self, lease: float | None) -> float:
        return checked_lease(self.settings.lease if lease is None else lease)

    # --- operate ---

    @verb
    def count(self) -> RoundTrip[Counts] | Operation[Counts]:
        """Jobs by state, totals so far, and the age of the oldest ready job. One round trip, O(1).

        With shards: two, the second one to each node.
        """
        return ask_all(self.shards, lambda shard: shard.bindings.counts(), total_counts)

    @verb
    def purge(self) -> Operation[int]:
        """Cancel all waiting jobs; running jobs are not stopped. Returns how many.

        One round trip for each 250, and one to count them; with shards, for each of them.
        """
        total = 0
        for shard in (yield from self.shards.refresh()).known:
            total += yield from shard.purge(None)
        return total

    @verb
    def remove(self) -> Operation[None]:
        """Delete the queue with its settings, history and kept results. The next call begins a new one.

        Raises PenstockError, with counts, and deletes nothing if it is not empty: no job in any state, no schedule,
        nothing in its outbox, no live worker. Two round trips; with shards, for each.
        """
        from penstock.jobs.removal import remove_queue

        return remove_queue(self.shards)

    @verb
    def workers(self, limit: int = 1000) -> RoundTrip[list[WorkerInfo]] | Operation[list[WorkerInfo]]:
        """The workers of this queue, the one with the longest lease first. One round trip; with shards, one
        more to each node.

        A worker serves all shards, and each has a row for it, with the jobs that it holds there.
        """

        def join(found: Sequence[list[WorkerInfo]]) -> list[WorkerInfo]:
            return sorted((one for workers in found for one in workers), key=lambda one: -one.lease)[:limit]

        return ask_all(self.shards, lambda shard: shard.bindings.workers(limit), join)

    @verb
    def pause(
        self, *, task: Named | str | None = None, tenant: str | None = None, by: str | None = None
    ) -> Operation[None]:
        """Let workers claim no jobs until `resume()`: of one `task`, of one `tenant`, or of the whole queue.

        Running jobs continue, and new ones are accepted. Jobs of a paused task or tenant are parked, and keep no place
        in a limit. At most 1000 tasks and tenants are paused at a time. What is paused already stays as it is. `by`:
        its author, for people; None: host and process id of this program. One round trip; with shards, for each.
        """
        return self._pause(True, task, tenant, by)

    @verb
    def resume(self, *, task: Named | str | None = None, tenant: str | None = None) -> Operation[list[PausedScope]]:
        """Let workers claim jobs again: those that were paused with the same argument. Returns what stays paused.

        The parked jobs of a task or tenant go first, in their order; each script admits some fifty of them. Two round
        trips; with shards, one more for each.
        """
        yield from self._pause(False, task, tenant, None)
        return [one for one in (yield from self.pauses.within()) if one.paused]

    def _pause(self, on: bool, task: Named | str | None, tenant: str | None, by: str | None) -> Operation[None]:
        from penstock.jobs.pauses import pause_author, scope_name

        def check(answer: int) -> None:
            if answer < 0:
                raise ConfigurationError(
                    f"queue {self.name}: 1000 tasks and tenants are paused, which is the most: pause the queue"
                )

        name, author = scope_name(self.name, task, tenant), pause_author(by)
        if name is None:
            yield from set_all(self.shards, lambda shard: shard.bindings.set_switch("paused", on, author))
        else:
            yield from set_all(self.shards, lambda shard: shard.bindings.pause_scope(name, on, author).then(check))

    @verb
    def pauses(self) -> RoundTrip[list[PausedScope]] | Operation[list[PausedScope]]:
        """What is paused: tasks, tenants, and last the whole queue; and what still has parked jobs after a pause.

        One round trip; with shards, one to each node.
        """
        from penstock.jobs.pauses import joined_pauses

        return ask_all(self.shards, lambda shard: shard.bindings.pauses(), joined_pauses)

    # --- shards ---

    @verb
    def check_shards(self) -> Operation[None]:
        """Ask the server for the number of shards. Workers and the first enqueue of a program do it themselves.

        The first program that asks stores the number that it names. Raises ConfigurationError if the queue has shards,
        and this program names no number. One round trip; none if this program has asked already.
        """
        return self.shards.check()

    @verb
    def add_shards(self, number: int) -> Operation[bool]:
        """Give the queue this many shards, while programs use it. Returns whether the change is closed already.

        Each tenant that is to move stays in its old shard while that has a job of it in any state, dead letters
        included. So its jobs keep their order, and none is lost or doubled. Workers serve the new shards within 10 s,
        and close the change when no tenant is left to move.

        Raises ConfigurationError for a number below the present one, while another change is open, and while a schedule
        that was added at run time belongs to a tenant that would move. A few round trips for each shard, and one for
        each weight of a tenant.
        """
        from penstock.jobs.shard_changes import add_shards

        return add_shards(self.shards, number)

    @verb
    def finish_adding_shards(self) -> Operation[bool]:
        """Close a change of shards that is open, if no tenant is left to move. Returns whether none is open.

        Workers do this by themselves. One round trip for each 1000 tenants of the old shards, and a few more.
        """
        from penstock.jobs.shard_changes import finish_change

        yield from self.shards.refresh()
        return (yield from finish_change(self.shards))
