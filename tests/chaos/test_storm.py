"""Workers, producers, supervisors and the server are killed again and again, and no job is lost or completed twice."""

import faulthandler
import time
from collections import Counter
from pathlib import Path

from penstock.testing.history import LeaseExpired, Started
from tests.chaos import storm
from tests.chaos.environment import Environment
from tests.chaos.forker import child_pids
from tests.chaos.storm import Failure
from tests.chaos.tasks import BATCHES
from tests.speed import scaled
from tests.tracebacks import unexplained

LEASE = 2.0
WORKERS = 3
"""Workers with four runners each. Beside them there is a supervisor with two worker processes of two runners each."""

PRODUCERS = 3
RATE = 150.0
"""Jobs a second of each producer: 27 thousand in a minute."""

TAKEOVER = 60.0
"""Seconds. Long, because suspects are tried one after the other, and on a crowded machine most workers die before their
first turn. `test_takeover.py` holds a strict limit, without a storm."""

LATE = 0.5
"""Seconds. A storm that is later than this moves the rest of its plan back, so that failures do not pile up."""


class StormRunner:
    """Causes the failures of a plan, and starts a new process for each one that it kills."""

    def __init__(self, env: Environment, seed: int, seconds: float) -> None:
        self.env = env
        self.failures = storm.plan(seed, seconds)
        self.seed = seed
        self.until = time.time() + seconds
        self.frozen: dict[int, float] = {}
        self.producers: list[int] = []
        self.producers_started = self.workers_started = self.supervisor = 0

    def run(self) -> None:
        for _ in range(PRODUCERS):
            self._start_producer()
        for _ in range(WORKERS):
            self._start_worker()
        self._start_supervisor()
        began = time.monotonic()
        for failure in self.failures:
            while (left := began + failure.at - time.monotonic()) > 0:
                time.sleep(min(left, 0.05))
                self._thaw()
            began += max(0.0, -left - LATE)
            self._cause(failure)
        self._thaw(everything=True)

    def _start_producer(self) -> None:
        self.producers_started += 1
        name = f"p{self.producers_started}"
        arguments = {"name": name, "seed": self.seed, "until": self.until, "rate": RATE}
        address = (self.env.proxy if self.producers_started % 2 else self.env.server).address
        self.producers.append(self.env.forker.start_producer(address, **arguments))

    def _start_worker(self) -> None:
        self.workers_started += 1
        self.env.start_worker("--concurrency", "4", lossy=self.workers_started % 2 == 0)

    def _start_supervisor(self) -> None:
        self.supervisor = self.env.start_worker("--processes", "2", "--concurrency", "2")

    def _thaw(self, *, everything: bool = False) -> None:
        for pid in [pid for pid, till in self.frozen.items() if everything or till <= time.monotonic()]:
            del self.frozen[pid]
            self.env.thaw(pid)

    def _cause(self, failure: Failure) -> None:
        env = self.env
        # A frozen worker is not hit again, so that it can find out later that its lease is lost.
        awake = [pid for pid in env.workers if pid not in {*self.frozen, self.supervisor}]
        match failure.kind:
            # Kill the oldest worker that has taken a turn, so that on a crowded machine some workers get to work.
            case "kill worker" if found := [pid for pid in awake if pid in env.held_jobs()]:
                env.kill(found[0])
                self._start_worker()
            case "kill supervised worker" if found := child_pids(self.supervisor):
                env.kill(found[int(failure.victim * len(found))])
            case "kill supervisor":
                env.kill(self.supervisor)
                self._start_supervisor()
            case "freeze" if awake:
                pid = awake[int(failure.victim * len(awake))]
                env.freeze(pid)
                self.frozen[pid] = time.monotonic() + failure.amount
            case "kill producer":
                env.kill(self.producers.pop(int(failure.victim * PRODUCERS)))
                self._start_producer()
            case "lose replies":
                env.proxy.lose_replies(int(failure.amount))
            case "cut connections":
                env.server.client.client_kill_filter(_type="normal", skipme=True)
            case "flush scripts":
                env.server.client.script_flush()
            case "restart server":
                env.restart_server(failure.amount)


def test_a_storm_depends_only_on_its_seed():
    failures = storm.plan(7, 120)
    assert failures == storm.plan(7, 120) != storm.plan(8, 120)
    seen = Counter(failure.kind for failure in failures)
    assert seen["restart server"] == 4
    for kind, rate in storm.RATES.items():
        assert 0.4 * rate * 120 <= seen[kind] <= 1.8 * rate * 120


def test_no_storm_loses_a_job_or_completes_one_twice(tmp_path: Path):
    seed, seconds = storm.seed(), storm.seconds()
    faulthandler.cancel_dump_traceback_later()  # it takes longer than other tests may, and sets its own deadlines
    with Environment(tmp_path, lease=LEASE) as env:
        StormRunner(env, seed, seconds).run()
        counts = env.drain(within=60 + 2 * seconds)
        faults = env.faults(scaled(TAKEOVER))
        events = env.events()
        print(Counter(type(event).__name__ for event in events), counts)
        assert faults == []
        assert unexplained(env.logs()) == []
        # The storm took place: jobs were enqueued all the time, runs were interrupted, leases were lost.
        assert counts.completed > 20 * seconds
        assert env.app.queue(BATCHES).count().completed > 5 * seconds
        assert counts.lost > seconds / 5
        assert env.proxy.lost > seconds / 5
        runs = Counter(event.job for event in events if isinstance(event, Started))
        assert sum(n > 1 for n in runs.values()) > seconds / 5
        assert seconds < 120 or any(isinstance(event, LeaseExpired) for event in events)
