"""E-mail at a rate for each customer, over a connection that each worker process opens once.

Run it with `python examples/customer_mail.py`. The mail server is a list.
"""

import asyncio
import time
from collections.abc import AsyncIterator

from penstock import Penstock, Rate, Worker, WorkerSettings, per_process

app = Penstock(prefix="example-mail")

PER_SECOND = 4


class MailServer:
    opened = 0

    def __init__(self) -> None:
        MailServer.opened += 1
        self.sent: dict[str, list[float]] = {}

    async def send(self, customer: str, text: str) -> None:
        self.sent.setdefault(customer, []).append(time.monotonic())
        print(f"{customer}: {text}")


async def mail_server() -> AsyncIterator[MailServer]:
    server = MailServer()
    yield server
    ada, (bo,) = server.sent["ada"], server.sent["bo"]
    assert len(ada) == 8
    assert ada[-1] - ada[0] > 5 / PER_SECOND  # two at once, and from then on one in a quarter of a second
    assert bo < ada[-1], "bo waited for ada's mail"


@app.task(queue="mail", limit=Rate(PER_SECOND, per=1, burst=2, key="{customer}"))
async def send(customer: str, text: str, *, server: MailServer = per_process(mail_server)) -> None:
    await server.send(customer, text)


async def main() -> None:
    async with app:
        news = await app.enqueue_many.aio(send.call("ada", f"news {n}") for n in range(8))
        urgent = await send.enqueue.aio("bo", "your order is on its way")
        worker = Worker(app, WorkerSettings(concurrency=10))
        working = asyncio.create_task(worker.run())
        for job in [urgent, *news]:
            await job.result.aio(timeout=10)
        worker.stop()
        await working
    assert MailServer.opened == 1


asyncio.run(main())
