"""The demo's ledger. It checks that the enqueued jobs, the runs that they recorded and the server's counts agree."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from statistics import median_low

from penstock.demo.tasks import RETRIES, JournalEntry
from penstock.jobs.counts import Counts

EARLY = 0.01
"""Seconds by which the clock may have been set back between a job's enqueue and its start."""


class Kind(IntEnum):
    REQUEST = 0
    FLOOD = 1
    GREETING = 2
    BROKEN = 3


@dataclass(slots=True)
class TenantWaits:
    """Jobs of one tenant or several: how many, how many done, and the seconds from due time to first start."""

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


class Ledger:
    """The enqueued jobs, and the runs that they recorded. Jobs are numbered from 0 in the order of their enqueue."""

    def __init__(self) -> None:
        self.flooder = TenantWaits()
        self.clients: dict[str, TenantWaits] = {}
        self.malformed = 0
        self.delayed = 0
        self.planned_retries = 0
        self.days: Counter[str] = Counter()
        """Requests per day, as the jobs parsed them."""
        self.statuses: Counter[str] = Counter()
        """Requests per class of status, as the jobs parsed them."""
        self._expected: Counter[str] = Counter()
        self._kinds = bytearray()
        self._clients: list[str] = []
        self._dues = array("d")
        self._starts = array("d")
        self._runs = bytearray()
        self._early = 0
        self._foreign_entries = 0

    @property
    def jobs(self) -> int:
        return len(self._kinds)

    @property
    def requests(self) -> int:
        return self._expected.total()

    # --- jobs that are enqueued ---

    def flood(self, due: float) -> int:
        """Enter a job of the flooder; returns its number."""
        self.flooder.jobs += 1
        return self._enter(Kind.FLOOD, due)

    def request(self, client: str, day: str, due: float, *, fails: int = 0, delayed: bool = False) -> int:
        self._expected[day] += 1
        self.planned_retries += fails
        self.delayed += delayed
        self.clients.setdefault(client, TenantWaits()).jobs += 1
        return self._enter(Kind.REQUEST, due, client)

    def greeting(self, due: float) -> None:
        """Enter the first job, whose result was awaited."""
        self._runs[self._enter(Kind.GREETING, due)] = 1

    def broken(self, due: float) -> None:
        """Enter the job that always fails."""
        self.planned_retries += RETRIES
        self._enter(Kind.BROKEN, due)

    def _enter(self, kind: Kind, due: float, client: str = "") -> int:
        self._kinds.append(kind)
        self._clients.append(client)
        self._dues.append(due)
        self._starts.append(0.0)
        self._runs.append(0)
        return self.jobs - 1

    # --- runs that are recorded ---

    def record(self, entry: JournalEntry) -> None:
        """Record a journal entry: this run finished."""
        number = entry.number
        if not 0 <= number < self.jobs or self._kinds[number] not in (Kind.REQUEST, Kind.FLOOD):
            self._foreign_entries += 1
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

    # --- results ---

    @property
    def completed_once(self) -> int:
        """Jobs with exactly one finished run in the journal."""
        return self._runs.count(1)

    @property
    def completed_twice(self) -> int:
        """Jobs with several finished runs: their process was killed before it settled them."""
        return sum(runs > 1 for runs in self._runs)

    def small_clients(self) -> tuple[int, int]:
        """The quieter half of the clients: their number, and the most jobs that one of them has."""
        jobs = [account.jobs for account in self.clients.values()]
        most = median_low(jobs) if jobs else 0
        return sum(number <= most for number in jobs), most

    def waits(self) -> dict[str, TenantWaits]:
        """Waits of all small clients together, of the busiest client of the log, and of the flooder.

        The busiest client's address is not shown, because it may belong to a person.
        """
        return self._summed(self.clients, self.flooder)

    def waits_by_arrival(self) -> dict[str, TenantWaits]:
        """These waits for a first-come queue: the same start times, assigned to the jobs by due time."""
        clients = {name: TenantWaits(account.jobs) for name, account in self.clients.items()}
        flooder = TenantWaits(self.flooder.jobs)
        ran = [number for number, start in enumerate(self._starts) if start]
        starts = sorted(self._starts[number] for number in ran)
        for number, start in zip(sorted(ran, key=self._dues.__getitem__), starts, strict=True):
            account = flooder if self._kinds[number] == Kind.FLOOD else clients[self._clients[number]]
            account.ran(max(0.0, start - self._dues[number]))
        return self._summed(clients, flooder)

    def _summed(self, clients: dict[str, TenantWaits], flooder: TenantWaits) -> dict[str, TenantWaits]:
        whole, (_, most) = TenantWaits(), self.small_clients()
        for account in clients.values():
            if account.jobs <= most:
                whole.jobs += account.jobs
                whole.done += account.done
                whole.waited += account.waited
                whole.longest = max(whole.longest, account.longest)
        busiest = max(clients.values(), key=lambda account: account.jobs, default=TenantWaits())
        return {"small": whole, "busiest": busiest, "flooder": flooder}

    def faults(self, counts: Counts, killed: int = 0) -> list[str]:
        """One sentence for each disagreement; [] when the three sources agree.

        killed: claimed jobs of a process that was killed, which may run twice
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
                yield f"{number:,} jobs were {word}, although no job should have been"
        yield from self._faults_of_runs(counts.lost + killed)
        # A job whose lease ran out, because the machine stood still, runs again without being planned.
        if counts.retried != self.planned_retries and not (counts.lost or killed):
            yield f"{self.planned_retries:,} retries planned, {counts.retried:,} counted"
        if self.days != self._expected:
            yield f"requests per day were parsed as {_listed(self._expected)} and counted as {_listed(self.days)}"

    def _faults_of_runs(self, interrupted: int) -> Iterator[str]:
        """`interrupted`: jobs that may run twice."""
        lost = [n for n, (kind, runs) in enumerate(self._kinds_and_runs()) if kind != Kind.BROKEN and not runs]
        if lost:
            yield f"{len(lost):,} jobs never recorded a run to the end, the first is number {lost[0]}"
        twice = [n for n, (_, runs) in enumerate(self._kinds_and_runs()) if runs > 1]
        if len(twice) > interrupted:
            yield f"{len(twice):,} jobs ran to the end more than once, the first is number {twice[0]}"
        if self._foreign_entries:
            yield f"{self._foreign_entries:,} entries in the journal belong to no job that writes one"
        if self._early:
            yield f"{self._early:,} jobs started before they were due"

    def _kinds_and_runs(self) -> Iterator[tuple[int, int]]:
        return zip(self._kinds, self._runs, strict=True)


def _listed(days: Counter[str]) -> str:
    return ", ".join(f"{day} {number}" for day, number in sorted(days.items())) or "none"
