"""A server that refuses writes for a while: calls wait, and the error that ends the wait names the setting."""

import asyncio
from collections.abc import Callable

import pytest
import valkey

from penstock import Penstock, Settings
from penstock.driver.retrying import error_code
from penstock.errors import DurabilityUnavailable, ServerRefused, ServerUnavailable
from tests.conftest import Do
from tests.driver.operations import FaceDriver, append, shown
from tests.servers import Server, eventually
from tests.speed import scaled

NO_REPLICAS = ("min-replicas-to-write", 1)
IN_ORDER = ("min-replicas-to-write", 0)


async def test_a_call_waits_while_the_server_lacks_replicas(face: str, own_server: Server):
    driver = FaceDriver(face, own_server.address)
    await driver.run(append("{state}k", "first"))
    own_server.client.config_set(*NO_REPLICAS)
    async with driver.running(append("{state}k", "second")) as call:
        await asyncio.sleep(0.3)
        assert not call.done()
        own_server.client.config_set(*IN_ORDER)
    assert await driver.run(shown("{state}k")) == ["first", "second"]
    await driver.aclose()


async def test_the_end_of_the_wait_names_the_setting(face: str, own_server: Server):
    driver = FaceDriver(face, own_server.address, Settings(give_up_after=0.3))
    own_server.client.config_set(*NO_REPLICAS)
    with pytest.raises(ServerUnavailable, match=r"refuses writes.*min-replicas-to-write"):
        await driver.run(append("{state}k", "x"))
    await driver.aclose()


async def test_a_lock_is_waited_for_and_released_while_the_server_lacks_replicas(do: Do, own_server: Server):
    app = Penstock(own_server.address)
    held = await do(app.lock("{state}L", lease=20).acquire)
    own_server.client.config_set(*NO_REPLICAS)
    release = asyncio.create_task(do(held.release))
    waiter = asyncio.create_task(do(app.lock("{state}L", lease=20, wait=scaled(10)).acquire))
    await asyncio.sleep(0.5)
    assert not release.done()
    assert not waiter.done()
    own_server.client.config_set(*IN_ORDER)
    await asyncio.wait_for(release, scaled(5))
    (await asyncio.wait_for(waiter, scaled(5))).check()
    await app.aclose()


async def test_a_full_disk_is_a_state_that_passes(face: str, start: Callable[..., Server]):
    server = start("--save", "3600 1")
    dump = server.folder / "dump.rdb"
    dump.mkdir()
    server.client.execute_command("BGSAVE")
    eventually(lambda: server.client.info("persistence")["rdb_last_bgsave_status"] == "err")
    driver = FaceDriver(face, server.address, Settings(give_up_after=0.3))
    with pytest.raises(ServerUnavailable, match=r"refuses writes.*MISCONF.*to disk"):
        await driver.run(append("{state}k", "x"))
    await driver.aclose()
    driver = FaceDriver(face, server.address)
    async with driver.running(append("{state}k", "x")) as call:
        await asyncio.sleep(0.2)
        assert not call.done()
        dump.rmdir()
        server.client.execute_command("BGSAVE")
    await driver.aclose()


def test_a_right_that_a_script_lacks_is_known_in_the_words_of_redis_7_0():
    words = "ERR The user executing the script can't run this command or subcommand script: 5f3, on @user_script:3."
    assert error_code(valkey.ResponseError(words)) == "NOPERM"  # as Redis 7.0 says it


@pytest.mark.parametrize("command", ["SSUBSCRIBE", "SPUBLISH", "EVALSHA"])
async def test_a_server_without_a_command_is_refused_with_the_reason(
    face: str, start: Callable[..., Server], command: str
):
    server = start("--rename-command", command, '""')
    driver = FaceDriver(face, server.address)
    with pytest.raises(ServerRefused, match=f"(?i){command}.*Penstock needs scripts"):
        await driver.run(append("{state}k", "x"))
    await driver.aclose()


async def test_a_server_that_cannot_confirm_its_disk_says_why(face: str, start: Callable[..., Server]):
    server = start("--appendonly", "yes", "--appendfsync", "always")
    driver = FaceDriver(face, server.address)
    await driver.run(append("{state}k", "x"))
    driver.server_driver.connector.version = "redis", (7, 0, 15)
    with pytest.raises(DurabilityUnavailable, match=r"WAITAOF came with Redis 7\.2"):
        await driver.run(append("{state}k", "x", durable=True))
    await driver.aclose()
