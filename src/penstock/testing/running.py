"""A worker in the test's own process: runs what waits until nothing does, and comes back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Final

from penstock.app import Penstock
from penstock.jobs.counts import Counts
from penstock.jobs.dead_letters import DeadLetter
from penstock.settings import WorkerSettings
from penstock.testing.clock import MovableClock
from penstock.testing.waiting import enqueued
from penstock.worker.worker import Worker


@dataclass(frozen=True, slots=True)
class Ran:
    """How the runs of one `run_jobs` ended."""

    completed: int = 0
    retried: int = 0
    failed: int = 0
    dropped: int = 0


class RunJobs:
    """`run_jobs(app)`, or `await run_jobs.aio(app)`: run every job that is ready, those that they enqueue too.

    clock     a MovableClock of the app: moved on to the next due job each time nothing is ready, until nothing waits at
              all; so retries and delays are run through at once. None: what is not due stays
    dead      True: a job that ends as a dead letter is no error of the test. Else AssertionError with its traceback
    settings  of the worker: queues, concurrency, …
    timeout   seconds of real time for all of it; then running jobs are handed back, and TimeoutError is raised

    Answers with how many runs ended in which way. Jobs run as in a worker process: `async def` on the loop, `def` in a
    thread, arguments decoded, results kept.
    """

    def __call__(
        self,
        app: Penstock,
        *,
        clock: MovableClock | None = None,
        dead: bool = False,
        settings: WorkerSettings | None = None,
        timeout: float = 30.0,
    ) -> Ran:
        if asyncio._get_running_loop() is not None:
            raise RuntimeError("run_jobs() would block the running event loop: write `await run_jobs.aio(…)` here")
        return asyncio.run(self._here(app, clock, dead, settings, timeout))

    async def _here(
        self, app: Penstock, clock: MovableClock | None, dead: bool, settings: WorkerSettings | None, timeout: float
    ) -> Ran:
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
    ) -> Ran:
        settings = replace(settings or WorkerSettings(), burst=True)
        names = settings.queues or app.registry.queues()
        before, until = await _counts(app, names), time.monotonic() + timeout
        while await _work_off(Worker(app, settings), until):
            after = await _counts(app, names)
            # A job's last act may have been to enqueue on a queue that the worker had looked at before.
            if any(counts.ready and not counts.paused for counts in after):
                continue
            due = [call.due for name in names for call in enqueued(app.queue(name)) if call.due is not None]
            if clock is None or not due:
                break
            clock.advance_to(min(due))
        else:
            raise TimeoutError(f"after {timeout:g} s there was still work; jobs that ran were handed back")
        ran = Ran(*(_total(after, field.name) - _total(before, field.name) for field in fields(Ran)))
        if ran.failed and not dead:
            raise AssertionError(await _obituary(app, names, ran.failed))
        return ran


run_jobs: Final = RunJobs()


async def _work_off(worker: Worker, until: float) -> bool:
    """Until nothing is ready; False where that did not come about in time."""
    run = asyncio.create_task(worker.run())
    try:
        await asyncio.wait([run], timeout=max(0.0, until - time.monotonic()))
        in_time = run.done()
        if not in_time:
            worker.stop()
            worker.stop()
        await run
    finally:
        run.cancel()
    return in_time


async def _counts(app: Penstock, names: Iterable[str]) -> list[Counts]:
    return [await app.queue(name).count.aio() for name in names]


def _total(counts: Iterable[Counts], name: str) -> int:
    return sum(getattr(one, name) for one in counts)


async def _obituary(app: Penstock, names: Iterable[str], n: int) -> str:
    letters: list[DeadLetter] = []
    for name in names:
        letters += await app.queue(name).dead.list.aio(min(n, 1000))
    letters = sorted(letters, key=lambda letter: letter.died)[-n:]
    told = [f"job {one.id} {one.body}: {one.reason}\n{one.traceback}".rstrip() for one in letters]
    return "\n".join([f"{n} jobs ended as dead letters (dead=True allows it):", *told])
