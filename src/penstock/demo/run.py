"""One run of the demo: a server, a worker process, the jobs put in, and the books kept until all of it is done."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

from penstock.app import Penstock
from penstock.core.ids import mint_id
from penstock.counting.access_log import parse
from penstock.demo.books import Account, Books
from penstock.demo.log import lines
from penstock.demo.tasks import PREFIX, QUEUE, Entry, Tasks, make_tasks
from penstock.errors import ConfigurationError, PenstockError, ResultTimeout
from penstock.jobs.counts import Counts
from penstock.jobs.task import Call
from penstock.ops.raw_client import delete_keys, raw_client
from penstock.settings import Settings
from penstock.terminal.made_up_log import generate
from penstock.terminal.signals import not_ignored
from penstock.testing.server import given_or_temporary_server
from penstock.worker.parent_pipe import ParentPipe

PROCESSES = 2
CONCURRENCY = 64
KILL_AT = 0.4
"""When this share of the jobs is done, one of the processes is killed."""

TICK = 0.1
STALLED = 30.0
"""Seconds without any progress after which the demo gives up; no job of it waits for longer than 2."""

FAILING = 0.03
"""Share of the requests whose job fails once or twice before it works."""

DELAYED = 0.02
"""Share of the requests whose job is due only later, by up to 2 s."""

LOT = 2000
PAGE = 5000


@dataclass(frozen=True)
class Order:
    """What the demo is asked to do."""

    log: Path | None = None
    """None: a log is made up."""
    jobs: int | None = None
    """Requests to read from the log, or to make up; None: all of it, or 10,000."""
    flood: int = 20_000
    seed: int = 0
    url: str | None = None
    """None: an embedded server in a temporary folder."""

    @property
    def source(self) -> str:
        return self.log.name if self.log else f"made up, seed {self.seed}"

    def lines(self) -> Iterator[str]:
        if self.log is None:
            return generate(10_000 if self.jobs is None else self.jobs, self.seed)
        return islice(lines(self.log), self.jobs)


@dataclass(frozen=True)
class Progress:
    """How far it is."""

    books: Books
    counts: Counts
    phase: str
    """What goes on, in words."""
    rate: float
    """Jobs completed per second, over the last second or so."""


@dataclass(frozen=True)
class Death:
    """What became of the process that was killed, in seconds after that."""

    pid: int
    held: int
    """Jobs that it had in hand."""
    given_back: float
    """Until they could be had by others."""
    replaced: float
    """Until a new process was at work."""


@dataclass(frozen=True)
class Report:
    """What came of it."""

    order: Order
    books: Books
    counts: Counts
    server: str
    seconds: float
    rate: float
    """Jobs completed per second while some were ready."""
    death: Death | None
    """None: all was done before a process could be killed with jobs in hand."""
    faults: list[str]

    def as_json(self) -> dict[str, Any]:
        books, counts = self.books, self.counts
        return {
            "balanced": not self.faults,
            "faults": self.faults,
            "source": self.order.source,
            "server": self.server,
            "jobs": books.jobs,
            "completed": counts.completed,
            "dead": counts.dead,
            "completed_once": books.completed_once,
            "retries": counts.retried,
            "retries_planned": books.planned_retries,
            "delayed": books.delayed,
            "requests": books.requests,
            "malformed": books.malformed,
            "flood": books.flooder.jobs,
            "clients": len(books.clients),
            "small_clients": books.small_clients()[0],
            "waits": _as_json(books.accounts()),
            "waits_by_arrival": _as_json(books.accounts_by_arrival()),
            "requests_per_day": dict(sorted(books.days.items())),
            "requests_per_status": dict(sorted(books.statuses.items())),
            "killed": asdict(self.death) if self.death else None,
            "lost_runs": counts.lost,
            "completed_twice": books.completed_twice,
            "seconds": round(self.seconds, 3),
            "jobs_per_second": round(self.rate),
        }


def _as_json(accounts: dict[str, Account]) -> dict[str, Any]:
    return {
        name: {"jobs": one.jobs, "mean": round(one.mean, 4), "longest": round(one.longest, 4)}
        for name, one in accounts.items()
    }


def run_demo(order: Order, watch: Callable[[Progress], None]) -> Report:
    """Do it, from the server to its end; `watch` is told of the progress some times a second.

    Leaves no process, no file and no key behind, also when a signal interrupts it. Raises PenstockError.
    """
    with given_or_temporary_server(order.url) as server:
        try:
            return asyncio.run(_Run(order, server.address, watch).run())
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None  # SIGTERM, or the terminal was closed


class _Run:
    def __init__(self, order: Order, address: str, watch: Callable[[Progress], None]) -> None:
        self._order = order
        self._address = address
        self._watch = watch
        self._books = Books()
        self._queue = f"demo-{mint_id()}"
        self._phase = ""
        self._served_from = float("inf")
        self._killing: asyncio.Task[Death | None] | None = None
        self._busy = (0.0, 0)
        """When jobs were ready last, and how many had been completed by then."""
        self._recent: deque[tuple[float, int]] = deque(maxlen=round(1 / TICK))

    async def run(self) -> Report:
        began = time.monotonic()
        main = asyncio.current_task()
        assert main is not None
        for signum in not_ignored(signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(signum, main.cancel)
        async with Penstock(self._address, prefix=PREFIX, settings=Settings(give_up_after=2)) as app:
            tasks = make_tasks(app, self._queue)
            await tasks.queue.count.aio()
            try:
                async with self._worker() as worker:
                    await self._until_done(app, tasks, worker)
                counts = await self._look(app, tasks)
            finally:
                if self._order.url:
                    await asyncio.to_thread(delete_keys, app, tasks.queue.bindings.keys.every)
            name, version = app._driver.connector.version or ("unknown", ())
        death = await self._killing if self._killing else None
        return Report(
            self._order, self._books, counts, f"{name} {'.'.join(map(str, version))}", time.monotonic() - began,
            self._rate(), death, self._books.faults(counts, killed=death.held if death else 0),
        )  # fmt: skip

    # --- put in ---

    async def _feed(self, app: Penstock, tasks: Tasks) -> None:
        """The flood is there before the others come: in a queue that is not fair they would wait for its end."""
        self._phase = "the flood comes in"
        await tasks.queue.pause.aio()
        await self._enqueue(app, self._flood(tasks))
        await tasks.queue.resume.aio()
        self._served_from = time.monotonic()
        self._phase = "the requests come in"
        await self._enqueue(app, self._requests(tasks))
        self._phase = "all are in"

    async def _enqueue(self, app: Penstock, calls: Iterator[Call[None]]) -> None:
        while lot := list(islice(calls, LOT)):
            await app.enqueue_many.aio(lot)

    def _flood(self, tasks: Tasks) -> Iterator[Call[None]]:
        flood = tasks.count_request.using(tenant="flooder")
        for line in generate(self._order.flood, self._order.seed + 1, clients=1):
            now = time.time()
            yield flood.call(self._books.flood(now), line, now, 0)

    def _requests(self, tasks: Tasks) -> Iterator[Call[None]]:
        books, chance = self._books, random.Random(self._order.seed)
        books.broken(time.time())
        yield tasks.never_works.call()
        for line in self._order.lines():
            request = parse(line.encode())
            if request is None:
                books.malformed += 1
                continue
            fails = chance.choice((1, 1, 2)) if chance.random() < FAILING else 0
            delay = chance.randint(1, 20) / 10 if chance.random() < DELAYED else 0.0
            due = time.time() + delay
            number = books.request(request.client, request.day, due, fails=fails, delayed=delay > 0)
            task = tasks.count_request.using(tenant=request.client, delay=delay)
            yield task.call(number, line, due, fails)
        if not books.requests:
            raise ConfigurationError(f"no line of {self._order.log} is in the Common or Combined Log Format")

    # --- the worker processes, one of which is killed ---

    async def _kill_one(self, tasks: Tasks) -> Death | None:
        """Kill the process that has most in hand, and see how long its jobs and its place are without a worker."""
        before = [one for one in await tasks.queue.workers.aio() if one.name]
        victim = max(before, key=lambda one: one.held, default=None)
        if victim is None or not victim.held:
            return None
        self._phase = "a process was killed"
        pid = int(victim.name.rpartition(":")[2])
        os.kill(pid, signal.SIGKILL)
        killed, given_back = time.monotonic(), 0.0
        while time.monotonic() - killed < STALLED:
            here = {one.name for one in await tasks.queue.workers.aio()}
            if not given_back and victim.name not in here:
                given_back = time.monotonic() - killed
            if given_back and here - {one.name for one in before}:
                return Death(pid, victim.held, given_back, time.monotonic() - killed)
            await asyncio.sleep(0.01)
        raise PenstockError(f"no new process within {STALLED:.0f} s of the death of {pid}")

    @contextlib.asynccontextmanager
    async def _worker(self) -> AsyncIterator[_Worker]:
        """A supervisor and its processes. They stop at the latest when this process is gone."""
        command = (
            sys.executable, "-m", "penstock", "worker", "penstock.demo.child", "--queues", self._queue,
            "--processes", str(PROCESSES), "-c", str(CONCURRENCY), "--stop-timeout", "1",
            "--log-format", "plain", "--log-level", "error",
        )  # fmt: skip
        with tempfile.TemporaryFile() as said, ParentPipe() as pipe:
            environment = {"PENSTOCK_URL": self._address, QUEUE: self._queue, **pipe.environment}
            process = await asyncio.create_subprocess_exec(
                *command, env={**os.environ, **environment}, pass_fds=(pipe.child_end,), start_new_session=True,
                stdin=asyncio.subprocess.DEVNULL, stdout=said, stderr=said,
            )  # fmt: skip
            worker = _Worker(process, said)
            try:
                yield worker
                await worker.stop()
            finally:
                await worker.end()
                pipe.close()

    # --- until it is done ---

    async def _until_done(self, app: Penstock, tasks: Tasks, worker: _Worker) -> None:
        await self._greeted(tasks, worker)
        feeding = asyncio.create_task(self._feed(app, tasks))
        try:
            seen, since = (0, 0, 0), time.monotonic()
            while True:
                await asyncio.sleep(TICK)
                worker.check()
                if feeding.done():
                    feeding.result()
                fed, counts = feeding.done(), await self._look(app, tasks)
                self._watch(Progress(self._books, counts, self._phase, self._rate_of_late()))
                if self._killing is None and counts.completed >= KILL_AT * self._books.jobs > 1:
                    self._killing = asyncio.create_task(self._kill_one(tasks))
                if fed and not counts.waiting and not counts.running:
                    if self._killing is not None:
                        await self._killing
                    return
                now = (self._books.jobs, counts.completed, counts.retried)
                if now != seen:
                    seen, since = now, time.monotonic()
                elif time.monotonic() - since > STALLED:
                    left = counts.waiting + counts.running
                    raise PenstockError(
                        f"{left:,} jobs left, none done for {STALLED:.0f} s; the worker said: {worker.said()}"
                    )
        finally:
            feeding.cancel()
            with contextlib.suppress(asyncio.CancelledError, PenstockError):
                await feeding

    async def _greeted(self, tasks: Tasks, worker: _Worker) -> None:
        """Wait until the worker is there."""
        self._books.greeting(time.time())
        job = await tasks.greet.enqueue.aio()
        for _ in range(round(STALLED)):
            with contextlib.suppress(ResultTimeout):
                await job.result.aio(timeout=1.0)
                return
            worker.check()
        raise PenstockError(f"the worker does not start; it said: {worker.said()}")

    async def _look(self, app: Penstock, tasks: Tasks) -> Counts:
        """Read the counts and then the journal, which so is never behind them."""
        counts = await tasks.queue.count.aio()
        # In a thread, because an interrupt can get lost in valkey-py's asyncio client.
        while page := await asyncio.to_thread(_read, app, tasks):
            for text in page:
                self._books.record(Entry.read(text))
        now = time.monotonic()
        self._recent.append((now, counts.completed))
        if now > self._served_from and (counts.ready or not self._busy[0]):
            self._busy = now, counts.completed
        return counts

    def _rate(self) -> float:
        """Jobs completed per second while some were ready."""
        at, completed = self._busy
        return completed / (at - self._served_from) if completed else 0.0

    def _rate_of_late(self) -> float:
        (since, before), (at, completed) = self._recent[0], self._recent[-1]
        return (completed - before) / (at - since) if at > since else 0.0


class _Worker:
    def __init__(self, process: asyncio.subprocess.Process, said: IO[bytes]) -> None:
        self._process = process
        self._said = said

    def said(self) -> str:
        """Its last lines."""
        # `seek` would move the place where the worker writes: the two share it.
        said = os.pread(self._said.fileno(), 1 << 20, 0).decode(errors="replace")
        return " ".join(said.splitlines()[-3:]) or "nothing"

    def check(self) -> None:
        if self._process.returncode is not None:
            raise PenstockError(f"the worker ended with code {self._process.returncode}, it said: {self.said()}")

    async def end(self) -> None:
        """Soon, and by force if need be: nobody wants the work any more."""
        for end in (self._process.terminate, self._process.kill):
            if self._process.returncode is None:
                end()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._process.wait(), 5)

    async def stop(self) -> None:
        """Gracefully: all is done, so that it has nothing to wait for."""
        self.check()
        self._process.terminate()
        with contextlib.suppress(TimeoutError):
            if await asyncio.wait_for(self._process.wait(), 10) == 0:
                return
        raise PenstockError(f"the worker did not end as it should, it said: {self.said()}")


def _read(app: Penstock, tasks: Tasks) -> list[bytes]:
    """Take a page out of the journal; [] when it is read."""
    with raw_client(app) as client:
        return client.lpop(tasks.journal, PAGE) or []
