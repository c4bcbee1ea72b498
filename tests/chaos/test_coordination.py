"""Processes lead, observe, count down latches, meet and use a rate limit while they are killed and frozen, connections
are cut and the server is restarted. Their histories are checked."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock import Penstock
from penstock.testing import barrier_violations, election_violations, latch_violations, rate_violations
from penstock.testing.history import BarrierEnded, FaultInjected, History, LatchPassed, RateGranted, StillLeads, read
from tests.servers import Server, eventually
from tests.speed import scaled

PROCESS = Path(__file__).with_name("coordination_process.py")
NAME = "chaos"
COUNT = PARTIES = 3
LIMIT, PER, BURST = 20, 1.0, 5


class Processes:
    def __init__(self, address: str, folder: Path, seed: int, size: int) -> None:
        self.address, self.folder = address, folder
        self.chance, self.history = random.Random(seed), History(folder)
        self.running: list[subprocess.Popen[bytes]] = []
        self.started = seed * 1000
        for _ in range(size):
            self.start()

    def start(self) -> None:
        self.started += 1
        words = [sys.executable, str(PROCESS), self.address, str(self.folder), str(self.started)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        self.running.append(subprocess.Popen(words, stdin=subprocess.PIPE, env=environment))

    def kill(self) -> None:
        one = self.running.pop(self.chance.randrange(len(self.running)))
        self._end(one)
        self.history.note(FaultInjected(worker=str(one.pid), how="killed"))
        self.start()

    def freeze(self) -> None:
        """Freeze a process for a moment, or for longer than a lease."""
        one = self.chance.choice(self.running)
        one.send_signal(signal.SIGSTOP)
        time.sleep(self.chance.uniform(0.1, 1.6))
        one.send_signal(signal.SIGCONT)

    def end(self) -> list[int]:
        """End all processes. Returns their exit codes."""
        for one in self.running:
            assert one.stdin is not None
            one.stdin.close()
        return [one.wait(scaled(60)) for one in self.running]

    def close(self) -> None:
        for one in self.running:
            self._end(one)

    def _end(self, one: subprocess.Popen[bytes]) -> None:
        one.kill()
        assert one.stdin is not None
        one.stdin.close()
        one.wait()


@pytest.fixture
def processes(start: Callable[..., Server], tmp_path: Path) -> Iterator[tuple[Server, Processes]]:
    server = start("--appendonly", "yes", "--appendfsync", "no")
    made = Processes(server.address, tmp_path, seed=random.randrange(1000), size=5)
    print(f"seed {made.started // 1000}")  # pytest shows it if the test fails
    yield server, made
    made.close()


def test_what_processes_wait_for_keeps_its_promises_under_failures(processes: tuple[Server, Processes]):
    server, contenders = processes

    cuts = [server.cut_calls, server.cut_subscribers, server.cut_subscribers]
    failures = [contenders.kill, contenders.freeze, contenders.freeze, *cuts]
    eventually(lambda: any(isinstance(event, BarrierEnded) for event in read(contenders.folder)), within=60)
    until = time.monotonic() + 8
    restart_at = time.monotonic() + 4
    while time.monotonic() < until:
        contenders.chance.choice(failures)()
        time.sleep(contenders.chance.uniform(0.1, 0.7))
        if restart_at < time.monotonic():
            restart_at = until
            server.restart()
    time.sleep(2)  # they recover
    assert contenders.end() == [0] * 5
    events = read(contenders.folder)
    seen = Counter(type(event) for event in events)
    assert min(seen[kind] for kind in (StillLeads, LatchPassed, BarrierEnded, RateGranted)) > 5, seen
    assert any(isinstance(event, BarrierEnded) and event.outcome == "passed" for event in events)
    assert election_violations(events) == []
    counts = {event.latch: COUNT for event in events if isinstance(event, LatchPassed)}
    assert latch_violations(events, counts, all_waited=False) == []
    assert barrier_violations(events, {NAME: PARTIES}) == []
    # A process may be frozen, or slow, between the grant and its record.
    assert rate_violations(events, limit=LIMIT, per=PER, burst=BURST, slack=scaled(3)) == []
    with Penstock(server.address) as app:
        eventually(lambda: app.election(NAME).leader() is None)
        eventually(lambda: app.barrier(NAME, parties=PARTIES).info().waiting == 0)
