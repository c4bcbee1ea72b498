"""Random histories of staged effects, applied with the completion of jobs, with lost replies, repeats and deaths.

Each job writes to a ledger, and enqueues calls in its own queue and another one. The model knows what the ledger must
have, and which calls must be on their way. The default run is short and always the same.
PENSTOCK_SIMULATION=<examples> makes it long and random.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from penstock.core.operations import RoundTrip
from penstock.core.writes import pack_rows, packable, write
from penstock.jobs import constants
from penstock.jobs.claims import Claim, Settlement
from penstock.jobs.record import Record
from tests.jobs.stand import Dump, Stand, problems_in, record, settlement, without_history
from tests.simulation.histories import run_histories
from tests.simulation.test_queue_model import Worker

R = TypeVar("R")

QUEUES = ["near", "far"]
LEASE = 10.0
FIELDS = constants.FIELDS


class Half(Stand):
    """A queue that shares its server with another one."""

    def names(self) -> list[str]:
        return [name for name in super().names() if name.startswith(self.base)]


@dataclass(frozen=True)
class Staged:
    """What one run has staged. `fails`: one of its writes is impossible, so that nothing may be applied."""

    counts: Counter[str]
    calls: tuple[str, ...] = ()
    sent: tuple[str, ...] = ()
    fails: bool = False


@dataclass
class Job:
    id: str
    token: bytes | None = None
    holder: str = ""
    dead: bool = False


@dataclass
class Delivery:
    """Entries that a turn has offered to a worker."""

    source: str
    target: str
    entries: Sequence[bytes]


class EffectHistory:
    """One random history of two queues, each of which sends calls to the other. Decided by its seed."""

    def __init__(self, client: Any, seed: int) -> None:
        client.flushall()
        self.random = random.Random(seed)
        self.stands = {queue: Half(client, queue) for queue in QUEUES}
        self.jobs: dict[str, dict[str, Job]] = {queue: {} for queue in QUEUES}
        self.ledgers: dict[str, Counter[str]] = {queue: Counter() for queue in QUEUES}
        self.on_the_way: dict[str, list[str]] = {queue: [] for queue in QUEUES}
        """Queue -> what has been sent to it and has not arrived, in order."""
        self.dumps: dict[str, Dump] = {queue: {} for queue in QUEUES}
        self.leases: dict[str, int] = {}
        self.workers = {queue: [Worker(f"{queue}-a"), Worker(f"{queue}-b")] for queue in QUEUES}
        self.offers: list[Delivery] = []
        self.past: list[Delivery] = []
        self.lost: list[tuple[str, str, Claim]] = []
        self.serial = 0
        for queue, stand in self.stands.items():
            client.set(stand.bindings.keys.user("text"), "no number")
            self.look(queue)
        self.actions: list[Callable[[], None]] = [
            *[self.enqueue] * 2,
            *[self.turn] * 8,
            *[self.deliver] * 4,
            *[self.wait] * 2,
            self.settle_late,
            self.deliver_again,
            self.requeue,
        ]

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.random.choice(self.actions)()
            for queue in QUEUES:
                self.judge(queue)
        self.finish()

    def look(self, queue: str) -> None:
        self.dumps[queue] = self.stands[queue].raw_dump()

    def send(self, queue: str, call: RoundTrip[R]) -> R:
        reply = self.stands[queue].run(call)
        self.look(queue)
        return reply

    def now(self, queue: str) -> int:
        return self.stands[queue].clock.now_ms

    def new_id(self) -> str:
        self.serial += 1
        return f"j{self.serial}"

    def enqueue(self) -> None:
        queue, id = self.random.choice(QUEUES), self.new_id()
        self.stands[queue].put(id)
        self.look(queue)
        self.jobs[queue][id] = Job(id)

    # --- runs ---

    def stage(self) -> Staged:
        """What a run stages. Few runs cause others, so that the history ends."""
        pick = self.random
        counts = Counter(pick.choice(["ann", "bob"]) for _ in range(pick.randint(0, 3)))
        calls = tuple(self.new_id() for _ in range(pick.choice([0, 0, 0, 1])))
        sent = tuple(self.new_id() for _ in range(pick.choice([0, 0, 0, 1, 3])))
        return Staged(counts, calls, sent, fails=pick.random() < 0.15)

    def pack(self, queue: str, staged: Staged) -> bytes:
        keys = self.stands[queue].bindings.keys
        rows = [write("HINCRBY", 1, [packable(name), packable(n)]) for name, n in staged.counts.items()]
        if staged.fails:
            rows.insert(self.random.randint(0, len(rows)), write("INCRBY", 2, [packable(1)]))
        drafted = packable(record())
        other = QUEUES[queue == QUEUES[0]]
        calls = [part for id in staged.calls for part in (id, drafted)]
        sent = [part for id in staged.sent for part in (other, id, drafted)]
        return pack_rows(([keys.user("ledger"), keys.user("text")], rows, calls, sent))

    def apply(self, queue: str, staged: Staged) -> None:
        self.ledgers[queue] += staged.counts
        for id in staged.calls:
            self.jobs[queue][id] = Job(id)
        self.on_the_way[QUEUES[queue == QUEUES[0]]] += staged.sent

    def turn(self) -> None:
        pick, queue = self.random, self.random.choice(QUEUES)
        one = pick.choice(self.workers[queue])
        ended = [(claim, self.stage() if pick.random() < 0.7 else None) for claim in one.held if pick.random() < 0.6]
        self.take_turn(queue, one, ended, pick.choice([0, 1, 3]), lose=pick.random() < 0.3)

    def take_turn(
        self, queue: str, one: Worker, ended: Sequence[tuple[Claim, Staged | None]], want: int, *, lose: bool = False
    ) -> None:
        was_alive = one.number == 0 or self.leases[one.incarnation] > self.now(queue)
        one.number += 1
        settlements = [
            settlement(claim, "retry")
            if staged is None
            else Settlement(claim.token, b"1", effects=self.pack(queue, staged))
            for claim, staged in ended
        ]
        reply = self.send(
            queue,
            call := self.stands[queue].bindings.turn(
                one.incarnation,
                one.number,
                lease=LEASE,
                want=want,
                settlements=settlements,
                trial="alone",
                address=f"{{t:{queue}}}:{one.name}/1",
            ),
        )
        assert reply.alive == was_alive
        if lose:
            known = self.dumps[queue]
            self.send(queue, call)
            assert self.dumps[queue] == known, "a repeated turn has changed something"
        self.lost += [(queue, one.incarnation, claim) for claim in one.held if not reply.alive]
        if not reply.alive:
            one.life, one.number, one.held = one.life + 1, 0, []
            return
        assert not reply.stale
        self.leases[one.incarnation] = self.now(queue) + round(LEASE * 1000)
        for claim, staged in ended:
            one.held.remove(claim)
            self.settled(queue, claim, staged)
        for claim in reply.claims:
            job = self.jobs[queue][claim.id]
            assert job.token is None or self.leases[job.holder] <= self.now(queue), f"{job.id} was claimed twice"
            job.token, job.holder = claim.token, one.incarnation
            one.held.append(claim)
        if reply.outbox is not None:
            assert reply.outbox.entries, "an empty outbox was offered"
            self.offers.append(Delivery(queue, reply.outbox.queue, reply.outbox.entries))

    def settled(self, queue: str, claim: Claim, staged: Staged | None) -> None:
        job = self.jobs[queue][claim.id]
        job.token = None
        if staged is not None and staged.fails:
            job.dead = True
        elif staged is not None:
            del self.jobs[queue][claim.id]
            self.apply(queue, staged)

    def settle_late(self) -> None:
        """A worker that has lost a job completes it. Nothing of what it has staged is applied."""
        if self.lost:
            queue, incarnation, claim = self.random.choice(self.lost)
            known = self.dumps[queue]
            settled = Settlement(claim.token, b"1", effects=self.pack(queue, self.stage()))
            bindings = self.stands[queue].bindings
            reply = self.send(queue, bindings.turn(incarnation, 99, lease=LEASE, want=0, settlements=[settled]))
            if not reply.alive:
                assert self.dumps[queue].get("user:ledger") == known.get("user:ledger")
            else:
                assert reply.stale, "a claim that was lost was accepted"

    # --- the outbox ---

    def deliver(self) -> None:
        """A worker delivers what it was offered, whole or in part, or dies before it removes that."""
        if not self.offers:
            return
        one = self.random.choice(self.offers)
        self.offers.remove(one)
        while one.entries:
            if self.random.random() < 0.2:
                one.entries = one.entries[: len(one.entries) // FIELDS // 2 * FIELDS] or one.entries
            self.hand_over(one)
            self.past.append(one)
            if self.random.random() < 0.2:
                return
            bindings = self.stands[one.source].bindings
            following = self.send(one.source, bindings.delivered(one.target, int(one.entries[-FIELDS])))
            one = Delivery(one.source, one.target, following)

    def hand_over(self, one: Delivery) -> None:
        self.send(one.target, self.stands[one.target].bindings.deliver(one.source, one.entries))
        waiting = self.on_the_way[one.target]
        ids = [entry.decode() for entry in one.entries[2::FIELDS]]
        while waiting and waiting[0] in ids:
            id = waiting.pop(0)
            self.jobs[one.target][id] = Job(id)

    def deliver_again(self) -> None:
        """A worker that was frozen delivers what has arrived long ago, and removes that again."""
        if self.past:
            one = self.random.choice(self.past)
            known = without_history(self.dumps[one.target])
            self.hand_over(one)
            assert without_history(self.dumps[one.target]) == known, "a repeated delivery has changed something"
            bindings = self.stands[one.source].bindings
            self.send(one.source, bindings.delivered(one.target, int(one.entries[-FIELDS])))

    # --- the rest ---

    def wait(self) -> None:
        for queue in self.random.choice([["near"], ["far"], QUEUES]):
            self.stands[queue].advance(self.random.choice([0.1, 5.001, 10.001]))

    def requeue(self) -> None:
        for queue in QUEUES:
            for job in [job for job in self.jobs[queue].values() if job.dead][:1]:
                assert self.send(queue, self.stands[queue].bindings.requeue([job.id])) == 1
                job.dead = False

    def judge(self, queue: str) -> None:
        dump, owners = self.dumps[queue], self.dumps[queue].get("owners", {})
        ledger = {name.decode(): int(n) for name, n in dump.get("user:ledger", {}).items()}
        assert ledger == self.ledgers[queue], f"the ledger of {queue} is {ledger}, and not {self.ledgers[queue]}"
        records = {id.decode(): Record(body) for id, body in dump.get("jobs", {}).items()}
        assert set(records) == set(self.jobs[queue]), "there are other jobs than were sent"
        for job in self.jobs[queue].values():
            if job.token is not None and job.id.encode() not in owners:
                assert self.leases[job.holder] <= self.now(queue), f"{job.id} was taken from a live worker"
                job.token = None
            if records[job.id].state == constants.DEAD and not job.dead:
                assert records[job.id].crashes or records[job.id].is_suspect
                job.dead = True
            assert job.dead == (records[job.id].state == constants.DEAD)
        stored = {name for name in dump if name.startswith("outbox:")}
        other = QUEUES[queue == QUEUES[0]]
        kept = [entry.decode() for entry in dump.get(f"outbox:{other}", [])[2::FIELDS]]
        assert kept[len(kept) - len(self.on_the_way[other]) :] == self.on_the_way[other], "entries are lost"
        assert stored <= {f"outbox:{other}"}
        problems = problems_in(dump)
        assert not problems, problems

    def finish(self) -> None:
        """Everything arrives, and all jobs end."""
        last, rounds = {queue: Worker(f"{queue}-z") for queue in QUEUES}, 0
        while rounds < 3 or any(self.jobs.values()) or any(self.dumps[queue].get("ticks") for queue in QUEUES):
            rounds += 1
            assert rounds < 150, "calls are on their way for ever"
            self.requeue()
            for queue in QUEUES:
                self.stands[queue].advance(5.001)
                one = last[queue]
                done = Staged(Counter(["end"]))
                self.take_turn(queue, one, [(claim, done) for claim in one.held], 10)
                self.judge(queue)
            while self.offers:
                self.deliver()
        left = {name.partition(":")[0] for queue in QUEUES for name in self.dumps[queue]}
        assert not left & {"outbox", "jobs", "ticks", "failures", "delayed"}, f"leaked keys: {left}"


def test_effects_are_applied_once_or_not_at_all(client: Any) -> None:
    run_histories(partial(EffectHistory, client), quick=14, steps=60)
