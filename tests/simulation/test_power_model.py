"""Random histories of a queue with limits, unique keys, pauses and retention, judged after every call.

The default run is short and always the same. PENSTOCK_SIMULATION=<examples> makes it long and random.
"""

from __future__ import annotations

import faulthandler
import sys
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from penstock.core.operations import RoundTrip
from penstock.jobs import constants
from penstock.jobs.claims import Claim, Ending
from penstock.jobs.record import Record
from penstock.jobs.retention import Retention
from tests.jobs.stand import START, Limits, Stand, at_most, record, settlement
from tests.servers import Server
from tests.simulation.power_judge import Job, Judge
from tests.simulation.test_queue_model import EXAMPLES, LONG, QUICK, Worker

R = TypeVar("R")

LEASE = 10.0
ENDINGS: list[Ending | None] = [None, None, None, "retry", "later", "release", "bury", "drop", "crash", "loss"]

some = st.integers(0, 1000)
keys = st.sampled_from("kl")
tenants = st.sampled_from(["", "ada"])
levels = st.sampled_from([1, 5, 9])
kinds = st.sampled_from(["plain", "one", "one", "two", "rate", "both", "all"])
uniques = st.sampled_from([None, None, None, "d", "s", "r", "b", "t"])
specs = st.tuples(
    kinds,
    keys,
    tenants,
    levels,
    st.sampled_from([0, 0, 0, 2]),  # seconds until it is due
    st.sampled_from([0, 0, 0, 3]),  # seconds until it expires
    uniques,
)
plans = st.lists(st.tuples(st.sampled_from(ENDINGS), st.sampled_from([0.0, 0.0, 1.0])), max_size=5)


