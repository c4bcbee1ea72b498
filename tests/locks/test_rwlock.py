"""A read-write lock: readers together, a writer alone, in order of arrival."""

import asyncio
import time
from typing import Any

import anyio.to_thread
import pytest

from penstock import LeaseLost, LockTimeout, Penstock, ReadWriteLock
from tests.conftest import Do, until
from tests.speed import Deadline, scaled

one_place = pytest.mark.parametrize("place", ["valkey"])


@pytest.fixture
def rw(app: Penstock) -> ReadWriteLock:
    return app.read_write_lock("catalog", lease=10)


async def until_waiting(rw: ReadWriteLock, n: int) -> None:
    deadline = Deadline(30)
    while (await rw.info.aio()).waiting != n:
        assert not deadline.passed(), "the number of waiters was not reached"
        await asyncio.sleep(0.005)


async def test_readers_share_and_a_writer_is_alone(app: Penstock, rw: ReadWriteLock, do: Do):
    at_once = app.read_write_lock("catalog", lease=10, wait=0)
    readers = [await do(rw.read().acquire) for _ in range(3)]
    with pytest.raises(LockTimeout, match="write lock 'catalog' was not free within 0 s"):
        await do(at_once.write().acquire)
    for reader in readers:
        await do(reader.release)
    writer = await do(at_once.write().acquire)
    for side in (at_once.read(), at_once.write()):
        with pytest.raises(LockTimeout):
            await do(side.acquire)
    await do(writer.release)
    later = await do(at_once.write().acquire)
    assert later.fence > writer.fence > 0
    await do(later.release)


async def test_a_waiting_writer_is_not_overtaken_by_readers(rw: ReadWriteLock, do: Do):
    order: list[str] = []

    async def wait(side: Any, name: str) -> None:
        held = await do(side.acquire)
        order.append(name)
        await asyncio.sleep(0.01)
        await do(held.release)

    reader = await do(rw.read().acquire)
    tasks = []
    for side, name in ((rw.write(), "writer"), (rw.read(), "reader"), (rw.read(), "reader")):
        tasks.append(asyncio.create_task(wait(side, name)))
        await until_waiting(rw, len(tasks))
    assert (await rw.info.aio()).waits_to_write == (True, False, False)
    assert order == []
    await do(reader.release)
    await asyncio.gather(*tasks)
    assert order == ["writer", "reader", "reader"]


@one_place
async def test_any_number_of_readers_hold_it_and_a_writer_waits_for_the_last(
    app: Penstock, rw: ReadWriteLock, raw: Any
):
    readers = await asyncio.gather(*(rw.read().acquire.aio() for _ in range(1000)))
    info = await rw.info.aio()
    assert (info.writer, info.reading, len(info.readers), info.fence) == (None, 1000, 100, None)
    writer = asyncio.create_task(rw.write().acquire.aio())
    await until(lambda: raw.zcard(rw.write().bindings.declared[0] + "waiters") == 1)
    await asyncio.gather(*(reader.release.aio() for reader in readers[1:]))
    await asyncio.sleep(0.05)
    info = await rw.info.aio()
    assert (writer.done(), info.reading, info.waiting, info.waits_to_write) == (False, 1, 1, (True,))
    await readers[0].release.aio()
    held = await writer
    info = await rw.info.aio()
    assert (info.reading, info.fence, info.writer and info.writer.token) == (0, held.fence, held.token)
    await held.release.aio()


@one_place
async def test_all_readers_that_wait_for_a_writer_follow_it(rw: ReadWriteLock, raw: Any):
    """There are more of them than one call of the script hands the lock to."""
    writer = await rw.write().acquire.aio()
    waiting = [asyncio.create_task(rw.read().acquire.aio()) for _ in range(350)]
    await until(lambda: raw.zcard(rw.read().bindings.declared[0] + "waiters") == 350)
    began = time.monotonic()
    await writer.release.aio()
    readers = await asyncio.gather(*waiting)
    assert time.monotonic() - began < scaled(1.5)  # without a message they would ask again after two seconds
    assert (await rw.info.aio()).reading == 350
    await asyncio.gather(*(reader.release.aio() for reader in readers))


@one_place
async def test_an_expired_reader_does_not_keep_a_writer_out(app: Penstock, rw: ReadWriteLock):
    dead = await app.read_write_lock("catalog", lease=0.3).read().acquire.aio()
    dead.renewing = False
    other = await rw.read().acquire.aio()
    waiting = asyncio.create_task(rw.write().acquire.aio())
    await asyncio.sleep(0.05)
    await other.release.aio()
    began = time.monotonic()
    held = await waiting
    assert time.monotonic() - began < scaled(1)
    await held.release.aio()


@one_place
async def test_the_work_of_the_server_does_not_grow_with_the_readers(rw: ReadWriteLock, raw: Any):
    """Each call reads and writes a few entries, however many there are."""
    base, holders = rw.read().bindings.declared
    far = int(time.time() * 1000) + 60000
    took: list[int] = []
    for readers in (10, 10, 20000):  # the first wait of a process takes two attempts
        raw.zadd(holders, {f"penstock/elsewhere/1/{n}/1": far for n in range(readers)})
        raw.pexpire(holders, 60000)
        before = raw.info("commandstats")
        reader = await rw.read().acquire.aio()
        writer = asyncio.create_task(rw.write().acquire.aio())
        await until(lambda: raw.zcard(base + "waiters") == 1)
        await reader.release.aio()
        writer.cancel()
        await asyncio.wait([writer])
        after = raw.info("commandstats")
        took.append(sum(calls_of(after, name) - calls_of(before, name) for name in ("zrange", "zcount", "zscore")))
        assert raw.zcard(holders) == readers
    raw.delete(holders)
    assert took[1] == took[2]


def calls_of(stats: Any, command: str) -> int:
    return int(stats.get(f"cmdstat_{command}", {"calls": 0})["calls"])


@one_place
async def test_both_sides_can_be_entered(rw: ReadWriteLock, face: str):
    def enter() -> None:
        with rw.read() as one, rw.read():
            one.check()
        with rw.write() as held:
            assert held.fence > 0

    async def aenter() -> None:
        async with rw.read() as one, rw.read():
            one.check()
        async with rw.write() as held:
            assert held.fence > 0

    await (aenter() if face == "aio" else anyio.to_thread.run_sync(enter))


@one_place
async def test_a_writer_is_renewed_and_its_loss_is_reported(app: Penstock, do: Do, raw: Any):
    rw = app.read_write_lock("catalog", lease=1)
    writer = await do(rw.write().acquire)
    await asyncio.sleep(1.5)
    writer.check()
    began = time.monotonic()
    raw.delete(rw.write().bindings.declared[1])
    await until(writer.lost.is_set)
    assert time.monotonic() - began < scaled(3)
    with pytest.raises(LeaseLost, match="write lock 'catalog' was lost"):
        await do(writer.release)


async def test_bad_input_is_refused_before_anything_is_sent():
    app = Penstock("valkey://127.0.0.1:1/0")
    for name, options, said in (
        ("x", {"lease": 0}, r"read_write_lock\(lease=0\)"),
        ("", {"lease": 1}, "has 0 bytes"),
        ("a}b", {"lease": 1}, "leave out the '}'"),
    ):
        with pytest.raises(ValueError, match=said):
            app.read_write_lock(name, **options)  # type: ignore[arg-type]
