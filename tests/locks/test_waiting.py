"""Many waiters: few connections, and the order is kept whatever happens to the connections."""

import asyncio
import random
import time
from functools import partial
from typing import Any

import pytest

from penstock import Lock, Penstock
from penstock.core.slots import slot
from penstock.errors import ServerUnavailable
from tests.conftest import Do, MakeApp, until
from tests.servers import Cluster, Server
from tests.slot_moves import move_slot
from tests.speed import Deadline, scaled

one_place = pytest.mark.parametrize("place", ["valkey"])


async def waiting(lock: Lock, n: int) -> None:
    deadline = Deadline(30)
    while (await lock.info.aio()).waiting != n:
        assert not deadline.passed(), "the number of waiters was not reached"
        await asyncio.sleep(0.005)


async def contend(lock: Lock, label: int, order: list[int]) -> None:
    """Wait for the lock, note that it was granted, and release it."""
    async with lock as held:
        held.check()
        order.append(label)


async def line_up(locks: list[Lock], order: list[int]) -> list[asyncio.Task[None]]:
    """One waiter for each lock object, one behind the other."""
    tasks = []
    for n, lock in enumerate(locks):
        tasks.append(asyncio.create_task(contend(lock, n, order)))
        await waiting(locks[0], n + 1)
    return tasks


def calls(client: Any) -> int:
    stats = client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha"))


# --- connections ---


@pytest.mark.parametrize("place", ["valkey", "cluster"])
async def test_a_thousand_waits_for_a_thousand_locks_share_a_connection(
    app: Penstock, make_app: MakeApp, deployment: Any, nodes: list[Any]
):
    names, other = [f"thousand:{n}" for n in range(1000)], make_app()
    servers = deployment.nodes if isinstance(deployment, Cluster) else [deployment]
    helds = await asyncio.gather(*(other.lock(name, lease=60).acquire.aio() for name in names))
    before = [len(node.client_list()) for node in nodes]
    tasks = [asyncio.create_task(app.lock(name, lease=60).acquire.aio()) for name in names]
    await until(
        lambda: sum(1 for node in nodes for _ in node.scan_iter(match="*thousand:*waiters", count=5000)) == 1000
    )
    # One is of the app that waits. The app that holds the locks has another, to be notified if one is broken.
    await until(lambda: all(1 <= len(server.subscribers()) <= 2 for server in servers))
    # Beside the subscribed connections, there is the one on which the app sends its commands.
    assert all(len(node.client_list()) - known <= 4 for node, known in zip(nodes, before, strict=True))
    began = time.monotonic()
    await asyncio.gather(*(held.release.aio() for held in helds))
    got = await asyncio.gather(*tasks)
    assert time.monotonic() - began < scaled(1.8)  # without a message they would ask again after two seconds
    await asyncio.gather(*(held.release.aio() for held in got))


# --- lost connections ---


@one_place
async def test_waiters_keep_their_order_when_their_connections_are_lost(
    make_app: MakeApp, app: Penstock, deployment: Server, raw: Any
):
    apps = [app, *(make_app() for _ in range(3))]
    held = await app.lock("kept", lease=30).acquire.aio()
    order: list[int] = []
    tasks = await line_up([apps[n % 4].lock("kept", lease=30) for n in range(16)], order)

    def asked_again(total: int) -> bool:
        return calls(raw) >= total

    line = raw.zrange(app.lock("kept", lease=30).bindings.declared[0] + "waiters", 0, -1, withscores=True)
    for _ in range(3):
        sent = calls(raw)
        raw.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        # One more is the owner's, which listens for a break once it has held the lock for a second.
        await until(lambda: len(deployment.subscribers()) in (4, 5))
        await until(partial(asked_again, sent + 16))
    assert raw.zrange(app.lock("kept", lease=30).bindings.declared[0] + "waiters", 0, -1, withscores=True) == line
    await held.release.aio()
    await asyncio.wait_for(asyncio.gather(*tasks), scaled(1.8))
    assert order == list(range(16))


@one_place
async def test_a_release_while_no_waiter_is_connected_is_noticed_at_once(make_app: MakeApp, app: Penstock, raw: Any):
    apps = [app, *(make_app() for _ in range(3))]
    held = await app.lock("noticed", lease=30).acquire.aio()
    order: list[int] = []
    tasks = await line_up([apps[n % 4].lock("noticed", lease=30) for n in range(16)], order)
    began = time.monotonic()
    raw.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
    await held.release.aio()
    await asyncio.wait_for(asyncio.gather(*tasks), scaled(10))
    assert time.monotonic() - began < scaled(1.8)  # nobody waited for an offer to end
    assert sorted(order) == list(range(16))


@one_place
async def test_nobody_is_forgotten_while_connections_are_lost_all_the_time(make_app: MakeApp, raw: Any):
    apps, chance, inside = [make_app() for _ in range(4)], random.Random(5), 0

    async def work(app: Penstock) -> None:
        nonlocal inside
        for _ in range(15):
            async with app.lock("storm", lease=30):
                inside += 1
                assert inside == 1
                await asyncio.sleep(chance.uniform(0, 0.004))
                inside -= 1

    async def cut() -> None:
        while True:
            raw.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
            await asyncio.sleep(chance.uniform(0, 0.05))

    cutting = asyncio.create_task(cut())
    await asyncio.wait_for(asyncio.gather(*(work(app) for app in apps for _ in range(4))), scaled(40))
    cutting.cancel()


# --- a slot that moves ---


async def test_waiters_follow_a_slot_to_another_node(small_cluster: Cluster):
    app, other = Penstock(small_cluster.address), Penstock(small_cluster.address)
    source = small_cluster.owner("moving")
    target = next(node for node in small_cluster.nodes if node is not source)
    held = await app.lock("moving", lease=30).acquire.aio()
    order: list[int] = []
    tasks = await line_up([(app, other)[n % 2].lock("moving", lease=30) for n in range(10)], order)
    move_slot(source, target, slot("moving"))
    await until(lambda: len(target.subscribers()) == 2)
    await held.release.aio()
    await asyncio.wait_for(asyncio.gather(*tasks), scaled(10))
    assert order == list(range(10))
    move_slot(target, source, slot("moving"))
    await app.aclose()
    await other.aclose()
    for node in small_cluster.nodes:
        node.client.flushall()


# --- closing ---


@one_place
async def test_closing_the_app_ends_its_waits(make_app: MakeApp, app: Penstock, do: Do):
    held = await app.lock("closed", lease=30).acquire.aio()
    closing, third = make_app(), make_app()
    tasks = [asyncio.create_task(do(closing.lock("closed", lease=30).acquire)) for _ in range(5)]
    await waiting(app.lock("closed", lease=30), 5)
    behind = asyncio.create_task(do(third.lock("closed", lease=30).acquire))
    await waiting(app.lock("closed", lease=30), 6)
    began = time.monotonic()
    await closing.aclose()
    for task in tasks:
        with pytest.raises(ServerUnavailable, match="closed"):
            await task
    assert time.monotonic() - began < scaled(3)
    began = time.monotonic()
    await held.release.aio()
    await (await behind).release.aio()
    assert time.monotonic() - began < scaled(1)
