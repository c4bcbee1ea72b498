"""Judges the flows of two queues by what their callers know: which job waits for which, and how each of them ended.

The judge is ahead of the server: it counts an end at once, the server when it works off its events and its outbox. So a
claim or a cancellation has to be one that the judge expects; that each of them comes is judged when nothing is left to
work off.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from penstock.jobs import constants
from penstock.jobs.record import Record
from penstock.jobs.waits import WaitState
from tests.jobs.stand import RESULT_START, Dump, problems_in

OPEN_FOR = 600_000
"""Milliseconds after which a job that is open is given up."""

Outcome = Literal["waits", "runs", "runs instead", "stops"]


class Id(NamedTuple):
    queue: str
    key: str


@dataclass
class Before:
    """A job that another one waits for. `end`: how it has ended for that one; None: it has not."""

    id: Id
    end: bytes | None = None
    is_dead: bool = False
    result: int | None = None


@dataclass
class Job:
    """A job that was accepted.

    policy     what it does if one of `before` fails; "": it waits for none
    is_open    until when it may still get others to wait for, in server milliseconds; 0: it is closed
    wants      places of the results that it wants
    expected   how it is to end, if a worker or an operator has ended it
    """

    id: Id
    number: int
    policy: bytes = b""
    is_open: int = 0
    wants: list[int] | None = None
    before: list[Before] = field(default_factory=list)
    token: bytes | None = None
    holder: str = ""
    is_dead: bool = False
    has_run: bool = False
    expires: int = 0
    expected: bytes | None = None
    end: bytes | None = None

    @property
    def outcome(self) -> Outcome:
        if self.is_open:
            return "waits"
        if self.policy != constants.CONTINUE and any(one.end not in (None, constants.COMPLETED) for one in self.before):
            return "stops" if self.policy == constants.STOP else "runs instead"
        return "waits" if any(one.end is None for one in self.before) else "runs"

    @property
    def results(self) -> list[int | None]:
        return [self.before[place].result for place in self.wants or ()]


@dataclass
class Judge:
    now: int
    jobs: dict[Id, Job] = field(default_factory=dict)
    links: dict[Id, list[tuple[Job, int]]] = field(default_factory=lambda: defaultdict(list))
    """Job -> the jobs that wait for it, and its place among what those wait for."""
    leases: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    dumps: dict[str, Dump] = field(default_factory=dict)

    # --- what calls do ---

    def link(self, before: Id, dependent: Id, place: int) -> None:
        """`dependent` waits for `before`, which may come later, and whatever has happened to that already."""
        job, waiting = self.jobs.get(before), self.jobs[dependent]
        if waiting.end is not None:
            return
        assert waiting.before[place].id == before
        self.links[before].append((waiting, place))
        if job and job.end is not None:
            self._report(waiting, place, job.end, job.number)
        elif job and job.is_dead:
            self._report_death(waiting, place)

    def _report(self, waiting: Job, place: int, end: bytes, result: int) -> None:
        one = waiting.before[place]
        if one.end is None and waiting.end is None:
            one.end, one.is_dead = end, False
            one.result = result if end == constants.COMPLETED else None

    def _report_death(self, waiting: Job, place: int) -> None:
        one = waiting.before[place]
        if waiting.policy != constants.STOP:
            self._report(waiting, place, constants.DEAD, 0)
        elif one.end is None:
            one.is_dead = True

    def claimed(self, job: Job, token: bytes, holder: str, arguments: dict[str, object]) -> None:
        assert job.end is None, f"{job.id} was claimed after its end"
        assert job.token is None or self.leases[job.holder] <= self.now, f"{job.id} was claimed twice"
        if job.policy:
            assert job.outcome in ("runs", "runs instead"), f"{job.id} was claimed, but it {job.outcome}: {job.before}"
        if job.outcome == "runs instead":
            assert arguments == {"x": -job.number}, f"{job.id} has {arguments}"
        else:
            assert arguments == {"x": job.number if job.wants is None else job.results}, f"{job.id} has {arguments}"
        job.token, job.holder, job.has_run = token, holder, True

    # --- the key space ---

    def look(self, dumps: dict[str, Dump]) -> None:
        """Learn from all keys of both queues what has happened, and judge it."""
        self.dumps = dumps
        changed = True
        while changed:  # an end may explain another one
            unexplained = [job for job in self.jobs.values() if job.end is None and not self._look_at(job)]
            changed = any(self._look_at(job) for job in unexplained)
        assert not unexplained, f"{[one.id for one in unexplained]} have ended, and nothing has ended them"
        for queue, dump in dumps.items():
            known = {id.key.encode() for id, job in self.jobs.items() if id.queue == queue and job.end is None}
            assert set(dump.get("jobs", {})) == known
            problems = problems_in(dump)
            assert not problems, problems

    def record(self, job: Job) -> Record | None:
        return Record.read(self.dumps[job.id.queue].get("jobs", {}).get(job.id.key.encode()))

    def _look_at(self, job: Job) -> bool:
        """Follow one job. Returns False if it has ended for a reason that is not known yet."""
        record = self.record(job)
        if record is None:
            packed = self.dumps[job.id.queue].get("results", {}).get(job.id.key.encode())
            assert packed is not None, f"{job.id} is lost"
            end = packed[RESULT_START : RESULT_START + 1]
            if end == constants.EXPIRED:
                assert job.token is None
                assert 0 < job.expires <= self.now, f"{job.id} has expired too early"
            elif job.expected is None:
                given_up = job.is_open and job.is_open <= self.now
                if not given_up and job.outcome != "stops":
                    return False
                assert end == constants.CANCELLED
                assert job.token is None, f"{job.id} was stopped while it runs"
            else:
                assert end == job.expected, f"{job.id} has ended as {end!r}"
            job.end, job.token = end, None
            for waiting, place in self.links[job.id]:
                self._report(waiting, place, end, job.number)
            return True
        job.expires = record.expires
        is_dead = record.state == constants.DEAD
        if is_dead and not job.is_dead:
            for waiting, place in self.links[job.id]:
                self._report_death(waiting, place)
        elif job.is_dead and not is_dead:
            for waiting, place in self.links[job.id]:
                waiting.before[place].is_dead = False
        job.is_dead = is_dead
        return True

    def has_backlog(self, queue: str) -> bool:
        return any(name == "events" or name.startswith("outbox:") for name in self.dumps[queue])

    def judge_rest(self) -> None:
        """Nothing is left to work off: each job that waits does so for a reason that still holds."""
        for job in self.jobs.values():
            record = self.record(job)
            if job.end is not None or record is None or not job.policy:
                continue
            if record.state != constants.WAITING:
                assert job.has_run or job.outcome in ("runs", "runs instead"), f"{job.id} is ready, but {job.outcome}"
                continue
            assert job.outcome == "waits", f"{job.id} still waits, but it {job.outcome}"
            wait = WaitState.read(self.dumps[job.id.queue]["waiting"][job.id.key.encode()])
            left, dead = sum(one.end is None for one in job.before), sum(one.is_dead for one in job.before)
            assert (wait.total, wait.left, wait.dead) == (len(job.before), left, dead), f"{job.id}: {wait}"
