"""Checks a history of jobs against the promises that a queue makes.

Each rule is a function that yields a sentence for each violation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from penstock.testing.history import (
    Ended,
    Enqueued,
    Event,
    FaultInjected,
    FinalState,
    LeaseExpired,
    Outage,
    Settled,
    Started,
)

_FINISHED = {"completed", "dead", "cancelled", "expired", "dropped"}
_UNFINISHED = {"delayed", "sleeping", "ready", "running"}


@dataclass(slots=True)
class _ClaimedRun:
    """The events of one claim of a job."""

    claim: int
    started: Started | None = None
    ended: Ended | None = None
    settled: list[Settled] = field(default_factory=list)

    def accepted(self, *how: str) -> bool:
        """Whether the server accepted a settlement of one of these kinds."""
        return any(one.answer == "accepted" and one.how in how for one in self.settled)


@dataclass(slots=True)
class _JobHistory:
    """Everything that happened to one job."""

    name: str
    answers: set[str] = field(default_factory=set)
    runs: dict[int, _ClaimedRun] = field(default_factory=dict)
    final: FinalState | None = None

    def run(self, claim: int) -> _ClaimedRun:
        return self.runs.setdefault(claim, _ClaimedRun(claim))

    @property
    def started_runs(self) -> list[_ClaimedRun]:
        return [self.runs[claim] for claim in sorted(self.runs) if self.runs[claim].started]


@dataclass(slots=True)
class _Events:
    """A history, grouped for the rules."""

    takeover: float
    drained: bool
    jobs: dict[str, _JobHistory] = field(default_factory=dict)
    faults: dict[str, list[FaultInjected]] = field(default_factory=dict)
    """By worker."""
    expiries: dict[str, list[float]] = field(default_factory=dict)
    """Worker -> when it learned that its lease had expired."""
    outages: list[tuple[float, float]] = field(default_factory=list)
    runs_of_worker: dict[str, list[tuple[_JobHistory, _ClaimedRun]]] = field(default_factory=dict)
    end: float = 0.0

    def job(self, name: str) -> _JobHistory:
        return self.jobs.setdefault(name, _JobHistory(name))


Rule: TypeAlias = Callable[[_Events], Iterator[str]]


def job_violations(events: Iterable[Event], *, takeover: float, drained: bool = False) -> list[str]:
    """A sentence for each promise about jobs that this history breaks; [] if it breaks none.

    The promises:

    - an accepted job has a final state, and a dead letter has a reason
    - no job runs that was not enqueued
    - a job is completed once, by its last claim
    - a second run has a cause that was recorded
    - the jobs of a killed worker run again in time

    takeover  seconds within which the jobs of a killed worker must run again, not counting outages. Allow for the
              lease, and for the time that the first job of a tenant waits for a worker
    drained   True: no job may be waiting or running at the end
    """
    history = _grouped(events, takeover, drained)
    return [violation for rule in RULES for violation in rule(history)]


def _grouped(events: Iterable[Event], takeover: float, drained: bool) -> _Events:
    history, open_since = _Events(takeover, drained), dict[str, float]()
    for event in sorted(events, key=lambda event: event.at):
        history.end = event.at
        match event:
            case Enqueued():
                history.job(event.job).answers.add(event.answer)
            case Started():
                run = history.job(event.job).run(event.claim)
                run.started = event
                history.runs_of_worker.setdefault(event.worker, []).append((history.job(event.job), run))
            case Ended():
                history.job(event.job).run(event.claim).ended = event
            case Settled():
                history.job(event.job).run(event.claim).settled.append(event)
            case FinalState():
                history.job(event.job).final = event
            case LeaseExpired():
                history.expiries.setdefault(event.worker, []).append(event.at)
            case FaultInjected():
                history.faults.setdefault(event.worker, []).append(event)
            case Outage(over=False):
                open_since.setdefault(event.what, event.at)
            case Outage():
                history.outages.append((open_since.pop(event.what, event.at), event.at))
    history.outages += [(since, history.end) for since in open_since.values()]
    return history


# --- the rules ---


def no_job_is_lost(history: _Events) -> Iterator[str]:
    for job in history.jobs.values():
        if "accepted" not in job.answers:
            continue
        if job.final is None:
            yield f"job {job.name} was accepted, and its final state was not recorded"
        elif job.final.state not in _FINISHED | _UNFINISHED:
            yield f"job {job.name} was accepted, and is lost"
        elif job.final.state == "dead" and not job.final.reason:
            yield f"job {job.name} is dead without a reason"
        elif history.drained and job.final.state in _UNFINISHED:
            yield f"job {job.name} is still {job.final.state}"


def every_job_was_enqueued(history: _Events) -> Iterator[str]:
    for job in history.jobs.values():
        seen = job.runs or (job.final is not None and job.final.state != "unknown")
        if seen and not job.answers:
            yield f"job {job.name} exists, but it was not enqueued"
        elif seen and "refused" in job.answers:
            yield f"job {job.name} exists, but its enqueue was refused"
        for run in job.runs.values():
            if run.started is None:
                yield f"job {job.name}: claim {run.claim} ended or was settled, but never started"


def each_job_is_completed_once(history: _Events) -> Iterator[str]:
    for job in history.jobs.values():
        done = [run for run in job.runs.values() if run.accepted("complete")]
        if sum(one.how == "complete" and one.answer == "accepted" for run in done for one in run.settled) > 1:
            yield f"job {job.name} was completed by claims {_list(done)}"
        for run in done:
            if run.ended is None or not run.ended.returned:
                yield f"job {job.name} was completed by claim {run.claim}, whose run did not return"
            if job.final is not None and job.final.state != "completed":
                yield f"job {job.name} was completed by claim {run.claim}, but is {job.final.state}"
        if job.final is not None and job.final.state == "completed" and job.final.claim:
            yield from _result_belongs_to_its_run(job, job.final.claim, done)


def _result_belongs_to_its_run(job: _JobHistory, claim: int, done: list[_ClaimedRun]) -> Iterator[str]:
    run = job.runs.get(claim)
    if run is None or run.ended is None:
        yield f"job {job.name} has the result of claim {claim}, whose run did not end"
    elif any(one.answer == "refused" for one in run.settled):
        yield f"job {job.name} has the result of claim {claim}, whose settlement was refused"
    if done and claim not in {one.claim for one in done}:
        yield f"job {job.name} has the result of claim {claim}, but the server accepted that of claim {_list(done)}"


def only_the_last_claim_completes(history: _Events) -> Iterator[str]:
    for job in history.jobs.values():
        completed = {run.claim for run in job.runs.values() if run.accepted("complete")}
        if job.final is not None and job.final.state == "completed":
            completed.add(job.final.claim)
        last = max((run.claim for run in job.started_runs), default=0)
        for claim in sorted(completed - {0}):
            if claim < last:
                yield f"job {job.name} was completed by claim {claim}, after claim {last} had started"


def a_second_run_has_a_cause(history: _Events) -> Iterator[str]:
    for job in history.jobs.values():
        undisturbed = [run for run in job.started_runs if not _was_interrupted(history, run)]
        if len(undisturbed) > 1:
            yield f"job {job.name} ran under claims {_list(undisturbed)}, and nothing interrupted any of them"


def _was_interrupted(history: _Events, run: _ClaimedRun) -> bool:
    """Whether a recorded event ended this run's claim, or handed the job back."""
    assert run.started is not None
    began, worker = run.started.at, run.started.worker
    if run.settled:
        handed_back = run.accepted("retry", "later", "unknown", "release", "crash", "loss", "contained")
        return handed_back or any(one.answer != "accepted" for one in run.settled)
    return (
        any(at >= began for at in history.expiries.get(worker, ()))
        or any(fault.how == "killed" and fault.at >= began for fault in history.faults.get(worker, ()))
        or any(end >= began for _, end in history.outages)
    )


