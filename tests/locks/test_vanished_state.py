"""The server deletes all keys while processes wait: whoever waits finds that out at once, and not at its time-out."""

import asyncio
from collections.abc import Callable
from typing import Any

from penstock import Penstock
from tests.conftest import Do
from tests.servers import Server
from tests.speed import scaled


async def test_all_waiters_of_a_lock_get_it_in_turn_after_flushall(do: Do, start: Callable[..., Server]):
    own_server = start()
    app, other = Penstock(own_server.address), Penstock(own_server.address)
    await other.lock("L", lease=30).acquire.aio()

    async def wait() -> None:
        held = await do(app.lock("L", lease=30, wait=None).acquire)
        await do(held.release)

    waits = [asyncio.create_task(wait()) for _ in range(5)]
    await asyncio.sleep(0.5)
    own_server.client.flushall()
    await asyncio.wait_for(asyncio.gather(*waits), scaled(2))
    await app.aclose()
    await other.aclose()


async def test_what_waits_for_a_state_hears_of_later_news_after_flushall(do: Do, start: Callable[..., Server]):
    own_server = start()
    app, other = Penstock(own_server.address), Penstock(own_server.address)
    latch = app.latch("T", count=1)
    waits: list[asyncio.Task[Any]] = [
        asyncio.create_task(do(latch.wait, timeout=20)),
        asyncio.create_task(do(app.mailbox("M").pull, wait=20)),
    ]
    await asyncio.sleep(0.5)
    own_server.client.flushall()
    await asyncio.sleep(0.5)
    await other.latch("T", count=1).count_down.aio()
    await other.mailbox("M").post.aio("x")
    await asyncio.wait_for(asyncio.gather(*waits), scaled(2))
    await app.aclose()
    await other.aclose()
