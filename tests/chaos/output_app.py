"""The app of the storm of outputs: each job emits its own chunks in order."""

from __future__ import annotations

import asyncio
import os
import time

from penstock import Penstock, Settings, current

app = Penstock(os.environ.get("OUTPUT_URL", "unix:///nowhere"), prefix="output", settings=Settings(lease=1, sleep=1))

CHUNKS = 40


@app.task(queue="loop")
async def on_the_loop(number: int) -> int:
    for place in range(CHUNKS):
        current().emit(f"{number}.{place}")
        await asyncio.sleep(0.02)
    return number


@app.task(queue="thread")
def in_a_thread(number: int) -> int:
    for place in range(CHUNKS):
        current().emit(f"{number}.{place}")
        time.sleep(0.02)
    return number


tasks = {"loop": on_the_loop, "thread": in_a_thread}
