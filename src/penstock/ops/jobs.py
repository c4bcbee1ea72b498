"""Questions about jobs by their ids or by a filter, and actions on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeAlias, Unpack

import msgspec

from penstock import codec
from penstock.core.arguments import is_text, shown, utf8_size
from penstock.core.cursors import cursor_text, read_cursor
from penstock.core.ids import mint_id
from penstock.core.operations import Operation, RoundTrip, verb
from penstock.errors import BadCall, CancelTimeout, ConfigurationError, JobNotFound, PenstockError
from penstock.jobs.constants import CALL, UNIQUE
from penstock.jobs.counts import Counts
from penstock.jobs.dead_letters import DeadLetter, dead_letter
from penstock.jobs.editing import requeue_edited
from penstock.jobs.failures import Failures
from penstock.jobs.finished import ENDED_STATES
from penstock.jobs.finished_list import locate_row
from penstock.jobs.job import Job, JobInfo, shown_body
from penstock.jobs.job_list import JobPage, Jobs, JobSummary, Wanted, job_filter
from penstock.jobs.listing import FoundJob
from penstock.jobs.log_lines import JobLines
from penstock.jobs.moving import move_jobs
from penstock.jobs.options import EnqueueOptions, Options, job_start, options_of, value_sections
from penstock.jobs.output import JobOutput
from penstock.jobs.record import Record, StoredJob, pack_sections
from penstock.jobs.running_again import locate_end, read_kept_record
from penstock.jobs.sealed import encode_limit, new_record
from penstock.jobs.shard import Shard
from penstock.jobs.shard_table import whole_name
from penstock.jobs.status import Status, status_of
from penstock.jobs.task import Task
from penstock.jobs.why import Explanation
from penstock.ops.answers import ActionOutcome
from penstock.ops.probe import queue_names
from penstock.ops.questioner import Questioner

Arguments: TypeAlias = Mapping[str, Any] | Sequence[Any]
"""The arguments of a call, by name or by position."""

SEARCHED_AT_ONCE = 20_000
"""How many jobs a search examines before it returns what it has found: twenty round trips."""


MERGED = 100
"""Shards whose ended jobs a search merges by time. An app with more of them has them listed in parts of so many."""


class _SearchPosition(msgspec.Struct, array_like=True, frozen=True):
    """Where a search continues.

    queue, cursor  after the page of the part that begins with this queue, with this cursor; None: at its beginning
    examined       how many jobs the search has examined before
    of             about how many there were to examine in the queues before this one
    """

    queue: str = ""
    cursor: str | None = None
    examined: int = 0
    of: int = 0


class JobQuestioner(Questioner):
    """Asks about jobs in any queue, and acts on them. An action reports for each job whether it was done."""

    def open(self, job_id: str) -> Job[Any]:
        """A handle on one job, as `app.job` returns it. No round trip."""
        return self._app.job(job_id)

    @verb
    def show(self, job_id: str) -> Operation[JobInfo]:
        """Everything that the server knows about a job. One round trip; the body may be large. Raises JobNotFound.

        An id without its queue, such as a log may contain, is searched for in every queue: one round trip for each
        queue and for each 1000 keys of the server.
        """
        if job_id and ":" not in job_id:
            return (yield from self._search(job_id))
        job = self.open(job_id)
        info = yield from self._with_row(job.shard, job.key, (yield from job.info.within()))
        if info.status is Status.UNKNOWN:
            raise JobNotFound(f"no job {job_id}: never enqueued here, or it ended long ago")
        return info

    def _with_row(self, shard: Shard, key: str, info: JobInfo) -> Operation[JobInfo]:
        """Add to `info` what the row of an ended job says. One round trip for each 2000 rows, and one more."""
        if info.enqueued is not None or (located := (yield from locate_row(shard, key))) is None:
            return info
        row, block = located
        kept: Record | None = yield read_kept_record(shard, row, block)
        return replace(
            info,
            status=row.status if info.status is Status.UNKNOWN else info.status,
            body=None if kept is None else shown_body(kept, shard.settings.seal),
            task=row.task,
            tenant=row.tenant,
            priority=row.priority,
            tags=row.tags,
            attempts=row.attempts,
            deliveries=row.deliveries,
            enqueued=row.enqueued,
            started=row.started,
            ended=row.ended,
            worker=row.worker,
            release=row.release,
            reason=info.reason or row.reason,
            failures=info.failures or row.failures,
        )

    @verb
    def full_id(self, job_id: str) -> Operation[str]:
        """The id with its queue. Searches for one without; see `show`. Raises JobNotFound."""
        return (yield from self._search(job_id)).id if job_id and ":" not in job_id else job_id

    def _search(self, key: str) -> Operation[JobInfo]:
        utf8_size("job id", key)
        for name in sorted((yield from queue_names(self._prefix))):
            shard = self._shard(name)
            info = yield from self._with_row(shard, key, (yield from Job[Any](shard, key).info.within()))
            if info.status is not Status.UNKNOWN:
                return info
        raise JobNotFound(f"no job {key} in any queue: never enqueued here, or it finished and its result is gone")

    def output(
        self, job_id: str, *, after: str | None = None, last: int | None = None, wait: float | None = 0.0
    ) -> JobOutput:
        """The chunks of a job, or its `last` ones; see `Job.output`. One that the app cannot open is `Sealed`."""
        job = self.open(job_id)
        return JobOutput(job.shard, job.key, after, wait, last=last, shows_sealed=True)

    def log(
        self, job_id: str, *, after: str | None = None, last: int | None = None, wait: float | None = 0.0
    ) -> JobLines:
        """The lines of a job's log, or its `last` ones; see `Job.log`."""
        job = self.open(job_id)
        return JobLines(job.shard, job.key, after, wait, last=last)

    @verb
    def why(self, job_id: str) -> Operation[Explanation]:
        """Why a job does not run; see `Job.why`."""
        return self.open(job_id).why.within()

    @verb
    def find(
        self,
        queue: str | None = None,
        *,
        limit: int = 50,
        cursor: str | None = None,
        most: int = SEARCHED_AT_ONCE,
        **wanted: Unpack[Wanted],
    ) -> Operation[JobPage]:
        """Search one queue, or all of them, until about `limit` jobs are found or `most` were examined.

        Jobs that have ended come from all queues together, the latest first; others come from one queue after another.
        `cursor` continues an earlier search for the same. `examined` and `of` then count all these searches together.

        One round trip for each 1000 jobs that are examined. Without a queue, also one for each 1000 keys of the server,
        and one for each queue that is left and for each of its shards; two of each for jobs that have ended. Raises
        PenstockError for a queue that was never used.
        """
        begun = _SearchPosition() if cursor is None else read_cursor(cursor, _SearchPosition)
        if begun is None:
            raise ConfigurationError(f"cursor {shown(cursor)}: give the cursor that an earlier search has returned")
        if queue is None:
            names = yield from queue_names(self._prefix)
        else:
            names = [shard.name for shard in (yield from self._open(queue)).shards.current.known]
        found: list[JobSummary] = []
        chosen = job_filter(**wanted)
        left = sorted(one for one in map(_sort_key, names) if one >= _sort_key(begun.queue))
        parts = _parts([name for _, name in left], 1 if chosen.ended is None else MERGED)
        at, examined, of = begun.cursor, begun.examined, begun.of
        for position, part in enumerate(parts):
            while True:
                # If a queue has come meanwhile, the cursor may name one that is in the next part now.
                within = part if at is None or chosen.ended is None else [name for one in parts for name in one]
                jobs = Jobs([self._shard(one) for one in within], chosen)
                page: JobPage = yield from jobs.page_operation(max(1, limit - len(found)), at)
                found, at, examined = found + page.jobs, page.cursor, examined + page.examined
                later = parts[position + 1 :]
                if (at is not None or later) and (len(found) >= limit or examined - begun.examined >= most):
                    following = _SearchPosition(part[0], at, examined, of)
                    if not at:
                        following = _SearchPosition(later[0][0], None, examined, of + page.of)
                    rest = yield from self._count_jobs([one for part in later for one in part], wanted.get("state"))
                    return JobPage(found, cursor_text(following), examined, max(examined, of + page.of + rest))
                if at is None:
                    of += page.of
                    break
        return JobPage(found, None, examined, examined)

    def _count_jobs(self, names: list[str], state: Status | str | None) -> Operation[int]:
        """How many jobs these queues have, in one state or in all."""
        total = 0
        for name in names if str(state) not in ENDED_STATES else ():
            counts: Counts = yield self._shard(name).bindings.counts()
            every = counts.waiting + counts.running + counts.dead
            total += every if state is None else int(getattr(counts, str(state), every))
        return total

    # --- new jobs ---

    @verb
    def enqueue(
        self, task: str, arguments: Arguments, *, queue: str | None = None, **options: Unpack[EnqueueOptions]
    ) -> RoundTrip[Job[Any]] | Operation[Job[Any]]:
        """Enqueue a call of a task of the app, with arguments by name or by position.

        Raises UnknownTask, BadCall for arguments that do not fit, and what `task.enqueue` raises. One round trip.
        """
        definition = self._app.registry.find(task)
        known: Task[..., Any] = Task(definition.function, definition, self._app.queue(queue or definition.queue))
        chosen = known.using(**options)
        if isinstance(arguments, Mapping):
            return chosen.enqueue.within(**arguments)
        return chosen.enqueue.within(*arguments)

    @verb
    def enqueue_unchecked(
        self, task: str, arguments: Arguments, *, queue: str, **options: Unpack[EnqueueOptions]
    ) -> Operation[Job[Any]]:
        """Enqueue a call of a task that this program does not have, as it is: a worker finds out whether it fits.

        The job has no limits and no unique key, because only the code of the task knows them. Raises BadCall for a name
        that a record cannot hold, for arguments by position, and for values that JSON cannot hold. Two round trips.
        """
        if not is_text(task, 1, 255):
            raise BadCall(f"task {shown(task)}: a name has 1 to 255 bytes of UTF-8")
        if not isinstance(arguments, Mapping):
            raise BadCall(f"task {task}: give the arguments by name: only the app knows the order of its parameters")
        chosen = options_of(f"{task}()", options)
        opened = yield from self._open_any(queue)
        settings, what = opened.settings, f"{task}()"
        payload = codec.encode(dict(arguments), limit=encode_limit(settings), what=what, untyped=True)
        sections = value_sections(chosen, in_shards=opened.shards.named is not None)
        flags = CALL | UNIQUE * (chosen.unique is not None)
        start = job_start(settings, chosen, flags, task, powers=sum(sections))
        key, record = chosen.id or mint_id(), new_record(start, pack_sections(sections), payload, settings, what)
        job: Job[Any] = Job(opened.shard_for(chosen.tenant), key, ttl=chosen.result_ttl)
        sent = opened.enqueue_job(key, record, job, chosen)
        return (yield sent) if isinstance(sent, RoundTrip) else (yield from sent)

    @verb
    def run_again(self, job_id: str, arguments: Mapping[str, Any] | None = None) -> Operation[Job[Any]]:
        """Run a job that has ended again, as a new job; see `Queue.run_again`. `arguments`: new ones, by their names.

        With new arguments it raises UnknownTask if the app does not have the job's task, and BadCall if they do not fit
        it. Five round trips or more, and two more with new arguments.
        """
        shard = self.open(job_id).shard
        queue = yield from self._open_any(whole_name(shard.name))
        call = None
        if arguments is not None:
            row, _ = yield from locate_end(shard, shard.key_of(job_id))
            if not row.task:
                raise BadCall(f"job {row.id} is a bare value, which has no arguments: run it again without new ones")
            definition = self._app.registry.find(row.task)
            task: Task[..., Any] = Task(definition.function, definition, queue, Options(tenant=row.tenant))
            call = task.call(**arguments)
        return (yield from queue.run_again.within(job_id, call))

    # --- actions on jobs by their ids ---

    @verb
    def cancel(self, *ids: str, wait: float = 0.0) -> Operation[list[ActionOutcome]]:
        """Cancel jobs. Workers are asked to end those that run; with `wait`, wait up to that many seconds for each.

        Two round trips for each, and some more for each that it waits for.
        """
        outcomes, jobs = [], [*map(self.open, ids)]
        if wait:  # ask all workers before waiting for the first one
            for job in jobs:
                yield job.shard.bindings.cancel([job.key])
        for job in jobs:
            status = yield from job.status.within()
            try:
                done = yield from job.cancel.within(wait)
            except CancelTimeout:
                done = False
            else:
                if wait and not done:  # the job has ended in another way meanwhile
                    status = yield from job.status.within()
            outcomes.append(ActionOutcome(job.id, done, status))
        return outcomes

    @verb
    def promote(self, *ids: str) -> Operation[list[ActionOutcome]]:
        """Make delayed jobs ready now. Two round trips for each."""
        return self._each(ids, lambda job: job.shard.bindings.edit(job.key, due=0.0).then(_is_edited))

    @verb
    def reschedule(self, *ids: str, due: float | datetime) -> Operation[list[ActionOutcome]]:
        """Give waiting jobs another due time: seconds from now, or a date. Two round trips for each."""
        return self._each(ids, lambda job: job.shard.bindings.edit(job.key, due=due).then(_is_edited))

    @verb
    def prioritize(self, *ids: str, priority: int) -> Operation[list[ActionOutcome]]:
        """Give waiting jobs another priority. Two round trips for each."""
        Options(priority=priority)  # checks it
        return self._each(ids, lambda job: job.shard.bindings.edit(job.key, priority=priority).then(_is_edited))

    @verb
    def move(self, *ids: str, to: str) -> Operation[list[ActionOutcome]]:
        """Move waiting jobs and dead letters to another queue; see `Jobs.move`. Six round trips for each."""
        outcomes, target = [], (yield from self._open_any(to))
        for job in [*map(self.open, ids)]:
            if job.shard.name == target.name:
                raise ConfigurationError(f"job {job.id} is in queue {to} already")
            found: StoredJob = yield job.shard.bindings.show(job.key)
            moved = 0
            if found.record is not None and found.owner is None:
                rows = [FoundJob(job.key, b"", found.record, "")]
                _, moved = yield from move_jobs(job.shard, target.shards, rows)
            outcomes.append(ActionOutcome(job.id, moved > 0, status_of(found)))
        return outcomes

    @verb
    def show_dead(self, job_id: str) -> Operation[DeadLetter]:
        """One dead letter. One round trip. Raises PenstockError for a job that is not a dead letter."""
        job = self.open(job_id)
        found = yield job.shard.bindings.show(job.key)
        status = status_of(found)
        if status is not Status.DEAD or found.record is None:
            raise PenstockError(f"job {job_id} is not a dead letter: it is {status}")
        return dead_letter(job.shard, job.key, found.record.since / 1000, found.record, found.failures)

    @verb
    def reasons(self, *ids: str) -> Operation[dict[str, str]]:
        """Why these jobs became dead letters; other jobs are left out. One round trip for each."""
        found: dict[str, str] = {}
        for job in map(self.open, ids):
            stored: StoredJob = yield job.shard.bindings.show(job.key)
            if status_of(stored) is Status.DEAD and stored.failures:
                found[job.id] = Failures.read(stored.failures).reason
        return found

    @verb
    def repair_dead(self, job_id: str, arguments: Mapping[str, Any]) -> Operation[ActionOutcome]:
        """Requeue a dead letter with other arguments, by their names (see `DeadLetters.requeue`).

        Three round trips. Raises UnknownTask if the app lacks the task, BadCall for arguments that do not fit, and
        PenstockError for a job that is not a dead letter. Then nothing changed.
        """
        letter, job = (yield from self.show_dead.within(job_id)), self.open(job_id)
        definition = self._app.registry.find(letter.task)
        task: Task[..., Any] = Task(definition.function, definition, self._app.queue(whole_name(job.shard.name)))
        is_done = yield from requeue_edited(job.shard.bindings, job.key, task.call(**arguments))
        return ActionOutcome(job.id, is_done, status_of((yield job.shard.bindings.show(job.key))))

    @verb
    def requeue_dead(self, *ids: str) -> Operation[list[ActionOutcome]]:
        """Requeue dead letters, with their attempts at zero. Two round trips for each."""
        return self._each(ids, lambda job: job.shard.bindings.requeue([job.key]).then(bool))

    @verb
    def remove_dead(self, *ids: str) -> Operation[list[ActionOutcome]]:
        """Delete dead letters for good. Two round trips for each."""
        return self._each(ids, lambda job: job.shard.bindings.remove_dead([job.key]).then(bool))

    def _each(self, ids: Iterable[str], act: Callable[[Job[Any]], RoundTrip[bool]]) -> Operation[list[ActionOutcome]]:
        outcomes = []
        for job in [*map(self.open, ids)]:
            status = yield from job.status.within()
            outcomes.append(ActionOutcome(job.id, (yield act(job)), status))
        return outcomes


def _sort_key(name: str) -> tuple[str, str]:
    """What shards are sorted by: those of a queue are side by side."""
    return whole_name(name), name


def _parts(names: list[str], most: int) -> list[list[str]]:
    """These names of shards in parts of up to `most`. The shards of a queue stay together if their jobs are merged."""
    parts: list[list[str]] = []
    for name in names:
        is_next = bool(parts) and most > 1 and whole_name(parts[-1][-1]) == whole_name(name)
        if parts and (is_next or len(parts[-1]) < most):
            parts[-1].append(name)
        else:
            parts.append([name])
    return parts


def _is_edited(word: str) -> bool:
    return word == "edited"
