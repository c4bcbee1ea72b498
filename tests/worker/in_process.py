"""A worker in the test's own process, on its event loop."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from penstock import Penstock, Worker, WorkerSettings
from tests.speed import scaled


@contextlib.asynccontextmanager
async def running_worker(app: Penstock, **settings: Any) -> AsyncIterator[Worker]:
    """A worker that runs the app's jobs during the block. It is stopped gracefully at the end; its error is raised."""
    worker = Worker(app, WorkerSettings(**settings))
    run = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await asyncio.wait_for(run, scaled(30))


async def run_burst(app: Penstock, *, wait: float = 60, **settings: Any) -> Worker:
    """Run a worker until no job is ready any more. Raises TimeoutError if that takes longer than `wait` seconds."""
    worker = Worker(app, WorkerSettings(burst=True, **settings))
    await asyncio.wait_for(worker.run(), scaled(wait))
    return worker
