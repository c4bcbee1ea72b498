"""A password that is replaced late: the server refuses a login for a while, and the worker resumes."""

import asyncio
from collections.abc import Callable

from penstock import Penstock
from tests.servers import Server
from tests.speed import scaled
from tests.worker.in_process import running_worker


async def test_a_worker_survives_a_login_that_is_refused_for_a_while(start: Callable[..., Server]):
    server = start()
    server.client.execute_command("ACL", "SETUSER", "w", "on", ">old", "~*", "&*", "+@all")
    app = Penstock(f"unix://w:old@{server.socket}")
    started, release = asyncio.Event(), asyncio.Event()

    @app.task(queue="q")
    async def work(number: int) -> int:
        started.set()
        await release.wait()
        return number

    async with running_worker(app):
        job = await work.enqueue.aio(1)
        await asyncio.wait_for(started.wait(), scaled(5))
        server.client.execute_command("ACL", "SETUSER", "w", "resetpass", ">new")
        server.client.execute_command("CLIENT", "KILL", "USER", "w")
        await asyncio.sleep(2)
        release.set()
        await asyncio.sleep(0.5)
        server.client.execute_command("ACL", "SETUSER", "w", ">old")
        assert await job.result.aio(scaled(15)) == 1
        assert await (await work.enqueue.aio(2)).result.aio(scaled(5)) == 2
    await app.aclose()
