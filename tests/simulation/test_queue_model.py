"""Random histories of one queue on a real server, compared with a model after every call.

The default run is short and always the same. PENSTOCK_SIMULATION=<examples> makes it long and random. A failure prints
the calls that lead to it, and a line of code that repeats them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.core.operations import RoundTrip
from penstock.jobs.claims import Claim, Ending, Registration, Settlement, Trial, TurnReply, claim_number
from penstock.jobs.constants import UNIQUE, UNIQUE_KEY
from penstock.jobs.editing import requeue_with
from penstock.jobs.finished import CompletedRows
from penstock.jobs.record import Record, draft, pack_sections
from penstock.jobs.retention import Retention
from penstock.jobs.running_again import draft_again
from penstock.jobs.unique import unique_section
from tests.jobs.stand import DEAD, DELAYED, READY, RUNNING, START, Stand, record
from tests.servers import Server
from tests.simulation.histories import model_settings
from tests.simulation.queue_model import QueueModel
from tests.simulation.queue_state import Job, with_each_claim

R = TypeVar("R")

LEASE = 10.0
BATCH = 4
WINDOW = 600_000
ENDINGS: list[Ending | None] = [
    None,
    None,
    None,
    "retry",
    "later",
    "release",
    "bury",
    "drop",
    "crash",
    "loss",
    "contained",
]

tenants = st.sampled_from(["", "a", "ab", "a:b", "名", "\x00"])
rivals = st.sampled_from(["a", "ab", "名"])
chances = st.sampled_from([True, False, False, False])
levels = st.sampled_from([1, 5, 9])
some = st.integers(0, 1000)
delays = st.sampled_from([0.0, 0.0, 0.001, 1.0, 5.0])
periods = st.sampled_from([0.001, 0.049, 0.05, 0.3, 1.0, 4.999, 9.999, 10.0, 10.001, 51.0, 3600.0])
plans = st.lists(st.tuples(st.sampled_from(ENDINGS), delays), max_size=8)
wants = st.sampled_from([0, 1, 1, 2, 3, 7, 64])
drafts = st.lists(
    st.tuples(
        tenants,
        levels,
        st.sampled_from([0, 0, 0, 1, 5]),  # seconds until it is due
        st.sampled_from([0, 0, 0, 2]),  # seconds until it expires
        st.booleans(),  # as dates
        st.sampled_from([None, None, "x", "y", "z"]),  # an own id
        st.sampled_from([0, 600]),
    ),
    min_size=1,
    max_size=6,
)


@dataclass
class Worker:
    """A process: its current incarnation, the claims it holds and held before, and a turn whose reply was lost."""

    name: str
    life: int = 0
    number: int = 0
    held: list[Claim] = field(default_factory=list)
    past: list[Claim] = field(default_factory=list)
    unanswered: tuple[Any, ...] | None = None
    trial: Trial = ""
    supervised: bool = False
    host_deaths: int | None = None

    @property
    def watched(self) -> dict[str, Any]:
        """What it registers about the process that watches it."""
        return {"supervised": self.supervised, "host_deaths": self.host_deaths}

    @property
    def incarnation(self) -> str:
        return f"{self.name}.{self.life}"


@dataclass(frozen=True)
class Ghost:
    """An incarnation that its worker has given up, and the claims that it may still try to settle."""

    incarnation: str
    number: int
    held: tuple[Claim, ...]


class Histories(RuleBasedStateMachine):
    server: ClassVar[Server]
    batch: ClassVar[tuple[int, int, int] | None] = None
    """What each worker declares of the batches of its task."""

    def __init__(self) -> None:
        super().__init__()
        self.server.client.flushall()
        self.stand = Stand(self.server.client)
        self.model = QueueModel(START, in_batches=self.batch is not None)
        self.dump = self.stand.dump()
        self.workers = [
            Worker("a"),
            Worker("b", supervised=True),
            Worker("c", supervised=True, trial="only", host_deaths=2),
            Worker("d", trial="only"),
        ]
        self.ghosts: list[Ghost] = []
        self.singles: list[tuple[str, Claim]] = []
        self.ids: list[str] = []
        self.purge: tuple[str | None, int] | None = None
        self.claims: dict[bytes, Claim] = {}
        """All claims that a turn has returned, by their tokens."""
        self.serial = 0
        self.calls = 0

    # --- sending ---

    @property
    def bindings(self) -> Any:
        return self.stand.bindings

    def send(self, call: RoundTrip[R]) -> R:
        reply = self.stand.run(call)
        self.before, self.dump = self.dump, with_each_claim(self.stand.dump())
        return reply

    def check(self, call: RoundTrip[R], expected: object) -> None:
        assert self.send(call) == expected

    def send_turn(
        self,
        incarnation: str,
        number: int,
        want: int,
        settlements: Sequence[Settlement],
        sleep: float = 0.0,
        trial: Trial = "alone",
        *,
        supervised: bool = False,
        host_deaths: int | None = None,
        once: bool = False,
    ) -> TurnReply:
        address = f"{incarnation.partition('.')[0]}/1" if sleep else ""
        registration = (
            Registration(
                incarnation, 1, supervised=supervised, trial=trial == "only", host_deaths=host_deaths, batch=self.batch
            )
            if number == 1 and not once
            else None
        )
        call = self.bindings.turn(
            incarnation,
            number,
            lease=LEASE,
            want=want,
            settlements=settlements,
            trial=trial,
            address=address,
            sleep=sleep,
            once=once,
            registration=registration,
            rows=self.rows_of,
        )
        reply: TurnReply = self.send(call)
        self.claims |= {claim.token: claim for claim in reply.claims}
        times = {"lease": round(LEASE * 1000), "sleep": round(sleep * 1000)}
        self.model.turn(
            incarnation,
            number,
            want,
            settlements,
            trial=trial,
            **times,
            once=once,
            reply=reply,
            before=self.before,
            after=self.dump,
            supervised=supervised,
            host_deaths=host_deaths,
        )
        return reply

    def take_turn(self, worker: Worker, want: int, settlements: Sequence[Settlement], sleep: float) -> None:
        """Take a turn. A worker whose incarnation has ended begins the next one."""
        reply = self.send_turn(
            worker.incarnation, worker.number, want, settlements, sleep, worker.trial, **worker.watched
        )
        if reply.alive:
            settled = {token for settlement in settlements for token in settlement.tokens}
            worker.past += [claim for claim in worker.held if claim.token in settled]
            worker.held = [claim for claim in worker.held if claim.token not in settled] + reply.claims
            return
        self.ghosts.append(Ghost(worker.incarnation, worker.number, tuple(worker.held)))
        worker.life, worker.number, worker.held = worker.life + 1, 0, []

    def fresh(self, n: int) -> list[str]:
        self.serial += n
        return [f"j{self.serial - i}" for i in range(n)]

    # --- enqueue ---

    def enqueue(self, specs: Sequence[tuple[Any, ...]], numbered: tuple[str, int] | None = None) -> None:
        jobs, due, parts = [], [], []
        for tenant, level, delay, expires, dates, own, ttl in specs:
            key = own or self.fresh(1)[0]
            due_at = self.model.now + delay * 1000 if delay else 0
            expires_at = self.model.now + expires * 1000 if expires else 0
            payload = f'"{key}"'.encode()
            if dates:
                drafted = record(
                    tenant,
                    level,
                    at=due_at or None,
                    expires_at=expires_at or None,
                    ttl=ttl,
                    own=bool(own),
                    payload=payload,
                )
            else:
                drafted = record(tenant, level, delay=delay, expires=expires, ttl=ttl, own=bool(own), payload=payload)
            jobs.append(Job(key, tenant, level, bool(own), ttl * 1000, expires_at, payload))
            due.append(due_at)
            parts += [key, drafted]
            self.ids.append(key)
        self.enqueue_parts(jobs, due, parts, numbered)

    def enqueue_parts(
        self, jobs: Sequence[Job], due: Sequence[int], parts: Sequence[Any], numbered: tuple[str, int] | None = None
    ) -> None:
        """Enqueue drafts. Without a number of its own, a call has a new one while a bound may refuse it."""
        if numbered is None and any(self.model.bound):
            self.calls += 1
            numbered = ("z", self.calls)
        others: list[list[Any]] = []
        call = self.bindings.enqueue(
            parts,
            on_double=lambda place, holder: others.append([place, holder]),
            on_refusal=lambda place, full: others.append([place, full.count, full.bound, full.tenant]),
        )
        if numbered:
            call = RoundTrip(call.script, call.keys, (*numbered, *call.args[2:]), call.read)
        known = self.send(call)
        expected: list[Any] = self.model.enqueue(jobs, due, numbered)
        assert known == [one for one in expected if isinstance(one, int)]
        assert others == [
            one if len(one) == 2 else [one[0], *one[2:4], one[4] if len(one) > 4 else None]
            for one in expected
            if not isinstance(one, int)
        ]

    @rule(most=st.sampled_from([0, 0, 2, 5, 150]), of_tenant=st.sampled_from([0, 0, 1, 3]))
    def set_bound(self, most: int, of_tenant: int) -> None:
        call = self.bindings._call("set_bound", (self.bindings.clock.now_ms, most, of_tenant), int)
        self.check(call, self.model.set_bound(most, of_tenant))

    @rule(specs=drafts)
    def enqueue_some(self, specs: Sequence[tuple[Any, ...]]) -> None:
        self.enqueue(specs)

    @rule(specs=drafts, caller=st.sampled_from("pq"), number=st.integers(1, 9))
    def enqueue_numbered(self, specs: Sequence[tuple[Any, ...]], caller: str, number: int) -> None:
        """A call whose number is not above the caller's last one is a repeated call."""
        self.enqueue(specs, (caller, number))

    @rule(
        specs=st.lists(
            st.tuples(
                tenants,
                levels,
                st.sampled_from([0, 0, 5]),  # seconds until it is due
                st.sampled_from([0, 0, 2]),  # seconds until it expires
                st.sampled_from("klm"),
                st.sampled_from("ddst"),
            ),
            min_size=1,
            max_size=6,
        )
    )
    def enqueue_unique(self, specs: Sequence[tuple[Any, ...]]) -> None:
        """Some of the calls are doubles of waiting or running jobs, or of each other."""
        jobs, due, parts = [], [], []
        for tenant, level, delay, expires, key, mode in specs:
            (id,) = self.fresh(1)
            unique = (mode + key, mode, WINDOW if mode == "t" else 0)
            expires_at = self.model.now + expires * 1000 if expires else 0
            job = Job(id, tenant, level, False, 600_000, expires_at, f'"{id}"'.encode(), unique=unique)
            start = draft(
                flags=UNIQUE,
                how=0,
                priority=level,
                tenant=tenant.encode(),
                task=b"",
                delay_ms=delay * 1000,
                expires_ms=expires * 1000,
                ttl_ms=600_000,
                powers=UNIQUE_KEY,
            )
            jobs.append(job)
            due.append(self.model.now + delay * 1000 if delay else 0)
            parts += [id, start + job.sections + job.payload]
            self.ids.append(id)
        self.enqueue_parts(jobs, due, parts)

    @rule(n=st.integers(90, 130), tenant=tenants, spread=st.booleans(), level=levels, delay=st.sampled_from([0, 1]))
    def enqueue_many(self, n: int, tenant: str, spread: bool, level: int, delay: int) -> None:
        """Enqueue more jobs than one slice handles."""
        if len(self.model.jobs) < 400:
            self.enqueue([(f"{tenant}{i % 40 if spread else ''}", level, delay, 0, False, None, 0) for i in range(n)])

    @rule(
        tenant=tenants,
        level=levels,
        ttl=st.sampled_from([0, 600]),
        caller=st.sampled_from("pqr"),
        number=st.integers(1, 9),
        calls=st.integers(1, 4),
    )
    def stage(self, tenant: str, level: int, ttl: int, caller: str, number: int, calls: int) -> None:
        """Plain calls that travel together; some are repeated calls. What is not accepted goes the general way."""
        keys = self.fresh(calls)
        texts = [f'"{key}"'.encode() for key in keys]
        drafted = [
            part
            for key, text in zip(keys, texts, strict=True)
            for part in (key, record(tenant, level, ttl=ttl, payload=text))
        ]
        call, last = self.bindings.take_in(*drafted), number + calls - 1
        accepted = self.send(RoundTrip(call.script, call.keys, (caller, last, *call.args[2:]), call.read))
        jobs = [Job(key, tenant, level, False, ttl * 1000, 0, text) for key, text in zip(keys, texts, strict=True)]
        self.model.stage(jobs, (caller, last), accepted, self.before)
        if accepted:
            self.ids += keys
        else:
            self.enqueue([(tenant, level, 0, 0, False, None, ttl)] * calls, (caller, last))

    # --- workers ---

    @rule(
        worker=some,
        want=wants,
        plan=plans,
        repeat=st.booleans(),
        sleep=st.sampled_from([0.0, 50.0]),
        lose=st.booleans(),
    )
    def turn(
        self,
        worker: int,
        want: int,
        plan: Sequence[tuple[Ending | None, float]],
        repeat: bool,
        sleep: float,
        lose: bool,
    ) -> None:
        """Settle claims as planned, then claim. `lose`: the reply is lost, and the turn is repeated later."""
        one = self.workers[worker % 4]
        if one.unanswered:
            self.answer(one)
            return
        claims = [*one.held, *one.past[-3:], *(claim for ghost in self.ghosts[-2:] for claim in ghost.held[:2])]
        settlements = [settlement(claim, *end) for claim, end in zip(claims, plan, strict=False)]
        if repeat and settlements:
            settlements.append(settlements[0])
        self.next_turn(one, want, settlements, sleep, lose)

    def next_turn(self, one: Worker, want: int, settlements: Sequence[Settlement], sleep: float, lose: bool) -> None:
        if one.unanswered:
            self.answer(one)
        one.number += 1
        if lose:
            one.unanswered = (want, settlements, sleep)
            self.send_turn(one.incarnation, one.number, *one.unanswered, one.trial, **one.watched)
        else:
            self.take_turn(one, want, settlements, sleep)

    @rule(worker=some, want=wants, n=st.integers(1, 100))
    def work(self, worker: int, want: int, n: int) -> None:
        """Complete all claims, and claim again."""
        one = self.workers[worker % 4]
        if one.unanswered:
            self.answer(one)
        one.number += 1
        self.take_turn(one, want, [settlement(claim, None, 0) for claim in one.held[:n]], 50.0)

    @rule(
        visits=st.lists(st.tuples(rivals, chances, chances, st.sampled_from([0, 1, 1, 1, 2])), min_size=6, max_size=24)
    )
    def compete(self, visits: Sequence[tuple[str, bool, bool, int]]) -> None:
        """Tenants enqueue one urgent job at a time; some cancel it. Small turns serve them, and release some jobs."""
        one = self.workers[0]
        for tenant, cancels, release, want in visits:
            self.enqueue([(tenant, 0, 0, 0, False, None, 0)])
            if cancels:
                self.cancel([len(self.ids) - 1])
            if one.unanswered:
                self.answer(one)
            one.number += 1
            self.take_turn(one, want, [settlement(c, "release" if release else None, 0) for c in one.held], 0.0)
            self.model.judge(self.dump)

    def answer(self, worker: Worker) -> None:
        """Repeat the turn whose reply was lost."""
        assert worker.unanswered
        self.take_turn(worker, *worker.unanswered)
        worker.unanswered = None

    @rule(worker=some, ran=st.integers(0, 3))
    def crash(self, worker: int, ran: int) -> None:
        """The process dies while some of its jobs run. Its supervisor reports that, and starts the next one."""
        one = self.workers[worker % 4]
        tokens = [claim.token for claim in one.held[:ran]]
        ending: Ending = "crash" if len(tokens) == 1 else "loss"
        cause = b'{"reason":"killed"}'
        expected = self.model.abandon(one.incarnation, ending, cause, tokens)
        self.check(self.bindings.abandon(one.incarnation, ending, cause, tokens), expected)
        self.ghosts.append(Ghost(one.incarnation, one.number, tuple(one.held)))
        one.life, one.number, one.held, one.unanswered = one.life + 1, 0, [], None

    @rule(worker=some)
    def heartbeat(self, worker: int) -> None:
        incarnation = self.workers[worker % 4].incarnation
        cancels = self.send(self.bindings.heartbeat(incarnation, LEASE))
        expected = self.model.heartbeat(incarnation, round(LEASE * 1000))
        assert (cancels if cancels is None else sorted(cancels)) == expected

    @precondition(lambda self: self.ghosts)
    @rule(ghost=some, plan=plans, number=st.integers(0, 2), single=st.booleans())
    def act_after_the_end(
        self, ghost: int, plan: Sequence[tuple[Ending | None, float]], number: int, single: bool
    ) -> None:
        """An incarnation that its worker has given up still tries to settle, to claim, and to renew its lease."""
        one = self.ghosts[ghost % len(self.ghosts)]
        settlements = [settlement(claim, *end) for claim, end in zip(one.held, plan, strict=False)]
        if self.model.alive(one.incarnation):
            return
        if self.model.staged:
            self.send(self.bindings.counts())  # empties the intake
            self.model.empty_intake()
            self.model.sweep()
        if single and settlements:
            self.check(self.bindings.settle(one.incarnation, settlements[0]), False)
            assert self.before == self.dump
        elif one.number + number > 1:
            assert not self.send_turn(one.incarnation, one.number + number, 3, settlements).alive or number == 0
        self.check(self.bindings.heartbeat(one.incarnation, LEASE), None)
        assert self.before == self.dump

    # --- claims without a worker ---

    @rule(want=wants, sleep=st.sampled_from([0.0, 50.0]), repeat=st.booleans())
    def claim_once(self, want: int, sleep: float, repeat: bool) -> None:
        self.claim_single(want, sleep, repeat)

    def claim_single(self, want: int, sleep: float = 0.0, repeat: bool = False) -> bool:
        """A claim of a program without a worker. Returns whether there are more jobs."""
        self.serial += 1
        incarnation = f"once{self.serial}.0"
        reply = self.send_turn(incarnation, 1, want, [], sleep, once=True)
        if repeat and incarnation in self.model.incarnations:
            self.send_turn(incarnation, 1, want, [], sleep, once=True)
        self.singles += [(incarnation, claim) for claim in reply.claims]
        return reply.more

    def rows_of(self, done: Sequence[Settlement]) -> bytes:
        rows = CompletedRows()
        for token in [token for end in done for token in end.tokens if token in self.claims]:
            rows.add(self.claims[token])
        return rows.take(done)

    @precondition(lambda self: self.singles)
    @rule(single=some, ending=st.sampled_from(ENDINGS), delay=delays, keep=st.booleans())
    def settle_once(self, single: int, ending: Ending | None, delay: float, keep: bool) -> None:
        """Settle a claim; some are settled again in another way."""
        place = single % len(self.singles)
        incarnation, claim = self.singles[place] if keep else self.singles.pop(place)
        end = settlement(claim, ending, delay)
        row = b"" if end.ending else self.rows_of([end])
        self.check(self.bindings.settle(incarnation, end, row), self.model.settle(incarnation, end))

    # --- time and operators ---

    @rule(seconds=periods)
    def wait(self, seconds: float) -> None:
        self.stand.advance(seconds)
        self.model.now = self.stand.clock.now_ms

    def pick(self, places: Sequence[int]) -> list[str]:
        return [self.ids[place % len(self.ids)] for place in places]

    @precondition(lambda self: self.ids)
    @rule(places=st.lists(some, min_size=1, max_size=4))
    def cancel(self, places: Sequence[int]) -> None:
        ids = self.pick(places)
        self.check(self.bindings.cancel(ids), self.model.cancel(ids))

    @precondition(lambda self: self.ids)
    @rule(
        place=some,
        due=st.sampled_from([None, 0, 1, 30]),
        priority=st.none() | levels,
        payload=st.sampled_from([None, b"1", b'"other"']),
    )
    def edit(self, place: int, due: int | None, priority: int | None, payload: bytes | None) -> None:
        (key,) = self.pick([place])
        date = None if due is None else self.model.now + due * 1000
        expected = self.model.edit(key, date, priority, payload)
        self.check(self.bindings.edit(key, due=due, priority=priority, payload=payload), expected)

    @rule(keep=st.integers(2, 50))
    def cancel_many(self, keep: int) -> None:
        """Cancel all waiting jobs except every `keep`-th: a turn has to skip their entries."""
        ids = [job.id for i, job in enumerate(self.model.in_state(READY, DELAYED)) if i % keep]
        while ids:
            words = self.send(self.bindings.cancel(ids))
            done, ids = ids[: len(words)], ids[len(words) :]
            assert words == self.model.cancel(done) != []

    @rule(tenant=st.none() | tenants, slice_=st.sampled_from([1, 2, 5, 50]))
    def purge_slice(self, tenant: str | None, slice_: int) -> None:
        """One slice of a purge. The next call continues it, whatever happened in between."""
        tenant, offset = self.purge or (tenant, 0)
        cancelled, offset, finished, _ = self.send(self.bindings.purge(tenant, offset, slice_))
        self.model.purge(tenant, slice_, cancelled, finished, self.dump)
        self.purge = None if finished else (tenant, offset)

    @rule(tenant=st.none() | tenants)
    def purge_whole(self, tenant: str | None) -> None:
        for list_ in ("delayed", "suspects"):
            offset, finished = 0, False
            while not finished:
                cancelled, offset, finished, _ = self.send(self.bindings.purge(tenant, offset, 50, list_))
                self.model.purge(tenant, 50, cancelled, finished, self.dump, suspects=list_ == "suspects")
        assert not [job for job in self.model.in_state(READY, DELAYED) if tenant in (None, job.tenant)]

    @precondition(lambda self: self.model.in_state(DEAD))
    @rule(places=st.lists(some, min_size=1, max_size=3), requeue=st.booleans())
    def change_dead_letters(self, places: Sequence[int], requeue: bool) -> None:
        """Requeue or remove dead letters; some of the ids belong to other jobs."""
        dead = [job.id for job in self.model.in_state(DEAD)]
        ids = [*self.pick(places), *(dead[place % len(dead)] for place in places)]
        if requeue:
            self.check(self.bindings.requeue(ids), self.model.requeue(ids))
        else:
            self.check(self.bindings.remove_dead(ids), self.model.remove_dead(ids))

    @rule(
        place=some, task=st.sampled_from([b"", b"", b"", b"other"]), key=st.sampled_from([None, *"klm"]), again=chances
    )
    def edit_dead_letter(self, place: int, task: bytes, key: str | None, again: bool) -> None:
        """A dead letter gets the arguments of another call, and with them another unique key. `again`: sent twice."""
        dead = self.model.in_state(DEAD) or self.bury_one()
        if not dead:
            return
        job = dead[place % len(dead)]
        unique = ("d" + key, "d", 0) if key else None
        start = draft(
            flags=UNIQUE if unique else 0,
            how=0,
            priority=1,
            tenant=b"elsewhere",
            task=task,
            delay_ms=0,
            expires_ms=0,
            ttl_ms=5000,
            powers=UNIQUE_KEY if unique else 0,
        )
        section = pack_sections({UNIQUE_KEY: unique_section("d" + key, b"d", 0)}) if key else b""
        call = requeue_with(self.bindings, job.id, start + section + b'"edited"')
        if again:
            self.calls += 1
            call = RoundTrip(call.script, call.keys, ("z", self.calls, *call.args[2:]), call.read)
        numbered = ("z", self.calls) if again else None
        expected = self.model.edit_dead(job.id, task.decode(), unique, b'"edited"', numbered)
        for _ in range(1 + again):
            self.check(call, expected)

    def bury_one(self) -> list[Job]:
        """A program without a worker claims a job, and fails. Nothing is claimed while the queue is paused."""
        self.enqueue([("", 0, 0, 0, False, None, 600)])
        self.claim_single(1)
        while self.singles and not self.model.in_state(DEAD):
            incarnation, claim = self.singles.pop()
            end = settlement(claim, "bury", 0)
            self.check(self.bindings.settle(incarnation, end, b""), self.model.settle(incarnation, end))
        return self.model.in_state(DEAD)

    @rule(on=st.booleans())
    def pause(self, on: bool) -> None:
        self.send(self.bindings.set_switch("paused", on))
        self.model.empty_intake()
        self.model.paused = on

    @rule(on=st.sampled_from([True, True, False]))
    def keep_arguments(self, on: bool) -> None:
        self.send(Retention(arguments=on).store(self.bindings))
        self.model.keep_arguments(on)

    @precondition(lambda self: self.model.kept)
    @rule(place=some)
    def run_again(self, place: int) -> None:
        """A job that has ended is enqueued again, from what is kept of it."""
        old = [*self.model.kept.values()][place % len(self.model.kept)]
        blocks = {int(name[10:]): held for name, held in self.dump.items() if name.startswith("arguments:")}
        kept = next(held[key] for _, held in sorted(blocks.items(), reverse=True) if (key := old.id.encode()) in held)
        (id,) = self.fresh(1)
        job = Job(id, old.tenant, old.level, False, old.ttl, 0, old.payload, unique=old.unique)
        self.ids.append(id)
        self.enqueue_parts([job], [0], [id, draft_again(Record(kept), old.id, in_shards=False)])

    @rule(on=st.booleans())
    def put_due_first(self, on: bool) -> None:
        self.send(self.bindings.set_switch("due_first", on))
        self.model.empty_intake()
        self.model.due_first = on

    @rule(tenant=tenants, weight=st.sampled_from([0.5, 1.0, 1.0, 2.0, 5.0]))
    def set_weight(self, tenant: str, weight: float) -> None:
        self.send(self.bindings.set_weight(tenant, weight))
        self.model.set_weight(tenant, weight)

    @precondition(lambda self: self.ids)
    @rule(place=some, address=st.sampled_from(["p/1", "p/11", "q/1"]), stay=st.booleans())
    def wait_for(self, place: int, address: str, stay: bool) -> None:
        (key,) = self.pick([place])
        self.send(self.bindings.result(key, address))
        self.model.wait_for(key, address)
        if not stay:
            self.send(self.bindings.forget(key, address))
            self.model.forget(key, address)

    # --- checks ---

    @invariant()
    def the_server_agrees_with_the_model(self) -> None:
        self.model.judge(self.dump)

    def teardown(self) -> None:
        if sys.exception():
            return  # a check has failed, and its error is the one to report
        self.drain()
        self.remove_all_dead()
        for tenant in list(self.model.weights):
            self.send(self.bindings.set_weight(tenant, 1.0))
        owned = {"meta", "owners", "results", "intake", *_ends(self.dump)}
        assert set(self.stand.without_ttl()) <= owned, "a key has no owner"
        assert set(self.dump.get("meta", {})) <= META

    def drain(self) -> None:
        """One worker runs everything. Then leases run out, and a last turn removes the ended incarnations."""
        self.pause(False)
        self.set_bound(0, 0)
        self.wait(3600)
        self.workers = [last] = [Worker("last", trial="alone")]
        while self.model.in_state(READY, DELAYED, RUNNING):
            assert last.number < 200, "the queue does not run empty"
            self.wait(0 if self.model.in_state(READY) else 5)
            last.number += 1
            self.take_turn(last, 64, [settlement(claim, None, 0) for claim in last.held], 0.0)
            self.model.judge(self.dump)
        # After an hour the next wake-up forgets all idle workers; some turns remove ended incarnations and old entries.
        self.wait(3600)
        self.enqueue([("", 5, 0, 0, False, None, 0)])
        self.singles = []
        while self.claim_single(64):
            pass
        ((incarnation, claim),) = self.singles
        end = settlement(claim, None, 0)
        row = self.rows_of([end])
        self.check(self.bindings.settle(incarnation, end, row), self.model.settle(incarnation, end))

    def remove_all_dead(self) -> None:
        ids = [job.id for job in self.model.in_state(DEAD)]
        if ids:
            self.check(self.bindings.remove_dead(ids), self.model.remove_dead(ids))
        self.model.judge(self.dump)


