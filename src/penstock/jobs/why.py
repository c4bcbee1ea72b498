"""Why a job does not run: one answer in plain words, made once for Python, the command line and the dashboard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeAlias

from penstock.core.operations import Operation
from penstock.core.wording import age, many
from penstock.errors import JobNotFound
from penstock.jobs.failures import Failures
from penstock.jobs.finished import FinishedJob
from penstock.jobs.finished_list import find_row
from penstock.jobs.history import Moment
from penstock.jobs.pauses import PausedScope, resume_command
from penstock.jobs.shard import Shard
from penstock.jobs.status import OVER, Status, status_of
from penstock.jobs.waits import WaitState
from penstock.jobs.why_bindings import Facts, ParkedAt, WhyBindings
from penstock.sealing import open_text
from penstock.settings import Seal

Kind: TypeAlias = Literal[
    "running",
    "lost",
    "no_worker",
    "unknown_task",
    "paused",
    "limit",
    "suspect",
    "batch",
    "behind",
    "delayed",
    "retry",
    "sleeping",
    "signal",
    "children",
    "jobs",
    "blocked",
    "ended",
]

RECENT: Final = 300.0
"""Seconds of the history from which rates are calculated."""

_NAMED: Final = 5
"""Jobs that an answer names, of those that a job waits for."""

_EXAMINED: Final = 50

FOREVER: Final = 100_000_000_000.0
"""Seconds since 1970 beyond which nothing is due: a job that waits for a signal without a time-out."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a job does not run. Times are seconds since 1970 by the server's clock, durations are seconds.

    kind       the reason:

               running       it runs: `worker`, `since`
               lost          the lease of its worker has run out; the next turn of any worker takes it back
               no_worker     no live worker serves the queue, or each was asked to be quiet or to stop
               unknown_task  no live worker knows its task, or the last one that met it did not
               paused        `paused`: queue, task or tenant; `by`, `since`
               limit         parked: `limit`, `limit_key`, `used` of `most`, `next_in`; at a rate, the `cost` of
                             the job; at a key that is closed, `until`
               suspect       it waits for a trial, because processes died while it ran; `position`
               batch         its batch waits for more jobs, at most until `until`
               behind        others go first: `position`, `eta`
               delayed       due at `until`
               retry         the same, after a run that failed
               sleeping      a durable job that sleeps until `until`
               signal        a durable job that waits for `signal`; `until`: its time-out
               children      a durable job that waits for `left` children, among them `waits_for`
               jobs          it waits for `left` other jobs, among them `waits_for`
               blocked       one of those is a dead letter
               ended         completed, dead, cancelled, expired or dropped: see `status`; `since` and `worker` as
                             long as the queue keeps its row

    sentence   the answer in words
    reason     why it failed last, if the sentence says that: a text that the job has written
    further    what else would hold the job up, in words: no worker, a pause
    workers    live workers of the queue that claim jobs, at most a hundred are counted
    position   about how many jobs are served before it. It counts the present jobs by priority and rotation of
               tenants, so jobs that are enqueued later can go first
    eta        about how long that takes, by the rate of the last five minutes; None: no rate is known
    next_in    about how long until its limit has a place: of a rate by its numbers, else by the mean duration of the
               queue's recent runs
    """

    id: str
    status: Status
    kind: Kind
    sentence: str
    further: tuple[str, ...] = ()
    at: float = 0.0
    workers: int = 0
    worker: str = ""
    since: float | None = None
    until: float | None = None
    paused: str = ""
    by: str = ""
    limit: str = ""
    limit_key: str = ""
    used: int | None = None
    most: int | None = None
    cost: int | None = None
    next_in: float | None = None
    position: int | None = None
    eta: float | None = None
    signal: str = ""
    waits_for: tuple[str, ...] = ()
    left: int | None = None
    reason: str = ""


def explain(shard: Shard, key: str) -> Operation[Explanation]:
    """See `Job.why`."""
    facts: Facts = yield WhyBindings(shard.bindings).facts(key)
    status, found = status_of(facts.stored), _Explainer(shard.name, key, facts, shard.settings.seal)
    if status in OVER:
        row = yield from find_row(shard, key)
        if row is not None and status in (Status.UNKNOWN, row.status):
            return found.in_row(row)
    if status is Status.UNKNOWN:
        raise JobNotFound(f"no job {shard.name}:{key}: never enqueued here, or it ended and its result is gone")
    if status in (Status.WAITING, Status.BLOCKED):
        waits_for = yield from _unfinished(shard, key, status)
        return found.waiting(waits_for)
    return found.answer()


def _unfinished(shard: Shard, key: str, status: Status) -> Operation[tuple[str, ...]]:
    """Some of the jobs that a job waits for: those that have not ended; if it is blocked, the dead ones."""
    from penstock.jobs.flow_tree import first_predecessors

    page = yield from first_predecessors(shard, key, _EXAMINED)
    if status is Status.BLOCKED:
        return tuple(node.id for node in page if node.status is Status.DEAD)[:_NAMED]
    return tuple(node.id for node in page if node.status not in OVER)[:_NAMED]


class _Explainer:
    """Makes one answer of the facts about a job."""

    def __init__(self, queue: str, key: str, facts: Facts, seal: Seal | None) -> None:
        self._queue = queue.partition("~")[0]
        self._facts, self._seal = facts, seal
        self._base = Explanation(
            f"{queue}:{key}", status_of(facts.stored), "ended", "", at=facts.now, workers=facts.workers
        )

    def answer(self) -> Explanation:
        facts, status = self._facts, self._base.status
        match status:
            case Status.RUNNING:
                return self._running()
            case Status.READY:
                return self._ready()
            case Status.PARKED:
                return self._parked()
            case Status.DELAYED | Status.SLEEPING:
                return self._delayed()
            case _:
                return self._ended(facts.stored.done or b"")

    # --- what holds any waiting job up ---

    def _obstacles(self) -> list[Explanation]:
        """Each obstacle as an answer of its own, the one that an operator can remove first."""
        facts = self._facts
        found = [self._paused(one) for one in facts.pauses if one.paused]
        if not facts.workers and not facts.programs:
            sentence = f"no live worker serves queue {self._queue}: start one with `penstock worker`"
            if facts.asked:
                sentence = (
                    f"every live worker of queue {self._queue} was asked to claim no more jobs: start another one with "
                    "`penstock worker`"
                )
            found.append(self._is("no_worker", sentence))
        elif facts.knows is False and facts.stored.record is not None:
            sentence = f"no live worker of queue {self._queue} knows its task {facts.stored.record.task!r}"
            found.append(self._is("unknown_task", f"{sentence}: does each import the module that defines it?"))
        return found

    def _paused(self, one: PausedScope) -> Explanation:
        name = f"queue {self._queue}" if one.name == "queue" else f"{one.name} of queue {self._queue}"
        return self._is(
            "paused",
            f"{name} was paused {self._ago(one.since)}"
            + (f" by {one.by}" if one.by else "")
            + f": to continue, `{resume_command(self._queue, one)}`",
            paused=one.name,
            by=one.by,
            since=one.since,
        )

    def _with_further(self, answer: Explanation) -> Explanation:
        return replace(answer, further=tuple(one.sentence for one in self._obstacles()))

    # --- by state ---

    def _running(self) -> Explanation:
        facts, stored = self._facts, self._facts.stored
        worker, since = stored.worker or "a program without a worker", stored.claimed
        if facts.lease and facts.lease <= facts.now:
            sentence = (
                f"its worker {worker} is gone, its lease ran out {self._ago(facts.lease)}: the next turn of a worker "
                "of this queue takes the job back"
            )
            return self._with_further(self._is("lost", sentence, worker=stored.worker, since=since))
        when = f", claimed {self._ago(since)}" if since is not None else ""
        return self._is("running", f"it runs on {worker}{when}", worker=stored.worker, since=since)

    def _ready(self) -> Explanation:
        obstacles, line = self._obstacles(), self._in_line()
        if not obstacles:
            return line
        others = [*obstacles[1:], *([] if line.kind == "behind" else [line])]
        return replace(obstacles[0], position=line.position, further=tuple(one.sentence for one in others))

    def _in_line(self) -> Explanation:
        """The answer for a ready job that nothing but other jobs holds up."""
        facts = self._facts
        if facts.suspects is not None:
            before, of = facts.suspects
            sentence = (
                "its process died while it ran, so it is a suspect and waits for a trial, alone in a process; "
                f"{many(before, 'suspect')} of {of:,} before it"
            )
            return self._is("suspect", sentence, position=before)
        position = sum(facts.ahead or (0, 0, 0))
        if facts.batch is not None:
            until, size = facts.batch
            sentence = f"its batch waits for more jobs, up to {size:,}, and is offered {self._in(until)} at the latest"
            return self._is("batch", sentence, until=until, position=position)
        rate = runs_per_second(facts.history)
        eta = position / rate if rate else (0.0 if not position else None)
        if not position:
            return self._is("behind", "it is next: a worker claims it as soon as one is free", position=0, eta=eta)
        urgent, own, others = facts.ahead or (0, 0, 0)
        parts = [
            f"{urgent:,} more urgent" if urgent else "",
            f"{own:,} of its tenant" if own else "",
            f"{others:,} of other tenants, which take turns" if others else "",
        ]
        when = f"by the rate of the last minutes that takes about {age(eta)}" if eta is not None else "no rate is known"
        sentence = f"about {many(position, 'job goes', 'jobs go')} first ({', '.join(filter(None, parts))}); {when}"
        return self._is("behind", sentence, position=position, eta=eta)

    def _parked(self) -> Explanation:
        facts = self._facts
        if facts.parked is None:
            paused = [one for one in facts.pauses if one.paused]
            if not paused:
                return self._with_further(
                    self._is("behind", "its pause has ended: it becomes ready with one of the next turns of a worker")
                )
            scope = next((one for one in paused if one.name != "queue"), paused[0])
            answer = self._paused(scope)
            others = tuple(one.sentence for one in self._obstacles() if one.sentence != answer.sentence)
            return replace(answer, further=others)
        return self._with_further(self._at_limit(facts.parked))

    def _at_limit(self, at: ParkedAt) -> Explanation:
        position = sum(self._facts.ahead or (0, 0, 0))
        key = f", key {at.key}" if at.key else ""
        if at.held_until is not None:
            return self._is(
                "limit",
                f"rate {at.name}{key} is closed by a job or an operator: it opens {self._in(at.held_until)}",
                until=at.held_until,
                limit=at.name,
                limit_key=at.key,
                next_in=at.room_in,
                position=position,
            )
        if at.is_rate:
            next_in = at.room_in
            eta = None if next_in is None else next_in + position * at.interval * max(1, at.cost)
            use = f"{at.used:,} taken by jobs that have not started" if at.used else "used up"
            need = f", and the job takes {at.cost:,}" if at.cost != 1 else ""
            rule = f"rate {at.name}{key}: {at.most:,} in {age(at.most * at.interval)}, {use}{need}"
            rest = "when those start" if next_in is None else f"in about {age(next_in)}"
        else:
            mean = mean_run(self._facts.history)
            next_in = None if mean is None else mean / max(1, at.used)
            eta = None if mean is None else (position + 1) * mean / max(1, at.most)
            rule = f"limit {at.name}{key}: {at.used:,} of {at.most:,} places are used"
            rest = "when one of those ends" if next_in is None else f"in about {age(next_in)}, by recent runs"
        before = f"; about {many(position, 'parked job', 'parked jobs')} before it" if position else ""
        return self._is(
            "limit",
            f"it is parked at {rule}; the next place comes {rest}{before}",
            limit=at.name,
            limit_key=at.key,
            used=at.used,
            most=at.most,
            cost=at.cost if at.is_rate else None,
            next_in=next_in,
            position=position,
            eta=eta,
        )

    def _delayed(self) -> Explanation:
        facts, stored = self._facts, self._facts.stored
        record = stored.record
        assert record is not None
        due = record.since / 1000
        until = None if due > FOREVER else due
        failures = Failures.read(stored.failures, self._seal)
        if failures.unread_since is not None:
            reason = failures.reason
            met = f"does not know its task {record.task!r}" if reason.startswith("no task") else "cannot read its call"
            if reason.startswith("ProgramChanged"):
                met = "cannot continue it"
            now = "a live one does now" if facts.knows else "does each import the module that defines it?"
            if "is sealed with key" in reason:
                now = "do all of them have that key?"
            sentence = f"the last worker that met it {met} ({reason}): {now}; it is offered again {self._in(due)}"
            return self._with_further(self._is("unknown_task", sentence, until=until, reason=reason))
        if facts.signal:
            end = "" if until is None else f" or {moment(until)}, {self._in(until)}"
            sentence = f"sleeping, until signal {facts.signal}{end}"
            return self._with_further(self._is("signal", sentence, until=until, signal=facts.signal))
        if facts.children is not None and self._base.status is Status.SLEEPING:
            left, some = facts.children
            word = "child" if left == 1 else f"{left:,} children:"
            sentence = f"sleeping, waits for {word} {_named(some, left)}"
            return self._with_further(self._is("children", sentence, waits_for=some, left=left))
        if self._base.status is Status.SLEEPING:
            sentence = f"sleeping, until {moment(due)}, {self._in(due)}"
            return self._with_further(self._is("sleeping", sentence, until=until))
        if due <= facts.now:
            return self._with_further(
                self._is("delayed", "it is due: the next turn of a worker makes it ready", until=until)
            )
        if failures.reason:
            reason = failures.reason
            sentence = (
                f"run {record.attempts} of it failed ({reason}); it is tried again {self._in(due)}, {moment(due)}"
            )
            return self._with_further(self._is("retry", sentence, until=until, reason=reason))
        return self._with_further(self._is("delayed", f"it is due {self._in(due)}, {moment(due)}", until=until))

    def waiting(self, waits_for: tuple[str, ...]) -> Explanation:
        """The answer for a job that waits for other jobs, among them these."""
        wait = WaitState.read(self._facts.stored.waits or b"\0" * 64)
        if self._base.status is Status.BLOCKED:
            names = _named(waits_for, wait.dead)
            sentence = f"it waits for other jobs, of which {names} failed for good: requeue that, or remove it"
            return self._is("blocked", sentence, waits_for=waits_for, left=wait.left)
        if wait.is_open and not wait.left:
            return self._is("jobs", "its flow is still being enqueued", left=wait.left)
        sentence = f"it waits for {wait.left:,} of {many(wait.total, 'job')}: {_named(waits_for, wait.left)}"
        return self._is("jobs", sentence, waits_for=waits_for, left=wait.left)

    def in_row(self, row: FinishedJob) -> Explanation:
        """The answer for a job that is not in the queue any more, from its row."""
        seconds = row.duration
        ran = "" if seconds is None else f" in {age(seconds)}" + (f" on {row.worker}" if row.worker else "")
        words = {
            Status.COMPLETED: f"it ran{ran} and completed {{}}",
            Status.CANCELLED: "it was cancelled {}",
            Status.EXPIRED: "it expired {}, before a worker was free",
            Status.DROPPED: "its task dropped it {}",
            Status.DEAD: "it failed for good {}, and is no dead letter any more",
        }
        reason = open_text(row.reason, self._seal)
        sentence = words[row.status].format(self._ago(row.ended)) + (f": {reason}" if reason else "")
        return self._is("ended", sentence, status=row.status, since=row.ended, worker=row.worker, reason=reason)

    def _ended(self, done: bytes) -> Explanation:
        stored, status = self._facts.stored, self._base.status
        if status is Status.DEAD and stored.record is not None:
            died = stored.record.since / 1000
            reason = Failures.read(stored.failures, self._seal).reason
            sentence = (
                f"it failed for good {self._ago(died)}, in run {max(1, stored.record.attempts)}: {reason}; requeue it "
                f"with `penstock dead retry {self._base.id}`"
            )
            return self._is("ended", sentence, since=died, reason=reason)
        reason = (
            open_text(done[1:].decode(errors="replace"), self._seal)
            if status in (Status.DROPPED, Status.CANCELLED)
            else ""
        )
        words = {
            Status.COMPLETED: "it ran and completed",
            Status.CANCELLED: "it was cancelled",
            Status.EXPIRED: "it expired before a worker was free",
            Status.DROPPED: "its task dropped it",
        }
        return self._is("ended", words[status] + (f": {reason}" if reason else ""), reason=reason)

    # --- words ---

    def _is(self, kind: Kind, sentence: str, **facts: Any) -> Explanation:
        return replace(self._base, kind=kind, sentence=sentence, **facts)

    def _ago(self, at: float) -> str:
        return f"{age(max(0.0, self._facts.now - at))} ago"

    def _in(self, at: float) -> str:
        return f"in {age(max(0.0, at - self._facts.now))}"


def moment(at: float) -> str:
    """A time for people: `26 Nov 09:00:00 UTC`."""
    return f"{datetime.fromtimestamp(at, UTC):%d %b %H:%M:%S} UTC"


def _named(ids: Sequence[str], of: int) -> str:
    """Some ids, and how many others there are."""
    more = of - len(ids)
    if not ids:
        return many(of, "job")
    return ", ".join(ids) + (f" and {more:,} more" if more > 0 else "")


def runs_per_second(history: Sequence[Moment]) -> float | None:
    """How many runs ended in a second while jobs waited, in the last minutes; None: the history does not say."""
    recent = _recent(history)
    busy = [one for one in recent if one.ready] or recent
    seconds = sum(one.seconds for one in busy)
    runs = sum(one.completed + one.retried + one.failed + one.dropped for one in busy)
    return runs / seconds if seconds and runs else None


def mean_run(history: Sequence[Moment]) -> float | None:
    """The mean seconds of a run, from the jobs that ran at a time and the runs that ended (Little's law)."""
    recent = _recent(history)
    seconds = sum(one.seconds for one in recent)
    runs = sum(one.completed + one.retried + one.failed + one.dropped for one in recent)
    held = sum(one.running * one.seconds for one in recent)
    return held / runs if seconds and runs and held else None


def _recent(history: Sequence[Moment]) -> list[Moment]:
    return [one for one in history if history[-1].at - one.at < RECENT]
