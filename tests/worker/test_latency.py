"""How soon jobs start, settle and wake a worker, and how many commands an idle worker sends."""

import asyncio
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

from penstock import Penstock, Worker, WorkerSettings
from tests.conftest import MakeApp, commands, until
from tests.jobs.stand import idle_workers
from tests.servers import Server
from tests.speed import Deadline, scaled
from tests.worker.in_process import running_worker


async def completed(app: Penstock, n: int) -> None:
    """Wait until `n` jobs have completed."""
    deadline = Deadline(30)
    while (counts := await app.queue("q").count.aio()).completed < n:
        assert not deadline.passed(), counts
        await asyncio.sleep(0.005)


async def registered_idle(raw: Any, app: Penstock, workers: int = 1) -> None:
    base = app.queue("q").first.bindings.keys.base
    await until(lambda: idle_workers(raw, base) == workers)


def pings(client: Any) -> int:
    """How many PINGs a server has received so far."""
    sent: int = client.info("commandstats").get("cmdstat_ping", {"calls": 0})["calls"]
    return sent


async def round_trip(app: Penstock) -> float:
    """The median time in seconds of the simplest call: a measure of the machine."""
    took = []
    for _ in range(20):
        began = time.monotonic()
        await app.queue("q").count.aio()
        took.append(time.monotonic() - began)
    return statistics.median(took)


async def test_an_urgent_job_does_not_wait_behind_prefetched_jobs(app: Penstock):
    """With a mean duration of 50 ms and 20 ms of prefetch it starts after the job that runs, before those that wait."""
    begun: list[float] = []
    begun_before: list[int] = []

    @app.task(queue="q")
    async def slow() -> None:
        begun.append(time.monotonic())
        await asyncio.sleep(0.05)

    @app.task(queue="q")
    async def urgent() -> None:
        begun_before.append(len(begun))

    await app.enqueue_many.aio(slow.call() for _ in range(60))
    started_first = []
    async with running_worker(app, concurrency=1, stop_timeout=0.1):
        await completed(app, 5)
        for n in range(1, 6):
            await urgent.using(priority=0).enqueue.aio()
            begun_at_enqueue = len(begun)
            await until(lambda n=n: len(begun_before) == n)  # type: ignore[misc]
            started_first.append(begun_before[-1] - begun_at_enqueue)
            await asyncio.sleep(0.013 * n)
    assert statistics.median(started_first) <= 0
    assert max(started_first) <= 1  # one job may start first if its turn was sent before the urgent job arrived


async def test_short_jobs_are_prefetched_so_that_turns_stay_large(app: Penstock, raw: Any):
    @app.task(queue="q")
    async def quick() -> None: ...

    await app.enqueue_many.aio(quick.call() for _ in range(3000))
    before = commands(raw)
    await asyncio.wait_for(Worker(app, WorkerSettings(burst=True, concurrency=10)).run(), scaled(60))
    assert commands(raw) - before < 3000 / 20


async def test_prefetched_jobs_behind_a_blocked_runner_are_handed_back(app: Penstock):
    release = asyncio.Event()

    @app.task(queue="q")
    async def quick() -> None: ...

    @app.task(queue="q")
    async def long() -> None:
        await release.wait()

    queue = app.queue("q")
    await app.enqueue_many.aio([*(quick.call() for _ in range(300)), long.call(), *(quick.call() for _ in range(50))])
    async with running_worker(app, concurrency=1):
        await completed(app, 300)
        began = time.monotonic()
        while (counts := await queue.count.aio()).ready < 50:
            assert time.monotonic() - began < scaled(10), counts
            await asyncio.sleep(0.01)
        assert counts.running == 1
        (item,) = await queue.claim.aio()
        assert (item.attempt, item.deliveries, item.body[0]) == (1, 1, "quick")
        await item.complete.aio()
        release.set()
        await completed(app, 350)


async def test_a_result_is_available_while_other_jobs_still_run(app: Penstock):
    release = asyncio.Event()

    @app.task(queue="q")
    async def long() -> None:
        await release.wait()

    @app.task(queue="q")
    async def quick() -> float:
        return time.monotonic()

    async with running_worker(app, concurrency=4):
        await app.enqueue_many.aio(long.call() for _ in range(3))
        waits = []
        for _ in range(10):
            job = await quick.enqueue.aio()
            finished = await job.result.aio(scaled(20))
            waits.append(time.monotonic() - finished)
        release.set()
        assert statistics.median(waits) < 0.03 + 10 * await round_trip(app)


