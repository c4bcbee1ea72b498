"""The numbers of a queue were deleted while a lease is stored: idle workers find it, and then pause."""

import asyncio
from collections.abc import Callable

from penstock import Penstock
from tests.servers import Server
from tests.worker.in_process import running_worker


async def test_an_idle_worker_does_not_spin_after_the_numbers_were_deleted(start: Callable[..., Server]):
    server = start()
    app = Penstock(server.address)

    @app.task(queue="mail")
    async def never() -> None: ...

    await never.enqueue.aio()
    await app.queue("mail").claim.aio(lease=1)
    server.client.delete("{penstock:mail}:meta")
    async with running_worker(app):
        await asyncio.sleep(2.5)
        before = server.client.info("commandstats")["cmdstat_evalsha"]["calls"]
        await asyncio.sleep(1)
        assert server.client.info("commandstats")["cmdstat_evalsha"]["calls"] - before <= 2
    await app.aclose()
