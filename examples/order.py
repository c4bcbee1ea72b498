"""An order as a parent and its children: a durable job that runs other jobs and gets their answers.

The order runs one job that charges a card, and then one for each parcel, side by side. One worker with a single runner
serves them all, because the order sleeps while its children run. The bank is a queue of its own.
"""

import asyncio
from asyncio import gather

from penstock import Penstock, Retry, Worker, WorkerSettings, current, run
from penstock.errors import JobFailed

app = Penstock(prefix="example-order")

charged: list[str] = []
runs: list[str] = []


@app.task(queue="order-bank", retry=Retry(2, base=0, on=(ConnectionError,)))
async def charge(order: str, card: str) -> str:
    charged.append(order)
    if charged.count(order) == 1:
        raise ConnectionError("the bank does not answer")
    if card == "expired":
        raise ValueError("the card has expired")
    return f"payment for {order}"


@app.task(queue="orders")
async def pack(item: str) -> str:
    return f"a parcel with a {item}"


@app.task(queue="orders")
async def fulfil(order: str, card: str, items: list[str]) -> str:
    runs.append(order)
    try:
        payment = await run(charge.call(order, card))
    except JobFailed as error:
        return f"{order} is not paid: {error.reason}"
    parcels = await gather(*(run(pack.call(item)) for item in items))
    return f"{payment}: {', '.join(parcels)}, after {current().deliveries} runs"


async def main() -> None:
    async with app:
        good = await fulfil.enqueue.aio("A-1", "visa", ["lamp", "chair"])
        poor = await fulfil.enqueue.aio("A-2", "expired", ["sofa"])
        worker = Worker(app, WorkerSettings(concurrency=1))
        running = asyncio.create_task(worker.run())
        print(answer := await good.result.aio(timeout=30))
        print(refusal := await poor.result.aio(timeout=30))
        worker.stop()
        await running
        assert answer == "payment for A-1: a parcel with a lamp, a parcel with a chair, after 3 runs", answer
        assert refusal == "A-2 is not paid: ValueError: the card has expired"
        assert (charged.count("A-1"), runs.count("A-1"), runs.count("A-2")) == (2, 3, 2)
        for child in (await good.tree.aio()).predecessors:
            print(f"{child.status:10}", child.id)
        (failed,) = (await poor.tree.aio()).predecessors
        await app.queue("order-bank").dead.remove.aio(failed.id)


asyncio.run(main())
