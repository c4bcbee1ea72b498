"""Locks: one owner at a time, in order of arrival, and a loss is reported; on both faces and in all places."""

import asyncio
import itertools
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio.to_thread
import pytest

from penstock import Held, LeaseLost, Lock, LockTimeout, Penstock, Semaphore
from penstock.core.renewal import now, valid_until
from tests.conftest import Apps, Do, MakeApp, commands, until
from tests.driver.proxy import Proxy
from tests.locks.conftest import FrozenFace
from tests.servers import Server, interrupt_when
from tests.speed import Deadline, scaled

_numbers = itertools.count(1)

# For slow tests, and for tests with a server of their own or with only one face.
one_place = pytest.mark.parametrize("place", ["valkey"])
one_face = pytest.mark.parametrize("face", ["aio"])


@pytest.fixture
def name() -> str:
    """The key of a lock has no prefix of the app, so each test has its own name."""
    return f"invoice:{next(_numbers)}"


@pytest.fixture(autouse=True)
def no_lock_is_left(raw: Any, name: str):
    yield
    assert raw.get(name) is None


async def waiting(leased: Lock | Semaphore, n: int = 1) -> None:
    deadline = Deadline(30)
    while (await leased.info.aio()).waiting != n:
        assert not deadline.passed(), "the number of waiters was not reached"
        await asyncio.sleep(0.005)


async def inside(face: str, leased: Any, work: Callable[[Any], object]) -> None:
    """Run `work` in `with` or `async with`, depending on the face."""
    if face == "aio":
        async with leased as held:
            work(held)
        return

    def enter() -> None:
        with leased as held:
            work(held)

    await anyio.to_thread.run_sync(enter)


# --- acquire and release ---


async def test_one_at_a_time(app: Penstock, do: Do, name: str, face: str):
    def work(held: Held) -> None:
        held.check()
        assert 9 < held.remaining <= 10
        assert not held.lost.is_set()
        assert held.key == app.lock(name, lease=1).key == name

    await inside(face, app.lock(name, lease=10), work)
    held = await do(app.lock(name, lease=10).acquire)
    with pytest.raises(LockTimeout, match=f"lock '{name}' was not free within 0 s"):
        await do(app.lock(name, lease=10, wait=0).acquire)
    await do(held.release)
    await inside(face, app.lock(name, lease=10, wait=0), work)


async def test_a_release_may_be_repeated_and_a_check_after_it_raises(app: Penstock, do: Do, name: str):
    held = await do(app.lock(name, lease=10).acquire)
    await do(held.release)
    other = await do(app.lock(name, lease=10, wait=0).acquire)
    await do(held.release)
    with pytest.raises(LeaseLost, match="was released"):
        held.check()
    other.check()
    assert (await app.lock(name, lease=1).info.aio()).holder is not None
    await do(other.release)


async def test_each_owner_has_a_higher_fence(app: Penstock, do: Do, name: str, raw: Any):
    fences = []
    for _ in range(5):
        held = await do(app.lock(name, lease=10).acquire)
        fences.append(held.fence)
        await do(held.release)
    assert fences == sorted(set(fences))
    # The last fence may have been minted while the server's clock was ahead.
    ahead = int((time.time() + 3600) * 1e6)
    raw.set(app.lock(name, lease=1).bindings.declared[0] + "fence", ahead, px=60000)
    held = await do(app.lock(name, lease=10).acquire)
    assert held.fence == ahead + 1
    await do(held.release)


async def test_an_error_in_the_body_releases_the_lock_and_is_raised(app: Penstock, name: str, face: str):
    def work(_: Held) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await inside(face, app.lock(name, lease=10), work)


async def test_the_blocking_form_in_a_running_loop_names_the_async_form(app: Penstock, name: str):
    with pytest.raises(RuntimeError, match="write `async with` here"), app.lock(name, lease=10):
        pass
    with pytest.raises(RuntimeError, match=r"write `await ….acquire.aio\(…\)` here"):
        app.lock(name, lease=10).acquire()


