"""Removing an empty queue: every key is gone, and one that is not empty stays as it is."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import Concurrency, Penstock, Rate, Retry, Unique, current, sleep, step
from penstock.errors import PenstockError
from penstock.ops.inspect import Inspector
from tests.conftest import Do, MakeApp
from tests.everywhere import face, place  # noqa: F401 - fixtures
from tests.worker.in_process import run_burst


def keys_of(app: Penstock, nodes: list[Any], queue: str = "q") -> set[str]:
    """The keys of a queue, but for those that recognise repeated calls for a minute or two."""
    start = f"{{{app.settings.prefix}:{queue}"
    found = {key.decode() for node in nodes for key in node.scan_iter(match=f"{start}*", count=1000)}
    return {key for key in found if key.partition("}:")[2].partition(":")[0] not in ("replay", "settled", "receipts")}


async def use_everything(app: Penstock) -> None:
    """Leave in a queue what jobs of all kinds leave, and no job."""
    queue = app.queue("q")

    @app.task(queue="q", limit=[Concurrency(1, key="{n}"), Rate(1, per=3600, key="{n}")], retry=Retry(0))
    async def limited(n: int) -> int:
        return 1 // n

    @app.task(queue="q", unique=Unique("{n}", throttle=3600))
    async def throttled(n: int) -> None:
        current().log("line")
        await step(nothing)

    async def nothing() -> None: ...

    @app.task(queue="q")
    async def nap() -> None:
        await sleep(days=1)

    jobs = [await limited.enqueue.aio(n) for n in (0, 1, 1)]
    await throttled.enqueue.aio(1)
    asleep = await nap.enqueue.aio()
    total = await nap.using(after=jobs[1]).enqueue.aio()
    await run_burst(app)
    for tenant in ("acme", "bo"):
        await queue.tenant(tenant).weigh.aio(3)
        await queue.pause.aio(tenant=tenant)
        await queue.put_many.aio(range(3), tenant=tenant, priority=2)
    await queue.keep.aio(results=100)
    await queue.pause.aio()
    for job in (asleep, total):
        await job.cancel.aio()
    await queue.purge.aio()
    await Inspector(app).queues.remove_all_dead.aio("q")


async def test_every_key_of_an_empty_queue_is_gone(app: Penstock, do: Do, nodes: list[Any], raw: Any):
    await use_everything(app)
    mine = app.queue("q").key("mine")
    raw.set(mine, 1)
    assert len(keys_of(app, nodes)) > 5
    await do(Inspector(app).queues.remove, "q")
    assert keys_of(app, nodes) == {mine}
    raw.delete(mine)
    assert "q" not in await do(Inspector(app).queues.names)


async def test_the_method_of_a_queue_leaves_only_what_has_a_time_to_live(app: Penstock, do: Do, raw: Any, nodes: Any):
    await use_everything(app)
    await do(app.queue("q").remove)
    assert [key for key in keys_of(app, nodes) if raw.ttl(key) < 0] == []
    job = await app.queue("q").put.aio(1)
    assert (await app.queue("q").count.aio()).entered == 1
    await job.cancel.aio()


async def test_the_arguments_of_ended_jobs_go_with_their_queue(app: Penstock, do: Do, nodes: list[Any]):
    queue = app.queue("q")
    await do(queue.keep, arguments=True)
    for n in range(200):  # their rows are in several blocks
        await queue.put.aio(n, tags=["x" * 60])
        for item in await queue.claim.aio():
            await item.complete.aio()
    assert len([key for key in keys_of(app, nodes) if "arguments:" in key]) > 1
    await do(queue.remove)
    assert [key for key in keys_of(app, nodes) if "arguments:" in key] == []


@pytest.mark.parametrize("state", ["ready", "delayed", "running", "dead", "parked", "schedules"])
async def test_a_queue_that_is_not_empty_stays_as_it_is(app: Penstock, do: Do, nodes: list[Any], state: str):
    queue = app.queue("q")
    if state == "parked":
        await queue.pause.aio(tenant="acme")
    if state == "schedules":

        @app.task(queue="q")
        async def tidy() -> None: ...

        await app.schedules.add.aio("hourly", tidy.call(), every=3600)
    else:
        await queue.put.aio(1, delay=60 if state == "delayed" else 0, tenant="acme")
    if state in ("running", "dead"):
        (item,) = await queue.claim.aio()
        if state == "dead":
            await item.fail.aio("broken")
    before = keys_of(app, nodes)
    for remove, args in ((queue.remove, ()), (Inspector(app).queues.remove, ("q",))):
        with pytest.raises(PenstockError, match=f"queue q is not empty: 1 {state}.*; nothing was removed"):
            await do(remove, *args)
    assert keys_of(app, nodes) == before
    if state == "running":
        await item.complete.aio()


async def test_a_queue_with_shards_is_removed_whole_or_not_at_all(make_app: MakeApp, do: Do, nodes: list[Any]):
    app = make_app()
    queue = app.queue("q", shards=3)
    jobs = [await queue.put.aio(1, tenant=tenant) for tenant in "abcdef"]
    with pytest.raises(PenstockError, match="6 ready"):
        await do(queue.remove)
    await queue.purge.aio()
    await do(Inspector(app).queues.remove, "q")
    assert keys_of(app, nodes) == set()
    job = await queue.put.aio(2, tenant="a")
    assert await job.status.aio() == "ready"
    assert len(jobs) == 6
    await queue.purge.aio()


async def test_a_live_worker_and_an_unknown_queue_are_refused(app: Penstock, do: Do):
    with pytest.raises(PenstockError, match="no queue 'q'"):
        await do(Inspector(app).queues.remove, "q")
    queue = app.queue("q")
    await queue.put.aio(1)
    (item,) = await queue.claim.aio()
    with pytest.raises(PenstockError, match="1 running, 1 live workers"):
        await do(queue.remove)
    await item.complete.aio()
    await do(queue.remove)
    await do(queue.remove)  # a second copy of the call changes nothing
