"""A claim that waits: it is woken without polling, and leaves nothing when it is cancelled or interrupted."""

import asyncio
import time
from typing import Any

import pytest

from penstock import Penstock, Queue
from penstock.jobs.row import read_row
from tests.conftest import Apps, Do, MakeApp, commands, until
from tests.jobs.stand import idle_workers
from tests.servers import interrupt_when
from tests.speed import scaled


@pytest.fixture
def queue(app: Penstock) -> Queue:
    return app.queue("raw")


def sleepers(raw: Any, queue: Queue) -> int:
    return idle_workers(raw, queue.first.bindings.keys.base)


async def asleep(raw: Any, queue: Queue, n: int = 1) -> None:
    await until(lambda: sleepers(raw, queue) == n)


async def test_a_put_wakes_a_waiting_claim(queue: Queue, do: Do, raw: Any):
    waiting = asyncio.create_task(do(queue.claim, wait=10))
    await asleep(raw, queue)
    began = time.monotonic()
    await do(queue.put, "x")
    (item,) = await waiting
    assert time.monotonic() - began < scaled(5)
    assert item.body == "x"
    await do(item.complete)


async def test_a_claim_without_a_limit_waits_until_a_job_arrives(queue: Queue, do: Do, raw: Any):
    waiting = asyncio.create_task(do(queue.claim, 5, wait=None))
    await asleep(raw, queue)
    await do(queue.put_many, range(3))
    items = await waiting
    assert [item.body for item in items] == [0, 1, 2]
    for item in items:
        await do(item.complete)


async def test_a_claim_returns_nothing_when_its_time_is_over(queue: Queue, do: Do, raw: Any):
    began = time.monotonic()
    assert await do(queue.claim, wait=0.15) == []
    assert 0.15 <= time.monotonic() - began < scaled(5)
    assert sleepers(raw, queue) == 0


async def test_a_claim_that_finds_something_does_not_wait(queue: Queue, do: Do):
    await do(queue.put_many, range(2))
    began = time.monotonic()
    items = await do(queue.claim, 5, wait=10)
    assert len(items) == 2
    assert time.monotonic() - began < scaled(5)
    for item in items:
        await do(item.complete)


async def test_each_of_several_waiting_claims_gets_one(queue: Queue, do: Do, raw: Any):
    waiting = [asyncio.create_task(do(queue.claim, wait=10)) for _ in range(5)]
    await asleep(raw, queue, 5)
    began = time.monotonic()
    await do(queue.put_many, range(5))
    batches = await asyncio.gather(*waiting)
    assert time.monotonic() - began < scaled(5)
    assert sorted(item.body for (item,) in batches) == [0, 1, 2, 3, 4]
    for (item,) in batches:
        await do(item.complete)


async def test_a_delayed_job_wakes_a_waiting_claim_when_it_is_due(queue: Queue, do: Do, raw: Any):
    waiting = asyncio.create_task(do(queue.claim, wait=10))
    await asleep(raw, queue)
    began = time.monotonic()
    await do(queue.put, "x", delay=0.3)
    (item,) = await waiting
    assert 0.3 <= time.monotonic() - began < scaled(5)
    await do(item.complete)


async def test_an_earlier_job_wakes_a_claim_that_waits_for_a_later_one(queue: Queue, do: Do, raw: Any):
    await do(queue.put, "later", delay=60)
    waiting = asyncio.create_task(do(queue.claim, wait=10))
    await asleep(raw, queue)
    await do(queue.put, "sooner", delay=0.2)
    began = time.monotonic()
    (item,) = await waiting
    assert item.body == "sooner"
    assert time.monotonic() - began < scaled(5)
    await do(item.complete)


async def test_a_lease_that_runs_out_wakes_a_waiting_claim(queue: Queue, do: Do):
    await do(queue.put, "x")
    await do(queue.claim, lease=0.3)
    (item,) = await asyncio.wait_for(do(queue.claim, wait=10), scaled(5))
    assert item.deliveries == 2
    await do(item.complete)


async def test_a_released_or_retried_job_wakes_a_waiting_claim(queue: Queue, do: Do, raw: Any):
    await do(queue.put, "x")
    (item,) = await do(queue.claim)
    for verb, *arguments in (("release",), ("retry",), ("retry", 0.1)):
        waiting = asyncio.create_task(do(queue.claim, wait=10))
        await asleep(raw, queue)
        await do(getattr(item, str(verb)), *arguments)
        (item,) = await asyncio.wait_for(waiting, scaled(5))
    await do(item.complete)


