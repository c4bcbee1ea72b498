"""Random flows over two queues, with lost replies, repeats, deaths of workers and producers, judged after every call.

The default run is short and always the same. PENSTOCK_SIMULATION=<examples> makes it long and random.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
import pytest

from penstock import RESULT, Penstock
from penstock.core.operations import RoundTrip
from penstock.errors import JobNotFound
from penstock.jobs import constants
from penstock.jobs.bindings import scripts
from penstock.jobs.claims import Claim, Ending, OutboxOffer, TurnReply
from penstock.jobs.flow_bindings import FlowBindings, FlowRow
from penstock.jobs.flow_plan import FlowJob, Plan
from penstock.jobs.row import read_row
from penstock.jobs.sealed import open_call
from tests.jobs.stand import START, Stand, settlement, without_history
from tests.simulation.flow_judge import OPEN_FOR, Before, Id, Job, Judge
from tests.simulation.histories import run_histories
from tests.simulation.test_queue_model import Worker

R = TypeVar("R")

QUEUES = ("near", "far")
LEASE = 1000.0
ENDINGS: list[Ending | None] = [None, None, None, "retry", "later", "release", "bury", "bury", "drop", "crash"]
ENDS = {None: constants.COMPLETED, "drop": constants.DROPPED}
FIELDS = constants.FIELDS

EVENTS = 2
"""A mark in the row: there may be events."""

VISITS = "F.slice_within(s, 128)"
"""How many edges a script visits, as the cutter writes it into the script."""


class SmallSteps(Stand):
    """A queue that shares its server with another one. Its scripts visit a few edges at once."""

    def __init__(self, client: Any, queue: str, visits: int) -> None:
        super().__init__(client, queue)
        assert all(VISITS in scripts().scripts[name].source for name in ("enqueue_flow", "turn", "deliver"))
        self.visits = visits

    def raw(self, call: RoundTrip[Any]) -> Any:
        source = call.script.source.replace(VISITS, f"F.slice_within(s, {self.visits})")
        sha = hashlib.sha1(source.encode()).hexdigest()
        if sha not in self._loaded:
            self._loaded.add(self.client.script_load(source))
        return self.client.evalsha(sha, len(call.keys), *call.keys, *call.args)

    def names(self) -> list[str]:
        return [name for name in super().names() if name.startswith(self.base)]


class FlowHistory:
    """One random history of two queues, decided by its seed."""

    def __init__(self, client: Any, app: Penstock, tasks: dict[str, Any], seed: int) -> None:
        client.flushall()
        self.random = random.Random(seed)
        self.app, self.tasks = app, tasks
        visits = self.random.choice([2, 3, 128])
        self.stands = {queue: SmallSteps(client, queue, visits) for queue in QUEUES}
        self.judge = Judge(START)
        self.workers = {queue: [Worker(f"{queue}-a"), Worker(f"{queue}-b")] for queue in QUEUES}
        self.numbers, self.calls = itertools.count(1), itertools.count(1)
        self.depth = 0

    def run(self, steps: int) -> None:
        pick = self.random
        self.look()
        rare: list[Callable[[], None]] = [self.cancel, self.give_up_open, self.wait_long, self.settle_down]
        actions: list[Callable[[], None]] = [
            *[self.enqueue] * 4,
            *[self.turn] * 8,
            *[self.deliver] * 3,
            self.wait,
            self.change_dead_letters,
            *rare,
        ]
        for _ in range(steps):
            pick.choice(actions)()
        self.finish()

    # --- sending ---

    def dumps(self) -> dict[str, Any]:
        return {queue: stand.raw_dump() for queue, stand in self.stands.items()}

    def send(self, queue: str, call: RoundTrip[R]) -> R:
        return self.stands[queue].run(call)

    def look(self) -> None:
        self.judge.look(self.dumps())

    # --- flows ---

    def plan(self) -> tuple[Plan, dict[str, list[str]]]:
        """A flow of up to six jobs, and the ids of the jobs whose results some of them want."""
        pick, plan, wants = self.random, Plan(), dict[str, list[str]]()
        nodes: list[FlowJob] = []
        known = [id for id, job in self.judge.jobs.items() if pick.random() < 0.2]
        for _ in range(pick.randint(1, 6)):
            number = next(self.numbers)
            task = self.tasks[pick.choice(QUEUES)]
            before = pick.sample(nodes, min(len(nodes), pick.choice([0, 1, 1, 2, 3])))
            after = pick.sample(known, min(len(known), pick.choice([0, 0, 1, 2])))
            if pick.random() < 0.03:
                after.append(Id(pick.choice(QUEUES), "unknown"))
            wanting = bool(before) and pick.random() < 0.5
            if before or after:
                on_failure = pick.choice(["stop", "stop", "continue", task.call(-number)])
                jobs = [self.app.queue(id.queue).job(id.key) for id in after]
                task = task.using(after=jobs, on_failure=on_failure)
            if pick.random() < 0.1:
                task = task.using(expires=100)
            node = plan.add(task.call(RESULT if wanting else number), before, is_list=True)
            node.key = f"j{number}"
            nodes.append(node)
            if wanting:
                wants[node.key] = [f"{one.call.task.shard.name}:{one.key}" for one in before]
        return plan, wants

    def enqueue(self) -> None:
        """Enqueue a flow as a program does: in slices, which may be repeated, and between which anything happens."""
        plan, wants = self.plan()
        plan._check()
        for _ in plan._choose_shards():
            raise AssertionError("these queues have no shards")
        places = {node.key: node.indexes for node in plan.nodes}
        sent: list[Id] = []
        for queue, rows in [one for phase in plan._phases() for one in self.slices(phase)]:
            gone = any(row.verb.startswith("after") and row.key == "unknown" for row in rows)
            if not self.send_rows(queue, rows):
                assert gone
                self.cancel_these([id for id in sent if self.judge.jobs[id].end is None])
                return
            assert not gone
            sent += [Id(queue, row.key) for row in rows if row.is_new]
            self.count_rows(queue, rows, wants, places)
            self.look()
            if self.random.random() < 0.02:
                return  # the program dies
            if self.random.random() < 0.2 and not self.depth:
                self.depth += 1
                self.random.choice([self.turn, self.deliver, self.cancel])()
                self.depth -= 1

    def slices(self, phase: Sequence[tuple[Any, FlowRow]]) -> Iterator[tuple[str, list[FlowRow]]]:
        rows: dict[str, list[FlowRow]] = {}
        for queue, row in phase:
            rows.setdefault(queue.name, []).append(row)
        for name, some in rows.items():
            cut = self.random.choice([len(some), self.random.randint(1, len(some))])
            yield from ((name, part) for part in (some[:cut], some[cut:]) if part)

    def send_rows(self, queue: str, rows: Sequence[FlowRow]) -> bool:
        call = FlowBindings(self.stands[queue].bindings).enqueue(rows, durable=False)
        call = RoundTrip(call.script, call.keys, ("caller", next(self.calls), *call.args[2:]), call.read)
        known = self.dumps()
        try:
            assert self.send(queue, call) is True
        except JobNotFound:
            assert self.dumps() == known, "a refused call has changed something"
            return False
        if self.random.random() < 0.2:
            known = self.dumps()
            assert self.send(queue, call) is True
            assert self.dumps() == known, "a repeated call has changed something"
        return True

    def count_rows(
        self, queue: str, rows: Sequence[FlowRow], wants: dict[str, list[str]], places: dict[str, dict[str, int]]
    ) -> None:
        """Have the judge do what the server has done with these rows."""
        jobs = self.judge.jobs
        for verb, key, draft, dependent in rows:
            id = Id(queue, key)
            if verb.startswith(("open", "job")):
                jobs[id] = Job(id, int(key[1:]))
            if verb.startswith("open"):
                jobs[id].policy, jobs[id].is_open = verb[4].encode(), self.judge.now + OPEN_FOR
                if key in wants:
                    jobs[id].wants = [places[key][one] for one in wants[key]]
            if verb == "far":
                jobs[Id(queue, str(dependent))].before.append(Before(Id(draft.decode(), key)))
            elif verb == "close":
                jobs[id].is_open = 0
            elif isinstance(dependent, bytes):
                size = dependent[10]
                there = Id(dependent[13 : 11 + size].decode(), dependent[11 + size :].decode())
                self.judge.link(id, there, int.from_bytes(dependent[6:10]))
            elif dependent:
                waiting = jobs[Id(queue, dependent)]
                if waiting.end is None:
                    waiting.before.append(Before(id))
                    self.judge.link(id, waiting.id, len(waiting.before) - 1)

    # --- workers ---

    def turn(self) -> None:
        pick = self.random
        queue = pick.choice(QUEUES)
        one = pick.choice(self.workers[queue])
        plan = [(pick.choice(ENDINGS), pick.choice([0.0, 0.0, 50.0])) for _ in range(pick.randint(0, len(one.held)))]
        self.take_turn(queue, one, pick.choice([0, 1, 2, 5]), plan, lose=pick.random() < 0.2)

    def take_turn(
        self, queue: str, one: Worker, want: int, plan: Sequence[tuple[Ending | None, float]], *, lose: bool = False
    ) -> TurnReply:
        """Settle claims as planned, and claim. Returns what the turn offers. `lose`: the reply is lost."""
        ended = [(claim, *end) for claim, end in zip(one.held, plan, strict=False)]
        one.number += 1
        texts = [str(self.job(queue, claim).number) if ending is None else "" for claim, ending, _ in ended]
        call = self.stands[queue].bindings.turn(
            one.incarnation,
            one.number,
            lease=LEASE,
            want=want,
            settlements=[settlement(*end, text) for end, text in zip(ended, texts, strict=True)],
            trial="alone",
            address=self.stands[queue].base + "p/1" if one.name.startswith("last") else "",
        )
        alive = self.judge.leases[one.incarnation] > self.judge.now or one.number == 1
        reply = self.send(queue, call)
        assert reply.alive == alive
        assert not reply.stale
        if lose:
            known = self.dumps()
            again = self.send(queue, call)
            assert self.dumps() == known, "a repeated turn has changed something"
            assert [claim.token for claim in again.claims] == [claim.token for claim in reply.claims]
        if not alive:
            one.life, one.number, one.held = one.life + 1, 0, []
            self.look()
            return TurnReply(True)
        self.judge.leases[one.incarnation] = self.judge.now + round(LEASE * 1000)
        for claim, ending, _ in ended:
            job = self.job(queue, claim)
            assert job.token == claim.token
            job.token, job.expected = None, ENDS.get(ending)
        one.held = one.held[len(ended) :]
        self.look()
        for claim in reply.claims:
            self.judge.claimed(self.job(queue, claim), claim.token, one.incarnation, arguments(claim))
        one.held += reply.claims
        return reply

    def job(self, queue: str, claim: Claim) -> Job:
        return self.judge.jobs[Id(queue, claim.id)]

    # --- between the queues ---

    def outbox(self, queue: str) -> list[bytes]:
        (other,) = {*QUEUES} - {queue}
        found: list[bytes] = self.judge.dumps[queue].get(f"outbox:{other}", [])
        return found

    def deliver(self) -> None:
        """Some of the outbox arrives, perhaps again; the worker may die before it removes that."""
        pick, queue = self.random, self.random.choice(QUEUES)
        (other,) = {*QUEUES} - {queue}
        if entries := self.outbox(queue):
            n = FIELDS * pick.randint(1, len(entries) // FIELDS)
            self.send(other, self.stands[other].bindings.deliver(queue, entries[:n]))
            if pick.random() < 0.3:
                self.look()
                known = self.dumps()[other]
                self.send(other, self.stands[other].bindings.deliver(queue, entries[:n]))
                has_events = read_row(known["meta"][b"row"]).flows >= EVENTS  # any script works off some of them
                same = without_history(self.dumps()[other]) == without_history(known)
                assert has_events or same, "a repeated delivery has changed something"
            if pick.random() < 0.7:
                self.send(queue, self.stands[queue].bindings.delivered(other, int(entries[n - FIELDS])))
            self.look()

    def serve(self, queue: str, turn: TurnReply) -> None:
        """What a worker does with the offers of a turn."""
        if turn.has_overdue_flows:
            self.send(queue, FlowBindings(self.stands[queue].bindings).give_up_open())
        elif turn.outbox is not None:
            other, entries = turn.outbox.queue, [*turn.outbox.entries]
            while entries:
                self.send(other, self.stands[other].bindings.deliver(queue, entries))
                entries = self.send(queue, self.stands[queue].bindings.delivered(other, int(entries[-FIELDS])))
        self.look()

    # --- time and operators ---

    def advance(self, seconds: float) -> None:
        for stand in self.stands.values():
            stand.advance(seconds)
        self.judge.now = self.stands["near"].clock.now_ms

    def wait(self) -> None:
        self.advance(self.random.choice([1.0, 51.0, -60.0]))

    def wait_long(self) -> None:
        self.advance(self.random.choice([LEASE + 1, OPEN_FOR / 1000]))

    def cancel(self) -> None:
        alive = [job.id for job in self.judge.jobs.values() if job.end is None]
        self.cancel_these(self.random.sample(alive, min(len(alive), 1)))

    def cancel_these(self, ids: Sequence[Id]) -> None:
        for id in ids:
            job = self.judge.jobs[id]
            (word,) = self.send(id.queue, self.stands[id.queue].bindings.cancel([id.key]))
            if job.token is None:
                is_over = 0 < job.expires <= self.judge.now
                assert word == ("dead" if job.is_dead else "done" if is_over else "cancelled")
            if word == "cancelled":
                job.expected = constants.CANCELLED
            self.look()

    def change_dead_letters(self) -> None:
        dead = [job for job in self.judge.jobs.values() if job.is_dead and job.end is None]
        for job in self.random.sample(dead, min(len(dead), 2)):
            bindings = self.stands[job.id.queue].bindings
            if self.random.random() < 0.6:
                assert self.send(job.id.queue, bindings.requeue([job.id.key])) == 1
            else:
                self.send(job.id.queue, bindings.remove_dead([job.id.key]))
                job.expected = constants.CANCELLED
            self.look()

    def give_up_open(self) -> None:
        queue = self.random.choice(QUEUES)
        self.send(queue, FlowBindings(self.stands[queue].bindings).give_up_open())
        self.look()

    # --- the end ---

    def settle_down(self) -> None:
        """Work off all events and outboxes. Then each job that waits has a reason."""
        for turns in itertools.count():
            assert turns < 300, "the events do not come to an end"
            for queue in QUEUES:
                self.take_turn(queue, Worker(f"rest-{next(self.calls)}"), 0, [])
                if entries := self.outbox(queue):
                    (other,) = {*QUEUES} - {queue}
                    self.serve(queue, TurnReply(True, outbox=OutboxOffer(other, entries)))
            if not any(self.judge.has_backlog(queue) for queue in QUEUES):
                self.judge.judge_rest()
                return

    def finish(self) -> None:
        """One worker runs everything, and nothing is left."""
        self.settle_down()
        self.advance(LEASE + 1)
        last = {queue: Worker(f"last-{queue}") for queue in QUEUES}
        for turns in itertools.count():
            alive = [job for job in self.judge.jobs.values() if job.end is None]
            open_ones = any("opened" in self.judge.dumps[queue] for queue in QUEUES)
            if not alive and not open_ones and not any(self.judge.has_backlog(queue) for queue in QUEUES):
                break
            assert turns < 400, f"these do not end: {alive}"
            self.advance(6.0)
            for queue, one in last.items():
                self.serve(queue, self.take_turn(queue, one, 10, [(None, 0.0)] * len(one.held)))
            if turns > 20 and turns % 5 == 0:
                self.change_dead_letters()
        families = {name.partition(":")[0] for dump in self.judge.dumps.values() for name, held in dump.items() if held}
        left = families & {"waiting", "dependents", "inputs", "opened", "events", "outbox", "ticks", "jobs"}
        assert not left, f"leaked keys: {left}"


def arguments(claim: Claim) -> dict[str, object]:
    decoded: dict[str, object] = msgspec.json.decode(open_call(claim.record, claim.record.payload, None)[1])
    return decoded


@pytest.fixture(scope="module")
def tasks() -> Iterator[tuple[Penstock, dict[str, Any]]]:
    """Only to build calls: nothing is sent through this app."""
    with Penstock("unix:///nowhere", prefix="t") as app:

        def work(x: Any) -> None: ...

        yield app, {queue: app.task(queue=queue, name=queue, result_ttl=86_400)(work) for queue in QUEUES}


def test_histories_of_flows_keep_their_promises(client: Any, tasks: tuple[Penstock, dict[str, Any]]) -> None:
    run_histories(partial(FlowHistory, client, *tasks), quick=5, steps=60)
