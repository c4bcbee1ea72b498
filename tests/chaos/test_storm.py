"""Everything that can die dies, again and again, and the jobs are none the worse."""

import faulthandler
import time
from collections import Counter
from pathlib import Path

from penstock.testing.history import Lost, Started
from tests.chaos import storm
from tests.chaos.hatchery import children
from tests.chaos.scene import Scene
from tests.chaos.storm import Blow
from tests.speed import scaled

LEASE = 2.0
WORKERS = 3
"""Plain ones, with four runners each; beside them a supervisor with two children of two runners."""

PRODUCERS = 3
RATE = 150.0
"""Jobs a second of each producer: 27 thousand in a minute."""

TAKEOVER = 60.0
"""Seconds. Long, because suspects are tried one after the other, and on a crowded machine most workers die before they
have begun. `test_takeover.py` is strict, in calm weather."""

LATE = 0.5
"""Seconds. A storm that was held up goes on in its own time: it does not strike all at once."""


class Storm:
    """Carries the blows of a plan out, and puts a new process in the place of each that was killed."""

    def __init__(self, scene: Scene, seed: int, seconds: float) -> None:
        self.scene = scene
        self.blows = storm.plan(seed, seconds)
        self.seed = seed
        self.until = time.time() + seconds
        self.frozen: dict[int, float] = {}
        self.producers: list[int] = []
        self.made = self.begun = self.supervisor = 0

    def rage(self) -> None:
        for _ in range(PRODUCERS):
            self._produce()
        for _ in range(WORKERS):
            self._work()
        self._supervise()
        began = time.monotonic()
        for blow in self.blows:
            while (left := began + blow.at - time.monotonic()) > 0:
                time.sleep(min(left, 0.05))
                self._thaw()
            began += max(0.0, -left - LATE)
            self._strike(blow)
        self._thaw(all_of_them=True)

    def _produce(self) -> None:
        self.made += 1
        name = f"p{self.made}"
        order = {"name": name, "seed": self.seed, "until": self.until, "rate": RATE}
        address = (self.scene.proxy if self.made % 2 else self.scene.server).address
        self.producers.append(self.scene.hatchery.producer(address, **order))

    def _work(self) -> None:
        self.begun += 1
        self.scene.start_worker("--concurrency", "4", lossy=self.begun % 2 == 0)

    def _supervise(self) -> None:
        self.supervisor = self.scene.start_worker("--processes", "2", "--concurrency", "2")

    def _thaw(self, *, all_of_them: bool = False) -> None:
        for pid in [pid for pid, till in self.frozen.items() if all_of_them or till <= time.monotonic()]:
            del self.frozen[pid]
            self.scene.thaw(pid)

    def _strike(self, blow: Blow) -> None:
        scene = self.scene
        # Who is frozen is left alone, to find out that its lease is gone.
        awake = [pid for pid in scene.workers if pid not in {*self.frozen, self.supervisor}]
        match blow.what:
            # The oldest, and none that has not begun: else nobody works on a crowded machine.
            case "kill" if found := [pid for pid in awake if pid in scene.hands()]:
                scene.kill(found[0])
                self._work()
            case "kill child" if found := children(self.supervisor):
                scene.kill(found[int(blow.whom * len(found))])
            case "kill supervisor":
                scene.kill(self.supervisor)
                self._supervise()
            case "freeze" if awake:
                pid = awake[int(blow.whom * len(awake))]
                scene.freeze(pid)
                self.frozen[pid] = time.monotonic() + blow.amount
            case "kill producer":
                scene.kill(self.producers.pop(int(blow.whom * PRODUCERS)))
                self._produce()
            case "lose replies":
                scene.proxy.lose_replies(int(blow.amount))
            case "cut":
                scene.server.client.client_kill_filter(_type="normal", skipme=True)
            case "forget":
                scene.server.client.script_flush()
            case "restart":
                scene.restart_server(blow.amount)


def test_a_storm_is_made_from_its_seed():
    blows = storm.plan(7, 120)
    assert blows == storm.plan(7, 120) != storm.plan(8, 120)
    seen = Counter(blow.what for blow in blows)
    assert seen["restart"] == 4
    for what, rate in storm.RATES.items():
        assert 0.4 * rate * 120 <= seen[what] <= 1.8 * rate * 120


def test_no_storm_loses_a_job_or_completes_one_twice(tmp_path: Path):
    seed, seconds = storm.seed(), storm.seconds()
    faulthandler.cancel_dump_traceback_later()  # longer than other tests may take; it has deadlines of its own
    with Scene(tmp_path, lease=LEASE) as scene:
        Storm(scene, seed, seconds).rage()
        counts = scene.drain(within=60 + 2 * seconds)
        faults = scene.verdict(scaled(TAKEOVER))
        events = scene.events()
        print(Counter(type(event).__name__ for event in events), counts)
        assert faults == []
        assert "Traceback" not in scene.said()
        # It was a storm: jobs were enqueued all the time, runs were cut off, leases lost.
        assert counts.completed > 20 * seconds
        assert counts.lost > seconds / 5
        assert scene.proxy.lost > seconds / 5
        runs = Counter(event.job for event in events if isinstance(event, Started))
        assert sum(n > 1 for n in runs.values()) > seconds / 5
        assert seconds < 120 or any(isinstance(event, Lost) for event in events)