async def test_a_requeued_dead_letter_wakes_a_waiting_claim(queue: Queue, do: Do, raw: Any):
    job = await do(queue.put, "x")
    (item,) = await do(queue.claim)
    await do(item.fail, "no")
    waiting = asyncio.create_task(do(queue.claim, wait=10))
    await asleep(raw, queue)
    await do(queue.dead.requeue, job.id)
    (again,) = await asyncio.wait_for(waiting, scaled(5))
    await do(again.complete)


async def test_resuming_a_queue_wakes_a_waiting_claim(queue: Queue, do: Do, raw: Any):
    await do(queue.pause)
    await do(queue.put, "x")
    waiting = asyncio.create_task(do(queue.claim, wait=10))
    await asleep(raw, queue)
    await do(queue.resume)
    (item,) = await asyncio.wait_for(waiting, scaled(5))
    await do(item.complete)


async def test_an_idle_claim_is_registered_for_longer_than_its_renewal_interval(queue: Queue, do: Do, raw: Any):
    waiting = asyncio.create_task(do(queue.claim, wait=60))
    await asleep(raw, queue)
    till = read_row(raw.hget(f"{queue.first.bindings.keys.base}meta", "row")).idle_until
    assert till / 1000 - time.time() > 2 * queue.settings.sleep
    await do(queue.put, "x")
    await do((await waiting)[0].complete)


async def test_a_waiting_claim_does_not_poll(make_app: MakeApp, do: Do, raw: Any, nodes: list[Any]):
    queue = make_app(ping_interval=0.3).queue("raw")
    waiting = [asyncio.create_task(do(queue.claim, wait=3)) for _ in range(3)]
    await asleep(raw, queue, 3)
    began, before = time.monotonic(), sum(map(commands, nodes))
    await asyncio.sleep(0.7)
    # A PING every 0.3 s, shared by all three.
    sent = sum(map(commands, nodes)) - before
    assert sent <= 1 + (time.monotonic() - began) / 0.3
    assert await asyncio.gather(*waiting) == [[], [], []]


# --- cancelled and interrupted ---


async def test_a_cancelled_claim_takes_nothing_and_leaves_nothing(queue: Queue, raw: Any):
    waiting = asyncio.create_task(queue.claim.aio(wait=None))
    await asleep(raw, queue)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert sleepers(raw, queue) == 0
    await queue.put.aio("x")
    (item,) = await queue.claim.aio()
    assert (item.body, item.deliveries) == ("x", 1)
    await item.complete.aio()


async def test_a_claim_cancelled_while_jobs_come_loses_none(queue: Queue):
    """At any moment: the jobs that it may have claimed return to the queue at once."""
    for n in range(30):
        waiting = asyncio.create_task(queue.claim.aio(3, wait=None if n % 2 else 0))
        for _ in range(n // 2):
            await asyncio.sleep(0)
        await queue.put_many.aio(range(3))
        waiting.cancel()
        await asyncio.wait([waiting])
        items = [] if waiting.cancelled() else waiting.result()
        while len(items) < 3:
            items += await queue.claim.aio(3, wait=1)
        assert sorted(item.body for item in items) == [0, 1, 2]
        for item in items:
            await item.complete.aio()
    assert (await queue.count.aio()).completed == 90


async def test_a_cancelled_claim_passes_on_a_wake_up_that_was_sent_to_it(queue: Queue, raw: Any):
    first = asyncio.create_task(queue.claim.aio(wait=10))
    await asleep(raw, queue, 1)
    second = asyncio.create_task(queue.claim.aio(wait=10))
    await asleep(raw, queue, 2)
    await queue.put.aio("x")
    second.cancel()  # it became idle last, so it is the one that is woken
    (item,) = await asyncio.wait_for(first, scaled(5))
    assert item.body == "x"
    await item.complete.aio()


def test_an_interrupted_claim_takes_nothing_and_leaves_nothing(apps: Apps, raw: Any):
    with apps.make() as app:
        queue = app.queue("raw")
        queue.count()
        with interrupt_when(lambda: sleepers(raw, queue)), pytest.raises(KeyboardInterrupt):
            queue.claim(wait=None)
        assert sleepers(raw, queue) == 0
        queue.put("x")
        (item,) = queue.claim()
        assert item.deliveries == 1
        item.complete()
