"""Tasks with `isolate=True` in a worker: their results, crashes and timeouts, and how they end when it stops."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock import JobFailed, Penstock, Status
from tests.conftest import until
from tests.servers import Server
from tests.worker import isolated_tasks
from tests.worker.in_process import run_burst, running_worker
from tests.worker.isolated_tasks import is_alive


def adopt(app: Penstock, task: Any, **options: Any) -> Any:
    """Register the task's function with the test's app."""
    return app.task(queue="q", isolate=True, name=task.name, **options)(task.__wrapped__)


async def test_a_worker_runs_isolated_jobs_beside_the_others(app: Penstock):
    add = adopt(app, isolated_tasks.add)

    @app.task(queue="q")
    async def here(n: int) -> int:
        return n

    jobs = await app.enqueue_many.aio(task.call(n) for n in range(10) for task in (add, here))
    await run_burst(app, concurrency=3)
    assert [await job.result.aio(0) for job in jobs] == [value for n in range(10) for value in (n + 1, n)]


async def test_a_timeout_in_a_worker_makes_a_dead_letter(app: Penstock, tmp_path: Path):
    job = await adopt(app, isolated_tasks.spin_in_c, timeout=0.2).enqueue.aio(str(tmp_path / "pid"))
    await run_burst(app)
    with pytest.raises(JobFailed, match=r"ran longer than its timeout of 0\.2 s"):
        await job.result.aio(0)


async def test_a_job_that_keeps_killing_its_process_is_a_dead_letter_and_does_not_stop_the_worker(app: Penstock):
    job = await adopt(app, isolated_tasks.die).enqueue.aio("signal", signal.SIGKILL)
    other = await adopt(app, isolated_tasks.add).enqueue.aio(1)
    await run_burst(app)
    with pytest.raises(JobFailed, match="its process was killed by SIGKILL"):
        await job.result.aio(0)
    assert await other.result.aio(0) == 2


async def test_a_graceful_stop_lets_isolated_jobs_finish(app: Penstock):
    job = await adopt(app, isolated_tasks.start_and_end).enqueue.aio(0.5)
    async with running_worker(app) as worker:
        await until(lambda: worker._runs.running)
        await asyncio.sleep(0.1)
    assert await job.status.aio() is Status.COMPLETED


async def test_a_second_stop_kills_isolated_jobs_and_hands_them_back(app: Penstock, tmp_path: Path):
    note = tmp_path / "pids"
    job = await adopt(app, isolated_tasks.start_a_process_and_spin_in_c).enqueue.aio(str(note))
    async with running_worker(app) as worker:
        await until(note.exists, 20)
        worker.stop()
    assert await job.status.aio() is Status.READY
    await until(lambda: not any(map(is_alive, map(int, note.read_text().split()))))


async def test_a_lost_lease_kills_its_isolated_jobs(app: Penstock, raw: Any, tmp_path: Path):
    note = tmp_path / "pids"
    job = await adopt(app, isolated_tasks.start_a_process_and_spin_in_c).enqueue.aio(str(note))
    async with running_worker(app) as worker:
        await until(note.exists, 20)
        child = int(note.read_text().split()[0])
        (feed,) = worker._feeds
        await app._driver.aio.run(feed.shard.bindings.abandon(feed.incarnation))
        feed.lease_refused(feed.incarnation)
        await until(lambda: not is_alive(child))
        await job.cancel.aio()
        worker.stop()


PROGRAM = """
import asyncio, os, sys
from penstock import Penstock, Worker, WorkerSettings

app = Penstock(os.environ["URL"], prefix=os.environ["PREFIX"])

@app.task(isolate=True)
def who(n: int) -> list[int]:
    return [n, os.getpid()]

async def main():
    job = await who.enqueue.aio(7)
    await Worker(app, WorkerSettings(burst=True)).run()
    n, pid = await job.result.aio(0)
    assert n == 7 and pid != os.getpid()
    print("done")

{start}
"""


@pytest.mark.parametrize("guarded", [True, False])
async def test_a_program_with_an_embedded_worker_can_isolate_tasks_of_its_main_module(
    server: Server, app: Penstock, tmp_path: Path, guarded: bool
):
    start = 'if __name__ == "__main__":\n    asyncio.run(main())' if guarded else "asyncio.run(main())"
    (tmp_path / "program.py").write_text(PROGRAM.replace("{start}", start))
    where = {
        **os.environ,
        "URL": server.address,
        "PREFIX": app.settings.prefix,
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, env=where, capture_output=True, text=True, timeout=60, check=False
    )
    if guarded:
        assert done.stdout == "done\n", done.stderr
    else:
        assert "put the code that starts it under `if __name__" in done.stderr
