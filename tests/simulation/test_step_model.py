"""Random histories of durable jobs: recorded steps, sleeps and signals, with lost replies, deaths and moving clocks.

The model has what each job has recorded, and which signals it keeps. It is compared with all keys after every call. The
default run is short and always the same. PENSTOCK_SIMULATION=<examples> makes it long and random.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import msgspec

from penstock.core.operations import RoundTrip
from penstock.jobs import constants
from penstock.jobs.claims import Claim, Ending, Settlement
from penstock.jobs.durable_bindings import Recorded, StepBindings, suspension
from penstock.jobs.record import Record
from tests.jobs.stand import Stand, problems_in, settlement
from tests.simulation.histories import run_histories
from tests.simulation.test_queue_model import Worker

R = TypeVar("R")

UNIT = 10.0
LEASE = 10 * UNIT
STEPS, SIGNALS = ["1", "2", "pay"], ["go", "stop"]
ENDINGS: list[Ending] = ["retry", "later", "release", "bury", "crash", "loss"]
KINDS = {b"r": "result", b"w": "waits", b"s": "signal", b"t": "timeout"}


@dataclass
class Job:
    """What a job has recorded. `sleeps_until`: server ms before which it must not run; None: nothing is to wait for."""

    id: str
    steps: dict[str, Recorded] = field(default_factory=dict)
    signals: dict[str, list[bytes]] = field(default_factory=dict)
    waits_for: str = ""
    sleeps_until: float | None = None
    is_delayed: bool = False
    """Whether it waits for a further attempt, and no signal wakes it."""
    token: bytes | None = None
    holder: str = ""
    dead: bool = False


class StepHistory:
    """One random history of a queue, decided by its seed."""

    def __init__(self, client: Any, seed: int) -> None:
        client.flushall()
        self.random = random.Random(seed)
        self.stand = Stand(client)
        self.bindings = StepBindings(self.stand.bindings)
        self.jobs: dict[str, Job] = {}
        self.ended: set[str] = set()
        self.leases: dict[str, int] = {}
        self.workers = [Worker("a"), Worker("b", supervised=True)]
        self.past: list[tuple[str, Claim]] = []
        self.records: dict[str, Record] = {}
        self.dump = self.stand.raw_dump()
        self.serial = self.calls = 0
        self.endings: list[Ending | None] = [None, *self.random.sample(ENDINGS, 2)]
        self.actions: list[Callable[[], None]] = [
            *[self.enqueue] * 2,
            *[self.turn] * 5,
            *[self.suspend] * 5,
            *[self.record] * 4,
            *[self.receive] * 4,
            *[self.signal] * 5,
            *[self.wait] * 4,
            self.act_late,
            self.requeue,
            self.cancel,
            self.signal_the_gone,
        ]

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.random.choice(self.actions)()
            self.judge()
        self.finish()

    @property
    def now(self) -> int:
        return self.stand.clock.now_ms

    def send(self, call: RoundTrip[R]) -> R:
        """Send a call. Its reply may be lost; then it is sent again, and changes nothing."""
        if call.script.is_numbered:
            self.calls += 1
            call = RoundTrip(call.script, call.keys, ("caller", self.calls, *call.args[2:]), call.read)
        reply = self.stand.run(call)
        self.dump = self.stand.raw_dump()
        if call.script.name not in ("enqueue", "requeue", "cancel") and self.random.random() < 0.2:
            known = self.dump
            again = self.stand.run(call)
            self.dump = self.stand.raw_dump()
            assert self.dump == known, f"a repeated call of {call.script.name} has changed something"
            if call.script.name == "signal":
                assert again == reply
        self.records = {id.decode(): Record(body) for id, body in self.dump.get("jobs", {}).items()}
        self.wake_due()
        return reply

    def wake_due(self) -> None:
        """A job that was made ready when its time had come stays ready if the clock is set back afterwards."""
        for job in self.jobs.values():
            if job.sleeps_until is not None and job.sleeps_until <= self.now:
                its = self.records.get(job.id)
                if its is None or its.state not in (constants.DELAYED, constants.SLEEPING):
                    job.sleeps_until = None

    def enqueue(self) -> None:
        self.serial += 1
        id = f"j{self.serial}"
        self.stand.put(id, tenant=self.random.choice(["", "ada"]), ttl=1_000_000)
        self.jobs[id] = Job(id)
        self.send(self.stand.bindings.counts())

    # --- runs ---

    def held(self) -> tuple[Worker, Claim, Job] | None:
        """A claim that is still in force, with its worker and its job."""
        pairs = [(one, claim) for one in self.workers for claim in one.held if self.is_alive(one)]
        if not pairs:
            return None
        one, claim = self.random.choice(pairs)
        return one, claim, self.jobs[claim.id]

    def is_alive(self, one: Worker) -> bool:
        """A lease that was found to have run out has ended for good, even if the clock is set back afterwards."""
        stored = {name for name, _ in self.dump.get("leases", [])}
        return self.leases.get(one.incarnation, 0) > self.now and one.incarnation.encode() in stored

    def record(self) -> None:
        if (found := self.held()) is not None:
            one, claim, job = found
            step, value = self.random.choice(STEPS), b"%d" % self.random.randrange(1000)
            known = job.steps.get(step)
            reply = self.send(self.bindings.record(one.incarnation, claim.token, step, "work", value))
            if known is None:
                assert reply is None or reply == Recorded("result", self.now, "work", value)
                job.steps[step] = Recorded("result", self.now, "work", value)
                job.waits_for = ""
            else:
                assert reply == known, f"{job.id} has recorded {step} twice"

    def receive(self) -> None:
        if (found := self.held()) is not None:
            one, claim, job = found
            step, name = self.random.choice(STEPS), self.random.choice(SIGNALS)
            known, kept = job.steps.get(step), job.signals.get(name)
            until = int(known.value) if known and known.kind == "waits" else 0
            if known and known.kind != "waits":
                wanted: Recorded | bool = known
            elif kept:
                wanted = Recorded("signal", self.now, name, kept[0])
            elif 0 < until <= self.now:
                wanted = Recorded("timeout", self.now, name, b"")
            else:
                wanted = True
            assert self.send(self.bindings.receive(one.incarnation, claim.token, step, name)) == wanted
            if isinstance(wanted, Recorded) and wanted is not known:
                job.steps[step], job.waits_for = wanted, ""
                if wanted.kind == "signal" and kept:
                    del kept[0]
                    if not kept:
                        del job.signals[name]

    def suspend(self) -> None:
        """A run ends, because its job sleeps, or waits for a signal, perhaps with a time-out."""
        found = self.held()
        if found is None:
            return
        one, claim, job = found
        free = [step for step in STEPS if step not in job.steps or job.steps[step].kind == "waits"]
        if not free:
            return
        step = self.random.choice(free)
        name = job.steps[step].name if step in job.steps else self.random.choice(["", *SIGNALS])
        seconds = self.random.choice([UNIT, 3 * UNIT] if not name else [0.0, UNIT, 3 * UNIT])
        one.held.remove(claim)
        one.number += 1
        settled = Settlement(claim.token, suspension(step, name), "suspend", seconds)
        call = self.stand.bindings.turn(one.incarnation, one.number, lease=LEASE, want=0, settlements=[settled])
        reply = self.send(call)
        assert reply.alive
        assert not reply.stale
        self.leases[one.incarnation] = self.now + round(LEASE * 1000)
        known = job.steps.get(step)
        until = int(known.value) if known else (self.now + round(seconds * 1000) if seconds else 0)
        job.steps[step] = Recorded("waits", self.now, name, b"%d" % until)
        job.token, job.is_delayed = None, False
        if name in job.signals:
            job.waits_for, job.sleeps_until = "", None
        else:
            job.waits_for, job.sleeps_until = name, until or float("inf")
        self.take_back()

    def turn(self) -> None:
        pick = self.random
        one = pick.choice(self.workers)
        plan = [
            (claim, pick.choice(self.endings), pick.choice([0.0, UNIT])) for claim in one.held if pick.random() < 0.3
        ]
        self.take_turn(one, plan, pick.choice([0, 1, 3]))

    def take_turn(self, one: Worker, plan: Sequence[tuple[Claim, Ending | None, float]], want: int) -> None:
        was_alive = one.number == 0 or self.is_alive(one)
        one.number += 1
        call = self.stand.bindings.turn(
            one.incarnation,
            one.number,
            lease=LEASE,
            want=want,
            settlements=[settlement(*end) for end in plan],
            trial="alone",
        )
        reply = self.send(call)
        assert reply.alive == was_alive
        self.past += [(one.incarnation, claim) for claim in one.held]
        if not reply.alive:
            one.life, one.number, one.held = one.life + 1, 0, []
            return
        assert not reply.stale
        self.leases[one.incarnation] = self.now + round(LEASE * 1000)
        for claim, ending, delay in plan:
            one.held.remove(claim)
            self.settled(claim, ending, delay)
        self.take_back()
        for claim in reply.claims:
            job = self.jobs[claim.id]
            assert job.token is None or self.leases[job.holder] <= self.now, f"{job.id} was claimed twice"
            early = job.sleeps_until is not None and job.sleeps_until > self.now
            assert not early, f"{job.id} was claimed while it sleeps"
            job.token, job.holder, job.sleeps_until = claim.token, one.incarnation, None
            one.held.append(claim)
            self.judge_loaded(one, claim, job)

    def judge_loaded(self, one: Worker, claim: Claim, job: Job) -> None:
        """The first step of a run gets all that was recorded."""
        loaded = self.send(self.bindings.load(one.incarnation, claim.token))
        assert loaded is not None
        assert (loaded.now, loaded.steps) == (self.now, job.steps), f"{job.id} gets other steps"

    def settled(self, claim: Claim, ending: Ending | None, delay: float) -> None:
        job = self.jobs[claim.id]
        assert job.token == claim.token
        job.token = None
        if ending is None:
            self.end(job)
        elif delay and ending in ("retry", "later"):
            job.sleeps_until, job.is_delayed = self.now + delay * 1000, True

    def end(self, job: Job) -> None:
        del self.jobs[job.id]
        self.ended.add(job.id)

    def take_back(self) -> None:
        """The claims of workers whose leases ran out are free."""
        owners = self.dump.get("owners", {})
        for job in self.jobs.values():
            if job.token is not None and job.id.encode() not in owners:
                assert self.leases[job.holder] <= self.now, f"{job.id} was taken from a live worker"
                job.token = None

    def act_late(self) -> None:
        """A worker that has lost a job continues to work on it. Nothing that it does has an effect."""
        lost = [(inc, claim) for inc, claim in self.past if self.is_lost(inc, claim)]
        if lost:
            incarnation, claim = self.random.choice(lost)
            known = self.dump
            assert self.send(self.bindings.record(incarnation, claim.token, "late", "work", b"1")) == -1
            assert self.send(self.bindings.receive(incarnation, claim.token, "late", "go")) is False
            assert self.send(self.bindings.load(incarnation, claim.token)) is None
            assert self.dump == known, "a worker that has lost a job has changed something"

    def is_lost(self, incarnation: str, claim: Claim) -> bool:
        job = self.jobs.get(claim.id)
        return job is None or job.token != claim.token or self.leases[incarnation] <= self.now

    # --- others ---

    def signal(self) -> None:
        """Somebody sends a signal, before, during or after the wait for it."""
        if self.jobs:
            self.signal_one(self.random.choice([*self.jobs.values()]), self.random.choice(SIGNALS))

    def signal_one(self, job: Job, name: str) -> None:
        payload = b"%d" % self.random.randrange(1000)
        state = self.records[job.id].state
        assert self.send(self.bindings.signal(job.id, name, payload)) == "sent"
        job.signals.setdefault(name, []).append(payload)
        is_held = job.id.encode() in self.dump.get("owners", {})
        if job.waits_for == name and not is_held and state == constants.SLEEPING:
            job.waits_for, job.sleeps_until = "", None
            assert self.records[job.id].state == constants.READY, f"{job.id} sleeps on after its signal"

    def signal_the_gone(self) -> None:
        id = self.random.choice([*sorted(self.ended), "unknown"])
        assert self.send(self.bindings.signal(id, "go", b"1")) == ("none" if id == "unknown" else "done")

    def wait(self) -> None:
        """Time passes. Now and then the clock is set back, or a server whose clock is behind takes over."""
        self.stand.advance(self.random.choice([0.1, 0.5, 1.0, 1.0, 2.0, 10.001, -0.5, -6.0]) * UNIT)

    def requeue(self) -> None:
        dead = [job for job in self.jobs.values() if job.dead]
        if dead:
            assert self.send(self.stand.bindings.requeue([dead[0].id])) == 1
            dead[0].dead = False

    def cancel(self) -> None:
        waiting = [job for job in self.jobs.values() if job.token is None and not job.dead]
        if waiting and self.random.random() < 0.5:
            assert self.send(self.stand.bindings.cancel([waiting[0].id])) == ["cancelled"]
            self.end(waiting[0])

    # --- the key space ---

    def judge(self) -> None:
        """Compare what is stored with what was recorded."""
        self.take_back()
        assert set(self.records) == set(self.jobs), "there are other jobs than were sent"
        stored = {name.removeprefix("steps:"): held for name, held in self.dump.items() if name.startswith("steps:")}
        assert set(stored) <= set(self.jobs), "steps are left of jobs that have ended"
        for job in self.jobs.values():
            record = self.records[job.id]
            fields = stored.get(job.id, {})
            steps = {name[1:].decode(): Recorded.read(held) for name, held in fields.items() if name[:1] == b"="}
            assert steps == job.steps, f"{job.id} has recorded other steps"
            signals = {
                name[1:].decode(): msgspec.msgpack.decode(self._as_bytes(held), type=list[bytes])
                for name, held in fields.items()
                if name[:1] == b"!"
            }
            assert signals == job.signals, f"{job.id} keeps other signals"
            assert fields.get(b"", b"")[5:].decode() == job.waits_for, f"{job.id} waits for another signal"
            job.dead = record.state == constants.DEAD
            if job.token is None and job.sleeps_until is not None and job.sleeps_until > self.now and not job.dead:
                state = constants.DELAYED if job.is_delayed else constants.SLEEPING
                assert record.state == state, f"{job.id} does not wait"
        problems = problems_in(self.dump)
        assert not problems, problems

    @staticmethod
    def _as_bytes(packed: bytes) -> bytes:
        """The server packs bytes as text: short ones as `fixstr`. Payloads here have one to three bytes."""
        out, at = bytearray([packed[0]]), 1
        while at < len(packed):
            size = packed[at] & 0x1F
            out += bytes([0xC4, size]) + packed[at + 1 : at + 1 + size]
            at += 1 + size
        return bytes(out)

    def finish(self) -> None:
        """All jobs end, once they have their signals."""
        last, rounds = Worker("last"), 0
        self.stand.advance(LEASE + 1)
        while self.jobs:
            rounds += 1
            assert rounds < 100, f"{sorted(self.jobs)} wait for ever"
            for job in [job for job in self.jobs.values() if job.sleeps_until == float("inf")]:
                self.signal_one(job, job.waits_for)
            self.stand.advance(3 * UNIT)
            self.take_turn(last, [(claim, None, 0.0) for claim in last.held], 10)
            self.judge()
            self.requeue()
        left = {name.partition(":")[0] for name in self.dump} & {"steps", "notes", "jobs", "delayed", "failures"}
        assert not left, f"leaked keys: {left}"


def test_durable_jobs_keep_their_promises(client: Any) -> None:
    run_histories(partial(StepHistory, client), quick=14, steps=70)
