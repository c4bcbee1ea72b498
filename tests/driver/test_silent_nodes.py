"""Nodes that fall silent: their sockets stay open, but no reply arrives."""

import asyncio
import contextlib
import errno
import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import redis
import valkey

from penstock.core.operations import FindNodes, InBackground, Operation, Parallel
from penstock.driver.retrying import LOST, SILENT, error_code
from penstock.driver.server_driver import ServerDriver
from penstock.errors import ServerUnavailable
from penstock.settings import Settings
from tests.conftest import until
from tests.driver.operations import QUICK, FaceDriver, append, count, shown
from tests.servers import Cluster, Server, eventually, free_port
from tests.speed import scaled

HEALTHY_WITHIN = 0.5
"""The longest call to a healthy node, while another one is silent."""

_prefixes = (f"s{n}" for n in itertools.count())


@pytest.fixture(scope="module")
def patient_cluster() -> Iterator[Cluster]:
    """A cluster that continues to serve while one of its nodes is frozen."""
    with Cluster() as started:
        for node in started.nodes:
            node.ask("CONFIG", "SET", "cluster-node-timeout", 60_000)
        yield started


@pytest.fixture
def node_keys(patient_cluster: Cluster) -> list[list[str]]:
    """New keys on each node of the cluster."""
    prefix = next(_prefixes)
    keys = [f"{{{prefix}.{n}}}" for n in range(200)]
    return [[key for key in keys if patient_cluster.owner(key) is node] for node in patient_cluster.nodes]


class Producers:
    """Threads, or tasks, that call without end; `slowest` is the longest call in seconds."""

    def __init__(self, driver: FaceDriver, keys: list[str]) -> None:
        self._driver = driver
        self._keys = keys
        self._stopped = False
        self.slowest = 0.0
        self.done = 0

    @contextlib.asynccontextmanager
    async def running(self) -> Any:
        tasks = [asyncio.create_task(self._produce(key)) for key in self._keys]
        try:
            yield
        finally:
            self._stopped = True
            await asyncio.gather(*tasks)

    async def _produce(self, key: str) -> None:
        while not self._stopped:
            began = time.monotonic()
            with contextlib.suppress(ServerUnavailable):
                await self._driver.run(count(key))
                self.done += 1
            self.slowest = max(self.slowest, time.monotonic() - began)
            await asyncio.sleep(0.005)


async def test_a_silent_node_delays_no_call_to_the_others(
    face: str, patient_cluster: Cluster, node_keys: list[list[str]]
):
    driver = FaceDriver(face, patient_cluster.address, Settings(reply_timeout=0.5, give_up_after=2))
    here, frozen, there = node_keys
    to_frozen, to_others = Producers(driver, frozen[:3]), Producers(driver, here[:6] + there[:6])
    async with to_frozen.running(), to_others.running():
        await until(lambda: to_frozen.done and to_others.done > 20)
        with patient_cluster.nodes[1].frozen():
            await asyncio.sleep(5)
        served = to_frozen.done
        await until(lambda: to_frozen.done > served + 3)
    assert to_others.slowest < scaled(HEALTHY_WITHIN)
    await driver.aclose()


async def test_a_silent_node_delays_no_first_call_to_the_others(
    face: str, patient_cluster: Cluster, node_keys: list[list[str]]
):
    here, _, there = node_keys
    addresses = ",".join(f"127.0.0.1:{node.port}" for node in patient_cluster.nodes)
    with patient_cluster.nodes[1].frozen():
        for key in [*here[:4], *there[:4]]:
            driver = FaceDriver(face, f"valkey+cluster://{addresses}")
            began = time.monotonic()
            assert await driver.run(count(key)) == 1
            assert time.monotonic() - began < scaled(HEALTHY_WITHIN)
            await driver.aclose()


async def test_many_callers_share_one_look_up(face: str, patient_cluster: Cluster, node_keys: list[list[str]]):
    def look_ups() -> int:
        stats = [node.client.info("commandstats") for node in patient_cluster.nodes]
        return sum(one.get("cmdstat_cluster|slots", {"calls": 0})["calls"] for one in stats)

    driver, keys = FaceDriver(face, patient_cluster.address), node_keys[0][:20]
    before = look_ups()
    await asyncio.gather(*(driver.run(count(key)) for key in keys))
    assert look_ups() - before <= 3
    node = ("127.0.0.1", patient_cluster.nodes[0].port)
    route = driver.server_driver.connector.route
    assert route is not None
    before = look_ups()
    await asyncio.sleep(0.3)  # the last look-up is trusted for a while
    route.forget(node)
    await asyncio.gather(*(driver.run(count(key)) for key in keys))
    assert look_ups() - before <= 3
    await driver.aclose()


