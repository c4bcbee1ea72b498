"""A waiting job whose `expires` has passed is over for everybody that asks, also while no worker is free."""

import asyncio
import time
from typing import Any

import pytest

from penstock import Concurrency, Penstock, Queue, Status, Unique, current
from penstock.errors import JobCancelled, JobExpired
from tests.conftest import Do, Time, until
from tests.speed import scaled
from tests.worker.in_process import run_burst, running_worker


@pytest.fixture
def queue(app: Penstock) -> Queue:
    return app.queue("q")


UNIQUE = {
    "done": Unique("{key}"),
    "start": Unique("{key}", until="start"),
    "throttle": Unique("{key}", throttle=60),
    "replace": Unique("{key}", until="start", replace=True),
    "debounce": Unique("{key}", debounce=0.1),
}


@pytest.mark.parametrize("kind", UNIQUE)
@pytest.mark.parametrize("where", ["ready", "delayed", "parked", "paused"])
async def test_the_key_of_a_job_that_is_over_is_free(
    app: Penstock, queue: Queue, do: Do, clock: Time, kind: str, where: str
):
    ran: list[int] = []
    replaces = kind in ("replace", "debounce")
    if (replaces and where == "parked") or (kind, where) == ("debounce", "delayed"):
        pytest.skip("no task has both")

    @app.task(queue="q", unique=UNIQUE[kind], limit=None if replaces else Concurrency(1, key="all"))
    async def refresh(key: str, n: int) -> None:
        ran.append(n)

    if where == "parked":
        await do(refresh.enqueue, "first", 0)
    if where == "paused":
        await do(queue.pause, tenant="t")
    options: Any = {"delay": 30 if where == "delayed" else 0, "tenant": "t" if where == "paused" else ""}
    first = await do(refresh.using(expires=5, **options).enqueue, "k", 1)
    clock.advance(5)
    second, third = await do(app.enqueue_many, [refresh.using(expires=60).call("k", n) for n in (2, 3)])
    assert second != first
    assert third == second
    assert await do(first.status) is Status.EXPIRED
    assert (await do(queue.count)).expired == 1
    clock.advance(1)  # the time of a debounce
    await run_burst(app)
    assert [n for n in ran if n] == [3 if replaces else 2]
    if where == "paused":
        await do(queue.resume, tenant="t")


async def test_an_id_of_a_job_that_is_over_may_be_used_again(queue: Queue, do: Do, clock: Time):
    first = await do(queue.put, 1, id="x", expires=5)
    clock.advance(4.9)
    await do(queue.put, 2, id="x", expires=5)
    clock.advance(0.1)
    second = await do(queue.put, 3, id="x", expires=5)
    assert first == second
    (item,) = await do(queue.claim)
    assert item.body == 3
    await do(item.complete, "three")
    assert await do(second.result, 5) == "three"
    counts = await do(queue.count)
    assert (counts.expired, counts.completed, counts.ready) == (1, 1, 0)


async def test_a_job_of_a_flow_may_have_the_id_of_a_job_that_is_over(app: Penstock, do: Do, clock: Time):
    ran: list[int] = []

    @app.task(queue="q")
    async def part(n: int) -> None:
        ran.append(n)

    await do(part.using(id="x", expires=5).enqueue, 1)
    await do(part.using(id="y", expires=5).enqueue, 2)
    clock.advance(5)
    x, first = await do(app.enqueue_many, [part.using(id="x").call(3), part.call(4)])
    last = await do(part.using(id="y", after=[x, first]).enqueue, 5)
    await run_burst(app)
    assert sorted(ran) == [3, 4, 5]
    assert await do(last.status) is Status.COMPLETED


async def test_a_running_job_may_stage_the_id_of_a_job_that_is_over(app: Penstock, queue: Queue, do: Do, clock: Time):
    ran: list[int] = []

    @app.task(queue="q")
    async def part(n: int) -> None:
        ran.append(n)

    @app.task(queue="q")
    async def begin() -> None:
        current().stage.enqueue(part.using(id="x").call(2))

    await do(queue.pause, tenant="t")
    await do(part.using(id="x", expires=5, tenant="t").enqueue, 1)
    clock.advance(5)
    await do(begin.enqueue)
    await run_burst(app)
    assert ran == [2]
    await do(queue.resume, tenant="t")


