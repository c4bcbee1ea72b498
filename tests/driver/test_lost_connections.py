"""The server closes connections while calls are being written: each call is sent again, and nothing else happens."""

import asyncio
import contextlib
from typing import Any

import pytest

from tests.driver.operations import FaceDriver, append, numbered, shown
from tests.servers import Server
from tests.speed import scaled

CALLERS = 40


@pytest.mark.parametrize("size", [10, 100_000])
async def test_calls_survive_the_loss_of_every_connection(own_server: Server, size: int):
    """Since Python 3.12 a transport raises AttributeError when it writes to a connection that was lost."""
    driver = FaceDriver("aio", own_server.address)
    faults = list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
    ended = asyncio.Event()

    async def call(number: int) -> int:
        calls = 0
        while not ended.is_set():
            await driver.run(numbered(f"k{{{number}}}", f"{calls} {'x' * size}"))
            calls += 1
        return calls

    tasks = [asyncio.create_task(call(number)) for number in range(CALLERS)]
    for _ in range(60):
        await asyncio.sleep(0.02)
        await asyncio.to_thread(own_server.client.client_kill_filter, _type="normal", skipme=True)
    ended.set()
    calls = await asyncio.wait_for(asyncio.gather(*tasks), scaled(20))
    assert faults == []
    assert min(calls) > 0
    await driver.aclose()


async def test_the_reader_may_be_the_last_to_see_a_loss(own_server: Server):
    """A transport that is closing is not written to, even before the connection's reader has run."""
    driver = FaceDriver("aio", own_server.address)
    await driver.run(append("{lost}k", "before"))
    (connection,) = driver.server_driver.aio._shared.values()
    with contextlib.suppress(AttributeError):
        connection._connection._writer.transport.abort()
    await asyncio.wait_for(driver.run(append("{lost}k", "after")), scaled(2))
    assert await driver.run(shown("{lost}k")) == ["before", "after"]
    await driver.aclose()