@one_place
async def test_many_tasks_may_use_one_lock_object(app: Penstock, name: str):
    lock, inside_now, seen = app.lock(name, lease=10), 0, []

    async def work(n: int) -> None:
        nonlocal inside_now
        async with lock as held:
            inside_now += 1
            await asyncio.sleep(0.005)
            seen.append((inside_now, held.fence))
            inside_now -= 1

    await asyncio.gather(*(work(n) for n in range(10)))
    assert [n for n, _ in seen] == [1] * 10
    assert [fence for _, fence in seen] == sorted(fence for _, fence in seen)


async def test_the_key_of_a_lock_is_its_name_whatever_the_name_contains(app: Penstock, do: Do, raw: Any, name: str):
    for odd in (
        f"{{{name}}}",
        f"{{{name}}}:of {{b}}",
        f"Zoë 名前 {name}",
        f"{{{name}",
        f"a{{b}}{name}",
        f" {name}\n\0",
    ):
        held = await do(app.lock(odd, lease=10).acquire)
        assert raw.get(odd) == held.token.encode()
        with pytest.raises(LockTimeout):
            await do(app.lock(odd, lease=10, wait=0).acquire)
        await do(held.release)
        assert raw.get(odd) is None


async def test_two_apps_share_a_lock_of_the_same_name(make_app: MakeApp, do: Do, name: str):
    held = await do(make_app().lock(name, lease=10).acquire)
    with pytest.raises(LockTimeout):
        await do(make_app().lock(name, lease=10, wait=0).acquire)
    await do(held.release)


@one_place
async def test_the_owner_of_a_reentrant_lock_may_enter_again(app: Penstock, name: str, face: str):
    def enter() -> None:
        with app.lock(name, lease=10, reentrant=True) as outer:
            with app.lock(name, lease=10, reentrant=True, wait=0) as inner:
                assert inner is outer
            outer.check()
            with pytest.raises(LockTimeout):
                app.lock(name, lease=10, wait=0).acquire()
        with pytest.raises(LeaseLost):
            outer.check()

    async def aenter() -> None:
        async with app.lock(name, lease=10, reentrant=True) as outer:
            async with app.lock(name, lease=10, reentrant=True, wait=0) as inner:
                assert inner is outer
            outer.check()
            other = asyncio.create_task(app.lock(name, lease=10, reentrant=True, wait=0).acquire.aio())
            with pytest.raises(LockTimeout):
                await other
        with pytest.raises(LeaseLost):
            outer.check()

    await (aenter() if face == "aio" else anyio.to_thread.run_sync(enter))
    assert (await app.lock(name, lease=1).info.aio()).holder is None


@one_place
async def test_an_owner_that_lost_its_lock_cannot_enter_again(app: Penstock, name: str, raw: Any):
    held = await app.lock(name, lease=0.3, reentrant=True).acquire.aio()
    raw.delete(name)
    await until(held.lost.is_set)
    with pytest.raises(LeaseLost):
        await app.lock(name, lease=10, reentrant=True).acquire.aio()
    with pytest.raises(LeaseLost):
        await held.release.aio()
    again = await app.lock(name, lease=10, reentrant=True).acquire.aio()
    await again.release.aio()


# --- wait ---


async def test_the_release_hands_over_to_a_waiter(app: Penstock, do: Do, name: str):
    held = await do(app.lock(name, lease=10).acquire)
    second = asyncio.create_task(do(app.lock(name, lease=10).acquire))
    await waiting(app.lock(name, lease=1))
    began = time.monotonic()
    await do(held.release)
    got = await second
    assert time.monotonic() - began < scaled(1.8)  # without a message it would ask again after two seconds
    assert got.fence > held.fence
    got.check()
    await do(got.release)


