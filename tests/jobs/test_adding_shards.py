"""Adding shards to a queue while programs use it."""

from typing import Any

import pytest

from penstock import Concurrency, ConfigurationError, Penstock, Queue, Rate, Unique
from penstock.jobs.retention import Retention
from penstock.jobs.shard_table import shard_number
from tests.conftest import Do, MakeApp

TENANTS = [f"tenant-{n}" for n in range(24)]
MOVING = [tenant for tenant in TENANTS if shard_number(tenant, 2) != shard_number(tenant, 3)]
STAYING = [tenant for tenant in TENANTS if tenant not in MOVING]


@pytest.fixture
def queue(app: Penstock) -> Queue:
    return app.queue("mail", shards=2)


@pytest.fixture
def other(queue: Queue, app: Penstock, make_app: MakeApp) -> Queue:
    """The queue in another program, which does not notice the change by itself."""
    return make_app(app.settings.prefix).queue("mail", shards=2)


def place(job: object) -> str:
    return getattr(job, "id").partition(":")[0]  # noqa: B009


async def drain(queue: Queue, do: Do) -> list[object]:
    bodies = []
    while items := await do(queue.claim, 5):
        for item in items:
            bodies.append(item.body)
            await do(item.complete)
    return bodies


def tenant_and_number(body: Any) -> tuple[str, int]:
    """Of a job's body: a bare value, or the call of `work`."""
    _, arguments = body
    return tuple(arguments.values()) if isinstance(arguments, dict) else tuple(body)


async def test_tenants_without_jobs_move_at_once_and_others_when_they_are_done(queue: Queue, do: Do):
    busy, *idle = MOVING
    await do(queue.put, 0, tenant=busy)
    assert not await do(queue.add_shards, 3)
    assert {place(await do(queue.put, 1, tenant=tenant)) for tenant in idle} == {"mail~2"}
    assert place(await do(queue.put, 1, tenant=busy)) != "mail~2"
    assert len(await drain(queue, do)) == len(idle) + 2
    assert place(await do(queue.put, 2, tenant=busy)) == "mail~2"
    for tenant in STAYING:
        assert place(await do(queue.put, 1, tenant=tenant)) != "mail~2"


async def test_a_program_that_knows_the_old_table_is_led_to_the_new_one(queue: Queue, other: Queue, do: Do):
    await do(other.put, 0, tenant=MOVING[0])
    await drain(queue, do)
    assert await do(queue.add_shards, 3)
    assert place(await do(queue.put, 1, tenant=MOVING[0])) == "mail~2"
    job = await do(other.put, 2, tenant=MOVING[0])
    assert place(job) == "mail~2"
    assert await do(job.status) == "ready"
    assert await drain(other, do) == [1, 2]


@pytest.mark.parametrize("held", ["delayed", "running", "dead"])
async def test_a_job_in_any_state_keeps_its_tenant(queue: Queue, do: Do, held: str):
    await do(queue.put, 0, tenant=MOVING[0], delay=60.0 if held == "delayed" else 0.0)
    if held != "delayed":
        (item,) = await do(queue.claim)
        if held == "dead":
            await do(item.fail, "no")
    assert not await do(queue.add_shards, 3)
    assert place(await do(queue.put, 1, tenant=MOVING[0])) != "mail~2"
    assert (await do(queue.tenant(MOVING[0]).count)).ready == 1
    await do(queue.tenant(MOVING[0]).purge)
    if held == "running":
        await do(item.complete)
    for letter in await do(queue.dead.list):
        await do(queue.dead.remove, letter.id)
    assert place(await do(queue.put, 2, tenant=MOVING[0])) == "mail~2"
    assert (await do(queue.tenant(MOVING[0]).count)).ready == 1


async def test_bulk_enqueues_of_an_old_table_keep_the_order_of_each_tenant(
    app: Penstock, queue: Queue, other: Queue, make_app: MakeApp, do: Do
):
    busy, idle = MOVING[:2]
    await do(other.put, [busy, 0], tenant=busy)  # the program asks for the table
    await do(queue.add_shards, 3)
    program = make_app(app.settings.prefix)
    program.queue("mail", shards=2)

    @program.task(queue="mail")
    def work(tenant: str, n: int) -> None: ...

    tenants = [busy, idle, *STAYING[:3]]
    jobs = await do(program.enqueue_many, [work.using(tenant=t).call(t, n) for n in range(1, 200) for t in tenants])
    assert place(jobs[0]) != "mail~2"
    assert place(jobs[1]) == "mail~2"
    for n in range(200, 204):
        for tenant in tenants:
            await do(other.put, [tenant, n], tenant=tenant)
    seen: dict[str, list[int]] = {tenant: [] for tenant in tenants}
    for tenant, n in map(tenant_and_number, await drain(queue, do)):
        seen[tenant].append(n)
    assert seen == {tenant: [*([0] if tenant == busy else []), *range(1, 204)] for tenant in tenants}


