"""An operator asks a worker to claim no more jobs, or to stop."""

import asyncio
import os
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from penstock import Penstock
from penstock.errors import PenstockError
from penstock.info import WorkerInfo
from penstock.ops.inspect import Inspector
from penstock.settings import MiB, WorkerSettings
from penstock.worker.processes import resident_bytes
from penstock.worker.worker import Worker
from tests.conftest import MakeApp, until
from tests.speed import Deadline, scaled
from tests.worker.in_process import running_worker


async def test_a_quiet_worker_finishes_its_jobs_and_claims_no_more(app: Penstock):
    ask, go = Inspector(app), asyncio.Event()

    @app.task(queue="q")
    async def work(n: int) -> int:
        await go.wait()
        return n

    async with running_worker(app, concurrency=1) as worker:
        first, second = [await work.enqueue.aio(n) for n in range(2)]
        await until(lambda: bool(worker._runs.running))
        request = await ask.workers.quiet.aio(worker.name)
        assert (request.name, request.queues, request.notified) == (worker.name, ["q"], True)
        await until(lambda: worker._quiet)
        (shown,) = await ask.workers.all.aio("q")
        assert (shown.asked, shown.held, shown.lease > 0) == ("quiet", 1, True)
        go.set()
        assert await first.result.aio(timeout=scaled(10)) == 0
        await asyncio.sleep(0.3)
        assert (await app.queue("q").count.aio()).ready == 1
        async with running_worker(app, concurrency=1) as other:
            assert other.name == worker.name, "both are in this process"
            assert await second.result.aio(timeout=scaled(10)) == 1


async def shown_worker(ask: Inspector, condition: Callable[[WorkerInfo], bool]) -> WorkerInfo:
    """The worker of the queue, as soon as it meets the condition."""
    deadline = Deadline(30)
    while True:
        for one in await ask.workers.all.aio("q"):
            if condition(one):
                return one
        assert not deadline.passed(), "it did not happen in time"
        await asyncio.sleep(0.02)


async def test_the_memory_of_a_worker_is_known_while_it_works(make_app: MakeApp):
    app = make_app(lease=1.5)
    ask, go = Inspector(app), asyncio.Event()

    @app.task(queue="q")
    async def work() -> None:
        await go.wait()

    async with running_worker(app, concurrency=1) as worker:
        await work.enqueue.aio()
        await until(lambda: bool(worker._runs.running))
        (shown,) = await ask.workers.all.aio("q")
        assert shown.memory is not None
        assert abs(shown.memory - resident_bytes()) < 64 * MiB
        before, held = shown.memory, bytearray(os.urandom(80 * MiB))
        # By a heartbeat: the worker takes no turn meanwhile.
        await shown_worker(ask, lambda one: one.memory is not None and one.memory - before > 60 * MiB)
        del held
        go.set()
        assert (await ask.workers.show.aio(worker.name)).registrations[0].memory
        assert (await ask.history.usage.aio("q")).memory


async def test_the_memory_is_unknown_on_systems_that_do_not_report_it(app: Penstock, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("penstock.worker.feed.resident_kib", lambda: 0)
    await app.queue("q").put.aio(1)
    async with running_worker(app, queues=("q",)):
        ask = Inspector(app)
        shown = await shown_worker(ask, lambda one: True)
        assert shown.memory is None
        assert (await ask.history.usage.aio("q")).memory is None


async def test_the_name_of_a_worker_is_a_text(app: Penstock):
    await app.queue("q").put.aio(1)
    ask: Any = Inspector(app).workers
    for verb in ("quiet", "stop", "show"):
        with pytest.raises(ValueError, match=rf"{verb}\(name=5\): the name of a worker"):
            await getattr(ask, verb).aio(5)


async def test_a_process_that_retires_is_quiet_already_and_still_ends(app: Penstock):
    go = asyncio.Event()

    @app.task(queue="q")
    async def work() -> None:
        await go.wait()

    worker = Worker(app, WorkerSettings(concurrency=1, max_jobs=1))
    run = asyncio.create_task(worker.run())
    job = await work.enqueue.aio()
    await until(lambda: worker._retiring)
    deadline, ask = Deadline(30), Inspector(app)
    while not (await ask.workers.quiet.aio(worker.name)).notified:  # its first job may start before it listens
        assert not deadline.passed(), "no request has reached the worker"
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.2)
    go.set()
    try:
        await asyncio.wait_for(asyncio.shield(run), scaled(5))
    finally:
        worker.stop()
        await run
    assert str(await job.status.aio()) == "completed"


