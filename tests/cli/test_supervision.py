"""`penstock worker` by default: one process under a supervisor, whatever the streams, the process id, or the memory."""

import os
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from penstock import JobFailed, Status
from penstock.cli.exits import Exit
from tests.cli.worker_shop import children_of, gone, opened_shop
from tests.command_line import SOURCE
from tests.servers import Server, default_signals, eventually, free_port
from tests.speed import scaled


@pytest.fixture
def lease() -> float:
    return 10.0


@pytest.fixture
def shop(server: Server, tmp_path: Path, lease: float):
    with opened_shop(server, tmp_path, lease) as shop:
        yield shop


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])


# --- supervised by default ---


def test_the_command_supervises_one_process_by_default(start, shop):
    supervisor = start("worker", "tasks:app", **shop.where)
    first = shop.nap.enqueue(0).result(timeout=scaled(30))
    assert parent_of(first) == supervisor.pid
    os.kill(first, signal.SIGKILL)
    second = shop.nap.enqueue(0).result(timeout=scaled(30))
    assert (second != first, parent_of(second)) == (True, supervisor.pid)
    supervisor.terminate()
    assert supervisor.wait(scaled(30)) == Exit.OK


def test_a_supervisor_uses_the_loop_of_asyncio_and_its_process_uvloop(start, shop):
    pytest.importorskip("uvloop")
    supervisor = start("worker", "tasks:app", **shop.where)
    process = shop.nap.enqueue(0).result(timeout=scaled(30))
    uses_uvloop = ["uvloop" in Path(f"/proc/{pid}/maps").read_text() for pid in (supervisor.pid, process)]
    assert uses_uvloop == [False, True]


def test_without_a_supervisor_the_command_itself_is_the_worker(start, shop):
    worker = start("worker", "tasks:app", "--processes", "0", **shop.where)
    assert shop.nap.enqueue(0).result(timeout=scaled(30)) == worker.pid


@pytest.mark.parametrize("lease", [1.5])
def test_by_default_a_task_that_holds_the_interpreters_lock_loses_no_job(start, shop, begun):
    """Five other jobs run in the process for three leases."""
    start("worker", "tasks:app", **shop.where)
    jobs = [shop.nap.enqueue(6.0) for _ in range(5)]
    eventually(lambda: begun(5))
    shop.hold_the_lock.enqueue(4.5).result(timeout=scaled(60))
    for job in jobs:
        job.result(timeout=scaled(60))
    assert (shop.queue.count().completed, shop.queue.count().lost) == (6, 0)


def test_a_process_that_dies_after_a_job_is_replaced_without_a_pause(start, shop):
    """Six deaths in a row: with a pause that doubles, the sixth would take 3 s."""
    supervisor = start("worker", "tasks:app", "-c", "1", "--log-level", "error", **shop.where)
    for _ in range(6):
        pid = shop.nap.enqueue(0).result(timeout=scaled(30))
        os.kill(pid, signal.SIGKILL)
        eventually(partial(gone, pid))
    assert shop.nap.enqueue(0).result(timeout=scaled(30))
    supervisor.terminate()
    _, errors = supervisor.communicate(timeout=scaled(30))
    assert errors.count("was killed by SIGKILL; a new one starts in 0.0 s") == 6


def test_a_process_that_dies_before_it_ended_a_job_is_replaced_after_a_pause(start, shop):
    supervisor = start("worker", "tasks:app", "--log-level", "error", **shop.where)
    for _ in range(2):
        pid = eventually_one(shop)
        os.kill(pid, signal.SIGKILL)
        eventually(partial(gone, pid))
    assert shop.nap.enqueue(0).result(timeout=scaled(30))
    supervisor.terminate()
    _, errors = supervisor.communicate(timeout=scaled(30))
    pauses = [line.rpartition("starts in ")[2] for line in errors.splitlines() if "a new one starts" in line]
    assert pauses == ["0.1 s", "0.2 s"]


def eventually_one(shop) -> int:
    """The process id of the worker that is alive, once it has taken its first turn."""
    found: list[int] = []

    def look() -> bool:
        found[:] = [pid for pid in shop.pids() if not gone(pid)]
        return bool(found)

    eventually(look)
    return found[0]


