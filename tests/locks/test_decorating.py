"""Locks, permits and read-write locks as decorators of functions."""

import asyncio
import functools
import inspect
from collections.abc import Callable
from typing import Any

import anyio.to_thread
import pytest

from penstock import LeaseLost, LockTimeout, Penstock
from tests.worker.in_process import run_burst

KINDS: dict[str, Callable[[Penstock], Any]] = {
    "lock": lambda app: app.lock("decorated", lease=10, wait=5),
    "semaphore": lambda app: app.semaphore("decorated", limit=1, wait=5),
    "reader": lambda app: app.read_write_lock("decorated", lease=10, wait=5).read(),
    "writer": lambda app: app.read_write_lock("decorated", lease=10, wait=5).write(),
}


def is_held(app: Penstock, kind: str) -> bool:
    if kind == "lock":
        return app.lock("decorated", lease=1).info().holder is not None
    if kind == "semaphore":
        return app.semaphore("decorated", limit=1).info().held > 0
    info = app.read_write_lock("decorated", lease=1).info()
    return info.writer is not None or info.reading > 0


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_each_call_of_a_function_holds_it(app: Penstock, kind: str, face: str):
    by, inside = KINDS[kind](app), []

    @by
    def plain(a: int, *, b: str = "x") -> str:
        """What it does."""
        inside.append(is_held(app, kind))
        return b * a

    @by
    async def awaited(a: int) -> int:
        inside.append(await anyio.to_thread.run_sync(is_held, app, kind))
        await asyncio.sleep(0)
        return a + 1

    for _ in range(2):
        if face == "blocking":
            assert await anyio.to_thread.run_sync(plain, 2) == "xx"
        else:
            assert await awaited(1) == 2
    assert inside == [True, True]
    assert not await anyio.to_thread.run_sync(is_held, app, kind)
    assert (plain.__name__, plain.__doc__, awaited.__name__) == ("plain", "What it does.", "awaited")
    assert str(inspect.signature(plain)) == "(a: int, *, b: str = 'x') -> str"
    assert inspect.iscoroutinefunction(awaited)
    assert not inspect.iscoroutinefunction(plain)


async def test_an_error_of_the_function_releases_it(app: Penstock, kind: str):
    by = KINDS[kind](app)

    @by
    def plain() -> None:
        raise KeyError("plain")

    @by
    async def awaited() -> None:
        raise KeyError("awaited")

    with pytest.raises(KeyError, match="plain"):
        await anyio.to_thread.run_sync(plain)
    with pytest.raises(KeyError, match="awaited"):
        await awaited()
    assert not await anyio.to_thread.run_sync(is_held, app, kind)


@pytest.mark.parametrize("place", ["valkey"])
async def test_one_decorator_keeps_threads_and_tasks_apart(app: Penstock):
    inside = most = 0

    def enter() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)

    @app.lock("apart", lease=10)
    async def awaited() -> None:
        nonlocal inside
        enter()
        await asyncio.sleep(0.002)
        inside -= 1

    @app.lock("apart", lease=10)
    def plain() -> None:
        nonlocal inside
        enter()
        inside -= 1

    await asyncio.gather(*(awaited() for _ in range(10)), *(anyio.to_thread.run_sync(plain) for _ in range(10)))
    assert (inside, most) == (0, 1)


@pytest.mark.parametrize("place", ["valkey"])
async def test_a_call_that_does_not_get_it_does_not_run(app: Penstock):
    ran = []
    held = await app.lock("busy", lease=10).acquire.aio()

    @app.lock("busy", lease=10, wait=0)
    async def awaited() -> None:
        ran.append(1)

    with pytest.raises(LockTimeout):
        await awaited()
    assert ran == []
    await held.release.aio()


@pytest.mark.parametrize("place", ["valkey"])
async def test_a_loss_during_the_call_is_raised_at_its_end(app: Penstock, raw: Any):
    @app.lock("decorated", lease=10)
    async def awaited() -> None:
        raw.delete("decorated")

    with pytest.raises(LeaseLost):
        await awaited()


@pytest.mark.parametrize("place", ["valkey"])
async def test_methods_partials_and_tasks_can_be_decorated(app: Penstock):
    by, calls = app.lock("decorated", lease=10), []

    async def note(page: int) -> None:
        calls.append(("note", page))

    class Report:
        def __init__(self, name: str) -> None:
            self.name = name

        @by
        async def write(self, page: int) -> None:
            calls.append((self.name, page))

        @classmethod
        @by
        async def of(cls, page: int) -> None:
            calls.append((cls.__name__, page))

        @staticmethod
        @by
        async def bare(page: int) -> None:
            calls.append(("bare", page))

    await Report("a").write(1)
    await Report.of(2)
    await Report.bare(3)
    await by(functools.partial(note, 4))()

    @app.task(queue="q")
    @app.lock("task", lease=10)
    async def work(page: int) -> int:
        calls.append(("task", page))
        return page

    job = await work.enqueue.aio(5)
    await run_burst(app)
    assert await job.result.aio(5) == 5
    assert calls == [("a", 1), ("Report", 2), ("bare", 3), ("note", 4), ("task", 5)]


async def test_what_works_after_its_call_is_refused(face: str):
    app = Penstock("valkey://127.0.0.1:1/0")
    by: Any = app.lock("x", lease=10)

    def rows():
        yield 1

    async def arows():
        yield 1

    class Rows:
        def __call__(self) -> None: ...

    class Above:
        @staticmethod
        def staticmethod() -> None: ...

        @classmethod
        def classmethod(cls) -> None: ...

    @app.task
    async def work() -> None: ...

    for function in (rows, arows, functools.partial(rows)):
        with pytest.raises(TypeError, match=r"<lock 'x'> decorates the generator .* write a `with` block around"):
            by(function)
    for thing in (Rows, Rows(), work, 5, None):
        with pytest.raises(TypeError, match="which is not a function: decorate a function or a method"):
            by(thing)
    for kind in ("staticmethod", "classmethod"):
        with pytest.raises(TypeError, match=f"decorates a {kind}: write @{kind} above this decorator"):
            by(vars(Above)[kind])


async def test_a_blocking_function_is_refused_on_the_event_loop(app: Penstock):
    @app.lock("x", lease=10)
    def plain() -> None: ...

    with pytest.raises(RuntimeError, match=r"plain\(\) waits for <lock 'x'> and would block the running event loop"):
        plain()
