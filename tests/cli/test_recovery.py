"""Jobs whose workers were killed: they run again soon and side by side, and only a killer becomes a dead letter."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from penstock import Job, JobFailed, Penstock, Settings, Status, Task
from tests.chaos.forker import child_pids
from tests.cli.worker_shop import gone
from tests.command_line import SOURCE
from tests.servers import Server, eventually
from tests.speed import Deadline, scaled

TASKS = """
import asyncio, contextlib, os, signal, threading, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from penstock import Penstock, Settings

settings = Settings(lease=float(os.environ["LEASE"]), sleep=2)
app = Penstock(os.environ["PENSTOCK_URL"], prefix=os.environ["SHOP"], settings=settings)

def record(name):
    with Path("runs").open("a") as runs:
        runs.write(f"{name} {os.getpid()} {time.time()} {began}\\n")

# When this process was started, by the clock of `time.time()`.
ticks = int(Path("/proc/self/stat").read_text().rpartition(") ")[2].split()[19])
began = time.time() - float(Path("/proc/uptime").read_text().split()[0]) + ticks / os.sysconf("SC_CLK_TCK")

@app.task(queue="q")
async def nap(name: str, seconds: float) -> int:
    record(name)
    await asyncio.sleep(seconds)
    return os.getpid()

@app.task(queue="q")
async def kill(name: str) -> None:
    record(name)
    os.kill(os.getpid(), signal.SIGKILL)

@app.task(queue="q")
async def kill_the_host(name: str) -> None:
    # Its container are the processes with the same variable.
    record(name)
    mine = f"CONTAINER={os.environ['CONTAINER']}".encode()
    for path in Path("/proc").glob("[0-9]*"):
        if int(path.name) != os.getpid():
            with contextlib.suppress(OSError):
                if mine in (path / "environ").read_bytes().split(bytes(1)):
                    os.kill(int(path.name), signal.SIGKILL)
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

IS_LONG = "PENSTOCK_STORM_SECONDS" in os.environ
"""Whether this is `make storm`: the same with more and longer jobs."""

BESIDE, NAP = (64, 2.0) if IS_LONG else (16, 0.3)
"""How many jobs run beside a killer, and for how many seconds each."""

UNSUPERVISED = ["-m", "penstock", "worker", "tasks:app", "--processes", "0", "-c", "64", "--burst"]

EMBEDDED = """
import asyncio
from tasks import app
from penstock import Worker, WorkerSettings

asyncio.run(Worker(app, WorkerSettings(concurrency=64, burst=True, host_deaths=3)).run())
"""

MAIN = (
    TASKS
    + """
if __name__ == "__main__":
    from penstock import Worker, WorkerSettings
    asyncio.run(Worker(app, WorkerSettings(concurrency=64, burst=True)).run())
"""
)


async def nap(name: str, seconds: float) -> int:
    return 0


async def kill(name: str) -> None: ...


async def kill_the_host(name: str) -> None: ...


def use_the_pool(name: str, seconds: float) -> int:
    return 0


@dataclass(frozen=True)
class Start:
    """The beginning of a run, as its task has recorded it: the times are those of `time.time()`."""

    name: str
    pid: str
    at: float
    process_began: float


class Jobs:
    """The app on the side of the test, and the runs that its tasks record in a file."""

    def __init__(self, server: Server, folder: Path, lease: float) -> None:
        prefix = f"t{time.time_ns()}"
        self.app = Penstock(server.address, prefix=prefix, settings=Settings(lease=lease))
        self.queue = self.app.queue("q")
        task = self.app.task(queue="q")
        self.nap, self.kill, self.use_the_pool = task(nap), task(kill), task(use_the_pool)
        self.kill_the_host = task(kill_the_host)
        self.folder = folder
        self.environment = {"PENSTOCK_URL": server.address, "SHOP": prefix, "LEASE": str(lease), "CONTAINER": prefix}

    def starts(self) -> list[Start]:
        """The beginnings of all runs."""
        text = (self.folder / "runs").read_text() if (self.folder / "runs").exists() else ""
        found = [line.split() for line in text.splitlines()]
        return [Start(name, pid, float(at), float(began)) for name, pid, at, began in found]

    def runs(self) -> Counter[str]:
        """How often each job has begun to run."""
        return Counter(start.name for start in self.starts())

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
        children = child_pids(process.pid)
        process.kill()
        process.wait()
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


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


