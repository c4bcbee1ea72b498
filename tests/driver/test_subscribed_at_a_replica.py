"""After a fail-over, a face may be subscribed at the old primary, which is a replica now and accepts that.

The look-up was answered by a node that did not know yet. Messages reach the face through the new primary, whose scripts
count only the subscribers of their own node.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from penstock import Lock, Penstock, Settings
from penstock.core.slots import Node
from penstock.locks.keys import BarrierKeys
from tests.clusters import ReplicatedCluster
from tests.conftest import Do, commands, until
from tests.locks import conftest
from tests.locks.test_lock import waiting
from tests.servers import RELEASE, Server, eventually, free_port
from tests.speed import scaled

pytestmark = pytest.mark.skipif(
    RELEASE.family == "redis" and RELEASE.version < (7, 2),
    reason="for up to a second after a fail-over Redis 7.0 passes no message on to the old primary (measured: 0.8 s)",
)

frozen_face = conftest.frozen_face

LIMIT = 5.0
"""Seconds within which a waiter has what was released."""


@pytest.fixture(scope="module")
def servers() -> Iterator[ReplicatedCluster]:
    with ReplicatedCluster() as started:
        yield started


class Holder:
    """Another program, which holds a lock and listens to nothing."""

    def __init__(self, app: Penstock, lock: Lock) -> None:
        self._run, self._bindings = app._driver.blocking.run, lock.bindings
        self._request = lock.bindings.request.pack("penstock/h/1/holder", "")
        self._run(self._bindings.acquire(self._request, 0, join=False))

    def release(self) -> None:
        assert self._run(self._bindings.release(self._request)).was_held


class Misled:
    """The face of a subscriber whose look-ups are answered by a node that has not heard of the fail-over."""

    def __init__(self, face: Any, old: Server) -> None:
        self._face = face
        self._node = ("127.0.0.1", old.port)
        self.is_on = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._face, name)

    def known_node(self, key: str) -> Node | None:
        return self._node if self.is_on else self._face.known_node(key)

    async def find_node(self, key: str) -> Node:
        return self._node if self.is_on else await self._face.find_node(key)


@pytest.fixture
def ping_interval() -> float:
    """Seconds. So often, a subscriber looks whether its slots have moved."""
    return 1.0


@pytest.fixture
async def app(servers: ReplicatedCluster, ping_interval: float) -> AsyncIterator[Penstock]:
    """Its subscribers believe for ever that the present primary is one."""
    with Penstock(servers.address, settings=Settings(ping_interval=ping_interval)) as opened:
        for face in (opened._driver.aio, opened._driver.blocking):
            face._subscriptions._face = Misled(face, servers.victim)  # type: ignore[assignment]
        yield opened
        servers.recover()


def undeceive(app: Penstock) -> None:
    for misled in (app._driver.aio._subscriptions._face, app._driver.blocking._subscriptions._face):
        assert isinstance(misled, Misled)
        misled.is_on = False


async def fail_over(servers: ReplicatedCluster) -> None:
    """Make the replica of the victim the primary. The victim has one subscriber, and keeps it."""
    old, new = servers.victim, servers.survivors[0]
    servers.replicate()
    new.ask("CLUSTER", "FAILOVER")
    await until(lambda: servers.has_failed_over() and old.role() == "slave" and old.subscribers())


@pytest.fixture
def other(servers: ReplicatedCluster) -> Iterator[Penstock]:
    with Penstock(servers.address) as opened:
        yield opened


async def test_a_waiter_has_the_lock_that_it_was_granted(
    servers: ReplicatedCluster, app: Penstock, other: Penstock, do: Do
):
    name = servers.name(str, "wanted")
    lock, holder = app.lock(name, lease=30), Holder(other, other.lock(name, lease=60))
    waits = asyncio.create_task(do(lock.acquire))
    await waiting(other.lock(name))
    await fail_over(servers)
    released = time.monotonic()
    holder.release()
    got = await waits
    assert time.monotonic() - released < scaled(LIMIT)
    assert servers.survivors[0].client.get(name) == got.token.encode()
    await do(got.release)


async def test_a_worker_that_is_forgotten_learns_of_it(
    servers: ReplicatedCluster, app: Penstock, other: Penstock, do: Do
):
    """The worker that becomes idle after it finds that it is not subscribed, and forgets it."""
    name = servers.name(lambda name: other.queue(name).first.bindings.keys.base, "jobs")
    waits = [asyncio.create_task(do(app.queue(name).claim, wait=60))]
    await until(servers.victim.subscribers)
    await fail_over(servers)
    await asyncio.sleep(1.1)  # once a second, an idle worker checks whether those before it are still there
    waits.append(asyncio.create_task(other.queue(name).claim.aio(wait=60)))
    await until(servers.survivors[0].subscribers)
    await asyncio.sleep(0.1)
    for n in range(2):
        await other.queue(name).put.aio(n)
    done, _ = await asyncio.wait(waits, timeout=scaled(LIMIT))
    assert len(done) == 2
    for claimed in await asyncio.gather(*waits):
        await claimed[0].complete.aio()


async def test_a_subscription_follows_its_slot_to_the_new_primary(
    servers: ReplicatedCluster, app: Penstock, other: Penstock, do: Do
):
    """As soon as a call of the process was redirected there."""
    old, new, name = servers.victim, servers.survivors[0], servers.name(str, "followed")
    lock, holder = app.lock(name, lease=30), Holder(other, other.lock(name, lease=60))
    waits = asyncio.create_task(do(lock.acquire))
    await waiting(other.lock(name))
    await fail_over(servers)
    undeceive(app)
    await do(lock.info)
    await until(lambda: new.subscribers() and not old.subscribers(), LIMIT)
    holder.release()
    await do((await waits).release)


class Replica:
    """A server, and a face `there` that is subscribed at a replica of it."""

    def __init__(self, start: Callable[..., Server]) -> None:
        self.primary = start("--repl-diskless-sync-delay", "0", port=free_port())
        replica = start("--replicaof", "127.0.0.1", str(self.primary.port), port=free_port())
        self._subscriber: Any = replica.client.pubsub()
        self._subscriber.ssubscribe("penstock:wake:there")
        assert self._subscriber.get_sharded_message(timeout=10)["type"] == "ssubscribe"
        eventually(lambda: "online" in self.primary.ask("INFO", "replication"))

    def messages(self) -> list[bytes]:
        """What the face has received, but for the empty messages that every face ignores."""
        found = []
        while (message := self._subscriber.get_sharded_message(timeout=1)) is not None:
            found.append(message["data"])
        return [one for one in found if one]


@pytest.mark.parametrize("ping_interval", [30.0])
async def test_parties_that_ask_each_other_to_look_do_so_once(
    servers: ReplicatedCluster, app: Penstock, other: Penstock, do: Do
):
    """A message to the old primary makes a party look, which probes the others, until the subscription has moved."""
    name = servers.name(lambda name: BarrierKeys(app.settings.prefix, name).declared[0], "meeting")
    meeting = app.barrier(name, parties=6, lease=60)
    waits = [asyncio.create_task(do(meeting.wait)) for _ in range(4)]
    last: Any = other.barrier(name, parties=6, lease=60)
    await waiting(last, 4)
    await fail_over(servers)
    undeceive(app)
    before = commands(servers.survivors[0].client)
    waits.append(asyncio.create_task(last.wait.aio()))
    await asyncio.sleep(2)
    spent = commands(servers.survivors[0].client) - before
    assert spent < 100
    await last.wait.aio()
    await asyncio.gather(*waits)


@pytest.fixture
def replica(start: Callable[..., Server]) -> Replica:
    return Replica(start)


def test_a_listener_that_is_not_counted_looks_at_once(replica: Replica):
    """The caller forgets it, so it has to register again, whatever the message asks for."""
    with Penstock(replica.primary.address) as app:
        lock = app.lock("x", lease=60)
        request, run = lock.bindings.request.pack("penstock/h/1/holder", ""), app._driver.blocking.run
        run(lock.bindings.acquire(request, 0, join=False))
        run(lock.bindings.renew(request, 60, address="penstock:wake:there/7"))
        lock.break_("it hangs")
    assert replica.messages() == [b"7 penstock/h/1/holder it hangs", b"7 "]


def test_no_grant_is_sent_to_a_face_that_is_subscribed_at_another_node(
    replica: Replica, frozen_face: conftest.FrozenFace
):
    """It is asked to try again, however many of its waiters are dropped."""
    here = frozen_face(replica.primary, "here", "x")
    with Penstock(replica.primary.address) as app:
        lock = app.lock("x", lease=60)
        pack, call = lock.bindings.request.pack, app._driver.blocking.run
        held = lock.acquire()
        for n, address in enumerate(["penstock:wake:there/1", "penstock:wake:there/2", here]):
            call(lock.bindings.acquire(pack(f"penstock/h/1/{n}", address), 0, join=True))
        held.release()
        info = lock.info()
    assert info.holder is not None
    assert info.holder.token == "penstock/h/1/2"
    assert replica.messages() == [b"* "]
