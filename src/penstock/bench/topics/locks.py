"""What locks, permits, rate limits and guarded purchases cost; other libraries' locks beside ours, if installed."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

from penstock.bench.contenders import BUYERS, PRICE, SALE, Holding, at_once, buy_in_transaction, buy_with_watch, contend
from penstock.bench.figures import Figure, Ratio, at_least, at_most, figure, percentile
from penstock.bench.peers import Maker, installed
from penstock.bench.stand import Stand, timed
from penstock.bench.topic import Figures, Topic
from penstock.ops.raw_client import raw_client

TOPIC = Topic()

CONTENDERS = 16
HOLD = 0.002
"""Seconds each of them keeps the lock."""


def name_of(stand: Stand, what: str) -> str:
    """A lock's key has no prefix of the app's: the name says whose it is. It is gone when it is released."""
    return f"{stand.app.settings.prefix}:{what}:{secrets.token_hex(4)}"


@TOPIC.scenario
def uncontended(stand: Stand) -> Figures:
    """Taken and given back when nobody else wants it (others: pip install redis hiredis python-redis-lock)"""
    name, locks = name_of(stand, "free"), installed(stand.address)
    semaphore = stand.app.semaphore("free", limit=5, lease=10)
    things: dict[str, Callable[[], object]] = {
        **{f"lock, {peer}": partial(used, make, name) for peer, make in locks.items()},
        "semaphore, penstock": partial(used, lambda _: semaphore, ""),
        "2 trivial EVALSHAs": partial(used_twice, stand.send_trivial),
    }
    rounds, times = stand.at_pace(5, 21, 51), stand.at_pace(50, 100, 200)
    for thing in things.values():
        timed(thing, times)
    rows = [{what: stand.used(thing, times) for what, thing in things.items()} for _ in range(rounds)]
    for what in things:
        if what.startswith("2"):
            continue
        beside = "lock, redis" if "redis" in locks and what != "lock, redis" else "2 trivial EVALSHAs"
        ratio = Ratio(median(row[what].seconds / row[beside].seconds for row in rows), beside)
        aim = at_most(1.15, "ratio") if (what, beside) == ("lock, penstock", "lock, redis") else None
        yield figure(what, [row[what].seconds / times * 1e6 for row in rows], "µs", ratio=ratio, target=aim)
        for part in ("client", "server"):
            spent, other = ([getattr(row[one], part) / times * 1e6 for row in rows] for one in (what, beside))
            yield figure(f"{what}: CPU of the {part}", spent, "µs", ratio=Ratio(sum(spent) / sum(other), beside))


@TOPIC.scenario
def contended(stand: Stand) -> Figures:
    """16 processes that want one lock over and over and hold it for 2 ms"""
    times = stand.at_pace(8, 30, 60)
    for peer in installed(stand.address):
        name = name_of(stand, "wanted")
        seen = at_once(contend, [(stand.address, peer, name, times, HOLD)] * CONTENDERS)
        yield from contention(peer, [one for some in seen for one in some])


@TOPIC.scenario
def idle(stand: Stand) -> Figures:
    """Commands of a process in which 100 tasks wait for a lock that another holds, and 20 wait for a permit"""
    name, seconds = name_of(stand, "held"), stand.at_pace(5, 20, 60)

    async def wait() -> int:
        async with stand.app as app:
            lock = app.lock(name, lease=10)
            semaphore = app.semaphore("held", limit=1, lease=10)
            tasks: list[asyncio.Task[Any]] = [asyncio.create_task(lock.acquire.aio()) for _ in range(100)]
            tasks += [asyncio.create_task(semaphore.acquire.aio()) for _ in range(20)]
            await asyncio.sleep(4)  # until all stand in line, and each line was looked at once more
            before = await asyncio.to_thread(stand.commands)
            await asyncio.sleep(seconds)
            sent = await asyncio.to_thread(stand.commands) - before
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            return sent

    with raw_client(stand.app) as client:
        client.set(name, "penstock/elsewhere/1/bench", px=600_000)
        (_, holders) = stand.app.semaphore("held", limit=1).bindings.declared
        client.zadd(holders, {"penstock/elsewhere/1/bench/1": int((time.time() + 600) * 1000)})
        try:
            sent = asyncio.run(wait())
        finally:
            client.delete(name)
    yield figure("commands in 10 s", sent / seconds * 10, "", target=at_most(2))


@TOPIC.scenario
def purchase(stand: Stand) -> Figures:
    """8 processes that buy: price, funds, goods of buyer and seller change together"""
    times, rounds = stand.at_pace(60, 500, 2000), stand.at_pace(1, 5, 9)
    ways = {"WATCH, read, MULTI": buy_with_watch, "guarded transaction": buy_in_transaction}
    rates: dict[str, list[float]] = {way: [] for way in ways}
    again = 0.0
    for _ in range(rounds):
        for way, buy in ways.items():
            stock(stand, times)
            seen = at_once(buy, [(stand.address, buyer, times) for buyer in range(8)])
            rates[way].append(8 * times / (max(one[1] for one in seen) - min(one[0] for one in seen)))
            again += sum(one[2] for one in seen) / (8 * times * rounds)
    watch, guarded = rates.values()
    yield figure("WATCH, read, MULTI", watch, "/s")
    yield figure("WATCH: looked again for each", again, "times")
    pairs = [ours / theirs for ours, theirs in zip(guarded, watch, strict=True)]
    ratio = Ratio(median(pairs), "WATCH, read, MULTI")
    yield figure("guarded transaction", guarded, "/s", ratio=ratio, target=at_least(5, "ratio"))
    with raw_client(stand.app) as client:
        client.delete(SALE, BUYERS, *(f"{SALE}:{buyer}" for buyer in range(8)))


@TOPIC.scenario
def rate_limits(stand: Stand) -> Figures:
    """try_acquire, allowed and refused, blocking"""
    rounds, times = stand.at_pace(3, 9, 15), stand.at_pace(100, 500, 1000)
    for kind in ("bucket", "window"):
        for what, limit in (("allowed", 10_000), ("refused", 1)):
            rate = stand.app.rate_limit(f"{kind}-{what}", limit=limit, per=600 if limit == 1 else 1, kind=kind)
            timed(rate.try_acquire, 10)
            spent = [timed(rate.try_acquire, times) * 1e6 for _ in range(rounds)]
            ratio = Ratio(median(spent) * 1e-6 / stand.trivial_usage.seconds * 1e4, "trivial EVALSHA")
            yield figure(f"{kind}, {what}", spent, "µs", ratio=ratio)


# --- small parts ---


def used_twice(work: Callable[[], object]) -> None:
    work()
    work()


def used(make: Maker, name: str) -> None:
    with make(name):
        pass


def contention(peer: str, seen: Sequence[Holding]) -> Iterator[Figure]:
    """How fast it is handed over, and how long the unluckiest waited beside a perfect line."""
    order = sorted(seen, key=lambda one: one.got)
    passed = [later.got - earlier.left for earlier, later in pairwise(order) if later.asked < earlier.left]
    middle, late = median(passed), percentile(passed, 0.99)
    ideal = (CONTENDERS - 1) * (median(one.left - one.got for one in order) + middle)
    worst, is_ours = max(one.got - one.asked for one in order), peer == "penstock"
    yield figure(f"{peer}, handed over, p50", middle * 1e3, "ms")
    yield figure(
        f"{peer}: handed over, p99", late * 1e3, "ms",
        ratio=Ratio(late / middle, "p50"), target=at_most(2 if is_ours else None, "ratio"),
    )  # fmt: skip
    yield figure(
        f"{peer}: longest wait", worst * 1e3, "ms",
        ratio=Ratio(worst / ideal, "a perfect line"), target=at_most(1.3 if is_ours else None, "ratio"),
    )  # fmt: skip


def stock(stand: Stand, times: int) -> None:
    with raw_client(stand.app) as client:
        client.delete(SALE, BUYERS, *(f"{SALE}:{buyer}" for buyer in range(8)))
        client.hset(BUYERS, mapping={str(buyer): PRICE * times for buyer in range(8)})
        goods: dict[Any, int] = {f"{buyer}/{n}": PRICE for buyer in range(8) for n in range(times)}
        client.zadd(SALE, goods)
