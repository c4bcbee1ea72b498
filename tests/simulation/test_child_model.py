"""Random histories of parents and children over two queues: lost replies, repeats, deaths, late workers, and cancels.

A parent runs some children, waits for all, and completes. The model knows how each child ended first, and is compared
with what the parents have recorded. The default run is short and always the same.
PENSTOCK_SIMULATION=<examples> makes it long and random.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from penstock.core.operations import RoundTrip
from penstock.jobs.claims import Claim, Ending, Settlement, TurnReply
from penstock.jobs.constants import FIELDS
from penstock.jobs.durable_bindings import ChildRecord, ChildRow, StepBindings, suspension
from tests.jobs.stand import DELAYED, READY, Stand, problems_in, record, settlement, without_history
from tests.simulation.histories import run_histories
from tests.simulation.test_queue_model import Worker

QUEUES = ("near", "far")
LEASE = 100.0
CHILD_ENDINGS: list[Ending | None] = [None, None, "bury", "drop", "retry", "release"]
GONE = ("events", "outbox", "orphans", "children", "steps")
ENDS: dict[Ending | None, str] = {None: "answer", "bury": "failure", "drop": "failure"}


class Shared(Stand):
    """A queue that shares its server with another one."""

    def names(self) -> list[str]:
        return [name for name in super().names() if name.startswith(self.base)]


@dataclass
class Parent:
    """steps: the child of each step, as queue and id; ended: kind and answer of those that have ended."""

    id: str
    steps: dict[str, tuple[str, str]] = field(default_factory=dict)
    ended: dict[str, str] = field(default_factory=dict)


class ChildHistory:
    """One random history, decided by its seed."""

    def __init__(self, client: Any, seed: int) -> None:
        client.flushall()
        self.random = random.Random(seed)
        self.stands = {queue: Shared(client, queue) for queue in QUEUES}
        self.workers = {queue: [Worker(f"{queue}-a"), Worker(f"{queue}-b")] for queue in QUEUES}
        self.parents: dict[str, Parent] = {}
        self.of_child: dict[tuple[str, str], tuple[Parent, str]] = {}
        self.started: dict[tuple[str, str], int] = {}
        self.past: list[tuple[str, Worker, int, Claim]] = []
        self.shared: set[tuple[str, str]] = set()
        """Children that a listener waits for as well."""
        self.serial = self.calls = 0

    def run(self, steps: int) -> None:
        actions: list[Callable[[], None]] = [
            *[self.enqueue] * 2,
            *[self.turn] * 8,
            *[self.parent_runs] * 6,
            *[self.deliver] * 4,
            self.wait,
            self.act_late,
            *[self.cancel] * 2,
            self.wait_for_child,
        ]
        for _ in range(steps):
            self.random.choice(actions)()
        self.finish()

    def send(self, queue: str, call: RoundTrip[Any]) -> Any:
        """Send a call. Its reply may be lost; then it is sent again, and must not change anything."""
        stand = self.stands[queue]
        if call.script.is_numbered:
            self.calls += 1
            call = RoundTrip(call.script, call.keys, ("caller", self.calls, *call.args[2:]), call.read)
        reply = stand.run(call)
        if call.script.name in ("turn", "run_children", "deliver") and self.random.random() < 0.2:
            before = without_history(stand.raw_dump())
            stand.run(call)
            assert without_history(stand.raw_dump()) == before, (
                f"a repeated call of {call.script.name} has changed something"
            )
        problems = problems_in(stand.raw_dump())
        assert not problems, problems
        return reply

    def enqueue(self) -> None:
        self.serial += 1
        id = f"p{self.serial}"
        self.stands["near"].put(id, ttl=1e6)
        self.parents[id] = Parent(id)

    # --- workers ---

    def alive(self, queue: str, one: Worker) -> bool:
        until = self.stands[queue].client.zscore(self.stands[queue].base + "leases", one.incarnation)
        return until is not None and until > self.stands[queue].clock.now_ms

    def take(self, queue: str, one: Worker, want: int, *settlements: Settlement) -> TurnReply:
        """One turn of a worker. If its incarnation has ended, it loses what it holds, and gets another one."""
        one.number += 1
        call = self.stands[queue].bindings.turn(
            one.incarnation, one.number, lease=LEASE, want=want, settlements=settlements, trial="alone", address="w/1"
        )
        reply: TurnReply = self.send(queue, call)
        if not reply.alive:
            self.past += [(queue, one, one.life, claim) for claim in one.held]
            one.life, one.number, one.held = one.life + 1, 0, []
            return reply
        one.held += reply.claims
        if reply.outbox is not None:
            self.carry(queue, reply.outbox.queue, reply.outbox.entries)
        return reply

    def turn(self) -> None:
        """A worker settles some children, and claims jobs."""
        queue = self.random.choice(QUEUES)
        one = self.random.choice(self.workers[queue])
        ends: list[tuple[Claim, Ending | None]] = []
        for claim in [claim for claim in one.held if claim.id not in self.parents and self.random.random() < 0.5]:
            ends.append((claim, self.random.choice(CHILD_ENDINGS)))
            one.held.remove(claim)
        reply = self.take(
            queue,
            one,
            self.random.choice([0, 1, 3]),
            *(settlement(c, e, 0, '"ok"' if e is None else "{}") for c, e in ends),
        )
        for claim in reply.claims:
            self.started[queue, claim.id] = self.started.get((queue, claim.id), 0) + 1
        if reply.alive:
            assert not reply.stale
            for claim, ending in ends:
                if ending in ENDS and (queue, claim.id) in self.of_child:
                    parent, step = self.of_child[queue, claim.id]
                    parent.ended.setdefault(step, ENDS[ending])

    def parent_runs(self) -> None:
        """A parent that is held runs children, sleeps until they have ended, completes, or its worker fails."""
        held = [
            (one, claim)
            for one in self.workers["near"]
            for claim in one.held
            if claim.id in self.parents and self.alive("near", one)
        ]
        if not held:
            return
        one, claim = self.random.choice(held)
        parent, bindings = self.parents[claim.id], StepBindings(self.stands["near"].bindings)
        loaded = self.send("near", bindings.load(one.incarnation, claim.token))
        assert loaded is not None
        self.judge(parent, loaded.steps)
        if len(parent.steps) < 6 and self.random.random() < 0.6:
            rows = []
            for _ in range(self.random.choice([1, 2, 3])):
                step, queue = str(len(parent.steps) + 1), self.random.choice(QUEUES)
                key = f"{parent.id}.{step}"
                parent.steps[step], self.of_child[queue, key] = (queue, key), (parent, step)
                rows.append(ChildRow(step, "" if queue == "near" else queue, key, "t", record()))
            assert self.send("near", bindings.run_children(one.incarnation, claim.token, rows, durable=False)) is None
            if self.random.random() < 0.3:
                return  # the process may die before it suspends the job
        one.held.remove(claim)
        open_steps = [step for step, found in loaded.steps.items() if found.kind == "child"]
        if parent.steps and (open_steps or self.random.random() < 0.8):
            self.take("near", one, 0, Settlement(claim.token, suspension("", ""), "suspend", 0.0))
            if self.random.random() < 0.3:  # while its children wait
                self.wait_for_child()
                self.cancel(parent)
        elif self.random.random() < 0.5:
            self.take("near", one, 0, settlement(claim, "retry", 0, "{}"))
        else:
            self.take("near", one, 0, settlement(claim))

    def judge(self, parent: Parent, steps: dict[str, Any]) -> None:
        """What a parent has recorded is how its children ended, each of them once."""
        assert set(steps) <= set(parent.steps)
        for step, found in steps.items():
            child = ChildRecord.of(found)
            assert (child.queue or "near", child.key) == parent.steps[step]
            if found.kind != "child":
                assert found.kind == parent.ended.get(step), f"{parent.id} has {found} for {parent.ended.get(step)}"

    def act_late(self) -> None:
        """A worker that has lost a parent starts no child for it."""
        lost = [
            (one, claim, life) for queue, one, life, claim in self.past if queue == "near" and claim.id in self.parents
        ]
        if lost:
            one, claim, life = self.random.choice(lost)
            row = ChildRow("late", "", "late", "t", record())
            call = StepBindings(self.stands["near"].bindings).run_children(
                f"{one.name}.{life}", claim.token, [row], durable=False
            )
            assert self.send("near", call) == -1

    def wait_for_child(self) -> None:
        """Somebody else waits for the result of a child, so that the end of its parent does not cancel it."""
        for queue, key in [*self.of_child][-self.random.randint(1, 2) :]:
            if self.stands[queue].state(key) not in (READY, DELAYED):
                continue
            bindings = self.stands[queue].bindings
            if self.send(queue, bindings.result(key, "reader/1")).record is not None:
                self.shared.add((queue, key))

    def cancel(self, parent: Parent | None = None) -> None:
        """Cancel a parent. If it does not run, its children of the same queue are cancelled: those that wait, and that
        nobody else waits for. Sometimes the reply is lost.

        A running child is asked to end. If its worker dies before that, the child runs again, and a second cancel of
        the parent, which has ended, does not reach it.
        """
        if parent is None and self.random.random() < 0.5:
            return
        stand, parents = self.stands["near"], [parent] if parent else [*self.parents.values()]
        if not parents:
            return
        parent = self.random.choice(parents)
        own = {key for queue, key in parent.steps.values() if queue == "near"}
        before, had_ended = {key: stand.state(key) for key in own}, stand.state(parent.id) == "-"
        call = stand.bindings.cancel([parent.id])
        (word,) = self.send("near", call)
        if self.random.random() < 0.3:
            (again,) = self.send("near", call)
            assert again == word
        if word != "cancelled" or had_ended:
            return
        for key in own:
            shared = ("near", key) in self.shared
            if before[key] in (READY, DELAYED):
                assert (stand.state(key) == before[key]) == shared, f"{key} of the cancelled {parent.id}"

    # --- between the queues ---

    def deliver(self) -> None:
        queue = self.random.choice(QUEUES)
        self.take(queue, self.random.choice(self.workers[queue]), 0)

    def carry(self, source: str, target: str, entries: Any) -> None:
        """Deliver entries, or die before the sender learns of it."""
        while entries:
            self.send(target, self.stands[target].bindings.deliver(source, entries))
            if self.random.random() < 0.3:
                return
            entries = self.send(source, self.stands[source].bindings.delivered(target, int(entries[-FIELDS])))

    def wait(self) -> None:
        seconds = self.random.choice([1.0, 6.0, 6.0, LEASE + 1])
        for stand in self.stands.values():
            stand.advance(seconds)

    def finish(self) -> None:
        """All parents end with all answers, and nothing is left."""
        for _ in range(400):
            for stand in self.stands.values():
                stand.advance(LEASE / 3)
            for queue in QUEUES:
                for one in self.workers[queue]:
                    self.complete_children(queue, one)
            for one in self.workers["near"]:
                for claim in [claim for claim in one.held if claim.id in self.parents]:
                    self.finish_parent(one, claim)
            if not any(self.left(queue) for queue in QUEUES):
                return
        raise AssertionError(f"these are left: {[self.left(queue) for queue in QUEUES]}")

    def complete_children(self, queue: str, one: Worker) -> None:
        held = [claim for claim in one.held if claim.id not in self.parents]
        one.held = [claim for claim in one.held if claim.id in self.parents]
        if self.take(queue, one, 5, *(settlement(claim, None, 0, '"ok"') for claim in held)).alive:
            for claim in held:
                parent, step = self.of_child[queue, claim.id]
                parent.ended.setdefault(step, "answer")

    def finish_parent(self, one: Worker, claim: Claim) -> None:
        loaded = self.send("near", StepBindings(self.stands["near"].bindings).load(one.incarnation, claim.token))
        one.held.remove(claim)
        if loaded is not None:
            self.judge(self.parents[claim.id], loaded.steps)
            waits = any(found.kind == "child" for found in loaded.steps.values())
            ending = Settlement(claim.token, suspension("", ""), "suspend", 0.0) if waits else settlement(claim)
            self.take("near", one, 0, ending)

    def left(self, queue: str) -> set[str]:
        """The jobs of a queue that are not dead, and keys that are to be gone once all jobs have ended."""
        stand = self.stands[queue]
        dump = stand.raw_dump()
        jobs = {id.decode() for id in dump.get("jobs", {})}
        keys = {name for name in dump if name.partition(":")[0] in GONE}
        return {id for id in jobs if stand.state(id) != "d"} | keys


def test_children_run_once_per_step_and_answer_once(client: Any) -> None:
    run_histories(partial(ChildHistory, client), quick=10, steps=60)
