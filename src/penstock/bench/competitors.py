"""Processes that compete for one lock, or buy from one market at the same time.

They are forked from one clean process, so that everything is imported once and not sixteen times.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from penstock.app import Penstock
from penstock.bench.peer_locks import MAKERS
from penstock.errors import PenstockError

SALE, BUYERS = "{penstock-bench}:sale", "{penstock-bench}:funds"
PRICE = 3

TIMEOUT = 300.0
"""Seconds. On a busy machine sixteen processes take long to start."""

PRELOADED = ("valkey", "redis", "redis_lock")
"""Modules that are imported once for all processes, if they are installed."""


class HoldTimes(NamedTuple):
    """When one competitor requested, acquired and released the lock, by the clock that all processes share."""

    requested: float
    acquired: float
    released: float


def contend(start: Any, out: Connection, address: str, peer: str, name: str, times: int, hold: float) -> None:
    make, times_held = MAKERS[peer](address), []
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


def buy_in_transaction(start: Any, out: Connection, address: str, buyer: int, times: int) -> None:
    """Buy items one after another. Sends the start, the end, and the number of retries."""
    with Penstock(address) as app:
        app.transaction().require_exists(SALE).commit()
        start.wait(TIMEOUT)
        began = time.monotonic()
        for n in range(times):
            item = f"{buyer}/{n}"
            tx = app.transaction().require_score(SALE, item, PRICE).require_field(BUYERS, buyer, at_least=PRICE)
            tx.zrem(SALE, item).hincrby(BUYERS, buyer, -PRICE).hincrby(BUYERS, "seller", PRICE)
            tx.sadd(f"{SALE}:{buyer}", item).commit()
        out.send((began, time.monotonic(), 0))


def buy_with_watch(start: Any, out: Connection, address: str, buyer: int, times: int) -> None:
    with Penstock(address) as app:
        client = app._driver.connector.blocking_client()
        client.exists(SALE)
        start.wait(TIMEOUT)
        began, retries = time.monotonic(), 0
        for n in range(times):
            while not _bought(client, str(buyer), f"{buyer}/{n}"):
                retries += 1
        out.send((began, time.monotonic(), retries))


def _bought(client: Any, buyer: str, item: str) -> bool:
    with client.pipeline() as pipe:
        try:
            pipe.watch(SALE, BUYERS)
            if pipe.zscore(SALE, item) != PRICE or int(pipe.hget(BUYERS, buyer)) < PRICE:
                raise PenstockError("the bench's market was disturbed")
            pipe.multi()
            pipe.zrem(SALE, item)
            pipe.hincrby(BUYERS, buyer, -PRICE)
            pipe.hincrby(BUYERS, "seller", PRICE)
            pipe.sadd(f"{SALE}:{buyer}", item)
            pipe.execute()
        except Exception as error:
            if type(error).__name__ != "WatchError":
                raise
            return False
        return True


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
