"""A checkout that waits for a person, as durable steps: whatever dies in between, it continues behind its last step.

It reserves stock, charges a card, waits for an approval, and ships. Without an approval it undoes what it did. A first
worker runs each order up to its wait, and a second one, later, runs the rest.
"""

import asyncio
import contextlib

from penstock import Penstock, Retry, Worker, WorkerSettings, current, step, wait_for
from penstock.errors import SignalTimeout, TransactionRefused

app = Penstock(prefix="example-checkout")
orders = app.queue("orders")

# Keys in the slot of the queue, so that a job can stage writes to them.
STOCK = orders.key("stock")  # HASH    item -> pieces
RESERVED = orders.key("reserved")  # HASH    order -> item
SOLD = orders.key("sold")  # HASH    item -> pieces

called: list[str] = []


async def reserve(order: str, item: str) -> bool:
    """Take a piece from the stock, once for each order: the function may be called again if its worker dies."""
    tx = app.transaction().require_no_field(RESERVED, order).require_field(STOCK, item, at_least=1)
    try:
        await tx.hincrby(STOCK, item, -1).hset(RESERVED, order, item).commit.aio()
    except TransactionRefused as refused:
        return "require_no_field" in refused.condition  # an earlier call has reserved it
    return True


async def give_back(order: str, item: str) -> None:
    tx = app.transaction().require_field(RESERVED, order, item)
    with contextlib.suppress(TransactionRefused):  # an earlier call has given it back
        await tx.hincrby(STOCK, item).hdel(RESERVED, order).commit.aio()


async def charge(order: str, card: str) -> str | None:
    """Returns the payment; None: declined. A real service gets `current().id` as its idempotency key."""
    called.append(f"charge {order}")
    return None if card == "declined" else f"payment for {order}"


async def refund(payment: str) -> None:
    called.append(f"refund {payment}")


async def ship(order: str) -> str:
    called.append(f"ship {order}")
    if called.count(f"ship {order}") == 1:
        raise ConnectionError("the carrier does not answer")
    return f"parcel {order}"


@app.task(queue="orders", retry=Retry(3, base=0, on=(ConnectionError,)))
async def checkout(order: str, item: str, card: str, patience: float) -> str:
    if not await step(reserve, order, item):
        return "sold out"
    payment = await step(charge, order, card)
    if payment is None:
        await step(give_back, order, item)
        return "declined"
    try:
        approval = await wait_for("approved", timeout=patience)
    except SignalTimeout:
        await step(refund, payment)
        await step(give_back, order, item)
        return "not approved in time"
    parcel = await step(ship, order)
    current().stage.hincrby(SOLD, item, 1)  # counted with the completion, so exactly once
    return f"{parcel}, approved by {approval['by']}"


async def work() -> None:
    """A worker that ends when no job is ready. Jobs that wait for a signal do not occupy it."""
    await Worker(app, WorkerSettings(burst=True)).run()


async def main() -> None:
    async with app:
        stock = app.transaction().delete(STOCK, RESERVED, SOLD)
        await stock.hset(STOCK, "lamp", 3).hset(STOCK, "chair", 0).hset(SOLD, "lamp", 0).commit.aio()
        good = await checkout.enqueue.aio("A-1", "lamp", "visa", 86400)
        forgotten = await checkout.enqueue.aio("A-2", "lamp", "visa", 0.3)
        poor = await checkout.enqueue.aio("A-3", "lamp", "declined", 86400)
        late = await checkout.enqueue.aio("A-4", "chair", "visa", 86400)
        await work()
        assert sorted(called) == ["charge A-1", "charge A-2", "charge A-3"], called
        await good.signal.aio("approved", {"by": "ada"})
        await asyncio.sleep(0.4)
        await work()

        for job in (good, forgotten, poor, late):
            print(await job.result.aio(timeout=5))
        assert await good.result.aio(timeout=5) == "parcel A-1, approved by ada"
        assert called.count("charge A-1") == 1, called
        assert called.count("ship A-1") == 2, called
        assert "refund payment for A-2" in called, called
        # One lamp of three was sold; the other two were given back.
        check = app.transaction().require_field(STOCK, "lamp", 2).require_field(SOLD, "lamp", 1)
        await check.delete(STOCK, RESERVED, SOLD).commit.aio()


asyncio.run(main())