async def test_parallel_calls_to_the_other_nodes_are_sent(
    face: str, patient_cluster: Cluster, node_keys: list[list[str]]
):
    keys = [key for some in zip(*node_keys, strict=False) for key in some][:9]
    driver = FaceDriver(
        face, patient_cluster.address, replace(QUICK, reply_timeout=0.5, connect_timeout=0.5, give_up_after=1)
    )

    def operation() -> Operation[list[int]]:
        answers: list[int] = yield Parallel(tuple(count(key) for key in keys))
        return answers

    assert await driver.run(operation()) == [1] * 9
    others = [key for key in keys if patient_cluster.owner(key) is not patient_cluster.nodes[1]]
    if face == "blocking":  # a thread has to find out first which node is silent
        driver.server_driver.connector.hang_up(("127.0.0.1", patient_cluster.nodes[1].port))
    with patient_cluster.nodes[1].frozen():
        task = asyncio.create_task(driver.run(operation()))
        began = time.monotonic()
        await until(lambda: all(patient_cluster.owner(key).client.get(key) == b"2" for key in others))
        assert time.monotonic() - began < scaled(HEALTHY_WITHIN)
        with pytest.raises(ServerUnavailable):
            await asyncio.wait_for(task, scaled(20))
    assert await driver.run(operation()) in ([3] * 9, [3 if key in others else 2 for key in keys])
    await driver.aclose()


async def test_the_nodes_are_found_while_one_is_silent(face: str, patient_cluster: Cluster):
    def operation() -> Operation[list[Any]]:
        return (yield FindNodes())

    driver = FaceDriver(face, patient_cluster.address)
    found = await driver.run(operation())
    assert sorted(port for _, port in found) == sorted(node.port for node in patient_cluster.nodes)
    route = driver.server_driver.connector.route
    assert route is not None
    await asyncio.sleep(0.3)
    route.forget(found[0], patient=True)
    assert sorted(await driver.run(operation())) == sorted(found)
    assert route.positions_to_look_up() == []
    await driver.aclose()


@pytest.mark.parametrize("library", [valkey, redis])
def test_silence_differs_from_a_closed_connection(library: Any):
    unreachable = library.ConnectionError("Error 113 connecting to host:6379.")
    unreachable.__context__ = OSError(errno.EHOSTUNREACH, "No route to host")
    for silent in (library.TimeoutError(), TimeoutError(), OSError(errno.ETIMEDOUT, "timed out"), unreachable):
        assert error_code(silent) == SILENT
    for closed in (library.ConnectionError("closed"), ConnectionRefusedError(), EOFError()):
        assert error_code(closed) == LOST


# --- failover ---


@pytest.fixture
def replicated_cluster() -> Iterator[tuple[Cluster, Server]]:
    """A cluster, and a replica of its second node."""
    options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--repl-diskless-sync-delay", "0")
    with Cluster() as cluster, Server(*options, port=free_port()) as replica:
        for node in cluster.nodes:
            node.ask("CONFIG", "SET", "repl-diskless-sync-delay", 0)
            node.ask("CONFIG", "SET", "cluster-node-timeout", 1000)
        replica.ask("CLUSTER", "MEET", "127.0.0.1", cluster.nodes[0].port)
        number = cluster.nodes[1].ask("CLUSTER", "MYID")
        eventually(lambda: number in replica.ask("CLUSTER", "NODES"))
        eventually(lambda: replica.ask("CLUSTER", "REPLICATE", number) == "OK")
        eventually(lambda: replica.replication().get("master_link_status") == "up")
        eventually(lambda: all("slave" in node.ask("CLUSTER", "NODES") for node in cluster.nodes))
        yield cluster, replica


async def test_a_silent_primary_is_left_for_its_replica(face: str, replicated_cluster: tuple[Cluster, Server]):
    cluster, replica = replicated_cluster
    old = cluster.nodes[1]
    keys = [key for key in (f"{{f{n}}}" for n in range(100)) if cluster.owner(key) is old][:6]
    driver = FaceDriver(face, cluster.address, Settings(reply_timeout=1, connect_timeout=1))
    assert [await driver.run(count(key)) for key in keys] == [1] * 6
    await until(lambda: "cluster_state:ok" in replica.ask("CLUSTER", "INFO"))
    with old.frozen():
        calls = [asyncio.create_task(driver.run(count(key))) for key in keys]
        await until(lambda: replica.role() == "master")
        promoted = time.monotonic()
        answers = await asyncio.gather(*calls)
        assert time.monotonic() - promoted < scaled(5)
        assert set(answers) <= {1, 2}  # the replica may have missed the last writes
    await until(lambda: old.role() == "slave")  # the old primary is back, as a replica
    assert [await driver.run(count(key)) for key in keys] == [answer + 1 for answer in answers]
    await driver.aclose()


