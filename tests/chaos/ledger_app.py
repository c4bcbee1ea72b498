"""The app of the ledger test: each job books itself, and has another queue book it, as staged effects.

A durable job notes what each of its steps has returned to it, in each of its runs, and books itself at its end.
"""

from __future__ import annotations

import asyncio
import os
import uuid

from penstock import Penstock, Retry, Settings, current, sleep, step

app = Penstock(os.environ.get("LEDGER_URL", "unix:///nowhere"), prefix="ledger", settings=Settings(lease=1, sleep=1))
FIRST, SECOND = app.queue("first").key("ledger"), app.queue("second").key("ledger")


DURABLE, SEEN = app.queue("durable").key("ledger"), app.queue("durable").key("seen")


@app.task(queue="second")
async def confirm(number: int) -> None:
    await asyncio.sleep(0.001)
    current().stage.hincrby(SECOND, number)


@app.task(queue="first")
async def book(number: int) -> None:
    current().stage.hincrby(FIRST, number).enqueue(confirm.call(number))
    await asyncio.sleep(0.05)


def draw(number: int) -> str:
    return uuid.uuid4().hex


async def draw_and_note(number: int, place: int) -> None:
    drawn = await step(draw, number)
    await app.transaction().sadd(SEEN, f"{number} {place} {drawn}").commit.aio()


@app.task(queue="durable", retry=Retry(1, base=0))
async def continue_(number: int) -> None:
    await draw_and_note(number, 1)
    await sleep(0.1)
    await draw_and_note(number, 2)
    if current().attempt == 1 and number % 3 == 0:
        raise OSError
    await draw_and_note(number, 3)
    current().stage.hincrby(DURABLE, number)