async def test_an_id_and_a_key_may_be_used_again_together(queue: Queue, do: Do, clock: Time):
    await do(queue.put, 1, id="x", unique=Unique(exact="k"), expires=5)
    clock.advance(5)
    await do(queue.put, 2, id="x", unique=Unique(exact="k"))
    double = await do(queue.put, 3, id="y", unique=Unique(exact="k"))
    assert double.key == "x", "the key belongs to the new job"
    (item,) = await do(queue.claim, 5)
    assert item.body == 2
    await do(item.complete)


@pytest.mark.parametrize("options", [{}, {"delay": 30}], ids=["ready", "delayed"])
async def test_everybody_that_asks_hears_that_it_is_over(queue: Queue, do: Do, clock: Time, options: Any):
    job = await do(queue.put, "x", expires=5, **options)
    clock.advance(4.999)
    assert await do(job.status) is (Status.DELAYED if options else Status.READY)
    clock.advance(0.001)
    assert await do(job.status) is Status.EXPIRED
    assert (await do(job.info)).status is Status.EXPIRED
    with pytest.raises(JobExpired):
        await do(job.result, 0)
    assert not await do(job.promote)
    assert not await do(job.cancel)
    assert await do(job.status) is Status.EXPIRED
    assert (await do(queue.count)).expired == 1
    assert await do(queue.claim) == []


async def test_a_job_that_runs_is_not_over(queue: Queue, do: Do, clock: Time):
    job = await do(queue.put, "x", id="x", unique=Unique(exact="k"), expires=5)
    (item,) = await do(queue.claim, lease=60)
    clock.advance(6)
    assert await do(job.status) is Status.RUNNING
    assert await do(queue.put, "y", unique=Unique(exact="k")) == job
    assert await do(queue.put, "z", id="x") == job
    await do(item.release)
    clock.advance(6)
    assert await do(job.status) is Status.READY
    (item,) = await do(queue.claim)
    assert item.body == "x"
    await do(item.complete)


async def test_a_result_without_a_limit_ends_when_the_job_expires(queue: Queue, do: Do):
    began = time.monotonic()
    job = await do(queue.put, "x", expires=0.4)
    with pytest.raises(JobExpired):
        await asyncio.wait_for(do(job.result), scaled(5))
    assert time.monotonic() - began >= 0.35
    await do(queue.purge)
    assert await do(queue.claim) == []


async def test_a_result_is_awaited_past_the_expiry_of_a_job_that_runs(queue: Queue, do: Do):
    job = await do(queue.put, "x", expires=0.3)
    result = asyncio.create_task(do(job.result))
    (item,) = await do(queue.claim, lease=60)
    await asyncio.sleep(0.5)
    assert not result.done()
    await do(item.complete, 7)
    assert await asyncio.wait_for(result, scaled(5)) == 7


async def test_a_waiter_hears_of_an_expiry_that_a_double_brought(app: Penstock, queue: Queue, do: Do, raw: Any):
    @app.task(queue="q", unique=UNIQUE["replace"])
    async def refresh(key: str) -> None: ...

    job = await do(refresh.enqueue, "k")
    result = asyncio.create_task(do(job.result))
    await until(lambda: raw.hlen(f"{queue.first.bindings.keys.base}listeners"))
    assert await do(refresh.using(expires=0.3).enqueue, "k") == job
    with pytest.raises(JobExpired):
        await asyncio.wait_for(result, scaled(5))
    assert await do(queue.claim) == []


async def test_a_dead_letter_takes_its_key_from_a_job_that_is_over(queue: Queue, do: Do, clock: Time):
    dead = await do(queue.put, 1, unique=Unique(exact="k"))
    (item,) = await do(queue.claim)
    await do(item.fail, "no")
    late = await do(queue.put, 2, unique=Unique(exact="k"), expires=5)
    clock.advance(5)
    assert await do(queue.dead.requeue, dead.id) == 1
    assert await do(late.status) is Status.EXPIRED
    (item,) = await do(queue.claim, 5)
    assert item.body == 1
    await do(item.complete)


