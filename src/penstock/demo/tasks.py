"""The demo's tasks, and the journal in which each finished run records itself."""

from __future__ import annotations

import asyncio
import os
import time
from typing import NamedTuple

from penstock.app import Penstock
from penstock.counting.access_log import parse
from penstock.jobs.decorator import AsyncTask
from penstock.jobs.queue import Queue
from penstock.jobs.retry import Retry

PREFIX = "penstock-demo"
QUEUE = "PENSTOCK_DEMO_QUEUE"
"""Environment variable with the name of the queue. Parent and worker share nothing else."""

RETRIES = 3


class PlannedFailure(Exception):
    """Raised by a job that fails on purpose."""


class JournalEntry(NamedTuple):
    """One finished run: the number of its job, seconds from due time to start, and what it parsed."""

    number: int
    waited: float
    day: str
    status: int

    def encode(self) -> str:
        return f"{self.number} {self.waited:.4f} {self.day} {self.status}"

    @classmethod
    def read(cls, text: bytes) -> JournalEntry:
        number, waited, day, status = text.decode().split()
        return cls(int(number), float(waited), day, int(status))


class Journal:
    """Stores the entries of runs that finish at the same time with one command. Each run waits for its entry.

    So a completed job always has its entry, and an entry costs a fraction of a round trip.
    """

    def __init__(self, app: Penstock, key: str) -> None:
        self._app = app
        self.key = key
        self._entries: list[str] = []
        self._next: asyncio.Task[None] | None = None
        self._in_turn = asyncio.Lock()

    async def add(self, entry: JournalEntry) -> None:
        self._entries.append(entry.encode())
        if self._next is None:
            self._next = asyncio.create_task(self._send())
        await asyncio.shield(self._next)

    async def _send(self) -> None:
        # Entries that arrive while a command is in flight are sent by the next one.
        async with self._in_turn:
            entries, self._entries, self._next = self._entries, [], None
            await self._app._driver.connector.aio_client().rpush(self.key, *entries)


class DemoTasks(NamedTuple):
    """The tasks, their queue, and `journal`: the list of entries, in the queue's slot."""

    queue: Queue
    journal: str
    greet: AsyncTask[[], int]
    count_request: AsyncTask[[int, str, float, int], None]
    never_works: AsyncTask[[], None]


def make_tasks(app: Penstock, queue: str) -> DemoTasks:
    """Register the demo's tasks, in the worker to run them and in its parent to enqueue them."""
    retry = Retry(RETRIES, base=0.2)
    work = app.queue(queue)
    journal = Journal(app, work.key("journal"))
    failed, begun = work.key("failed"), work.key("begun")

    @app.task(queue=queue)
    async def greet() -> int:
        """The first job. Its result proves that a worker runs, and names the process."""
        return os.getpid()

    @app.task(queue=queue, retry=retry, result_ttl=0)
    async def count_request(number: int, line: str, due: float, fails: int) -> None:
        """Parse one line of the log. `due` is a time of this machine's clock; the first `fails` runs fail."""
        started = time.time()
        if fails:  # counted in the server, because each run may be in another process
            client = app._driver.connector.aio_client()
            await client.hsetnx(begun, number, started)
            if await client.hincrby(failed, number, 1) <= fails:
                raise PlannedFailure(f"planned to fail {fails} times")
            started = float(await client.hget(begun, number))
        request = parse(line.encode())
        if request is None:
            raise ValueError(f"not a line of an access log: {line!r}")
        await journal.add(JournalEntry(number, started - due, request.day, request.status))

    @app.task(queue=queue, retry=retry, result_ttl=0)
    async def never_works() -> None:
        """The job that ends as a dead letter."""
        raise PlannedFailure("this one always fails")

    return DemoTasks(work, journal.key, greet, count_request, never_works)
