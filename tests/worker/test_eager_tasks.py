"""A worker inside a program that uses `asyncio.eager_task_factory`, which starts each task before it returns it."""

import asyncio
import sys

import pytest

from penstock import Penstock
from tests.speed import scaled
from tests.worker.in_process import running_worker

JOBS = 30


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.12 brought eager tasks")
async def test_all_jobs_run_with_eager_tasks(app: Penstock):
    @app.task(queue="eager")
    async def work(number: int) -> int:
        if number % 3 == 0:
            await asyncio.sleep(0.002)
        return number

    loop = asyncio.get_running_loop()
    loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined,unused-ignore]
    try:
        async with running_worker(app):
            jobs = [await work.enqueue.aio(number) for number in range(JOBS)]
            assert [await job.result.aio(scaled(5)) for job in jobs] == list(range(JOBS))
    finally:
        loop.set_task_factory(None)
