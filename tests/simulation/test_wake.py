"""Processes that are idle, work, freeze and die, in simulated time on a real server: does every job start in time?

Each process has one worker. It takes a turn when a message asks for one, when the time that the server named is over,
and to renew its registration as idle. Nothing else wakes it. A seed determines the whole history.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from penstock.jobs.claims import Claim
from tests.jobs.stand import START, FakeWorker, Stand, settlement
from tests.servers import Server

LEASE = 10.0
HEARTBEAT = 3.0
IDLE_TTL = 50.0
RENEWAL = 20.0

PROMPT = 0.51
"""Seconds within which a job starts once it can: 0.5, and a little for the 50 ms that a lost wake-up may cost."""

AFTER_FREEZE = IDLE_TTL + RENEWAL + 5
"""Seconds until the next fault. For so long the server may regard a frozen process as idle, and as the timekeeper."""

AFTER_DEATH = 1.0
"""Seconds until the next fault. The server finds soon that a process is gone."""


@dataclass
class Process:
    """One process with some runners. It is idle if `idle_since` is a time and it is not frozen."""

    name: str
    runners: int
    worker: FakeWorker
    serial: int = 0
    running: dict[str, Run] = field(default_factory=dict)
    wake_at: float = 0.0
    heartbeat_at: float = 0.0
    frozen_until: float = 0.0
    idle_since: float | None = None
    turns: list[float] = field(default_factory=list)

    @property
    def acts_at(self) -> float:
        due = [run.done_at for run in self.running.values()] + [self.heartbeat_at] * bool(self.running)
        return max(min(due + [self.wake_at] * (len(self.running) < self.runners)), self.frozen_until)


@dataclass(frozen=True)
class Run:
    claim: Claim
    done_at: float


class World:
    """The server and all processes. `possible`: for each unfinished job the time since when it could be started."""

    def __init__(self, stand: Stand, seed: int, size: int) -> None:
        self.stand = stand
        self.chance = random.Random(seed)
        self.now = 0.0
        self.started = 0
        self.jobs = 0
        self.possible: dict[str, float] = {}
        self.processes: list[Process] = []
        self.fault_at = 5.0
        for _ in range(size):
            self.start_process()

    def start_process(self) -> None:
        self.started += 1
        name = f"p{self.started}"
        self.stand.start_processes(name)
        runners = self.chance.choice([1, 1, 2, 3])
        self.processes.append(Process(name, runners, FakeWorker(self.stand, f"{name}.0", LEASE), wake_at=self.now))

    # --- time ---

    def run(self, until: float, jobs_per_second: float) -> None:
        """Let jobs arrive, and faults with them, up to this time."""
        while True:
            one = min(self.processes, key=lambda process: process.acts_at)
            arrival = self.now + self.chance.expovariate(jobs_per_second) if jobs_per_second else until
            self.now = max(self.now, min(one.acts_at, arrival, until))
            self.stand.clock.now_ms = START + round(self.now * 1000)
            if self.now >= until:
                return
            if arrival < one.acts_at:
                self.add_jobs_and_faults()
            else:
                self.act(one)
            self.deliver()

    def deliver(self) -> None:
        for one in self.processes:
            if one.frozen_until <= self.now:
                for message in self.stand.messages(one.name):
                    one.wake_at = min(one.wake_at, self.now + int(message.split()[1]) / 1000)

    # --- processes ---

    def act(self, one: Process) -> None:
        if (
            any(run.done_at <= self.now for run in one.running.values())
            or one.heartbeat_at > self.now
            or not one.running
        ):
            self.turn(one)
        elif one.worker.heartbeat():
            self.lease_renewed(one)
        else:
            self.next_incarnation(one)

    def lease_renewed(self, one: Process) -> None:
        """The lease was renewed just now."""
        one.heartbeat_at = self.now + HEARTBEAT
        for key in one.running:
            self.possible[key] = self.now + LEASE

    def next_incarnation(self, one: Process) -> None:
        one.serial += 1
        one.worker, one.wake_at = FakeWorker(self.stand, f"{one.name}.{one.serial}", LEASE), self.now
        one.running = {}

    def turn(self, one: Process) -> None:
        """Settle finished jobs and claim as many as there are free runners. With fewer jobs it becomes idle."""
        one.turns.append(self.now)
        assert len(one.turns) < 20_000, "a turn leads to another turn without end"
        done = [key for key, run in one.running.items() if run.done_at <= self.now]
        delay = self.chance.choice([0, 0, 0, 0.7, 4])
        ends = [settlement(one.running[key].claim, "retry" if delay else None, delay) for key in done]
        want = one.runners - len(one.running) + len(done)
        turn = one.worker.turn(want, *ends, address=f"{one.name}/1", sleep=IDLE_TTL)
        if not turn.alive:
            self.next_incarnation(one)
            return
        assert not turn.stale
        for key in done:
            del one.running[key]
            if delay:
                self.possible[key] = self.now + delay
            else:
                del self.possible[key]
        for claim in turn.claims:
            self.judge(claim)
            duration = self.chance.choice([0.01] * 10 + [0.1] * 5 + [1] * 5 + [25] * 3)
            one.running[claim.id] = Run(claim, self.now + duration)
        self.lease_renewed(one)
        if len(one.running) == one.runners:
            one.idle_since = None
        else:
            one.idle_since = self.now if one.idle_since is None else one.idle_since
            one.wake_at = self.now + (0 if turn.more else RENEWAL if turn.due_in is None else min(RENEWAL, turn.due_in))

    def judge(self, claim: Claim) -> None:
        """A process that was idle all the time should have started the job in time."""
        possible = self.possible[claim.id]
        if self.now - possible > PROMPT:
            idle = [
                one.name
                for one in self.processes
                if one.idle_since is not None and max(one.idle_since, one.frozen_until) <= possible
            ]
            assert not idle, f"{claim.id} could start at {possible:.3f}, started at {self.now:.3f}, idle were {idle}"

    # --- faults ---

    def add_jobs_and_faults(self) -> None:
        if self.now >= self.fault_at:
            busy = [one for one in self.processes if one.running]
            fault = self.chance.choice([self.freeze, self.kill, self.kill, self.kill_under_supervisor])
            fault(self.chance.choice(busy or self.processes))
            self.fault_at = self.now + (AFTER_FREEZE if fault == self.freeze else AFTER_DEATH)
        for _ in range(self.chance.choice([1, 1, 1, 4])):
            self.jobs += 1
            delay = self.chance.choice([0, 0, 0, 0.4, 3, 12])
            self.possible[f"j{self.jobs}"] = self.now + delay
            self.stand.put(f"j{self.jobs}", tenant=self.chance.choice("abc"), delay=delay, ttl=0)

    def freeze(self, one: Process) -> None:
        one.frozen_until = self.now + self.chance.choice([0.5, 5, 14])

    def kill(self, one: Process) -> None:
        self.processes.remove(one)
        self.stand.kill_processes(one.name)
        self.start_process()

    def kill_under_supervisor(self, one: Process) -> None:
        """The supervisor of the process sees it die."""
        self.kill(one)
        self.stand.run(self.stand.bindings.abandon(one.worker.incarnation))
        self.possible |= dict.fromkeys(one.running, self.now)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as started:
        yield started


@pytest.mark.parametrize("seed", range(16))
def test_a_job_starts_in_time_while_a_process_is_idle(server: Server, seed: int):
    server.client.flushall()
    world = World(Stand(server.client), seed, size=3 + seed % 3)
    world.run(until=240, jobs_per_second=[0.05, 0.2, 0.4][seed % 3])
    world.run(until=600, jobs_per_second=0)
    assert world.possible == {}


def test_idle_processes_take_few_turns(server: Server):
    """At most one more than the renewal every 20 s."""
    server.client.flushall()
    world = World(Stand(server.client), 0, size=5)
    world.run(until=20, jobs_per_second=1)
    world.run(until=300, jobs_per_second=0)
    for one in world.processes:
        one.turns.clear()
    world.run(until=500, jobs_per_second=0)
    assert all(len(one.turns) <= 20 for one in world.processes)
