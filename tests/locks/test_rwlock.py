"""A read-write lock: readers together, a writer alone, in order of arrival."""

import asyncio
import time
from typing import Any

import anyio.to_thread
import pytest

from penstock import LeaseLost, LockTimeout, Penstock, ReadWriteLock
from tests.conftest import Do, until
from tests.speed import scaled

one_place = pytest.mark.parametrize("place", ["valkey"])


@pytest.fixture
def rw(app: Penstock) -> ReadWriteLock:
    return app.read_write_lock("catalog", lease=10)


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
        await asyncio.sleep(0.1)
    assert order == []
    await do(reader.release)
    await asyncio.gather(*tasks)
    assert order == ["writer", "reader", "reader"]


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