def a_rate(most: int, key: str, release: int) -> Limits:
    return ("r:rate", key, most, 1_000_000 // most, most, release)


class PowerHistories(RuleBasedStateMachine):
    server: ClassVar[Server]

    def __init__(self) -> None:
        super().__init__()
        self.server.client.flushall()
        self.stand = Stand(self.server.client)
        self.judge = Judge(START)
        self.dump = self.stand.raw_dump()
        self.before: dict[str, Record] = {}
        self.workers = [Worker("a"), Worker("b", supervised=True)]
        self.serial = self.calls = 0
        self.release, self.two, self.rate = 1, 2, 2
        self.paused: set[str] = set()

    # --- sending ---

    def send(self, call: RoundTrip[R]) -> R:
        self.before = self.judge.records
        reply = self.stand.run(call)
        self.dump = self.stand.raw_dump()
        self.judge.look(self.dump)
        return reply

    def limits_of(self, kind: str, key: str) -> list[Limits]:
        one = at_most(1, key, "one")
        two = at_most(self.two, "", "two", self.release)
        rate = a_rate(self.rate, key, self.release)
        return {"one": [one], "two": [two], "rate": [rate], "both": [one, two], "all": [two, rate]}.get(kind, [])

    @rule(chosen=st.lists(specs, min_size=1, max_size=4), repeat=st.booleans())
    def enqueue(self, chosen: Sequence[tuple[Any, ...]], repeat: bool) -> None:
        """Enqueue jobs. `repeat`: the reply is lost, and the same call is sent again."""
        parts: list[str | bytes] = []
        doubles: list[tuple[int, str]] = []
        expected: list[tuple[int, str]] = []
        for kind, key, tenant, level, delay, expires, mode in chosen:
            self.serial += 1
            id = f"j{self.serial}"
            limits = self.limits_of(kind, key)
            if limits and mode in ("r", "b"):
                mode = "d"  # limits together with replace are refused where they are written
            unique = (("t" if mode == "t" else "") + key, mode, 2000 if mode in "tb" else 0) if mode else None
            payload = f'"{id}"'.encode()
            drafted = record(
                tenant, level, delay=delay, expires=expires, task=kind, limits=limits, unique=unique, payload=payload,
                ttl=0,
            )  # fmt: skip
            parts += [id, drafted]
            job = Job(id, limits, unique, payload, self.serial, in_order=not delay)
            if (holder := self.judge.accept(job)) is not None:
                expected.append((len(parts) // 2 - 1, holder))
        call = self.stand.bindings.enqueue(parts, on_double=lambda place, holder: doubles.append((place, holder)))
        self.calls += 1
        call = RoundTrip(call.script, call.keys, ("caller", self.calls, *call.args[2:]), call.read)
        assert self.send(call) == []
        assert doubles == expected
        if repeat:
            known = self.dump
            self.send(call)
            assert self.dump == known, "a repeated call has changed something"
            assert doubles == expected * 2
        self.judge.judge(self.before)

    # --- workers ---

    def take_turn(self, one: Worker, want: int, plan: Sequence[tuple[Ending | None, float]], *, lose: bool) -> None:
        """Settle claims as planned, and claim. `lose`: the reply is lost, and the turn is repeated at once."""
        ended = [(claim, *end) for claim, end in zip(one.held, plan, strict=False)]
        one.number += 1
        call = self.stand.bindings.turn(
            one.incarnation, one.number, lease=LEASE, want=want, settlements=[settlement(*end) for end in ended],
            trial="alone",
        )  # fmt: skip
        expired = self.judge.leases.get(one.incarnation, START * 2) <= self.judge.now
        reply = self.send(call)
        assert reply.alive == (not expired), f"{one.incarnation} lives on" if expired else "a worker was given up"
        if lose:
            known, before = self.dump, self.before
            again = self.send(call)
            self.before = before
            assert self.dump == known, "a repeated turn has changed something"
            assert [claim.token for claim in again.claims] == [claim.token for claim in reply.claims]
        if not reply.alive:
            one.life, one.number, one.held = one.life + 1, 0, []
            self.judge.judge(self.before)
            return
        assert not reply.stale, "a live claim was refused"
        self.judge.leases[one.incarnation] = self.judge.now + round(LEASE * 1000)
        for claim, ending, _ in ended:
            self.settled(claim, ending)
        one.held = one.held[len(ended) :]
        self.take_back()
        self.claimed(one, reply.claims)
        self.judge.judge(self.before)
        self.judge_left(want, reply)

    def take_back(self) -> None:
        """Jobs of workers whose leases ran out have been taken back before the claims."""
        for job in [*self.judge.jobs.values()]:
            incarnation = self.judge.holders.get(job.id, "")
            if job.token and self.judge.leases[incarnation] <= self.judge.now:
                held = self.dump.get("held:" + incarnation, {})
                if job.id.encode() not in held:
                    self.judge.settled(job, "unseen")

    def settled(self, claim: Claim, ending: Ending | None) -> None:
        job = self.judge.jobs[claim.id]
        assert job.token == claim.token
        self.judge.settled(job, ending)

    def claimed(self, one: Worker, claims: Sequence[Claim]) -> None:
        self.judge.claimed(claims, self.before)
        for claim in claims:
            self.judge.holders[claim.id] = one.incarnation
        one.held += claims

    def judge_left(self, want: int, reply: Any) -> None:
        if len(reply.claims) == want or reply.more or any(claim.record.is_suspect for claim in reply.claims):
            return
        owners = self.dump.get("owners", {})
        left = [
            id
            for id, one in self.judge.records.items()
            if one.state == constants.READY and id.encode() not in owners and not one.is_suspect
        ]
        assert not left, f"a turn has left {left}"

    @rule(worker=some, want=st.sampled_from([0, 1, 1, 2, 5]), plan=plans, lose=st.booleans())
    def turn(self, worker: int, want: int, plan: Sequence[tuple[Ending | None, float]], lose: bool) -> None:
        self.take_turn(self.workers[worker % 2], want, plan, lose=lose)

    @rule(worker=some, ran=st.integers(0, 2))
    def crash(self, worker: int, ran: int) -> None:
        one = self.workers[worker % 2]
        dead = one.held[:ran]
        ending: Ending = "crash" if len(dead) == 1 else "loss"
        self.send(self.stand.bindings.abandon(one.incarnation, ending, b'{"reason":"killed"}', [c.token for c in dead]))
        for claim in one.held:
            job = self.judge.jobs.get(claim.id)
            if job and job.token == claim.token:
                self.judge.settled(job, ending if claim in dead else "release")
        one.life, one.number, one.held = one.life + 1, 0, []
        self.judge.judge(self.before)

    # --- time and operators ---

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.0, 2.0, 10.001]))
    def wait(self, seconds: float) -> None:
        self.stand.advance(seconds)
        self.judge.now = self.stand.clock.now_ms

    def pick(self, places: Sequence[int]) -> list[str]:
        ids = [*self.judge.jobs]
        return [ids[place % len(ids)] for place in places]

    @precondition(lambda self: self.judge.jobs)
    @rule(places=st.lists(some, min_size=1, max_size=3))
    def cancel(self, places: Sequence[int]) -> None:
        ids = list(dict.fromkeys(self.pick(places)))
        words = self.send(self.stand.bindings.cancel(ids))
        for id, word in zip(ids, words, strict=True):
            job = self.judge.jobs[id]
            assert word == ("running" if job.token else "dead" if job.dead else "cancelled")
            if word == "cancelled":
                self.judge.end(job)
        self.judge.judge(self.before)

    @precondition(lambda self: any(job.dead for job in self.judge.jobs.values()))
    @rule(places=st.lists(some, min_size=2, max_size=3), requeue=st.booleans())
    def change_dead_letters(self, places: Sequence[int], requeue: bool) -> None:
        dead = [job.id for job in self.judge.jobs.values() if job.dead]
        ids = [dead[place % len(dead)] for place in places]
        if requeue:
            n = self.send(self.stand.bindings.requeue([*ids, "unknown"]))
            assert n == self.judge.requeue(ids)
        else:
            self.send(self.stand.bindings.remove_dead(ids))
            for id in dict.fromkeys(ids):
                self.judge.end(self.judge.jobs[id])
        self.judge.judge(self.before)

    @precondition(lambda self: self.judge.jobs)
    @rule(place=some, due=st.sampled_from([None, 0, 2]), level=levels)
    def edit(self, place: int, due: int | None, level: int) -> None:
        (id,) = self.pick([place])
        job = self.judge.jobs[id]
        word = self.send(self.stand.bindings.edit(id, due=due, priority=level))
        assert word == (
            "dead" if job.dead else "running" if job.token else "limited" if job.limits or job.unique else "edited"
        )
        self.judge.judge(self.before)

    @rule(part=st.sampled_from(["task=one", "task=both", "task=plain", "tenant=ada", "tenant="]), on=st.booleans())
    def pause(self, part: str, on: bool) -> None:
        part = "p:" + part
        self.send(self.stand.bindings.pause_part(part, on))
        (self.paused.add if on else self.paused.discard)(part)
        self.judge.judge(self.before)

    @rule(two=st.integers(1, 3), rate=st.integers(1, 4), by_release=st.booleans())
    def change_limits(self, two: int, rate: int, by_release: bool) -> None:
        """By a newer release, whose jobs follow, or by the operator."""
        if by_release:
            self.release, self.two, self.rate = max(self.release + 1, self.judge.now), two, rate
            return
        for name, numbers in (("c:two", (two, 0, 0)), ("r:rate", (rate, 1_000_000 // rate, rate))):
            release = max(self.judge.now, self.judge.definitions.get(name, (0, 0, 0, 0))[3])
            self.judge.sent[name].add((*numbers, release))
            self.send(self.stand.bindings.set_limit(name, *numbers))
            self.judge.judge(self.before)

    @rule(tenant=st.none() | tenants)
    def purge_parked(self, tenant: str | None) -> None:
        offset, finished = 0, False
        while not finished:
            _, offset, finished, _ = self.send(self.stand.bindings.purge_parked(tenant, offset, 2))
            for id in [*self.judge.jobs]:
                if id not in self.judge.records and self.before[id].state == constants.PARKED:
                    assert tenant in (None, self.before[id].tenant)
                    self.judge.end(self.judge.jobs[id])
            self.judge.judge(self.before)

    @rule(dead=st.sampled_from([None, None, 1]))
    def keep(self, dead: int | None) -> None:
        self.judge.keeps = dead
        self.send(Retention(dead_letters=dead).store(self.stand.bindings))
        self.judge.judge(self.before)

    @rule(on=st.booleans())
    def switch(self, on: bool) -> None:
        self.send(self.stand.bindings.set_switch("by_time", on))
        self.judge.judge(self.before)

    # --- the end ---

    def teardown(self) -> None:
        if sys.exception():
            return  # a check has failed, and its error is the one to report
        for part in self.paused.copy():
            self.pause(part.removeprefix("p:"), False)
        self.wait(10.001)
        last = Worker("last")
        turns = 0
        while turns < 3 or not all(job.dead for job in self.judge.jobs.values()):
            turns += 1
            assert turns < 300, "the queue does not run empty"
            self.wait(0.5)
            self.take_turn(last, 10, [(None, 0.0)] * len(last.held), lose=False)
        if self.judge.jobs:
            self.send(self.stand.bindings.remove_dead([*self.judge.jobs]))
            for job in [*self.judge.jobs.values()]:
                self.judge.end(job)
            self.judge.judge(self.before)
        families = {name.partition(":")[0] for name in self.dump}
        left = families & {"places", "parking", "parked", "admitted", "admissions", "pauses", "unique", "jobs"}
        assert not left, f"leaked keys: {left}"


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[None]:
    if EXAMPLES:
        faulthandler.cancel_dump_traceback_later()
    with Server() as started:
        PowerHistories.server = started
        yield


TestPowerHistories = PowerHistories.TestCase
TestPowerHistories.settings = LONG if EXAMPLES else settings(QUICK, max_examples=40, stateful_step_count=40)
