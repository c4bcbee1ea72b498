"""One run of the demo: a server, worker processes, the enqueued jobs, and the ledger until every job is done."""

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
from penstock.demo.ledger import Ledger, TenantWaits
from penstock.demo.log import lines
from penstock.demo.tasks import PREFIX, QUEUE, DemoTasks, JournalEntry, make_tasks
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
"""One of the processes is killed when this share of the jobs is done."""

TICK = 0.1
STALLED = 30.0
"""The demo gives up after this many seconds without progress. None of its jobs is delayed by more than 2 s."""

FAILING = 0.03
"""Share of the requests whose job fails once or twice before it succeeds."""

DELAYED = 0.02
"""Share of the requests whose job is delayed, by up to 2 s."""

BATCH = 2000
PAGE = 5000


@dataclass(frozen=True)
class DemoOptions:
    """The options of one run."""

    log: Path | None = None
    """None: a generated log."""
    jobs: int | None = None
    """Requests to read from the log, or to generate; None: the whole log, or 10,000."""
    flood: int = 20_000
    seed: int = 0
    url: str | None = None
    """None: an embedded server in a temporary folder."""

    @property
    def source(self) -> str:
        return self.log.name if self.log else f"generated, seed {self.seed}"

    def lines(self) -> Iterator[str]:
        if self.log is None:
            return generate(10_000 if self.jobs is None else self.jobs, self.seed)
        return islice(lines(self.log), self.jobs)


@dataclass(frozen=True)
class DemoProgress:
    """The state of a run."""

    ledger: Ledger
    counts: Counts
    phase: str
    """The present phase, in words."""
    rate: float
    """Jobs completed per second, over about the last second."""


@dataclass(frozen=True)
class ProcessDeath:
    """Recovery from the death of the killed process. Times are seconds after the kill."""

    pid: int
    held: int
    """Jobs that it had claimed."""
    given_back: float
    """When other processes could claim them."""
    replaced: float
    """When a new process began to work."""


@dataclass(frozen=True)
class DemoReport:
    """The result of a run."""

    options: DemoOptions
    ledger: Ledger
    counts: Counts
    server: str
    seconds: float
    rate: float
    """Jobs completed per second while some were ready."""
    death: ProcessDeath | None
    """None: all jobs were done before a process with claimed jobs could be killed."""
    faults: list[str]

    def as_json(self) -> dict[str, Any]:
        ledger, counts = self.ledger, self.counts
        return {
            "balanced": not self.faults,
            "faults": self.faults,
            "source": self.options.source,
            "server": self.server,
            "jobs": ledger.jobs,
            "completed": counts.completed,
            "dead": counts.dead,
            "completed_once": ledger.completed_once,
            "retries": counts.retried,
            "retries_planned": ledger.planned_retries,
            "delayed": ledger.delayed,
            "requests": ledger.requests,
            "malformed": ledger.malformed,
            "flood": ledger.flooder.jobs,
            "clients": len(ledger.clients),
            "small_clients": ledger.small_clients()[0],
            "waits": _as_json(ledger.waits()),
            "waits_by_arrival": _as_json(ledger.waits_by_arrival()),
            "requests_per_day": dict(sorted(ledger.days.items())),
            "requests_per_status": dict(sorted(ledger.statuses.items())),
            "killed": asdict(self.death) if self.death else None,
            "lost_runs": counts.lost,
            "completed_twice": ledger.completed_twice,
            "seconds": round(self.seconds, 3),
            "jobs_per_second": round(self.rate),
        }


def _as_json(waits: dict[str, TenantWaits]) -> dict[str, Any]:
    return {
        name: {"jobs": one.jobs, "mean": round(one.mean, 4), "longest": round(one.longest, 4)}
        for name, one in waits.items()
    }


def run_demo(options: DemoOptions, watch: Callable[[DemoProgress], None]) -> DemoReport:
    """Run the demo, including its server. Calls `watch` with the progress several times a second.

    Leaves no process, no file and no key behind, also when a signal interrupts it. Raises PenstockError.
    """
    with given_or_temporary_server(options.url) as server:
        try:
            return asyncio.run(_DemoRun(options, server.address, watch).run())
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None  # SIGTERM, or the terminal was closed


