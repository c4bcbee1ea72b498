"""After a fail-over, a face may be subscribed at the old primary, which is a replica now and accepts that.

The look-up was answered by a node that did not know yet. Messages reach the face through the new primary, whose scripts
count only the subscribers of their own node.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock import Lock, Penstock, Settings
from penstock.core.slots import SLOTS
from penstock.driver.route import Answer
from tests.clusters import ReplicatedCluster
from tests.conftest import Do, until
from tests.locks.conftest import FrozenFace
from tests.locks.test_lock import waiting
from tests.servers import Server, free_port
from tests.speed import scaled

LIMIT = 5.0
"""Seconds within which a waiter has what was released."""


@pytest.fixture(scope="module")
def servers() -> Iterator[ReplicatedCluster]:
    with ReplicatedCluster() as started:
        yield started


@pytest.fixture
def place() -> str:
    return "a cluster with replicas"


class Holder:
    """Another program, which holds a lock and listens to nothing."""

    def __init__(self, app: Penstock, lock: Lock) -> None:
        self._run, self._bindings = app._driver.blocking.run, lock.bindings
        self._request = lock.bindings.request.pack("penstock/h/1/holder", "")
        self._run(self._bindings.acquire(self._request, 0, join=False))

    def release(self) -> None:
        assert self._run(self._bindings.release(self._request)).was_held


async def subscribe_at_the_replica(servers: ReplicatedCluster, app: Penstock, patch: pytest.MonkeyPatch) -> None:
    """Fail over, and answer the look-ups of this app as a node would that has not heard of it."""
    old, new = servers.victim, servers.survivors[0]
    servers.replicate()
    new.ask("CLUSTER", "FAILOVER")
    await until(servers.has_failed_over)
    await until(lambda: new.subscribers() or old.subscribers())
    route = app._driver.connector.route
    assert route is not None
    stale = Answer([("127.0.0.1", old.port)] * SLOTS, [])
    with patch.context() as patched:
        patched.setattr(route, "read", lambda reply, asked: stale)

        def is_misled() -> bool:
            for one in new.subscribers():
                route.store(stale, 0)
                new.client.client_kill_filter(_id=one["id"])
            return len(old.subscribers()) == 1 and not new.subscribers()

        await until(is_misled)


@pytest.fixture
def app(servers: ReplicatedCluster, place: str) -> Iterator[Penstock]:
    with Penstock(servers.address, settings=Settings(ping_interval=1)) as opened:
        yield opened


@pytest.fixture
def other(servers: ReplicatedCluster) -> Iterator[Penstock]:
    with Penstock(servers.address) as opened:
        yield opened


async def test_a_waiter_has_the_lock_that_it_was_granted(
    servers: ReplicatedCluster, app: Penstock, other: Penstock, do: Do, monkeypatch: pytest.MonkeyPatch
):
    name = servers.name(str, "wanted")
    lock, holder = app.lock(name, lease=30), Holder(other, other.lock(name, lease=60))
    waits = asyncio.create_task(do(lock.acquire))
    await waiting(other.lock(name))
    await subscribe_at_the_replica(servers, app, monkeypatch)
    released = time.monotonic()
    holder.release()
    got = await waits
    assert time.monotonic() - released < scaled(LIMIT)
    assert servers.survivors[0].client.get(name) == got.token.encode()
    await do(got.release)
    servers.recover()


async def test_a_subscription_follows_its_slot_to_the_new_primary(
    servers: ReplicatedCluster, app: Penstock, other: Penstock, do: Do, monkeypatch: pytest.MonkeyPatch
):
    """As soon as a call of the process was redirected there."""
    old, new, name = servers.victim, servers.survivors[0], servers.name(str, "followed")
    lock, holder = app.lock(name, lease=30), Holder(other, other.lock(name, lease=60))
    waits = asyncio.create_task(do(lock.acquire))
    await waiting(other.lock(name))
    await subscribe_at_the_replica(servers, app, monkeypatch)
    await do(lock.info)
    await until(lambda: new.subscribers() and not old.subscribers(), LIMIT)
    holder.release()
    await do((await waits).release)
    servers.recover()


def test_no_grant_is_sent_to_a_face_that_is_subscribed_at_another_node(
    start: Callable[..., Server], frozen_face: FrozenFace
):
    """It is asked to try again, however many of its waiters are dropped."""
    primary = start("--repl-diskless-sync-delay", "0", port=free_port())
    replica = start("--replicaof", "127.0.0.1", str(primary.port), port=free_port())
    replica_sees: Any = replica.client.pubsub()
    replica_sees.ssubscribe("penstock:wake:there")
    assert replica_sees.get_sharded_message(timeout=10)["type"] == "ssubscribe"
    here = frozen_face(primary, "here", "x")
    with Penstock(primary.address) as app:
        lock = app.lock("x", lease=60)
        pack, call = lock.bindings.request.pack, app._driver.blocking.run
        held = lock.acquire()
        for n, address in enumerate(["penstock:wake:there/1", "penstock:wake:there/2", here]):
            call(lock.bindings.acquire(pack(f"penstock/h/1/{n}", address), 0, join=True))
        held.release()
        info = lock.info()
    assert info.holder is not None
    assert info.holder.token == "penstock/h/1/2"
    messages = []
    while (message := replica_sees.get_sharded_message(timeout=1)) is not None:
        messages.append(message["data"])
    replica_sees.close()
    assert [one for one in messages if one] == [b"* 0"]
