"""Jobs whose workers were killed: they run again soon and side by side, and only a killer becomes a dead letter."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock import Job, JobFailed, Penstock, Settings, Status
from tests.cli.worker_shop import gone
from tests.command_line import SOURCE
from tests.servers import Server, eventually
from tests.speed import Deadline, scaled

TASKS = """
import asyncio, os, signal, threading, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from penstock import Penstock, Settings

settings = Settings(lease=float(os.environ["LEASE"]), sleep=2)
app = Penstock(os.environ["PENSTOCK_URL"], prefix=os.environ["SHOP"], settings=settings)

def record(name):
    with Path("runs").open("a") as runs:
        runs.write(f"{name} {os.getpid()}\\n")

@app.task(queue="q")
async def nap(name: str, seconds: float) -> int:
    record(name)
    await asyncio.sleep(seconds)
    return os.getpid()

@app.task(queue="q")
async def kill(name: str) -> None:
    record(name)
    os.kill(os.getpid(), signal.SIGKILL)

# What a real module may do when it is imported, and what does not survive a fork.
pool = ThreadPoolExecutor(2)
pool.submit(int).result()

class Client:
    def __init__(self):
        self.calls, self.called, self.answered = [], threading.Event(), threading.Event()
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            self.called.wait()
            self.called.clear()
            self.answered.set()

    def call(self):
        self.answered.clear()
        self.called.set()
        self.answered.wait()

client = Client()

@app.task(queue="q")
def use_the_pool(name: str, seconds: float) -> int:
    record(name)
    time.sleep(seconds)
    assert pool.submit(int).result(timeout=5) == 0, "no answer from the pool's thread"
    client.call()
    return os.getpid()
"""

UNSUPERVISED = ["-m", "penstock", "worker", "tasks:app", "--processes", "0", "-c", "24", "--burst"]

EMBEDDED = """
import asyncio
from tasks import app
from penstock import Worker, WorkerSettings

asyncio.run(Worker(app, WorkerSettings(concurrency=24, burst=True)).run())
"""

MAIN = (
    TASKS
    + """
if __name__ == "__main__":
    from penstock import Worker, WorkerSettings
    asyncio.run(Worker(app, WorkerSettings(concurrency=24, burst=True)).run())
