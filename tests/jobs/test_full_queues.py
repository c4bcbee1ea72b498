"""Bounds: a queue refuses jobs beyond its number of unfinished ones, and beyond that of each tenant."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from valkey.exceptions import ResponseError

from penstock import ConfigurationError, EnqueueContext, Middleware, Penstock, Queue, Status, Unique, group
from penstock.core.operations import RoundTrip
from penstock.errors import QueueFull
from penstock.jobs.bounds import parts_of, store
from penstock.jobs.claims import Settlement
from penstock.jobs.counts import Counts
from penstock.jobs.durable_bindings import suspension
from penstock.jobs.shard import Shard
from penstock.settings import Settings
from tests.conftest import Do, MakeApp
from tests.jobs.stand import FakeWorker, Stand, record
from tests.jobs.test_schedule_scripts import Scheduled


@pytest.fixture
def queue(app: Penstock) -> Queue:
    return app.queue("mail")


@pytest.fixture
def worker(stand: Stand) -> FakeWorker:
    return FakeWorker(stand, "w", lease=3600)


def bound(stand: Stand, jobs: int = 0, per_tenant: int = 0) -> int:
    shard = Shard("q", None, Settings(prefix="t"), stand.clock, None)  # type: ignore[arg-type]
    return stand.run(store(shard, jobs, per_tenant))


def put(stand: Stand, number: int, *ids: str, **options: Any) -> str:
    """Enqueue jobs as the call `number` of a driver. Returns the ids that were refused."""
    refused: list[int] = []
    call = stand.bindings.enqueue(
        [part for key in ids for part in (key, record(**options))], on_refusal=lambda at, _: refused.append(at)
    )
    stand.run(RoundTrip(call.script, call.keys, ("me", number, *call.args[2:]), call.read))
    return "".join(ids[at] for at in refused)


# --- what the server does ---


def test_a_bulk_is_taken_as_far_as_there_is_room(stand: Stand):
    bound(stand, 3)
    assert put(stand, 1, *"abcde") == "de"
    assert stand.counts() == "3 0 0 0"


def test_the_bound_of_a_tenant_leaves_the_others_alone(stand: Stand):
    bound(stand, 10, 2)
    drafts = [(name, record(name[0])) for name in ("x1", "x2", "x3", "y1", "x4", "y2")]
    refused: list[tuple[int, int, int, str | None]] = []
    call = stand.bindings.enqueue(
        [part for draft in drafts for part in draft],
        on_refusal=lambda at, full: refused.append((at, full.count, full.bound, full.tenant)),
    )
    stand.run(RoundTrip(call.script, call.keys, ("me", 1, *call.args[2:]), call.read))
    assert refused == [(2, 2, 2, "x"), (4, 2, 2, "x")]
    assert stand.states("x1", "x2", "x3", "y1", "x4", "y2") == "rr-r-r"


def test_a_refused_call_stays_refused_when_it_arrives_again(stand: Stand, worker: FakeWorker):
    bound(stand, 1)
    assert put(stand, 1, "a") == ""
    assert put(stand, 2, "b") == "b"
    worker.settle(*worker.claim())
    assert put(stand, 2, "b") == "b"
    assert stand.state("b") == "-"


def test_a_late_copy_of_a_refused_call_is_dropped_from_the_intake(stand: Stand, worker: FakeWorker):
    bound(stand, 1)
    assert put(stand, 1, "a") + put(stand, 2, "b") == "b"
    worker.settle(*worker.claim())
    bound(stand, 1000)
    assert put(stand, 3, "c") == ""  # opens the intake
    call = stand.bindings.take_in("b", record())
    assert stand.run(RoundTrip(call.script, call.keys, ("me", 2, *call.args[2:]), call.read))
    assert stand.counts() == "1 0 0 0"
    assert stand.state("b") == "-"


def test_the_intake_closes_before_the_bound(stand: Stand):
    bound(stand, 131)
    assert put(stand, 1, "first") == ""  # opens the intake
    taken, number = 0, 1
    while stand.run(_numbered(stand.bindings.take_in(f"i{number}", record()), number + 1)):
        taken, number = taken + 1, number + 1
    assert taken == 128
    assert put(stand, 1000, *"abc") == "c"
    assert not stand.run(_numbered(stand.bindings.take_in("late", record()), 1001))
    assert stand.counts() == "131 0 0 0"


def _numbered(call: RoundTrip[bool], number: int) -> RoundTrip[bool]:
    return RoundTrip(call.script, call.keys, ("me", number, *call.args[2:]), call.read)


def test_a_bound_of_each_tenant_closes_the_intake(stand: Stand):
    put(stand, 1, "a")
    bound(stand, 0, 5)
    assert not stand.run(_numbered(stand.bindings.take_in("b", record()), 2))


@pytest.mark.parametrize("ending", ["retry", "later", "release", "loss"])
def test_a_run_that_ends_otherwise_keeps_its_room(stand: Stand, worker: FakeWorker, ending: Any):
    bound(stand, 2, 2)
    put(stand, 1, "a", "b")
    worker.settle(worker.claim()[0], ending=ending, delay=60)
    assert put(stand, 2, "c") == "c"


@pytest.mark.parametrize("ending", [None, "drop", "cancel", "bury"])
def test_an_end_makes_room(stand: Stand, worker: FakeWorker, ending: Any):
    bound(stand, 1, 1)
    put(stand, 1, "a")
    worker.settle(worker.claim()[0], ending=ending, delay=60)
    assert put(stand, 2, "b", "c") == "c"


def test_a_job_that_sleeps_does_not_count(stand: Stand, worker: FakeWorker):
    bound(stand, 1, 1)
    put(stand, 1, "a")
    (claim,) = worker.claim()
    assert not worker.turn(0, Settlement(claim.token, suspension("1", ""), "suspend", 60)).stale
    assert put(stand, 2, "b", "c") == "c"
    stand.advance(60)
    worker.turn()
    assert stand.counts() == "2 0 0 0"
    assert put(stand, 3, "c") == "c"


def test_what_was_accepted_elsewhere_passes(stand: Stand, worker: FakeWorker):
    bound(stand, 1, 1)
    put(stand, 1, "a")
    worker.settle(worker.claim()[0], ending="bury")
    put(stand, 2, "b")
    assert stand.run(stand.bindings.requeue(["a"])) == 1
    stand.run(stand.bindings.deliver("other", [b"1", b"enqueue", b"c", record()]))
    accepted = stand.bindings._call("accept", (stand.clock.now_ms, bytes(8), 0, "d", record()), bytes)
    assert stand.run(accepted) == b"a"
    scheduled = Scheduled(stand)
    scheduled.define(draft=record())
    stand.advance(60)
    scheduled.serve(scheduled.offered())
    assert stand.counts() == "5 0 0 0"
    assert put(stand, 3, "e") == "e"


def test_delayed_parked_and_dependent_jobs_count(stand: Stand, worker: FakeWorker):
    bound(stand, 3)
    put(stand, 1, "a", "b", delay=60)
    put(stand, 2, "c")
    worker.claim()
    assert put(stand, 3, "d") == "d"


def test_a_double_of_a_unique_job_is_not_refused(stand: Stand):
    bound(stand, 1)
    put(stand, 1, "a", unique=("k", "d", 0))
    assert put(stand, 2, "b", unique=("k", "d", 0)) == ""
    assert put(stand, 3, "c", unique=("other", "d", 0)) == "c"
    assert stand.dump()["unique"] == {b"k": b"a"}


def test_a_refused_job_keeps_the_result_of_its_id(stand: Stand, worker: FakeWorker):
    put(stand, 1, "a")
    worker.settle(*worker.claim())
    bound(stand, 1)
    put(stand, 2, "b")
    assert put(stand, 3, "a", own=True) == "a"
    assert stand.done("a") is not None


def test_a_lower_bound_removes_nothing_and_none_removes_it(stand: Stand):
    put(stand, 1, *"abc")
    assert bound(stand, 1) == 3
    assert put(stand, 2, "d") == "d"
    assert stand.run(stand.bindings.counts()).refused == 1
    bound(stand)
    assert put(stand, 3, "d") == ""
    assert stand.run(stand.bindings.counts()).bound is None


def test_a_job_in_a_pipeline_of_the_user_is_refused_by_an_error(stand: Stand):
    bound(stand, 1)
    stand.put("a")
    with pytest.raises(ResponseError, match=r"QUEUEFULL .* the queue has 1 unfinished jobs"):
        stand.put("b")
    assert stand.counts() == "1 0 0 0"


# --- what a program sees ---


async def test_an_enqueue_beyond_the_bound_raises_with_the_numbers(queue: Queue, do: Do):
    await do(queue.bound, jobs=1)
    await do(queue.put, 1)
    with pytest.raises(QueueFull, match="queue mail has 1 unfinished jobs, and the bound is 1") as caught:
        await do(queue.put, 2)
    full = caught.value
    assert (full.queue, full.count, full.bound, full.tenant, full.taken, full.refused) == ("mail", 1, 1, None, [], [0])
    counts = await do(queue.count)
    assert (counts.ready, counts.unfinished, counts.bound, counts.refused) == (1, 1, 1, 1)


async def test_a_bulk_says_what_was_taken(app: Penstock, do: Do):
    @app.task(queue="mail")
    async def send(to: int) -> None: ...

    queue = app.queue("mail")
    await do(queue.bound, per_tenant=2)
    calls = [send.using(tenant=tenant).call(n) for n, tenant in enumerate("aabbaacc")]
    with pytest.raises(QueueFull, match="tenant 'a' has 2 unfinished jobs") as caught:
        await do(app.enqueue_many, calls)
    assert caught.value.refused == [4, 5]
    assert len(caught.value.taken) == 6
    assert (await do(queue.count)).ready == 6
    assert {await do(job.status) for job in caught.value.taken} == {Status.READY}


async def test_a_bulk_of_many_round_trips_goes_on_behind_a_refusal(queue: Queue, do: Do):
    await do(queue.bound, jobs=700)
    with pytest.raises(QueueFull) as caught:
        await do(queue.put_many, range(1200))
    assert len(caught.value.taken) == 700
    assert caught.value.refused == list(range(700, 1200))


async def test_a_bulk_into_several_queues_fills_those_that_have_room(app: Penstock, do: Do):
    @app.task(queue="small")
    async def one() -> None: ...

    @app.task(queue="large")
    async def other() -> None: ...

    await do(app.queue("small").bound, jobs=1)
    with pytest.raises(QueueFull, match="queue small") as caught:
        await do(app.enqueue_many, [one.call(), other.call(), one.call(), other.call()])
    assert caught.value.refused == [2]


class Counting(Middleware):
    def __init__(self) -> None:
        self.enqueued = 0

    def enqueue(self, context: EnqueueContext) -> Iterator[None]:
        yield
        self.enqueued += len(context.jobs)


async def test_middleware_sees_what_was_enqueued(make_app: MakeApp, do: Do):
    counting = Counting()
    app = make_app()
    app.add_middleware(counting)
    queue = app.queue("mail")
    await do(queue.bound, jobs=3)
    with pytest.raises(QueueFull):
        await do(queue.put_many, range(5))
    with pytest.raises(QueueFull):
        await do(queue.put, 1)
    assert counting.enqueued == 3


async def test_a_flow_passes_and_a_schedule_that_is_triggered_by_hand_does_not(app: Penstock, do: Do):
    @app.task(queue="mail")
    async def part() -> None: ...

    queue = app.queue("mail")
    await do(queue.bound, jobs=1, per_tenant=1)
    await do(part.enqueue)
    await do(group([part.call(), part.call()]).then(part.call()).enqueue)
    assert (await do(queue.count)).unfinished == 4
    with pytest.raises(QueueFull):
        await do(part.enqueue)
    await do(app.schedules.add, "night", part.call(), every=3600)
    with pytest.raises(QueueFull):
        await do(app.schedules.trigger, "night")  # an enqueue by hand


@pytest.mark.parametrize("numbers", [{"jobs": 0}, {"jobs": -1}, {"jobs": 1.5}, {"per_tenant": True}, {"jobs": 2**40}])
async def test_a_bound_that_cannot_be_is_refused(queue: Queue, do: Do, numbers: Any):
    await do(queue.bound, jobs=7)
    with pytest.raises(ValueError, match=r"bound\((jobs|per_tenant)=.*from 1 to 1,000,000,000, or None for no bound"):
        await do(queue.bound, **numbers)
    assert (await do(queue.count)).bound == 7


async def test_a_bound_of_tenants_above_that_of_the_queue_is_refused(queue: Queue, do: Do):
    await do(queue.bound, jobs=7, per_tenant=7)
    with pytest.raises(ValueError, match=r"bound\(per_tenant=8\): more than jobs=7 of the whole queue"):
        await do(queue.bound, jobs=7, per_tenant=8)
    assert (await do(queue.count)).tenant_bound == 7


async def test_a_full_queue_takes_plain_jobs_again_when_some_have_ended(queue: Queue, do: Do):
    await do(queue.bound, jobs=150)
    for _ in range(2):
        taken = 0
        with suppress(QueueFull):
            while True:
                await do(queue.put, taken)
                taken += 1
        assert taken == 150
        for item in await do(queue.claim, 150):
            await do(item.complete)


async def test_of_calls_that_travel_together_each_gets_its_own_answer(queue: Queue):
    await queue.bound.aio(jobs=300)
    answers = await asyncio.gather(*(queue.put.aio(n) for n in range(500)), return_exceptions=True)
    jobs = [one for one in answers if not isinstance(one, BaseException)]
    assert len(jobs) == 300
    assert all(isinstance(one, QueueFull) for one in answers if one not in jobs)
    assert {await job.status.aio() for job in jobs[::25]} == {Status.READY}
    counts = await queue.count.aio()
    assert (counts.ready, counts.refused) == (300, 200)


# --- shards ---


def test_the_parts_of_the_shards_add_up_to_the_bound():
    for jobs in (3, 10, 100, 101):
        parts = parts_of(jobs, 3)
        assert sum(parts) == jobs
        assert max(parts) - min(parts) <= 1


@pytest.fixture
def sharded(app: Penstock) -> Queue:
    return app.queue("split", shards=3)


async def test_shards_take_their_parts_of_a_bound(sharded: Queue, do: Do):
    await do(sharded.bound, jobs=10)
    taken = 0
    for n in range(60):
        with suppress(QueueFull):
            await do(sharded.put, n, tenant=f"t{n}")
            taken += 1
    counts: Counts = await do(sharded.count)
    assert (taken, counts.ready, counts.bound, counts.refused) == (10, 10, 10, 50)


async def test_a_bulk_into_shards_says_what_was_taken(app: Penstock, sharded: Queue, do: Do):
    @app.task(queue="split")
    async def send(to: int) -> None: ...

    await do(sharded.bound, per_tenant=2)
    with pytest.raises(QueueFull, match="tenant 't") as caught:
        await do(app.enqueue_many, [send.using(tenant=f"t{n % 5}").call(n) for n in range(15)])
    assert caught.value.refused == [10, 11, 12, 13, 14]
    assert len({job.id for job in caught.value.taken}) == 10


async def test_a_shard_without_a_part_is_refused(sharded: Queue, do: Do):
    with pytest.raises(ConfigurationError, match="it has 3 shards, and each takes its part"):
        await do(sharded.bound, jobs=2)


async def test_new_shards_get_their_parts_before_they_take_jobs(sharded: Queue, do: Do):
    await do(sharded.bound, jobs=12, per_tenant=4)
    await do(sharded.add_shards, 4)
    assert (await do(sharded.count)).bound == 12
    for n in range(100):
        with suppress(QueueFull):
            await do(sharded.put, n, tenant=f"t{n}")
    assert (await do(sharded.count)).ready == 12


async def test_shards_with_more_jobs_than_their_new_part_do_not_grow(sharded: Queue, do: Do):
    await do(sharded.bound, jobs=12)
    for n in range(100):
        with suppress(QueueFull):
            await do(sharded.put, n, tenant=f"t{n}")
    with pytest.raises(ConfigurationError, match="its part of the bound of 12 would be 3"):
        await do(sharded.add_shards, 4)
    counts = await do(sharded.count)
    assert (counts.bound, counts.ready) == (12, 12)


async def test_a_spread_tenant_has_no_bound(sharded: Queue, do: Do):
    await do(sharded.tenant("acme").spread, 2)
    with pytest.raises(ConfigurationError, match="tenant 'acme' is spread"):
        await do(sharded.bound, per_tenant=5)
    await do(sharded.tenant("acme").spread, 1)
    await do(sharded.bound, per_tenant=5)
    with pytest.raises(ConfigurationError, match="has a bound for each tenant"):
        await do(sharded.tenant("acme").spread, 2)


async def test_a_unique_job_of_a_full_queue_still_has_its_doubles(app: Penstock, do: Do):
    @app.task(queue="mail", unique=Unique("{n}"))
    async def once(n: int) -> None: ...

    await do(app.queue("mail").bound, jobs=1)
    first = await do(once.enqueue, 1)
    assert (await do(once.enqueue, 1)).id == first.id
    with pytest.raises(QueueFull):
        await do(once.enqueue, 2)
