"""Webhooks for many customers: each has a rate and a bound of its own, so a noisy or broken one holds up no other.

Run it with `python examples/webhooks.py`. The customers' servers are objects in this process.
"""

import asyncio
import time

from penstock import Job, Penstock, Rate, Retry, RetryLater, Worker, WorkerSettings, current
from penstock.errors import QueueFull

app = Penstock(prefix="example-webhooks")

EVENTS = {"acme": 60, "bolt": 5, "core": 5}
"""How many events each customer causes. Acme has a bad day."""
MOST_WAITING = 20


class TooManyRequests(Exception):
    retry_after = 0.3


class Receiver:
    """The server of a customer. Bolt's answers 503 at first, and core's wants to be left alone once."""

    def __init__(self, customer: str) -> None:
        self.customer = customer
        self.got: list[str] = []
        self.answers: list[Exception] = []
        if customer == "bolt":
            self.answers = [ConnectionError("503 Service Unavailable")] * 2
        elif customer == "core":
            self.answers = [TooManyRequests()]
        self.refused_at = 0.0

    async def post(self, event: str) -> None:
        began = time.monotonic()
        await asyncio.sleep(0.001)
        if self.answers:
            self.refused_at = time.monotonic()
            raise self.answers.pop()
        if self.customer == "core" and (waited := began - self.refused_at) > 0.05:  # others were under way already
            assert waited > TooManyRequests.retry_after - 0.1, "core was not left alone"
        self.got.append(event)


receivers = {customer: Receiver(customer) for customer in EVENTS}


@app.task(
    queue="webhooks",
    retry=Retry(5, base=0.1),
    timeout=10,
    limit=Rate(100, per=1, key="{customer}", name="requests", burst=10),
)
async def deliver(customer: str, event: str) -> None:
    try:
        await receivers[customer].post(event)
    except TooManyRequests as refused:
        await current().hold.aio("requests", seconds=refused.retry_after)
        raise RetryLater(0, "the customer's server wants to be left alone") from refused


async def send(customer: str, event: str) -> Job[None] | None:
    """The job; None if there was no room for the event. A web framework would answer 429 then."""
    try:
        return await deliver.using(tenant=customer).enqueue.aio(customer, event)
    except QueueFull as full:
        print(f"{customer}: {event} is refused, {full.count} of {full.bound} wait")
        return None


async def main() -> None:
    async with app:
        await app.queue("webhooks").bound.aio(per_tenant=MOST_WAITING)
        jobs: dict[str, list[Job[None]]] = {customer: [] for customer in EVENTS}
        for customer, events in EVENTS.items():
            for number in range(events):
                job = await send(customer, f"event {number}")
                if job is None:
                    break
                jobs[customer].append(job)
        assert [len(accepted) for accepted in jobs.values()] == [MOST_WAITING, 5, 5]
        worker = asyncio.create_task(Worker(app, WorkerSettings(concurrency=20)).run())
        for customer, accepted in jobs.items():
            for job in accepted:
                await job.result.aio(timeout=30)
            assert len(set(receivers[customer].got)) == len(accepted), receivers[customer].got
            print(f"{customer}: {len(accepted)} events delivered")
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)


asyncio.run(main())
