"""The numbers of a queue were deleted while leases, delayed jobs and ticks are stored: idle workers find them."""

import asyncio
from collections.abc import Callable

from penstock import Penstock
from tests.conftest import until
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


async def test_a_lone_idle_worker_finds_a_lost_lease_and_a_due_job_in_time(start: Callable[..., Server]):
    """It sleeps for fifty seconds."""
    server = start()
    app = Penstock(server.address)
    ran: list[int] = []

    @app.task(queue="mail")
    async def note(n: int) -> None:
        ran.append(n)

    await note.enqueue.aio(1)
    await app.queue("mail").claim.aio(lease=3)
    await note.using(delay=2).enqueue.aio(2)
    server.client.delete("{penstock:mail}:meta")
    async with running_worker(app):
        await until(lambda: sorted(ran) == [1, 2], 15)
    await app.aclose()


async def test_ticks_go_on_in_a_queue_that_has_no_job_at_the_moment(start: Callable[..., Server]):
    server = start()
    app = Penstock(server.address)
    ran: list[int] = []

    @app.task(queue="mail", every=2)
    async def note() -> None:
        ran.append(1)

    async with running_worker(app):
        await until(lambda: bool(ran), 15)
        await asyncio.sleep(0.5)
        server.client.delete("{penstock:mail}:meta")
        ran.clear()
        await until(lambda: bool(ran), 15)
    await app.aclose()
