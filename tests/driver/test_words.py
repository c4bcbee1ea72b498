"""Mistakes around the driver, each named with its remedy."""

import asyncio
import gc
from collections.abc import Callable

import pytest

from penstock import Penstock, Settings
from penstock.driver.server_driver import ServerDriver
from penstock.errors import ConfigurationError, ServerRefused
from tests.clusters import Sentinel
from tests.driver.operations import FaceDriver, append, count
from tests.servers import Server, free_port


async def test_a_sentinel_that_wants_a_password_is_named(face: str, start: Callable[..., Server]):
    primary = start(port=free_port())
    with Sentinel(primary) as sentinel:
        sentinel.client.execute_command("ACL", "SETUSER", "default", "resetpass", ">secret")
        driver = FaceDriver(face, f"valkey+sentinel://127.0.0.1:{sentinel.port}/main", Settings(give_up_after=1))
        with pytest.raises(ServerRefused, match=r"wants a password of its own.*sentinel_password"):
            await driver.run(count("{words}n"))
        await driver.aclose()
        right = f"valkey+sentinel://127.0.0.1:{sentinel.port}/main?sentinel_password=secret"
        driver = FaceDriver(face, right)
        assert await driver.run(count("{words}n")) == 1
        await driver.aclose()


def test_another_event_loop_than_that_of_asyncio_is_named():
    with pytest.raises(RuntimeError, match=r"trio\.to_thread"):
        _ = ServerDriver("valkey://127.0.0.1:1").aio


async def test_half_a_surrogate_pair_is_named(face: str, own_server: Server):
    driver = FaceDriver(face, own_server.address)
    with pytest.raises(ConfigurationError, match="half of a surrogate pair at position 1"):
        await driver.run(append("{words}k", "a\ud800"))
    await driver.aclose()


async def test_a_call_that_is_cancelled_while_it_connects_logs_nothing():
    faults = list[str]()
    asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault["message"]))
    app = Penstock("valkey://127.0.0.1:1", settings=Settings(give_up_after=0.05))
    for _ in range(20):
        call = asyncio.create_task(app.queue("q").put.aio(1))
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
    await asyncio.sleep(0.1)
    gc.collect()
    assert faults == []
    await app.aclose()
