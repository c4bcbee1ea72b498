"""The jobs of a queue that match a filter: pages of them, their number, and changes of all of them.

page ──▶ cursor ──▶ page …        each is one round trip, which examines at most 1000 jobs
  └──▶ change, 100 at a time      skips jobs that have changed since the page was made
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias, TypedDict

import msgspec

from penstock.core.arguments import check_callback, check_number, check_whole, is_text, shown, utf8_size
from penstock.core.cursors import cursor_text, read_cursor, refused_cursor
from penstock.core.operations import Driver, Operation, RoundTrip, Sleep, verb
from penstock.errors import ConfigurationError
from penstock.jobs.counts import Counts, TenantCounts
from penstock.jobs.finished import ENDED, ENDED_STATES, OUTCOMES, FinishedJob
from penstock.jobs.finished_list import EXAMINED, FinishedFilter, finished_page
from penstock.jobs.listing import FoundJob, FoundJobs, JobFilter, ListingBindings
from penstock.jobs.moving import TargetQueue, move_jobs
from penstock.jobs.record import Seen, claimed_at
from penstock.jobs.shard import Shard
from penstock.jobs.status import STATES, Status
from penstock.jobs.tags import TAG_RULE, is_tag

CHANGED_TOGETHER: Final = 100
"""Jobs that one round trip changes."""

PER_SECOND: Final = 1000
"""Jobs that a bulk action changes in a second, by default. Other work continues meanwhile."""

_LONGEST_TEXT: Final = 200

_LONGEST_AGE: Final = 10 * 365 * 86400.0

Change: TypeAlias = Literal["cancel", "remove", "requeue"]


@dataclass(frozen=True, slots=True)
class JobSummary:
    """One job in a list. Times are seconds since 1970 by the server's clock.

    task        "" for a bare value
    since       when it became ready, is due, died, or was claimed (of a running job)
    attempts    runs that failed
    deliveries  how often it was handed to a worker
    worker      of a running job: `host:pid`; "" for a program without a worker

    Of a job that has ended, `since` and `ended` say when; `worker`, `release` and `started` are of its last run. A
    purge is one row without an id: `jobs` says how many it cancelled.
    """

    id: str
    status: Status
    task: str
    tenant: str
    priority: int
    enqueued: float
    since: float
    attempts: int
    deliveries: int
    worker: str = ""
    tags: tuple[str, ...] = ()
    started: float | None = None
    ended: float | None = None
    release: str = ""
    reason: str = ""
    jobs: int = 1


@dataclass(frozen=True, slots=True)
class JobPage:
    """Some jobs that match a filter.

    jobs      about as many as the `limit`; fewer, or none, if few of those that were examined match
    cursor    where the next page continues; None: this is the last one
    examined  how many jobs this page has examined
    of        about how many there are to examine, over all pages
    """

    jobs: list[JobSummary]
    cursor: str | None
    examined: int
    of: int


@dataclass(frozen=True, slots=True)
class BulkProgress:
    """The progress of a count or a bulk action.

    examined  how many jobs it has examined, of about `of`
    found     how many of them match
    done      how many of these it has changed; the others had changed by themselves, or are in another state
    """

    examined: int = 0
    of: int = 0
    found: int = 0
    done: int = 0


class Wanted(TypedDict, total=False):
    """The conditions for the jobs; see `Queue.jobs`."""

    state: Status | str | None
    task: str | None
    tenant: str | None
    worker: str | None
    id_prefix: str
    older_than: float
    tag: str | None
    text: str
    since: float | None
    longer_than: float


def job_filter(
    state: Status | str | None = None,
    task: str | None = None,
    tenant: str | None = None,
    worker: str | None = None,
    id_prefix: str = "",
    older_than: float = 0.0,
    tag: str | None = None,
    text: str = "",
    since: float | None = None,
    longer_than: float = 0.0,
) -> JobFilter:
    """Raises ConfigurationError, a ValueError, for an unknown state, and for conditions that contradict each other."""
    known = {str(status): status for status in STATES.values()} | {"running": Status.RUNNING}
    has_ended = str(state) in ENDED_STATES
    if state is not None and str(state) not in known and not has_ended:
        raise ConfigurationError(f"jobs(state={str(state)!r}): one of {', '.join((*known, *ENDED_STATES))}")
    if not has_ended and (since is not None or longer_than != 0):
        raise ConfigurationError(
            f"jobs(since=…, longer_than=…) choose among jobs that have ended: state={ENDED!r}, or one of "
            f"{', '.join(OUTCOMES.values())}"
        )
    if worker is not None and state not in (None, "running") and not has_ended:
        raise ConfigurationError(f"jobs(worker={worker!r}, state={str(state)!r}): only a running job has a worker")
    texts = {
        "task": task or "",
        "tenant": tenant or "",
        "worker": worker or "",
        "id_prefix": id_prefix,
    }
    for name, value in texts.items():
        if not isinstance(value, str):
            raise ConfigurationError(f"jobs({name}={shown(value)}): a text, or None for any")
        utf8_size(f"jobs: {name}", value)
    check_number("jobs", "older_than", older_than, 0, _LONGEST_AGE, "seconds from 0")
    if tag is not None and not is_tag(tag):
        raise ConfigurationError(f"jobs(tag={shown(tag)}): {TAG_RULE}")
    if not is_text(text, 0, _LONGEST_TEXT):
        raise ConfigurationError(f"jobs(text={shown(text)}): a text of at most {_LONGEST_TEXT} characters")
    if not has_ended:
        stored = msgspec.json.encode(text).decode()[1:-1]
        status = None if state is None else known[str(state)]
        return JobFilter(status, task, tenant, worker, id_prefix, older_than, tag, stored)
    if text:
        raise ConfigurationError("jobs(text=…): for jobs that have not ended; of the others, no arguments are kept")
    if older_than:
        raise ConfigurationError("jobs(older_than=…): for jobs that have not ended; use since= or longer_than=")
    if since is not None:
        check_number("jobs", "since", since, 0, _LONGEST_AGE, "seconds from 0")
    check_number("jobs", "longer_than", longer_than, 0, _LONGEST_AGE, "seconds from 0")
    ended = FinishedFilter(str(state), task, tenant, worker, id_prefix, tag, since, longer_than)
    return JobFilter(None, task, tenant, worker, id_prefix, 0.0, tag, ended=ended)


class Cursor(msgspec.Struct, array_like=True, frozen=True):
    """Where a page continues.

    sources  those that are left: for each the name of a shard, and one of the sources in `listing.lua`
    begun    the position in the first of them; empty: at its beginning
    of       about how many jobs all sources have; None: as the server's reply says
    """

    sources: list[tuple[str, str]]
    begun: bytes = b""
    of: int | None = None


def _summary(queue: str, row: FoundJob) -> JobSummary:
    is_running = bool(row.owner)
    values = Seen(row.record, is_running).values(JobSummary)
    if claimed := claimed_at(row.owner):
        values["since"] = claimed
    status = Status.RUNNING if is_running else STATES.get(row.record.state, Status.UNKNOWN)
    return JobSummary(id=f"{queue}:{row.key}", status=status, worker=row.worker, **values)


def _ended(row: FinishedJob) -> JobSummary:
    return JobSummary(
        row.id, row.status, row.task, row.tenant, row.priority, row.enqueued, row.ended, row.attempts, row.deliveries,
        row.worker, row.tags, row.started, row.ended, row.release, row.reason, row.jobs,
    )  # fmt: skip


OnProgress: TypeAlias = Callable[[BulkProgress], object]


_Act: TypeAlias = Callable[[Shard, Sequence[FoundJob]], Operation[tuple[int, int]]]
"""Changes jobs of a shard. Returns how many it reached, and how many of these it changed."""


class Jobs:
    """The jobs of one queue that match a filter, as `queue.jobs(…)` returns them.

    Jobs in one state are listed in an order where the queue has one: ready ones of one tenant as they will be claimed,
    delayed ones as they are due, dead ones from the latest on. All others come in no order. A job that stays in its
    state while the pages are read is found at least once.
    """

    __slots__ = ("_any", "_shards", "filter")

    def __init__(self, shards: Sequence[Shard], wanted: JobFilter) -> None:
        """`shards`: those that are searched."""
        self._any = shards[0]
        self._shards = {shard.name: shard for shard in shards}
        self.filter = wanted

    @property
    def _driver(self) -> Driver:
        return self._any._driver

    @verb
    def page(self, limit: int = 50, cursor: str | None = None) -> Operation[JobPage]:
        """Some of the jobs. A page examines about 1000 jobs at most, so it may be empty although there are others.

        limit   about how many jobs to return, up to 1000
        cursor  of the page before, made with the same filter; None: the first page

        One round trip. The first page takes one more for each 1000 workers with `worker`, and for each shard.
        """
        check_whole("page", "limit", limit, 1, 1000, "from 1 to 1000")
        return self.page_operation(limit, cursor)

    def page_operation(self, limit: int, cursor: str | None) -> Operation[JobPage]:
        if self.filter.ended is not None:
            page = yield from finished_page([*self._shards.values()], self.filter.ended, limit, cursor)
            return JobPage([*map(_ended, page.rows)], page.cursor, page.examined, page.examined)
        at = None
        if cursor is not None and (at := read_cursor(cursor, Cursor)) is None:
            raise refused_cursor(cursor)
        shard, found, following = yield from self.next_rows(limit, at)
        jobs = [_summary(shard.name, row) for row in found.rows]
        return JobPage(jobs, None if following is None else cursor_text(following), found.examined, found.of)

    @verb
    def count(self, *, on_progress: OnProgress | None = None) -> Operation[int]:
        """How many jobs match. One round trip for each 1000 jobs that are examined.

        on_progress: called with a BulkProgress after each of them
        """
        check_callback("count", "on_progress", on_progress)
        return self._count(on_progress)

    def _count(self, on_progress: OnProgress | None) -> Operation[int]:
        if self.filter.ended is not None:
            return (yield from self._count_ended(self.filter.ended, on_progress))
        progress, at, is_first = BulkProgress(), None, True
        while is_first or at is not None:
            _, found, at = yield from self.next_rows(0, at)
            progress, is_first = further(progress, found), False
            if on_progress is not None:
                on_progress(progress)
        return progress.found

    def _count_ended(self, wanted: FinishedFilter, on_progress: OnProgress | None) -> Operation[int]:
        number, cursor, is_first = 0, None, True
        while is_first or cursor is not None:
            page = yield from finished_page([*self._shards.values()], wanted, EXAMINED, cursor)
            number, cursor, is_first = number + sum(row.jobs for row in page.rows), page.cursor, False
            if on_progress is not None:
                on_progress(BulkProgress(page.examined, page.examined, number))
        return number

    @verb
    def cancel(
        self, *, per_second: float | None = PER_SECOND, on_progress: OnProgress | None = None
    ) -> Operation[BulkProgress]:
        """Cancel those that wait, and ask the workers of those that run to end them. Dead letters stay.

        per_second   how many to cancel in a second; None: as many as possible
        on_progress  called with a BulkProgress after each round trip

        A job that has changed since it was found, for example because a worker has claimed it, is skipped. One round
        trip for each 1000 jobs that are examined, and one for each 100 that match.
        """
        return self._change("cancel", per_second, on_progress)

    @verb
    def requeue(
        self, *, per_second: float | None = PER_SECOND, on_progress: OnProgress | None = None
    ) -> Operation[BulkProgress]:
        """Run the dead letters among them again, with their attempts at zero. Arguments and cost as of `cancel`."""
        return self._change("requeue", per_second, on_progress)

    @verb
    def move(
        self, to: TargetQueue, *, per_second: float | None = PER_SECOND, on_progress: OnProgress | None = None
    ) -> Operation[BulkProgress]:
        """Move those that wait, and the dead letters among them, to another queue, where they have the same key.

        A dead letter is ready there, with its attempts at zero; the others keep due time, priority and attempts. The
        handle of a moved job reports it as cancelled: `app.job("other:" + job.key)` is the new one. Jobs with a unique
        key or limits, which belong to their queue, stay; so do sleeping ones, whose steps belong to it, and jobs whose
        id the other queue has.

        If the program dies meanwhile, up to 100 jobs are in both queues, and the old ones run after a minute. Three
        round trips for each 100 that match; other arguments and cost as of `cancel`. Raises ConfigurationError for the
        same queue.
        """
        if to.name in self._shards:
            raise ConfigurationError(f"the jobs are in queue {to.name} already: name another one to move them to")
        return self._checked("move", lambda shard, rows: move_jobs(shard, to.shards, rows), per_second, on_progress)

    @verb
    def remove(
        self, *, per_second: float | None = PER_SECOND, on_progress: OnProgress | None = None
    ) -> Operation[BulkProgress]:
        """Delete the dead letters among them. Arguments and cost as of `cancel`."""
        return self._change("remove", per_second, on_progress)

    def _change(
        self, change: Change, per_second: float | None, on_progress: OnProgress | None
    ) -> Operation[BulkProgress]:
        def act(shard: Shard, rows: Sequence[FoundJob]) -> Operation[tuple[int, int]]:
            changed: tuple[int, int] = yield ListingBindings(shard.bindings).change(change, rows)
            return changed

        return self._checked(change, act, per_second, on_progress)

    def _checked(
        self, change: str, act: _Act, per_second: float | None, on_progress: OnProgress | None
    ) -> Operation[BulkProgress]:
        if per_second is not None:
            check_number(change, "per_second", per_second, 0.1, 1e6, "from 0.1 to 1,000,000 jobs, or None")
        check_callback(change, "on_progress", on_progress)
        if self.filter.ended is not None:
            raise ConfigurationError(f"{change}: jobs that have ended do not change; name a state in which jobs wait")
        return self._change_all(act, per_second, on_progress)

    def _change_all(
        self, act: _Act, per_second: float | None, on_progress: OnProgress | None
    ) -> Operation[BulkProgress]:
        progress, at, is_first = BulkProgress(), None, True
        while is_first or at is not None:
            shard, found, at = yield from self.next_rows(CHANGED_TOGETHER, at)
            progress, is_first, rows = further(progress, found), False, found.rows
            while rows:
                started = time.monotonic()
                some = rows if per_second is None else rows[: max(1, math.ceil(per_second))]
                reached, done = yield from act(shard, some[:CHANGED_TOGETHER])
                progress, rows = replace(progress, done=progress.done + done), rows[reached:]
                if on_progress is not None:
                    on_progress(progress)
                if per_second is not None and done:
                    yield Sleep(max(0.0, done / per_second - (time.monotonic() - started)))
            if on_progress is not None and not found.rows:
                on_progress(progress)
        return progress

    def next_rows(self, limit: int, at: Cursor | None) -> Operation[tuple[Shard, FoundJobs, Cursor | None]]:
        """One page: the shard that it has read, the jobs, and where the next one continues."""
        at = at or (yield from self._first())
        if not at.sources:
            return self._any, FoundJobs(b"", 0, 0, 0, []), None
        (name, source), *others = at.sources
        if (shard := self._shards.get(name)) is None:
            raise ValueError(f"page(cursor=…): it is one of queue {name}, and not of {self._any.name}")
        wanted = replace(self.filter, id_prefix=shard.key_of(self.filter.id_prefix))
        found: FoundJobs = yield ListingBindings(shard.bindings).page(source, at.begun, limit, wanted)
        if at.of is not None:
            found = msgspec.structs.replace(found, of=at.of)
        if found.following:
            return shard, found, Cursor(at.sources, found.following, at.of)
        return shard, found, Cursor(others, b"", at.of) if others else None

    def _first(self) -> Operation[Cursor]:
        """The sources of all jobs that may match. Several of them are counted before they are read."""
        wanted, sources = self.filter, []
        if wanted.worker is not None:
            of, cursor = 0, "0"
            for name, shard in self._shards.items():
                while True:
                    cursor, found = yield ListingBindings(shard.bindings).incarnations(wanted.worker, cursor)
                    sources += [(name, f"held:{incarnation.decode()}") for incarnation, _ in found]
                    of += sum(held for _, held in found)
                    if cursor == "0":
                        break
            return Cursor(sources, b"", of)
        names = ["owners" if wanted.state is Status.RUNNING else "records"]
        if wanted.state is Status.READY and wanted.tenant is not None:
            names = ["lane", "suspects"]
        elif wanted.state in (Status.DELAYED, Status.SLEEPING):
            names = ["delayed"]
        elif wanted.state is Status.DEAD:
            names = ["dead"]
        sources = [(shard, name) for shard in self._shards for name in names]
        if len(sources) == 1:
            return Cursor(sources)
        of = 0
        for one in self._shards.values():
            of += yield self._count_jobs(one)
        return Cursor(sources, b"", of)

    def _count_jobs(self, shard: Shard) -> RoundTrip[int]:
        """About how many jobs there are to examine."""
        tenant, state = self.filter.tenant, self.filter.state

        def count(counts: Counts | TenantCounts) -> int:
            if state is None or state is Status.PARKED or (tenant is None and state is Status.READY):
                return counts.waiting + counts.running + counts.dead
            return counts.dependent if state is Status.WAITING else int(getattr(counts, str(state)))

        return shard.counts_of(tenant).then(count)


def further(progress: BulkProgress, found: FoundJobs) -> BulkProgress:
    """The progress after another page. An action may change how many jobs there are, so the first number stays.

    A walk without an order meets some jobs again when a change makes the server's table smaller.
    """
    examined = progress.examined + found.examined
    of = max(progress.of or found.of, examined)
    return BulkProgress(examined, of, progress.found + found.matching, progress.done)