# --- graceful replacement ---


def test_after_max_jobs_a_process_is_replaced_and_its_running_job_ends(start, shop, begun):
    start("worker", "tasks:app", "-c", "2", "--max-jobs", "2", "--stop-timeout", "0.1", **shop.where)
    long = shop.nap.enqueue(scaled(4.0))
    eventually(begun)
    pids = [shop.nap.enqueue(0).result(timeout=scaled(30)) for _ in range(4)]
    assert long.status() is Status.RUNNING, "it has more time than a stop would give it"
    assert (pids[0] != pids[1], pids[1] == pids[2], pids[2] != pids[3]) == (True, True, True)
    assert long.result(timeout=scaled(30)) == pids[0]
    assert shop.queue.count().lost == shop.queue.count().retried == 0


def test_a_process_that_uses_more_than_max_memory_is_replaced(start, shop):
    start("worker", "tasks:app", "--max-memory", "300", **shop.where)
    first = shop.leak.enqueue(400).result(timeout=scaled(30))
    eventually(lambda: gone(first))
    assert shop.nap.enqueue(0).result(timeout=scaled(30)) != first
    assert shop.queue.count().lost == 0


def test_without_a_supervisor_a_worker_ends_after_max_jobs(run, shop):
    jobs = [shop.nap.enqueue(0) for _ in range(5)]
    done = run("worker", "tasks:app", "--processes", "0", "--max-jobs", "3", **shop.where)
    assert done.returncode == Exit.OK
    assert sum(job.status() == "completed" for job in jobs) == 3


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--max-jobs", "0"), "max_jobs=0: use 1 or more"),
        (("--max-memory", "-5"), "max_memory=-5 MiB: use 1 or more"),
    ],
)
def test_limits_that_cannot_work_are_refused(run, shop, words, expected):
    done = run("worker", "tasks:app", *words, **shop.where)
    assert (done.returncode, expected in done.stderr) == (Exit.USAGE, True)


# --- closed streams ---


@pytest.mark.parametrize("processes", ["1", "0"])
@pytest.mark.parametrize("closed", [">&-", "<&-", ">&- 2>&- <&-"])
def test_closed_standard_streams_harm_nothing(shop, tmp_path: Path, closed: str, processes: str):
    command = f"exec {sys.executable} -m penstock worker tasks:app --processes {processes} {closed}"
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), **shop.where}
    worker = subprocess.Popen(["sh", "-c", command], cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL)
    try:
        pid = shop.nap.enqueue(0).result(timeout=scaled(30))
        isolated = shop.print_apart.enqueue("a word").result(timeout=scaled(30))
        assert isolated not in {pid, worker.pid}
        worker.terminate()
        assert worker.wait(scaled(30)) == Exit.OK
    finally:
        worker.kill()
        worker.wait()


EMBEDDED = """
import asyncio, os, sys
for number in (0, 1, 2):
    os.close(number)
sys.stdin = sys.stdout = sys.stderr = None
from tasks import app
from penstock import Worker, WorkerSettings
asyncio.run(Worker(app, WorkerSettings(burst=True)).run())
"""


def test_a_worker_in_a_program_without_standard_streams_runs_isolated_jobs(shop, tmp_path: Path):
    job = shop.print_apart.enqueue("a word")
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), **shop.where}
    ended = subprocess.run([sys.executable, "-c", EMBEDDED], cwd=tmp_path, env=environment, timeout=120, check=False)
    assert (ended.returncode, bool(job.result(timeout=0))) == (0, True)


# --- the first process of a container ---

SUBREAPER = """
import ctypes, os, sys
assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0
os.execv(sys.executable, sys.argv[1:])
"""
"""A program that asks the kernel for orphans, as PID 1 gets them, and then becomes the command."""


