"""Work in the background of a program: written once as a generator, and run in a thread or on an event loop.

A generator yields *effects*, and gets the result of each, or its error:

    Transact   run a function with a connection, in a transaction of its own      what the function returns
    Look       the same without a transaction, which is quicker; for one query    what the function returns
    Ask        call a verb of Penstock                                            what the verb returns
    Pause      wait, until somebody rings or the time is over                     None
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from penstock.core.operations import BoundVerb
from penstock.driver.blocking import run_to_completion

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Transact:
    work: Callable[[Connection], Any]


@dataclass(frozen=True, slots=True)
class Look:
    work: Callable[[Connection], Any]


@dataclass(frozen=True, slots=True)
class Ask:
    verb: BoundVerb[..., Any]
    args: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


Effect: TypeAlias = Transact | Look | Ask | Pause
Work: TypeAlias = Generator[Effect, Any, T]


class ThreadBell:
    """For work that runs in a thread. Any thread may ring."""

    def __init__(self) -> None:
        self._rung = threading.Event()

    def ring(self) -> None:
        self._rung.set()

    def wait(self, seconds: float) -> None:
        self._rung.wait(seconds)
        self._rung.clear()


class LoopBell:
    """For work that runs on an event loop. Only code of that loop may ring."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()

    def ring(self) -> None:
        self._rung.set()

    async def wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._rung.wait()
        except TimeoutError:
            pass
        self._rung.clear()


def run_in_thread(background: Work[T], engine: Engine, bell: ThreadBell) -> T:
    """Do work in the calling thread, to its end."""
    looking = engine.execution_options(isolation_level="AUTOCOMMIT")

    async def take(effect: Effect) -> Any:
        match effect:
            case Transact(work):
                return transact(engine, work)
            case Look(work):
                with looking.connect() as connection:
                    return work(connection)
            case Ask(verb, args):
                return verb(*args)
            case Pause(seconds):
                return bell.wait(seconds)

    return run_to_completion(_run(background, take))


async def run_on_loop(background: Work[T], engine: Engine | AsyncEngine, bell: LoopBell) -> T:
    """Do work on the running event loop, to its end. The transactions of a blocking engine run in a thread."""

    async def take(effect: Effect) -> Any:
        match effect:
            case Transact(work):
                if isinstance(engine, AsyncEngine):
                    async with engine.begin() as connection:
                        return await connection.run_sync(work)
                return await asyncio.to_thread(transact, engine, work)
            case Look(work):
                looking = engine.execution_options(isolation_level="AUTOCOMMIT")
                if isinstance(looking, AsyncEngine):
                    async with looking.connect() as connection:
                        return await connection.run_sync(work)
                return await asyncio.to_thread(transact, looking, work)
            case Ask(verb, args):
                return await verb.aio(*args)
            case Pause(seconds):
                return await bell.wait(seconds)

    return await _run(background, take)


async def _run(background: Work[T], take: Callable[[Effect], Coroutine[Any, Any, Any]]) -> T:
    """Take each effect, and return its result, or raise its error, where the work has yielded it."""
    result, error = None, None
    try:
        while True:
            effect = background.send(result) if error is None else background.throw(error)
            try:
                result, error = await take(effect), None
            except Exception as failure:
                error = failure
    except StopIteration as end:
        value: T = end.value
        return value
    finally:
        background.close()


def transact(engine: Engine, work: Callable[[Connection], T]) -> T:
    with engine.begin() as connection:
        return work(connection)
