"""Enqueueing many jobs: 500 in a round trip, each chunk prepared while the server works on the one before."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeVar

from penstock.core.arguments import check_many
from penstock.core.operations import Operation, Receive, RoundTrip, Send, Unanswered
from penstock.errors import BadCall
from penstock.jobs.bounds import Refusals
from penstock.jobs.job import Job, becomes_double_of
from penstock.jobs.queue import CHUNK, Queue
from penstock.jobs.shard import Shard
from penstock.jobs.shards import ShardMap, ShardSnapshot
from penstock.jobs.task import Call

R = TypeVar("R")

CHUNK_TENANTS: Final = 250
"""Distinct tenants in a round trip. Each costs several commands, so 500 of them would take the server 5 ms."""


class _Chunk:
    """Drafts for one shard of a queue, with their jobs, until there are enough for a round trip.

    used      the snapshot by which the shard was chosen; None: the queue has no shards
    refusals  notes the jobs that a bound refuses
    """

    __slots__ = ("drafts", "durable", "effort", "jobs", "queue", "refusals", "shard", "tenants", "used")

    def __init__(
        self, queue: Queue, shard: Shard, used: ShardSnapshot | None, durable: bool, refusals: Refusals
    ) -> None:
        self.queue, self.shard, self.used, self.durable = queue, shard, used, durable
        self.refusals = refusals
        self.drafts: list[tuple[str, bytes]] = []
        self.jobs: list[Job[Any]] = []
        self.tenants: set[str] = set()
        self.effort = 0

    @property
    def may_be_sent_ahead(self) -> bool:
        """Whether it can be sent before the reply to the last call arrives, or together with calls to other shards."""
        hooks, used = self.queue.middleware.enqueue_hooks, self.used
        return not (self.durable or hooks or (used is not None and not used.is_settled))

    def send(self, sent: _SentChunk | None) -> Operation[_SentChunk | None]:
        """Receive the reply to `sent`, the chunk before, then send this one. Returns it if its reply is to come.

        So the caller prepares the next chunk while the server works, and the chunks keep their order whatever fails.
        """
        if sent is not None:
            yield from sent.receive()
        if not self.may_be_sent_ahead:
            yield from self.queue.enqueue_drafts(
                self.drafts, durable=self.durable, jobs=self.jobs, refusals=self.refusals
            )
            return None
        call: RoundTrip[Any]
        if self.used is None:
            texts = [text for draft in self.drafts for text in draft]
            call = self.shard.bindings.enqueue(
                texts, on_double=becomes_double_of(self.jobs), on_refusal=self.refusals.of(self.jobs)
            )
        else:
            from penstock.jobs.sharded_enqueue import ShardChunk

            chunk = ShardChunk(self.shard, self.drafts, self.jobs, refusals=self.refusals)
            call = chunk.call(self.used.table.text)
        return _SentChunk((yield Send(call)), self)


class _SentChunk:
    """A chunk that was sent, and not answered yet."""

    __slots__ = ("_chunk", "_unanswered")

    def __init__(self, unanswered: Unanswered, chunk: _Chunk) -> None:
        self._unanswered = unanswered
        self._chunk = chunk

    def receive(self) -> Operation[None]:
        """Wait for the reply. If the shards have changed, enqueue the jobs in the shards to which they now belong."""
        answer, chunk = (yield Receive(self._unanswered)), self._chunk
        if chunk.used is not None and not isinstance(answer, list):
            from penstock.jobs.sharded_enqueue import enqueue_in_shards

            shards = chunk.queue.new_jobs_in
            shards.learn(answer, chunk.used)
            yield from enqueue_in_shards(shards, chunk.drafts, chunk.jobs, durable=False, refusals=chunk.refusals)


def enqueue_all(calls: Iterable[Call[R]]) -> Operation[list[Job[R]]]:
    """Enqueue calls of any tasks as the iterable yields them: 500 of at most 250 tenants per round trip, and fewer if
    they have limits or unique keys."""
    check_many("enqueue_many", "calls", calls)
    jobs: list[Job[R]] = []
    refusals = Refusals()
    chunks: dict[tuple[Shard, bool], _Chunk] = {}
    snapshots: dict[ShardMap, ShardSnapshot] = {}
    """The same snapshot is used for all calls: a newer one would let a tenant's jobs pass each other."""
    sent: _SentChunk | None = None
    try:
        for call in calls:
            if not isinstance(call, Call):
                raise BadCall(f"enqueue_many takes calls, as in task.call(…), not {type(call).__name__}")
            key, record = call.draft()
            job, queue, options = call.job(key), call.task.queue, call.task.options
            used, shards = None, queue.new_jobs_in
            if shards.named is not None:
                if (used := snapshots.get(shards)) is None:
                    yield from shards.check()
                    used = snapshots[shards] = shards.current
                job.shard = used.for_new(options.tenant, key, record) if used.is_settled else shards.first
            jobs.append(job)
            group = (job.shard, options.durable)
            if (chunk := chunks.get(group)) is None:
                chunk = chunks[group] = _Chunk(queue, job.shard, used, options.durable, refusals)
            chunk.drafts.append((key, record))
            chunk.jobs.append(job)
            chunk.tenants.add(options.tenant)
            chunk.effort += call.task.effort
            if chunk.effort >= CHUNK or len(chunk.tenants) == CHUNK_TENANTS:
                receive, sent = sent, None
                sent = yield from chunks.pop(group).send(receive)
    except Exception:
        if sent is not None:  # the iterable has failed: receive the reply to the chunk before, or raise its error
            yield from sent.receive()
        raise
    yield from _send_rest(chunks.values(), sent)
    refusals.raise_first(jobs)
    return jobs


def _send_rest(chunks: Iterable[_Chunk], sent: _SentChunk | None) -> Operation[None]:
    """Send the chunks that are not full: those for the shards of one queue together."""
    rest: dict[Queue, list[_Chunk]] = {}
    for chunk in chunks:
        if chunk.used is not None and chunk.may_be_sent_ahead:
            rest.setdefault(chunk.queue, []).append(chunk)
        else:
            sent = yield from chunk.send(sent)
    if sent is not None:
        yield from sent.receive()
    for queue, several in rest.items():
        from penstock.jobs.sharded_enqueue import ShardChunk, enqueue_chunks

        used = several[0].used
        assert used is not None
        parts = [ShardChunk(one.shard, one.drafts, one.jobs, refusals=one.refusals) for one in several]
        yield from enqueue_chunks(queue.new_jobs_in, parts, used)
