"""The only questions that the command line, the dashboard and tests ask, and what an operator may do.

What a queue, a job or a directory can tell or do by itself is asked there; here stands what needs more than one of
them, or the server. All answers are frozen dataclasses.
"""

from __future__ import annotations

import contextlib
import difflib
import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from penstock.app import Penstock
from penstock.completion.directory import Directory
from penstock.core.operations import Driver, Operation, RoundTrip, verb
from penstock.errors import ChannelError, ChatGone, JobNotFound, PenstockError
from penstock.files.bindings import ChannelInfo
from penstock.files.channel import Channel
from penstock.jobs.bindings import SLICE
from penstock.jobs.counts import Counts, TenantCounts, WorkerInfo
from penstock.jobs.job import Failure, JobInfo, Status, info_of, status_of
from penstock.jobs.queue import CHUNK, DeadLetter, Queue
from penstock.locks.answers import LockInfo
from penstock.messages.chat import ChatInfo, Member
from penstock.messages.keys import LogKeys
from penstock.ops.doctor import Finding, diagnose, prove_locks
from penstock.ops.inventory import Inventory, inventory
from penstock.ops.probe import Facts, facts, instances, lock_names, now, primaries, queue_names

LOOKED = 200
"""Delayed jobs that are looked at, those due first, for some that no worker knows."""

TENANTS = 10_000
"""Tenants that are looked at for those with the most jobs: ten round trips."""

TENANTS_AT_ONCE = 1000

WORKERS = 1000


@dataclass(frozen=True, slots=True)
class QueueView:
    """A queue and its counts."""

    name: str
    counts: Counts


@dataclass(frozen=True, slots=True)
class TenantView:
    """A tenant of a queue; of its counts those by state, not its age and weight."""

    name: str
    counts: TenantCounts


@dataclass(frozen=True, slots=True)
class Stranger:
    """A job that a worker handed back because it does not know its task."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class QueueDetail:
    """All there is to say about a queue. Times are seconds."""

    name: str
    counts: Counts
    due_in: float | None
    """Until the next delayed job; None: there is none."""

    tenants: int
    """How many have jobs."""

    largest: list[TenantView]
    """Those with the most waiting jobs, of the first `tenants_looked`."""

    tenants_looked: int
    strangers: list[Stranger]
    """Among the first `jobs_looked` delayed ones."""

    jobs_looked: int


@dataclass(frozen=True, slots=True)
class ChatView:
    """A chat, and who is furthest behind in it."""

    chat: ChatInfo
    last_reader: Member | None


@dataclass(frozen=True, slots=True)
class DirectoryView:
    """A directory, and how many names it has."""

    name: str
    names: int


@dataclass(frozen=True, slots=True)
class Letters:
    """A page of the `total` dead letters of a queue, from the latest but `offset`."""

    total: int
    offset: int
    letters: list[DeadLetter]


@dataclass(frozen=True, slots=True)
class Buried:
    """The dead letters of a queue at one time: who acts on all of them acts on these and no others."""

    count: int
    """At least as many as died until `till`."""

    till: int
    """Milliseconds since 1970 by the server's clock."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one job that an operator meant. `status`: before; where it was not `done`, this is why."""

    id: str
    done: bool
    status: Status