async def test_a_wait_that_times_out_leaves_the_waiters(app: Penstock, do: Do, name: str):
    held = await asyncio.create_task(do(app.lock(name, lease=10).acquire))
    began = time.monotonic()
    with pytest.raises(LockTimeout, match=r"within 0\.2 s"):
        await do(app.lock(name, lease=10, wait=0.2).acquire)
    assert 0.2 <= time.monotonic() - began < scaled(3)
    assert (await app.lock(name, lease=1).info.aio()).waiting == 0
    await do(held.release)


async def test_first_come_first_served(app: Penstock, do: Do, name: str):
    held = await do(app.lock(name, lease=10).acquire)
    order = []

    async def wait(n: int) -> None:
        mine = await do(app.lock(name, lease=10).acquire)
        order.append(n)
        await do(mine.release)

    tasks = []
    for n in range(6):
        tasks.append(asyncio.create_task(wait(n)))
        await waiting(app.lock(name, lease=1), n + 1)
    with pytest.raises(LockTimeout):
        await do(app.lock(name, lease=10, wait=0).acquire)
    await do(held.release)
    await asyncio.gather(*tasks)
    assert order == list(range(6))


async def test_a_newcomer_does_not_overtake_a_waiter_of_a_free_lock(app: Penstock, do: Do, name: str, raw: Any):
    held = await do(app.lock(name, lease=10).acquire)
    second = asyncio.create_task(do(app.lock(name, lease=10).acquire))
    await waiting(app.lock(name, lease=1))
    raw.delete(name)
    with pytest.raises(LockTimeout):
        await do(app.lock(name, lease=10, wait=0).acquire)
    got = await asyncio.wait_for(second, scaled(1.8))  # the attempt of the newcomer has handed it over
    with pytest.raises(LeaseLost):
        await do(held.release)
    got.check()
    await do(got.release)


@one_place
async def test_a_thousand_waiters_use_one_connection_and_do_not_poll(
    app: Penstock, nodes: list[Any], raw: Any, name: str
):
    raw.set(name, "penstock/elsewhere/1/x", px=60000)
    await app.lock(name, lease=1).info.aio()
    before = sum(len(node.client_list()) for node in nodes)
    tasks = [asyncio.create_task(app.lock(name, lease=10, wait=60).acquire.aio()) for _ in range(1000)]
    await waiting(app.lock(name, lease=1), 1000)
    assert sum(len(node.client_list()) for node in nodes) - before <= 1
    await asyncio.sleep(2.5)  # the first waiter asks again once, after two seconds
    sent = sum(map(commands, nodes))
    await asyncio.sleep(1)
    assert sum(map(commands, nodes)) - sent <= 1
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    raw.delete(name)


# --- renewed, lost ---


@one_place
async def test_a_lock_is_renewed_while_it_is_held(app: Penstock, do: Do, name: str):
    held = await do(app.lock(name, lease=0.9).acquire)
    for _ in range(5):
        await asyncio.sleep(0.5)
        held.check()
        with pytest.raises(LockTimeout):
            await do(app.lock(name, lease=1, wait=0).acquire)
    await do(held.release)


@one_place
async def test_a_lease_counts_from_before_the_request(do: Do, start: Callable[..., Server]):
    server = start()
    app = Penstock(server.address)
    other = await do(app.lock("x", lease=10).acquire)
    waits = asyncio.create_task(do(app.lock("x", lease=10).acquire))
    await waiting(app.lock("x", lease=1))
    with server.frozen():
        at_once = asyncio.create_task(do(app.lock("y", lease=10).acquire))
        await asyncio.sleep(0.5)  # time for the request to be sent; its reply can only come after the thaw
        thawed = now()
    held = await at_once
    assert held.valid_until <= valid_until(thawed, 10)
    await do(held.release)
    server.client.delete("x")
    with server.frozen():
        looks = asyncio.create_task(do(app.lock("x", lease=1, wait=0).acquire))
        await asyncio.sleep(0.3)
        thawed = now()
    with pytest.raises(LockTimeout):
        await looks
    held = await waits
    assert held.remaining <= 2  # the reserve; the lease counts from the request that confirms it
    await until(lambda: held.remaining > 5)
    assert valid_until(thawed, 10) <= held.valid_until <= valid_until(now(), 10)
    await do(held.release)
    with pytest.raises(LeaseLost):
        await do(other.release)
    await app.aclose()


