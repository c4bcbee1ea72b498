"""Can this history be true of a queue that keeps its promises? Each rule answers with its faults, a sentence each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from penstock.testing.history import Ended, Enqueued, Event, Found, Hit, Lost, Outage, Settled, Started

_ENDS = {"completed", "dead", "cancelled", "expired", "dropped"}
_WAITS = {"delayed", "ready", "running"}


@dataclass(slots=True)
class _Run:
    """One claim of a job, as far as somebody saw it."""

    claim: int
    started: Started | None = None
    ended: Ended | None = None
    settled: list[Settled] = field(default_factory=list)

    def accepted(self, *how: str) -> bool:
        return any(one.answer == "accepted" and one.how in how for one in self.settled)


@dataclass(slots=True)
class _Job:
    """All that happened to one job."""

    name: str
    answers: set[str] = field(default_factory=set)
    runs: dict[int, _Run] = field(default_factory=dict)
    found: Found | None = None

    def run(self, claim: int) -> _Run:
        return self.runs.setdefault(claim, _Run(claim))

    @property
    def began(self) -> list[_Run]:
        return [self.runs[claim] for claim in sorted(self.runs) if self.runs[claim].started]


@dataclass(slots=True)
class _Case:
    """A history, sorted for the rules."""

    takeover: float
    drained: bool
    jobs: dict[str, _Job] = field(default_factory=dict)
    hits: dict[str, list[Hit]] = field(default_factory=dict)
    losses: dict[str, list[float]] = field(default_factory=dict)
    outages: list[tuple[float, float]] = field(default_factory=list)
    by_worker: dict[str, list[tuple[_Job, _Run]]] = field(default_factory=dict)
    end: float = 0.0

    def job(self, name: str) -> _Job:
        return self.jobs.setdefault(name, _Job(name))


Rule: TypeAlias = Callable[[_Case], Iterator[str]]


def check(events: Iterable[Event], *, takeover: float, drained: bool = False) -> list[str]:
    """What this history breaks of the promises; [] is the good answer.

    takeover  seconds within which a killed worker's jobs must run again: the lease, and how long a job that is first in
              its tenant's line waits for a runner. Outages are not counted
    drained   True: at the end nothing may wait or run any more

    An accepted job is found at the end, with a reason if it is dead; what nobody enqueued does not run; a job is
    completed once, by its last claim; a second run has a cause that somebody saw; a killed worker's jobs run again in
    time.
    """
    case = _sorted_out(events, takeover, drained)
    return [fault for rule in RULES for fault in rule(case)]


def _sorted_out(events: Iterable[Event], takeover: float, drained: bool) -> _Case:
    case, open_since = _Case(takeover, drained), dict[str, float]()
    for event in sorted(events, key=lambda event: event.at):
        case.end = event.at
        match event:
            case Enqueued():
                case.job(event.job).answers.add(event.answer)
            case Started():
                run = case.job(event.job).run(event.claim)
                run.started = event
                case.by_worker.setdefault(event.worker, []).append((case.job(event.job), run))
            case Ended():
                case.job(event.job).run(event.claim).ended = event
            case Settled():
                case.job(event.job).run(event.claim).settled.append(event)
            case Found():
                case.job(event.job).found = event
            case Lost():
                case.losses.setdefault(event.worker, []).append(event.at)
            case Hit():
                case.hits.setdefault(event.worker, []).append(event)
            case Outage(over=False):
                open_since.setdefault(event.what, event.at)
            case Outage():
                case.outages.append((open_since.pop(event.what, event.at), event.at))
    case.outages += [(since, case.end) for since in open_since.values()]
    return case


# --- the rules ---


def none_is_lost(case: _Case) -> Iterator[str]:
    for job in case.jobs.values():
        if "accepted" not in job.answers:
            continue
        if job.found is None:
            yield f"job {job.name} was accepted, and nobody looked what became of it"
        elif job.found.state not in _ENDS | _WAITS:
            yield f"job {job.name} was accepted, and is lost"
        elif job.found.state == "dead" and not job.found.reason:
            yield f"job {job.name} is dead, and nothing says why"
        elif case.drained and job.found.state in _WAITS:
            yield f"job {job.name} is still {job.found.state}"


def none_comes_from_nowhere(case: _Case) -> Iterator[str]:
    for job in case.jobs.values():
        seen = job.runs or (job.found is not None and job.found.state != "unknown")
        if seen and not job.answers:
            yield f"job {job.name} is there, but nobody enqueued it"
        elif seen and "refused" in job.answers:
            yield f"job {job.name} is there, but its enqueue was refused"
        for run in job.runs.values():
            if run.started is None:
                yield f"job {job.name}: claim {run.claim} ended or was settled, but never started"


def each_is_completed_once(case: _Case) -> Iterator[str]:
    for job in case.jobs.values():
        done = [run for run in job.runs.values() if run.accepted("complete")]
        if sum(one.how == "complete" and one.answer == "accepted" for run in done for one in run.settled) > 1:
            yield f"job {job.name} was completed by claims {_list(done)}"
        for run in done:
            if run.ended is None or not run.ended.returned:
                yield f"job {job.name} was completed by claim {run.claim}, whose run did not return"
            if job.found is not None and job.found.state != "completed":
                yield f"job {job.name} was completed by claim {run.claim}, but is {job.found.state}"
        if job.found is not None and job.found.state == "completed" and job.found.claim:
            yield from _result_is_of_its_run(job, job.found.claim, done)


def _result_is_of_its_run(job: _Job, claim: int, done: list[_Run]) -> Iterator[str]:
    run = job.runs.get(claim)
    if run is None or run.ended is None:
        yield f"job {job.name} has the result of claim {claim}, whose run did not end"
    elif any(one.answer == "refused" for one in run.settled):
        yield f"job {job.name} has the result of claim {claim}, whose settlement was refused"
    if done and claim not in {one.claim for one in done}:
        yield f"job {job.name} has the result of claim {claim}, but {_list(done)} was told that its own was accepted"


def only_the_last_claim_completes(case: _Case) -> Iterator[str]:
    for job in case.jobs.values():
        completed = {run.claim for run in job.runs.values() if run.accepted("complete")}
        if job.found is not None and job.found.state == "completed":
            completed.add(job.found.claim)
        last = max((run.claim for run in job.began), default=0)
        for claim in sorted(completed - {0}):
            if claim < last:
                yield f"job {job.name} was completed by claim {claim}, after claim {last} had it"


def a_second_run_has_a_cause(case: _Case) -> Iterator[str]:
    for job in case.jobs.values():
        whole = [run for run in job.began if not _broken(case, run)]
        if len(whole) > 1:
            yield f"job {job.name} ran under claims {_list(whole)}, and nothing happened to any of them"


def _broken(case: _Case, run: _Run) -> bool:
    """Did anything that somebody saw end this run's claim, or hand the job back?"""
    assert run.started is not None
    began, worker = run.started.at, run.started.worker
    if run.settled:
        handed_back = run.accepted("retry", "later", "unknown", "release", "crash", "suspect")
        return handed_back or any(one.answer != "accepted" for one in run.settled)
    return (
        any(at >= began for at in case.losses.get(worker, ()))
        or any(hit.how == "killed" and hit.at >= began for hit in case.hits.get(worker, ()))
        or any(till >= began for _, till in case.outages)
    )


