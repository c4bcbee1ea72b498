"""The apps of the chaos tests: `app`, and `newer`, which has one task more, as after a deploy.

A task returns the number of its claim. So the result that the server keeps shows which completion it accepted. Half of
the batches return nothing, because only then their jobs are completed as one.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

from penstock import Batch, Penstock, Retry, Settings, Task
from penstock.jobs.claims import Claim
from penstock.jobs.constants import NUMBER_BYTES

QUEUE, BATCHES = "storm", "batches"
QUEUES = (QUEUE, BATCHES)

SLEEP = 3.0
"""Seconds after which an idle worker registers again. If the workers that wait for the next due time were killed, no
worker does so for this long."""

current_claims: ContextVar[Sequence[Claim]] = ContextVar("current_claims")
"""The claims whose task runs in this context: several in a batch. `recording_worker.py` sets it."""


def make_app(address: str | None = None) -> Penstock:
    lease = float(os.environ.get("STORM_LEASE", "10"))
    settings = Settings(lease=lease, result_ttl=3600, reply_timeout=2, sleep=SLEEP)
    return Penstock(address, prefix="storm", settings=settings)


def claim_number(token: bytes) -> int:
    """The number of a claim is the first part of its token."""
    return int.from_bytes(token[:NUMBER_BYTES])


def _current_number() -> int:
    return claim_number(current_claims.get()[0].token)


async def on_the_loop(ms: int) -> int:
    await asyncio.sleep(ms / 1000)
    return _current_number()


def in_a_thread(ms: int) -> int:
    time.sleep(ms / 1000)
    return _current_number()


async def fails_once(ms: int) -> int:
    await asyncio.sleep(ms / 1000)
    if current_claims.get()[0].record.attempts == 0:
        raise OSError("the first attempt fails")
    return _current_number()


async def fails_always(ms: int) -> int:
    raise ValueError(f"after {ms} ms, always")


async def in_batches(items: list[int]) -> Any:
    """Takes as long as its longest item; if that is an odd number of milliseconds, some jobs fail at first."""
    await asyncio.sleep(max(items) / 1000)
    if max(items) % 2 == 0:
        return None
    return [
        OSError("the first attempt fails") if ms == 1 and claim.record.attempts == 0 else claim_number(claim.token)
        for ms, claim in zip(items, current_claims.get(), strict=True)
    ]


async def only_in_newer(ms: int) -> int:
    """Only the newer app has this task."""
    await asyncio.sleep(ms / 1000)
    return _current_number()


def register(app: Penstock) -> dict[str, Task[[int], int]]:
    """Register the tasks of the older app. Returns them by name."""
    tasks: list[Task[[int], int]] = [app.task(queue=QUEUE)(function) for function in (on_the_loop, fails_always)]
    tasks += [app.task(queue=QUEUE)(in_a_thread), app.task(queue=QUEUE, retry=Retry(5, base=0.05))(fails_once)]
    batch = Batch(10, linger=0.2, by_tenant=True)
    tasks.append(app.task(queue=BATCHES, batch=batch, retry=Retry(5, base=0.05))(in_batches))
    return {task.name: task for task in tasks}


def register_newer(app: Penstock) -> dict[str, Task[[int], int]]:
    """Register the tasks of the newer app. Returns them by name."""
    return register(app) | {"only_in_newer": app.task(queue=QUEUE)(only_in_newer)}


app, newer = make_app(), make_app()
TASKS = register(app)
register_newer(newer)

if "penstock.worker.trial_process" in sys.modules:
    # The trial processes of a worker without a supervisor import the app from the module of its tasks: this one.
    import tests.chaos.recording_worker  # noqa: F401 - it records their histories too
