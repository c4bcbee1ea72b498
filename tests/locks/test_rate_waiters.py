"""Waiters for a rate limit: the dead and the frozen do not delay the others, and they are not too many."""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from penstock import Penstock, RateLimited
from penstock.locks.constants import MOST_WAITERS
from tests.conftest import MakeApp, until
from tests.locks.conftest import Crowd, FrozenFace
from tests.servers import Server
from tests.speed import scaled

pytestmark = pytest.mark.parametrize("place", ["valkey"])

INTERVAL = 2.0
"""Seconds from one unit to the next, of the limit in absent_waiters.py."""


@pytest.fixture
def other(make_app: MakeApp, app: Penstock) -> Penstock:
    """Another app with the same keys."""
    return make_app(prefix=app.settings.prefix)


def limit_of(app: Penstock, **options: Any) -> Any:
    return app.rate_limit("api", limit=5, per=10, burst=1, **options)


async def test_waiters_that_were_killed_do_not_delay_the_others(
    app: Penstock, other: Penstock, crowd: Callable[..., Crowd]
):
    limit = limit_of(app)
    await limit.acquire.aio()
    absent = crowd("rate", "api", processes=1, faces=3, waiters=100)
    await until(lambda: absent.waiting() > 290, 60)
    behind = asyncio.create_task(limit_of(other).acquire.aio())
    await asyncio.sleep(0.3)
    assert (await limit.try_acquire.aio()).wait > 200
    with pytest.raises(RateLimited, match="wait=6 is less"):
        await limit.acquire.aio(wait=6)
    absent.kill()
    began = time.monotonic()
    second = asyncio.create_task(limit.acquire.aio(wait=20))
    await behind
    assert time.monotonic() - began < INTERVAL + 2 + scaled(1)
    await second
    assert time.monotonic() - began < 2 * INTERVAL + 2 + scaled(1)
    assert (await limit.try_acquire.aio()).wait <= INTERVAL


async def test_a_frozen_process_is_passed_over_once_and_keeps_its_places(
    app: Penstock, other: Penstock, raw: Any, crowd: Callable[..., Crowd]
):
    limit, key = limit_of(app), limit_of(app).bindings.declared[0] + "waiters"
    await limit.acquire.aio()
    frozen = crowd("rate", "api", processes=1, faces=1, waiters=30)
    await until(lambda: raw.zcard(key) > 25, 60)
    tasks = [asyncio.create_task(limit_of(other).acquire.aio()) for _ in range(2)]
    await asyncio.sleep(0.3)
    (process,) = frozen._running
    os.kill(process.pid, signal.SIGSTOP)
    began = time.monotonic()
    await asyncio.gather(*tasks)
    assert time.monotonic() - began < 2 * INTERVAL + 2 + scaled(
        1.5
    )  # two seconds are lost once, not for each of thirty
    os.kill(process.pid, signal.SIGCONT)
    await until(lambda: raw.zcard(key) > 20, scaled(15))  # those that were dropped are back
    frozen.kill()
    raw.delete(*raw.keys(limit.bindings.declared[0] + "*"))


async def test_when_the_first_waiters_die_the_next_one_takes_over(
    app: Penstock, other: Penstock, raw: Any, crowd: Callable[..., Crowd]
):
    limit = limit_of(app)
    await limit.acquire.aio()
    first = crowd("rate", "api", processes=1, faces=1, waiters=30)
    await until(lambda: first.waiting() > 25, 60)  # some are served if the process starts slowly
    tasks = [asyncio.create_task(limit_of(other).acquire.aio()) for _ in range(3)]
    await asyncio.sleep(0.3)
    first.kill()
    began = time.monotonic()
    await asyncio.gather(*tasks)
    assert time.monotonic() - began < 3 * INTERVAL + 2 + scaled(1)


async def test_a_unit_is_granted_in_time_when_all_that_were_to_check_have_died(
    app: Penstock, other: Penstock, crowd: Callable[..., Crowd], monkeypatch: pytest.MonkeyPatch
):
    """The first waiter, and the two that check whether it takes its unit, are in the three processes that die."""
    monkeypatch.setattr("penstock.locks.last_tries.INTERVAL", 60.0)
    limit = limit_of(app)
    await limit.acquire.aio()
    first = crowd("rate", "api", processes=3, faces=1, waiters=30)
    await until(lambda: first.waiting() > 80, 60)
    tasks = [asyncio.create_task(limit_of(other).acquire.aio()) for _ in range(3)]
    await asyncio.sleep(0.5)
    first.kill()
    began = time.monotonic()
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    assert time.monotonic() - began < INTERVAL + 2 + scaled(0.5)
    await asyncio.gather(*tasks)
    assert time.monotonic() - began < 3 * INTERVAL + 2 + scaled(1)


async def test_more_than_ten_thousand_requests_do_not_wait(
    app: Penstock, raw: Any, deployment: Server, frozen_face: FrozenFace
):
    limit = limit_of(app)
    await limit.acquire.aio()
    base = limit.bindings.declared[0]
    address = frozen_face(deployment, "many", base)
    waits = {limit.bindings.pack(f"penstock/h/1/{n}", 1, address): n + 1 for n in range(MOST_WAITERS)}
    raw.zadd(base + "waiters", waits)
    raw.set(base + "units", MOST_WAITERS)
    for key in ("waiters", "units"):
        raw.pexpire(base + key, 600_000)
    with pytest.raises(RateLimited, match=r"10,000 requests wait already; try again later") as caught:
        await limit.acquire.aio()
    assert caught.value.retry_after > 19_000
    assert raw.zcard(base + "waiters") == MOST_WAITERS
    raw.delete(*raw.keys(base + "*"))


async def test_waiters_of_several_processes_keep_the_rate(make_app: MakeApp, app: Penstock):
    """At 200 units a second, the next waiters know their moments in advance."""
    apps = [app, make_app(prefix=app.settings.prefix), make_app(prefix=app.settings.prefix)]
    limits = [one.rate_limit("fast", limit=200, per=1, burst=1) for one in apps]
    began = time.monotonic()
    await asyncio.gather(*(limit.acquire.aio() for limit in limits for _ in range(100)))
    assert 1.49 < time.monotonic() - began < 1.5 + scaled(1.5)


async def test_a_restarted_server_makes_waiters_join_again(place: str, start: Callable[..., Server]):
    server = start()
    app = Penstock(server.address)
    limit = app.rate_limit("x", limit=1, per=2)
    await limit.acquire.aio()
    waits = [asyncio.create_task(limit.acquire.aio()) for _ in range(2)]
    await asyncio.sleep(0.3)
    server.restart()
    await asyncio.wait_for(asyncio.gather(*waits), scaled(20))
    await app.aclose()
