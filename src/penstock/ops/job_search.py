"""The part of the inspector that finds jobs by a filter, in one queue or in all of them."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Unpack

import msgspec

from penstock.core.operations import Operation, verb
from penstock.errors import ConfigurationError
from penstock.jobs.counts import Counts, WorkerInfo
from penstock.jobs.job_list import JobPage, Jobs, JobSummary, Wanted, job_filter
from penstock.jobs.listing import FoundJob, JobFilter
from penstock.jobs.moving import move_jobs
from penstock.jobs.queue import Queue
from penstock.jobs.record import StoredJob
from penstock.jobs.status import Status, status_of
from penstock.ops.answers import ActionOutcome, WorkerDetail
from penstock.ops.probe import queue_names
from penstock.ops.waiting_jobs import WaitingJobsInspector

SEARCHED_AT_ONCE = 20_000
"""How many jobs a search examines before it returns what it has found: twenty round trips."""

WORKERS_PER_QUEUE = 1000


class _Place(msgspec.Struct, array_like=True, frozen=True):
    """Where a search continues.

    queue, cursor  behind this page of a queue; None: at its beginning
    examined       how many jobs the search has examined before
    of             about how many there were to examine in the queues before this one
    """

    queue: str = ""
    cursor: str | None = None
    examined: int = 0
    of: int = 0

    def encoded(self) -> str:
        return urlsafe_b64encode(msgspec.msgpack.encode(self)).decode().rstrip("=")

    @classmethod
    def decoded(cls, text: str) -> _Place:
        try:
            return msgspec.msgpack.decode(urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=cls)
        except (ValueError, msgspec.MsgspecError):
            raise ConfigurationError(
                f"cursor {text[:60]!r}: give the cursor that an earlier search has returned"
            ) from None


class JobSearchInspector(WaitingJobsInspector):
    """Finds jobs; see `Inspector`."""

    @verb
    def jobs(self, queue: str, **wanted: Unpack[Wanted]) -> Operation[Jobs]:
        """The jobs of one queue that match, to list, count and change them; see `Queue.jobs`.

        Two round trips. Raises PenstockError for a queue that was never used.
        """
        opened = yield from self._open_used(queue)
        return opened.jobs(**wanted)

    @verb
    def queue_to_move_to(self, name: str) -> Operation[Queue]:
        """A queue with all its shards, for `Jobs.move`. One round trip."""
        return self._open(name)

    @verb
    def move(self, *ids: str, to: str) -> Operation[list[ActionOutcome]]:
        """Move waiting jobs and dead letters to another queue; see `Jobs.move`. Six round trips for each."""
        outcomes, target = [], (yield from self._open(to))
        for shard, key in [self._split(job_id) for job_id in ids]:
            if shard.name == target.name:
                raise ConfigurationError(f"job {shard.name}:{key} is in queue {to} already")
            found: StoredJob = yield shard.bindings.show(key)
            moved = 0
            if found.record is not None and found.owner is None:
                _, moved = yield from move_jobs(shard, target.shards, [FoundJob(key, b"", found.record, "")])
            outcomes.append(ActionOutcome(f"{shard.name}:{key}", moved > 0, status_of(found)))
        return outcomes

    @verb
    def find_jobs(
        self,
        queue: str | None = None,
        *,
        limit: int = 50,
        cursor: str | None = None,
        most: int = SEARCHED_AT_ONCE,
        **wanted: Unpack[Wanted],
    ) -> Operation[JobPage]:
        """Search one queue, or all of them by name, until about `limit` jobs are found or `most` were examined.

        `cursor` is that of an earlier search for the same. `examined` and `of` are about all these searches together.

        One round trip for each 1000 jobs that are examined; without a queue also one for each 1000 keys of the server,
        and one for each queue that is left, and for each shard. Raises PenstockError for a queue that was never used.
        """
        place = _Place() if cursor is None else _Place.decoded(cursor)
        if queue is None:
            names = yield from queue_names(self._app.settings.prefix)
        else:
            names = [shard.name for shard in (yield from self._open_used(queue)).shards.current.known]
        names = [name for name in sorted(names) if name >= place.queue]
        found: list[JobSummary] = []
        chosen = job_filter(**wanted)
        at, examined, of = place.cursor, place.examined, place.of
        for position, name in enumerate(names):
            while True:
                jobs = Jobs([self._shard(name)], chosen)
                page: JobPage = yield from jobs.page_operation(max(1, limit - len(found)), at)
                found, at, examined = found + page.jobs, page.cursor, examined + page.examined
                later = names[position + 1 :]
                if (at is not None or later) and (len(found) >= limit or examined - place.examined >= most):
                    following = _Place(name, at, examined, of) if at else _Place(later[0], None, examined, of + page.of)
                    left = yield from self._count_jobs(later, wanted.get("state"))
                    return JobPage(found, following.encoded(), examined, max(examined, of + page.of + left))
                if at is None:
                    of += page.of
                    break
        return JobPage(found, None, examined, examined)

    @verb
    def worker(self, name: str, queue: str | None = None, *, limit: int = 50) -> Operation[WorkerDetail]:
        """One worker, and about `limit` of the jobs that it runs, in one queue or in all.

        Some round trips for each queue. Raises PenstockError for a worker that is not there.
        """
        if queue is not None:
            shards = (yield from self._open_used(queue)).shards.current.known
        else:
            shards = tuple(map(self._shard, (yield from queue_names(self._app.settings.prefix))))
        known: list[WorkerInfo] = []
        for one in shards:
            known += yield one.bindings.workers(WORKERS_PER_QUEUE)
        registrations = [worker for worker in known if worker.name == name and name]
        if not registrations:
            raise self._not_found("worker", name, sorted({worker.name for worker in known if worker.name}))
        jobs = Jobs([self._shard(one.queue) for one in registrations], JobFilter(worker=name))
        return WorkerDetail(name, registrations, (yield from jobs.page_operation(limit, None)))

    def _count_jobs(self, names: list[str], state: Status | str | None) -> Operation[int]:
        """How many jobs these queues have, in one state or in all."""
        total = 0
        for name in names:
            counts: Counts = yield self._shard(name).bindings.counts()
            every = counts.waiting + counts.running + counts.dead
            total += every if state is None else int(getattr(counts, str(state), every))
        return total
