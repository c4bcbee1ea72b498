"""Listeners on both faces, and the one connection on which their messages arrive."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import anyio
import anyio.to_thread
import pytest

from penstock.core.operations import Listen, Operation, RoundTrip, Wait
from penstock.core.scripts import Script
from penstock.driver.listening import _slot_tags, channel_name
from penstock.driver.server_driver import ServerDriver
from penstock.errors import ServerRefused, ServerUnavailable
from penstock.settings import Settings
from tests.conftest import until
from tests.driver.operations import (
    QUICK,
    FaceDriver,
    count,
    hearing,
    send,
    waiting,
)
from tests.servers import Cluster, Server, eventually
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


async def test_messages_that_come_together_are_all_delivered_in_order(driver: FaceDriver, key: str):
    several = Script("several", (), (), (), "#!lua\nfor i = 1, 50 do redis.call('SPUBLISH', ARGV[1], ARGV[2] .. i) end")

    def operation() -> Operation[list[str]]:
        listener = yield Listen(key)
        channel, _, number = listener.address.rpartition("/")
        yield RoundTrip(several, (key,), (channel, ""), bool)  # a number that no listener has
        yield RoundTrip(several, (key,), (channel, f"{number} "), bool)
        messages: list[str] = []
        while len(messages) < 50:
            messages += filter(None, (yield Wait(listener, None)))  # "" may confirm the subscription
        return messages

    assert await driver.run(operation()) == [str(number) for number in range(1, 51)]


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
            await driver.run(send(key, addresses[0].rpartition("/")[0] + "/seven", text))
        await driver.run(send(key, addresses[0], "mine"))
    assert task.result() == ["mine"]


async def test_two_hundred_listeners_share_one_connection(face: str, key: str, own_server: Server):
    driver = ServerDriver(own_server.address)
    addresses: list[str] = []
    threads = anyio.CapacityLimiter(200)

    async def wait() -> str:
        operation = hearing(key, addresses.append)
        if face == "aio":
            return await driver.aio.run(operation)
        return await anyio.to_thread.run_sync(driver.blocking.run, operation, limiter=threads)

    tasks = [asyncio.create_task(wait()) for _ in range(200)]
    await until(lambda: len(addresses) == 200)
    await until(lambda: len(own_server.subscribers()) == 1)
    for place, address in enumerate(addresses):
        await driver.aio.run(send(key, address, str(place)))
    assert sorted(await asyncio.gather(*tasks)) == sorted(str(n) for n in range(200))
    await driver.aclose()


async def test_a_connection_without_listeners_is_closed_and_another_opened(face: str, key: str, own_server: Server):
    driver = FaceDriver(face, own_server.address, QUICK)

    def readers() -> int:
        return len(own_server.subscribers())

    for _ in range(2):
        async with driver.running(waiting(key, 0.1)):
            await until(lambda: readers() == 1)
        await until(lambda: readers() == 0)
    addresses: list[str] = []
    async with driver.running(hearing(key, addresses.append)) as task:
        await until(lambda: addresses)
        await driver.run(send(key, addresses[0], "again"))
    assert task.result() == "again"
    await driver.aclose()


async def test_a_lost_connection_notifies_all_listeners(driver: FaceDriver, key: str, server: Server):
    seen: list[str] = []

    async def killed() -> None:
        await until(lambda: len(seen) == 3)
        await until(lambda: [server.client.client_kill_filter(_id=one["id"]) for one in server.subscribers()])

    results = await asyncio.gather(*(driver.run(waiting(key, 5, seen.append)) for _ in range(3)), killed())
    assert results[:3] == [[""]] * 3


async def test_a_restart_notifies_all_listeners(face: str, key: str, own_server: Server):
    driver = FaceDriver(face, own_server.address)
    async with driver.running(waiting(key, 10)) as task:
        await until(lambda: len(own_server.subscribers()) == 1)
        await anyio.to_thread.run_sync(own_server.restart, 0.3)
    assert task.result() == [""]
    await driver.aclose()


async def test_a_frozen_server_is_noticed_in_a_blocked_read(face: str, key: str, own_server: Server):
    driver = FaceDriver(
        face, own_server.address, replace(QUICK, connect_timeout=0.1, reply_timeout=0.1, give_up_after=0.3)
    )
    async with driver.running(waiting(key, None)) as task:
        await until(own_server.subscribers)
        with own_server.frozen():
            await asyncio.wait_for(asyncio.shield(task), scaled(20))
    assert task.result() == [""]
    await driver.aclose()


async def test_a_server_that_stays_away_notifies_all_listeners(face: str, key: str, own_server: Server):
    driver = FaceDriver(face, own_server.address, replace(QUICK, give_up_after=0.3))
    async with driver.running(waiting(key, None)) as task:
        await until(lambda: len(own_server.subscribers()) == 1)
        own_server.kill()
    assert task.result() == [""]
    with pytest.raises(ServerUnavailable):
        await driver.run(count(key))
    await driver.aclose()


@pytest.mark.parametrize("missing", ["-spublish", "-ssubscribe", "resetchannels"])
async def test_a_user_without_the_rights_to_channels_is_refused_at_the_start(
    face: str, key: str, own_server: Server, missing: str
):
    rules = ("ACL", "SETUSER", "few", "on", ">x", "~*", "&penstock:wake:*", "+@all")
    own_server.client.execute_command(*rules)
    driver = FaceDriver(face, f"unix://few:x@{own_server.socket}")
    assert await driver.run(waiting(key, 0)) == []
    await driver.aclose()
    own_server.client.execute_command("ACL", "SETUSER", "few", missing)
    driver = FaceDriver(face, f"unix://few:x@{own_server.socket}")
    for work in (count(key), waiting(key, 5)):
        with pytest.raises(ServerRefused, match=r"\+spublish \+ssubscribe .* &penstock:wake"):
            await driver.run(work)
    await driver.aclose()
    assert not own_server.client.exists(key)


@pytest.mark.parametrize("has_listened", [True, False])
async def test_a_login_that_is_refused_for_a_while_ends_no_wait_even_if_it_has_just_begun(
    own_server: Server, has_listened: bool
):
    """A worker listens at its start, when a slot has moved, or a shard was added. A password may be replaced then."""
    own_server.client.execute_command("ACL", "SETUSER", "late", "on", ">old", "~*", "&*", "+@all")
    driver = ServerDriver(f"unix://late:old@{own_server.socket}", QUICK)
    assert await driver.aio.run(count("k")) == 1
    if has_listened:
        first = driver.aio.listen("k")
        assert await first.wait(scaled(5)) == [""]
        first.close()
        await until(lambda: not own_server.subscribers())
    own_server.client.execute_command("ACL", "SETUSER", "late", "resetpass", ">new")
    second = driver.aio.listen("k")
    assert await second.wait(scaled(1)) == [""]  # the operation would look now, and be refused
    own_server.client.execute_command("ACL", "SETUSER", "late", ">old")
    await until(own_server.subscribers)
    second.close()
    await driver.aclose()


async def test_closing_ends_the_connections_and_the_waits_at_once(face: str, key: str, own_server: Server):
    driver = FaceDriver(face, own_server.address, Settings())
    task = asyncio.create_task(driver.run(waiting(key, None)))
    await until(lambda: len(own_server.subscribers()) == 1)
    began = time.monotonic()
    await driver.aclose()
    with pytest.raises(ServerUnavailable, match="closed"):
        await asyncio.wait_for(task, scaled(20))
    assert time.monotonic() - began < scaled(5)
    assert await driver.run(waiting(key, 0.05)) == []
    assert await driver.run(count(key)) == 1
    await driver.aclose()
    await until(lambda: not own_server.subscribers())


async def test_idle_listeners_of_a_process_cost_one_ping_per_interval(own_server: Server):
    driver = ServerDriver(own_server.address, Settings(ping_interval=0.5))
    tasks = [asyncio.create_task(driver.aio.run(waiting(f"i{{{n}}}", 30))) for n in range(6)]
    tasks += [asyncio.create_task(asyncio.to_thread(driver.blocking.run, waiting("x", 30)))]
    await until(lambda: len(own_server.subscribers()) == 2)
    own_server.client.config_resetstat()
    began = time.monotonic()
    await asyncio.sleep(3.5)
    stats = own_server.client.info("commandstats")
    assert 2 <= stats["cmdstat_ping"]["calls"] <= 1 + (time.monotonic() - began) / 0.45
    assert set(stats) <= {"cmdstat_ping", "cmdstat_config|resetstat", "cmdstat_info"}
    await driver.aclose()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_listeners_that_share_a_key_have_one_address_until_the_last_is_closed(driver: FaceDriver, key: str):
    addresses: list[str] = []
    closed: list[bool] = []

    def operation() -> Operation[list[str]]:
        listener = yield Listen(key, shared=True)
        addresses.append(listener.address)
        messages: list[str] = yield Wait(listener, 10)
        closed.append(listener.close())
        return messages

    tasks = [asyncio.create_task(driver.run(operation())) for _ in range(3)]
    await until(lambda: len(addresses) == 3)
    assert len(set(addresses)) == 1
    assert await driver.run(send(key, addresses[0], "news")) == 1
    assert await asyncio.gather(*tasks) == [["news"]] * 3
    assert sorted(closed) == [False, False, True]
    async with driver.running(waiting(key, 0.01, addresses.append, shared=True)):
        await until(lambda: len(addresses) == 4)
    assert addresses[3] != addresses[0]


async def test_a_face_hears_of_many_slots_over_one_connection_per_node(face: str, small_cluster: Cluster):
    driver = FaceDriver(face, small_cluster.address)
    addresses: dict[str, str] = {}

    keys = [f"many{n}" for n in range(30)]
    tasks = [asyncio.create_task(driver.run(hearing(key, partial(addresses.__setitem__, key)))) for key in keys]
    await until(lambda: len(addresses) == 30)
    await until(lambda: all(len(node.subscribers()) == 1 for node in small_cluster.nodes))
    for key in keys:
        assert await driver.run(send(key, addresses[key], key)) == 1
    assert await asyncio.gather(*tasks) == keys
    await driver.aclose()


def test_threads_that_begin_at_once_make_the_tags_of_the_slots_once():
    """Otherwise thirty threads need a second of CPU time before the first of them has its channel."""
    _slot_tags.cache_clear()
    with ThreadPoolExecutor(10) as threads:
        names = list(threads.map(lambda n: channel_name("face", f"k{n}", is_cluster=True), range(10)))
    assert len(set(names)) == 10
    assert _slot_tags.cache_info().misses == 1


async def test_an_unused_channel_is_left_while_others_are_used(face: str, small_cluster: Cluster):
    driver = FaceDriver(face, small_cluster.address, QUICK)
    node = small_cluster.owner("{used}")
    unused = next(f"k{n}" for n in range(100) if small_cluster.owner(f"k{n}") is node)
    addresses: list[str] = []

    def channels() -> int:
        return len(node.client.execute_command("PUBSUB", "SHARDCHANNELS", "penstock:wake:{*"))

    async with driver.running(hearing("{used}", addresses.append)):
        for _ in range(2):  # it can be subscribed to again
            async with driver.running(waiting(unused, 0.1)):
                await until(lambda: channels() == 2)
            await until(lambda: channels() == 1)
        assert await driver.run(send("{used}", addresses[0], "news")) == 1
    await driver.aclose()


FORKING = """
import asyncio, os, sys, threading, time
from penstock.driver.listening import _slot_tags, channel_name
from penstock.driver.server_driver import ServerDriver
from tests.driver.operations import waiting

