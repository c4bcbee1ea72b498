"""Locks of Penstock and of other libraries, and purchases in a guarded transaction and in a WATCH loop.

pip install redis hiredis python-redis-lock
"""

from __future__ import annotations

import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

from penstock.app import Penstock
from penstock.bench.competitors import LEASE, TIMEOUT, Maker, penstock, run_together
from penstock.bench.figures import Ratio, at_least, figure
from penstock.bench.rig import Rig
from penstock.bench.topic import Figures, Topic
from penstock.bench.topics.locks import acquired_and_released, contended_by_processes
from penstock.errors import PenstockError
from penstock.ops.raw_client import raw_client

TOPIC = Topic()

SALE, BUYERS = "{penstock-bench}:sale", "{penstock-bench}:funds"
PRICE = 3


@TOPIC.scenario
def uncontended(rig: Rig) -> Figures:
    """Acquire and release a free lock, in each library that is installed"""
    yield from acquired_and_released(rig, {name: connect(rig.address) for name, connect in installed().items()})


@TOPIC.scenario
def contended(rig: Rig) -> Figures:
    """16 processes acquire one lock repeatedly, and hold it for 2 ms each time"""
    yield from contended_by_processes(rig, installed())


@TOPIC.scenario
def purchase(rig: Rig) -> Figures:
    """8 processes buy from one market: each purchase checks price and funds, and moves money and goods, atomically"""
    times, rounds = rig.at_pace(60, 500, 2000), rig.at_pace(1, 5, 9)
    ways = {"WATCH, read, MULTI": buy_with_watch, "guarded transaction": buy_in_transaction}
    rates: dict[str, list[float]] = {way: [] for way in ways}
    retries = 0.0
    for _ in range(rounds):
        for way, buy in ways.items():
            stock(rig, times)
            results = run_together(buy, [(rig.address, buyer, times) for buyer in range(8)])
            rates[way].append(8 * times / (max(one[1] for one in results) - min(one[0] for one in results)))
            retries += sum(one[2] for one in results) / (8 * times * rounds)
    watch, guarded = rates.values()
    yield figure("WATCH, read, MULTI", watch, "/s")
    yield figure("WATCH: retries per purchase", retries, "times")
    pairs = [ours / theirs for ours, theirs in zip(guarded, watch, strict=True)]
    ratio = Ratio(median(pairs), "WATCH, read, MULTI")
    yield figure("guarded transaction", guarded, "/s", ratio=ratio, target=at_least(5, "ratio"))
    with raw_client(rig.app) as client:
        client.delete(SALE, BUYERS, *(f"{SALE}:{buyer}" for buyer in range(8)))


# --- locks ---


def redis_py(address: str) -> Maker:
    client = _redis(address)
    return lambda name: client.lock(name, timeout=LEASE)


def python_redis_lock(address: str) -> Maker:
    import redis_lock

    client = _redis(address)
    return lambda name: redis_lock.Lock(client, name, expire=LEASE)


def _redis(address: str) -> Any:
    import redis

    return redis.Redis.from_url(address.replace("valkey", "redis", 1))


def installed() -> dict[str, Callable[[str], Maker]]:
    """Connects to a server, for each library that is installed, Penstock first."""
    found, libraries = {"penstock": penstock}, {"redis": redis_py, "python-redis-lock": python_redis_lock}
    for name, connect in libraries.items():
        try:
            connect("valkey://127.0.0.1")
        except ImportError:
            continue
        found[name] = connect
    return found


# --- the market ---


def stock(rig: Rig, times: int) -> None:
    with raw_client(rig.app) as client:
        client.delete(SALE, BUYERS, *(f"{SALE}:{buyer}" for buyer in range(8)))
        client.hset(BUYERS, mapping={str(buyer): PRICE * times for buyer in range(8)})
        goods: dict[Any, int] = {f"{buyer}/{n}": PRICE for buyer in range(8) for n in range(times)}
        client.zadd(SALE, goods)


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