@one_place
async def test_a_lock_whose_object_was_dropped_is_not_renewed(app: Penstock, do: Do, name: str):
    await do(app.lock(name, lease=0.5).acquire)
    began = time.monotonic()
    held = await do(app.lock(name, lease=10, wait=5).acquire)
    assert time.monotonic() - began < scaled(4)
    await do(held.release)


@one_place
async def test_a_lock_that_is_dropped_after_a_renewal_is_not_renewed_again(app: Penstock, do: Do, raw: Any, name: str):
    held = [await do(app.lock(name, lease=0.5).acquire)]
    first = held[0].valid_until
    await until(lambda: held[0].valid_until > first, 5)
    held.clear()
    await until(lambda: not raw.exists(name), 5)


@one_place
async def test_a_loss_is_reported_by_event_callback_check_and_at_the_exit(
    app: Penstock, raw: Any, name: str, face: str
):
    losses: list[Held] = []

    def work(held: Held) -> None:
        raw.set(name, "another", px=60000)
        if face == "blocking":
            assert held.lost.wait(scaled(5))
            with pytest.raises(LeaseLost, match="the server no longer has it"):
                held.check()

    async def enter() -> None:
        lock = app.lock(name, lease=0.6, on_loss=losses.append)
        if face == "blocking":
            await inside(face, lock, work)
            return
        async with lock as held:
            work(held)
            await until(held.lost.is_set)
            assert held.remaining == 0
            with pytest.raises(LeaseLost, match=f"lock '{name}' was lost.*drop the work"):
                held.check()
            await until(lambda: losses)

    with pytest.raises(LeaseLost):
        await enter()
    await until(lambda: losses)
    assert raw.get(name) == b"another"
    raw.delete(name)


@one_place
async def test_a_loss_cancels_the_task_with_cancel_on_loss(app: Penstock, raw: Any, name: str):
    async def work() -> None:
        async with app.lock(name, lease=0.3, cancel_on_loss=True):
            raw.delete(name)
            await asyncio.sleep(10)

    with pytest.raises(LeaseLost) as caught:
        await work()
    assert isinstance(caught.value.__cause__, asyncio.CancelledError)
    await asyncio.sleep(0)  # the cancellation does not reach the rest of the task


@one_place
async def test_an_error_in_the_body_comes_before_a_loss(app: Penstock, raw: Any, name: str):
    async def work() -> None:
        async with app.lock(name, lease=10):
            raw.delete(name)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        await work()
    assert "was lost" in caught.value.__notes__[0]


async def test_an_owner_that_lost_its_lock_does_not_release_the_next_one(app: Penstock, do: Do, raw: Any, name: str):
    held = await do(app.lock(name, lease=10).acquire)
    raw.delete(name)
    other = await do(app.lock(name, lease=10).acquire)
    with pytest.raises(LeaseLost, match="when it was released"):
        await do(held.release)
    other.check()
    await do(other.release)


@one_place
async def test_a_lock_is_lost_in_time_when_the_server_does_not_answer(
    make_app: MakeApp, do: Do, start: Callable[..., Server]
):
    server = start()
    app = Penstock(server.address)
    held = await do(app.lock("x", lease=0.8).acquire)
    with server.frozen():
        began = time.monotonic()
        await until(held.lost.is_set)
        assert time.monotonic() - began < scaled(3)  # the driver would wait for a reply for longer
        with pytest.raises(LeaseLost, match="did not answer"):
            held.check()
    await app.aclose()


