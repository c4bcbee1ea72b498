"""One queue over several slots: where jobs are stored, and verbs on the whole."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from penstock import Concurrency, ConfigurationError, EnqueueContext, Middleware, Penstock, Queue, Status, Unique
from penstock.core.slots import slot
from penstock.driver import parallel
from penstock.jobs import sharded_enqueue
from penstock.jobs.keys import QueueKeys
from penstock.jobs.record import Record
from penstock.jobs.shard_table import shard_number
from penstock.ops.inspect import Inspector
from penstock.ops.raw_client import raw_client
from tests.conftest import Do, MakeApp, commands

TENANTS = [f"tenant-{n}" for n in range(30)]


@pytest.fixture
def queue(app: Penstock) -> Queue:
    return app.queue("mail", shards=3)


def test_a_further_shard_takes_tenants_and_no_other_tenant_changes():
    before, after = ([shard_number(f"t{n}", shards) for n in range(6000)] for shards in (3, 4))
    assert all(new in (old, 3) for old, new in zip(before, after, strict=True))
    assert all(1350 < after.count(shard) < 1650 for shard in range(4))
    assert shard_number("", 32) == 0


async def test_each_shard_has_a_slot_of_its_own(queue: Queue):
    assert len({slot(part.bindings.keys.base) for part in queue.shards.current.known}) == 3


@pytest.mark.parametrize("nodes", [2, 3, 4, 6])
@pytest.mark.parametrize("shards", [12, 24])
def test_equal_nodes_have_equally_many_shards(nodes: int, shards: int):
    for queue in ("mail", "raw", "a.b"):
        names = [queue, *(f"{queue}~{n}" for n in range(1, shards))]
        slots = [slot(QueueKeys("penstock", name).base) for name in names]
        first = slots[0]
        found = Counter((one - first + 100) * nodes // 16384 % nodes for one in slots)
        assert max(found.values()) - min(found.values()) <= 1


async def test_a_tenants_jobs_keep_their_order_and_are_claimed_from_all_shards(queue: Queue, do: Do):
    jobs = [await do(queue.put, [tenant, n], tenant=tenant) for n in range(3) for tenant in TENANTS]
    assert {job.id.partition(":")[0] for job in jobs} == {"mail", "mail~1", "mail~2"}
    assert (await do(queue.count)).ready == 90
    bodies = []
    while items := await do(queue.claim, 7):
        for item in items:
            bodies.append(item.body)
            await do(item.complete)
    assert sorted(bodies) == sorted([tenant, n] for n in range(3) for tenant in TENANTS)
    for tenant in TENANTS:
        assert [n for name, n in bodies if name == tenant] == [0, 1, 2]
    assert (await do(queue.count)).completed == 90


async def test_single_jobs_are_staged(app: Penstock, queue: Queue, do: Do):
    for n in range(4):
        await do(queue.put, n, tenant="t1")
    with raw_client(app) as client:
        staged = client.llen(queue.shard_for("t1").bindings.keys.base + "intake")
    assert staged == 1 + 3  # all but the first one, whose reply says that the next may be
    assert [item.body for item in await do(queue.claim, 9)] == [0, 1, 2, 3]


async def test_a_job_is_found_by_its_id(app: Penstock, queue: Queue, do: Do):
    jobs = [await do(queue.put, 1, tenant=tenant) for tenant in TENANTS]
    assert [await do(app.job(job.id).status) for job in jobs] == [Status.READY] * 30
    assert all([await do(queue.job(job.id).cancel) for job in jobs])
    assert (await do(queue.count)).waiting == 0
    with pytest.raises(ConfigurationError, match="write the whole id"):
        queue.job(jobs[0].key)


async def test_operators_act_on_the_whole_queue(queue: Queue, do: Do):
    for tenant in TENANTS:
        await do(queue.put_many, [1, 2], tenant=tenant)
    await do(queue.pause)
    assert (await do(queue.count)).paused
    assert await do(queue.claim, 10) == []
    await do(queue.pause, tenant="t9")
    assert [one.name for one in await do(queue.resume)] == ["tenant t9"]
    assert await do(queue.resume, tenant="t9") == []
    items = await do(queue.claim, 60)
    assert len(items) == 60
    for item in items[:5]:
        await do(item.fail, "no")
    for item in items[5:]:
        await do(item.retry)
    letters = await do(queue.dead.list, 3) + await do(queue.dead.list, 3, 3)
    assert {letter.id for letter in letters} == {item.id for item in items[:5]}
    assert await do(queue.dead.requeue, *(letter.id for letter in letters)) == 5
    assert await do(queue.tenant(TENANTS[0]).purge) == 2
    assert (await do(queue.count)).ready == 58
    assert await do(queue.purge) == 58


@pytest.mark.parametrize("is_named_before", [True, False])
async def test_a_job_goes_to_the_shard_of_its_tenant_by_whatever_name_its_queue_is_called(
    app: Penstock, do: Do, is_named_before: bool
):
    if is_named_before:
        app.queue("mail~1")
    queue = app.queue("mail", shards=3)
    by_shard = app.queue("mail~1")
    jobs = [await do(by_shard.put, 1, tenant=tenant) for tenant in TENANTS]
    assert [job.shard.name for job in jobs] == [queue.shard_for(tenant).name for tenant in TENANTS]
    assert (await do(queue.count)).ready == 30
    assert 0 < (await do(by_shard.count)).ready < 30


async def test_hooks_see_the_shard_of_each_job(make_app: MakeApp, do: Do):
    seen = list[str]()

    class Names(Middleware):
        def enqueue(self, context: EnqueueContext) -> Iterator[None]:
            seen.extend(job.id for job in context.jobs)
            yield

    app = make_app()
    app.add_middleware(Names())
    queue = app.queue("mail", shards=3)
    jobs = [await do(queue.put, 1, tenant=tenant) for tenant in TENANTS]
    assert seen == [job.id for job in jobs]


async def test_tasks_follow_a_queue_that_is_split_after_them(app: Penstock, do: Do):
    @app.task(queue="later")
    def work(n: int) -> None: ...

    queue = app.queue("later", shards=4)
    jobs = await do(app.enqueue_many, [work.using(tenant=tenant).call(1) for tenant in TENANTS])
    single = await do(work.using(tenant=TENANTS[4]).enqueue, 1)
    assert {job.id.partition(":")[0] for job in jobs} == {part.name for part in queue.shards.current.known}
    assert single.id.partition(":")[0] == jobs[4].id.partition(":")[0]
    assert (await do(queue.count)).ready == 31


async def test_the_number_in_the_server_counts(make_app: MakeApp, do: Do, caplog: pytest.LogCaptureFixture):
    first = make_app("shards").queue("mail", shards=3)
    jobs = [await do(first.put, tenant, tenant=tenant) for tenant in TENANTS]
    other = make_app("shards").queue("mail", shards=4)
    assert [(await do(other.put, 1, tenant=tenant)).id.partition(":")[0] for tenant in TENANTS] == [
        job.id.partition(":")[0] for job in jobs
    ]
    assert "queue mail has 3 shards in the server, and this program names 4" in caplog.text
    with pytest.raises(ConfigurationError, match="has 3 shards in the server, and this program names none"):
        await do(make_app("shards").queue("mail").check_shards)


async def test_a_queue_with_jobs_begins_with_one_shard(make_app: MakeApp, do: Do):
    await do(make_app("shards").queue("mail").put, 1, tenant="t1")
    queue = make_app("shards").queue("mail", shards=2)
    assert (await do(queue.put, 2, tenant="t1")).id.startswith("mail:")
    assert (await do(queue.count)).ready == 2
    assert queue.shards.current.known == (queue.first,)


@pytest.mark.parametrize("shards", [0, 33, 1.5])
async def test_a_number_of_shards_that_cannot_work_is_refused(app: Penstock, shards: int):
    with pytest.raises(ConfigurationError, match="use 1 to 32"):
        app.queue("bad", shards=shards)


async def test_a_number_that_is_in_use_does_not_change(app: Penstock, queue: Queue, do: Do):
    await do(queue.put, 1)
    assert app.queue("mail", shards=3) is queue
    with pytest.raises(ConfigurationError, match="this program has named 3 before"):
        app.queue("mail", shards=4)
    with pytest.raises(ConfigurationError, match="is a shard"):
        app.queue("mail~1", shards=2)


async def test_the_inspector_pauses_and_purges_all_shards(app: Penstock, make_app: MakeApp, queue: Queue, do: Do):
    for tenant in TENANTS:
        await do(queue.put, 1, tenant=tenant)
    operator = Inspector(make_app(app.settings.prefix))
    opened = await do(operator.queues.open, "mail")
    await do(opened.pause)
    assert (await do(opened.count)).ready == 30
    assert [(await do(app.queue(shard.name).count)).paused for shard in queue.shards.current.known] == [True] * 3
    assert await do(operator.queues.waiting, "mail") == 30
    assert await do(operator.queues.purge, "mail", most=25) == 25
    assert (await do(queue.count)).ready == 5


@pytest.mark.parametrize("key", ["{order}", None])
async def test_a_unique_key_without_the_tenant_is_refused(app: Penstock, do: Do, key: str | None):
    @app.task(queue="mail", unique=Unique(key))
    def ship(order: int) -> None: ...

    await do(ship.enqueue, 1)
    app.queue("mail", shards=3)
    with pytest.raises(
        ConfigurationError, match=r"write the tenant into the key, as in Unique\('\{tenant\}:\{order\}'\)"
    ):
        await do(ship.using(tenant="a").enqueue, 1)


async def test_an_exact_unique_key_contains_the_tenant(queue: Queue, do: Do):
    first = await do(queue.put, 1, tenant="a", unique=Unique(exact="a:7"))
    assert await do(queue.put, 2, tenant="a", unique=Unique(exact="a:7")) == first
    with pytest.raises(ConfigurationError, match="write the tenant, here 'b'"):
        await do(queue.put, 3, tenant="b", unique=Unique(exact="7"))


async def test_a_limit_key_without_the_tenant_is_refused(app: Penstock, do: Do):
    @app.task(queue="mail", limit=Concurrency(1, key="{host}"))
    def fetch(host: str) -> None: ...

    app.queue("mail", shards=3)
    with pytest.raises(ConfigurationError, match=r"as in key='\{tenant\}:\{host\}'"):
        await do(fetch.enqueue, "h")


@pytest.mark.parametrize("power", [{"limit": Concurrency(1)}, {"unique": Unique("{order}")}])
async def test_a_key_without_the_tenant_is_refused_where_it_is_written(app: Penstock, queue: Queue, power: Any):
    def ship(order: int) -> None: ...

    with pytest.raises(ConfigurationError, match="write the tenant into the key"):
        app.task(queue="mail", **power)(ship)
    with pytest.raises(ConfigurationError, match="write the tenant into the key"):
        app.task(queue="mail")(ship).using(unique=Unique("{order}"))


async def test_limits_unique_jobs_schedules_and_edits_use_the_shards(app: Penstock, queue: Queue, do: Do):
    @app.task(queue="mail", unique=Unique("{tenant}:{n}"), limit=Concurrency(1, key="{tenant}", name="one"))
    def work(n: int) -> None: ...

    @app.task(queue="mail")
    def plain() -> None: ...

    for tenant in TENANTS:
        first, second = await do(work.using(tenant=tenant).enqueue, 1), await do(work.using(tenant=tenant).enqueue, 2)
        assert await do(work.using(tenant=tenant).enqueue, 2) == second != first
    (limit,) = await do(queue.limits)
    assert (limit.name, limit.parked, len(limit.keys)) == ("one", 30, 30)
    await do(queue.set_limit, "one", Concurrency(2))
    assert (await do(queue.count)).parked == 0

    schedule = await do(app.schedules.add, "daily", plain.using(tenant=TENANTS[0]).call(), every=86400)
    assert schedule.queue == queue.shard_for(TENANTS[0]).name
    assert (await do(app.schedules.get, "mail:daily")).queue == schedule.queue
    assert [one.name for one in await do(app.schedules.list)] == ["daily"]
    assert [one.name for one in await do(Inspector(app).schedules.all, "mail")] == ["daily"]

    later = await do(plain.using(tenant=TENANTS[7], delay=60).enqueue)
    assert await do(later.promote)
    assert await do(app.job(later.id).status) == Status.READY


async def test_an_operator_sees_one_queue(app: Penstock, make_app: MakeApp, queue: Queue, do: Do):
    @app.task(queue="mail", limit=Concurrency(1, key="{tenant}", name="one"))
    def work() -> None: ...

    for tenant in TENANTS:
        await do(queue.put, 1, tenant=tenant)
        await do(work.using(tenant=tenant).enqueue)
    for item in (held := await do(queue.claim, 12)):
        await do(item.fail, "no")
    operator = Inspector(make_app(app.settings.prefix))
    (view,) = await do(operator.queues.all)
    assert (view.name, view.counts.ready, view.counts.dead) == ("mail", 48, 12)
    assert [one.counts.ready for one in await do(operator.queues.all, ["mail"])] == [48]
    detail = await do(operator.queues.show, "mail", tenants=40)
    assert (detail.shards, detail.tenants, len(detail.largest)) == (3, 30, 30)
    assert (await do(operator.queues.show, "mail~1")).shards == 1
    page = await do(operator.queues.list_dead, "mail", 5, 5)
    assert (page.total, len(page.letters)) == (12, 5)
    assert (await do(operator.queues.count_dead, "mail")).count == 12
    assert (await do(operator.jobs.show_dead, held[0].id)).reason == "no"
    assert [one.done for one in await do(operator.jobs.requeue_dead, held[0].id)] == [True]
    assert await do(operator.queues.requeue_all_dead, "mail") == 11
    opened = await do(operator.queues.open, "mail")
    assert len(await do(opened.limits)) == 1
    await do(opened.set_limit, "one", Concurrency(4))
    assert (await do(queue.limits))[0].most == 4
    assert not await do(operator.queues.split, "mail", 4)
    assert (await do(operator.queues.show, "mail")).growing_from == 3
    assert await do(operator.queues.purge, "mail") == 60


@pytest.mark.parametrize("text", ["mail=3,raw=2", " mail = 3 "])
async def test_the_number_may_come_from_the_settings(monkeypatch: pytest.MonkeyPatch, text: str):
    monkeypatch.setenv("PENSTOCK_SHARDS", text)
    app = Penstock("unix:///nowhere")
    assert len(app.queue("mail").shards.current.known) == 3
    assert app.queue("mail~1").key("a") == app.queue("mail").shards.current.known[1].bindings.keys.user("a")
    monkeypatch.setenv("PENSTOCK_SHARDS", "mail=many")
    with pytest.raises(ConfigurationError, match=r"PENSTOCK_SHARDS: .* as in mail=8,raw=2"):
        Penstock("unix:///nowhere")


async def test_a_bulk_enqueue_takes_one_round_trip_to_each_node(
    app: Penstock, queue: Queue, do: Do, nodes: list[Any], monkeypatch: pytest.MonkeyPatch
):
    @app.task(queue="mail")
    def work(tenant: str, n: int) -> None: ...

    await do(app.enqueue_many, [work.using(tenant=tenant).call(tenant, 0) for tenant in TENANTS])
    pipelines = list[int]()
    send = parallel._send_pipeline

    async def counted(face: Any, node: Any, round_trips: Any, indexes: Any, **options: Any) -> Any:
        pipelines.append(len(indexes))
        return await send(face, node, round_trips, indexes, **options)

    monkeypatch.setattr(parallel, "_send_pipeline", counted)
    before = sum(map(commands, nodes))
    jobs = await do(app.enqueue_many, [work.using(tenant=tenant).call(tenant, n) for n in (1, 2) for tenant in TENANTS])
    assert sum(pipelines) == sum(map(commands, nodes)) - before == 3
    assert len(pipelines) == len(nodes)
    assert [job.id.partition(":")[0] for job in jobs[:30]] == [queue.shard_for(tenant).name for tenant in TENANTS]
    ran = list[tuple[str, int]]()
    while items := await do(queue.claim, 30):
        for item in items:
            ran.append((item.body[1]["tenant"], item.body[1]["n"]))
            await do(item.complete)
    assert len(ran) == 90
    for tenant in TENANTS:
        assert [n for name, n in ran if name == tenant] == [0, 1, 2]


async def test_a_pipeline_of_a_bulk_enqueue_is_bounded_as_one_call_is(
    app: Penstock, queue: Queue, do: Do, monkeypatch: pytest.MonkeyPatch
):
    @app.task(queue="mail")
    def work() -> None: ...

    sizes = list[tuple[int, int]]()
    send = sharded_enqueue._send_chunks

    def counted(shards: Any, chunks: Any, used: Any, *, durable: bool) -> Any:
        records = [record for chunk in chunks for _, record in chunk.drafts]
        sizes.append((len(records), len({Record(record).tenant for record in records})))
        return (yield from send(shards, chunks, used, durable=durable))

    await do(queue.check_shards)
    monkeypatch.setattr(sharded_enqueue, "_send_chunks", counted)
    await do(app.enqueue_many, [work.using(tenant=f"t{n % 400}").call() for n in range(1300)])
    assert len(sizes) > 1
    assert all(jobs <= 500 and tenants <= 250 for jobs, tenants in sizes)
    assert (await do(queue.count)).ready == 1300
    await do(queue.purge)
