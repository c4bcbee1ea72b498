"""The app of the storm of flows: the parts are in one queue, and what waits for them in another."""

from __future__ import annotations

import asyncio
import os

from penstock import Penstock, Settings, current

app = Penstock(os.environ.get("FLOW_URL", "unix:///nowhere"), prefix="flow", settings=Settings(lease=1, sleep=1))
PARTS, TOTALS = app.queue("parts").key("ledger"), app.queue("totals").key("ledger")


@app.task(queue="parts")
async def part(number: int) -> int:
    current().stage.hincrby(PARTS, number)
    await asyncio.sleep(0.02)
    return number


@app.task(queue="totals")
async def total(numbers: list[int], name: str) -> int:
    current().stage.hincrby(TOTALS, name)
    return sum(numbers)