@one_place
async def test_the_owner_learns_that_a_restarted_server_has_lost_the_lock(do: Do, start: Callable[..., Server]):
    server = start()
    app = Penstock(server.address)
    held = await do(app.lock("x", lease=0.9).acquire)
    second = asyncio.create_task(do(app.lock("x", lease=10, wait=30).acquire))
    await waiting(app.lock("x", lease=1))
    server.restart()
    got = await asyncio.wait_for(second, scaled(20))
    await until(held.lost.is_set)
    await do(got.release)
    await app.aclose()


async def test_a_script_flush_and_closed_connections_lose_no_lock(app: Penstock, do: Do, name: str, nodes: list[Any]):
    held = await do(app.lock(name, lease=0.9).acquire)
    second = asyncio.create_task(do(app.lock(name, lease=0.9).acquire))
    await waiting(app.lock(name, lease=1))
    for _ in range(8):
        for node in nodes:
            node.script_flush()
            node.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await asyncio.sleep(0.15)
    held.check()
    await do(held.release)
    await do((await second).release)


# --- dead processes ---


async def test_the_lock_of_a_dead_owner_passes_on_within_its_lease(app: Penstock, do: Do, name: str, raw: Any):
    began = time.monotonic()
    raw.set(name, "penstock/elsewhere/1/dead", px=1000)
    held = await do(app.lock(name, lease=10, wait=20).acquire)
    assert 1 <= time.monotonic() - began < scaled(4)
    await do(held.release)


@one_place
async def test_a_dead_waiter_is_passed_over(app: Penstock, do: Do, name: str, raw: Any):
    held = await do(app.lock(name, lease=10).acquire)
    lock = app.lock(name, lease=10)
    for n in range(9):
        dead = lock.bindings.request.pack(f"penstock/elsewhere/1/dead{n}", f"penstock:wake:dead{n}/1")
        assert not (await app._driver.aio.run(lock.bindings.acquire(dead, 0, join=True))).granted
    second = asyncio.create_task(do(app.lock(name, lease=10).acquire))
    await until(lambda: b"elsewhere" not in raw.zrange(lock.bindings.declared[0] + "waiters", -1, -1)[0])
    began = time.monotonic()
    await do(held.release)
    got = await second
    assert time.monotonic() - began < scaled(1)  # one offer in vain would take two seconds
    await do(got.release)


@one_place
async def test_a_frozen_waiter_delays_the_others_once(
    app: Penstock, do: Do, name: str, deployment: Server, frozen_face: FrozenFace
):
    held = await do(app.lock(name, lease=10).acquire)
    lock, address = app.lock(name, lease=10), frozen_face(deployment, "frozen", name)
    for n in range(3):  # three waiters of one frozen process: only one offer is made in vain
        frozen = lock.bindings.request.pack(f"penstock/elsewhere/1/frozen{n}", address)
        assert not (await app._driver.aio.run(lock.bindings.acquire(frozen, 0, join=True))).granted
    second = asyncio.create_task(do(app.lock(name, lease=10).acquire))
    await waiting(app.lock(name, lease=1), 4)
    began = time.monotonic()
    await do(held.release)
    got = await second
    assert 1.5 < time.monotonic() - began < scaled(3.9)  # two offers in vain would take four seconds
    await do(got.release)


@one_place
@one_face
async def test_a_release_makes_another_waiter_check_that_its_offer_is_taken(
    app: Penstock, do: Do, name: str, raw: Any, deployment: Server, frozen_face: FrozenFace
):
    raw.set(name, "penstock/elsewhere/1/x", px=60000)
    lock = app.lock(name, lease=10)
    frozen = lock.bindings.request.pack("penstock/elsewhere/1/frozen", frozen_face(deployment, "frozen", name))
    await app._driver.aio.run(lock.bindings.acquire(frozen, 0, join=True))
    waits = asyncio.create_task(do(app.lock(name, lease=10).acquire))
    await waiting(lock, 2)
    await asyncio.sleep(2.6)  # it has asked again for the first time
    mine = lock.bindings.request.pack("penstock/elsewhere/1/x")
    await app._driver.aio.run(lock.bindings.release(mine))
    began = time.monotonic()
    await do((await waits).release)
    assert time.monotonic() - began < scaled(8)  # without a message it would ask again after twenty seconds


