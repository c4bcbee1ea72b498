"""A process that enqueues at a steady pace, blocking and async, single jobs and batches, and records the answers."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence

from penstock import Call, PenstockError, ServerFull
from penstock.testing.history import Enqueued
from tests.chaos.recording_worker import history
from tests.chaos.tasks import TASKS, app

SHARES = {"on_the_loop": 50, "in_batches": 30, "in_a_thread": 12, "fails_once": 7, "fails_always": 1}
"""Calls of each task, in percent."""

TENANTS = [f"tenant {n}" for n in range(10)]

LONGEST = 40
"""Milliseconds that a job may take. Most take a few."""


def produce(name: str, seed: int, until: float, rate: float) -> None:
    """Enqueue `rate` jobs a second until the time `until`. Job ids begin with `name`, which no other producer has."""
    asyncio.run(_produce(name, random.Random(f"{seed} {name}"), until, rate))


async def _produce(name: str, chance: random.Random, until: float, rate: float) -> None:
    made, began = 0, time.time()
    while time.time() < until:
        keys = [f"{name}.{made + n}" for n in range(chance.choice((1, 1, 5, 20, 50)))]
        made += len(keys)
        await _enqueue([_call(key, chance) for key in keys], keys, chance.random() < 0.5)
        await asyncio.sleep(began + made / rate - time.time())
    await app.aclose()


def _call(key: str, chance: random.Random) -> Call[int]:
    (task,) = chance.choices(list(SHARES), list(SHARES.values()))
    # The first tenants have most of the jobs.
    tenant = TENANTS[int(len(TENANTS) * chance.random() ** 3)]
    delay = chance.choice((0.0, 0.0, 0.0, 1.0 + chance.random()))
    return TASKS[task].using(id=key, tenant=tenant, delay=delay).call(int(LONGEST * chance.random() ** 4))


async def _enqueue(calls: Sequence[Call[int]], keys: Sequence[str], blocking: bool) -> None:
    for key in keys:
        history.note(Enqueued(job=key, answer="asked"))
    try:
        if blocking:
            await asyncio.to_thread(app.enqueue_many, calls)
        else:
            await app.enqueue_many.aio(calls)
    except ServerFull:
        answer = "refused"
    except PenstockError:
        answer = "unknown"
    else:
        answer = "accepted"
    for key in keys:
        history.note(Enqueued(job=key, answer=answer))  # type: ignore[arg-type]
