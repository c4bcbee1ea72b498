"""Thumbnails in processes of their own: a damaged picture may loop or crash in C code, and affects no other job.

Each job reports how far it is. Run it with `python examples/thumbnails.py`. The pictures are made up of numbers.
"""

import asyncio
import os
import time

from penstock import JobFailed, Penstock, Worker, WorkerSettings, current
from penstock.info import JobProgress

app = Penstock(prefix="example-thumbnails")

SIZES = (512, 256, 128, 64)


@app.task(queue="thumbnails", isolate=True, timeout=5, result_ttl=60)
def thumbnails(picture: str) -> list[str]:
    made = []
    for place, size in enumerate(SIZES, 1):
        if picture == "endless.png":
            while True:  # as a decoder in C: only the end of its process ends it
                time.sleep(0.01)
        if picture == "damaged.png":
            os.abort()
        made.append(f"{picture}@{size}")
        current().progress(place / len(SIZES), f"{size} pixels")
        time.sleep(0.1)
    return made


async def main() -> None:
    shown: list[float] = []

    def show(progress: JobProgress) -> None:
        shown.append(progress.fraction)
        print(f"{progress.fraction:.0%} {progress.text}")

    async with app:
        working = asyncio.create_task((worker := Worker(app, WorkerSettings(concurrency=4))).run())
        good = await thumbnails.enqueue.aio("good.png")
        endless = await thumbnails.enqueue.aio("endless.png")
        damaged = await thumbnails.enqueue.aio("damaged.png")
        print(await good.result.aio(timeout=30, on_progress=show))
        for job in (endless, damaged):
            try:
                await job.result.aio(timeout=30)
            except JobFailed as error:
                print(f"{job.id}: {error.reason}")
        worker.stop()
        await working
    assert shown == sorted(shown)


if __name__ == "__main__":  # a process of an isolated job imports this file as well
    asyncio.run(main())
