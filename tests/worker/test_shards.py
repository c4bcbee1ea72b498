"""A worker serves all shards of a queue."""

import asyncio
from collections import Counter

import pytest

from penstock import ConfigurationError, Worker, WorkerSettings
from penstock.core.slots import slot
from tests.conftest import MakeApp
from tests.speed import scaled
from tests.worker.in_process import run_burst, running_worker

TENANTS = [f"tenant-{n}" for n in range(12)]


async def test_jobs_of_all_shards_are_run_and_wake_the_worker(make_app: MakeApp):
    app = make_app()
    app.queue("mail", shards=4)

    @app.task(queue="mail")
    async def double(n: int) -> int:
        return 2 * n

    async with running_worker(app):
        for n, tenant in enumerate(TENANTS):
            job = await double.using(tenant=tenant).enqueue.aio(n)
            assert await job.result.aio(scaled(5)) == 2 * n
    assert (await app.queue("mail").count.aio()).completed == 12


async def test_no_shard_waits_for_the_backlog_of_another(make_app: MakeApp):
    app = make_app()
    queue = app.queue("mail", shards=3)
    ran = list[str]()

    @app.task(queue="mail")
    async def note(tenant: str) -> None:
        ran.append(tenant)
        await asyncio.sleep(0.02)  # longer than a round, so that each round has room for one job

    tenants = {queue.shard_for(tenant): tenant for tenant in TENANTS}
    loud, *others = [tenants[shard] for shard in queue.shards.current.known]
    # without a rotation, the first shard would always go first
    await app.enqueue_many.aio(note.using(tenant=loud).call(loud) for _ in range(30))
    for tenant in others:
        await note.using(tenant=tenant).enqueue.aio(tenant)
    await run_burst(app, concurrency=1, max_batch=1, prefetch=0)
    assert len(ran) == 32
    assert max(map(ran.index, others)) <= 4


@pytest.mark.parametrize("shards", [2, 4])
@pytest.mark.parametrize("is_named", [False, True])
async def test_no_shard_waits_for_another_while_other_queues_have_jobs(make_app: MakeApp, shards: int, is_named: bool):
    app = make_app()
    queue = app.queue("mail", shards=shards)
    ran = list[str]()

    @app.task(queue="mail")
    async def note(tenant: str) -> None:
        ran.append(tenant)
        await asyncio.sleep(0.02)  # longer than a round, so that each round has room for one job

    @app.task(queue="news")
    async def other() -> None:
        ran.append("news")
        await asyncio.sleep(0.02)

    tenants = {queue.shard_for(tenant): tenant for tenant in [f"tenant-{n}" for n in range(100)]}
    names = [tenants[shard] for shard in queue.shards.current.known]
    # if each round began with another shard, the rounds of this queue would always begin with the same ones
    await app.enqueue_many.aio(note.using(tenant=name).call(name) for name in names for _ in range(10))
    await app.enqueue_many.aio(other.call() for _ in range(10 * shards))
    await run_burst(app, queues=("mail", "news") if is_named else (), concurrency=1, max_batch=1, prefetch=0)
    of_mail = [name for name in ran if name != "news"]
    assert len(ran) == 20 * shards
    assert {*of_mail[: shards + 1]} == {*names}


async def test_a_worker_that_names_no_shards_does_not_start(make_app: MakeApp):
    await make_app("shards").queue("mail", shards=3).put.aio(1)
    app = make_app("shards")
    with pytest.raises(ConfigurationError, match="3 shards in the server"):
        await asyncio.wait_for(Worker(app, WorkerSettings(queues=("mail",))).run(), scaled(10))


@pytest.mark.parametrize("place", ["cluster"])
async def test_the_nodes_of_a_cluster_share_the_jobs_of_one_queue(make_app: MakeApp):
    app = make_app("shards")  # with some prefixes, a shard is just beyond the end of its third
    queue = app.queue("mail", shards=12)

    @app.task(queue="mail")
    async def nothing() -> None: ...

    await app.enqueue_many.aio(nothing.using(tenant=f"t{n}").call() for n in range(2000))
    await run_burst(app, concurrency=100)
    # By thirds of the slots, as a new cluster of three has them: another test may have moved some.
    shares = Counter[int]()
    for shard in queue.shards.current.known:
        third = 3 * slot(shard.bindings.keys.base) // 16384
        shares[third] += (await app._driver.aio.run(shard.bindings.counts())).completed
    assert sum(shares.values()) == 2000
    assert len(shares) == 3
    assert max(shares.values()) <= 1.1 * min(shares.values())


async def test_a_worker_serves_shards_that_are_added_while_it_runs(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("penstock.worker.turn_order._LOOK_EVERY", 0.1)
    app = make_app()
    queue = app.queue("mail", shards=1)

    @app.task(queue="mail")
    async def double(n: int) -> int:
        return 2 * n

    async with running_worker(app):
        await double.using(tenant=TENANTS[0]).enqueue.aio(1)
        await queue.add_shards.aio(3)
        jobs = [await double.using(tenant=tenant).enqueue.aio(n) for n, tenant in enumerate(TENANTS)]
        assert [await job.result.aio(scaled(5)) for job in jobs] == [2 * n for n in range(12)]
        async with asyncio.timeout(scaled(5)):  # the worker closes the change
            while queue.shards.current.table.before:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        jobs = [await double.using(tenant=tenant).enqueue.aio(n) for n, tenant in enumerate(TENANTS)]
        assert {job.id.partition(":")[0] for job in jobs} == {"mail", "mail~1", "mail~2"}
        assert [await job.result.aio(scaled(5)) for job in jobs] == [2 * n for n in range(12)]
    assert (await queue.count.aio()).completed == 25
