"""Processes that do the same at once: contend for a lock, or buy from one market.

They are forked from a clean process, so that sixteen of them do not import everything sixteen times.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from penstock.app import Penstock
from penstock.bench.peers import MAKERS
from penstock.errors import PenstockError

SALE, BUYERS = "{penstock-bench}:sale", "{penstock-bench}:funds"
PRICE = 3

PATIENCE = 300.0
"""Seconds: on a busy machine sixteen processes take long to start."""

PRELOADED = ("valkey", "redis", "redis_lock")
"""Imported once for all, where they are installed."""


class Holding(NamedTuple):
    """By the clock that all processes of a machine share."""

    asked: float
    got: float
    left: float


def contend(start: Any, out: Connection, address: str, peer: str, name: str, times: int, hold: float) -> None:
    make, seen = MAKERS[peer](address), []
    with make(f"{name}:warm:{id(out)}"):
        pass
    start.wait(PATIENCE)
    for _ in range(times):
        asked = time.monotonic()
        with make(name):
            got = time.monotonic()
            time.sleep(hold)
            left = time.monotonic()
        seen.append(Holding(asked, got, left))
    out.send(seen)


def buy_in_transaction(start: Any, out: Connection, address: str, buyer: int, times: int) -> None:
    """Sends when it began, when it ended, and how often it had to look again."""
    with Penstock(address) as app:
        app.transaction().require_exists(SALE).commit()
        start.wait(PATIENCE)
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
        start.wait(PATIENCE)
        began, again = time.monotonic(), 0
        for n in range(times):
            while not _bought(client, str(buyer), f"{buyer}/{n}"):
                again += 1
        out.send((began, time.monotonic(), again))


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


def at_once(work: Callable[..., None], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Run `work(start, out, *arguments)` in a process each; `start.wait()` lets all begin together. What each sent."""
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
            out.close()  # so that the end of a process is seen
        return [_received(inlet) for inlet, _ in pipes]
    except EOFError:
        raise PenstockError("a process of the bench ended before its time; its error stands above") from None
    finally:
        for process in processes:
            process.kill()
            process.join()


def _received(inlet: Any) -> Any:
    if not inlet.poll(PATIENCE):
        raise PenstockError(f"a process of the bench did not finish within {PATIENCE:.0f} s")
    return inlet.recv()
