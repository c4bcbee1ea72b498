"""A tenant that has more jobs than one shard can do is spread over several."""

from collections import Counter
from typing import Any

import pytest

from penstock import Concurrency, ConfigurationError, Penstock, Queue, Status, Unique
from penstock.jobs.shard_changes import MOST_SPREAD
from penstock.ops.inspect import Inspector
from tests.conftest import Do, MakeApp


@pytest.fixture
def queue(app: Penstock) -> Queue:
    return app.queue("mail", shards=6)


def place(job: Any) -> str:
    return str(job.id).partition(":")[0]


async def drain(queue: Queue, do: Do) -> list[Any]:
    bodies = []
    while items := await do(queue.claim, 50):
        for item in items:
            bodies.append(item.body)
            await do(item.complete)
    return bodies


@pytest.mark.parametrize("tenant", ["acme", ""])
async def test_new_jobs_of_a_spread_tenant_go_to_several_shards(queue: Queue, do: Do, tenant: str):
    first = await do(queue.put, -1, tenant=tenant)
    await do(queue.tenant(tenant).spread, 3)
    jobs = [await do(queue.put, n, tenant=tenant) for n in range(60)]
    jobs += await do(queue.put_many, range(60, 120), tenant=tenant)
    shares = Counter(map(place, jobs))
    assert len(shares) == 3
    assert place(first) in shares
    assert min(shares.values()) > 15
    assert (await do(queue.tenant(tenant).count)).ready == 121
    assert sorted(await drain(queue, do)) == list(range(-1, 120))
    await do(queue.tenant(tenant).spread, 1)
    assert {place(await do(queue.put, n, tenant=tenant)) for n in range(20)} == {place(first)}
    assert await do(queue.tenant(tenant).purge) == 20


async def test_other_programs_learn_of_it_with_their_next_job(app: Penstock, make_app: MakeApp, queue: Queue, do: Do):
    other = make_app(app.settings.prefix).queue("mail", shards=6)
    await do(other.put, 0, tenant="acme")
    await do(queue.tenant("acme").spread, 6)
    assert len({place(await do(other.put, n, tenant="acme")) for n in range(1, 80)}) == 6
    assert sorted(await drain(queue, do)) == list(range(80))


async def test_operators_reach_all_jobs_of_a_spread_tenant(app: Penstock, queue: Queue, do: Do):
    await do(queue.tenant("acme").spread, 6)
    jobs = await do(queue.put_many, range(40), tenant="acme")
    await do(queue.put, "other", tenant="else")
    assert await do(queue.jobs(tenant="acme").count) == 40
    assert [await do(app.job(job.id).status) for job in jobs] == [Status.READY] * 40
    inspector = Inspector(app)
    assert await do(inspector.queues.purge, "mail", "acme") == 40
    assert (await do(queue.count)).ready == 1


async def test_jobs_with_a_key_of_their_own_stay_in_one_shard(app: Penstock, queue: Queue, do: Do):
    @app.task(queue="mail", unique=Unique("{tenant}:{n}"))
    def once(n: int) -> None: ...

    @app.task(queue="mail", limit=Concurrency(2, key="{tenant}"))
    def limited(n: int) -> None: ...

    @app.task(queue="mail")
    def free(n: int) -> None: ...

    await do(queue.tenant("acme").spread, 6)
    for task in (once, limited):
        calls = task.using(tenant="acme")
        jobs = [await do(calls.enqueue, n % 5) for n in range(20)]
        jobs += await do(app.enqueue_many, [calls.call(n % 5) for n in range(20)])
        assert {place(job) for job in jobs} == {queue.shard_for("acme").name}
        assert len({job.id for job in jobs}) == (5 if task is once else 40)
    jobs = await do(app.enqueue_many, [free.using(tenant="acme").call(n) for n in range(60)])
    assert len(set(map(place, jobs))) == 6
    assert await do(queue.purge) == 5 + 40 + 60


async def test_an_id_of_your_own_is_recognised_in_a_spread_tenant(queue: Queue, do: Do):
    await do(queue.tenant("acme").spread, 6)
    for _ in range(2):
        jobs = [await do(queue.put, n, tenant="acme", id=f"order-{n}") for n in range(12)]
    assert len(set(map(place, jobs))) > 2
    assert sorted(await drain(queue, do)) == list(range(12))


async def test_shards_are_added_while_a_tenant_is_spread(queue: Queue, do: Do):
    await do(queue.tenant("acme").spread, 4)
    await do(queue.put_many, range(40), tenant="acme")
    assert await do(queue.add_shards, 12)
    await do(queue.tenant("acme").spread, 12)
    jobs = await do(queue.put_many, range(40, 200), tenant="acme")
    assert len(set(map(place, jobs))) == 12
    assert (await do(queue.tenant("acme").count)).ready == 200
    assert sorted(await drain(queue, do)) == list(range(200))


async def test_what_cannot_work_is_refused(app: Penstock, queue: Queue, do: Do):
    with pytest.raises(ConfigurationError, match="has no shards"):
        await do(app.queue("plain").tenant("acme").spread, 2)
    with pytest.raises(ConfigurationError, match="takes 1 to 6"):
        await do(queue.tenant("acme").spread, 7)
    for n in range(MOST_SPREAD):
        await do(queue.tenant(f"t{n}").spread, 2)
    with pytest.raises(ConfigurationError, match="has 50 tenants that are or were spread"):
        await do(queue.tenant("one more").spread, 2)
    await do(queue.tenant("t0").spread, 1)
    await do(queue.put, 1, tenant="moving")
    if not await do(queue.add_shards, 7):
        with pytest.raises(ConfigurationError, match="grows from 6 to 7 shards"):
            await do(queue.tenant("t0").spread, 2)
    await do(queue.purge)
