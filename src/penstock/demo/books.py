"""The demo's books: what was put in, what the jobs themselves wrote down, what the server counted, and whether
the three agree."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from statistics import median_low

from penstock.demo.tasks import RETRIES, Entry
from penstock.jobs.counts import Counts

EARLY = 0.01
"""Seconds by which a clock may have been set back between a job's being put in and its start."""


class Kind(IntEnum):
    REQUEST = 0
    FLOOD = 1
    GREETING = 2
    BROKEN = 3


@dataclass(slots=True)
class Account:
    """The jobs of one tenant or several: how many, how many done, seconds waited from due to first start."""

    jobs: int = 0
    done: int = 0
    waited: float = 0.0
    longest: float = 0.0

    @property
    def mean(self) -> float:
        return self.waited / self.done if self.done else 0.0

    def ran(self, waited: float) -> None:
        self.done += 1
        self.waited += waited
        self.longest = max(self.longest, waited)


class Books:
    """Jobs are numbered from 0 in the order in which they were put in."""

    def __init__(self) -> None:
        self.flooder = Account()
        self.clients: dict[str, Account] = {}
        self.malformed = 0
        self.delayed = 0
        self.planned_retries = 0
        self.days: Counter[str] = Counter()
        """Requests per day, as the jobs read them."""
        self.statuses: Counter[str] = Counter()
        """Requests per class of status, as the jobs read them."""
        self._expected: Counter[str] = Counter()
        self._kinds = bytearray()
        self._clients: list[str] = []
        self._dues = array("d")
        self._starts = array("d")
        self._runs = bytearray()
        self._early = 0
        self._strangers = 0

    @property
    def jobs(self) -> int:
        return len(self._kinds)

    @property
    def requests(self) -> int:
        return self._expected.total()

    # --- what goes in ---

    def flood(self, due: float) -> int:
        """A job of the flooder; its number."""
        self.flooder.jobs += 1
        return self._enter(Kind.FLOOD, due)

    def request(self, client: str, day: str, due: float, *, fails: int = 0, delayed: bool = False) -> int:
        self._expected[day] += 1
        self.planned_retries += fails
        self.delayed += delayed
        self.clients.setdefault(client, Account()).jobs += 1
        return self._enter(Kind.REQUEST, due, client)

    def greeting(self, due: float) -> None:
        """The first job, whose result was awaited."""
        self._runs[self._enter(Kind.GREETING, due)] = 1

    def broken(self, due: float) -> None:
        """The job that always fails."""
        self.planned_retries += RETRIES
        self._enter(Kind.BROKEN, due)

    def _enter(self, kind: Kind, due: float, client: str = "") -> int:
        self._kinds.append(kind)
        self._clients.append(client)
        self._dues.append(due)
        self._starts.append(0.0)
        self._runs.append(0)
        return self.jobs - 1

    # --- what comes out ---

    def record(self, entry: Entry) -> None:
        """An entry of the journal: this run got to its end."""
        number = entry.number
        if not 0 <= number < self.jobs or self._kinds[number] not in (Kind.REQUEST, Kind.FLOOD):
            self._strangers += 1
            return
        self._runs[number] = min(255, self._runs[number] + 1)
        if self._runs[number] > 1:
            return
        self._early += entry.waited < -EARLY
        self._starts[number] = self._dues[number] + entry.waited
        if self._kinds[number] == Kind.FLOOD:
            self.flooder.ran(entry.waited)
        else:
            self.clients[self._clients[number]].ran(entry.waited)
            self.days[entry.day] += 1
            self.statuses[f"{entry.status // 100}xx"] += 1

    # --- what it comes to ---

    @property
    def completed_once(self) -> int:
        """Jobs that got to their end once and not again, as they wrote down themselves."""
        return self._runs.count(1)

    @property
    def completed_twice(self) -> int:
        """Jobs that got to their end more than once: their process was killed before that was settled."""
        return sum(runs > 1 for runs in self._runs)

    def small_clients(self) -> tuple[int, int]:
        """The quieter half: how many clients they are, and the most jobs that one of them has."""
        jobs = [account.jobs for account in self.clients.values()]
        most = median_low(jobs) if jobs else 0
        return sum(number <= most for number in jobs), most

    def accounts(self) -> dict[str, Account]:
        """The small clients as one; the busiest of the log (its address is not shown: it may be a person's); the
        flooder."""
        return self._summed(self.clients, self.flooder)

    def accounts_by_arrival(self) -> dict[str, Account]:
        """The same, had a queue that is not fair given the same starts to the jobs in the order they were due."""
        clients = {name: Account(account.jobs) for name, account in self.clients.items()}
        flooder = Account(self.flooder.jobs)
        ran = [number for number, start in enumerate(self._starts) if start]
        starts = sorted(self._starts[number] for number in ran)
        for number, start in zip(sorted(ran, key=self._dues.__getitem__), starts, strict=True):
            account = flooder if self._kinds[number] == Kind.FLOOD else clients[self._clients[number]]
            account.ran(max(0.0, start - self._dues[number]))
        return self._summed(clients, flooder)

    def _summed(self, clients: dict[str, Account], flooder: Account) -> dict[str, Account]:
        whole, (_, most) = Account(), self.small_clients()
        for account in clients.values():
            if account.jobs <= most:
                whole.jobs += account.jobs
                whole.done += account.done
                whole.waited += account.waited
                whole.longest = max(whole.longest, account.longest)
        busiest = max(clients.values(), key=lambda account: account.jobs, default=Account())
        return {"small": whole, "busiest": busiest, "flooder": flooder}

    def faults(self, counts: Counts, killed: int = 0) -> list[str]:
        """Why the books do not balance, one sentence each; [] when they do.

        killed  jobs in the hands of a process that was killed, which may run twice
        """
        return list(self._faults(counts, killed))

    def _faults(self, counts: Counts, killed: int) -> Iterator[str]:
        if left := counts.waiting + counts.running:
            yield f"{left:,} jobs are still in the queue"
        if counts.completed + counts.dead != self.jobs:
            yield f"{self.jobs:,} jobs in, but {counts.completed:,} completed + {counts.dead:,} dead"
        broken = self._kinds.count(Kind.BROKEN)
        if counts.dead != broken:
            yield f"{counts.dead:,} dead letters, but {broken} job always fails"
        for word, number in (("cancelled", counts.cancelled), ("expired", counts.expired), ("dropped", counts.dropped)):
            if number:
                yield f"{number:,} jobs were {word}, and none was meant to be"
        yield from self._faults_of_runs(counts.lost + killed)
        # A job whose lease ran out (a machine that stood still) runs again, by no plan of ours.
        if counts.retried != self.planned_retries and not (counts.lost or killed):
            yield f"{self.planned_retries:,} retries planned, {counts.retried:,} counted"
        if self.days != self._expected:
            yield f"requests per day were read as {_told(self._expected)} and counted as {_told(self.days)}"

    def _faults_of_runs(self, cut: int) -> Iterator[str]:
        lost = [n for n, (kind, runs) in enumerate(self._marks()) if kind != Kind.BROKEN and not runs]
        if lost:
            yield f"{len(lost):,} jobs never recorded a run to the end, the first is number {lost[0]}"
        twice = [n for n, (_, runs) in enumerate(self._marks()) if runs > 1]
        if len(twice) > cut:
            yield f"{len(twice):,} jobs ran to the end more than once, the first is number {twice[0]}"
        if self._strangers:
            yield f"{self._strangers:,} entries in the journal are of no job that should have written one"
        if self._early:
            yield f"{self._early:,} jobs started before they were due"

    def _marks(self) -> Iterator[tuple[int, int]]:
        return zip(self._kinds, self._runs, strict=True)


def _told(days: Counter[str]) -> str:
    return ", ".join(f"{day} {number}" for day, number in sorted(days.items())) or "none"