# --- hanging up ---


async def test_a_silent_node_is_hung_up_on_every_face(own_server: Server, key: str):
    driver = ServerDriver(own_server.address, replace(QUICK, reply_timeout=60))
    ready, go, ended = threading.Barrier(4), threading.Event(), list[Any]()

    async def on_a_loop() -> list[str]:
        await driver.aio.run(count(key))
        await asyncio.to_thread(ready.wait)
        await asyncio.to_thread(go.wait)
        answer: list[str] = await driver.aio.run(shown(key + "list"))
        await driver.aclose_loop()
        return answer

    def in_a_thread() -> list[str]:
        driver.blocking.run(count(key))
        ready.wait()
        go.wait()
        return driver.blocking.run(shown(key + "list"))

    async def on_a_loop_that_ends() -> None:
        await driver.aio.run(count(key))
        ended.append(driver.aio)
        await driver.aclose_loop()

    await asyncio.to_thread(asyncio.run, on_a_loop_that_ends())
    works = (asyncio.to_thread(asyncio.run, on_a_loop()), asyncio.to_thread(in_a_thread), on_a_loop())
    tasks = [asyncio.create_task(work) for work in works]
    await asyncio.to_thread(ready.wait)
    before = {one["id"] for one in own_server.client.client_list()}
    with own_server.frozen():
        go.set()
        await asyncio.sleep(0.5)
        await asyncio.to_thread(driver.connector.hang_up, (str(own_server.socket), 0))
        await asyncio.sleep(0.2)
    for task in tasks:
        assert await asyncio.wait_for(task, scaled(20)) == []
    assert len(before) == 4
    assert len(before & {one["id"] for one in own_server.client.client_list()}) == 1  # the test's own
    await driver.aclose()


def test_a_forked_child_hangs_up_no_connection_of_its_parent(key: str, server: Server):
    code = """if True:
        import os, sys
        from penstock.driver.server_driver import ServerDriver
        from tests.driver.operations import count
        driver = ServerDriver(sys.argv[1])
        driver.blocking.run(count(sys.argv[2]))
        connections = list(driver.blocking._idle.values())[0][:]
        if child := os.fork():
            assert os.waitpid(child, 0)[1] == 0
            assert driver.blocking.run(count(sys.argv[2])) == 3
            assert list(driver.blocking._idle.values())[0] == connections
        else:
            driver.blocking.run(count(sys.argv[2]))
            driver.connector.hang_up((sys.argv[1].removeprefix("unix://"), 0))
        driver.close()
    """
    subprocess.run([sys.executable, "-c", code, server.address, key], check=True)


# --- an event loop that was blocked ---


async def test_a_reply_that_arrived_while_the_loop_was_blocked_is_not_lost(own_server: Server, key: str):
    driver = FaceDriver("aio", own_server.address, replace(QUICK, reply_timeout=0.2))
    await driver.run(append(key, "a"))
    for size in (1, 200):
        tasks = [asyncio.create_task(driver.run(append(key, "b"))) for _ in range(size)]
        await asyncio.sleep(0)
        time.sleep(0.4)
        await asyncio.gather(*tasks)
    assert len(await driver.run(shown(key))) == 202
    await driver.aclose()


async def test_a_login_that_was_answered_while_the_loop_was_blocked_is_not_lost(own_server: Server, key: str):
    driver = FaceDriver("aio", own_server.address, replace(QUICK, connect_timeout=0.2))
    before = own_server.client.info("stats")["total_connections_received"]
    task = asyncio.create_task(driver.run(count(key)))
    for _ in range(4):
        await asyncio.sleep(0)
    time.sleep(1)
    assert await task == 1
    assert own_server.client.info("stats")["total_connections_received"] == before + 1
    await driver.aclose()


async def test_work_in_the_background_delays_its_caller_only_briefly(
    face: str, patient_cluster: Cluster, node_keys: list[list[str]]
):
    driver = FaceDriver(face, patient_cluster.address, replace(QUICK, reply_timeout=0.5, give_up_after=30))
    silent, healthy = node_keys[0][0], node_keys[1][0]

    def both() -> Operation[None]:
        yield Parallel((count(silent), count(healthy)))

    def operation() -> Operation[int]:
        yield InBackground(both(), 0.2)
        return (yield count(healthy))

    await driver.run(count(silent))
    with patient_cluster.nodes[0].frozen():
        began = time.monotonic()
        assert await driver.run(operation()) >= 1
        assert time.monotonic() - began < scaled(2)
    await until(lambda: patient_cluster.nodes[0].client.get(silent) == b"2")
    await until(lambda: patient_cluster.nodes[1].client.get(healthy) == b"2")
    await driver.aclose()
