"""The answers of the inspector, which the command line prints."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from penstock.jobs.counts import Counts, Outgoing, TenantCounts, WorkerInfo
from penstock.jobs.dead_letters import DeadLetter
from penstock.jobs.job_list import JobPage
from penstock.jobs.limits import LimitInfo
from penstock.jobs.pauses import PausedScope
from penstock.jobs.retention import Retention
from penstock.jobs.status import Status
from penstock.locks.answers import Owner
from penstock.messages.chat import ChatInfo, Member
from penstock.messages.mailbox import MailboxInfo


@dataclass(frozen=True, slots=True)
class QueueView:
    """A queue and its counts."""

    name: str
    counts: Counts


@dataclass(frozen=True, slots=True)
class TenantView:
    """A tenant of a queue, and its jobs by state."""

    name: str
    counts: TenantCounts


@dataclass(frozen=True, slots=True)
class QueueRates:
    """A queue and the rates among its limits."""

    queue: str
    rates: list[LimitInfo]


@dataclass(frozen=True, slots=True)
class UnknownTaskJob:
    """A job that a worker handed back because it does not know the job's task."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class QueueDetail:
    """Everything about one queue. Times are seconds."""

    name: str
    counts: Counts
    due_in: float | None
    """Time until the next delayed job is due; None: no job is delayed."""

    tenants: int
    """How many tenants have jobs."""

    largest: list[TenantView]
    """The tenants with the most waiting jobs, among the first `tenants_examined`."""

    tenants_examined: int
    unknown_task_jobs: list[UnknownTaskJob]
    """Those found among the `jobs_examined` delayed jobs that are due first."""

    jobs_examined: int
    """How many delayed jobs were searched for such jobs, in all shards together."""

    pauses: list[PausedScope]
    """The tasks and tenants that are paused, or that still have parked jobs after a pause."""

    shards: int = 1

    growing_from: int = 0
    """The number of shards before the change that is in progress; 0: no change is."""

    kept: Retention = field(default_factory=Retention)

    outbox: list[Outgoing] = field(default_factory=list)
    """The entries that wait to be delivered to other queues."""

    spread: dict[str, int] = field(default_factory=dict)
    """The tenants that are spread over several shards, and over how many."""

    workers: int = 0
    """How many live workers serve the queue, at most 1000 of each shard."""


Kind: TypeAlias = Literal["no_worker", "lost", "full", "late", "paused", "unknown_task", "failing", "parked", "dead"]
"""What was found, the most urgent first."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about a queue that an operator should look at.

    jobs     how many jobs it is about: for `failing`, runs that failed in the last minute
    seconds  for how long the oldest of them has waited; 0 where that is not known
    message  the finding in words
    advice   the command that shows more, or that remedies it
    """

    kind: Kind
    queue: str
    jobs: int
    seconds: float
    message: str
    advice: str


@dataclass(frozen=True, slots=True)
class QueueHealth:
    """The findings about one queue, and its workers and programs, those that died included."""

    queue: str
    counts: Counts
    workers: list[WorkerInfo]
    findings: list[Finding]


@dataclass(frozen=True, slots=True)
class HealthReport:
    """The health of several queues, and the findings about all of them, the most urgent first."""

    queues: list[QueueHealth]
    findings: list[Finding]


@dataclass(frozen=True, slots=True)
class WorkerDetail:
    """A worker, with one registration for each of its queues, and the jobs that it runs."""

    name: str
    registrations: list[WorkerInfo]
    jobs: JobPage


@dataclass(frozen=True, slots=True)
class WorkerRequest:
    """A request to a worker that was stored.

    queues    where it is registered
    notified  whether a message has reached it. Otherwise it sees the request with its next heartbeat, which it sends
              only while it has jobs
    """

    name: str
    queues: list[str]
    notified: bool


@dataclass(frozen=True, slots=True)
class ChatView:
    """A chat, and the reader with the most unread messages."""

    chat: ChatInfo
    last_reader: Member | None


@dataclass(frozen=True, slots=True)
class MessageView:
    """A message as operators see it.

    body       None if it was removed; a text that says why, if it cannot be opened
    event      "edit" or "redact", if it reports that to the members; "" for a message
    read_by    how many of the readers that are listed with it have read it or sent it
    """

    id: str
    number: int
    sender: str
    at: float
    body: object
    event: str
    edited: bool
    redacted: bool
    read_by: int


