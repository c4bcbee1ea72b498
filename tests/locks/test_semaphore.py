"""Semaphores: never more permits than the limit, strictly in order of arrival, also after repeated releases."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import anyio.to_thread
import pytest

from penstock import LeaseLost, Penstock, Permit, PermitTimeout, Semaphore
from tests.conftest import Apps, Do, until
from tests.locks.conftest import FrozenFace
from tests.servers import Server
from tests.speed import Deadline, scaled

one_place = pytest.mark.parametrize("place", ["valkey"])


@pytest.fixture
def sem(app: Penstock) -> Callable[..., Semaphore]:
    def make(limit: int = 3, permits: int = 1, **options: Any) -> Semaphore:
        return app.semaphore("market:17", limit=limit, permits=permits, **options)

    return make


Make = Callable[..., Semaphore]


async def waiting(semaphore: Semaphore, n: int = 1) -> None:
    deadline = Deadline(30)
    while (await semaphore.info.aio()).waiting != n:
        assert not deadline.passed(), "the number of waiters was not reached"
        await asyncio.sleep(0.005)


async def held(semaphore: Semaphore) -> int:
    return (await semaphore.info.aio()).held


async def test_no_more_permits_are_granted_than_the_limit(sem: Make, do: Do):
    permits = [await do(sem().acquire) for _ in range(3)]
    with pytest.raises(PermitTimeout, match="semaphore 'market:17' did not have 1 free permit within 0 s"):
        await do(sem(wait=0).acquire)
    await do(permits.pop().release)
    permits.append(await do(sem(wait=0).acquire))
    assert await held(sem()) == 3
    for permit in permits:
        permit.check()
        await do(permit.release)
    assert await held(sem()) == 0


async def test_with_and_async_with(sem: Make, face: str):
    def enter() -> int:
        with sem(permits=2) as permit:
            assert permit.permits == 2
            return sem().info().held

    async def aenter() -> int:
        async with sem(permits=2) as permit:
            assert permit.permits == 2
            return await held(sem())

    assert await (aenter() if face == "aio" else anyio.to_thread.run_sync(enter)) == 2
    assert await held(sem()) == 0


async def test_a_repeated_late_or_foreign_release_frees_nothing_more(sem: Make, do: Do, app: Penstock):
    first = await do(sem(1).acquire)
    await do(first.release)
    await do(first.release)
    second = await do(sem(1).acquire)
    assert await app._driver.aio.run(first.give_back) is False
    with pytest.raises(PermitTimeout):
        await do(sem(1, wait=0).acquire)
    await do(second.release)


async def test_several_permits_are_acquired_together(sem: Make, do: Do):
    two = await do(sem(permits=2).acquire)
    with pytest.raises(PermitTimeout, match="did not have 2 free permits"):
        await do(sem(permits=2, wait=0).acquire)
    assert await held(sem()) == 2
    one = await do(sem(wait=0).acquire)
    await do(two.release)
    await do(one.release)


async def test_a_big_request_at_the_head_is_not_overtaken(sem: Make, do: Do):
    order: list[int] = []

    async def wait(n: int) -> None:
        permit = await do(sem(permits=n).acquire)
        order.append(n)
        await asyncio.sleep(0.02)
        await do(permit.release)

    first, second = await do(sem().acquire), await do(sem(permits=2).acquire)
    tasks = [asyncio.create_task(wait(3))]
    await waiting(sem())
    tasks.append(asyncio.create_task(wait(1)))
    await waiting(sem(), 2)
    await do(second.release)  # the small request would fit now
    with pytest.raises(PermitTimeout):
        await do(sem(wait=0).acquire)
    assert order == []
    await do(first.release)
    await asyncio.gather(*tasks)
    assert order == [3, 1]


async def test_one_release_serves_as_many_waiters_as_fit(sem: Make, do: Do):
    three = await do(sem(permits=3).acquire)
    tasks = []
    for n in range(4):
        tasks.append(asyncio.create_task(do(sem().acquire)))
        await waiting(sem(), n + 1)
    await do(three.release)
    for task in tasks[:3]:
        await asyncio.wait_for(task, scaled(1.8))  # without a message it would ask again after two seconds
    await asyncio.sleep(0.05)
    assert not tasks[3].done()
    assert await held(sem()) == 3
    for task in tasks:
        await do((await task).release)


@one_place
async def test_the_limit_can_be_changed_while_permits_are_held(sem: Make, do: Do):
    await do(sem().set_limit, 1)
    permit = await do(sem(5).acquire)
    with pytest.raises(PermitTimeout):
        await do(sem(5, wait=0).acquire)
    tasks = [asyncio.create_task(do(sem(5).acquire)) for _ in range(3)]
    await waiting(sem(), 3)
    await do(sem().set_limit, 3)
    await until(lambda: sum(task.done() for task in tasks) == 2, 1.8)
    done, rest = await asyncio.wait(tasks, timeout=0.1)
    assert (len(done), len(rest)) == (2, 1)
    await do(sem().set_limit, 1)  # holders keep their permits
    assert await held(sem()) == 3
    assert (await sem().info.aio()).limit == 1
    for task in done:
        await do(task.result().release)
    await asyncio.sleep(0.05)
    assert not rest.pop().done()
    await do(permit.release)
    for task in tasks:
        if task not in done:
            await do((await task).release)
    await do(sem().set_limit, None)
    assert (await sem().info.aio()).limit is None


async def test_a_request_above_the_stored_limit_is_refused(sem: Make, do: Do):
    permit = await do(sem(5, 1).acquire)
    waits = asyncio.create_task(do(sem(5, 5).acquire))
    await waiting(sem())
    behind = asyncio.create_task(do(sem(5, 2).acquire))
    await waiting(sem(), 2)
    await do(sem().set_limit, 3)
    with pytest.raises(ValueError, match="permits=5, but its limit was set to 3 in the server; ask for less"):
        await waits
    await do((await asyncio.wait_for(behind, scaled(1.8))).release)
    with pytest.raises(ValueError, match="its limit was set to 3"):
        await do(sem(5, 4).acquire)
    await do(permit.release)
    await do(sem().set_limit, None)


async def test_permits_are_renewed_and_those_of_a_dead_holder_expire(sem: Make, do: Do, app: Penstock):
    permit = await do(sem(2, lease=0.8).acquire)
    dead, began = sem(2, lease=1.2), time.monotonic()
    await app._driver.aio.run(dead.bindings.acquire(dead.bindings.request.pack("penstock/h/1/dead"), 0, join=False))
    other = await do(sem(2, wait=20).acquire)
    assert 1.2 <= time.monotonic() - began < scaled(4)
    permit.check()
    await do(permit.release)
    await do(other.release)


@one_place
async def test_lost_permits_are_reported_and_not_revived(sem: Make, do: Do, raw: Any):
    losses: list[Permit] = []
    permit = await do(sem(lease=0.6, on_loss=losses.append).acquire)
    raw.delete(sem().bindings.declared[1])
    await until(permit.lost.is_set)
    with pytest.raises(LeaseLost, match="semaphore 'market:17' was lost: the server no longer has it"):
        permit.check()
    await until(lambda: losses == [permit])
    with pytest.raises(LeaseLost):
        await do(permit.release)
    assert await held(sem()) == 0


@one_place
async def test_an_expired_permit_is_not_renewed(sem: Make, app: Penstock):
    permit = await sem(1, lease=0.3).acquire.aio()
    permit.renewing = False
    await asyncio.sleep(0.35)
    other = await sem(1).acquire.aio()
    assert await app._driver.aio.run(permit.renewal(0.0)) is False
    with pytest.raises(LeaseLost):
        permit.check()
    other.check()
    with pytest.raises(LeaseLost):
        await permit.release.aio()
    assert await held(sem()) == 1
    await other.release.aio()


@one_place
async def test_a_dead_waiter_is_passed_over(sem: Make, do: Do, app: Penstock):
    permit = await do(sem(2).acquire)
    one = sem(2, 2)
    for n in range(3):
        request = one.bindings.request.pack(f"penstock/h/1/dead{n}", f"penstock:wake:dead{n}/1")
        await app._driver.aio.run(one.bindings.acquire(request, 0, join=True))
    # There is a free permit, but the dead would be served first.
    waits = asyncio.create_task(do(sem(2).acquire))
    got = await asyncio.wait_for(waits, scaled(1))  # one offer in vain would take two seconds
    await do(permit.release)
    await do(got.release)


@one_place
async def test_a_frozen_waiter_delays_the_others_once(
    sem: Make, do: Do, app: Penstock, deployment: Server, frozen_face: FrozenFace
):
    permit = await do(sem(1).acquire)
    one, address = sem(1), frozen_face(deployment, "frozen", sem(1).bindings.declared[0])
    for n in range(3):
        request = one.bindings.request.pack(f"penstock/h/1/frozen{n}", address)
        await app._driver.aio.run(one.bindings.acquire(request, 0, join=True))
    waits = asyncio.create_task(do(sem(1).acquire))
    await waiting(sem(), 4)
    began = time.monotonic()
    await do(permit.release)
    got = await waits
    assert 1.5 < time.monotonic() - began < scaled(3.9)  # two offers in vain would take four seconds
    await do(got.release)


async def test_a_wait_cancelled_at_every_await_leaves_nothing(sem: Make):
    for attempt in range(40):
        permit = await sem(1).acquire.aio() if attempt % 2 else None
        task = asyncio.create_task(sem(1).acquire.aio())
        for _ in range(attempt // 2):
            await asyncio.sleep(0)
        if permit is not None and attempt % 4 == 1:
            await permit.release.aio()
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            await task.result().release.aio()
        if permit is not None:
            await permit.release.aio()
        info = await sem(1).info.aio()
        assert (info.held, info.waiting) == (0, 0)


@one_place
async def test_two_apps_on_one_server_have_separate_semaphores(apps: Apps, do: Do, place: str):
    one, two = apps.make(), apps.make()
    first = await do(one.semaphore("s", limit=1).acquire)
    second = await do(two.semaphore("s", limit=1, wait=0).acquire)
    await do(first.release)
    await do(second.release)
    for app in (one, two):
        await app.aclose()


@one_place
async def test_info_names_holders_and_waiters(sem: Make, do: Do):
    permit = await do(sem(permits=2).acquire)
    waits = asyncio.create_task(do(sem(permits=3).acquire))
    await waiting(sem())
    info = await sem().info.aio()
    (holder,), (waiter,) = info.holders, info.waiters
    assert (info.held, holder.permits, waiter.permits) == (2, 2, 3)
    assert holder.host == waiter.host != ""
    assert holder.token == permit.token
    assert holder.left is not None
    assert 9 < holder.left <= 10
    assert waiter.age is not None
    await do(permit.release)
    await do((await waits).release)


@one_place
async def test_one_change_of_the_limit_serves_more_than_a_hundred_waiters(sem: Make):
    await sem().set_limit.aio(1)
    first = await sem(1).acquire.aio()
    tasks = [asyncio.create_task(sem(300).acquire.aio()) for _ in range(250)]
    await waiting(sem(), 250)
    await sem().set_limit.aio(300)
    permits = await asyncio.wait_for(asyncio.gather(*tasks), scaled(10))
    assert await held(sem()) == 251
    await asyncio.gather(*(permit.release.aio() for permit in (first, *permits)))
    await sem().set_limit.aio(None)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda app: app.semaphore("x", limit=0), r"semaphore\(limit=0\): 1 or more permits"),
        (lambda app: app.semaphore("x", limit=3, permits=4), r"semaphore\(permits=4, limit=3\): from 1 to the limit"),
        (lambda app: app.semaphore("x", limit=3, permits=0), "from 1 to the limit"),
        (lambda app: app.semaphore("x", limit=3, lease=0), r"semaphore\(lease=0\): seconds from 0.05"),
        (lambda app: app.semaphore("x", limit=3, wait=-1), r"semaphore\(wait=-1\): seconds from 0, or None"),
        (lambda app: app.semaphore("", limit=3), "has 0 bytes: use 1 to 1,024"),
        (lambda app: app.semaphore("x" * 1024 * 1024, limit=3), "has 1,048,576 bytes"),
        (lambda app: app.semaphore("a}b", limit=3), "leave out the '}'"),
    ],
)
async def test_bad_input_is_refused_before_anything_is_sent(make: Callable[[Penstock], object], said: str):
    with pytest.raises(ValueError, match=said):
        make(Penstock("valkey://127.0.0.1:1/0"))


@one_place
async def test_a_limit_below_one_is_refused(sem: Make, do: Do):
    with pytest.raises(ValueError, match=r"set_limit\(limit=0\): 1 or more"):
        await do(sem().set_limit, 0)


@one_place
async def test_any_name_is_accepted(app: Penstock, do: Do):
    for name in ("{", "{a", "Zoë 名前", " \n\0", "a:b/c"):
        permit = await do(app.semaphore(name, limit=1).acquire)
        with pytest.raises(PermitTimeout):
            await do(app.semaphore(name, limit=1, wait=0).acquire)
        await do(permit.release)


async def test_a_full_server_still_renews_and_releases(do: Do, start: Callable[..., Server]):
    server = start()
    app = Penstock(server.address)
    permit = await do(app.semaphore("x", limit=1, lease=1).acquire)
    server.client.config_set("maxmemory", 1)
    await asyncio.sleep(1.3)
    permit.check()
    await do(permit.release)
    server.client.config_set("maxmemory", 0)
    assert (await app.semaphore("x", limit=1).info.aio()).held == 0
    await app.aclose()
