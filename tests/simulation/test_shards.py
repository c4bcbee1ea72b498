"""Random histories of a queue with two shards, to which a third and a fourth are added while three programs use it.

Each program notices a change only when a shard refuses a job of its own. After every call: no job is lost or doubled,
all jobs of a tenant are in one shard, and new jobs of a tenant are handed out in the order in which they were accepted.
A tenant has at most one job with its key that waits, and this job has the value of the last call.
PENSTOCK_SIMULATION=<examples> makes the run long and random.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock import Item, Penstock, Unique
from penstock.jobs.job_list import JobSummary
from penstock.jobs.options import Options
from penstock.jobs.shard_bindings import Elsewhere, ShardBindings
from penstock.jobs.shard_table import shard_number
from tests.servers import Server
from tests.simulation.histories import model_settings

START = 1_800_000_000_000
TENANTS = ["", *(f"t{n}" for n in range(9))]
MOVING = [tenant for tenant in TENANTS if shard_number(tenant, 2) != shard_number(tenant, 3)]
assert 2 <= len(MOVING) <= 7

programs = st.integers(0, 2)
tenants = st.sampled_from(TENANTS)
delays = st.sampled_from([0.0, 0.0, 0.0, 5.0])


class Histories(RuleBasedStateMachine):
    server: ClassVar[Server]

    def __init__(self) -> None:
        super().__init__()
        self.server.client.flushall()
        self.apps = [Penstock(self.server.address) for _ in range(3)]
        for app in self.apps:
            app.clock.now_ms = START
        self.queues = [app.queue("mail", shards=2) for app in self.apps]
        self.live: dict[int, tuple[str, str]] = {}
        """Number of a job -> its tenant, and its id."""
        self.fresh: set[int] = set()
        """Jobs that were ready at once, and were never handed out before."""
        self.keyed: dict[str, int] = {}
        """Tenant -> the number of its job that waits and has its key."""
        self.were_keyed: set[int] = set()
        self.held: list[Item] = []
        self.ended: Counter[tuple[str, str]] = Counter()
        """Id and outcome of each end; a purge has one row, or several, without an id."""
        self.last = 0
        self.number = 0
        self.shards = 2

    def teardown(self) -> None:
        while self.held:
            self.settle(0, "complete")
        self.read_rows(1, 7, between=False)
        self.advance(10)
        self.requeue_or_remove(0, requeue=True)
        while self.claim_some(0, 20):
            self.read_rows(2, 1, between=True)
            while self.held:
                self.settle(0, "complete")
        assert self.live == {}
        assert self.queues[0].finish_adding_shards()
        for queue in self.queues:
            for tenant in TENANTS:
                place = queue.put(0, tenant=tenant).id.partition(":")[0]
                assert place == ("mail" if (n := shard_number(tenant, self.shards)) == 0 else f"mail~{n}")
        for app in self.apps:
            app.close()

    def accepted(self, tenant: str, job_id: str, number: int, *, ready: bool = True) -> None:
        self.live[number] = tenant, job_id
        if ready:
            self.fresh.add(number)

    # --- what programs do ---

    @rule(program=programs, tenant=tenants, delay=delays)
    def put(self, program: int, tenant: str, delay: float) -> None:
        self.last += 1
        job = self.queues[program].put(self.last, tenant=tenant, delay=delay)
        self.accepted(tenant, job.id, self.last, ready=not delay)

    @rule(program=programs, tenant=tenants)
    def put_the_latest(self, program: int, tenant: str) -> None:
        """A call that replaces the value of the job that waits with its key."""
        self.last += 1
        job = self.queues[program].put(self.last, tenant=tenant, unique=_key_of(tenant))
        self.latest_accepted(tenant, job.id)

    def latest_accepted(self, tenant: str, job_id: str) -> None:
        replaced = self.keyed.get(tenant)
        if replaced is not None:
            assert self.live.pop(replaced) == (tenant, job_id)
        self.live[self.last] = tenant, job_id
        self.keyed[tenant] = self.last
        self.were_keyed.add(self.last)

    @rule(program=programs, chosen=st.lists(tenants, min_size=1, max_size=12))
    def put_many(self, program: int, chosen: list[str]) -> None:
        """Bulk enqueues of several tenants, as `enqueue_many` groups them."""
        queue = self.queues[program]
        for tenant in dict.fromkeys(chosen):
            numbers = [self.last + n for n in range(1, chosen.count(tenant) + 1)]
            self.last = numbers[-1]
            for number, job in zip(numbers, queue.put_many(numbers, tenant=tenant), strict=True):
                self.accepted(tenant, job.id, number)

    @rule(program=programs, tenant=tenants, repeats=st.integers(2, 3), keyed=st.booleans())
    def send_again(self, program: int, tenant: str, repeats: int, keyed: bool) -> None:
        """The reply to an enqueue is lost, and the call is sent again: perhaps after the table has changed."""
        queue = self.queues[program]
        shards = queue.shards
        queue.check_shards()
        used = shards.current
        shard = used.for_new(tenant)
        self.last += 1
        self.number += 1
        options = Options(tenant=tenant, unique=_key_of(tenant) if keyed else None)
        draft = queue._draft_values([self.last], options)
        key = draft[0][0]
        call = ShardBindings(shard.bindings).enqueue(list(draft[0]), used.table.text, moving=used.is_moving(tenant))
        call = _numbered(call, f"caller-{program}", self.number)
        answers = [queue._driver.blocking.run(call) for _ in range(repeats)]
        if isinstance(answers[-1], Elsewhere):
            shards.learn(answers[-1], used)
            assert isinstance(answers[0], Elsewhere)
            return
        assert answers[0] == answers[-1]
        if keyed:
            before = self.live.get(self.keyed.get(tenant, 0))
            return self.latest_accepted(tenant, before[1] if before else f"{shard.name}:{key}")
        self.accepted(tenant, f"{shard.name}:{key}", self.last)

    @rule(program=programs, n=st.integers(1, 6))
    def claim(self, program: int, n: int) -> None:
        self.claim_some(program, n)

    def claim_some(self, program: int, n: int) -> bool:
        items = self.queues[program].claim(n, lease=1000)
        for item in items:
            tenant, job_id = self.live[item.body]
            assert item.id == job_id
            assert item.body not in {one.body for one in self.held}, "handed out twice"
            if self.keyed.get(tenant) == item.body:
                del self.keyed[tenant]  # the key is held until the job starts
            if item.body in self.fresh:
                earlier = [one for one in self.fresh if one < item.body and self.live[one][0] == tenant]
                assert not earlier, f"{tenant}: {earlier} were enqueued before {item.body}"
                self.fresh.discard(item.body)
        self.held += items
        return bool(items)

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 50), ending=st.sampled_from(["complete", "complete", "fail", "retry"]))
    def settle(self, which: int, ending: str) -> None:
        item = self.held.pop(which % len(self.held))
        if ending == "fail" and item.body in self.were_keyed:
            ending = "retry"  # the requeue of one of two dead letters with a key would be refused
        if ending == "complete":
            item.complete()
            del self.live[item.body]
            self.ended[item.id, "completed"] += 1
        elif ending == "fail":
            item.fail("no")
            self.ended[item.id, "dead"] += 1
        else:
            item.retry()

    @rule(seconds=st.sampled_from([0.1, 5.0]))
    def advance(self, seconds: float) -> None:
        for app in self.apps:
            app.clock.now_ms += round(seconds * 1000)

    @rule(program=programs, requeue=st.booleans())
    def requeue_or_remove(self, program: int, requeue: bool) -> None:
        letters = self.queues[program].dead.list(100)
        if requeue:
            self.queues[program].dead.requeue(*(letter.id for letter in letters))
        else:
            self.queues[program].dead.remove(*(letter.id for letter in letters))
            for letter in letters:
                del self.live[letter.body]

    @rule(program=programs, tenant=tenants)
    def purge(self, program: int, tenant: str) -> None:
        self.queues[program].tenant(tenant).purge()
        running = {item.body for item in self.held}
        dead = {letter.body for letter in self.queues[program].dead.list(200)}
        for number in [n for n, (of, _) in self.live.items() if of == tenant and n not in running | dead]:
            del self.live[number]
            self.fresh.discard(number)
            if self.keyed.get(tenant) == number:
                del self.keyed[tenant]
            self.ended["", "cancelled"] += 1

    # --- what the operator does ---

    @precondition(lambda self: self.shards < 4)
    @rule(program=programs)
    def add_a_shard(self, program: int) -> None:
        if self.queues[program].finish_adding_shards():
            self.shards += 1
            self.queues[program].add_shards(self.shards)

    @rule(program=programs)
    def finish(self, program: int) -> None:
        self.queues[program].finish_adding_shards()

    # --- what must hold ---

    @invariant()
    def no_job_is_lost_or_doubled(self) -> None:
        counts = self.queues[0].count()
        assert counts.waiting + counts.running + counts.dead == len(self.live)

    @rule(program=programs, limit=st.sampled_from([1, 7, 1000]), between=st.booleans())
    def read_rows(self, program: int, limit: int, between: bool) -> None:
        """Page by page, each ended job is there once, the latest first, also if others end `between` two pages."""
        expected, rows, cursor = Counter(self.ended), list[JobSummary](), None
        while True:
            page = self.queues[program].jobs(state="ended").page(limit, cursor)
            rows += page.jobs
            cursor = page.cursor
            if cursor is None:
                break
            if between and self.held:
                self.settle(0, "complete")
        found: Counter[tuple[str, str]] = Counter()
        for row in rows:
            found[row.id, str(row.status)] += row.jobs
        assert found == +expected
        times = [row.since for row in rows]
        assert times == sorted(times, reverse=True)

    @invariant()
    def all_jobs_of_a_tenant_are_in_one_shard(self) -> None:
        places: dict[str, set[str]] = defaultdict(set)
        for tenant, job_id in self.live.values():
            places[tenant].add(job_id.partition(":")[0])
        assert all(len(found) == 1 for found in places.values()), places


def _key_of(tenant: str) -> Unique:
    return Unique(exact=f"key of {tenant}", until="start", replace=True)


def _numbered(call: Any, caller: str, number: int) -> Any:
    """The call with a number of its own, so that it may be sent again."""
    return msgspec.structs.replace(call, args=(caller, number, *call.args[2:]))


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[None]:
    with Server() as started:
        Histories.server = started
        yield
    del Histories.server


TestHistories = Histories.TestCase
TestHistories.settings = model_settings(quick=15, steps=30)
