"""Processes that do something at the same time, such as competing for one lock.

They are forked from one clean process, so that everything is imported once and not sixteen times.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, TypeAlias

from penstock.app import Penstock
from penstock.errors import PenstockError

Maker: TypeAlias = Callable[[str], AbstractContextManager[Any]]
"""Makes the lock of this name for one use, as in `with make("x"):`."""

LEASE = 10

TIMEOUT = 300.0
"""Seconds. On a busy machine sixteen processes take long to start."""

PRELOADED = ("valkey", "redis", "redis_lock")
"""Modules that are imported once for all processes, if they are installed."""


class HoldTimes(NamedTuple):
    """When one competitor requested, acquired and released the lock, by the clock that all processes share."""

    requested: float
    acquired: float
    released: float


def penstock(address: str) -> Maker:
    app = Penstock(address)
    return lambda name: app.lock(name, lease=LEASE)


def contend(
    start: Any, out: Connection, connect: Callable[[str], Maker], address: str, name: str, times: int, hold: float
) -> None:
    """Acquire a lock of `connect(address)` repeatedly. Sends the times of each."""
    make, times_held = connect(address), []
    with make(f"{name}:warm:{id(out)}"):
        pass
    start.wait(TIMEOUT)
    for _ in range(times):
        requested = time.monotonic()
        with make(name):
            acquired = time.monotonic()
            time.sleep(hold)
            released = time.monotonic()
        times_held.append(HoldTimes(requested, acquired, released))
    out.send(times_held)


def run_together(work: Callable[..., None], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Run `work(start, out, *arguments)` in one process each. `start.wait()` lets all begin together.

    Returns the value that each process sent.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, *PRELOADED])
    start = context.Barrier(len(arguments))
    pipes = [context.Pipe(duplex=False) for _ in arguments]
    processes = [
        context.Process(target=work, args=(start, out, *some), daemon=True)
        for (_, out), some in zip(pipes, arguments, strict=True)
    ]
    try:
        for process in processes:
            process.start()
        for _, out in pipes:
            out.close()  # so that `recv` raises EOFError once the process ends
        return [_received(inlet) for inlet, _ in pipes]
    except EOFError:
        raise PenstockError("a process of the bench ended early; its error is printed above") from None
    finally:
        for process in processes:
            process.kill()
            process.join()


def _received(inlet: Any) -> Any:
    if not inlet.poll(TIMEOUT):
        raise PenstockError(f"a process of the bench did not finish within {TIMEOUT:.0f} s")
    return inlet.recv()