def a_killed_workers_jobs_run_again_in_time(case: _Case) -> Iterator[str]:
    for worker, hits in case.hits.items():
        killed = min((hit.at for hit in hits if hit.how == "killed"), default=None)
        if killed is None:
            continue
        deadline = _without_outages(case, killed, case.takeover)
        for job, run in case.by_worker.get(worker, ()):
            began = run.started is not None and run.started.at <= killed
            if began and not run.settled and not _went_on(case, job, run, deadline):
                yield (
                    f"job {job.name} did not run again within {case.takeover:g} s after worker {worker} was killed "
                    f"with it (claim {run.claim})"
                )


def _went_on(case: _Case, job: _Job, run: _Run, deadline: float) -> bool:
    """It ran again, or this run's settlement had reached the server before the kill; or there was no time to see it."""
    if case.end < deadline:
        return True
    later = [one.started.at for one in job.began if one.claim > run.claim and one.started is not None]
    if later:
        return min(later) <= deadline
    return job.found is not None and job.found.state in _ENDS


def _without_outages(case: _Case, since: float, seconds: float) -> float:
    """When `seconds` are over that are no part of an outage."""
    until = since + seconds
    for begin, end in sorted(case.outages):
        if begin < until and end > since:
            until += end - max(begin, since)
            since = max(since, end)
    return until


def _list(runs: Iterable[_Run]) -> str:
    return " and ".join(str(run.claim) for run in runs)


RULES: list[Rule] = [
    none_is_lost,
    none_comes_from_nowhere,
    each_is_completed_once,
    only_the_last_claim_completes,
    a_second_run_has_a_cause,
    a_killed_workers_jobs_run_again_in_time,
]
