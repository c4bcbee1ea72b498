"""Random histories of one queue on a real server, compared with the model after every step.

The default run is short and always the same. PENSTOCK_SIMULATION=<examples> makes it long and random; a failure
prints the steps that lead to it, and a line that repeats them.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.core.operations import RoundTrip
from penstock.jobs.claims import Claim, Ending, Registration, Settlement, Trial, TurnReply
from tests.jobs.stand import DEAD, DELAYED, READY, RUNNING, START, Stand, record
from tests.servers import Server
from tests.simulation.queue_model import Job, QueueModel

R = TypeVar("R")

EXAMPLES = int(os.environ.get("PENSTOCK_SIMULATION", "0"))
QUICK = settings(
    max_examples=150,
    stateful_step_count=60,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],  # to shrink may take minutes; the long run does it
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
LONG = settings(QUICK, max_examples=EXAMPLES or 1, derandomize=False, phases=[Phase.generate, Phase.shrink])

LEASE = 10.0
ENDINGS: list[Ending | None] = [None, None, None, "retry", "later", "release", "bury", "drop", "crash"]
TRIALS: list[Trial] = ["", "beside", "beside"]

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
        st.sampled_from([None, None, "x", "y", "z"]),  # an id of one's own
        st.sampled_from([0, 600]),
    ),
    min_size=1,
    max_size=6,
)


@dataclass
class Worker:
    """A process: its present incarnation, what it believes to hold and held before, and a turn whose reply was lost."""

    name: str
    incarnation: int = 0
    number: int = 0
    hand: list[Claim] = field(default_factory=list)
    past: list[Claim] = field(default_factory=list)
    unanswered: tuple[Any, ...] | None = None
    trial: Trial = "beside"

    @property
    def me(self) -> str:
        return f"{self.name}.{self.incarnation}"


@dataclass(frozen=True)
class Ghost:
    """An incarnation that its worker has given up, and the claims it may still try to settle."""

    me: str
    number: int
    hand: tuple[Claim, ...]


class Histories(RuleBasedStateMachine):
    server: ClassVar[Server]

    def __init__(self) -> None:
        super().__init__()
        self.server.client.flushall()
        self.stand = Stand(self.server.client)
        self.model = QueueModel(START)
        self.dump = self.stand.dump()
        self.workers = [Worker("a"), Worker("b"), Worker("c")]
        self.ghosts: list[Ghost] = []
        self.singles: list[tuple[str, Claim]] = []
        self.ids: list[str] = []
        self.purge: tuple[str | None, int] | None = None
        self.serial = 0

    # --- sending ---

    @property
    def move(self) -> Any:
        return self.stand.bindings

    def send(self, step: RoundTrip[R]) -> R:
        reply = self.stand.run(step)
        self.before, self.dump = self.dump, self.stand.dump()
        return reply

    def say(self, step: RoundTrip[R], expected: object) -> None:
        assert self.send(step) == expected

    def send_turn(
        self,
        me: str,
        number: int,
        want: int,
        settlements: Sequence[Settlement],
        sleep: float = 0.0,
        trial: Trial = "alone",
        *,
        once: bool = False,
    ) -> TurnReply:
        address = f"{me.partition('.')[0]}/1" if sleep else ""
        step = self.move.turn(
            me, number, lease=LEASE, want=want, settlements=settlements, trial=trial, address=address, sleep=sleep,
            once=once, registration=None if once or number > 1 else Registration(me, 1),
        )  # fmt: skip
        reply: TurnReply = self.send(step)
        times = {"lease": round(LEASE * 1000), "sleep": round(sleep * 1000)}
        self.model.turn(
            me, number, want, settlements, trial=trial, **times, once=once, reply=reply, before=self.before,
            after=self.dump,
        )  # fmt: skip
        return reply

    def take_turn(self, worker: Worker, want: int, settlements: Sequence[Settlement], sleep: float) -> None:
        """A turn of a worker; one that has ended begins anew."""
        reply = self.send_turn(worker.me, worker.number, want, settlements, sleep, worker.trial)
        if reply.alive:
            settled = {settlement.token for settlement in settlements}
            worker.past += [claim for claim in worker.hand if claim.token in settled]
            worker.hand = [claim for claim in worker.hand if claim.token not in settled] + reply.claims
            return
        self.ghosts.append(Ghost(worker.me, worker.number, tuple(worker.hand)))
        worker.incarnation, worker.number, worker.hand = worker.incarnation + 1, 0, []

    def fresh(self, n: int) -> list[str]:
        self.serial += n
        return [f"j{self.serial - i}" for i in range(n)]

    # --- enqueue ---

    def enqueue(self, specs: Sequence[tuple[Any, ...]], call: tuple[str, int] | None = None) -> None:
        jobs, due, parts = [], [], []
        for tenant, level, delay, expires, dates, own, ttl in specs:
            key = own or self.fresh(1)[0]
            when = self.model.now + delay * 1000 if delay else 0
            till = self.model.now + expires * 1000 if expires else 0
            payload = f'"{key}"'.encode()
            if dates:
                drafted = record(
                    tenant, level, at=when or None, expires_at=till or None, ttl=ttl, own=bool(own), payload=payload
                )
            else:
                drafted = record(tenant, level, delay=delay, expires=expires, ttl=ttl, own=bool(own), payload=payload)
            jobs.append(Job(key, tenant, level, bool(own), ttl * 1000, till, payload))
            due.append(when)
            parts += [key, drafted]
            self.ids.append(key)
        step = self.move.enqueue(parts)
        if call:
            step = RoundTrip(step.script, step.keys, (*call, *step.args[2:]), step.read)
        self.say(step, self.model.enqueue(jobs, due, call))

    @rule(specs=drafts)
    def enqueue_some(self, specs: Sequence[tuple[Any, ...]]) -> None:
        self.enqueue(specs)

    @rule(specs=drafts, caller=st.sampled_from("pq"), number=st.integers(1, 9))
    def enqueue_numbered(self, specs: Sequence[tuple[Any, ...]], caller: str, number: int) -> None:
        """A number that is not above the caller's last one is a copy."""
        self.enqueue(specs, (caller, number))

    @rule(n=st.integers(90, 130), tenant=tenants, spread=st.booleans(), level=levels, delay=st.sampled_from([0, 1]))
    def enqueue_many(self, n: int, tenant: str, spread: bool, level: int, delay: int) -> None:
        """More than a slice holds."""
        if len(self.model.jobs) < 400:
            self.enqueue([(f"{tenant}{i % 40 if spread else ''}", level, delay, 0, False, None, 0) for i in range(n)])

    # --- workers ---

    @rule(
        worker=some,
        want=wants,
        plan=plans,
        repeat=st.booleans(),
        sleep=st.sampled_from([0.0, 50.0]),
        lose=st.booleans(),
        trial=st.sampled_from(TRIALS),
    )
    def turn(
        self,
        worker: int,
        want: int,
        plan: Sequence[tuple[Ending | None, float]],
        repeat: bool,
        sleep: float,
        lose: bool,
        trial: Trial,
    ) -> None:
        """Settle as planned what is in hand, then claim. `lose`: the reply is lost, and the turn sent again later."""
        one = self.workers[worker % 3]
        if one.unanswered:
            self.answer(one)
            return
        claims = [*one.hand, *one.past[-3:], *(claim for ghost in self.ghosts[-2:] for claim in ghost.hand[:2])]
        settlements = [settlement(claim, *end) for claim, end in zip(claims, plan, strict=False)]
        if repeat and settlements:
            settlements.append(settlements[0])
        one.number += 1
        one.trial = trial
        if lose:
            one.unanswered = (want, settlements, sleep)
            self.send_turn(one.me, one.number, *one.unanswered, trial)
        else:
            self.take_turn(one, want, settlements, sleep)

    @rule(worker=some, want=wants, n=st.integers(1, 100))
    def work(self, worker: int, want: int, n: int) -> None:
        """Complete what is in hand, and claim again."""
        one = self.workers[worker % 3]
        if one.unanswered:
            self.answer(one)
        one.number += 1
        self.take_turn(one, want, [settlement(claim, None, 0) for claim in one.hand[:n]], 50.0)

    @rule(
        moves=st.lists(st.tuples(rivals, chances, chances, st.sampled_from([0, 1, 1, 1, 2])), min_size=6, max_size=24)
    )
    def haggle(self, moves: Sequence[tuple[str, bool, bool, int]]) -> None:
        """Tenants come with one urgent job at a time, some at once again, and some cancel; small turns serve them, and
        hand some jobs back."""
        one = self.workers[0]
        for tenant, cancels, release, want in moves:
            self.enqueue([(tenant, 0, 0, 0, False, None, 0)])
            if cancels:
                self.cancel([len(self.ids) - 1])
            if one.unanswered:
                self.answer(one)
            one.number += 1
            self.take_turn(one, want, [settlement(c, "release" if release else None, 0) for c in one.hand], 0.0)
            self.model.judge(self.dump)

    def answer(self, worker: Worker) -> None:
        """The turn whose reply was lost comes again."""
        assert worker.unanswered
        self.take_turn(worker, *worker.unanswered)
        worker.unanswered = None

    @rule(worker=some, ran=st.integers(0, 3))
    def crash(self, worker: int, ran: int) -> None:
        """The process is gone while some of its jobs ran; its supervisor says so, and starts it again."""
        one = self.workers[worker % 3]
        tokens = [claim.token for claim in one.hand[:ran]]
        ending: Ending = "crash" if len(tokens) == 1 else "suspect"
        cause = b'{"reason":"killed"}'
        expected = self.model.abandon(one.me, ending, cause, tokens)
        self.say(self.move.abandon(one.me, ending, cause, tokens), expected)
        self.ghosts.append(Ghost(one.me, one.number, tuple(one.hand)))
        one.incarnation, one.number, one.hand, one.unanswered = one.incarnation + 1, 0, [], None

    @rule(worker=some)
    def beat(self, worker: int) -> None:
        me = self.workers[worker % 3].me
        self.say(self.move.heartbeat(me, LEASE), self.model.beat(me, round(LEASE * 1000)))

    @precondition(lambda self: self.ghosts)
    @rule(ghost=some, plan=plans, number=st.integers(0, 2), single=st.booleans())
    def haunt(self, ghost: int, plan: Sequence[tuple[Ending | None, float]], number: int, single: bool) -> None:
        """An incarnation that its worker gave up still tries to settle, to claim, to beat."""
        one = self.ghosts[ghost % len(self.ghosts)]
        settlements = [settlement(claim, *end) for claim, end in zip(one.hand, plan, strict=False)]
        if self.model.alive(one.me):
            return
        if single and settlements:
            self.say(self.move.settle(one.me, settlements[0]), False)
            assert self.before == self.dump
        elif one.number + number > 1:
            assert not self.send_turn(one.me, one.number + number, 3, settlements).alive or number == 0
        self.say(self.move.heartbeat(one.me, LEASE), False)
        assert self.before == self.dump

    # --- claims without a worker ---

    @rule(want=wants, sleep=st.sampled_from([0.0, 50.0]), repeat=st.booleans())
    def claim_once(self, want: int, sleep: float, repeat: bool) -> None:
        self.claim_single(want, sleep, repeat)

    def claim_single(self, want: int, sleep: float = 0.0, repeat: bool = False) -> bool:
        """A claim of a program without a worker; returns whether there is more."""
        self.serial += 1
        me = f"once{self.serial}.0"
        reply = self.send_turn(me, 1, want, [], sleep, once=True)
        if repeat and me in self.model.incarnations:
            self.send_turn(me, 1, want, [], sleep, once=True)
        self.singles += [(me, claim) for claim in reply.claims]
        return reply.more

    @precondition(lambda self: self.singles)
    @rule(single=some, ending=st.sampled_from(ENDINGS), delay=delays, keep=st.booleans())
    def settle_once(self, single: int, ending: Ending | None, delay: float, keep: bool) -> None:
        """Some are settled again, another way."""
        place = single % len(self.singles)
        me, claim = self.singles[place] if keep else self.singles.pop(place)
        end = settlement(claim, ending, delay)
        self.say(self.move.settle(me, end), self.model.settle(me, end))

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
        self.say(self.move.cancel(ids), self.model.cancel(ids))

    @precondition(lambda self: self.ids)
    @rule(keep=st.integers(2, 50))
    def cancel_many(self, keep: int) -> None:
        """All that wait but every so many: a turn has to pass over their entries."""
        ids = [job.id for i, job in enumerate(self.model.in_state(READY, DELAYED)) if i % keep]
        if ids:
            self.say(self.move.cancel(ids), self.model.cancel(ids))

    @rule(tenant=st.none() | tenants, slice_=st.sampled_from([1, 2, 5, 50]))
    def purge_slice(self, tenant: str | None, slice_: int) -> None:
        """One slice of a purge; the next call goes on with it, whatever happened in between."""
        tenant, offset = self.purge or (tenant, 0)
        cancelled, offset, finished = self.send(self.move.purge(tenant, offset, slice_))
        self.model.purge(tenant, slice_, cancelled, finished, self.dump)
        self.purge = None if finished else (tenant, offset)

    @rule(tenant=st.none() | tenants)
    def purge_whole(self, tenant: str | None) -> None:
        for list_ in ("delayed", "suspects"):
            offset, finished = 0, False
            while not finished:
                cancelled, offset, finished = self.send(self.move.purge(tenant, offset, 50, list_))
                self.model.purge(tenant, 50, cancelled, finished, self.dump, suspects=list_ == "suspects")
        assert not [job for job in self.model.in_state(READY, DELAYED) if tenant in (None, job.tenant)]

    @precondition(lambda self: self.model.in_state(DEAD))
    @rule(places=st.lists(some, min_size=1, max_size=3), requeue=st.booleans())
    def dig(self, places: Sequence[int], requeue: bool) -> None:
        """Requeue or remove dead letters, and name ids that are none."""
        dead = [job.id for job in self.model.in_state(DEAD)]
        ids = [*self.pick(places), *(dead[place % len(dead)] for place in places)]
        if requeue:
            self.say(self.move.requeue(ids), self.model.requeue(ids))
        else:
            self.say(self.move.remove_dead(ids), self.model.remove_dead(ids))

    @rule(on=st.booleans())
    def pause(self, on: bool) -> None:
        self.send(self.move.set_switch("paused", on))
        self.model.paused = on

    @rule(on=st.booleans())
    def put_due_first(self, on: bool) -> None:
        self.send(self.move.set_switch("due_first", on))
        self.model.due_first = on

    @rule(tenant=tenants, weight=st.sampled_from([0.5, 1.0, 1.0, 2.0, 5.0]))
    def weigh(self, tenant: str, weight: float) -> None:
        self.send(self.move.set_weight(tenant, weight))
        self.model.weigh(tenant, weight)

    @precondition(lambda self: self.ids)
    @rule(place=some, address=st.sampled_from(["p/1", "p/11", "q/1"]), stay=st.booleans())
    def wait_for(self, place: int, address: str, stay: bool) -> None:
        (key,) = self.pick([place])
        self.send(self.move.result(key, address))
        self.model.wait_for(key, address)
        if not stay:
            self.send(self.move.forget(key, address))
            self.model.forget(key, address)

    # --- always, and at the end ---

    @invariant()
    def the_server_holds_what_the_model_says(self) -> None:
        self.model.judge(self.dump)

    def teardown(self) -> None:
        if sys.exception():
            return  # a step has failed; that is what is to be told
        self.drain()
        self.remove_all_dead()
        for tenant in list(self.model.weights):
            self.send(self.move.set_weight(tenant, 1.0))
        assert set(self.stand.eternal()) <= {"meta"}, "a key has no end"
        assert set(self.dump.get("meta", {})) <= META

    def drain(self) -> None:
        """One worker takes everything; then leases run out, and a last turn clears away what ended."""
        self.pause(False)
        self.wait(3600)
        self.workers = [last] = [Worker("last")]
        while self.model.in_state(READY, DELAYED, RUNNING):
            assert last.number < 200, "the queue does not run empty"
            self.wait(0 if self.model.in_state(READY) else 5)
            last.number += 1
            self.take_turn(last, 64, [settlement(claim, None, 0) for claim in last.hand], 0.0)
            self.model.judge(self.dump)
        # The next wake-up after an hour forgets all sleepers, and some turns all incarnations and entries of the gone.
        self.wait(3600)
        self.enqueue([("", 5, 0, 0, False, None, 0)])
        self.singles = []
        while self.claim_single(64):
            pass
        ((me, claim),) = self.singles
        self.say(self.move.settle(me, settlement(claim, None, 0)), self.model.settle(me, settlement(claim, None, 0)))

    def remove_all_dead(self) -> None:
        ids = [job.id for job in self.model.in_state(DEAD)]
        if ids:
            self.say(self.move.remove_dead(ids), self.model.remove_dead(ids))
        self.model.judge(self.dump)


META = {
    *(b"format seq ready delayed running dead completed retried failed dropped cancelled expired lost front".split()),
    *(b"woken check_at witness timekeeper timekeeper_until deputy deputy_until alarm due_first".split()),
    *(b"v%d" % level for level in range(10)),
}


def settlement(claim: Claim, ending: Ending | None, delay: float) -> Settlement:
    if ending is None:
        return Settlement(claim.token, b"null" if delay else b'"done"')
    if ending not in ("retry", "later"):
        delay = 0.0
    return Settlement(claim.token, b"" if ending == "release" else b'{"reason":"why"}', ending, delay)


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[None]:
    if EXAMPLES:
        faulthandler.cancel_dump_traceback_later()
    with Server() as started:
        Histories.server = started
        yield


TestHistories = Histories.TestCase
TestHistories.settings = LONG if EXAMPLES else QUICK
