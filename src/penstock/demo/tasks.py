"""The demo's tasks, and the journal in which each run writes down that it was there."""

from __future__ import annotations

import asyncio
import os
import time
from typing import NamedTuple

from penstock.app import AsyncTask, Penstock
from penstock.counting.access_log import parse
from penstock.jobs.queue import Queue
from penstock.jobs.retry import Retry

PREFIX = "penstock-demo"
QUEUE = "PENSTOCK_DEMO_QUEUE"
"""The environment's name for the queue, the only one that parent and worker share."""

RETRIES = 3


class Hiccup(Exception):
    """What a job raises that was told to fail."""


class Entry(NamedTuple):
    """One run that got to its end: of which job, seconds from due to start, and what it found."""

    number: int
    waited: float
    day: str
    status: int

    def written(self) -> str:
        return f"{self.number} {self.waited:.4f} {self.day} {self.status}"

    @classmethod
    def read(cls, text: bytes) -> Entry:
        number, waited, day, status = text.decode().split()
        return cls(int(number), float(waited), day, int(status))


class Journal:
    """Entries of runs that end together reach the server in one command; each run waits until its own is there.

    So a job that is complete has its entry, and the entry costs a fraction of a round trip.
    """

    def __init__(self, app: Penstock, key: str) -> None:
        self._app = app
        self.key = key
        self._entries: list[str] = []
        self._next: asyncio.Task[None] | None = None
        self._in_turn = asyncio.Lock()

    async def add(self, entry: Entry) -> None:
        self._entries.append(entry.written())
        if self._next is None:
            self._next = asyncio.create_task(self._send())
        await asyncio.shield(self._next)

    async def _send(self) -> None:
        # While one command is under way, the next one gathers.
        async with self._in_turn:
            entries, self._entries, self._next = self._entries, [], None
            await self._app._driver.connector.aio_client().rpush(self.key, *entries)


class Tasks(NamedTuple):
    """They are on `queue`; what they write down is in the list `journal`, in the queue's slot."""

    queue: Queue
    journal: str
    greet: AsyncTask[[], int]
    count_request: AsyncTask[[int, str, float, int], None]
    never_works: AsyncTask[[], None]


def make_tasks(app: Penstock, queue: str) -> Tasks:
    """Register the demo's tasks: in the worker to run them, in its parent to enqueue them."""
    retry = Retry(RETRIES, base=0.2)
    home = app.queue(queue)
    journal = Journal(app, home.key("journal"))
    failed, begun = home.key("failed"), home.key("begun")

    @app.task(queue=queue)
    async def greet() -> int:
        """The first job. Its result says that a worker is there, and which process it is."""
        return os.getpid()

    @app.task(queue=queue, retry=retry, result_ttl=0)
    async def count_request(number: int, line: str, due: float, fails: int) -> None:
        """Read one line of the log. `due` and the start are by this machine's clock; `fails`: so often at first."""
        started = time.time()
        if fails:  # written down in the server, because each run may be in another process
            client = app._driver.connector.aio_client()
            await client.hsetnx(begun, number, started)
            if await client.hincrby(failed, number, 1) <= fails:
                raise Hiccup(f"told to fail {fails} times")
            started = float(await client.hget(begun, number))
        request = parse(line.encode())
        if request is None:
            raise ValueError(f"not a line of an access log: {line!r}")
        await journal.add(Entry(number, started - due, request.day, request.status))

    @app.task(queue=queue, retry=retry, result_ttl=0)
    async def never_works() -> None:
        """The job that ends as a dead letter."""
        raise Hiccup("this one always fails")

    return Tasks(home, journal.key, greet, count_request, never_works)