"""
)


async def nap(name: str, seconds: float) -> int:
    return 0


async def kill(name: str) -> None: ...


def use_the_pool(name: str, seconds: float) -> int:
    return 0


class Jobs:
    """The app on the side of the test, and the runs that its tasks record in a file."""

    def __init__(self, server: Server, folder: Path, lease: float) -> None:
        prefix = f"t{time.time_ns()}"
        self.app = Penstock(server.address, prefix=prefix, settings=Settings(lease=lease))
        self.queue = self.app.queue("q")
        task = self.app.task(queue="q")
        self.nap, self.kill, self.use_the_pool = task(nap), task(kill), task(use_the_pool)
        self.folder = folder
        self.environment = {"PENSTOCK_URL": server.address, "SHOP": prefix, "LEASE": str(lease)}

    def runs(self) -> Counter[str]:
        """How often each job has begun to run."""
        lines = (self.folder / "runs").read_text().splitlines() if (self.folder / "runs").exists() else []
        return Counter(line.split()[0] for line in lines)

    def started(self, program: list[str]) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": str(SOURCE), **self.environment}
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen([sys.executable, *program], cwd=self.folder, env=environment, stderr=log)

    def log(self) -> str:
        return (self.folder / "log").read_text()


@pytest.fixture
def lease() -> float:
    return 10.0


@pytest.fixture
def jobs(server: Server, tmp_path: Path, lease: float) -> Iterator[Jobs]:
    (tmp_path / "tasks.py").write_text(TASKS)
    (tmp_path / "embedded.py").write_text(EMBEDDED)
    (tmp_path / "main.py").write_text(MAIN)
    made = Jobs(server, tmp_path, lease)
    with made.app:
        yield made


@pytest.fixture
def start(jobs: Jobs) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts `penstock worker tasks:app …`."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(*words: str) -> subprocess.Popen[bytes]:
        started.append(jobs.started(["-m", "penstock", "worker", "tasks:app", *words]))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.parametrize("lease", [2.0])
def test_the_jobs_of_a_killed_worker_run_again_side_by_side(jobs: Jobs, start):
    """Twenty jobs of three seconds: lease + 3 s + 2 s."""
    first = start("-c", "20", "--processes", "0")
    many = [jobs.nap.enqueue(f"j{n}", 3.0) for n in range(20)]
    eventually(lambda: jobs.runs().total() == 20)
    first.kill()
    first.wait()
    began = time.monotonic()
    start("-c", "20", "--processes", "0")
    for job in many:
        job.result(timeout=scaled(60))
    assert time.monotonic() - began < scaled(2.0 + 3.0 + 2.0)
    assert set(jobs.runs().values()) == {2}


def runs_were_begun(jobs: Jobs, n: int) -> None:
    eventually(lambda: jobs.runs().total() == n)


def kill_child(jobs: Jobs) -> None:
    """Kill the worker process that runs jobs now."""
    (name,) = {one.name for one in jobs.queue.workers() if one.held}
    pid = int(name.rpartition(":")[2])
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: gone(pid))


def test_an_innocent_suspect_runs_in_an_ordinary_process(jobs: Jobs, start):
    """Its module has a thread pool and a client with a thread, neither of which works in a forked child."""
    start("-c", "4")
    many = [jobs.use_the_pool.enqueue(f"j{n}", 2.0) for n in range(3)]
    for life in (1, 2):
        runs_were_begun(jobs, 3 * life)
        kill_child(jobs)
    pids = [job.result(timeout=scaled(60)) for job in many]
    assert [jobs.runs()[f"j{n}"] for n in range(3)] == [3, 3, 3]
    assert 1 <= len(set(pids)) <= 2, "two trial processes, of which each runs one after another"
    counts = jobs.queue.count()
    assert (counts.completed, counts.dead, counts.lost) == (3, 0, 6)


def enqueue_beside_a_killer(jobs: Jobs, n: int) -> tuple[list[Job[int]], Job[None]]:
    calls = [jobs.nap.call(f"j{i}", 0.5) for i in range(n // 2)]
    first = jobs.app.enqueue_many(calls)
    killer = jobs.kill.enqueue("killer")
    return [*first, *jobs.app.enqueue_many(jobs.nap.call(f"j{i}", 0.5) for i in range(n // 2, n))], killer


def assert_only_the_killer_died(jobs: Jobs, many: list[Job[int]], killer: Job[None], most_runs: int) -> None:
    assert (killer.info().status, killer.info().crashes) == (Status.DEAD, 3)
    counts = jobs.queue.count()
    assert (counts.completed, counts.dead, counts.failed, counts.retried) == (len(many), 1, 1, 0)
    runs = jobs.runs()
    assert max(runs[f"j{i}"] for i in range(len(many))) <= most_runs


def test_beside_a_killer_all_others_complete_under_a_supervisor(jobs: Jobs, start):
    many, killer = enqueue_beside_a_killer(jobs, 24)
    start("-c", "24")
    for job in many:
        job.result(timeout=scaled(60))
    with pytest.raises(JobFailed, match="killed by SIGKILL"):
        killer.result(timeout=scaled(60))
    assert_only_the_killer_died(jobs, many, killer, most_runs=3)


def jobs_are_left(jobs: Jobs) -> bool:
    counts = jobs.queue.count()
    return bool(counts.waiting or counts.running)


@pytest.mark.parametrize("lease", [1.5])
@pytest.mark.parametrize(
    "program",
    [UNSUPERVISED, ["embedded.py"], ["main.py"]],
    ids=["without a supervisor", "embedded", "an app that no other process can import"],
)
def test_beside_a_killer_all_others_complete_without_a_supervisor(jobs: Jobs, program: list[str]):
    """Somebody starts the worker again each time it dies, as systemd does."""
    many, killer = enqueue_beside_a_killer(jobs, 24)
    deadline = Deadline(90)
    while killer.status() is not Status.DEAD or jobs_are_left(jobs):
        assert not deadline.passed(), jobs.log()
        worker = jobs.started(program)
        try:
            worker.wait(timeout=scaled(90))
        finally:
            worker.kill()
            worker.wait()
    for job in many:
        job.result(timeout=0)
    # Four deaths that nobody saw make two losses.
    assert_only_the_killer_died(jobs, many, killer, most_runs=5)


def test_the_killers_of_one_tenant_delay_no_other_tenant(jobs: Jobs, start):
    start("-c", "4")
    jobs.nap.enqueue("first", 0).result(timeout=scaled(30))
    killers = [jobs.kill.using(tenant="bad").enqueue(f"killer{n}") for n in range(10)]
    waits: list[float] = []
    while any(killer.status() is not Status.DEAD for killer in killers):
        began = time.monotonic()
        jobs.nap.using(tenant=f"good{len(waits) % 3}").enqueue("good", 0).result(timeout=scaled(60))
        waits.append(time.monotonic() - began)
    assert max(waits) < scaled(2.0), waits
    assert [killer.info().crashes for killer in killers] == [3] * 10


def test_a_trial_process_ends_when_no_suspect_is_left_and_at_a_stop(jobs: Jobs, start):
    supervisor = start("-c", "4")
    many = [jobs.nap.enqueue(f"j{n}", 1.5) for n in range(2)]
    for life in (1, 2):
        runs_were_begun(jobs, 2 * life)
        kill_child(jobs)
    for job in many:
        job.result(timeout=scaled(60))
    eventually(lambda: len(jobs.queue.workers()) == 1)
    supervisor.terminate()
    assert supervisor.wait(scaled(30)) == 0
    assert jobs.queue.workers() == []


def test_a_supervisor_that_stops_lets_a_trial_finish(jobs: Jobs, start):
    supervisor = start("-c", "4")
    many = [jobs.nap.enqueue(f"j{n}", 3.0) for n in range(2)]
    for life in (1, 2):
        runs_were_begun(jobs, 2 * life)
        kill_child(jobs)
    eventually(lambda: jobs.runs().total() >= 5)
    supervisor.terminate()
    assert supervisor.wait(scaled(30)) == 0
    counts = jobs.queue.count()
    assert (counts.completed >= 1, counts.running, counts.completed + counts.ready) == (True, 0, 2)
    assert [job.info().crashes for job in many] == [0, 0]
