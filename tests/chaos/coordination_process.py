"""A process that leads, observes, counts down latches, meets at a barrier and uses a rate limit, and records all of it.

    python coordination_process.py ADDRESS HISTORY SEED

It ends when its standard input is closed. With an even seed it works in threads, with an odd one on an event loop.
"""

import asyncio
import contextlib
import itertools
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, TypeAlias

from penstock import LeaseLost, Penstock, ServerError
from penstock.errors import BarrierBroken, BarrierTimeout
from penstock.testing import History
from penstock.testing.history import (
    BarrierArrived,
    BarrierEnded,
    LatchAwaited,
    LatchCounted,
    LatchPassed,
    LeaderSeen,
    RateGranted,
    StillLeads,
)
from tests.chaos.until_end_of_input import run

NAME = "chaos"
LEASE = 0.8
PARTIES = 3
COUNT = 3
LIMIT, PER, BURST = 20, 1.0, 5

address, folder, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
me = str(os.getpid())
chance = random.Random(seed)
history = History(folder)
app = Penstock(address)
over = threading.Event()
numbers = itertools.count()

Steps: TypeAlias = Generator[Any, Any, None]
"""Work that is written once for both faces. It yields seconds to sleep, or a `partial` that calls a verb."""


def lead() -> Steps:
    while not over.is_set():
        try:
            leader = yield partial(app.election(NAME, lease=LEASE, wait=chance.choice([0.3, 2])).campaign)
            for _ in range(3):
                moment = yield partial(leader.moment)
                history.note(StillLeads(election=NAME, token=leader.token, server_time=moment, term=leader.term))
                yield chance.uniform(0, 0.02)
            yield partial(leader.resign)
        except (TimeoutError, LeaseLost, ServerError):
            continue


def observe() -> Steps:
    observation = app.election(NAME).observe()
    while not over.is_set():
        with contextlib.suppress(ServerError):
            leader = yield partial(observation.fetch, 0.5)
            history.note(LeaderSeen(election=NAME, observer=me, term=0 if leader is None else leader.term))


def use_latches() -> Steps:
    """There is a latch for each second. Each process counts once, so that `COUNT` processes are needed to open it."""
    while not over.is_set():
        name = f"latch{int(time.time())}"
        latch = app.latch(name, count=COUNT)
        with contextlib.suppress(TimeoutError, ServerError):
            history.note(LatchCounted(latch=name, key=me))
            yield partial(latch.count_down, id=me)
            history.note(LatchAwaited(latch=name, waiter=me))
            yield partial(latch.wait, 2.5)
            history.note(LatchPassed(latch=name, waiter=me))
        yield 0.05


def meet() -> Steps:
    barrier = app.barrier(NAME, parties=PARTIES, lease=1)
    while not over.is_set():
        party = f"{me}/{next(numbers)}"
        history.note(BarrierArrived(barrier=NAME, party=party))
        try:
            met = yield partial(barrier.wait, chance.choice([0.5, 5]))
        except BarrierBroken as error:
            history.note(BarrierEnded(barrier=NAME, party=party, outcome="broken", generation=error.generation))
        except BarrierTimeout:
            history.note(BarrierEnded(barrier=NAME, party=party, outcome="left"))
        except ServerError:
            pass
        else:
            end = BarrierEnded(barrier=NAME, party=party, outcome="passed", generation=met.generation, index=met.index)
            history.note(end)
        yield chance.uniform(0, 0.05)


def use_rate() -> Steps:
    limit = app.rate_limit(NAME, limit=LIMIT, per=PER, burst=BURST, wait=2)
    while not over.is_set():
        with contextlib.suppress(TimeoutError, ServerError):
            yield partial(limit.acquire)
            history.note(RateGranted(rate=NAME))


WORK: tuple[Callable[[], Steps], ...] = (lead, observe, use_latches, meet, meet, use_rate)


def run_blocking(steps: Steps) -> None:
    with contextlib.suppress(StopIteration):
        step = next(steps)
        while True:
            try:
                reply = None
                if isinstance(step, float):
                    time.sleep(step)
                else:
                    reply = step()
            except Exception as error:
                step = steps.throw(error)
            else:
                step = steps.send(reply)


async def run_aio(steps: Steps) -> None:
    with contextlib.suppress(StopIteration):
        step = next(steps)
        while True:
            try:
                reply = None
                if isinstance(step, float):
                    await asyncio.sleep(step)
                else:
                    reply = await step.func.aio(*step.args, **step.keywords)
            except Exception as error:
                step = steps.throw(error)
            else:
                step = steps.send(reply)


if seed % 2:
    run(app, over, on_loop=[partial(run_aio, work()) for work in WORK])
else:
    run(app, over, in_threads=[partial(run_blocking, work()) for work in WORK])
