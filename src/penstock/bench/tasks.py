"""The tasks of the bench: they do nothing, or return when they started."""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple

from penstock.app import Penstock
from penstock.jobs.decorator import AsyncTask, PlainTask
from penstock.jobs.queue import Queue

QUEUE = "bench"

BUSY = 0.05
"""Seconds that `busy` takes."""

TEXT = "x" * 32


class BenchTasks(NamedTuple):
    """The tasks and their queue."""

    queue: Queue
    noop: AsyncTask[[int, int, str], int]
    plain: PlainTask[[int, int, str], int]
    started: AsyncTask[[], float]
    busy: AsyncTask[[], None]


def make_tasks(app: Penstock) -> BenchTasks:
    """Register the tasks, in a worker to run them and in its parent to enqueue them."""

    @app.task(queue=QUEUE, result_ttl=0)
    async def noop(a: int, b: int, text: str) -> int:
        return a + b

    @app.task(queue=QUEUE, result_ttl=0)
    def plain(a: int, b: int, text: str) -> int:
        return a + b

    @app.task(queue=QUEUE, result_ttl=60)
    async def started() -> float:
        """The start, by the clock that all processes of a machine share."""
        return time.monotonic()

    @app.task(queue=QUEUE, result_ttl=0)
    async def busy() -> None:
        await asyncio.sleep(BUSY)

    return BenchTasks(app.queue(QUEUE), noop, plain, started, busy)
