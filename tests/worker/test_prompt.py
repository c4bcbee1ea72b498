"""How soon: starts, settlements, wake-ups; and what an idle worker costs. Times have slack for a busy machine."""

import asyncio
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

from penstock import Penstock, Worker, WorkerSettings
from tests.conftest import MakeApp, commands, until
from tests.servers import Server
from tests.speed import Deadline, scaled
from tests.worker.work import at_work


async def completed(app: Penstock, n: int) -> None:
    """Wait until `n` jobs are."""
    deadline = Deadline(30)
    while (counts := await app.queue("q").count.aio()).completed < n:
        assert not deadline.passed(), counts
        await asyncio.sleep(0.005)


async def idle(raw: Any, app: Penstock, workers: int = 1) -> None:
    key = f"{app.queue('q').bindings.keys.base}sleepers"
    await until(lambda: raw.zcard(key) == workers)


async def round_trip(app: Penstock) -> float:
    """Seconds, at the median: what the machine makes of the least that can be asked."""
    took = []
    for _ in range(20):
        began = time.monotonic()
        await app.queue("q").count.aio()
        took.append(time.monotonic() - began)
    return statistics.median(took)


async def test_an_urgent_job_does_not_wait_behind_a_hoard(app: Penstock):
    """Mean duration 50 ms, prefetch 20 ms: it starts after the job that runs, not after those that wait."""
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
    overtook = []
    async with at_work(app, concurrency=1, stop_timeout=0.1):
        await completed(app, 5)
        for n in range(1, 6):
            await urgent.using(priority=0).enqueue.aio()
            asked = len(begun)
            await until(lambda n=n: len(begun_before) == n)  # type: ignore[misc]
            overtook.append(begun_before[-1] - asked)
            await asyncio.sleep(0.013 * n)
    assert statistics.median(overtook) <= 0
    assert max(overtook) <= 1  # a turn was on its way


async def test_short_jobs_are_claimed_ahead_so_that_turns_stay_large(app: Penstock, raw: Any):
    @app.task(queue="q")
    async def quick() -> None: ...

    await app.enqueue_many.aio(quick.call() for _ in range(3000))
    before = commands(raw)
    await asyncio.wait_for(Worker(app, WorkerSettings(burst=True, concurrency=10)).run(), scaled(60))
    assert commands(raw) - before < 3000 / 20


async def test_what_waits_behind_a_blocked_runner_is_handed_back(app: Penstock):
    release = asyncio.Event()

    @app.task(queue="q")
    async def quick() -> None: ...

    @app.task(queue="q")
    async def long() -> None:
        await release.wait()

    queue = app.queue("q")
    await app.enqueue_many.aio([*(quick.call() for _ in range(300)), long.call(), *(quick.call() for _ in range(50))])
    async with at_work(app, concurrency=1):
        await completed(app, 300)
        began = time.monotonic()
        while (counts := await queue.count.aio()).ready < 50:
            assert time.monotonic() - began < scaled(10), counts
            await asyncio.sleep(0.01)
        assert counts.running == 1
        (item,) = await queue.claim.aio()
        assert (item.attempts, item.deliveries, item.body[0]) == (0, 1, "quick")
        await item.complete.aio()
        release.set()
        await completed(app, 350)


async def test_a_result_is_there_while_other_jobs_still_run(app: Penstock):
    release = asyncio.Event()

    @app.task(queue="q")
    async def long() -> None:
        await release.wait()

    @app.task(queue="q")
    async def quick() -> float:
        return time.monotonic()

    async with at_work(app, concurrency=4):
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

    async with at_work(app):
        waits = []
        for _ in range(10):
            await idle(raw, app)
            asked = time.monotonic()
            job = await when.enqueue.aio()
            waits.append(await job.result.aio(scaled(20)) - asked)
        assert statistics.median(waits) < 0.03 + 10 * await round_trip(app)


async def test_a_delayed_job_starts_when_it_is_due_on_an_idle_worker(app: Penstock, raw: Any):
    late: list[float] = []

    @app.task(queue="q")
    async def when(due: float) -> None:
        late.append(time.monotonic() - due)

    async with at_work(app):
        await idle(raw, app)
        for delay in (0.5, 0.3, 0.4, 0.2, 0.25):
            await when.using(delay=delay).enqueue.aio(time.monotonic() + delay)
        await until(lambda: len(late) == 5)
        assert min(late) > -0.01
        assert statistics.median(late) < 0.05 + 10 * await round_trip(app)


async def test_of_two_idle_workers_one_is_woken(app: Penstock, raw: Any):
    @app.task(queue="q")
    async def nothing() -> None: ...

    async with at_work(app) as one, at_work(app) as other:
        both = 0
        for _ in range(7):
            await idle(raw, app, 2)
            before = [worker._feeds[0].turns for worker in (one, other)]
            job = await nothing.enqueue.aio()
            await job.result.aio(scaled(20))
            after = [worker._feeds[0].turns for worker in (one, other)]
            both += all(a > b for a, b in zip(after, before, strict=True))
            await asyncio.sleep(0.1)  # the witness, who looks after 50 ms, has looked
        assert both <= 3  # where one needs 50 ms to begin, the other looks rightly


async def test_an_idle_process_sends_at_most_two_commands_in_ten_seconds(
    make_app: MakeApp, start: Callable[..., Server]
):
    """The slow one: 20 s, for workers of one queue and of four, a waiting claim and a waiting result at once."""
    servers = [start() for _ in range(4)]
    apps = [Penstock(server.address) for server in servers]
    for app, queues in zip(apps, (["q"], ["a", "b", "c", "d"], ["q"], ["q"]), strict=True):
        for queue in queues:

            @app.task(queue=queue, name=queue)
            def nothing() -> None: ...

    async with at_work(apps[0]), at_work(apps[1]):
        claim = asyncio.create_task(apps[2].queue("q").claim.aio(wait=None))
        job = await apps[3].queue("q").put.aio(1)
        result = asyncio.create_task(job.result.aio())
        await asyncio.sleep(1)
        before = [commands(server.client) for server in servers]
        await asyncio.sleep(20)
        sent = [commands(server.client) - n for server, n in zip(servers, before, strict=True)]
        for task in (claim, result):
            task.cancel()
        await asyncio.wait([claim, result])
    for app in apps:
        await app.aclose()
    assert max(sent) <= 4, sent


async def test_a_busy_thread_delays_no_settlement_for_long(app: Penstock):
    release = threading.Event()

    @app.task(queue="q")
    def busy() -> None:
        end = time.monotonic() + 10
        while time.monotonic() < end and not release.is_set():
            sum(range(1000))

    @app.task(queue="q")
    async def quick() -> float:
        return time.monotonic()

    async with at_work(app, concurrency=4):
        await busy.enqueue.aio()
        job = await quick.enqueue.aio()
        finished = await job.result.aio(scaled(20))
        assert time.monotonic() - finished < scaled(3)
        release.set()