def _ends(dump: dict[str, Any]) -> set[str]:
    return {name for name in dump if name.startswith("ends:")}


META = {
    *(b"idle_until sequence completed retried failed dropped cancelled expired lost next_due next_lease".split()),
    *(b"next_result result_classes second listened due_first".split()),
    *(b"woken woken_deputy_at woken_deputy timekeeper timekeeper_until deputy deputy_until alarm".split()),
    *(b"checked alone alone_until listed".split()),
    *(b"finished failed purged next_expiry bound tenant_bound refused retention".split()),
    *(b"batch%d" % place for place in range(5)),
}


def settlement(claim: Claim, ending: Ending | None, delay: float) -> Settlement:
    if ending is None:
        return Settlement(claim.token, b"null" if delay else b'"done"')
    if ending not in ("retry", "later"):
        delay = 0.0
    return Settlement(claim.token, b"" if ending == "release" else b'{"reason":"why"}', ending, delay)


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[None]:
    with Server() as started:
        Histories.server = started
        yield


class BatchHistories(Histories):
    """All workers of the queue take batches. Nothing waits for a batch to be filled up."""

    batch = (BATCH, 0, 0)

    @rule(worker=some, tenant=rivals, n=st.integers(4, 12), lose=st.booleans())
    def claim_batches(self, worker: int, tenant: str, n: int, lose: bool) -> None:
        """Claim jobs that are more urgent than all others."""
        one = self.workers[worker % 2]
        self.pause(False)
        self.enqueue([(tenant, 0, 0, 0, False, None, 600)] * n)
        self.next_turn(one, n, [], 50.0, lose)

    @rule(worker=some, at=some, cancel=chances, obey=st.booleans(), lose=st.booleans())
    def end_batch(self, worker: int, at: int, cancel: bool, obey: bool, lose: bool) -> None:
        """Complete claims together. `cancel`: one of them was cancelled before; `obey`: the worker knows that."""
        one = self.workers[worker % 2]
        if not one.held or one.unanswered:
            return
        claims = one.held[at % len(one.held) :][:BATCH]
        tokens = tuple(claim.token for claim in claims)
        if cancel:
            self.check(self.bindings.cancel([claims[0].id]), self.model.cancel([claims[0].id]))
        rise_by_one = claim_number(tokens[-1]) - claim_number(tokens[0]) == len(tokens) - 1
        ends = [Settlement(tokens[0], jobs=tokens)] if rise_by_one else [Settlement(token) for token in tokens]
        if cancel and obey:
            ends = [Settlement(tokens[0], b"", "cancel"), *(Settlement(token) for token in tokens[1:])]
        self.next_turn(one, 0, ends, 0.0, lose)


TestHistories = Histories.TestCase
TestHistories.settings = model_settings(quick=50, steps=50)
TestBatchHistories = BatchHistories.TestCase
TestBatchHistories.settings = model_settings(quick=50, steps=50)