driver, face = ServerDriver(sys.argv[1]), sys.argv[2]

def fork():
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
    print("forked", flush=True)
    time.sleep(60)

async def main():
    task = asyncio.create_task(driver.aio.run(waiting("k", 60)))
    await asyncio.to_thread(sys.stdin.readline)
    fork()

if face == "aio":
    asyncio.run(main())
threading.Thread(target=lambda: driver.blocking.run(waiting("k", 60)), daemon=True).start()
sys.stdin.readline()
fork()
"""


def test_a_forked_child_does_not_keep_the_subscription_of_a_parent_that_died(face: str, own_server: Server):
    command = [sys.executable, "-c", FORKING, own_server.address, face]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        try:
            eventually(own_server.subscribers)
            process.stdin.write(b"\n")
            process.stdin.flush()
            process.stdout.readline()
            os.kill(process.pid, signal.SIGKILL)
            eventually(lambda: not own_server.subscribers())
        finally:
            os.killpg(process.pid, signal.SIGKILL)


async def test_a_listener_hears_that_another_one_beside_it_got_a_message(driver: FaceDriver, key: str):
    addresses: list[str] = []

    def operation() -> Operation[tuple[list[str], list[str], list[str]]]:
        bell = yield Listen(key)
        first, second = (yield Listen(key, beside=bell)), (yield Listen(key + "2", beside=bell))
        yield Wait(bell, 0)
        addresses.append(second.address)
        rung = yield Wait(bell, 10)
        return rung, (yield Wait(first, 0)), (yield Wait(second, 0))

    task = asyncio.create_task(driver.run(operation()))
    await until(lambda: addresses)
    await driver.run(send(key + "2", addresses[0], "news"))
    rung, of_first, of_second = await asyncio.wait_for(task, scaled(10))
    assert set(rung) == {""}
    assert set(of_first) <= {""}
    assert of_second[-1] == "news"