async def test_a_quiet_worker_stays_registered(make_app: MakeApp):
    app, lease = make_app(lease=0.6), 0.6
    ask = Inspector(app)

    @app.task(queue="q")
    async def work(n: int) -> int:
        return n

    async with running_worker(app) as worker:
        await until(lambda: not worker._can_claim())
        await ask.workers.quiet.aio(worker.name)
        await until(lambda: worker._quiet)
        job = await work.enqueue.aio(1)
        await asyncio.sleep(3 * lease)
        (shown,) = await ask.workers.all.aio("q")
        assert (shown.asked, shown.lease > 0) == ("quiet", True)
        assert str(await job.status.aio()) == "ready"


async def test_a_worker_stops_when_it_is_asked_and_hands_nothing_back(app: Penstock):
    ask = Inspector(app)

    @app.task(queue="q")
    async def work(n: int) -> int:
        await asyncio.sleep(0.2)
        return n

    worker = Worker(app, WorkerSettings())
    run = asyncio.create_task(worker.run())
    job = await work.enqueue.aio(1)
    await until(lambda: bool(worker._runs.running))
    for _ in range(2):  # a second request is not a second Ctrl-C
        await ask.workers.stop.aio(worker.name)
    with anyio.fail_after(scaled(20)):
        await run
    assert await job.result.aio(timeout=0) == 1
    assert await ask.workers.all.aio("q") == []


async def test_an_idle_worker_stops_when_it_is_asked(app: Penstock):
    ask = Inspector(app)

    @app.task(queue="q")
    async def work(n: int) -> None: ...

    @app.task(queue="r")
    async def other(n: int) -> None: ...

    worker = Worker(app, WorkerSettings())
    run = asyncio.create_task(worker.run())
    await until(lambda: worker._feeds[0].turns > 0 and not worker._can_claim())
    request = await ask.workers.stop.aio(worker.name)
    assert set(request.queues) <= {"q", "r"}
    with anyio.fail_after(scaled(20)):
        await run


async def test_an_unknown_worker_is_an_error_that_names_others(app: Penstock):
    @app.task(queue="q")
    async def work(n: int) -> None: ...

    async with running_worker(app) as worker:
        await until(lambda: worker._feeds[0].turns > 0 and not worker._can_claim())
        with pytest.raises(PenstockError, match=f"there is {worker.name}"):
            await Inspector(app).workers.quiet.aio("nowhere:1")
        with pytest.raises(PenstockError, match="no worker ''"):
            await Inspector(app).workers.stop.aio("")


async def test_several_workers_are_asked_in_one_search_and_none_if_one_is_unknown(app: Penstock):
    @app.task(queue="q")
    async def work() -> None: ...

    job = await work.enqueue.aio()
    ask = Inspector(app).workers
    async with running_worker(app, concurrency=1) as worker:
        await job.result.aio(timeout=scaled(10))  # it is registered since it has claimed the job
        with pytest.raises(PenstockError, match="no worker 'nowhere:1'"):
            await ask.ask.aio([worker.name, "nowhere:1"], "quiet")
        assert not worker._quiet
        (request,) = await ask.ask.aio([worker.name], "quiet")
        assert (request.name, request.notified) == (worker.name, True)


async def test_a_page_that_ends_before_a_queue_says_that_there_may_be_more(app: Penstock):
    go = asyncio.Event()

    @app.task(queue="a")
    async def first() -> None:
        await go.wait()

    @app.task(queue="b")
    async def second() -> None:
        await go.wait()

    async with running_worker(app, concurrency=2) as worker:
        await first.enqueue.aio()
        await second.enqueue.aio()
        await until(lambda: len(worker._runs.running) == 2)
        shown = Inspector(app).workers.show
        page = (await shown.aio(worker.name, limit=1)).jobs
        assert (len(page.jobs), page.cursor is None) == (1, False)
        page = (await shown.aio(worker.name, limit=2)).jobs
        assert (len(page.jobs), page.cursor) == (2, None)
        go.set()