# --- counts, lists and dependents, without a worker ---


@pytest.mark.parametrize("where", ["ready", "delayed", "parked", "dependent"])
@pytest.mark.parametrize("asks", ["count", "list", "tenant", "show", "why", "result", "turn"])
async def test_what_is_over_counts_no_longer(
    app: Penstock, queue: Queue, do: Do, clock: Time, raw: Any, where: str, asks: str
):
    @app.task(queue="q", limit=Concurrency(1, key="all"))
    async def limited() -> None: ...

    @app.task(queue="q")
    async def plain() -> None: ...

    if where == "parked":
        await do(limited.enqueue)
    first = await do(plain.enqueue) if where == "dependent" else None
    task = limited if where == "parked" else plain
    options: Any = {"delay": 3000} if where == "delayed" else {"after": [first]} if first else {}
    job = await do(task.using(expires=5, tenant="t", **options).enqueue)
    clock.advance(4.999)
    of_tenant = await do(queue.tenant("t").count)
    assert of_tenant.waiting + of_tenant.dependent == 1
    clock.advance(0.001)
    if asks == "count":
        counts = await do(queue.count)
        assert (counts.expired, counts.waiting + counts.dependent) == (1, int(where in ("parked", "dependent")))
    elif asks == "list":
        assert [row.id for row in (await do(queue.jobs(tenant="t").page)).jobs] == []
    elif asks == "tenant":
        of_tenant = await do(queue.tenant("t").count)
        assert of_tenant.waiting + of_tenant.dependent == 0
    elif asks == "show":
        assert (await do(job.info)).status is Status.EXPIRED
    elif asks == "why":
        assert (await do(job.why)).kind == "ended"
    elif asks == "result":
        with pytest.raises(JobExpired):
            await do(job.result, 0)
    else:
        await do(queue.claim, wait=0)
    base = queue.first.bindings.keys.base
    assert raw.zcard(f"{base}expiring") == 0
    assert not raw.hexists(f"{base}jobs", job.id.partition(":")[2])
    assert await do(job.status) is Status.EXPIRED


async def test_a_started_job_is_not_noted_as_one_that_expires(queue: Queue, do: Do, clock: Time, raw: Any):
    jobs = [await do(queue.put, n, expires=5) for n in range(3)]
    expiring = f"{queue.first.bindings.keys.base}expiring"
    assert raw.zcard(expiring) == 3
    await do(jobs[2].cancel)
    items = await do(queue.claim, 2, lease=60)
    assert raw.zcard(expiring) == 0
    clock.advance(6)
    assert (await do(queue.count)).running == 2
    await do(items[0].retry, 10)
    await do(items[1].complete)
    assert (await do(queue.count)).delayed == 1


async def test_many_jobs_that_are_over_leave_in_slices(queue: Queue, do: Do, clock: Time):
    for n in range(3):
        await do(queue.put_many, [(n, i) for i in range(100)], expires=5)
    clock.advance(5)
    waiting = [(await do(queue.count)).waiting for _ in range(4)]
    assert waiting == [200, 100, 0, 0]
    assert (await do(queue.count)).expired == 300


async def test_dependents_hear_of_an_expiry_when_anybody_asks(app: Penstock, queue: Queue, do: Do, clock: Time):
    @app.task(queue="q")
    async def part() -> None: ...

    first = await do(part.using(expires=5).enqueue)
    last = await do(part.using(after=[first]).enqueue)
    clock.advance(5)
    assert (await do(queue.count)).waiting == 0
    assert await do(last.status) is Status.CANCELLED


async def test_an_idle_worker_ends_a_parked_job_at_its_time(app: Penstock, queue: Queue, do: Do):
    """No other turn is due: the timekeeper acts at the expiry."""

    @app.task(queue="q")
    async def part() -> None: ...

    async with running_worker(app):
        await do(queue.pause)
        first = await do(part.using(expires=0.5).enqueue)
        last = await do(part.using(after=[first]).enqueue)
        with pytest.raises(JobCancelled):
            await do(last.result, scaled(4))