async def test_a_job_starts_at_once_on_an_idle_worker(app: Penstock, raw: Any):
    @app.task(queue="q")
    async def when() -> float:
        return time.monotonic()

    async with running_worker(app):
        waits = []
        for _ in range(10):
            await registered_idle(raw, app)
            asked = time.monotonic()
            job = await when.enqueue.aio()
            waits.append(await job.result.aio(scaled(20)) - asked)
        assert statistics.median(waits) < 0.03 + 10 * await round_trip(app)


async def test_a_delayed_job_starts_when_it_is_due_on_an_idle_worker(app: Penstock, raw: Any):
    late: list[float] = []

    @app.task(queue="q")
    async def when(due: float) -> None:
        late.append(time.monotonic() - due)

    async with running_worker(app):
        await registered_idle(raw, app)
        for delay in (0.5, 0.3, 0.4, 0.2, 0.25):
            await when.using(delay=delay).enqueue.aio(time.monotonic() + delay)
        await until(lambda: len(late) == 5)
        assert min(late) > -0.01
        assert statistics.median(late) < 0.05 + 10 * await round_trip(app)


async def test_only_one_of_two_idle_workers_is_woken(app: Penstock, raw: Any):
    @app.task(queue="q")
    async def nothing() -> None: ...

    async with running_worker(app) as one, running_worker(app) as other:
        both = 0
        for _ in range(7):
            await registered_idle(raw, app, 2)
            before = [worker._feeds[0].turns for worker in (one, other)]
            job = await nothing.enqueue.aio()
            await job.result.aio(scaled(20))
            after = [worker._feeds[0].turns for worker in (one, other)]
            both += all(a > b for a, b in zip(after, before, strict=True))
            await asyncio.sleep(0.1)  # after 50 ms the second worker checks whether the first one has acted
        assert both <= 3  # if the first worker needs more than 50 ms to act, the second one takes a turn too


async def test_an_idle_process_sends_at_most_two_commands_in_ten_seconds_and_one_ping_in_five(
    make_app: MakeApp, start: Callable[..., Server]
):
    """Takes 20 s: workers of one queue and of four queues, a waiting claim and a waiting result, all at once."""
    servers = [start() for _ in range(4)]
    apps = [Penstock(server.address) for server in servers]
    for app, queues in zip(apps, (["q"], ["a", "b", "c", "d"], ["q"], ["q"]), strict=True):
        for queue in queues:

            @app.task(queue=queue, name=queue)
            def nothing() -> None: ...

    async with running_worker(apps[0]), running_worker(apps[1]):
        claim = asyncio.create_task(apps[2].queue("q").claim.aio(wait=None))
        job = await apps[3].queue("q").put.aio(1)
        result = asyncio.create_task(job.result.aio())
        await asyncio.sleep(1)
        before = [(commands(server.client), pings(server.client)) for server in servers]
        await asyncio.sleep(20)
        after = [(commands(server.client), pings(server.client)) for server in servers]
        for task in (claim, result):
            task.cancel()
        await asyncio.wait([claim, result])
    for app in apps:
        await app.aclose()
    for (commands_before, pings_before), (commands_after, pings_after) in zip(before, after, strict=True):
        sent = pings_after - pings_before
        assert sent <= 4
        assert commands_after - commands_before - sent <= 4


async def test_a_busy_thread_does_not_delay_settlements_for_long(app: Penstock):
    release = threading.Event()

    @app.task(queue="q")
    def busy() -> None:
        end = time.monotonic() + 10
        while time.monotonic() < end and not release.is_set():
            sum(range(1000))

    @app.task(queue="q")
    async def quick() -> float:
        return time.monotonic()

    async with running_worker(app, concurrency=4):
        await busy.enqueue.aio()
        job = await quick.enqueue.aio()
        finished = await job.result.aio(scaled(20))
        assert time.monotonic() - finished < scaled(3)
        release.set()
