"""Clusters, slots that move, and a failover behind Sentinel."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis
import redis.asyncio
import valkey
import valkey.asyncio

from penstock.core.slots import slot
from penstock.settings import Settings
from tests.clusters import Sentinel
from tests.conftest import until
from tests.driver.operations import FaceDriver, count, send, waiting
from tests.servers import Cluster, Server, free_port
from tests.slot_moves import SlotMove
from tests.speed import scaled


def handed_in(cluster: Cluster, what: str) -> Any:
    if what == "address":
        return cluster.address
    kind = {
        "valkey": valkey.ValkeyCluster,
        "redis": redis.RedisCluster,
        "valkey.asyncio": valkey.asyncio.ValkeyCluster,
        "redis.asyncio": redis.asyncio.RedisCluster,
    }[what]
    return kind(host="127.0.0.1", port=cluster.nodes[0].port)


# redis-py 6.0.0 makes a pipeline with an argument of its own that it calls deprecated.
@pytest.mark.filterwarnings("ignore:Call to '__init__' function with deprecated usage:DeprecationWarning")
@pytest.mark.parametrize("what", ["address", "valkey", "redis", "valkey.asyncio", "redis.asyncio"])
async def test_a_cluster_is_used(face: str, key: str, cluster: Cluster, what: str):
    client = handed_in(cluster, what)
    driver = FaceDriver(face, client)
    assert driver.server_driver.connector.is_cluster
    for n in range(5):
        assert await driver.run(count(f"{{{key}{n}}}")) == 1
    addresses: list[str] = []
    async with driver.running(waiting(key, 10, addresses.append)) as task:
        await until(lambda: addresses)
        await driver.run(send(key, addresses[0], "hello"))
    assert task.result() == ["hello"]
    pipe = client.pipeline() if what != "address" else driver.server_driver.connector.blocking_client().pipeline()
    for node in cluster.nodes:
        node.client.script_flush()
    driver.server_driver.add_to_pipeline(pipe, count(key + "p"))
    driver.server_driver.add_to_pipeline(pipe, count("p{" + key))
    replies = pipe.execute()
    assert (await replies if "asyncio" in what else replies) == [1, 1]
    await driver.aclose()
    if hasattr(client, "aclose"):
        await client.aclose()
    elif what != "address":
        client.close()


async def test_a_slot_may_move(face: str, start: Callable[..., Server]):
    options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000")
    here, there = start(*options, port=free_port()), start(*options, port=free_port())
    here.ask("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
    here.ask("CLUSTER", "MEET", "127.0.0.1", there.port)

    def ready() -> bool:
        states = [one.ask("CLUSTER", "INFO") for one in (here, there)]
        return all("cluster_state:ok" in one and "cluster_known_nodes:2" in one for one in states)

    await until(ready)
    key, other = "{move}n", "{move}other"
    move = SlotMove(here, there, slot(key))
    driver = FaceDriver(face, f"valkey+cluster://127.0.0.1:{here.port}")
    assert await driver.run(count(key)) == 1
    async with driver.running(waiting(other, 10)) as task:
        await until(here.subscribers)
        move.begin()
        assert await driver.run(count("{move}new")) == 1  # ASK: a new key is created on the other node
        assert await driver.run(count("{move}new")) == 2
        move.finish()
        assert await driver.run(count(key)) == 2  # MOVED
        assert await driver.run(count("{move}new")) == 3
        assert await driver.run(count("{stays}n")) == 1
    assert task.result() == [""]
    addresses: list[str] = []
    async with driver.running(waiting(other, 10, addresses.append)) as task:
        await until(lambda: addresses and there.subscribers())
        await driver.run(send(other, addresses[0], "over here"))
    assert task.result() == ["over here"]
    await driver.aclose()


async def test_a_failover_behind_sentinel_is_followed(face: str, key: str, start: Callable[..., Server]):
    primary = start("--repl-diskless-sync-delay", "0", port=free_port())
    replica = start("--replicaof", "127.0.0.1", str(primary.port), port=free_port())
    primary.client.set(key, 1)
    await until(lambda: replica.client.get(key))
    with Sentinel(primary) as sentinel:
        driver = FaceDriver(face, f"valkey+sentinel://127.0.0.1:1,127.0.0.1:{sentinel.port}/main")
        assert await driver.run(count(key)) == 2
        assert driver.server_driver.connector.blocking_client().get(key) == b"2"
        assert await driver.server_driver.connector.aio_client().get(key) == b"2"
        await until(lambda: replica.client.get(key) == b"2")
        await until(sentinel.fail_over)
        await until(lambda: sentinel.primary_port() == replica.port)
        primary.kill()
        assert await driver.run(count(key)) == 3
        assert replica.client.get(key) == b"3"
        await driver.aclose()


async def test_a_silent_master_behind_sentinel_is_left(face: str, key: str, start: Callable[..., Server]):
    master = start("--repl-diskless-sync-delay", "0", port=free_port())
    replica = start("--replicaof", "127.0.0.1", str(master.port), port=free_port())
    with Sentinel(master) as sentinel:
        settings = Settings(reply_timeout=1, connect_timeout=1)
        driver = FaceDriver(face, f"valkey+sentinel://127.0.0.1:{sentinel.port},127.0.0.1:1/main", settings)
        assert await driver.run(count(key)) == 1
        await until(lambda: sentinel.is_ready(replicas=1, others=0))
        await until(lambda: replica.client.get(key) == b"1")
        with master.frozen():
            calls = [asyncio.create_task(driver.run(count(key))) for _ in range(5)]
            await until(lambda: replica.role() == "master")
            promoted = time.monotonic()
            assert sorted(await asyncio.gather(*calls)) == [2, 3, 4, 5, 6]
            assert time.monotonic() - promoted < scaled(5)
        assert await driver.run(count(key)) == 7
        await until(lambda: master.role() == "slave")
        assert await driver.run(count(key)) == 8
        await driver.aclose()
