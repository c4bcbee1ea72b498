"""Counts of a queue by state, tenant and age; and purges."""

import pytest

from penstock import Concurrency, Penstock, Queue, Status
from penstock.info import Counts, TenantCounts
from tests.conftest import Do, Time


@pytest.fixture
def queue(app: Penstock) -> Queue:
    return app.queue("raw")


# --- counts ---


async def test_an_unused_queue_counts_nothing(queue: Queue, do: Do):
    assert await do(queue.count) == Counts()
    assert await do(queue.tenant("nobody").count) == TenantCounts()


async def test_every_state_is_counted_for_queue_and_tenant(queue: Queue, do: Do):
    for tenant in ("a", "b"):
        await do(queue.put_many, range(5), tenant=tenant)
        await do(queue.put_many, range(3), delay=60, tenant=tenant)
    items = await do(queue.claim, 6)
    done, dead, dropped, *rest = sorted(items, key=lambda item: item.tenant)  # three of each
    await do(done.complete)
    await do(dead.fail, "no")
    await do(dropped.retry, 60)
    counts = await do(queue.count)
    assert (counts.ready, counts.delayed, counts.running, counts.dead) == (4, 7, 3, 1)
    assert (counts.waiting, counts.completed, counts.failed, counts.retried) == (11, 1, 1, 1)
    a, b = await do(queue.tenant("a").count), await do(queue.tenant("b").count)
    assert (a.ready, a.delayed, a.running, a.dead, a.waiting) == (2, 4, 0, 1, 6)
    assert (b.ready, b.delayed, b.running, b.dead, b.waiting) == (2, 3, 3, 0, 5)
    assert len(rest) == 3


async def test_the_age_is_that_of_the_oldest_ready_job(queue: Queue, do: Do, clock: Time):
    await do(queue.put, 1, tenant="a")
    clock.advance(100)
    await do(queue.put_many, [2, 3], tenant="b")
    clock.advance(10)
    assert (await do(queue.count)).oldest == pytest.approx(110, abs=1)
    assert (await do(queue.tenant("a").count)).oldest == pytest.approx(110)
    assert (await do(queue.tenant("b").count)).oldest == pytest.approx(10)
    (first,) = await do(queue.claim)
    assert first.body == 1
    assert (await do(queue.count)).oldest == pytest.approx(10, abs=1)
    assert (await do(queue.tenant("a").count)).oldest == 0
    await do(first.complete)


async def test_the_age_of_the_oldest_parked_job_is_kept_however_it_was_parked(app: Penstock, do: Do, clock: Time):
    queue = app.queue("q")

    @app.task(queue="q", limit=Concurrency(1, key="{key}"))
    async def limited(key: str) -> None: ...

    assert (await do(queue.count)).oldest_parked == 0
    jobs = [await do(limited.enqueue, "a") for _ in range(2)]
    clock.advance(100)
    jobs += [await do(limited.enqueue, "a"), await do(limited.enqueue, "b")]
    counts = await do(queue.count)
    assert (counts.ready, counts.parked, counts.oldest_parked) == (2, 2, pytest.approx(100, abs=1))
    assert counts.oldest == pytest.approx(100, abs=1)

    await do(jobs[1].cancel)
    assert (await do(queue.count)).oldest_parked == pytest.approx(0, abs=1)
    clock.advance(50)
    await do(queue.pause, tenant="")
    for item in await do(queue.claim, 10):  # a claim parks the jobs of a paused tenant
        await do(item.complete)
    clock.advance(10)
    counts = await do(queue.count)
    assert (counts.ready, counts.parked, counts.oldest_parked) == (0, 3, pytest.approx(160, abs=1))
    await do(queue.purge)
    assert (await do(queue.count)).oldest_parked == 0
    await do(queue.resume, tenant="")


async def test_a_delayed_job_has_no_age_before_it_is_due(queue: Queue, do: Do, clock: Time):
    await do(queue.put, 1, delay=50)
    clock.advance(49)
    assert (await do(queue.count)).oldest == 0
    clock.advance(11)
    await do(queue.put, 2, priority=0)
    (urgent,) = await do(queue.claim)
    assert (await do(queue.count)).oldest == pytest.approx(10, abs=1)
    await do(urgent.complete)


# --- purge ---


@pytest.mark.parametrize("n", [0, 3, 700])
async def test_a_purged_queue_is_empty_and_its_jobs_are_cancelled(queue: Queue, do: Do, n: int):
    jobs = await do(queue.put_many, range(n))
    jobs += await do(queue.put_many, range(n), delay=60, tenant="a", priority=1)
    assert await do(queue.purge) == 2 * n
    counts = await do(queue.count)
    assert (counts.waiting, counts.cancelled, counts.oldest) == (0, 2 * n, 0)
    for job in jobs[:1] + jobs[-1:]:
        assert await do(job.status) is Status.CANCELLED
    assert await do(queue.claim, 10) == []


async def test_purging_a_tenant_touches_no_other(queue: Queue, do: Do):
    for tenant in ("a", "b", ""):
        for priority in (0, 9):
            await do(queue.put_many, range(2), tenant=tenant, priority=priority)
        await do(queue.put_many, range(300), tenant=tenant, delay=60)
    assert await do(queue.tenant("a").purge) == 304
    assert (await do(queue.tenant("a").count)).waiting == 0
    assert (await do(queue.count)).waiting == 608
    assert await do(queue.tenant("").purge) == 304
    assert (await do(queue.tenant("b").count)).waiting == 304


async def test_a_purge_leaves_running_jobs_and_dead_letters(queue: Queue, do: Do):
    await do(queue.put_many, range(3))
    running, dead = await do(queue.claim, 2)
    await do(dead.fail, "no")
    assert await do(queue.purge) == 1
    counts = await do(queue.count)
    assert (counts.ready, counts.running, counts.dead) == (0, 1, 1)
    await do(running.complete)


async def test_a_purge_cancels_released_jobs_too(queue: Queue, do: Do):
    await do(queue.put_many, range(4))
    first, second = await do(queue.claim, 2)
    await do(first.release)
    await do(second.retry)
    assert await do(queue.purge) == 4


async def test_jobs_of_a_purged_tenant_can_be_put_again(queue: Queue, do: Do):
    await do(queue.put_many, [1, 2], tenant="a")
    await do(queue.tenant("a").purge)
    await do(queue.put_many, [3, 4], tenant="a")
    items = await do(queue.claim, 10)
    assert [item.body for item in items] == [3, 4]
    for item in items:
        await do(item.complete)