@dataclass(frozen=True, slots=True)
class ChatDetail:
    """A chat, up to a thousand of its readers, those that are furthest behind first, and its latest messages, newest
    first. A reader has read each message up to the number `read`."""

    chat: ChatInfo
    readers: list[Member]
    messages: list[MessageView]


@dataclass(frozen=True, slots=True)
class MailboxDetail:
    """A mailbox, and its latest messages, newest first. Its owner has acknowledged each message up to the number
    `read`; workers that share it may have acknowledged later ones as well."""

    mailbox: MailboxInfo
    read: int
    messages: list[MessageView]


@dataclass(frozen=True, slots=True)
class ContactsView:
    """Some contacts of a user, in the order of `Contacts.complete`. `total`: how many contacts the user has."""

    name: str
    contacts: list[str]
    total: int


HoldingKind: TypeAlias = Literal["lock", "semaphore", "rwlock", "election"]
"""What processes hold, and an operator can take away."""


@dataclass(frozen=True, slots=True)
class Holding:
    """What one process holds of a lock, a semaphore, a read-write lock or an election."""

    kind: HoldingKind
    name: str
    holder: Owner


@dataclass(frozen=True, slots=True)
class DirectoryView:
    """A directory, and how many names it has."""

    name: str
    names: int


@dataclass(frozen=True, slots=True)
class DeadLetterPage:
    """A page of a queue's `total` dead letters, latest first, after skipping the latest `offset`."""

    total: int
    offset: int
    letters: list[DeadLetter]


@dataclass(frozen=True, slots=True)
class DeadLetterCount:
    """The number of a queue's dead letters at one moment.

    Pass `until` to an action on all dead letters, so that it leaves out jobs that died later.
    """

    count: int
    """The number of jobs that died up to `until`."""

    until: int
    """Milliseconds since 1970 by the server's clock."""


@dataclass(frozen=True, slots=True)
class ActionOutcome:
    """Whether an action on one job was `done`. `status`, from before the action, shows the reason if it was not."""

    id: str
    done: bool
    status: Status


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Seconds within which half, 95 % and 99 % of the jobs stayed. None: no job was measured."""

    p50: float | None = None
    p95: float | None = None
    p99: float | None = None

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Percentiles:
        if not seconds:
            return cls()
        ordered = sorted(seconds)
        return cls(*(ordered[min(len(ordered) - 1, int(part * len(ordered)))] for part in (0.5, 0.95, 0.99)))


DURATION_EDGES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
"""Seconds, each about three times the one before."""


def histogram_of(seconds: Iterable[float]) -> list[int]:
    """How many of these durations are in each part of `DURATION_EDGES`."""
    counts = [0] * (len(DURATION_EDGES) + 1)
    for one in seconds:
        counts[bisect_right(DURATION_EDGES, one)] += 1
    return counts


@dataclass(frozen=True, slots=True)
class TaskStats:
    """The jobs of one task of one queue that have ended lately.

    task       its name; "" for bare values
    completed  jobs
    failed     jobs that became dead letters
    other      jobs that were cancelled, expired or dropped
    retries    runs that failed and were followed by another one
    duration   seconds of the last run of each completed or failed job
    waiting    seconds from when such a job was ready, or due, until its last run began
    since      when the earliest of these jobs ended; seconds since 1970 by the server's clock
    last       when the latest ended
    histogram  how many of these durations are below each of `DURATION_EDGES` and not below the edge before it; at the
               end, the longer ones
    """

    task: str
    queue: str
    completed: int
    failed: int
    other: int
    retries: int
    duration: Percentiles
    waiting: Percentiles
    since: float
    last: float
    histogram: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class TaskReport:
    """Counts and times of tasks, the busiest first.

    examined  the number of ended jobs that were read for it
    now       seconds since 1970 by the server's clock
    edges     seconds: those of each `histogram`
    """

    tasks: list[TaskStats]
    examined: int
    now: float
    edges: Sequence[float] = DURATION_EDGES
