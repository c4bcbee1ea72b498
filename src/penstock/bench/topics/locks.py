"""The cost of locks, permits and rate limits."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

from penstock.bench.competitors import HoldTimes, Maker, contend, penstock, run_together
from penstock.bench.figures import Figure, Ratio, at_most, figure, percentile
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
    """Acquire and release a free lock, and a permit"""
    yield from acquired_and_released(rig, {"penstock": penstock(rig.address)})


def acquired_and_released(rig: Rig, locks: dict[str, Maker]) -> Figures:
    name = name_of(rig, "free")
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
        if what == "2 trivial EVALSHAs":
            continue
        yardstick = "lock, redis" if "redis" in locks and what != "lock, redis" else "2 trivial EVALSHAs"
        ratio = Ratio(median(row[what].seconds / row[yardstick].seconds for row in rows), yardstick)
        target = at_most(1.1, "ratio") if (what, yardstick) == ("lock, penstock", "lock, redis") else None
        yield figure(what, [row[what].seconds / times * 1e6 for row in rows], "µs", ratio=ratio, target=target)
        for part in ("client", "server"):
            spent, other = ([getattr(row[one], part) / times * 1e6 for row in rows] for one in (what, yardstick))
            yield figure(f"{what}: CPU of the {part}", spent, "µs", ratio=Ratio(sum(spent) / sum(other), yardstick))


@TOPIC.scenario
def contended(rig: Rig) -> Figures:
    """16 processes acquire one lock repeatedly, and hold it for 2 ms each time"""
    yield from contended_by_processes(rig, {"penstock": penstock})


def contended_by_processes(rig: Rig, peers: dict[str, Callable[[str], Maker]]) -> Figures:
    times = rig.at_pace(8, 30, 60)
    for peer, connect in peers.items():
        name = name_of(rig, "wanted")
        times_held = run_together(contend, [(connect, rig.address, name, times, HOLD)] * COMPETITORS)
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
    target = at_most(2 if is_ours else None, "ratio")
    yield figure(f"{peer}: hand-over, p99", p99 * 1e3, "ms", ratio=Ratio(p99 / p50, "p50"), target=target)
    target, ratio = at_most(1.3 if is_ours else None, "ratio"), Ratio(worst / ideal, "a perfect order")
    yield figure(f"{peer}: longest wait", worst * 1e3, "ms", ratio=ratio, target=target)
