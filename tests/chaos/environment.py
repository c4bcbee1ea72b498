"""The server, the proxy, the processes and the history of a chaos test."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from penstock import Call
from penstock.core.keys import key_pattern
from penstock.info import Counts
from penstock.jobs import constants
from penstock.jobs.counts import total_counts
from penstock.jobs.failures import Failures
from penstock.testing import job_violations
from penstock.testing.audit.instances import audits
from penstock.testing.audit.stored_keys import read_keys
from penstock.testing.history import Enqueued, Event, FaultInjected, FinalState, History, Outage, read
from tests.chaos.forker import Forker, is_running
from tests.chaos.load import ended_jobs
from tests.chaos.tasks import QUEUES, make_app, register_newer
from tests.driver.proxy import Proxy
from tests.servers import Server, eventually
from tests.speed import Deadline

_ENDS = {
    constants.COMPLETED: "completed",
    constants.CANCELLED: "cancelled",
    constants.EXPIRED: "expired",
    constants.DROPPED: "dropped",
}
_STATES = {constants.READY: "ready", constants.DELAYED: "delayed", constants.RUNNING: "running", constants.DEAD: "dead"}

_KEPT_UNTIL = 6
"""Bytes before the letter of a result: until when it is kept."""


class Environment:
    """Starts and stops workers and the server, records what it does to them, and checks the history at the end.

    workers  the process ids of the workers that should be alive
    """

    def __init__(self, folder: Path, *, lease: float) -> None:
        self._stack = contextlib.ExitStack()
        # Not `everysec`: during an fsync that server answers before it has written (for up to 2 s), and a kill in that
        # moment loses what it has acknowledged. With `no`, as with `always`, it writes first.
        self.server = self._stack.enter_context(Server("--appendonly", "yes", "--appendfsync", "no"))
        self.proxy = Proxy(self.server)
        self._stack.callback(self.proxy.close)
        self.forker = self._stack.enter_context(Forker(folder, lease=lease))
        self.history = History(self.forker.history)
        self.app = make_app(self.server.address)
        self.queues = [self.app.queue(name) for name in QUEUES]
        for queue in self.queues:
            queue.keep(finished=10_000_000, arguments=True)
        self.tasks = register_newer(self.app)
        self._stack.callback(self.app.close)
        self.workers: list[int] = []

    def __enter__(self) -> Environment:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __repr__(self) -> str:
        return f"<Environment {self.server.folder}>"

    # --- workers and the server ---

    def start_worker(self, *words: str, lossy: bool = False, **options: Any) -> int:
        """Start `penstock worker` with these words. Returns its process id. Without `--processes` it has no supervisor.

        `lossy` connects it through the proxy; `options` are other defaults for its WorkerSettings.
        """
        address = self.proxy.address if lossy else self.server.address
        if "--processes" not in words:
            words = ("--processes", "0", *words)
        pid = self.forker.start_worker(address, "--log-level", "warning", *words, **options)
        self.workers.append(pid)
        return pid

    def kill(self, pid: int) -> None:
        """Kill a process, and record that when it is dead: the history has no later event of it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: not is_running(pid))
        self.history.note(FaultInjected(worker=str(pid), how="killed"))
        self.workers = [other for other in self.workers if other != pid]

    def freeze(self, pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        self.history.note(FaultInjected(worker=str(pid), how="frozen"))

    def thaw(self, pid: int) -> None:
        self.history.note(FaultInjected(worker=str(pid), how="thawed"))
        os.kill(pid, signal.SIGCONT)

    def stop(self, *pids: int, within: float = 60.0) -> None:
        """Stop processes gracefully, and wait until they have ended."""
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
        self.until(lambda: not any(is_running(pid) for pid in pids), within)
        self.workers = [pid for pid in self.workers if pid not in pids]

    def stop_workers(self) -> None:
        self.stop(*self.workers)

    def restart_server(self, away: float) -> None:
        self.history.note(Outage(what="server", over=False))
        self.server.restart(away)
        self.history.note(Outage(what="server", over=True))

    # --- jobs ---

    def until(self, condition: Any, within: float) -> None:
        deadline = Deadline(within)
        while not condition():
            assert not deadline.passed(), f"not within {within} s; {self.counts()}; {self.logs()[-4000:]}"
            time.sleep(0.02)

    def counts(self) -> Counts:
        return total_counts([queue.count() for queue in self.queues])

    def held_jobs(self) -> dict[int, int]:
        """How many jobs each worker holds, by its process id."""
        held: Counter[int] = Counter()
        for one in (one for queue in self.queues for one in queue.workers() if one.name):
            held[int(one.name.partition(":")[2])] += one.held
        return held

    @property
    def bases(self) -> list[str]:
        """What the names of each queue's keys begin with."""
        return [queue.first.bindings.keys.base for queue in self.queues]

    def is_unfinished(self, job: str) -> bool:
        return any(self.server.client.hexists(f"{base}jobs", job) for base in self.bases)

    def drain(self, within: float) -> Counts:
        """Wait until no job waits or runs."""
        self.until(lambda: not (now := self.counts()).waiting and not now.running, within)
        return self.counts()

    def logs(self) -> str:
        """Everything that the processes have logged."""
        return self.forker.log.read_text()

    def enqueue(self, *calls: Call[int]) -> list[str]:
        """Enqueue from the test's own process, and record it. Returns the ids."""
        jobs = [job.key for job in self.app.enqueue_many(calls)]
        for job in jobs:
            self.history.note(Enqueued(job=job, answer="accepted"))
        return jobs

    # --- the history ---

    def record_states(self, jobs: Iterable[str]) -> None:
        """Record the present state of each of these jobs."""
        rest = iter(jobs)
        while some := list(islice(rest, 1000)):
            in_queues = [self._states(base, some) for base in self.bases]
            for found in zip(*in_queues, strict=True):
                self.history.note(max(found, key=lambda one: one.state != "unknown"))

    def _states(self, base: str, jobs: list[str]) -> list[FinalState]:
        """The states of these jobs in one queue: `unknown` for those of other queues."""
        kept = [self.server.client.hmget(base + key, jobs) for key in ("jobs", "failures", "owners", "results")]
        return [_found(*found) for found in zip(jobs, *kept, strict=True)]

    def events(self) -> list[Event]:
        return read(self.forker.history)

    def faults(self, takeover: float) -> list[str]:
        """Stop the workers, record where each job is, and return what the history shows that must not happen.

        Call it when no job waits any more. `takeover` is the longest time in seconds that a job of a dead worker may
        wait for its next run.
        """
        self.stop_workers()
        self.record_states(dict.fromkeys(event.job for event in self.events() if isinstance(event, Enqueued)))
        faults = job_violations(self.events(), takeover=takeover, drained=True)
        faults += self._wrong_rows()
        # Leftovers are allowed: a worker that was killed while it waited is still registered.
        keys = list(read_keys(self.server.client, key_pattern("storm")))
        faults += [problem for key in keys for problem in key.problems()]
        faults += [problem for audit in audits(keys).values() for problem in audit.problems()]
        return faults

    def _wrong_rows(self) -> list[str]:
        """A sentence for each job that has ended and does not have exactly one row, and for each row of another job."""
        final: dict[str, str] = {event.job: event.state for event in self.events() if isinstance(event, FinalState)}
        rows = [(row.id.partition(":")[2], str(row.status)) for queue in self.queues for row in ended_jobs(queue)]
        wanted = Counter((job, state) for job, state in final.items() if state in {*_ENDS.values(), "dead"})
        found = Counter(rows)
        wrong = [
            f"job {job} is {state}, and has {found[job, state]} rows instead of {wanted[job, state]}"
            for job, state in {*wanted, *found}
            if found[job, state] != wanted[job, state]
        ]
        ended = {job for job, state in wanted if state != "dead"}
        blocks = [block for base in self.bases for block in self.server.client.scan_iter(f"{base}arguments:*")]
        kept = {key.decode() for block in blocks for key in self.server.client.hkeys(block)}
        return wrong + [f"job {job} has ended, or not, and its arguments are not kept so" for job in ended ^ kept]


def _found(
    job: str, record: bytes | None, failures: bytes | None, owner: bytes | None, result: bytes | None
) -> FinalState:
    if record is not None:
        why = Failures.read(failures).reason
        state = _STATES[constants.RUNNING if owner else record[1:2]]
        return FinalState(job=job, state=state, reason=why)  # type: ignore[arg-type]
    if result is None:
        return FinalState(job=job, state="unknown")
    end = result[_KEPT_UNTIL:]
    has_number = end[:1] == constants.COMPLETED and end[1:] != b"null"
    claim = int(end[1:]) if has_number else 0
    return FinalState(job=job, state=_ENDS[end[:1]], claim=claim)  # type: ignore[arg-type]