@one_place
async def test_a_waiter_that_misses_its_offer_keeps_its_place(
    app: Penstock, do: Do, name: str, deployment: Server, frozen_face: FrozenFace
):
    lock = app.lock(name, lease=10)
    held = await lock.acquire.aio()
    slow, next_ = (
        lock.bindings.request.pack(f"penstock/h/1/{n}", frozen_face(deployment, n, name)) for n in ("slow", "next")
    )
    first = await app._driver.aio.run(lock.bindings.acquire(slow, 0, join=True))
    second = await app._driver.aio.run(lock.bindings.acquire(next_, 0, join=True))
    await held.release.aio()
    await asyncio.sleep(2.1)
    assert (await app._driver.aio.run(lock.bindings.acquire(next_, second.ticket, join=True))).granted
    again = await app._driver.aio.run(lock.bindings.acquire(slow, first.ticket, join=True))
    assert again.ticket == first.ticket
    for request in (next_, slow):
        await app._driver.aio.run(lock.bindings.release(request))


# --- several at once ---


async def test_several_locks_are_acquired_together_or_not_at_all(app: Penstock, do: Do, name: str, raw: Any):
    names = [f"{{{name}}}:{n}" for n in "abc"]
    b = await do(app.lock(names[1], lease=10).acquire)
    with pytest.raises(LockTimeout, match=r"locks '.*', '.*', '.*' were not free"):
        await do(app.lock(names, lease=10, wait=0).acquire)
    assert raw.get(names[0]) is None
    all_ = asyncio.create_task(do(app.lock(names, lease=10).acquire))
    await waiting(app.lock(names[0], lease=1))
    # It is the first waiter of a free lock, too, and is not overtaken there.
    with pytest.raises(LockTimeout):
        await do(app.lock(names[2], lease=10, wait=0).acquire)
    await do(b.release)
    held = await asyncio.wait_for(all_, scaled(1))
    assert held.keys == tuple(names)
    assert held.fence > b.fence
    assert {raw.get(one) for one in names} == {held.token.encode()}
    await do(held.release)
    assert {raw.get(one) for one in names} == {None}


async def test_a_request_for_several_locks_overtakes_no_earlier_one(app: Penstock, do: Do, name: str):
    a, b, c = (f"{{{name}}}:{n}" for n in "abc")
    of_a, of_c = await do(app.lock(a, lease=10).acquire), await do(app.lock(c, lease=10).acquire)
    first = asyncio.create_task(do(app.lock([b, c], lease=10).acquire))
    await waiting(app.lock(b, lease=1))
    second = asyncio.create_task(do(app.lock([a, b], lease=10).acquire))
    await waiting(app.lock(b, lease=1), 2)
    await do(of_a.release)  # a and b are free now, but the other request waits for b
    await asyncio.sleep(0.05)
    assert not second.done()
    await do(of_c.release)
    held = await asyncio.wait_for(first, scaled(1.8))
    assert not second.done()
    await do(held.release)
    await do((await asyncio.wait_for(second, scaled(1.8))).release)


