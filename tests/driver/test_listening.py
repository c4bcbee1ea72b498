"""Listeners on both faces, and the one blocked read that serves them."""

import asyncio
import time
from dataclasses import replace

import anyio
import anyio.to_thread
import pytest

from penstock.core.operations import Listen, Operation, Wait
from penstock.driver.server_driver import ServerDriver
from penstock.errors import ServerError, ServerUnavailable
from penstock.settings import Settings
from tests.conftest import until
from tests.driver.operations import (
    QUICK,
    FaceDriver,
    count,
    send,
    waiting,
)
from tests.servers import Server
from tests.speed import scaled


async def test_a_message_ends_the_wait_of_its_listener(driver: FaceDriver, key: str):
    addresses: list[str] = []
    async with driver.running(waiting(key, 10, addresses.append)) as task:
        await until(lambda: addresses)
        await driver.run(send(key, addresses[0], "hello"))
    assert task.result() == ["hello"]


async def test_a_message_sent_before_the_wait_ends_it_at_once(driver: FaceDriver, key: str):
    def operation() -> Operation[list[str]]:
        listener = yield Listen(key)
        yield send(key, listener.address, "one")
        yield send(key, listener.address, "two words")
        messages: list[str] = []
        while len(messages) < 2:
            messages += yield Wait(listener, None)
        return messages

    assert await driver.run(operation()) == ["one", "two words"]


async def test_a_wait_ends_after_its_timeout(driver: FaceDriver, key: str):
    began = time.monotonic()
    assert await driver.run(waiting(key, 0.1)) == []
    assert await driver.run(waiting(key, 0)) == []
    assert 0.1 <= time.monotonic() - began < scaled(5)


async def test_a_message_without_a_listener_is_dropped(driver: FaceDriver, key: str):
    gone: list[str] = []
    await driver.run(waiting(key, 0, gone.append))
    addresses: list[str] = []
    async with driver.running(waiting(key, 10, addresses.append)) as task:
        await until(lambda: addresses)
        for text in ("x", "", "1", "a b c"):
            await driver.run(send(key, gone[0], text))
            await driver.run(send(key, addresses[0].partition("/")[0] + "/seven", text))
        await driver.run(send(key, addresses[0], "mine"))
    assert task.result() == ["mine"]


async def test_two_hundred_listeners_share_one_blocked_read(face: str, key: str, own_server: Server):
    driver = ServerDriver(own_server.address, QUICK)
    addresses: list[str] = []
    threads = anyio.CapacityLimiter(200)

    async def wait() -> list[str]:
        operation = waiting(key, 20, addresses.append)
        if face == "aio":
            return await driver.aio.run(operation)
        return await anyio.to_thread.run_sync(driver.blocking.run, operation, limiter=threads)

    tasks = [asyncio.create_task(wait()) for _ in range(200)]
    await until(lambda: len(addresses) == 200)
    await until(lambda: len(own_server.blocked_readers()) == 1)
    seen = []
    for _ in range(25):  # after some blocks it is still one, or none between two blocks
        await asyncio.sleep(0.02)
        seen.append(len(own_server.blocked_readers()))
    assert max(seen) == 1
    for place, address in enumerate(addresses):
        await driver.aio.run(send(key, address, str(place)))
    assert sorted(await asyncio.gather(*tasks)) == sorted([str(n)] for n in range(200))
    await driver.aclose()


async def test_a_reader_without_listeners_ends_and_another_starts(driver: FaceDriver, key: str, server: Server):
    def readers() -> int:
        return len(server.blocked_readers())

    for _ in range(2):
        async with driver.running(waiting(key, 0.1)):
            await until(lambda: readers() == 1)
        await until(lambda: readers() == 0)
    addresses: list[str] = []
    async with driver.running(waiting(key, 10, addresses.append)) as task:
        await until(lambda: addresses)
        await driver.run(send(key, addresses[0], "again"))
    assert task.result() == ["again"]


async def test_a_lost_connection_notifies_all_listeners(driver: FaceDriver, key: str, server: Server):
    seen: list[str] = []

    async def killed() -> None:
        await until(lambda: len(seen) == 3)
        await until(lambda: [server.client.client_kill_filter(_id=one["id"]) for one in server.blocked_readers()])

    results = await asyncio.gather(*(driver.run(waiting(key, 5, seen.append)) for _ in range(3)), killed())
    assert results[:3] == [[""]] * 3


async def test_a_restart_notifies_all_listeners(face: str, key: str, own_server: Server):
    driver = FaceDriver(face, own_server.address)
    async with driver.running(waiting(key, 10)) as task:
        await until(lambda: len(own_server.blocked_readers()) == 1)
        await anyio.to_thread.run_sync(own_server.restart, 0.3)
    assert task.result() == [""]
    await driver.aclose()


async def test_a_frozen_server_is_noticed_in_a_blocked_read(face: str, key: str, own_server: Server):
    driver = FaceDriver(
        face, own_server.address, replace(QUICK, connect_timeout=0.1, reply_timeout=0.1, give_up_after=0.3)
    )
    async with driver.running(waiting(key, None)) as task:
        await until(own_server.blocked_readers)
        with own_server.frozen():
            await asyncio.wait_for(asyncio.shield(task), scaled(20))
    assert task.result() == [""]
    await driver.aclose()


async def test_a_server_that_stays_away_notifies_all_listeners(face: str, key: str, own_server: Server):
    driver = FaceDriver(face, own_server.address, replace(QUICK, give_up_after=0.3))
    async with driver.running(waiting(key, None)) as task:
        await until(lambda: len(own_server.blocked_readers()) == 1)
        own_server.kill()
    assert task.result() == [""]
    with pytest.raises(ServerUnavailable):
        await driver.run(count(key))
    await driver.aclose()


async def test_a_user_who_may_not_block_gets_the_error_in_the_wait(face: str, key: str, own_server: Server):
    own_server.client.execute_command("ACL", "SETUSER", "few", "on", ">x", "~*", "+@all", "-blmpop")
    driver = FaceDriver(face, f"unix://few:x@{own_server.socket}")
    with pytest.raises(ServerError, match="blmpop"):
        await driver.run(waiting(key, 5))
    await driver.aclose()


async def test_closing_ends_the_readers_and_the_waits_at_once(face: str, key: str, own_server: Server):
    driver = FaceDriver(face, own_server.address, Settings())
    task = asyncio.create_task(driver.run(waiting(key, None)))
    await until(lambda: len(own_server.blocked_readers()) == 1)
    began = time.monotonic()
    await driver.aclose()
    with pytest.raises(ServerUnavailable, match="closed"):
        await asyncio.wait_for(task, scaled(20))
    assert time.monotonic() - began < scaled(5)  # a blocked read takes ten seconds
    assert await driver.run(waiting(key, 0.05)) == []
    assert await driver.run(count(key)) == 1
    await driver.aclose()
    await until(lambda: not own_server.blocked_readers())


async def test_idle_readers_together_send_one_command_per_block(face: str, own_server: Server):
    driver = FaceDriver(face, own_server.address, Settings(block=0.5))
    tasks = [asyncio.create_task(driver.run(waiting(f"i{{{n}}}", 30))) for n in range(6)]
    await until(lambda: len(own_server.blocked_readers()) == 6)
    own_server.client.config_resetstat()
    began = time.monotonic()
    await asyncio.sleep(3.5)
    stats = own_server.client.info("commandstats")
    assert stats.get("cmdstat_blmpop", {"calls": 0})["calls"] <= 1 + (time.monotonic() - began) / 0.5
    await driver.aclose()
    await asyncio.gather(*tasks, return_exceptions=True)
