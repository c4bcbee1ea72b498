"""The app of the storm of limits and unique keys.

Runs note in a stream when they begin and end, so the server's order decides which of them were together. What a job
has done is a staged write: it counts only if this run completes the job.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from valkey.asyncio import Valkey

from penstock import Concurrency, Penstock, Rate, Retry, Settings, Unique, current

QUEUE = "limited"
POOL, PER_SECOND, BURST = 3, 20, 5
app = Penstock(
    os.environ.get("LIMIT_URL", "unix:///nowhere"), prefix="limits", settings=Settings(lease=1, sleep=1, result_ttl=0)
)
SEEN, DONE = app.queue(QUEUE).key("seen"), app.queue(QUEUE).key("done")


class Tasks(NamedTuple):
    charge: Any
    send: Any
    index: Any
    refresh: Any


def register(app: Penstock) -> Tasks:
    """The tasks, for the workers and for the test's own process."""

    @app.task(queue=QUEUE, limit=Concurrency(1, key="{account}"), retry=Retry(5, base=0.05, cap=0.1))
    async def charge(account: str, number: int) -> None:
        async with seen("charge=" + account):
            await asyncio.sleep(0.005)
        if number % 7 == 3 and current().attempt == 1:
            raise ValueError("the first attempt fails")
        current().stage.rpush(app.queue(QUEUE).key(f"charged:{account}"), number)

    @app.task(
        queue=QUEUE,
        limit=(Concurrency(POOL, key="{pool}", name="pool"), Rate(PER_SECOND, per=1, key="{pool}", burst=BURST)),
    )
    async def send(pool: str, number: int) -> None:
        async with seen("send=" + pool):
            await asyncio.sleep(0.05)
        current().stage.hincrby(DONE, f"send {pool} {number}")

    @app.task(queue=QUEUE, unique=Unique("{doc}"), limit=Concurrency(2))
    async def index(doc: str) -> None:
        async with seen("index="):
            await asyncio.sleep(0.02)
        current().stage.hincrby(DONE, f"index {doc}")

    @app.task(queue=QUEUE, unique=Unique("{doc}", until="start", replace=True))
    async def refresh(doc: str, number: int) -> None:
        await asyncio.sleep(0.02)
        current().stage.zadd(app.queue(QUEUE).key(f"refreshed:{doc}"), str(number), number)

    return Tasks(charge, send, index, refresh)


tasks = register(app)

clients: list[Any] = []


@app.on_start
async def connect() -> None:
    clients.append(Valkey.from_url(os.environ["LIMIT_URL"]))


@app.on_stop
async def disconnect() -> None:
    await clients.pop().aclose()


@contextlib.asynccontextmanager
async def seen(key: str) -> AsyncIterator[None]:
    """Notes that a run begins and ends."""
    run = {"key": key, "run": f"{current().id} {current().deliveries}", "worker": str(os.getpgid(0))}
    await clients[0].xadd(SEEN, run | {"what": "start"})
    yield
    await clients[0].xadd(SEEN, run | {"what": "end"})
