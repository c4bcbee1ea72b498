"""A job that waits for another one in a worker that runs one job at a time: the log has a warning, once per task."""

import asyncio
import logging
from typing import Any

import pytest

from penstock import Penstock, Queue, Worker, WorkerSettings
from penstock.errors import ResultTimeout
from penstock.jobs import stalls
from tests.servers import Server
from tests.speed import scaled
from tests.worker import isolated_tasks
from tests.worker.in_process import run_burst


@pytest.fixture(autouse=True)
def nothing_was_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalls, "_warned", set())


@pytest.fixture
def other(app: Penstock) -> Queue:
    """Its jobs are not run."""
    return app.queue("other")


@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("is_def", [True, False])
async def test_a_wait_where_one_job_runs_is_warned_of_once(
    app: Penstock, other: Queue, caplog: pytest.LogCaptureFixture, concurrency: int, is_def: bool
):
    if is_def:

        @app.task(queue="q", name="wait")
        def wait_in_thread() -> None:
            with pytest.raises(ResultTimeout):
                other.put(1).result(0.05)

        await app.enqueue_many.aio([wait_in_thread.call(), wait_in_thread.call()])
    else:

        @app.task(queue="q", name="wait")
        async def wait() -> None:
            with pytest.raises(ResultTimeout):
                await (await other.put.aio(1)).result.aio(0.05)

        await app.enqueue_many.aio([wait.call(), wait.call()])
    await run_burst(app, concurrency=concurrency, queues=("q",))
    assert caplog.text.count("task wait waits for the result of job other:") == (1 if concurrency == 1 else 0)
    await other.purge.aio()


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_a_wait_in_an_isolated_run_is_warned_of_by_its_process(
    app: Penstock, server: Server, other: Queue, capfd: pytest.CaptureFixture[str], concurrency: int
):
    there: Any = isolated_tasks.wait_for_another
    task = app.task(queue="q", isolate=True, name=there.name)(there.__wrapped__)
    job = await task.enqueue.aio(server.address, app.settings.prefix)
    settings = WorkerSettings(burst=True, concurrency=concurrency)
    await asyncio.wait_for(Worker(app, settings, start_logging=logging.basicConfig).run(), scaled(60))
    assert await job.result.aio(0) == "timed out"
    assert capfd.readouterr().err.count("waits for the result of job other:") == (1 if concurrency == 1 else 0)
    await other.purge.aio()


async def test_a_result_that_is_there_or_a_job_that_runs_is_no_stall(
    app: Penstock, other: Queue, caplog: pytest.LogCaptureFixture
):
    done, runs = await other.put.aio(1), await other.put.aio(2)
    items = await other.claim.aio(2, lease=60)
    await items[0].complete.aio(1)

    @app.task(queue="q")
    async def ask() -> None:
        assert await done.result.aio(5) == 1
        with pytest.raises(ResultTimeout):
            await runs.result.aio(0.05)
        with pytest.raises(ResultTimeout):
            await (await other.put.aio(3)).result.aio(0)

    await ask.enqueue.aio()
    await run_burst(app, concurrency=1, queues=("q",))
    with pytest.raises(ResultTimeout):
        await (await other.put.aio(4)).result.aio(0.05)  # outside of a job
    assert "waits for the result" not in caplog.text
    await items[1].complete.aio()
    await other.purge.aio()