@pytest.mark.skipif(sys.platform != "linux", reason="orphans go to other processes only on Linux")
@pytest.mark.parametrize("processes", ["1", "0"])
def test_a_process_that_adopts_orphans_reaps_them(shop, tmp_path: Path, processes: str):
    words = [sys.executable, "-m", "penstock", "worker", "tasks:app", "--processes", processes]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), **shop.where}
    with default_signals():
        worker = subprocess.Popen(
            [sys.executable, "-c", SUBREAPER, *words], cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL
        )
    try:
        orphans = [shop.leave_an_orphan.enqueue().result(timeout=scaled(30)) for _ in range(3)]
        eventually(lambda: all(map(gone, orphans)))
        assert "Z" not in children_of(worker.pid).values()
        worker.send_signal(signal.SIGINT)
        assert worker.wait(scaled(30)) == Exit.OK
    finally:
        worker.kill()
        worker.wait()


# --- a module that tolerates no second copy of itself ---

WITH_A_PORT = """
import os, socket
from penstock import Penstock

listening = socket.socket()
listening.bind(("127.0.0.1", int(os.environ["PORT"])))
listening.listen()

app = Penstock(os.environ["PENSTOCK_URL"], prefix=os.environ["SHOP"])

@app.task(queue="q")
async def nap(seconds: float) -> int:
    return os.getpid()
"""


def test_a_module_that_binds_a_port_is_imported_by_the_worker_process_alone(start, shop, tmp_path: Path):
    (tmp_path / "bound.py").write_text(WITH_A_PORT)
    supervisor = start("worker", "bound:app", PORT=str(free_port()), **shop.where)
    pid = shop.nap.enqueue(0).result(timeout=scaled(30))
    assert parent_of(pid) == supervisor.pid
    os.kill(pid, signal.SIGKILL)
    assert shop.nap.enqueue(0).result(timeout=scaled(30)) != pid


def test_a_module_that_cannot_be_imported_is_reported_once(run, shop, tmp_path: Path):
    (tmp_path / "broken.py").write_text("print('hello')\nraise OSError('no such luck')\n")
    done = run("worker", "broken:app", **shop.where)
    assert (done.returncode, done.stderr.count("no such luck"), done.stdout) == (Exit.USAGE, 1, "hello\n")


def test_the_command_line_cancels_a_running_job_and_waits_for_its_end(start, run, shop, begun):
    start("worker", "tasks:app", **shop.where)
    first, second = shop.nap.enqueue(60), shop.nap.enqueue(60)
    eventually(lambda: begun(2))
    words = ("--url", shop.where["PENSTOCK_URL"], "--prefix", shop.where["SHOP"])
    done = run("job", "cancel", first.id, "--wait", "20", *words)
    assert (done.returncode, done.stdout.strip()) == (Exit.OK, f"{first.id} cancelled")
    asked = run("job", "cancel", second.id, *words)
    was_asked = "it was asked to end; --wait SECONDS waits for that" in asked.stderr
    assert was_asked == (asked.returncode == Exit.FAILED)
    assert was_asked or asked.stdout.strip() == f"{second.id} cancelled"  # the worker was quicker than the command
    eventually(lambda: second.status() is Status.CANCELLED)
    stuck = shop.block.enqueue(scaled(4))
    eventually(lambda: begun(3))
    late = run("job", "cancel", stuck.id, "--wait", "0.3", *words)
    assert (late.returncode, "its code cannot be interrupted" in late.stderr) == (Exit.FAILED, True)


def test_a_suspect_of_a_module_with_a_port_is_tried_while_no_other_process_has_the_port(start, shop, tmp_path: Path):
    module = WITH_A_PORT.replace("import os,", "import asyncio, os,").replace(
        "    return os.getpid()", "    await asyncio.sleep(seconds)\n    return os.getpid()"
    )
    (tmp_path / "bound.py").write_text(module)
    start("worker", "bound:app", "--stop-timeout", "5", PORT=str(free_port()), **shop.where)
    job, other = shop.nap.enqueue(4.0), shop.nap.enqueue(4.0)
    for _ in range(2):
        eventually(lambda: shop.queue.count().running == 2 and any(not gone(pid) for pid in shop.pids(busy=True)))
        time.sleep(0.5)  # so that both have begun
        (pid,) = (pid for pid in shop.pids(busy=True) if not gone(pid))
        os.kill(pid, signal.SIGKILL)
        eventually(partial(gone, pid))
    assert job.result(timeout=scaled(90))
    assert other.result(timeout=scaled(90))
    assert shop.queue.count().dead == 0


