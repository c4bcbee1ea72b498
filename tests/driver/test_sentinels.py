"""Behind Sentinels: a process hears of a fail-over, whether it waits or not, and a durable call in doubt raises."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator

import pytest

from penstock import NotDurable
from penstock.core.slots import Node
from penstock.driver.address import ServerAddress
from penstock.driver.route import Route
from penstock.driver.sentinels import PrimaryChecks
from tests.clusters import SentinelServers
from tests.conftest import until
from tests.driver.operations import FaceDriver, append, shown
from tests.servers import eventually
from tests.speed import scaled


@pytest.fixture
def servers() -> Iterator[SentinelServers]:
    with SentinelServers() as started:
        yield started


async def test_a_process_that_only_produces_follows_a_fail_over(face: str, servers: SentinelServers):
    driver = FaceDriver(face, servers.address)
    await driver.run(append("{only}k", "before"))
    route = driver.server_driver.connector.route
    assert route is not None
    old = route.primaries()
    await until(lambda: all(b"sub=4" in one.client.execute_command("CLIENT", "LIST") for one in servers.sentinels))
    servers.plan_fail_over()
    eventually(lambda: any(one.role() == "master" for one in servers.replicas))
    promoted = time.monotonic()
    await until(lambda: route.primaries() != old)
    assert time.monotonic() - promoted < scaled(0.5)
    await driver.run(append("{only}k", "after"))
    new = next(one for one in servers.replicas if one.role() == "master")
    assert new.client.lrange("{only}k", 0, -1) == [b"before", b"after"]
    await driver.aclose()
    assert "penstock watches Sentinels" not in [thread.name for thread in threading.enumerate()]


async def test_a_durable_call_is_in_doubt_while_a_fail_over_is_under_way(
    face: str, servers: SentinelServers, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("penstock.driver.sentinel_watch.SentinelWatch.start", lambda _: None)  # it hears nothing
    driver = FaceDriver(face, servers.address)
    await driver.run(append("{doubt}k", "before", durable=True))
    servers.plan_fail_over()
    eventually(lambda: any(one.role() == "master" for one in servers.replicas))
    with pytest.raises(NotDurable, match="a fail-over is under way"):
        await driver.run(append("{doubt}k", "in doubt", durable=True))
    await driver.aclose()


async def test_a_durable_call_is_confirmed_by_the_sentinels_that_answer(face: str, servers: SentinelServers):
    driver = FaceDriver(face, servers.address)
    servers.sentinels[0].freeze()
    await driver.run(append("{some}k", "one", durable=True))
    began = time.monotonic()
    for _ in range(5):
        await driver.run(append("{some}k", "more", durable=True))
    assert time.monotonic() - began < scaled(0.4)  # the silent one is left out for a while
    for one in servers.sentinels[1:]:
        one.freeze()
    with pytest.raises(NotDurable, match="no Sentinel says"):
        await driver.run(append("{some}k", "alone", durable=True))
    for one in servers.sentinels:
        one.thaw()
    assert await driver.run(shown("{some}k")) == ["one", *["more"] * 5, "alone"]
    await driver.aclose()


def state(port: int, epoch: int, flags: bytes = b"master") -> list[bytes]:
    return [b"ip", b"h", b"port", b"%d" % port, b"flags", flags, b"config-epoch", b"%d" % epoch]


def test_what_a_sentinel_says_of_a_primary():
    route, asked = Route(ServerAddress("sentinel", (("s", 1),), "", service="main")), ("s", 1)
    leads = b"master,failover_in_progress"
    route.store(route.read([[b"h", b"7"], state(7, epoch=2)], asked), 0)
    assert route.has_primary(state(7, epoch=2), ("h", 7)) is True
    assert route.has_primary(state(8, epoch=3), ("h", 7)) is False
    assert route.has_primary(state(7, 2, leads), ("h", 7)) is False
    assert route.has_primary(state(6, 2, leads), ("h", 7)) is True, "the node is the one that was promoted"
    assert route.has_primary(state(6, epoch=1), ("h", 7)) is None, "it has missed a fail-over"
    assert route.is_doubtful(route.read([[b"h", b"6"], state(6, epoch=1)], asked), 0, None)


async def test_calls_that_are_confirmed_meanwhile_share_the_next_question():
    asked, tasks = list[object](), dict[object, asyncio.Task[None]]()

    class Face:
        async def exchange_each(self, nodes: tuple[Node, ...], command: object) -> dict[Node, object]:
            asked.append(command)
            await asyncio.sleep(0.01)
            return {node: state(7, epoch=0) for node in nodes}

        async def share(self, what: object, work: Callable[[], Coroutine[None, None, None]]) -> None:
            if (running := tasks.get(what)) is None or running.done():  # its callback runs a little later
                running = tasks[what] = asyncio.create_task(work())
            await running

    route = Route(ServerAddress("sentinel", (("s", 1),), "", service="main"))
    checks = PrimaryChecks(Face())  # type: ignore[arg-type]
    first = asyncio.create_task(checks.confirm(route, ("h", 7)))
    await asyncio.sleep(0.005)
    assert await asyncio.gather(*(checks.confirm(route, ("h", 7)) for _ in range(50))) == [True] * 50
    assert await first
    assert len(asked) == 2
