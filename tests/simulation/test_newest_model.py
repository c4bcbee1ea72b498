"""Random histories of jobs whose newest call replaces them, running ones too: lost replies, repeats, deaths, clocks.

The model has who holds each key, who waits for whose end, and which runs are to be cancelled. It is compared after
every call. PENSTOCK_SIMULATION=<examples> makes the run long and random.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

from penstock.core.operations import RoundTrip
from penstock.jobs import constants
from penstock.jobs.claims import Claim, Ending
from penstock.jobs.record import Record
from tests.jobs.stand import Dump, Stand, problems_in, record, settlement
from tests.simulation.histories import run_histories
from tests.simulation.test_queue_model import Worker

R = TypeVar("R")

LEASE = 1000.0
LATEST, DONE, REPLACE = "l", "d", "r"
ENDINGS: list[Ending | None] = [None, None, "retry", "later", "release", "loss", "crash", "bury", "drop", "cancel"]
COMES_BACK = ("retry", "later", "release", "loss", "crash", "unseen")
BY_KEY = ("unique", "owners", "predecessors", "dependents", "events", "cancels", "expiring")
"""Families of keys that are gone, or have a TTL, when all jobs have ended."""


@dataclass
class Job:
    """A job that was accepted and has not ended. `version`: the number of the call whose arguments it has."""

    id: str
    key: str
    mode: str
    version: int
    expires: int = 0
    token: bytes | None = None
    """Of its claim, while it runs."""
    holder: str = ""
    """The incarnation that runs it."""
    after: str = ""
    """The running job whose end it waits for."""
    begun: bool = False
    replaced: bool = False
    """It was asked to end, because a newer call came while it ran."""
    dead: bool = False


class NewestHistory:
    """One random history, decided by its seed."""

    def __init__(self, client: Any, seed: int) -> None:
        client.flushall()
        self.random = random.Random(seed)
        self.stand = Stand(client)
        self.jobs: dict[str, Job] = {}
        self.keys: dict[str, str] = {}
        self.leases: dict[str, int] = {}
        self.workers = [Worker("a"), Worker("b", supervised=True)]
        self.ghosts: list[tuple[str, Claim]] = []
        self.serial = self.calls = 0
        self.expected: dict[str, int] = {}
        """Key -> the version that its next run must have; none after an operator has interfered."""
        modes = [LATEST] if self.random.random() < 0.6 else [LATEST, LATEST, self.random.choice([DONE, REPLACE])]
        self.modes, self.names = modes, "k" if self.random.random() < 0.5 else "kl"
        self.dump: Dump = {}

    def run(self, steps: int) -> None:
        actions = [*[self.enqueue] * 6, *[self.turn] * 8, *[self.wait] * 3, self.cancel, self.requeue, self.crash]
        actions += [self.act_late, self.purge]
        for _ in range(steps):
            self.random.choice(actions)()
        self.finish()

    @property
    def now(self) -> int:
        return self.stand.clock.now_ms

    def send(self, call: RoundTrip[R], *, repeat: float = 0.0) -> R:
        """Send a call. Its reply may be lost: then it is sent again, with its number, and changes nothing."""
        if call.script.is_numbered:
            self.calls += 1
            call = RoundTrip(call.script, call.keys, ("caller", self.calls, *call.args[2:]), call.read)
        reply = self.stand.run(call)
        self.dump = self.stand.raw_dump()
        if self.random.random() < repeat:
            self.stand.run(call)
            assert self.stand.raw_dump() == self.dump, f"a repeated call of {call.script.name} has changed something"
        return reply

    # --- calls ---

    def enqueue(self) -> None:
        """Enqueue one to three calls at once, most of them of one key."""
        pick = self.random
        parts: list[str | bytes] = []
        doubles: list[tuple[int, str]] = []
        expected: list[tuple[int, str]] = []
        for place in range(pick.choice([1, 1, 1, 2, 3])):
            self.serial += 1
            id, key, mode = f"j{self.serial}", pick.choice(self.names), pick.choice(self.modes)
            expires, delay = pick.choice([0, 0, 0, 3 * LEASE]), pick.choice([0, 0, 0, LEASE / 2])
            payload = b"%d" % self.serial + b" " * pick.choice([0, 0, 0, 5000])
            options: dict[str, Any] = {"unique": (key, mode, 0), "payload": payload, "ttl": 0}
            parts += [id, record(delay=delay, expires=expires, **options)]
            job = Job(id, key, mode, self.serial, self.now + round(expires * 1000) if expires else 0)
            if (holder := self.accept(job)) is not None:
                expected.append((place, holder))
        self.send(
            self.stand.bindings.enqueue(
                parts, on_double=lambda place, holder: doubles.append((place, holder)) if doubles != expected else None
            ),
            repeat=0.25,
        )
        assert doubles == expected
        self.judge()

    def accept(self, job: Job) -> str | None:
        """What the promise says of a call. Returns the job that stands for it, if that is another one."""
        holder = self.live_holder(job.key)
        if holder is not None:
            if job.mode == DONE:
                return holder.id
            if not (holder.token or holder.begun) and holder.mode != DONE:
                holder.version, holder.mode, holder.expires = job.version, job.mode, job.expires
                self.expected[job.key] = job.version
                return holder.id
            if (job.mode, holder.mode) != (LATEST, LATEST):
                return holder.id
            if holder.token is None:
                self.end(holder)
            else:
                holder.replaced, job.after = True, holder.id
        self.jobs[job.id], self.keys[job.key] = job, job.id
        self.expected[job.key] = job.version
        return None

    def live_holder(self, key: str) -> Job | None:
        """The job that holds the key, after those that waited for too long have ended."""
        while (id := self.keys.get(key)) is not None and self.is_over(self.jobs[id]):
            self.interfere(self.jobs[id])
        return None if id is None else self.jobs[id]

    def is_over(self, job: Job) -> bool:
        return not self.is_busy(job) and 0 < job.expires <= self.now

    def is_busy(self, job: Job) -> bool:
        """Whether it runs, or is a dead letter."""
        return job.token is not None or job.dead

    def interfere(self, job: Job) -> None:
        """The job ends without a run, so that an older call may run after all."""
        self.expected.pop(job.key, None)
        self.end(job)

    def end(self, job: Job) -> None:
        """The job leaves the queue. Its key goes back to the running job that it was to succeed."""
        if self.keys.get(job.key) == job.id:
            del self.keys[job.key]
            if job.after:
                self.keys[job.key] = job.after
        del self.jobs[job.id]
        self.release(job)

    def release(self, job: Job) -> None:
        for other in self.jobs.values():
            other.after = "" if other.after == job.id else other.after

    # --- workers ---

    def turn(self) -> None:
        one, pick = self.random.choice(self.workers), self.random
        plan: list[tuple[Ending | None, float]] = [
            (pick.choice(ENDINGS), pick.choice([0.0, LEASE / 3])) for _ in range(pick.randint(0, len(one.held)))
        ]
        self.take_turn(one, pick.choice([0, 1, 1, 3]), plan, repeat=0.25)

    def take_turn(
        self, one: Worker, want: int, plan: Sequence[tuple[Ending | None, float]], *, repeat: float = 0.0
    ) -> list[Claim]:
        ended: list[tuple[Claim, Ending | None, float]] = [
            (claim, ending, delay) for claim, (ending, delay) in zip(one.held, plan, strict=False)
        ]
        one.number += 1
        texts = ['{"reason":"x"}' if ending in ("retry", "bury", "crash", "loss") else "" for _, ending, _ in ended]
        settlements = [settlement(claim, e, delay, text) for (claim, e, delay), text in zip(ended, texts, strict=True)]
        call = self.stand.bindings.turn(
            one.incarnation, one.number, lease=LEASE, want=want, settlements=settlements, trial="alone"
        )
        # A lease that was found to have run out has ended for good, wherever the clock goes.
        stored = {name for name, _ in self.dump.get("leases", [])}
        is_gone = one.incarnation in self.leases and one.incarnation.encode() not in stored
        expired = is_gone or self.leases.get(one.incarnation, self.now + 1) <= self.now
        reply = self.send(call, repeat=repeat)
        assert reply.alive == (not expired)
        if not reply.alive:
            self.ghosts += [(one.incarnation, claim) for claim in one.held]
            one.life, one.number, one.held = one.life + 1, 0, []
            self.judge()
            return []
        assert not reply.stale
        self.leases[one.incarnation] = self.now + round(LEASE * 1000)
        for claim, ending, _ in ended:
            self.settled(self.jobs[claim.id], ending)
        one.held = one.held[len(ended) :]
        self.take_back()
        for claim in reply.claims:
            self.claimed(claim, one.incarnation)
        one.held += reply.claims
        self.judge()
        return reply.claims

    def claimed(self, claim: Claim, incarnation: str) -> None:
        job = self.jobs[claim.id]
        assert not self.is_busy(job), f"{job.id} was claimed in another state"
        assert not job.after, f"{job.id} was claimed before {job.after} had ended"
        version = int(bytes(claim.record.payload))
        assert version == job.version, f"{job.id} has the arguments of call {version}, not of {job.version}"
        if job.mode == LATEST:
            beside = [one.id for one in self.jobs.values() if one.token and one.mode == LATEST and one.key == job.key]
            assert not beside, f"{job.id} runs beside {beside}"
            assert self.expected.get(job.key, version) == version, f"{job.id} runs an older call of {job.key}"
        job.token, job.holder = claim.token, incarnation
        if job.mode == REPLACE and self.keys.get(job.key) == job.id:
            del self.keys[job.key]

    def settled(self, job: Job, ending: Ending | Literal["unseen"] | None) -> None:
        """A run has ended. If a newer call has replaced it, it does not come back."""
        is_succeeded = job.mode == LATEST and self.keys.get(job.key) != job.id
        if ending not in (*COMES_BACK, "bury") or (ending in COMES_BACK and is_succeeded):
            self.end(job)
            return
        job.token, job.replaced, job.expires = None, False, 0
        job.begun |= ending != "release"  # which hands a job back that has not used its arguments
        self.release(job)
        if ending == "bury" or self.record_of(job.id).state == constants.DEAD:
            job.dead = True
            if self.keys.get(job.key) == job.id:
                del self.keys[job.key]

    def take_back(self) -> None:
        """Jobs of workers whose leases ran out have been taken back before the claims."""
        for job in [*self.jobs.values()]:
            if job.token and self.leases[job.holder] <= self.now:
                owned = self.dump.get("held:" + job.holder, {})
                if job.id.encode() not in owned:
                    self.settled(job, "unseen")

    def crash(self) -> None:
        """A process dies, and its supervisor reports that."""
        one = self.workers[1]
        ran = one.held[: self.random.randint(0, 2)]
        ending: Ending = "crash" if len(ran) == 1 else "loss"
        tokens = [claim.token for claim in ran]
        self.send(self.stand.bindings.abandon(one.incarnation, ending, b'{"reason":"killed"}', tokens))
        for claim in one.held:
            job = self.jobs.get(claim.id)
            if job and job.token == claim.token:
                self.settled(job, ending if claim in ran else "release")
        one.life, one.number, one.held = one.life + 1, 0, []
        self.judge()

    def act_late(self) -> None:
        """A worker that has lost its job cannot settle it."""
        if self.ghosts:
            incarnation, claim = self.random.choice(self.ghosts)
            job = self.jobs.get(claim.id)
            if job is None or job.token != claim.token:
                assert not self.send(self.stand.bindings.settle(incarnation, settlement(claim)))
                self.judge()

    # --- time and operators ---

    def wait(self) -> None:
        """Time passes. Now and then the clock is set back, or a server whose clock is behind takes over."""
        self.stand.advance(self.random.choice([0.1, 0.5, 0.5, 1.001, -0.3, -2]) * LEASE)

    def cancel(self) -> None:
        if not self.jobs:
            return
        job = self.jobs[self.random.choice([*self.jobs])]
        is_over = self.is_over(job)
        (word,) = self.send(self.stand.bindings.cancel([job.id]), repeat=0.2)
        if is_over or word == "cancelled":
            assert not self.is_busy(job), f"{job.id} was cancelled in another state"
            self.interfere(job)
        else:
            assert word == ("running" if job.token else "dead")
            job.replaced |= word == "running"
        self.judge()

    def purge(self) -> None:
        """An operator cancels everything that is ready or delayed."""
        if self.random.random() < 0.7:
            return
        self.send(self.stand.bindings.purge(None, 0))
        left = self.dump.get("jobs", {})
        for job in [job for job in self.jobs.values() if job.id.encode() not in left]:
            assert not self.is_busy(job), f"{job.id} was purged in another state"
            self.interfere(job)
        self.judge()

    def requeue(self) -> None:
        dead = [job for job in self.jobs.values() if job.dead]
        if not dead:
            return
        job = self.random.choice(dead)
        n = self.send(self.stand.bindings.requeue([job.id, "unknown"]), repeat=0.2)
        if self.live_holder(job.key) is not None:
            assert n == 0, f"{job.id} was requeued beside a job of its key"
        else:
            assert n == 1
            self.keys[job.key], job.dead, job.begun = job.id, False, False
            self.expected.pop(job.key, None)
        self.judge()

    # --- what must be ---

    def record_of(self, id: str) -> Record:
        return Record(self.dump["jobs"][id.encode()])

    def judge(self) -> None:
        problems = problems_in(self.dump)
        assert not problems, problems
        for job in [*self.jobs.values()]:
            if job.id.encode() not in self.dump.get("jobs", {}):
                assert self.is_over(job), f"{job.id} is lost"
                self.interfere(job)
        assert {id.decode() for id in self.dump.get("jobs", {})} == set(self.jobs)
        found = {key.decode(): id.decode() for key, id in self.dump.get("unique", {}).items()}
        assert found == self.keys, "the keys have other holders"
        owners = {id.decode() for id in self.dump.get("owners", {}) if id}
        assert owners == {job.id for job in self.jobs.values() if job.token}
        for job in self.jobs.values():
            state = self.record_of(job.id).state
            assert (state == constants.WAITING) == bool(job.after), f"{job.id} waits for {job.after or 'nothing'}"
            assert (state == constants.DEAD) == job.dead
        for job in self.jobs.values():
            if job.token:
                asked = job.token in self.dump.get("cancels:" + job.holder, [])
                assert asked == job.replaced, f"{job.id} was asked to end: {asked}"

    def finish(self) -> None:
        """A last worker runs everything, and nothing is left."""
        last = Worker("last")
        for _ in range(60):
            self.stand.advance(0.6 * LEASE)
            self.take_turn(last, 10, [(None, 0.0)] * len(last.held))
            if all(job.dead for job in self.jobs.values()):
                break
        dead = [*self.jobs]
        self.send(self.stand.bindings.remove_dead(dead))
        assert {id for id in dead if id.encode() in self.dump.get("jobs", {})} == set()
        kept = {name for name in self.stand.without_ttl() if name.partition(":")[0] in BY_KEY}
        left = {name for name in kept if set(self.dump[name]) - {b""}}
        assert not left, f"leaked keys: {left}"


def test_the_newest_call_of_a_key_runs_last_and_alone(client: Any) -> None:
    run_histories(partial(NewestHistory, client), quick=24, steps=60)
