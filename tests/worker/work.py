"""A worker in this process, on this loop."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from penstock import Penstock, Worker, WorkerSettings
from tests.speed import scaled


@contextlib.asynccontextmanager
async def at_work(app: Penstock, **settings: Any) -> AsyncIterator[Worker]:
    """A worker runs the app's jobs meanwhile, and is stopped gracefully; its error is raised."""
    worker = Worker(app, WorkerSettings(**settings))
    run = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await asyncio.wait_for(run, scaled(30))


async def burst(app: Penstock, *, wait: float = 60, **settings: Any) -> Worker:
    """Work until nothing is ready any more; TimeoutError when that does not come about."""
    worker = Worker(app, WorkerSettings(burst=True, **settings))
    await asyncio.wait_for(worker.run(), scaled(wait))
    return worker