async def test_a_change_is_closed_when_no_tenant_is_left_to_move(queue: Queue, other: Queue, do: Do):
    await do(queue.put, 0, tenant=MOVING[0])
    await do(queue.add_shards, 3)
    with pytest.raises(ConfigurationError, match="grows from 2 to 3 shards already"):
        await do(other.add_shards, 4)
    await drain(queue, do)
    assert await do(queue.finish_adding_shards)
    assert queue.shards.current.table.text == "3 3 0"
    await do(other.add_shards, 4)
    assert {place(await do(queue.put, 1, tenant=tenant)) for tenant in TENANTS} <= {
        "mail",
        "mail~1",
        "mail~2",
        "mail~3",
    }
    with pytest.raises(ConfigurationError, match="takes 4 to 32"):
        await do(queue.add_shards, 3)


async def test_switches_weights_and_retention_hold_in_new_shards(app: Penstock, queue: Queue, do: Do):
    await do(queue.put, 0)
    await do(queue.pause)
    await do(queue.due_first)
    await do(queue.fair_by_time)
    await do(queue.tenant(MOVING[0]).weigh, 3)
    await do(queue.keep, dead_letters=7, dead_age=60)
    await do(queue.add_shards, 3)
    added = app.queue("mail~2")
    counts = await do(added.count)
    assert (counts.paused, counts.due_first, counts.by_time) == (True, True, True)
    assert (await do(queue.tenant(MOVING[0]).count)).weight == 3
    assert await do(added.kept) == await do(queue.kept) == Retention(dead_letters=7, dead_age=60)


async def test_windows_of_unique_keys_and_buckets_of_rates_keep_a_tenant(app: Penstock, queue: Queue, do: Do):
    @app.task(queue="mail", unique=Unique("{tenant}", throttle=60))
    def throttled() -> None: ...

    @app.task(queue="mail", limit=Rate(1, per=60, key="{tenant}"))
    def limited() -> None: ...

    first = await do(throttled.using(tenant=MOVING[0]).enqueue)
    await do(limited.using(tenant=MOVING[1]).enqueue)
    assert len(await drain(queue, do)) == 2
    assert not await do(queue.add_shards, 3)
    assert await do(throttled.using(tenant=MOVING[0]).enqueue) == first
    assert place(await do(queue.put, 1, tenant=MOVING[1])) != "mail~2"
    await drain(queue, do)


async def test_a_schedule_keeps_its_tenant_from_moving(app: Penstock, queue: Queue, do: Do):
    @app.task(queue="mail", limit=Concurrency(3, key="{tenant}"))
    def work() -> None: ...

    await do(app.schedules.add, "daily", work.using(tenant=MOVING[0]).call(), every=86400)
    with pytest.raises(ConfigurationError, match=r"schedule mail(~1)?:daily belongs to a tenant that would move"):
        await do(queue.add_shards, 3)
    await do(app.schedules.remove, "daily")
    await do(queue.put, 0, tenant=MOVING[0])
    await do(queue.add_shards, 3)
    with pytest.raises(ConfigurationError, match="moves to another shard at present"):
        await do(app.schedules.add, "daily", work.using(tenant=MOVING[0]).call(), every=86400)
    await do(app.schedules.add, "daily", work.using(tenant=STAYING[0]).call(), every=86400)


async def test_a_queue_of_one_slot_gets_shards(make_app: MakeApp, do: Do):
    await do(make_app("grow").queue("mail").put_many, [1, 2], tenant=MOVING[0])
    queue = make_app("grow").queue("mail", shards=3)
    assert not await do(queue.add_shards, 3)
    assert place(await do(queue.put, 3, tenant=MOVING[0])) == "mail"
    assert await drain(queue, do) == [1, 2, 3]
    assert place(await do(queue.put, 4, tenant=MOVING[0])) == "mail~2"
