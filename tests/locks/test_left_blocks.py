"""A lease ends with its `with` block, also if an exception interrupts `__exit__` at its first line."""

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock import LeaseLost, Penstock
from penstock.locks.with_block import BlockExit
from tests.servers import Server
from tests.speed import scaled


class Interrupted(BaseException):
    """What a signal handler would raise."""


@pytest.fixture
def app(server: Server) -> Iterator[Penstock]:
    """Without the garbage collector: a cycle of references would keep the lease alive."""
    gc.disable()
    with Penstock(server.address, prefix="left") as app:
        yield app
    gc.enable()


@pytest.fixture
def interrupt(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Call it inside the block: the next exit is left at its first line, as if a signal handler raised there."""
    armed, call = list[bool](), BlockExit.__call__

    def interrupted(*_: object, **__: object) -> None:
        raise Interrupted

    def leave(block: BlockExit[Any], *error: Any) -> Any:
        if armed:
            armed.clear()
            block._function = interrupted
        return call(block, *error)

    monkeypatch.setattr(BlockExit, "__call__", leave)
    return lambda: armed.append(True)


MAKES: dict[str, Callable[[Penstock], Any]] = {
    "lock": lambda app: app.lock("left", lease=0.5),
    "reentrant": lambda app: app.lock("left again", lease=0.5, reentrant=True),
    "permits": lambda app: app.semaphore("left", limit=1, lease=0.5),
}


def is_free(app: Penstock, make: Callable[[Penstock], Any]) -> bool:
    """Whether another thread gets it within a few leases."""
    got = list[Any]()

    def wait() -> None:
        wanted = make(app)
        wanted.wait = scaled(5)
        with wanted as held:
            got.append(held)

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    return bool(got)


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
def test_an_interrupted_exit_ends_the_renewal(app: Penstock, interrupt: Callable[[], None], make: Any):
    wanted = make(app)
    with pytest.raises(Interrupted), wanted as held:
        interrupt()
    assert is_free(app, make)
    with pytest.raises(LeaseLost):
        held.check()


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
def test_an_interrupted_exit_ends_the_renewal_in_asyncio(app: Penstock, interrupt: Callable[[], None], make: Any):
    wanted = make(app)

    async def enter() -> None:
        async with wanted:
            interrupt()

    with pytest.raises(Interrupted):
        asyncio.run(enter())
    assert is_free(app, make)


def test_an_inner_block_of_a_reentrant_lock_leaves_the_outer_one_renewed(app: Penstock, interrupt: Callable[[], None]):
    lock = MAKES["reentrant"](app)
    with lock as held:
        with pytest.raises(Interrupted), lock:
            interrupt()
        assert held.renewing
    assert is_free(app, MAKES["reentrant"])
