"""The app of the storm of token budgets.

A run notes in a stream when it began and what it takes. The server's times are those of the entries, so they are never
before the claim.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from valkey.asyncio import Valkey

from penstock import Penstock, Rate, Settings, current

QUEUE = "budgets"
PER_SECOND, BURST = 30, 60
"""Far less than the jobs want, or no claim would meet an empty bucket, and the test would prove nothing."""
app = Penstock(
    os.environ.get("TOKEN_URL", "unix:///nowhere"), prefix="tokens", settings=Settings(lease=1, sleep=1, result_ttl=0)
)
SEEN, DONE = app.queue(QUEUE).key("seen"), app.queue(QUEUE).key("done")
clients: list[Any] = []


def register(app: Penstock) -> Any:
    """The task, for the workers and for the test's own process."""

    @app.task(queue=QUEUE, limit=Rate(PER_SECOND, per=1, key="{account}", name="tokens", burst=BURST, cost="{tokens}"))
    async def ask(account: str, number: int, tokens: int, real: int) -> None:
        await clients[0].xadd(SEEN, {"account": account, "tokens": real})
        await asyncio.sleep(0.02)
        await current().used.aio("tokens", real)
        current().stage.hincrby(DONE, f"{account} {number}")

    return ask


ask = register(app)


@app.on_start
async def connect() -> None:
    clients.append(Valkey.from_url(os.environ["TOKEN_URL"]))


@app.on_stop
async def disconnect() -> None:
    await clients.pop().aclose()
