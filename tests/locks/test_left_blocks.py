"""A lease ends with its `with` block, also if an exception interrupts `__exit__` at its first line."""

import asyncio
import gc
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from penstock import LeaseLost, Penstock
from tests.servers import Server
from tests.speed import scaled


class Interrupted(BaseException):
    """What the signal handler raises."""


@pytest.fixture
def app(server: Server) -> Iterator[Penstock]:
    """Without the garbage collector: a cycle of references would keep the lease alive."""
    gc.disable()
    with Penstock(server.address, prefix="left") as app:
        yield app
    gc.enable()


@pytest.fixture
def interrupt() -> Iterator[Callable[[], None]]:
    """Call it inside the block: a signal arrives at the first line of the next `__exit__` or `__aexit__`."""

    def handler(_: int, __: FrameType | None) -> None:
        raise Interrupted

    def trace(frame: FrameType, event: str, _: Any) -> None:
        if (
            event == "call"
            and frame.f_code.co_name in {"__exit__", "__aexit__"}
            and "leased" in frame.f_code.co_filename
        ):
            sys.settrace(None)
            signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    yield lambda: sys.settrace(trace)
    sys.settrace(None)
    signal.signal(signal.SIGUSR1, before)


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
