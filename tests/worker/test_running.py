"""Which jobs a worker runs, how many at once and in which order, and that jobs are separate from each other."""

import asyncio
import contextvars
import threading
import time
from typing import Any

import pytest

from penstock import ConfigurationError, Penstock, Status, Task, Worker, WorkerSettings
from penstock.jobs.claims import Registration, TurnReply
from penstock.worker.feed import Feed
from tests.conftest import Time, until
from tests.speed import scaled
from tests.worker.in_process import run_burst, running_worker


class Gauge:
    """Counts how many are inside its block, and keeps the maximum."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.now = self.most = 0

    def __enter__(self) -> None:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.now -= 1


@pytest.mark.parametrize("concurrency", [1, 3, 10])
@pytest.mark.parametrize("kind", ["async def", "def"])
async def test_concurrency_is_reached_and_not_exceeded(app: Penstock, concurrency: int, kind: str):
    gauge = Gauge()

    @app.task(queue="q")
    async def on_the_loop() -> None:
        with gauge:
            await asyncio.sleep(0.02)

    @app.task(queue="q")
    def in_a_thread() -> None:
        with gauge:
            time.sleep(0.02)

    task = on_the_loop if kind == "async def" else in_a_thread
    await app.enqueue_many.aio(task.call() for _ in range(6 * concurrency))
    await run_burst(app, concurrency=concurrency)
    assert gauge.most == concurrency
    assert (await app.queue("q").count.aio()).completed == 6 * concurrency


async def test_async_and_threaded_tasks_share_the_runners(app: Penstock):
    gauge = Gauge()

    @app.task(queue="q")
    async def on_the_loop() -> None:
        with gauge:
            await asyncio.sleep(0.02)

    @app.task(queue="q")
    def in_a_thread() -> None:
        with gauge:
            time.sleep(0.02)

    await app.enqueue_many.aio(task.call() for _ in range(15) for task in (on_the_loop, in_a_thread))
    await run_burst(app, concurrency=4)
    assert gauge.most == 4


async def test_queues_are_served_in_strict_order(app: Penstock):
    order: list[str] = []

    @app.task(queue="first")
    async def first(n: int) -> None:
        order.append("first")
        if n:
            await first.enqueue.aio(n - 1)

    @app.task(queue="second")
    async def second() -> None:
        order.append("second")

    await app.enqueue_many.aio(second.call() for _ in range(5))
    await app.enqueue_many.aio(first.call(0) for _ in range(5))
    await run_burst(app, concurrency=1, queues=("first", "second"), prefetch=0)
    assert order == ["first"] * 5 + ["second"] * 5


@pytest.mark.parametrize("idle", [0, 3])
async def test_queues_that_are_not_named_take_turns(app: Penstock, idle: int):
    order: list[str] = []
    tasks: dict[str, Task[[str], None]] = {}
    for name in [f"a{n}" for n in range(idle)] + ["flooded", "quiet", "calm"]:  # idle queues do not change the shares

        @app.task(queue=name, name=name)
        async def note(queue: str) -> None:
            order.append(queue)

        tasks[name] = note

    flood = [tasks["flooded"].call("flooded") for _ in range(40)]
    others = [tasks[name].call(name) for name in ("quiet", "calm") for _ in range(5)]
    await app.enqueue_many.aio([*flood, *others])
    await run_burst(app, concurrency=1, prefetch=0)
    assert [order[:15].count(name) for name in ("flooded", "quiet", "calm")] == [5, 5, 5]
    assert len(order) == 50


async def test_a_burst_runs_jobs_that_its_last_job_enqueued_to_an_empty_queue(app: Penstock):
    done: list[int] = []

    @app.task(queue="first")
    async def ping(n: int) -> None:
        done.append(n)
        if n < 40:
            await pong.enqueue.aio(n + 1)

    @app.task(queue="second")
    async def pong(n: int) -> None:
        done.append(n)
        await ping.enqueue.aio(n + 1)

    await ping.enqueue.aio(0)
    await run_burst(app, queues=("first", "second"))
    assert done == list(range(41))


async def test_without_named_queues_a_worker_serves_every_queue_that_has_a_task(app: Penstock):
    @app.task(queue="a")
    def one() -> int:
        return 1

    @app.task(queue="b")
    def two() -> int:
        return 2

    jobs = [await one.enqueue.aio(), await two.enqueue.aio()]
    await run_burst(app)
    assert [await job.result.aio(0) for job in jobs] == [1, 2]


async def test_a_worker_serves_only_the_queues_it_was_given(app: Penstock):
    @app.task(queue="a")
    def one() -> None: ...

    @app.task(queue="b")
    def two() -> None: ...

    jobs = [await one.enqueue.aio(), await two.enqueue.aio()]
    await run_burst(app, queues=("b",))
    assert [await job.status.aio() for job in jobs] == [Status.READY, Status.COMPLETED]


def test_a_worker_without_any_queue_is_refused():
    app = Penstock("unix:///nowhere")
    with pytest.raises(ConfigurationError, match="no task is registered"):
        Worker(app)
    with pytest.raises(ConfigurationError, match="concurrency=0"):
        Worker(app, WorkerSettings(queues=("a",), concurrency=0))


async def test_urgent_jobs_run_first(app: Penstock):
    order: list[int] = []

    @app.task(queue="q")
    async def note(n: int) -> None:
        order.append(n)

    for priority in (9, 0, 5):
        await app.enqueue_many.aio(note.using(priority=priority).call(priority) for _ in range(3))
    await run_burst(app, concurrency=1)
    assert order == [0] * 3 + [5] * 3 + [9] * 3


async def test_two_workers_run_each_of_many_jobs_once(app: Penstock):
    runs: list[int] = []

    @app.task(queue="q")
    async def note(n: int) -> int:
        runs.append(n)
        return n

    async with running_worker(app, concurrency=20), running_worker(app, concurrency=20):
        await app.enqueue_many.aio(note.call(n) for n in range(3000))
        await until(lambda: len(runs) >= 3000, 60)
    assert sorted(runs) == list(range(3000))
    counts = await app.queue("q").count.aio()
    assert (counts.completed, counts.waiting, counts.running) == (3000, 0, 0)


async def test_jobs_enqueued_by_a_job_run_too(app: Penstock):
    @app.task(queue="q")
    async def countdown(n: int) -> None:
        if n:
            await countdown.enqueue.aio(n - 1)

    @app.task(queue="q")
    def countdown_in_a_thread(n: int) -> None:
        if n:
            countdown_in_a_thread.enqueue(n - 1)

    await countdown.enqueue.aio(10)
    await countdown_in_a_thread.enqueue.aio(10)
    await run_burst(app)
    assert (await app.queue("q").count.aio()).completed == 22


async def test_a_job_may_wait_for_the_result_of_another(app: Penstock):
    @app.task(queue="q")
    async def inner() -> int:
        return 7

    @app.task(queue="q")
    async def outer() -> int:
        job = await inner.enqueue.aio()
        return 1 + await job.result.aio(scaled(20))

    job = await outer.enqueue.aio()
    await run_burst(app, concurrency=2)
    assert await job.result.aio(0) == 8


seen: contextvars.ContextVar[str] = contextvars.ContextVar("seen", default="nothing")


@pytest.mark.parametrize("kind", ["async def", "def"])
async def test_a_job_does_not_see_the_context_of_another(app: Penstock, kind: str):
    @app.task(queue="q")
    async def on_the_loop() -> str:
        before = seen.get()
        seen.set("another job")
        await asyncio.sleep(0)
        return before

    @app.task(queue="q")
    def in_a_thread() -> str:
        before = seen.get()
        seen.set("another job")
        return before

    task: Any = on_the_loop if kind == "async def" else in_a_thread
    seen.set("the worker's")
    jobs = await app.enqueue_many.aio(task.call() for _ in range(30))
    await run_burst(app, concurrency=2)
    assert not {await job.result.aio(0) for job in jobs} & {"another job"}


async def test_a_delayed_job_does_not_keep_a_burst_waiting(app: Penstock, clock: Time):
    @app.task(queue="q")
    def note() -> None: ...

    await note.using(delay=60).enqueue.aio()
    await note.enqueue.aio()
    await run_burst(app)
    assert (await app.queue("q").count.aio()).completed == 1
    clock.advance(61)
    await run_burst(app)
    assert (await app.queue("q").count.aio()).completed == 2


async def test_a_burst_empties_a_long_backlog_of_due_and_cancelled_jobs(app: Penstock, clock: Time):
    @app.task(queue="q")
    async def note() -> None: ...

    await app.enqueue_many.aio(note.using(delay=1).call() for _ in range(500))
    for job in await app.enqueue_many.aio(note.using(tenant="t").call() for _ in range(500)):
        await job.cancel.aio()
    clock.advance(2)
    await run_burst(app, concurrency=5)
    assert (await app.queue("q").count.aio()).completed == 500


async def test_a_paused_queue_is_not_served_until_it_is_resumed(app: Penstock):
    @app.task(queue="q")
    async def note() -> int:
        return 1

    queue = app.queue("q")
    async with running_worker(app):
        await queue.pause.aio()
        job = await note.enqueue.aio()
        await asyncio.sleep(0.2)
        assert await job.status.aio() is Status.READY
        await queue.resume.aio()
        assert await job.result.aio(scaled(10)) == 1


async def test_an_expired_job_is_not_run(app: Penstock, clock: Time):
    runs: list[int] = []

    @app.task(queue="q")
    async def note() -> None:
        runs.append(1)

    job = await note.using(expires=5).enqueue.aio()
    clock.advance(6)
    await run_burst(app)
    assert not runs
    assert await job.status.aio() is Status.EXPIRED


async def test_thousands_of_tenants_that_end_together_are_all_settled(app: Penstock):
    @app.task(queue="q", result_ttl=0)
    async def pause(n: int) -> None:
        await asyncio.sleep(0.05)

    await app.enqueue_many.aio(pause.using(tenant=f"t{n}").call(n) for n in range(9000))
    await run_burst(app, concurrency=9000, wait=60)
    counts = await app.queue("q").count.aio()
    assert (counts.completed, counts.ready, counts.running, counts.lost) == (9000, 0, 0, 0)


async def test_a_wake_up_that_arrives_before_the_reply_is_not_forgotten(app: Penstock):
    feed = Feed(app.queue("q").first, lease=10, sleep=20, registration=Registration("host:1", 1))
    feed.turn(1)
    feed.wake_up("0")
    feed.answered(TurnReply(True), time.monotonic())
    assert feed.wake_at <= time.monotonic()
    feed.turn(1)
    feed.answered(TurnReply(True), time.monotonic())
    assert feed.wake_at > time.monotonic() + 10


async def test_a_worker_that_is_cancelled_hands_its_jobs_back_at_once(app: Penstock):
    begun = asyncio.Event()

    @app.task(queue="q")
    async def hold(n: int) -> None:
        begun.set()
        await asyncio.sleep(60 * (n == 1))

    job = await hold.enqueue.aio(1)
    run = asyncio.create_task(Worker(app).run())
    await asyncio.wait_for(begun.wait(), scaled(20))
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    (item,) = await app.queue("q").claim.aio(wait=20)
    assert item.id == job.id
    await item.complete.aio()


async def test_a_worker_that_is_woken_again_and_again_for_nothing_does_not_spin(app: Penstock):
    @app.task(queue="q")
    async def work() -> int:
        return 7

    async with running_worker(app) as worker:
        (feed,) = worker._feeds
        await until(lambda: not feed.awake)
        before, end = feed.turns, time.monotonic() + 1
        while time.monotonic() < end:
            feed.wake_up("0")
            await asyncio.sleep(0.001)
        assert feed.turns - before < 60
        job = await work.enqueue.aio()
        assert await job.result.aio(scaled(5)) == 7
