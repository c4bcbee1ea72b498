"""Waiters whose process is gone delay the others by milliseconds, however many they are."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from penstock import Penstock
from penstock.locks.leased import LeasedResource
from tests.conftest import MakeApp, until
from tests.locks.absent_waiters import leased
from tests.locks.conftest import Crowd
from tests.servers import Server, eventually
from tests.speed import scaled

KINDS = ["lock", "semaphore", "rwlock"]

pytestmark = pytest.mark.parametrize("place", ["valkey"])


@pytest.mark.parametrize("kind", KINDS)
async def test_a_crowd_that_was_killed_delays_the_last_waiter_by_milliseconds(
    app: Penstock, make_app: MakeApp, kind: str, crowd: Callable[..., Crowd]
):
    name = f"crowd:{kind}"
    held = await leased(app, kind, name).acquire.aio()
    absent = crowd(kind, name, processes=3, faces=5, waiters=20)
    await absent.arrived()
    last = asyncio.create_task(leased(make_app(prefix=app.settings.prefix), kind, name).acquire.aio())
    await until(lambda: absent.waiting() == absent.size + 1)
    absent.kill()
    await asyncio.sleep(0.2)
    began = time.monotonic()
    await held.release.aio()
    got = await asyncio.wait_for(last, scaled(1.5))
    assert time.monotonic() - began < scaled(0.05)
    await got.release.aio()


async def test_a_lock_passes_on_soon_after_its_lease_when_the_owner_died_with_all_that_were_to_check(
    app: Penstock, make_app: MakeApp, raw: Any, crowd: Callable[..., Crowd], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("penstock.locks.last_tries.INTERVAL", 2.0)
    raw.set("orphan", "penstock/elsewhere/1/x", px=60000)
    absent = crowd("lock", "orphan", processes=2, faces=5, waiters=5)
    await absent.arrived()
    await asyncio.sleep(2.5)  # each has asked again for the first time
    last = asyncio.create_task(make_app().lock("orphan", lease=30).acquire.aio())
    await until(lambda: absent.waiting() == absent.size + 1)
    await asyncio.sleep(2.5)
    absent.kill()
    raw.pexpire("orphan", 100)
    began = time.monotonic()
    await (await asyncio.wait_for(last, scaled(10))).release.aio()
    assert time.monotonic() - began < scaled(3)


# --- more than one call of a script drops ---

MANY = 1000

Die = Callable[[], None]
Join = Callable[[LeasedResource[Any, Any]], Die]


@pytest.fixture
def thousand_waiters(deployment: Server) -> Join:
    """Adds a thousand waiters, each of a process of its own. Returns a function that makes all processes die."""
    client = deployment.client

    def subscribed() -> int:
        return len(client.execute_command("PUBSUB", "SHARDCHANNELS", "penstock:wake:many*"))

    def join(one: LeasedResource[Any, Any]) -> Die:
        bindings, channels = one.bindings, [f"penstock:wake:many{n}" for n in range(MANY)]
        processes: Any = client.pubsub()
        processes.ssubscribe(*channels)
        eventually(lambda: subscribed() == MANY)
        pipe = client.pipeline(transaction=False)
        for n, channel in enumerate(channels):
            request = bindings.request.pack(f"penstock/elsewhere/1/{n}", f"{channel}/1")
            source = bindings.scripts["acquire"].source
            pipe.execute_command("EVAL", source, len(bindings.declared), *bindings.declared, request, 0, 1)
        pipe.execute()

        def die() -> None:
            processes.close()
            eventually(lambda: subscribed() == 0)

        return die

    return join


@pytest.mark.parametrize("kind", KINDS)
async def test_the_dead_do_not_accumulate_while_one_owner_keeps_the_lock(app: Penstock, raw: Any, kind: str):
    one = leased(app, kind, "kept")
    held = await one.acquire.aio()
    for n in range(400):
        dead = one.bindings.request.pack(f"penstock/elsewhere/1/{n}", f"penstock:wake:dead{n}/1")
        await app._driver.aio.run(one.bindings.acquire(dead, 0, join=True))
    assert raw.zcard(one.bindings.declared[0] + "waiters") < 100
    await held.release.aio()


async def newest(client: Any, one: LeasedResource[Any, Any]) -> asyncio.Task[Any]:
    """A waiter behind the thousand."""
    task = asyncio.create_task(one.acquire.aio())
    await until(lambda: client.zcard(one.bindings.declared[0] + "waiters") == MANY + 1)
    return task


@pytest.mark.parametrize("kind", KINDS)
async def test_a_release_reaches_the_last_of_a_thousand_waiters(
    app: Penstock, raw: Any, kind: str, thousand_waiters: Join
):
    held = await leased(app, kind, "far").acquire.aio()
    die = thousand_waiters(leased(app, kind, "far"))
    last = await newest(raw, leased(app, kind, "far"))
    die()
    began = time.monotonic()
    await held.release.aio()
    got = await asyncio.wait_for(last, scaled(1.5))
    assert time.monotonic() - began < scaled(0.1)
    await got.release.aio()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_request_that_does_not_wait_passes_over_a_thousand_waiters(
    app: Penstock, raw: Any, kind: str, thousand_waiters: Join
):
    one = leased(app, kind, "behind")
    held = await one.acquire.aio()
    thousand_waiters(one)()
    held.renewing = False
    raw.delete(one.bindings.declared[1])  # the owner died, and its lease has ended
    one.wait = 0
    await (await one.acquire.aio()).release.aio()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_waiter_continues_when_the_releasing_process_dies_halfway(
    app: Penstock, raw: Any, kind: str, thousand_waiters: Join
):
    one = leased(app, kind, "half")
    held = await one.acquire.aio()
    die = thousand_waiters(one)
    last = await newest(raw, leased(app, kind, "half"))
    await asyncio.sleep(2.5)  # it has asked again for the first time
    die()
    held.renewing = False
    began = time.monotonic()
    assert (await app._driver.aio.run(held._release_call)).more
    got = await last
    assert time.monotonic() - began < scaled(1.8)
    await got.release.aio()


async def test_a_higher_limit_reaches_the_last_of_a_thousand_waiters(app: Penstock, raw: Any, thousand_waiters: Join):
    semaphore = app.semaphore("limited", limit=2)
    await semaphore.set_limit.aio(1)
    held = await semaphore.acquire.aio()
    die = thousand_waiters(semaphore)
    last = await newest(raw, semaphore)
    die()
    await semaphore.set_limit.aio(2)
    got = await asyncio.wait_for(last, scaled(1))
    for one in (held, got):
        await one.release.aio()
    await semaphore.set_limit.aio(None)
