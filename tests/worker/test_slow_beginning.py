"""A process whose predecessor was killed at work begins with one runner, so that killers meet few other jobs."""

import asyncio
import os
import time

import pytest

from penstock import Penstock, WorkerSettings
from penstock.worker.runs import DOUBLING
from penstock.worker.shared_status import SharedStatus
from penstock.worker.worker import Worker
from tests.speed import scaled


@pytest.mark.parametrize("begins_slowly", [True, False])
async def test_the_successor_of_a_killed_process_adds_its_runners_little_by_little(app: Penstock, begins_slowly: bool):
    starts: list[float] = []

    @app.task(queue="q")
    async def nap() -> None:
        starts.append(time.monotonic())
        await asyncio.sleep(1)

    await app.enqueue_many.aio(nap.call() for _ in range(20))
    status, child_end = SharedStatus.create(1, 20, begins_slowly=begins_slowly)
    worker = Worker(app, WorkerSettings(concurrency=20, burst=True))
    worker._share_status(SharedStatus(os.dup(status.fd), child_end))
    await worker.run()
    status.close()
    after = [one - starts[0] for one in starts]
    assert len(after) == 20
    if begins_slowly:
        assert all(after[2**n] >= n * DOUBLING + 0.9 * DOUBLING for n in range(5)), "1, 2, 4, 8, 16 runners"
    assert after[-1] < scaled(0.5)
