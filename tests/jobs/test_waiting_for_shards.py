"""A claim that waits for the jobs of a queue with shards: any shard wakes it, and it leaves nothing behind in any."""

import asyncio
from typing import Any

import pytest

from penstock import Penstock, Queue
from tests.conftest import Apps, Do, MakeApp, commands, until
from tests.jobs.stand import idle_workers
from tests.servers import interrupt_when
from tests.speed import scaled

TENANTS = [f"tenant-{n}" for n in range(12)]


@pytest.fixture
def queue(app: Penstock) -> Queue:
    return app.queue("mail", shards=3)


def waiting(raw: Any, queue: Queue) -> list[int]:
    """How many claims wait in each shard."""
    return [idle_workers(raw, shard.bindings.keys.base) for shard in queue.shards.current.known]


def held(raw: Any, queue: Queue) -> int:
    return sum(raw.zcard(f"{shard.bindings.keys.base}leases") for shard in queue.shards.current.known)


async def test_a_job_in_any_shard_wakes_a_waiting_claim(queue: Queue, do: Do, raw: Any):
    for shard in queue.shards.current.known:
        tenant = next(one for one in TENANTS if queue.shard_for(one) is shard)
        claim = asyncio.create_task(do(queue.claim, wait=30))
        await until(lambda: waiting(raw, queue) == [1, 1, 1])
        await do(queue.put, shard.name, tenant=tenant)
        (item,) = await asyncio.wait_for(claim, scaled(5))
        assert item.body == shard.name
        await do(item.complete)
        assert waiting(raw, queue) == [0, 0, 0]
        assert held(raw, queue) == 0


async def test_a_claim_without_a_limit_gets_a_delayed_job_of_any_shard(queue: Queue, do: Do, raw: Any):
    for shard in queue.shards.current.known:
        tenant = next(one for one in TENANTS if queue.shard_for(one) is shard)
        claim = asyncio.create_task(do(queue.claim, 3, wait=None))
        await until(lambda: waiting(raw, queue) == [1, 1, 1])
        await do(queue.put, 1, tenant=tenant, delay=0.2)
        (item,) = await asyncio.wait_for(claim, scaled(5))
        await do(item.complete)


async def test_jobs_that_are_there_come_from_all_shards_at_once(queue: Queue, do: Do, raw: Any):
    for tenant in TENANTS:
        await do(queue.put, tenant, tenant=tenant)
    items = await do(queue.claim, 20, wait=30)
    assert sorted(item.body for item in items) == sorted(TENANTS)
    assert waiting(raw, queue) == [0, 0, 0]
    for item in items:
        await do(item.complete)


async def test_each_of_several_claims_gets_one_job(queue: Queue, do: Do, raw: Any):
    claims = [asyncio.create_task(do(queue.claim, wait=30)) for _ in range(6)]
    await until(lambda: waiting(raw, queue) == [6, 6, 6])
    await asyncio.gather(*(do(queue.put, tenant, tenant=tenant) for tenant in TENANTS[:6]))
    found = await asyncio.wait_for(asyncio.gather(*claims), scaled(10))
    assert sorted(item.body for (item,) in found) == sorted(TENANTS[:6])
    for (item,) in found:
        await do(item.complete)
    assert waiting(raw, queue) == [0, 0, 0]


async def test_a_claim_whose_time_is_over_returns_nothing_and_leaves_nothing(queue: Queue, do: Do, raw: Any):
    assert await do(queue.claim, wait=0.1) == []
    assert waiting(raw, queue) == [0, 0, 0]
    assert held(raw, queue) == 0


async def test_a_wake_up_asks_only_its_shard(queue: Queue, do: Do, raw: Any, nodes: list[Any]):
    claim = asyncio.create_task(do(queue.claim, wait=30))
    await until(lambda: waiting(raw, queue) == [1, 1, 1])
    await asyncio.sleep(0.1)
    before = sum(map(commands, nodes))
    await do(queue.put, 1, tenant=TENANTS[0])
    (item,) = await claim
    # The enqueue, the turn that gets the job, one to leave each of the two other shards, and a PING to each node.
    assert sum(map(commands, nodes)) - before <= 4 + len(nodes)
    await do(item.complete)


async def test_a_waiting_claim_finds_shards_that_are_added(make_app: MakeApp, do: Do, raw: Any):
    queue = make_app(sleep=0.2).queue("mail", shards=1)
    await do(queue.check_shards)
    claim = asyncio.create_task(do(queue.claim, wait=60))
    await until(lambda: waiting(raw, queue) == [1])
    other = make_app(queue.settings.prefix).queue("mail", shards=1)
    assert await do(other.add_shards, 3)
    await until(lambda: waiting(raw, other) == [1, 1, 1])
    last = next(one for one in TENANTS if other.shard_for(one) is other.shards.current.known[2])
    await do(other.put, "new", tenant=last)
    (item,) = await asyncio.wait_for(claim, scaled(5))
    assert item.body == "new"
    await do(item.complete)


async def test_a_cancelled_claim_passes_on_the_wake_ups_of_all_shards(queue: Queue, raw: Any):
    homes = [next(one for one in TENANTS if queue.shard_for(one) is shard) for shard in queue.shards.current.known]
    first = asyncio.create_task(queue.claim.aio(3, wait=30))
    await until(lambda: waiting(raw, queue) == [1, 1, 1])
    second = asyncio.create_task(queue.claim.aio(3, wait=30))
    await until(lambda: waiting(raw, queue) == [2, 2, 2])
    await asyncio.gather(*(queue.put.aio(tenant, tenant=tenant) for tenant in homes))
    second.cancel()
    await asyncio.wait([second])
    items = [] if second.cancelled() else second.result()
    items += await asyncio.wait_for(first, scaled(5))
    while len(items) < 3:
        items += await queue.claim.aio(3, wait=scaled(5))
    assert sorted(item.body for item in items) == sorted(homes)
    for item in items:
        assert item.deliveries == 1
        await item.complete.aio()
    assert waiting(raw, queue) == [0, 0, 0]


@pytest.mark.parametrize("wait", [0, None])
async def test_a_claim_that_is_cancelled_at_any_moment_loses_no_job(queue: Queue, wait: float | None):
    homes = [next(one for one in TENANTS if queue.shard_for(one) is shard) for shard in queue.shards.current.known]
    for n in range(24):
        claim = asyncio.create_task(queue.claim.aio(3, wait=wait))
        for _ in range(n):
            await asyncio.sleep(0)
        await asyncio.gather(*(queue.put.aio(tenant, tenant=tenant) for tenant in homes))
        for _ in range(n // 4):
            await asyncio.sleep(0)
        claim.cancel()
        await asyncio.wait([claim])
        items = [] if claim.cancelled() else claim.result()
        while len(items) < 3:
            more = await queue.claim.aio(3, wait=scaled(2))
            assert more, "a job is held by the claim that was cancelled"
            items += more
        assert sorted(item.body for item in items) == sorted(homes)
        for item in items:
            await item.complete.aio()


def test_an_interrupted_claim_leaves_nothing(apps: Apps, raw: Any):
    with apps.make() as app:
        queue = app.queue("mail", shards=3)
        queue.count()
        with interrupt_when(lambda: waiting(raw, queue) == [1, 1, 1]), pytest.raises(KeyboardInterrupt):
            queue.claim(wait=None)
        assert waiting(raw, queue) == [0, 0, 0]
        assert held(raw, queue) == 0
