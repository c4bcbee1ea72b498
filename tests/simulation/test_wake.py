"""Processes that sleep, work, freeze and die, in simulated time on a real server: does every job start in time?

Each process has one worker that does as it is told: it takes a turn when a message says so, when the time that the
server named is over, and to say again that it sleeps. Nothing else wakes it. A seed makes the whole history.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from penstock.jobs.claims import Claim
from tests.jobs.stand import START, Hand, Stand, settlement
from tests.servers import Server

LEASE = 10.0
BEAT = 3.0
SLEEP = 50.0
REFRESH = 20.0

PROMPT = 0.51
"""A job starts within this time of when it could: 0.5 s, and some for the 50 ms a lost wake-up may cost on the way."""

CALM = SLEEP + REFRESH + 5
"""From one trouble to the next: so long the server may take a dead process for asleep, and its office for filled."""


@dataclass
class Process:
    """One process with some runners. It is idle while `idle_since` is a time, and not frozen."""

    name: str
    runners: int
    hand: Hand
    serial: int = 0
    running: dict[str, Run] = field(default_factory=dict)
    wake_at: float = 0.0
    beat_at: float = 0.0
    frozen_until: float = 0.0
    idle_since: float | None = None
    turns: list[float] = field(default_factory=list)

    @property
    def acts_at(self) -> float:
        due = [run.done_at for run in self.running.values()] + [self.beat_at] * bool(self.running)
        return max(min(due + [self.wake_at] * (len(self.running) < self.runners)), self.frozen_until)


@dataclass(frozen=True)
class Run:
    claim: Claim
    done_at: float


class World:
    """`possible`: for each job that is not finished, when it could be started (again)."""

    def __init__(self, stand: Stand, seed: int, size: int) -> None:
        self.stand = stand
        self.chance = random.Random(seed)
        self.now = 0.0
        self.born = 0
        self.jobs = 0
        self.possible: dict[str, float] = {}
        self.processes: list[Process] = []
        self.trouble_at = 5.0
        for _ in range(size):
            self.begin()

    def begin(self) -> None:
        self.born += 1
        name = f"p{self.born}"
        runners = self.chance.choice([1, 1, 2, 3])
        self.processes.append(Process(name, runners, Hand(self.stand, f"{name}.0", LEASE), wake_at=self.now))

    # --- time ---

    def run(self, until: float, jobs_a_second: float) -> None:
        """Until then jobs come, if any, and troubles with them."""
        while True:
            one = min(self.processes, key=lambda process: process.acts_at)
            comes = self.now + self.chance.expovariate(jobs_a_second) if jobs_a_second else until
            self.now = max(self.now, min(one.acts_at, comes, until))
            self.stand.clock.now_ms = START + round(self.now * 1000)
            if self.now >= until:
                return
            if comes < one.acts_at:
                self.happen()
            else:
                self.act(one)
            self.deliver()

    def deliver(self) -> None:
        for one in self.processes:
            if one.frozen_until <= self.now:
                for message in self.stand.messages(one.name):
                    one.wake_at = min(one.wake_at, self.now + int(message.split()[1]) / 1000)

    # --- what processes do ---

    def act(self, one: Process) -> None:
        if any(run.done_at <= self.now for run in one.running.values()) or one.beat_at > self.now or not one.running:
            self.turn(one)
        elif one.hand.beat():
            self.hold(one)
        else:
            self.begin_anew(one)

    def hold(self, one: Process) -> None:
        """Its lease has just been renewed."""
        one.beat_at = self.now + BEAT
        for key in one.running:
            self.possible[key] = self.now + LEASE

    def begin_anew(self, one: Process) -> None:
        one.serial += 1
        one.hand, one.wake_at = Hand(self.stand, f"{one.name}.{one.serial}", LEASE), self.now
        one.running = {}

    def turn(self, one: Process) -> None:
        """Settle what is done, ask for as many jobs as runners are free, lie down if there are less."""
        one.turns.append(self.now)
        assert len(one.turns) < 20_000, "turns lead to turns"
        done = [key for key, run in one.running.items() if run.done_at <= self.now]
        delay = self.chance.choice([0, 0, 0, 0.7, 4])
        ends = [settlement(one.running[key].claim, "retry" if delay else None, delay) for key in done]
        want = one.runners - len(one.running) + len(done)
        turn = one.hand.turn(want, *ends, address=f"{one.name}/1", sleep=SLEEP)
        if not turn.alive:
            self.begin_anew(one)
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
            lasts = self.chance.choice([0.01] * 10 + [0.1] * 5 + [1] * 5 + [25] * 3)
            one.running[claim.id] = Run(claim, self.now + lasts)
        self.hold(one)
        if len(one.running) == one.runners:
            one.idle_since = None
        else:
            one.idle_since = self.now if one.idle_since is None else one.idle_since
            one.wake_at = self.now + (0 if turn.more else REFRESH if turn.due_in is None else min(REFRESH, turn.due_in))

    def judge(self, claim: Claim) -> None:
        """Who was idle all the time should have had it in time."""
        possible = self.possible[claim.id]
        if self.now - possible > PROMPT:
            idle = [
                one.name
                for one in self.processes
                if one.idle_since is not None and max(one.idle_since, one.frozen_until) <= possible
            ]
            assert not idle, f"{claim.id} could start at {possible:.3f}, started at {self.now:.3f}, idle were {idle}"

    # --- what befalls them ---

    def happen(self) -> None:
        if self.now >= self.trouble_at:
            self.trouble_at = self.now + CALM
            busy = [one for one in self.processes if one.running]
            trouble = self.chance.choice([self.freeze, self.kill, self.kill, self.kill_and_tell])
            trouble(self.chance.choice(busy or self.processes))
        for _ in range(self.chance.choice([1, 1, 1, 4])):
            self.jobs += 1
            delay = self.chance.choice([0, 0, 0, 0.4, 3, 12])
            self.possible[f"j{self.jobs}"] = self.now + delay
            self.stand.put(f"j{self.jobs}", tenant=self.chance.choice("abc"), delay=delay, ttl=0)

    def freeze(self, one: Process) -> None:
        one.frozen_until = self.now + self.chance.choice([0.5, 5, 14])

    def kill(self, one: Process) -> None:
        self.processes.remove(one)
        self.begin()

    def kill_and_tell(self, one: Process) -> None:
        """Its supervisor saw it die."""
        self.kill(one)
        self.stand.run(self.stand.bindings.abandon(one.hand.me))
        self.possible |= dict.fromkeys(one.running, self.now)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as started:
        yield started


@pytest.mark.parametrize("seed", range(16))
def test_a_job_starts_in_time_while_somebody_is_idle(server: Server, seed: int):
    server.client.flushall()
    world = World(Stand(server.client), seed, size=3 + seed % 3)
    world.run(until=240, jobs_a_second=[0.05, 0.2, 0.4][seed % 3])
    world.run(until=600, jobs_a_second=0)
    assert world.possible == {}


def test_idle_processes_take_few_turns(server: Server):
    """One more than the refresh of its sleep in 20 s, at most; the reader of its inbox sends one command in 10 s."""
    server.client.flushall()
    world = World(Stand(server.client), 0, size=5)
    world.run(until=20, jobs_a_second=1)
    world.run(until=300, jobs_a_second=0)
    for one in world.processes:
        one.turns.clear()
    world.run(until=500, jobs_a_second=0)
    assert all(len(one.turns) <= 20 for one in world.processes)
