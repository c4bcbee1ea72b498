"""The app of the ledger test: each job books itself, and has another queue book it, as staged effects."""

from __future__ import annotations

import asyncio
import os

from penstock import Penstock, Settings, current

app = Penstock(os.environ.get("LEDGER_URL", "unix:///nowhere"), prefix="ledger", settings=Settings(lease=1, sleep=1))
FIRST, SECOND = app.queue("first").key("ledger"), app.queue("second").key("ledger")


@app.task(queue="second")
async def confirm(number: int) -> None:
    await asyncio.sleep(0.001)
    current().stage.hincrby(SECOND, number)


@app.task(queue="first")
async def book(number: int) -> None:
    current().stage.hincrby(FIRST, number).enqueue(confirm.call(number))
    await asyncio.sleep(0.05)
