"""The app of the storm of children: each order runs children of two queues, and each child writes what it did once."""

from __future__ import annotations

import asyncio
import os

from penstock import Penstock, Settings, current, run

app = Penstock(os.environ.get("CHILD_URL", "unix:///nowhere"), prefix="child", settings=Settings(lease=1, sleep=1))
LEDGERS = {queue: app.queue(queue).key("ledger") for queue in ("orders", "bank")}


@app.task(queue="orders")
async def pack(order: int, step: int) -> int:
    return await work("orders", order, step)


@app.task(queue="bank")
async def charge(order: int, step: int) -> int:
    return await work("bank", order, step)


async def work(queue: str, order: int, step: int) -> int:
    """Count the child when it completes."""
    current().stage.hincrby(LEDGERS[queue], f"{order} {step}")
    await asyncio.sleep(0.01)
    return step


@app.task(queue="orders")
async def fulfil(order: int) -> list[int]:
    first = await asyncio.gather(*(run(task.call(order, n)) for n, task in enumerate((pack, charge, pack, charge))))
    return [*first, await run(charge.call(order, 4)), await run(pack.call(order, 5))]