@one_place
async def test_philosophers_do_not_starve(app: Penstock, name: str):
    forks = [f"{{{name}}}:{n}" for n in range(5)]
    used = [0] * 5
    eaten = [0] * 5

    async def dine(seat: int) -> None:
        for _ in range(6):
            mine = (seat, (seat + 1) % 5)
            async with app.lock([forks[n] for n in mine], lease=10, wait=60):
                for fork in mine:
                    used[fork] += 1
                assert all(used[fork] == 1 for fork in mine)
                await asyncio.sleep(0.002)
                for fork in mine:
                    used[fork] -= 1
            eaten[seat] += 1

    await asyncio.wait_for(asyncio.gather(*map(dine, range(5))), scaled(60))
    assert eaten == [6] * 5


@one_place
async def test_the_loss_of_one_of_several_locks_is_a_loss(app: Penstock, do: Do, name: str, raw: Any):
    names = [f"{{{name}}}:{n}" for n in "ab"]
    held = await do(app.lock(names, lease=0.6).acquire)
    raw.delete(names[1])
    await until(held.lost.is_set)
    with pytest.raises(LeaseLost):
        await do(held.release)
    await until(lambda: raw.get(names[0]) is None)


async def test_several_locks_in_different_slots_are_refused_on_a_cluster(app: Penstock, do: Do, name: str, place: str):
    lock = app.lock([name, f"{name}:other"], lease=10)
    if place == "cluster":
        with pytest.raises(ValueError, match=r"share a hash tag: name them \{tag\}:a and \{tag\}:b"):
            await do(lock.acquire)
    else:
        await do((await do(lock.acquire)).release)


# --- cancelled ---


