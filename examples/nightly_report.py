"""A nightly report on a schedule: declared by its task, listed, and run once by hand.

Run it with `python examples/nightly_report.py`. A real program leaves the worker to `penstock worker`.
"""

import asyncio
from datetime import UTC, datetime

from penstock import Penstock, Worker, WorkerSettings

app = Penstock(prefix="example-report")


@app.task(queue="reports", schedule="0 2 * * *", timezone="Europe/Berlin", retry=3)
async def nightly_report(shop: str = "all") -> str:
    return f"report for {shop}"


async def main() -> None:
    async with app:
        worker = Worker(app, WorkerSettings(concurrency=2))
        working = asyncio.create_task(worker.run())
        asia = await app.schedules.add.aio(
            "asia", nightly_report.call("tokyo"), schedule="0 2 * * *", timezone="Asia/Tokyo"
        )
        job = await app.schedules.trigger.aio("asia")
        print(await job.result.aio(timeout=10))
        for one in await app.schedules.list.aio():
            assert one.next is not None
            print(one.id, one.timezone, "next", datetime.fromtimestamp(one.next, UTC))
        await app.schedules.remove.aio(asia.id)
        worker.stop()
        await working


asyncio.run(main())