class Inspector:
    """Looks into an app's server. Cheap to make; nothing is sent before the first verb."""

    def __init__(self, app: Penstock) -> None:
        self._app = app

    @property
    def _driver(self) -> Driver:
        return self._app._driver

    @property
    def place(self) -> str:
        """Which server, without its password, and which app on it."""
        return f"{self._app._driver.connector.address}, prefix {self._app.settings.prefix!r}"

    # --- locks ---

    @verb
    def locks(self) -> Operation[list[LockInfo]]:
        """The locks of this server that somebody holds or waits for, by name; also those of other apps.

        One that only other libraries ever took is not among them. A round trip for each 1000 keys of the server, and
        one for each lock that was held within the hour: nothing for a path that serves work.
        """
        found = []
        for name in (yield from lock_names()):
            info = yield self._app.lock(name, lease=1).current_info()
            if info.holder is not None or info.waiting:
                found.append(info)
        return found

    # --- queues ---

    @verb
    def queues(self) -> Operation[list[QueueView]]:
        """Every queue that was ever used, by name.

        A round trip for each 1000 keys of the server, whoever's they are, and one for each queue: nothing for a path
        that serves work (docs/decisions/0010).
        """
        views = []
        for name in (yield from queue_names(self._app.settings.prefix)):
            views.append(QueueView(name, (yield self._app.queue(name).bindings.counts())))
        return views

    @verb
    def queue(self, name: str, *, tenants: int = 10) -> Operation[QueueDetail]:
        """One queue: counts, its `tenants` largest tenants, and jobs that no worker knows.

        A few round trips, at most one for each 1000 of the first 10,000 tenants. Raises PenstockError for a queue that
        was never used.
        """
        queue = self._app.queue(name)
        survey = yield queue.bindings.overview(LOOKED)
        if not survey.used:
            yield from self._no_such_queue(name)
        counts = yield queue.bindings.counts()
        looked, largest = yield from self._largest(queue, tenants)
        strangers = [Stranger(f"{name}:{key}", Failure.read(why).reason) for key, why in survey.unknown_tasks.items()]
        return QueueDetail(
            name, counts, survey.due_in, max(survey.tenants, looked), largest, looked, strangers, survey.scanned
        )

    def _largest(self, queue: Queue, n: int) -> Operation[tuple[int, list[TenantView]]]:
        seen: dict[str, TenantCounts] = {}
        cursor = "0"
        while True:
            cursor, some = yield queue.bindings.scan_tenants(cursor, TENANTS_AT_ONCE)
            seen |= some
            if cursor == "0" or len(seen) >= TENANTS:
                break
        largest = heapq.nlargest(n, seen.items(), key=lambda pair: (pair[1].waiting, pair[1].running, pair[1].dead))
        return len(seen), [TenantView(*pair) for pair in largest]

    def _no_such_queue(self, name: str) -> Operation[None]:
        raise self._none_of("queue", name, (yield from queue_names(self._app.settings.prefix)))

    def _none_of(self, kind: str, name: str, known: Sequence[str]) -> PenstockError:
        near = difflib.get_close_matches(name, known, 3) or known[:5]
        there = f"; there is {', '.join(near)}{', …' if len(near) < len(known) else ''}" if known else ""
        return PenstockError(f"no {kind} {name!r} with prefix {self._app.settings.prefix!r} on this server{there}")

    @verb
    def pause(self, name: str, on: bool = True) -> Operation[Counts]:
        """Pause a queue, or resume it, and say what it holds. Raises PenstockError for one that was never used."""
        queue = self._app.queue(name)
        yield from self._used(queue)
        yield queue.bindings.set_switch("paused", on)
        counts: Counts = yield queue.bindings.counts()
        return counts

    @verb
    def waiting(self, name: str, tenant: str | None = None) -> Operation[int]:
        """How many jobs a purge would cancel. Raises PenstockError for a queue that was never used."""
        queue = self._app.queue(name)
        yield from self._used(queue)
        return (yield from self._waiting(queue, tenant))

    def _waiting(self, queue: Queue, tenant: str | None) -> Operation[int]:
        step = queue.bindings.counts() if tenant is None else queue.bindings.tenant_counts(tenant)
        return int((yield step).waiting)

    @verb
    def purge(self, name: str, tenant: str | None = None, *, most: int | None = None) -> Operation[int]:
        """Cancel what waits in a queue, or of one tenant, at most so many jobs: those that `waiting` counted.

        Returns how many. A round trip for each 250.
        """
        queue, total = self._app.queue(name), 0
        if most is None:
            most = yield from self._waiting(queue, tenant)
        lists: tuple[Literal["delayed", "suspects"], ...] = ("delayed", "suspects")
        for list_ in lists:
            offset, finished = 0, False
            while total < most and not finished:
                slice_ = min(SLICE, most - total)
                cancelled, offset, finished = yield queue.bindings.purge(tenant, offset, slice_, list_)
                total += cancelled
        return total

    def _used(self, queue: Queue) -> Operation[None]:
        if not (yield queue.bindings.overview(1)).used:
            yield from self._no_such_queue(queue.name)

    # --- chats ---

    @verb
    def chats(self) -> Operation[list[ChatView]]:
        """Every chat, by id. A round trip for each 1000 keys of the server, and two for each chat."""
        views = []
        for name in (yield from instances(self._app.settings.prefix, "chat", "state")):
            chat = self._app.chats.get(LogKeys.read(f"chat:{name}")[1])
            with contextlib.suppress(ChatGone):
                info = yield chat.read_info()
                readers = yield chat.read_members(1)
                views.append(ChatView(info, readers[0] if readers else None))
        return views

    # --- channels of files ---

    @verb
    def channels(self) -> Operation[list[ChannelInfo]]:
        """Every channel of files, by name. A round trip for each 1000 keys of the server, and one for each channel."""
        found = []
        for name in (yield from self._channel_names()):
            with contextlib.suppress(ChannelError):
                found.append((yield self.files(name).log.info()))
        return found

    @verb
    def channel(self, name: str) -> Operation[ChannelInfo]:
        """One channel: what it holds, and how far each receiver is. Raises PenstockError where there is none."""
        try:
            info: ChannelInfo = yield self.files(name).log.info()
        except ChannelError:
            raise self._none_of("channel", name, (yield from self._channel_names())) from None
        return info

    @verb
    def channel_names(self) -> Operation[list[str]]:
        """The names of all channels of files. A round trip for each 1000 keys of the server."""
        return self._channel_names()

    def files(self, name: str) -> Channel:
        """One channel, to send and to receive; as `app.files`. No round trip."""
        return self._app.files(name)

    def _channel_names(self) -> Operation[list[str]]:
        names = yield from instances(self._app.settings.prefix, "files", "state")
        return sorted(LogKeys.read(f"files:{name}")[1] for name in names)

    # --- directories ---

    @verb
    def directories(self) -> Operation[list[DirectoryView]]:
        """Every directory, by name.

        A round trip for each 1000 keys of the server, and two for each directory and one for each further shard of it.
        """
        views = []
        for name in (yield from instances(self._app.settings.prefix, "directory")):
            views.append(DirectoryView(name, (yield from self.directory(name).count_operation())))
        return views

    def directory(
        self, name: str, *, accents: bool | None = None, words: bool | None = None, shards: int | None = None
    ) -> Directory:
        """One directory, to look names up and to change them; as `app.directory`. No round trip."""
        return self._app.directory(name, accents=accents, words=words, shards=shards)

    # --- workers ---

    @verb
    def workers(self, queue: str | None = None) -> Operation[list[WorkerInfo]]:
        """Who works in a queue, or in all of them (then also the cost of `queues`); at most 1000 a queue.

        Raises PenstockError for a queue that was never used.
        """
        if queue is not None:
            yield from self._used(self._app.queue(queue))
        workers: list[WorkerInfo] = []
        for name in [queue] if queue else (yield from queue_names(self._app.settings.prefix)):
            workers += yield self._app.queue(name).bindings.workers(WORKERS)
        return workers

    # --- jobs ---

    @verb
    def job(self, job_id: str) -> Operation[JobInfo]:
        """Everything the server knows of a job. Raises JobNotFound. One round trip; the body may be large."""
        queue, key = self._found(job_id)
        info: JobInfo = yield queue.bindings.show(key).then(lambda found: info_of(job_id, found))
        if info.status is Status.UNKNOWN:
            raise JobNotFound(f"no job {job_id}: never enqueued here, or it finished and its result is gone")
        return info

    @verb
    def cancel(self, *ids: str) -> Operation[list[Outcome]]:
        """Take jobs that wait out of their queues; running ones go on. A round trip or two for each."""
        return self._each(ids, lambda queue, key: queue.bindings.cancel([key]).then(lambda w: w == ["cancelled"]))

    # --- dead letters ---

    @verb
    def dead(self, name: str) -> Operation[Buried]:
        """How many dead letters a queue has now. Raises PenstockError for a queue that was never used."""
        queue = self._app.queue(name)
        yield from self._used(queue)
        till, _ = yield queue.bindings.dead_until(0, 0)  # first: what dies after it may be counted, and stays
        return Buried(int((yield queue.bindings.counts()).dead), till)

    @verb
    def letters(self, name: str, limit: int = 50, offset: int = 0) -> Operation[Letters]:
        """A page of a queue's dead letters, latest first. Raises PenstockError for a queue that was never used."""
        queue = self._app.queue(name)
        yield from self._used(queue)
        counts = yield queue.bindings.counts()
        return Letters(counts.dead, offset, (yield from queue.dead.page(limit, offset)))

    @verb
    def letter(self, job_id: str) -> Operation[DeadLetter]:
        """One dead letter. Raises PenstockError for a job that is none. One round trip."""
        queue, key = self._found(job_id)
        found = yield queue.bindings.show(key)
        status = status_of(found)
        if status is not Status.DEAD or found.record is None:
            raise PenstockError(f"job {job_id} is no dead letter: it is {status}")
        return queue.dead.letter(key, found.record.since / 1000, found.record, found.failure)

    @verb
    def requeue(self, *ids: str) -> Operation[list[Outcome]]:
        """Run dead letters again, attempts at zero. A round trip or two for each."""
        return self._each(ids, lambda queue, key: queue.bindings.requeue([key]).then(bool))

    @verb
    def remove(self, *ids: str) -> Operation[list[Outcome]]:
        """Delete dead letters for good. A round trip or two for each."""
        return self._each(ids, lambda queue, key: queue.bindings.remove_dead([key]).then(bool))

    @verb
    def requeue_all(self, name: str, till: int = 0) -> Operation[int]:
        """Run all dead letters of a queue again that died until `till` (0: now). Returns how many. Two round trips a
        500."""
        return self._all(name, till, lambda queue, keys: queue.bindings.requeue(keys))

    @verb
    def remove_all(self, name: str, till: int = 0) -> Operation[int]:
        """Delete all dead letters of a queue that died until `till` (0: now). Returns how many. Two round trips a
        500."""
        return self._all(name, till, lambda queue, keys: queue.bindings.remove_dead(keys))

    def _all(self, name: str, till: int, act: Callable[[Queue, Sequence[bytes]], RoundTrip[int]]) -> Operation[int]:
        queue = self._app.queue(name)
        yield from self._used(queue)
        total = 0
        before: list[bytes] = []
        while True:
            till, keys = yield queue.bindings.dead_until(till, CHUNK)
            if not keys or keys == before:  # nothing is left, or what is left does not go
                return total
            total += yield act(queue, keys)
            before = keys

    def _found(self, job_id: str) -> tuple[Queue, str]:
        job = self._app.job(job_id)
        return self._app.queue(job_id.partition(":")[0]), job.key

    def _each(self, ids: Iterable[str], act: Callable[[Queue, str], RoundTrip[bool]]) -> Operation[list[Outcome]]:
        outcomes = []
        for queue, key in [self._found(job_id) for job_id in ids]:
            status = status_of((yield queue.bindings.show(key)))
            outcomes.append(Outcome(f"{queue.name}:{key}", (yield act(queue, key)), status))
        return outcomes

    # --- the server ---

    @verb
    def now(self) -> Operation[float]:
        """Seconds since 1970 by the server's clock, which all times here are of. One round trip."""
        nodes = yield from primaries()
        return (yield from now(nodes[0]))

    @verb
    def servers(self) -> Operation[list[Facts]]:
        """What each server that holds keys says of itself. Two round trips a server."""
        said = []
        for node in (yield from primaries()):
            said.append((yield from facts(node)))
        return said

    @verb
    def inventory(self, most: int | None = None) -> Operation[Inventory]:
        """Whether every key of the app may be there (see `inventory.py`). Only reads."""
        return inventory(self._app.settings.prefix, most)

    @verb
    def doctor(self, topic: str | None = None) -> Operation[list[Finding]]:
        """What is well with the server and what is not, about one topic or all of them (see `doctor.py`)."""
        return diagnose(self._app, topic)

    def prove_locks(self, seconds: float = 3.0) -> list[Finding]:
        """Whether locks exclude and semaphores keep their limit on this server, tried for so long. Blocks."""
        return prove_locks(self._app, seconds)
