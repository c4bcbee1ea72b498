"""A program ends, or cancels asyncio tasks that it does not know, while a worker runs in it."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import uvloop

from penstock import Job, Penstock, Retry, Status, Worker, WorkerSettings
from tests.conftest import until
from tests.servers import Server, default_signals
from tests.speed import scaled
from tests.worker.in_process import running_worker

LOOPS: list[Any] = [None, uvloop.new_event_loop]


class Program:
    """A program with a worker as a background task, and jobs that run when it ends."""

    def __init__(self, address: str) -> None:
        self.app = Penstock(address, prefix=os.urandom(4).hex())

        @self.app.task(queue="q", retry=Retry(5))
        async def innocent(n: int) -> None:
            await asyncio.sleep(60)

        @self.app.task(queue="q", retry=Retry(5))
        async def fails_when_cancelled() -> None:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                raise ConnectionError("the transaction could not be rolled back") from None

        self.jobs: list[Job[Any]] = [innocent.enqueue(n) for n in range(5)]
        self.jobs.append(fails_when_cancelled.enqueue())
        self.worker = Worker(self.app, WorkerSettings(concurrency=10))

    def run(self, body: Callable[[], Awaitable[None]], loop_factory: Any) -> None:
        async def main() -> None:
            self.working = asyncio.create_task(self.worker.run())
            await until(lambda: len(self.worker._runs.running) == len(self.jobs))
            await asyncio.sleep(0.05)  # the jobs have suspended
            await body()

        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(main())

    def outcome(self) -> tuple[set[Status], int]:
        """The states of the jobs, and how many were lost."""
        counts = self.app.queue("q").count()
        assert (counts.retried, counts.dead) == (0, 0)
        return {job.status() for job in self.jobs}, counts.lost


@pytest.fixture
def program(server: Server) -> Iterator[Program]:
    program = Program(server.address)
    yield program
    program.app.queue("q").purge()
    program.app.close()


@pytest.mark.parametrize("loop_factory", LOOPS, ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("how", ["returns", "raises", "Ctrl-C", "times out", "is left by a loop over its tasks"])
def test_a_program_that_ends_hands_its_jobs_back(program: Program, how: str, loop_factory: Any):
    async def body() -> None:
        if how == "raises":
            raise RuntimeError("the rest of the program failed")
        if how == "Ctrl-C":
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(60)
        if how == "times out":
            async with asyncio.timeout(0.01):
                await program.working
        if how == "is left by a loop over its tasks":
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.wait(others)

    with default_signals(), contextlib.suppress(RuntimeError, KeyboardInterrupt, TimeoutError):
        program.run(body, loop_factory)
    assert program.outcome() == ({Status.READY}, 0)


@pytest.mark.parametrize("loop_factory", LOOPS, ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("how", ["sys.exit", "KeyboardInterrupt", "loop.stop"])
def test_a_program_that_a_job_may_have_ended_loses_its_jobs(program: Program, how: str, loop_factory: Any):
    """Each is lost once: a job that does so again and again becomes a suspect."""

    async def sub_task() -> None:
        if how == "sys.exit":
            sys.exit(3)
        if how == "KeyboardInterrupt":
            raise KeyboardInterrupt
        asyncio.get_running_loop().stop()

    @program.app.task(queue="q", retry=Retry(5))
    async def ends_the_program() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(sub_task())

    async def body() -> None:
        program.jobs.append(await ends_the_program.enqueue.aio())
        await asyncio.sleep(60)

    with pytest.raises((SystemExit, KeyboardInterrupt, RuntimeError)):
        program.run(body, loop_factory)
    assert program.outcome() == ({Status.READY}, 7)


async def test_a_job_whose_asyncio_task_others_cancel_is_lost_and_runs_again(app: Penstock):
    started: list[asyncio.Task[Any] | None] = []

    @app.task(queue="q", retry=Retry(5))
    async def innocent() -> int:
        started.append(asyncio.current_task())
        await asyncio.sleep(60 if len(started) == 1 else 0)
        return 7

    job = await innocent.enqueue.aio()
    async with running_worker(app):
        await until(lambda: len(started) == 1)
        await asyncio.sleep(0.01)
        assert started[0] is not None
        started[0].cancel()
        assert await job.result.aio(scaled(20)) == 7
    assert (await app.queue("q").count.aio()).lost == 1