def enqueue_beside(jobs: Jobs, killer: Task[[str], None], n: int, seconds: float) -> tuple[list[Job[int]], Job[None]]:
    """A killer in the middle of `n` jobs."""
    calls = [jobs.nap.call(f"j{i}", seconds) for i in range(n)]
    first = jobs.app.enqueue_many(calls[: n // 2])
    killing = killer.enqueue("killer")
    return [*first, *jobs.app.enqueue_many(calls[n // 2 :])], killing


def assert_only_the_killer_died(jobs: Jobs, many: list[Job[int]], killer: Job[None]) -> None:
    for job in many:
        job.result(timeout=scaled(60 + NAP * BESIDE))
    with pytest.raises(JobFailed, match=r"killed by SIGKILL|its worker was gone"):
        killer.result(timeout=scaled(60))
    assert (killer.info().status, killer.info().crashes) == (Status.DEAD, 3)
    counts = jobs.queue.count()
    assert (counts.dead, counts.failed, counts.retried) == (1, 1, 0)
    runs = jobs.runs()
    assert max(runs[f"j{i}"] for i in range(len(many))) <= 3
    assert 3 <= runs["killer"] <= 5


@pytest.mark.parametrize("processes", [1, 3])
def test_beside_a_killer_all_complete_and_other_tenants_start_at_once(jobs: Jobs, start, processes: int):
    """Of three processes one lives at any time, because the killer is a suspect when it has killed the second one."""
    start("-c", str(BESIDE + 16), "--processes", str(processes))  # a few runners are free for the probes
    probe = jobs.nap.using(tenant="other")
    probe.enqueue("first", 0).result(timeout=scaled(30))
    eventually(lambda: len(jobs.queue.workers()) == processes)
    many, killer = enqueue_beside(jobs, jobs.kill, BESIDE, NAP)
    asked: dict[str, float] = {}
    while killer.status() is not Status.DEAD:
        name = f"probe{len(asked)}"
        asked[name] = time.time()
        probe.enqueue(name, 0)
        time.sleep(0.05)
    assert_only_the_killer_died(jobs, many, killer)
    first: dict[str, Start] = {}
    start_ups: dict[str, tuple[float, float]] = {}
    """Of each worker process, but not of trial processes, which run no job for the first or second time: when it was
    started, and its first run."""
    runs: Counter[str] = Counter()
    for one in jobs.starts():
        first.setdefault(one.name, one)
        runs[one.name] += 1
        if runs[one.name] < 3:
            start_ups.setdefault(one.pid, (one.process_began, one.at))
    late = []
    for name, at in asked.items():
        began = first[name].at
        # The killer may kill the next process too before it has started all jobs that wait. Then it is a suspect.
        waits = [ready - start for start, ready in start_ups.values() if processes == 1 and at < ready <= began]
        assert len(waits) <= 2
        late.append(began - at - sum(waits) - 0.1 * (len(waits) or 1))
    assert max(late) < scaled(0.1), sorted(late)[-5:]


def jobs_are_left(jobs: Jobs) -> bool:
    counts = jobs.queue.count()
    return bool(counts.waiting or counts.running)


def run_again_and_again(jobs: Jobs, program: list[str], seconds: float) -> None:
    """Start the program again each time it dies, as systemd does, until no job is left."""
    deadline = Deadline(seconds)
    while jobs_are_left(jobs):
        assert not deadline.passed(), jobs.log()
        worker = jobs.started(program)
        try:
            worker.wait(timeout=scaled(seconds))
        finally:
            worker.kill()
            worker.wait()


@pytest.mark.parametrize("lease", [1.5])
@pytest.mark.parametrize(
    "program",
    [UNSUPERVISED, ["embedded.py"], ["main.py"]],
    ids=["without a supervisor", "embedded", "an app that no other process can import"],
)
def test_beside_a_killer_all_others_complete_without_a_supervisor(jobs: Jobs, program: list[str]):
    many, killer = enqueue_beside(jobs, jobs.kill, BESIDE, NAP)
    run_again_and_again(jobs, program, 90 + 2 * NAP * BESIDE)
    assert_only_the_killer_died(jobs, many, killer)


@pytest.mark.parametrize("lease", [1.0])
@pytest.mark.parametrize(
    ("program", "losses", "trials"),
    [
        (["embedded.py"], 2, 3),
        pytest.param(
            ["-m", "penstock", "worker", "tasks:app", "-c", "64", "--burst"],
            4,
            10,
            marks=pytest.mark.skipif(not IS_LONG, reason="a part of make storm"),
        ),
    ],
    ids=["embedded", "supervised"],
)
def test_a_job_that_takes_its_whole_container_down_ends_after_the_stated_number_of_trials(
    jobs: Jobs, program: list[str], losses: int, trials: int
):
    """The suspect that is tried beside it at first dies with it once, not each time."""
    many, killer = enqueue_beside(jobs, jobs.kill_the_host, 3, 1.0)
    run_again_and_again(jobs, program, 180)
    for job in many:
        job.result(timeout=0)
    with pytest.raises(JobFailed, match=f"its host died .*; the limit is {trials} such trials"):
        killer.result(timeout=0)
    assert jobs.runs()["killer"] == losses + trials
    assert killer.info().crashes == 0
    assert jobs.queue.count().dead == 1


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


@pytest.fixture
def two_suspects(jobs: Jobs, start) -> tuple[subprocess.Popen[bytes], list[Job[int]]]:
    """A supervisor, and two jobs of 1.5 s that were running each time when its worker process was killed."""
    supervisor = start("-c", "4")
    many = [jobs.nap.enqueue(f"j{n}", 1.5) for n in range(2)]
    for life in (1, 2):
        runs_were_begun(jobs, 2 * life)
        kill_child(jobs)
    return supervisor, many


def test_a_trial_process_ends_when_no_suspect_is_left_and_at_a_stop(jobs: Jobs, two_suspects):
    supervisor, many = two_suspects
    for job in many:
        job.result(timeout=scaled(60))
    eventually(lambda: len(jobs.queue.workers()) == 1)
    supervisor.terminate()
    assert supervisor.wait(scaled(30)) == 0
    assert jobs.queue.workers() == []


def test_a_supervisor_that_stops_lets_a_trial_finish(jobs: Jobs, two_suspects):
    supervisor, many = two_suspects
    eventually(lambda: jobs.runs().total() >= 5)
    supervisor.terminate()
    assert supervisor.wait(scaled(30)) == 0
    counts = jobs.queue.count()
    assert (counts.completed >= 1, counts.running, counts.completed + counts.ready) == (True, 0, 2)
    assert [job.info().crashes for job in many] == [0, 0]


def trial_has_begun(jobs: Jobs, n: int) -> bool:
    return jobs.runs().total() > 4 + n


def test_a_trial_that_is_killed_from_outside_counts_as_a_crash_of_its_job(jobs: Jobs, two_suspects):
    supervisor, many = two_suspects
    for n in range(6):
        eventually(partial(trial_has_begun, jobs, n))
        os.kill(int(jobs.starts()[-1].pid), signal.SIGKILL)
    for job in many:
        with pytest.raises(JobFailed, match="killed by SIGKILL"):
            job.result(timeout=scaled(30))
        assert job.info().crashes == 3
    supervisor.terminate()
    assert supervisor.wait(scaled(30)) == 0