async def test_a_wait_cancelled_at_every_await_leaves_nothing(app: Penstock, name: str):
    """The waiter gives back its place, and the lock if that has been handed over to it."""
    for attempt in range(40):
        held = await app.lock(name, lease=10).acquire.aio() if attempt % 2 else None
        task = asyncio.create_task(app.lock(name, lease=10).acquire.aio())
        for _ in range(attempt // 2):
            await asyncio.sleep(0)
        if held is not None and attempt % 4 == 1:
            await held.release.aio()
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            await task.result().release.aio()
        if held is not None:
            await held.release.aio()
        info = await app.lock(name, lease=1).info.aio()
        assert (info.holder, info.waiting) == (None, 0)


@one_place
async def test_a_cancelled_release_is_done(app: Penstock, name: str):
    for attempt in range(10):
        held = await app.lock(name, lease=10).acquire.aio()
        task = asyncio.create_task(held.release.aio())
        for _ in range(attempt):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        if attempt == 0:
            await held.release.aio()  # the release had not begun
        assert (await app.lock(name, lease=1).info.aio()).holder is None


def test_an_interrupted_wait_leaves_nothing(apps: Apps, raw: Any, name: str):
    with apps.make() as app:
        raw.set(name, "penstock/elsewhere/1/x", px=60000)
        with interrupt_when(lambda: app.lock(name, lease=1).info().waiting), pytest.raises(KeyboardInterrupt):
            app.lock(name, lease=10).acquire()
        assert app.lock(name, lease=1).info().waiting == 0
        raw.delete(name)


# --- lost replies ---


@one_place
async def test_lost_replies_change_nothing(make_app: MakeApp, do: Do, start: Callable[..., Server]):
    server = start()
    proxy = Proxy(server)
    app, direct = Penstock(proxy.address), Penstock(server.address)
    await do(app.lock("warm", lease=10).info)
    last = 0
    for _ in range(3):
        proxy.lose_replies(1)
        held = await do(app.lock("x", lease=10).acquire)
        assert held.fence > last
        last = held.fence
        second = asyncio.create_task(do(direct.lock("x", lease=10).acquire))
        await waiting(direct.lock("x", lease=1))
        proxy.lose_replies(1)
        await do(held.release)  # the first copy handed over; what the second copy finds is not a loss
        await do((await second).release)
    await app.aclose()
    await direct.aclose()
    proxy.close()


# --- other libraries ---


@pytest.fixture
def foreign(deployment: Any, place: str, name: str) -> Any:
    """A lock of redis-py on the same name."""
    import redis

    if place == "cluster":
        node = deployment.owner(name)
        client = redis.Redis(port=node.port)
    else:
        client = redis.Redis(unix_socket_path=str(deployment.socket))
    yield client.lock(name, timeout=10, thread_local=False)
    client.close()


@one_face
async def test_another_librarys_lock_is_respected(app: Penstock, do: Do, name: str, foreign: Any):
    assert foreign.acquire(blocking=False)
    with pytest.raises(LockTimeout):
        await do(app.lock(name, lease=10, wait=0).acquire)
    info = await app.lock(name, lease=1).info.aio()
    assert info.holder is not None
    assert (info.holder.host, info.holder.pid) == ("", 0)
    waits = asyncio.create_task(do(app.lock(name, lease=10, wait=20).acquire))
    await waiting(app.lock(name, lease=1))
    began = time.monotonic()
    foreign.release()  # sends no message
    held = await waits
    assert time.monotonic() - began < scaled(8)  # the foreign lease would have run out after ten seconds
    await do(held.release)


async def test_another_library_respects_ours(app: Penstock, do: Do, name: str, foreign: Any):
    held = await do(app.lock(name, lease=10).acquire)
    assert not foreign.acquire(blocking=False)
    waits = asyncio.create_task(anyio.to_thread.run_sync(partial(foreign.acquire, blocking_timeout=30)))
    await asyncio.sleep(0.05)
    await do(held.release)
    assert await waits
    foreign.release()


# --- bad input ---


def tagged(name: str) -> Callable[[Penstock], object]:
    return lambda app: app.lock(name, lease=1)


@one_place
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda app: app.lock("x", lease=0), r"lock\(lease=0\): seconds from 0.05 to a week"),
        (lambda app: app.lock("x", lease=-1), "seconds from 0.05"),
        (lambda app: app.lock("x", lease=float("nan")), "seconds from 0.05"),
        (lambda app: app.lock("x", lease=1, wait=-1), r"lock\(wait=-1\): seconds from 0, or None for ever"),
        (lambda app: app.lock("x", lease=1, wait=float("nan")), "seconds from 0"),
        (tagged(""), "has 0 bytes: use 1 to 1,024, or a digest"),
        (tagged("x" * 1024 * 1024), "has 1,048,576 bytes: use 1 to 1,024, or a digest"),
        (tagged("\ud800"), "half a character"),
        (tagged("a}b"), r"no other key can have its slot; leave out the '}', or .* \{tag\}:rest"),
        (tagged("{}"), "no other key can have its slot"),
        (lambda app: app.lock([], lease=1), r"lock\(0 names\): give 1 to 100 names"),
        (lambda app: app.lock(["a", "a"], lease=1), "each once"),
    ],
)
async def test_bad_input_is_refused_before_anything_is_sent(make: Callable[[Penstock], object], said: str):
    with pytest.raises(ValueError, match=said):
        make(Penstock("valkey://127.0.0.1:1/0"))


async def test_a_key_with_other_data_is_refused_as_a_lock(app: Penstock, do: Do, name: str, raw: Any):
    raw.hset(name, "a", 1)
    with pytest.raises(ValueError, match=f"lock '{name}': the key of this name holds other data"):
        await do(app.lock(name, lease=1).acquire)
    assert raw.hgetall(name) == {b"a": b"1"}
    raw.delete(name)


@one_place
async def test_a_full_server_grants_no_new_lock_and_still_releases(do: Do, start: Callable[..., Server]):
    from penstock import ServerFull

    server = start()
    app = Penstock(server.address)
    held = await do(app.lock("x", lease=1).acquire)
    server.client.config_set("maxmemory", 1)
    with pytest.raises(ServerFull):
        await do(app.lock("y", lease=1).acquire)
    await asyncio.sleep(1.3)
    held.check()
    await do(held.release)
    assert server.client.get("x") is None
    await app.aclose()
