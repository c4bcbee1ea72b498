"""The cost of locks, permits, rate limits and transactions, and of other libraries' locks if they are installed."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

from penstock.bench.competitors import (
    BUYERS,
    PRICE,
    SALE,
    HoldTimes,
    buy_in_transaction,
    buy_with_watch,
    contend,
    run_together,
)
from penstock.bench.figures import Figure, Ratio, at_least, at_most, figure, percentile
from penstock.bench.peer_locks import Maker, installed
from penstock.bench.rig import Rig, timed
from penstock.bench.topic import Figures, Topic
from penstock.ops.raw_client import raw_client

TOPIC = Topic()

COMPETITORS = 16
HOLD = 0.002
"""Seconds for which each competitor keeps the lock."""


def name_of(rig: Rig, what: str) -> str:
    """The name of a lock. Its key lacks the app's prefix, so the name contains it."""
    return f"{rig.app.settings.prefix}:{what}:{secrets.token_hex(4)}"


@TOPIC.scenario
def uncontended(rig: Rig) -> Figures:
    """Acquire and release a free lock (to compare libraries: pip install redis hiredis python-redis-lock)"""
    name, locks = name_of(rig, "free"), installed(rig.address)
    semaphore = rig.app.semaphore("free", limit=5, lease=10)
    things: dict[str, Callable[[], object]] = {
        **{f"lock, {peer}": partial(acquire_and_release, make, name) for peer, make in locks.items()},
        "semaphore, penstock": partial(acquire_and_release, lambda _: semaphore, ""),
        "2 trivial EVALSHAs": partial(twice, rig.send_trivial),
    }
    rounds, times = rig.at_pace(5, 21, 51), rig.at_pace(50, 100, 200)
    for thing in things.values():
        timed(thing, times)
    rows = [{what: rig.usage_of(thing, times) for what, thing in things.items()} for _ in range(rounds)]
    for what in things:
        if what.startswith("2"):
            continue
        yardstick = "lock, redis" if "redis" in locks and what != "lock, redis" else "2 trivial EVALSHAs"
        ratio = Ratio(median(row[what].seconds / row[yardstick].seconds for row in rows), yardstick)
        target = at_most(1.15, "ratio") if (what, yardstick) == ("lock, penstock", "lock, redis") else None
        yield figure(what, [row[what].seconds / times * 1e6 for row in rows], "µs", ratio=ratio, target=target)
        for part in ("client", "server"):
            spent, other = ([getattr(row[one], part) / times * 1e6 for row in rows] for one in (what, yardstick))
            yield figure(f"{what}: CPU of the {part}", spent, "µs", ratio=Ratio(sum(spent) / sum(other), yardstick))


@TOPIC.scenario
def contended(rig: Rig) -> Figures:
    """16 processes acquire one lock repeatedly, and hold it for 2 ms each time"""
    times = rig.at_pace(8, 30, 60)
    for peer in installed(rig.address):
        name = name_of(rig, "wanted")
        times_held = run_together(contend, [(rig.address, peer, name, times, HOLD)] * COMPETITORS)
        yield from contention(peer, [one for some in times_held for one in some])


@TOPIC.scenario
def idle(rig: Rig) -> Figures:
    """Commands of a process while 100 of its tasks wait for a lock and 20 for a permit"""
    name, seconds = name_of(rig, "held"), rig.at_pace(5, 20, 60)

    async def wait() -> int:
        async with rig.app as app:
            lock = app.lock(name, lease=10)
            semaphore = app.semaphore("held", limit=1, lease=10)
            tasks: list[asyncio.Task[Any]] = [asyncio.create_task(lock.acquire.aio()) for _ in range(100)]
            tasks += [asyncio.create_task(semaphore.acquire.aio()) for _ in range(20)]
            return await rig.commands_while_waiting(tasks, 4, seconds)  # after 4 s each has checked once more

    with raw_client(rig.app) as client:
        client.set(name, "penstock/elsewhere/1/bench", px=600_000)
        (_, holders) = rig.app.semaphore("held", limit=1).bindings.declared
        client.zadd(holders, {"penstock/elsewhere/1/bench/1": int((time.time() + 600) * 1000)})
        try:
            sent = asyncio.run(wait())
        finally:
            client.delete(name)
    yield figure("commands in 10 s", sent / seconds * 10, "", target=at_most(2))


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


@TOPIC.scenario
def rate_limits(rig: Rig) -> Figures:
    """try_acquire from blocking code, admitted and refused"""
    rounds, times = rig.at_pace(3, 9, 15), rig.at_pace(100, 500, 1000)
    for kind in ("bucket", "window"):
        for what, limit in (("admitted", 10_000), ("refused", 1)):
            rate = rig.app.rate_limit(f"{kind}-{what}", limit=limit, per=600 if limit == 1 else 1, kind=kind)
            timed(rate.try_acquire, 10)
            spent = [timed(rate.try_acquire, times) * 1e6 for _ in range(rounds)]
            ratio = Ratio(median(spent) * 1e-6 / rig.trivial_usage.seconds * 1e4, "trivial EVALSHA")
            yield figure(f"{kind}, {what}", spent, "µs", ratio=ratio)


# --- helpers ---


def twice(work: Callable[[], object]) -> None:
    work()
    work()


def acquire_and_release(make: Maker, name: str) -> None:
    with make(name):
        pass


def contention(peer: str, times_held: Sequence[HoldTimes]) -> Iterator[Figure]:
    """Figures of the hand-over, and of the longest wait compared with that of a perfect order."""
    order = sorted(times_held, key=lambda one: one.acquired)
    hand_overs = [
        later.acquired - earlier.released for earlier, later in pairwise(order) if later.requested < earlier.released
    ]
    p50, p99 = median(hand_overs), percentile(hand_overs, 0.99)
    ideal = (COMPETITORS - 1) * (median(one.released - one.acquired for one in order) + p50)
    worst, is_ours = max(one.acquired - one.requested for one in order), peer == "penstock"
    yield figure(f"{peer}, hand-over, p50", p50 * 1e3, "ms")
    yield figure(
        f"{peer}: hand-over, p99", p99 * 1e3, "ms",
        ratio=Ratio(p99 / p50, "p50"), target=at_most(2 if is_ours else None, "ratio"),
    )  # fmt: skip
    yield figure(
        f"{peer}: longest wait", worst * 1e3, "ms",
        ratio=Ratio(worst / ideal, "a perfect order"), target=at_most(1.3 if is_ours else None, "ratio"),
    )  # fmt: skip


def stock(rig: Rig, times: int) -> None:
    with raw_client(rig.app) as client:
        client.delete(SALE, BUYERS, *(f"{SALE}:{buyer}" for buyer in range(8)))
        client.hset(BUYERS, mapping={str(buyer): PRICE * times for buyer in range(8)})
        goods: dict[Any, int] = {f"{buyer}/{n}": PRICE for buyer in range(8) for n in range(times)}
        client.zadd(SALE, goods)
