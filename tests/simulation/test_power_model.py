"""Random histories of a queue with limits, unique keys, pauses and retention, judged after every call.

The default run is short and always the same. PENSTOCK_SIMULATION=<examples> makes it long and random.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from penstock.core.operations import RoundTrip
from penstock.jobs import constants
from penstock.jobs.claims import Claim, Ending
from penstock.jobs.editing import requeue_with
from penstock.jobs.limit_bindings import LimitBindings
from penstock.jobs.record import Record
from penstock.jobs.retention import Retention
from tests.jobs.stand import DELAYED, START, Limits, Stand, at_most, record, settlement
from tests.simulation.histories import run_histories
from tests.simulation.power_judge import ANY_TIME, Job, Judge
from tests.simulation.test_queue_model import Worker

R = TypeVar("R")

UNIT = 100.0
"""Seconds. Times are long, because keys with a TTL expire by the clock of the server, which nobody moves."""

LEASE = 10 * UNIT
ENDINGS: list[Ending] = ["retry", "later", "release", "bury", "bury", "drop", "crash", "loss"]
KINDS = ["plain", "one", "two", "rate", "both", "all", "weights", "weights", "pooled"]
COSTS = [0, 1, 2, 2, 5]


def a_rate(most: int, key: str, release: int, cost: int = 1) -> Limits:
    return ("r:rate", key, most, round(UNIT * 1_000_000) // most, most, release, cost)


class PowerHistory:
    """One random history of a queue, decided by its seed."""

    def __init__(self, client: Any, seed: int) -> None:
        client.flushall()
        self.random = random.Random(seed)
        self.stand = Stand(client)
        self.judge = Judge(START)
        self.dump = self.stand.raw_dump()
        self.before: dict[str, Record] = {}
        self.workers = [Worker("a"), Worker("b", supervised=True)]
        self.serial = self.calls = 0
        self.release, self.two, self.rate = 1, 2, 2
        self.paused: set[str] = set()

    def begin(self) -> None:
        """A history has only a few kinds of jobs and of endings, so that they meet."""
        pick = self.random
        kinds = pick.sample(KINDS, pick.randint(1, 3))
        levels = pick.sample([1, 5, 9], pick.randint(1, 3))
        tenants = pick.sample(["", "ada"], pick.randint(1, 2))
        modes: list[str | None] = pick.choice([[None], [None, *pick.sample("dsrbt", 2)]])
        self.choices = [*itertools.product(kinds, tenants, levels, modes)]
        self.endings = [None, *pick.sample(ENDINGS, 3)]
        self.delays, self.expiries = pick.choice([[0], [0, 0, 2]]), pick.choice([[0], [0, 0, 3]])
        self.keep(pick.choice([None, None, 1]))
        rare = [self.pause, self.change_limits, self.crash, self.purge_parked, self.edit, self.switch, self.hold]
        rare += [self.book]
        self.actions: list[Callable[[], None]] = [
            *[self.enqueue] * 5,
            *[self.turn] * 8,
            *[self.wait] * 3,
            self.cancel,
            self.change_dead_letters,
            self.edit_dead,
            *pick.sample(rare, 3),
        ]

    def run(self, steps: int) -> None:
        self.begin()
        for _ in range(steps):
            self.random.choice(self.actions)()
        self.finish()

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
        weighed = a_rate(self.rate, key, self.release, self.random.choice(COSTS))
        of_kind = {
            "one": [one],
            "two": [two],
            "rate": [rate],
            "both": [one, two],
            "all": [two, rate],
            "weights": [weighed],
            "pooled": [two, weighed],
        }
        return of_kind.get(kind, [])

    def enqueue(self) -> None:
        """Enqueue jobs. Sometimes the reply is lost, and the same call is sent again."""
        pick = self.random
        parts: list[str | bytes] = []
        doubles: list[tuple[int, str]] = []
        expected: list[tuple[int, str]] = []
        for _ in range(pick.randint(1, 4)):
            kind, tenant, level, mode = pick.choice(self.choices)
            key, delay, expires = pick.choice("kkl"), pick.choice(self.delays), pick.choice(self.expiries)
            self.serial += 1
            id = f"j{self.serial}"
            limits = self.limits_of(kind, key)
            if limits and mode in ("r", "b"):
                mode = "d"  # limits together with replace are refused where they are written
            unique = (
                (("t" if mode == "t" else "") + key, mode, round(2000 * UNIT) if mode in "tb" else 0) if mode else None
            )
            payload = f'"{id}"'.encode()
            drafted = record(
                tenant,
                level,
                delay=delay * UNIT,
                expires=expires * UNIT,
                task=kind,
                limits=limits,
                unique=unique,
                payload=payload,
                ttl=0,
            )
            parts += [id, drafted]
            job = Job(id, limits, unique, payload, self.serial, in_order=not delay)
            if (holder := self.judge.accept(job)) is not None:
                expected.append((len(parts) // 2 - 1, holder))
        before = self.judge.records
        call = self.stand.bindings.enqueue(parts, on_double=lambda place, holder: doubles.append((place, holder)))
        self.calls += 1
        call = RoundTrip(call.script, call.keys, ("caller", self.calls, *call.args[2:]), call.read)
        assert self.send(call) == []
        assert doubles == expected
        if pick.random() < 0.2:
            known = self.dump
            self.send(call)
            assert self.dump == known, "a repeated call has changed something"
            assert doubles == expected * 2
        self.judge.judge(before)

    # --- workers ---

    def take_turn(self, one: Worker, want: int, plan: Sequence[tuple[Ending | None, float]], *, lose: bool) -> None:
        """Settle claims as planned, and claim. `lose`: the reply is lost, and the turn is repeated at once."""
        ended = [(claim, *end) for claim, end in zip(one.held, plan, strict=False)]
        one.number += 1
        call = self.stand.bindings.turn(
            one.incarnation,
            one.number,
            lease=LEASE,
            want=want,
            settlements=[settlement(*end) for end in ended],
            trial="alone",
        )
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
            scopes = {f"p:task={claim.record.task}", f"p:tenant={claim.record.tenant}"}
            assert not scopes & self.paused, f"{claim.id} was claimed while its scope is paused"
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

    def turn(self) -> None:
        one, pick = self.random.choice(self.workers), self.random
        plan = [
            (pick.choice(self.endings), pick.choice([0.0, 0.0, UNIT])) for _ in range(pick.randint(0, len(one.held)))
        ]
        self.take_turn(one, pick.choice([0, 1, 1, 2, 5]), plan, lose=pick.random() < 0.2)

    def crash(self) -> None:
        """A process dies while some of its jobs run. Its supervisor reports that."""
        one, ran = self.random.choice(self.workers), self.random.randint(0, 2)
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

    def wait(self, units: float | None = None) -> None:
        units = self.random.choice([0.1, 0.1, 0.5, 0.5, 1.0, 2.0, 10.001]) if units is None else units
        self.stand.advance(units * UNIT)
        self.judge.now = self.stand.clock.now_ms

    def pick(self, most: int) -> list[str]:
        ids = [*self.judge.jobs]
        return self.random.sample(ids, min(len(ids), most))

    def cancel(self) -> None:
        ids = self.pick(2)
        over = [id for id in ids if self.judge.expire(id)]
        words = self.send(self.stand.bindings.cancel(ids))
        for id, word in zip(ids, words, strict=True):
            if id in over:
                assert word == "none"
                continue
            job = self.judge.jobs[id]
            assert word == ("running" if job.token else "dead" if job.dead else "cancelled")
            if word == "cancelled":
                self.judge.end(job)
        self.judge.judge(self.before)

    def change_dead_letters(self) -> None:
        dead = [job.id for job in self.judge.jobs.values() if job.dead]
        ids = self.random.sample(dead, min(len(dead), 2))
        if self.random.random() < 0.7:
            requeued = self.judge.requeue(ids)
            assert self.send(self.stand.bindings.requeue([*ids, "unknown"])) == requeued
        else:
            self.send(self.stand.bindings.remove_dead(ids))
            for id in dict.fromkeys(ids):
                self.judge.end(self.judge.jobs[id])
        self.judge.judge(self.before)

    def edit_dead(self) -> None:
        """A dead letter gets other arguments, and with them other limits and another unique key. It is sent twice."""
        pick, dead = self.random, [job for job in self.judge.jobs.values() if job.dead]
        if not dead:
            return
        job, kind, key = pick.choice(dead), pick.choice(KINDS), pick.choice("kkl")
        limits = self.limits_of(kind, key)
        unique = (key, ANY_TIME, 0) if pick.random() < 0.5 else None
        payload = f'"{job.id} edited"'.encode()
        task = self.judge.records[job.id].task
        drafted = record("elsewhere", 9, task=task, limits=limits, unique=unique, payload=payload, ttl=0)
        call = requeue_with(self.stand.bindings, job.id, drafted)
        self.calls += 1
        call = RoundTrip(call.script, call.keys, ("caller", self.calls, *call.args[2:]), call.read)
        holder = self.judge.edit_dead(job, limits, unique, payload)
        for _ in range(2):
            assert self.send(call) == ([holder] if holder else "requeued")
        self.judge.judge(self.before)

    def edit(self) -> None:
        for id in self.pick(1):
            self.edit_one(id, self.random.choice([None, 0.0, 2 * UNIT]), self.random.choice([None, 1, 5, 9]))

    def edit_one(self, id: str, due: float | None, level: int | None) -> None:
        job, is_delayed = self.judge.jobs[id], self.stand.state(id) == DELAYED
        is_over = self.judge.is_over(id)
        word = self.send(self.stand.bindings.edit(id, due=due, priority=level))
        assert word == ("dead" if job.dead else "running" if job.token else "done" if is_over else "edited")
        if word == "edited" and not is_delayed and not (due == 0 and level is None):
            self.serial += 1
            job.order, job.in_order = self.serial, job.in_order and not due  # it goes behind the others
        self.judge.judge(self.before)

    def pause(self) -> None:
        tasks = [f"task={kind}" for kind, *_ in self.choices]
        self.pause_scope("p:" + self.random.choice([*tasks, "tenant=ada"]), self.random.random() < 0.5)

    def pause_scope(self, scope: str, on: bool) -> None:
        self.send(self.stand.bindings.pause_scope(scope, on))
        (self.paused.add if on else self.paused.discard)(scope)
        self.judge.judge(self.before)

    def change_limits(self) -> None:
        """By a newer release, whose jobs follow, or by the operator."""
        two, rate = self.random.randint(1, 3), self.random.randint(1, 4)
        if self.random.random() < 0.5:
            self.release, self.two, self.rate = max(self.release + 1, self.judge.now), two, rate
            return
        for name, numbers in (("c:two", (two, 0, 0)), ("r:rate", (rate, round(UNIT * 1_000_000) // rate, rate))):
            release = max(self.judge.now, self.judge.definitions.get(name, (0, 0, 0, 0))[3])
            self.judge.sent[name].add((*numbers, release))
            self.send(LimitBindings(self.stand.bindings).set_limit(name, *numbers))
            self.judge.judge(self.before)

    def alive(self) -> list[tuple[Worker, Claim]]:
        """The claims of workers whose leases have not run out. The job of another claim may have ended elsewhere."""
        leases, now = self.judge.leases, self.judge.now
        return [(one, claim) for one in self.workers for claim in one.held if leases[one.incarnation] > now]

    def hold(self) -> None:
        """An operator closes or opens a key of the rate, or a running job closes it. Sometimes the reply is lost."""
        pick, key, now = self.random, "r:rate=" + self.random.choice("kl"), self.judge.now
        ms, bindings = round(pick.choice([0.5, 1, 3]) * UNIT * 1000), LimitBindings(self.stand.bindings)
        running = [(one, claim) for one, claim in self.alive() if key in self.judge.jobs[claim.id].keys]
        until = now + ms
        if running and pick.random() < 0.5:
            one, claim = pick.choice(running)
            call, until = bindings.hold(one.incarnation, claim.token, key, ms), max(until, self.judge.holds.get(key, 0))
        elif "r:rate" not in self.judge.definitions:
            return
        else:
            until = pick.choice([0, until, until])
            call = bindings.hold_limit(key, until, is_date=True)
        self.calls += 1
        call = RoundTrip(call.script, call.keys, ("caller", self.calls, *call.args[2:]), call.read)
        self.judge.holds[key] = until
        assert self.send(call) == until
        if pick.random() < 0.3:
            known, before = self.dump, self.before
            assert self.send(call) == until
            assert self.dump == known, "a repeated hold has changed something"
            self.before = before
        self.judge.judge(self.before)

    def book(self) -> None:
        """A running job says what it took of its rate. Sometimes the reply is lost."""
        pick = self.random
        running = [
            (one, claim, key)
            for one, claim in self.alive()
            for key in self.judge.jobs[claim.id].keys
            if key.startswith("r:")
        ]
        if not running:
            return
        one, claim, key = pick.choice(running)
        job, units = self.judge.jobs[claim.id], pick.choice([0, 1, 3, 8])
        call = LimitBindings(self.stand.bindings).used(one.incarnation, claim.token, key, units)
        expected = job.booked[key]
        self.judge.book(job, key, units)
        assert self.send(call) == expected
        if pick.random() < 0.3:
            known, before = self.dump, self.before
            assert self.send(call) == units
            assert self.dump == known, "a repeated booking has changed something"
            self.before = before
        self.judge.judge(self.before)

    def purge_parked(self) -> None:
        tenant = self.random.choice([None, "", "ada"])
        offset, finished = 0, False
        while not finished:
            _, offset, finished, _ = self.send(self.stand.bindings.purge_parked(tenant, offset, 2))
            for id in [*self.judge.jobs]:
                if id not in self.judge.records and self.before[id].state == constants.PARKED:
                    # Each place that a purge frees may be offered to a job that has expired, of any tenant.
                    is_expired = 0 < self.before[id].expires <= self.judge.now
                    assert is_expired or tenant in (None, self.before[id].tenant)
                    self.judge.end(self.judge.jobs[id])
            self.judge.judge(self.before)

    def keep(self, dead: int | None) -> None:
        self.judge.keeps = dead
        self.send(Retention(dead_letters=dead).store(self.stand.bindings))
        self.judge.judge(self.before)

    def switch(self) -> None:
        on = self.random.random() < 0.5
        self.send(self.stand.bindings.set_switch("by_time", on))
        self.judge.judge(self.before)

    # --- the end ---

    def finish(self) -> None:
        """One worker runs everything, and nothing is left."""
        for scope in sorted(self.paused):  # not in the order of a set, so that a seed can be repeated
            self.pause_scope(scope, False)
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


def test_histories_keep_their_promises(client: Any) -> None:
    run_histories(partial(PowerHistory, client), quick=16, steps=60)


def test_jobs_of_two_releases_that_one_call_admits_each_count_by_their_own_numbers(client: Any) -> None:
    """The parked jobs of a paused scope are the first that use a limit. The newer release lowers it."""
    history = PowerHistory(client, 0)
    history.keep(None)
    history.pause_scope("p:task=two", True)
    history.choices, history.delays, history.expiries = [("two", "", 5, None)], [0], [0]
    for release, most in ((1, 2), (2, 1)):
        history.release, history.two = release, most
        for _ in range(3):
            history.enqueue()
    history.pause_scope("p:task=two", False)
    assert history.judge.definitions["c:two"] == (1, 0, 0, 2)
    assert history.judge.used["c:two="] == 2
    history.finish()
