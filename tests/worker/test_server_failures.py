"""The server restarts, loses its scripts, drops connections, or is frozen: no job is lost, and the worker continues."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable

import anyio.to_thread
import pytest

from penstock import Penstock, Settings
from penstock.errors import ServerUnavailable
from tests.conftest import until
from tests.servers import Server
from tests.speed import scaled
from tests.worker.in_process import run_burst, running_worker

PERSISTENT = ("--appendonly", "yes")


async def test_a_server_restart_under_a_worker_loses_no_job(
    start: Callable[..., Server], caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)
    server = start(*PERSISTENT)
    app = Penstock(server.address)
    runs: Counter[int] = Counter()

    @app.task(queue="q")
    async def note(n: int) -> int:
        runs[n] += 1
        await asyncio.sleep(0.005)
        return n

    jobs = await app.enqueue_many.aio(note.call(n) for n in range(600))
    async with running_worker(app, concurrency=10):
        for at in (100, 300):
            await until(lambda at=at: len(runs) >= at)  # type: ignore[misc]
            await anyio.to_thread.run_sync(server.restart, 0.1)
        assert [await job.result.aio(scaled(30)) for job in jobs] == list(range(600))
        job = await note.enqueue.aio(1000)
        assert await job.result.aio(scaled(20)) == 1000
    # Jobs that were claimed when the server stopped may run again, but are counted once.
    assert runs.total() <= 601 + 2 * 40
    counts = await app.queue("q").count.aio()
    assert (counts.completed, counts.waiting, counts.running, counts.dead) == (601, 0, 0, 0)
    await app.aclose()


async def test_a_worker_waits_for_a_server_that_is_away_for_long(
    start: Callable[..., Server], caplog: pytest.LogCaptureFixture
):
    server = start(*PERSISTENT)
    app = Penstock(server.address, settings=Settings(give_up_after=0.1))
    started, release = asyncio.Event(), asyncio.Event()

    @app.task(queue="q")
    async def task() -> int:
        started.set()
        await release.wait()
        return 7

    caplog.set_level(logging.INFO)
    async with running_worker(app):
        job = await task.enqueue.aio()
        await until(started.is_set)
        server.kill()
        release.set()
        await until(lambda: "the server does not answer, trying again" in caplog.text)
        server.start()
        assert await job.result.aio(scaled(30)) == 7
        assert "the server answers again" in caplog.text
    assert (await app.queue("q").count.aio()).completed == 1
    await app.aclose()


async def test_a_worker_that_finds_no_server_raises(start: Callable[..., Server]):
    server = start()
    app = Penstock(server.address, settings=Settings(give_up_after=0.1))
    server.kill()

    @app.task(queue="q")
    async def task() -> None: ...

    with pytest.raises(ServerUnavailable, match="no server answers at unix:"):
        await run_burst(app)
    server.start()
    await app.aclose()


async def test_flushed_scripts_and_killed_connections_under_load_lose_no_job(start: Callable[..., Server]):
    server = start()
    app = Penstock(server.address)
    runs: Counter[int] = Counter()

    @app.task(queue="q")
    async def note(n: int) -> int:
        runs[n] += 1
        return n

    @app.task(queue="q")
    def note_in_a_thread(n: int) -> int:
        runs[n] += 1
        return n

    async def fail_again_and_again() -> None:
        while True:
            server.client.script_flush()
            server.client.client_kill_filter(_type="normal", skipme=True)
            await asyncio.sleep(0.02)

    async with running_worker(app, concurrency=10):
        failures = asyncio.create_task(fail_again_and_again())
        jobs = []
        for batch in range(10):
            task = note_in_a_thread if batch % 2 else note
            jobs += await app.enqueue_many.aio(task.call(n) for n in range(batch * 200, batch * 200 + 200))
        assert [await job.result.aio(scaled(60)) for job in jobs] == list(range(2000))
        failures.cancel()
        await asyncio.wait([failures])
    assert runs == Counter(range(2000))
    counts = await app.queue("q").count.aio()
    assert (counts.completed, counts.waiting, counts.running, counts.lost) == (2000, 0, 0, 0)
    await app.aclose()


async def test_a_worker_waits_for_a_frozen_server(start: Callable[..., Server]):
    server = start()
    app = Penstock(server.address, settings=Settings(lease=0.5, reply_timeout=0.3))
    runs: Counter[int] = Counter()

    @app.task(queue="q")
    async def note(n: int) -> int:
        runs[n] += 1
        await asyncio.sleep(0.01)
        return n

    async with running_worker(app, concurrency=5):
        jobs = await app.enqueue_many.aio(note.call(n) for n in range(200))
        await until(lambda: len(runs) >= 50)
        with server.frozen():
            await asyncio.sleep(1)
        assert [await job.result.aio(scaled(30)) for job in jobs] == list(range(200))
    counts = await app.queue("q").count.aio()
    assert (counts.completed, counts.waiting, counts.running) == (200, 0, 0)
    await app.aclose()


async def test_a_full_server_lets_running_work_finish(start: Callable[..., Server]):
    server = start()
    app = Penstock(server.address)
    release = asyncio.Event()

    @app.task(queue="q")
    async def task(n: int) -> int:
        await release.wait()
        return n

    jobs = await app.enqueue_many.aio(task.call(n) for n in range(50))
    async with running_worker(app, concurrency=5) as worker:
        await until(lambda: len(worker._runs.running) == 5)
        server.client.config_set("maxmemory", 1)
        release.set()
        assert [await job.result.aio(scaled(20)) for job in jobs] == list(range(50))
    server.client.config_set("maxmemory", 0)
    assert (await app.queue("q").count.aio()).completed == 50
    await app.aclose()
