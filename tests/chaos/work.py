"""The apps of the chaos tests: `app`, and `newer` after a deploy.

A task returns the number of its claim, so that the result which the server keeps says whose completion it took.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextvars import ContextVar

from penstock import Penstock, Retry, Settings, Task
from penstock.jobs.claims import Claim

QUEUE = "storm"

SLEEP = 3.0
"""A sleeper says that it still sleeps. When those who watch the clock were killed, this is how long nobody does."""

in_hand: ContextVar[Claim] = ContextVar("in_hand")
"""What the worker runs here; see `notes.py`."""


def make_app(address: str | None = None) -> Penstock:
    lease = float(os.environ.get("STORM_LEASE", "10"))
    settings = Settings(lease=lease, result_ttl=3600, reply_timeout=2, sleep=SLEEP)
    return Penstock(address, prefix="storm", settings=settings)


def number(token: bytes) -> int:
    """The number of a claim is the first part of its token."""
    return int(token[:12], 16)


def _claim() -> int:
    return number(in_hand.get().token)


async def stroll(ms: int) -> int:
    await asyncio.sleep(ms / 1000)
    return _claim()


def trudge(ms: int) -> int:
    time.sleep(ms / 1000)
    return _claim()


async def stumble(ms: int) -> int:
    await asyncio.sleep(ms / 1000)
    if in_hand.get().record.attempts == 0:
        raise OSError("the first attempt fails")
    return _claim()


async def fall(ms: int) -> int:
    raise ValueError(f"after {ms} ms, always")


async def learn(ms: int) -> int:
    """Only the newer app knows it."""
    await asyncio.sleep(ms / 1000)
    return _claim()


def teach(one: Penstock) -> dict[str, Task[[int], int]]:
    """The tasks of the older app, by name."""
    tasks: list[Task[[int], int]] = [one.task(queue=QUEUE)(function) for function in (stroll, fall)]
    tasks += [one.task(queue=QUEUE)(trudge), one.task(queue=QUEUE, retry=Retry(5, base=0.05))(stumble)]
    return {task.name: task for task in tasks}


def teach_newer(one: Penstock) -> dict[str, Task[[int], int]]:
    return teach(one) | {"learn": one.task(queue=QUEUE)(learn)}


app, newer = make_app(), make_app()
TASKS = teach(app)
teach_newer(newer)