def jobs_of_a_killed_worker_run_again_in_time(history: _Events) -> Iterator[str]:
    for worker, faults in history.faults.items():
        killed = min((fault.at for fault in faults if fault.how == "killed"), default=None)
        if killed is None:
            continue
        deadline = _without_outages(history, killed, history.takeover)
        for job, run in history.runs_of_worker.get(worker, ()):
            began = run.started is not None and run.started.at <= killed
            if began and not run.settled and not _was_taken_over(history, job, run, deadline):
                yield (
                    f"job {job.name} did not run again within {history.takeover:g} s after its worker {worker} was "
                    f"killed (claim {run.claim})"
                )


def _was_taken_over(history: _Events, job: _JobHistory, run: _ClaimedRun, deadline: float) -> bool:
    """Whether the job ran again in time, or was settled in the server before the kill.

    Also True if the history ends before the deadline.
    """
    if history.end < deadline:
        return True
    later = [one.started.at for one in job.started_runs if one.claim > run.claim and one.started is not None]
    if later:
        return min(later) <= deadline
    return job.final is not None and job.final.state in _FINISHED


def _without_outages(history: _Events, since: float, seconds: float) -> float:
    """The time at which `seconds` have passed, not counting outages."""
    until = since + seconds
    for begin, end in sorted(history.outages):
        if begin < until and end > since:
            until += end - max(begin, since)
            since = max(since, end)
    return until


def _list(runs: Iterable[_ClaimedRun]) -> str:
    return " and ".join(str(run.claim) for run in runs)


RULES: list[Rule] = [
    no_job_is_lost,
    every_job_was_enqueued,
    each_job_is_completed_once,
    only_the_last_claim_completes,
    a_second_run_has_a_cause,
    jobs_of_a_killed_worker_run_again_in_time,
]
