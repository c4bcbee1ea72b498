"""A worker that runs in the test's own process until no job is ready."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Final

from penstock.app import Penstock
from penstock.jobs.counts import Counts
from penstock.jobs.dead_letters import DeadLetter
from penstock.ops.wording import many
from penstock.settings import WorkerSettings
from penstock.testing.clock import MovableClock
from penstock.testing.waiting import enqueued
from penstock.worker.worker import Worker


@dataclass(frozen=True, slots=True)
class RunSummary:
    """How many runs of one `run_jobs` call ended in each way. `failed` counts those that became dead letters."""

    completed: int = 0
    retried: int = 0
    failed: int = 0
    dropped: int = 0


class RunJobs:
    """`run_jobs(app)`, or `await run_jobs.aio(app)`: run every ready job, and every job that those enqueue.

    clock     a MovableClock of the app. Whenever no job is ready, it moves to the time of the next delayed job, until
              no job waits. So delays and retries take no real time. None: jobs that are not due stay in their queues
    dead      True: jobs may end as dead letters. False: a dead letter raises AssertionError with its traceback
    settings  the worker's settings: queues, concurrency, …
    timeout   seconds of real time for the whole call. After that, running jobs are handed back and TimeoutError is
              raised

    Returns how many runs ended in each way. Jobs run as in a worker process: `async def` on the event loop, `def` in a
    thread, with decoded arguments, and results are kept.
    """

    def __call__(
        self,
        app: Penstock,
        *,
        clock: MovableClock | None = None,
        dead: bool = False,
        settings: WorkerSettings | None = None,
        timeout: float = 30.0,
    ) -> RunSummary:
        if asyncio._get_running_loop() is not None:
            raise RuntimeError("run_jobs() would block the running event loop: write `await run_jobs.aio(…)` here")
        return asyncio.run(self._run_on_this_loop(app, clock, dead, settings, timeout))

    async def _run_on_this_loop(
        self, app: Penstock, clock: MovableClock | None, dead: bool, settings: WorkerSettings | None, timeout: float
    ) -> RunSummary:
        try:
            return await self.aio(app, clock=clock, dead=dead, settings=settings, timeout=timeout)
        finally:
            await app._driver.aclose_loop()

    async def aio(
        self,
        app: Penstock,
        *,
        clock: MovableClock | None = None,
        dead: bool = False,
        settings: WorkerSettings | None = None,
        timeout: float = 30.0,
    ) -> RunSummary:
        settings = replace(settings or WorkerSettings(), burst=True)
        names = settings.queues or app.registry.queues()
        before, until = await _counts(app, names), time.monotonic() + timeout
        while await _run_until_idle(Worker(app, settings), until):
            after = await _counts(app, names)
            # A job may have enqueued on a queue that the worker had already found empty.
            if any(counts.ready and not counts.paused for counts in after):
                continue
            due = [call.due for name in names for call in enqueued(app.queue(name)) if call.due is not None]
            if clock is None or not due:
                break
            clock.advance_to(min(due))
        else:
            raise TimeoutError(f"jobs were still ready or running after {timeout:g} s; running ones were handed back")
        summary = RunSummary(*(_total(after, one.name) - _total(before, one.name) for one in fields(RunSummary)))
        if summary.failed and not dead:
            raise AssertionError(await _dead_letter_report(app, names, summary.failed))
        return summary


run_jobs: Final = RunJobs()


async def _run_until_idle(worker: Worker, until: float) -> bool:
    """Run the worker until no job is ready; False if it was not finished in time."""
    run = asyncio.create_task(worker.run())
    try:
        await asyncio.wait([run], timeout=max(0.0, until - time.monotonic()))
        in_time = run.done()
        if not in_time:
            worker.stop()
            worker.stop()  # the second stop hands running jobs back at once
        await run
    finally:
        run.cancel()
    return in_time


async def _counts(app: Penstock, names: Iterable[str]) -> list[Counts]:
    return [await app.queue(name).count.aio() for name in names]


def _total(counts: Iterable[Counts], name: str) -> int:
    return sum(getattr(one, name) for one in counts)


async def _dead_letter_report(app: Penstock, names: Iterable[str], n: int) -> str:
    letters: list[DeadLetter] = []
    for name in names:
        letters += await app.queue(name).dead.list.aio(min(n, 1000))
    letters = sorted(letters, key=lambda letter: letter.died)[-n:]
    reports = [f"job {one.id} {one.body}: {one.reason}\n{one.traceback}".rstrip() for one in letters]
    return "\n".join([f"{many(n, 'dead letter')} (dead=True allows them):", *reports])