# --- jobs that end the event loop of their process ---


@pytest.mark.parametrize("how", ["sys.exit", "KeyboardInterrupt", "loop.stop", "cancel"])
def test_a_job_that_ends_the_loop_from_a_sub_task_fails_alone(start, shop, how: str):
    innocents = [shop.innocent.enqueue(1.5) for _ in range(3)]
    killer = shop.end_the_loop.enqueue(how)
    start("worker", "tasks:app", **shop.where)
    with pytest.raises(JobFailed):
        killer.result(timeout=scaled(60))
    for job in innocents:
        job.result(timeout=scaled(60))
    assert shop.app.queue("other").count().dead == 0


@pytest.mark.parametrize("processes", ["0", "1"])
@pytest.mark.parametrize("how", ["second SIGTERM", "sys.exit"])
def test_a_coroutine_that_ignores_its_cancellation_does_not_keep_its_process(
    start, shop, begun, processes: str, how: str
):
    shop.swallow.enqueue()
    patience = "1" if how == "sys.exit" else "30"
    supervisor = start("worker", "tasks:app", "--processes", processes, "--stop-timeout", patience, **shop.where)
    eventually(lambda: begun(1))
    if how == "sys.exit":
        shop.end_the_loop.enqueue("sys.exit")
        if processes == "0":
            supervisor.wait(scaled(10))
        else:
            eventually(lambda: begun(2))
    else:
        supervisor.terminate()
        assert supervisor.stderr is not None
        assert any("stop again to hand them back now" in line for line in supervisor.stderr)
        supervisor.terminate()
        assert supervisor.wait(scaled(10)) == Exit.OK


# --- signals to a whole group ---


@pytest.mark.parametrize("processes", ["0", "1", "2"])
def test_a_signal_to_every_process_at_once_is_one_stop(start, shop, begun, processes: str):
    """As systemd sends it, and `docker stop` with some inits: to the supervisor and to its processes."""
    jobs = [shop.nap.enqueue(2.0) for _ in range(2)]
    supervisor = start("worker", "tasks:app", "--processes", processes, **shop.where)
    eventually(lambda: begun(2))
    processes_of = Path(f"/proc/{supervisor.pid}/task/{supervisor.pid}/children")
    everyone = [supervisor.pid, *map(int, processes_of.read_text().split())]
    for pid in [*everyone, *everyone[1:]]:
        os.kill(pid, signal.SIGTERM)
    assert supervisor.wait(scaled(30)) == Exit.OK
    assert [job.status() for job in jobs] == [Status.COMPLETED] * 2


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_signal_to_the_process_group_is_one_stop(shop, begun, tmp_path: Path, processes: str):
    """A shell in a group of its own starts the command, and a second process of the group passes the signal on."""
    jobs = [shop.nap.enqueue(2.0) for _ in range(2)]
    words = [sys.executable, "-m", "penstock", "worker", "tasks:app", "--processes", processes]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), **shop.where}
    with default_signals():
        group = subprocess.Popen(words, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL, process_group=0)
    try:
        eventually(lambda: begun(2))
        os.killpg(group.pid, signal.SIGTERM)
        assert group.wait(scaled(30)) == Exit.OK
        assert [job.status() for job in jobs] == [Status.COMPLETED] * 2
    finally:
        group.kill()
        group.wait()


def test_a_process_that_was_asked_to_stop_has_no_successor(start, run, shop, server):
    supervisor = start("worker", "tasks:app", "--processes", "2", **shop.where)
    where = ("--url", server.address, "--prefix", shop.where["SHOP"])
    shop.nap.enqueue(0).result(timeout=scaled(30))
    for left in (1, 0):
        worker = shop.nap.enqueue(0).result(timeout=scaled(30))
        done = run("worker", "stop", f"{socket.gethostname()}:{worker}", *where)
        assert (done.returncode, "is asked to stop" in done.stdout) == (Exit.OK, True), done.stderr
        eventually(partial(gone, worker))
        if left:
            time.sleep(0.5)
            assert supervisor.poll() is None
            assert len(children_of(supervisor.pid)) == 1
    assert supervisor.wait(scaled(30)) == Exit.OK, "the supervisor ends with its last process"