class _DemoRun:
    def __init__(self, options: DemoOptions, address: str, watch: Callable[[DemoProgress], None]) -> None:
        self._options = options
        self._address = address
        self._watch = watch
        self._ledger = Ledger()
        self._queue = f"demo-{mint_id()}"
        self._phase = ""
        self._served_from = float("inf")
        self._killing: asyncio.Task[ProcessDeath | None] | None = None
        self._busy = (0.0, 0)
        """The last time at which jobs were ready, and the number completed by then."""
        self._recent: deque[tuple[float, int]] = deque(maxlen=round(1 / TICK))

    async def run(self) -> DemoReport:
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
                counts = await self._read_counts(app, tasks)
            finally:
                if self._options.url:
                    await asyncio.to_thread(delete_keys, app, tasks.queue.first.bindings.keys.pattern)
            name, version = app._driver.connector.version or ("unknown", ())
        death = await self._killing if self._killing else None
        return DemoReport(
            self._options,
            self._ledger,
            counts,
            f"{name} {'.'.join(map(str, version))}",
            time.monotonic() - began,
            self._rate(),
            death,
            self._ledger.faults(counts, killed=death.held if death else 0),
        )

    # --- enqueue ---

    async def _enqueue_all(self, app: Penstock, tasks: DemoTasks) -> None:
        """Enqueue the flood before the requests: in an unfair queue the requests would wait for its end."""
        self._phase = "enqueueing the flood"
        await tasks.queue.pause.aio()
        await self._enqueue(app, self._flood(tasks))
        await tasks.queue.resume.aio()
        self._served_from = time.monotonic()
        self._phase = "enqueueing the requests"
        await self._enqueue(app, self._requests(tasks))
        self._phase = "all enqueued"

    async def _enqueue(self, app: Penstock, calls: Iterator[Call[None]]) -> None:
        while batch := list(islice(calls, BATCH)):
            await app.enqueue_many.aio(batch)

    def _flood(self, tasks: DemoTasks) -> Iterator[Call[None]]:
        flood = tasks.count_request.using(tenant="flooder")
        for line in generate(self._options.flood, self._options.seed + 1, clients=1):
            now = time.time()
            yield flood.call(self._ledger.flood(now), line, now, 0)

    def _requests(self, tasks: DemoTasks) -> Iterator[Call[None]]:
        ledger, chance = self._ledger, random.Random(self._options.seed)
        ledger.broken(time.time())
        yield tasks.never_works.call()
        for line in self._options.lines():
            request = parse(line.encode())
            if request is None:
                ledger.malformed += 1
                continue
            fails = chance.choice((1, 1, 2)) if chance.random() < FAILING else 0
            delay = chance.randint(1, 20) / 10 if chance.random() < DELAYED else 0.0
            due = time.time() + delay
            number = ledger.request(request.client, request.day, due, fails=fails, delayed=delay > 0)
            task = tasks.count_request.using(tenant=request.client, delay=delay)
            yield task.call(number, line, due, fails)
        if not ledger.requests:
            raise ConfigurationError(f"no line of {self._options.log} is in the Common or Combined Log Format")

    # --- the worker processes, one of which is killed ---

    async def _kill_one(self, tasks: DemoTasks) -> ProcessDeath | None:
        """Kill the process with the most claimed jobs; measure the time until its jobs are free and it is replaced."""
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
                return ProcessDeath(pid, victim.held, given_back, time.monotonic() - killed)
            await asyncio.sleep(0.01)
        raise PenstockError(f"no new process within {STALLED:.0f} s of the death of {pid}")

    @contextlib.asynccontextmanager
    async def _worker(self) -> AsyncIterator[_Worker]:
        """A supervisor and its processes. They stop at the latest when this process ends."""
        command = (
            sys.executable,
            "-m",
            "penstock",
            "worker",
            "penstock.demo.child",
            "--queues",
            self._queue,
            "--processes",
            str(PROCESSES),
            "-c",
            str(CONCURRENCY),
            "--stop-timeout",
            "1",
            "--log-format",
            "plain",
            "--log-level",
            "error",
        )
        with tempfile.TemporaryFile() as output, ParentPipe() as pipe:
            environment = {"PENSTOCK_URL": self._address, QUEUE: self._queue, **pipe.environment}
            process = await asyncio.create_subprocess_exec(
                *command,
                env={**os.environ, **environment},
                pass_fds=(pipe.child_end,),
                start_new_session=True,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
            worker = _Worker(process, output)
            try:
                yield worker
                await worker.stop()
            finally:
                await worker.end()
                pipe.close()

    # --- wait for the end ---

    async def _until_done(self, app: Penstock, tasks: DemoTasks, worker: _Worker) -> None:
        await self._await_worker(tasks, worker)
        enqueueing = asyncio.create_task(self._enqueue_all(app, tasks))
        try:
            seen, since = (0, 0, 0), time.monotonic()
            while True:
                await asyncio.sleep(TICK)
                worker.check()
                if enqueueing.done():
                    enqueueing.result()
                fed, counts = enqueueing.done(), await self._read_counts(app, tasks)
                self._watch(DemoProgress(self._ledger, counts, self._phase, self._recent_rate()))
                if self._killing is not None and self._killing.done() and self._killing.result() is None:
                    self._killing = None  # no process held a job just then
                if self._killing is None and counts.completed >= KILL_AT * self._ledger.jobs > 1:
                    self._killing = asyncio.create_task(self._kill_one(tasks))
                if fed and not counts.waiting and not counts.running:
                    if self._killing is not None:
                        await self._killing
                    return
                now = (self._ledger.jobs, counts.completed, counts.retried)
                if now != seen:
                    seen, since = now, time.monotonic()
                elif time.monotonic() - since > STALLED:
                    left = counts.waiting + counts.running
                    raise PenstockError(
                        f"{left:,} jobs left, none done for {STALLED:.0f} s; the worker printed: {worker.last_output()}"
                    )
        finally:
            enqueueing.cancel()
            with contextlib.suppress(asyncio.CancelledError, PenstockError):
                await enqueueing

    async def _await_worker(self, tasks: DemoTasks, worker: _Worker) -> None:
        """Wait until the worker runs."""
        self._ledger.greeting(time.time())
        job = await tasks.greet.enqueue.aio()
        for _ in range(round(STALLED)):
            with contextlib.suppress(ResultTimeout):
                await job.result.aio(timeout=1.0)
                return
            worker.check()
        raise PenstockError(f"the worker did not start; it printed: {worker.last_output()}")

    async def _read_counts(self, app: Penstock, tasks: DemoTasks) -> Counts:
        """Read the counts and then the journal, so that the journal is never behind the counts."""
        counts = await tasks.queue.count.aio()
        # In a thread, because an interrupt can get lost in valkey-py's asyncio client.
        while page := await asyncio.to_thread(_read, app, tasks):
            for text in page:
                self._ledger.record(JournalEntry.read(text))
        now = time.monotonic()
        self._recent.append((now, counts.completed))
        if now > self._served_from and (counts.ready or not self._busy[0]):
            self._busy = now, counts.completed
        return counts

    def _rate(self) -> float:
        """Jobs completed per second while some were ready."""
        at, completed = self._busy
        return completed / (at - self._served_from) if completed else 0.0

    def _recent_rate(self) -> float:
        (since, before), (at, completed) = self._recent[0], self._recent[-1]
        return (completed - before) / (at - since) if at > since else 0.0


class _Worker:
    def __init__(self, process: asyncio.subprocess.Process, output: IO[bytes]) -> None:
        self._process = process
        self._output = output

    def last_output(self) -> str:
        """The last lines that it printed."""
        # Not `seek`: the worker shares the file position, and writes there.
        output = os.pread(self._output.fileno(), 1 << 20, 0).decode(errors="replace")
        return " ".join(output.splitlines()[-3:]) or "nothing"

    def check(self) -> None:
        if self._process.returncode is not None:
            raise PenstockError(f"the worker ended with code {self._process.returncode}: {self.last_output()}")

    async def end(self) -> None:
        """End the worker soon, by force if necessary: its work is not needed any longer."""
        for end in (self._process.terminate, self._process.kill):
            if self._process.returncode is None:
                end()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._process.wait(), 5)

    async def stop(self) -> None:
        """Stop the worker gracefully: every job is done, so it has nothing to wait for."""
        self.check()
        self._process.terminate()
        with contextlib.suppress(TimeoutError):
            if await asyncio.wait_for(self._process.wait(), 10) == 0:
                return
        raise PenstockError(f"the worker did not stop as it should, it printed: {self.last_output()}")


def _read(app: Penstock, tasks: DemoTasks) -> list[bytes]:
    """Remove a page from the journal and return it; [] at the end."""
    with raw_client(app) as client:
        return client.lpop(tasks.journal, PAGE) or []
