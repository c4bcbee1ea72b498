"""How process managers stop a worker, with real processes, and the narrow places in which containers run it.

systemd      KillMode=control-group: SIGTERM to every process of the service, later SIGKILL to every one
             KillMode=mixed:         SIGTERM to the main process, later SIGKILL to every one
             KillMode=process:       SIGTERM to the main process, later SIGKILL to it alone
supervisord  as `process`; with stopasgroup and killasgroup the signals go to the main process's group
docker       SIGTERM to process 1, which is ours or an init that passes it on; later its kernel namespace is killed
Kubernetes   as docker, after the preStop hook
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock import JobFailed, Status
from penstock.cli.exits import Exit
from tests.cli.worker_shop import children_of, gone, opened_shop
from tests.command_line import SOURCE
from tests.embedded.users import in_own_mounts
from tests.leftovers import tree
from tests.servers import Server, eventually
from tests.speed import scaled

ROOT = Path(__file__).parents[2]
WORDS = [sys.executable, "-m", "penstock", "worker", "tasks:app"]


@pytest.fixture
def lease() -> float:
    return 10.0


@pytest.fixture
def shop(server: Server, tmp_path: Path, lease: float):
    with opened_shop(server, tmp_path, lease) as shop:
        yield shop


def send(number: signal.Signals, pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


class Manager:
    """Stops a service as a process manager does: asks the `asked`, and kills the `killed` after a grace period."""

    def __init__(self, name: str, asked: Callable[[int], list[int]], killed: Callable[[int], list[int]]) -> None:
        self.name, self._asked, self._killed = name, asked, killed

    def stop(self, main: subprocess.Popen[str], grace: float) -> int:
        """Returns the exit code."""
        send(signal.SIGTERM, self._asked(main.pid))
        with contextlib.suppress(subprocess.TimeoutExpired):
            return main.wait(grace)
        send(signal.SIGKILL, self._killed(main.pid))
        return main.wait(scaled(30))


def only(pid: int) -> list[int]:
    return [pid]


def group(pid: int) -> list[int]:
    return [one for one in tree(pid) if one == pid or os.getpgid(one) == pid]


MANAGERS = [
    Manager("systemd control-group", tree, tree),
    Manager("systemd mixed", only, tree),
    Manager("systemd process", only, only),
    Manager("supervisord stopasgroup", group, group),
]


@pytest.mark.parametrize("manager", MANAGERS, ids=lambda one: one.name)
def test_running_jobs_finish_within_the_grace_period(manager: Manager, start, shop, begun):
    supervisor = start("worker", "tasks:app", "--processes", "2", **shop.where)
    jobs = [shop.nap.enqueue(1.0) for _ in range(4)]
    eventually(lambda: begun(4))
    everyone = tree(supervisor.pid)
    assert manager.stop(supervisor, scaled(30)) == Exit.OK
    assert [job.status() for job in jobs] == [Status.COMPLETED] * 4
    assert all(gone(pid) for pid in everyone)


@pytest.mark.parametrize("lease", [1.5])
@pytest.mark.parametrize("manager", MANAGERS, ids=lambda one: one.name)
def test_a_job_that_outlasts_the_grace_period_runs_again_elsewhere(manager: Manager, start, shop, begun):
    """The manager is less patient than the worker. No process outlives the service, and the job is not lost."""
    service = start("worker", "tasks:app", **shop.where)
    job = shop.nap.enqueue(600)
    eventually(lambda: begun(1))
    everyone = tree(service.pid)
    assert manager.stop(service, 1.0) == -signal.SIGKILL
    eventually(lambda: all(gone(pid) for pid in everyone))
    start("worker", "tasks:app", **shop.where)
    eventually(lambda: begun(2))
    assert job.status() is Status.RUNNING


# --- containers ---

INIT = """
import os, signal, sys

child = os.fork()
if not child:
    os.execvp(sys.argv[1], sys.argv[1:])
signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
while True:
    pid, status = os.wait()
    if pid == child:
        sys.exit(os.waitstatus_to_exitcode(status))
"""
"""What tini does as process 1: it passes signals on to its child, reaps orphans, and ends with the child's code."""


@contextlib.contextmanager
def container(folder: Path, where: dict[str, str], *words: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Runs a command as process 1 of a process namespace. Returns the process that waits for it, and its id outside."""
    inside = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *words]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), **where}
    if subprocess.run([*inside[:5], "true"], capture_output=True, check=False).returncode:
        pytest.skip("process namespaces are not allowed here")
    outer = subprocess.Popen(inside, cwd=folder, env=environment, stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: len(tree(outer.pid)) > 1)
        yield outer, tree(outer.pid)[1]
    finally:
        outer.kill()
        outer.wait()


INITS = {"ours is process 1": [], "an init": [sys.executable, "-c", INIT], "tini": ["tini", "--"]}


@pytest.mark.parametrize("init", INITS.values(), ids=INITS)
def test_docker_stop_lets_running_jobs_finish(shop, begun, tmp_path: Path, init: list[str]):
    if init and not shutil.which(init[0]):
        pytest.skip(f"needs Debian's {init[0]}")
    with container(tmp_path, shop.where, *init, *WORDS) as (outer, first):
        job = shop.nap.enqueue(2.0)
        eventually(lambda: begun(1))
        os.kill(first, signal.SIGTERM)
        assert outer.wait(scaled(30)) == Exit.OK
    assert job.status() is Status.COMPLETED


def image() -> tuple[list[str], dict[str, str]]:
    """The command of the image in docs/howto/containers.md, and its environment."""
    text = (ROOT / "docs" / "howto" / "containers.md").read_text("utf-8")
    lines = dict(re.findall(r"^(ENTRYPOINT|CMD|ENV|STOPSIGNAL) (.+)$", text, re.MULTILINE))
    assert lines["STOPSIGNAL"] == "SIGTERM"
    program, *words = json.loads(lines["ENTRYPOINT"]) + json.loads(lines["CMD"])
    assert program == "penstock"
    return [sys.executable, "-m", program, *words], dict(one.split("=") for one in lines["ENV"].split())


def test_the_image_of_the_page_reaps_orphans_and_ends_its_job_first(shop, begun, tmp_path: Path):
    words, environment = image()
    (tmp_path / "shop").mkdir()
    shutil.copy(tmp_path / "tasks.py", tmp_path / "shop" / "jobs.py")
    with container(tmp_path, shop.where | environment, *words) as (outer, first):
        for _ in range(3):
            shop.leave_an_orphan.enqueue().result(timeout=scaled(30))
        eventually(lambda: len(children_of(first)) == 1)  # the supervisor: no orphan is left, and no zombie
        assert "Z" not in children_of(first).values()
        job = shop.nap.enqueue(2.0)
        eventually(lambda: begun(1))
        os.kill(first, signal.SIGTERM)
        assert outer.wait(scaled(30)) == Exit.OK
        assert job.status() is Status.COMPLETED


@pytest.mark.parametrize("lease", [1.5])
def test_docker_kill_after_the_grace_period_leaves_the_job_to_others(shop, start, begun, tmp_path: Path):
    with container(tmp_path, shop.where, *WORDS) as (outer, first):
        job = shop.nap.enqueue(600)
        eventually(lambda: begun(1))
        everyone = tree(first)
        os.kill(first, signal.SIGTERM)
        time.sleep(0.5)
        os.kill(first, signal.SIGKILL)
        outer.wait(scaled(30))
        eventually(lambda: all(gone(pid) for pid in everyone))
    start("worker", "tasks:app", **shop.where)
    eventually(lambda: begun(2))
    assert job.status() is Status.RUNNING


def test_a_kubernetes_hook_that_only_waits_changes_nothing(shop, begun, tmp_path: Path):
    """preStop `sleep`: the worker claims until SIGTERM, and then finishes."""
    with container(tmp_path, shop.where, *WORDS) as (outer, first):
        shop.nap.enqueue(0).result(timeout=scaled(30))
        time.sleep(0.5)
        late = shop.nap.enqueue(1.0)
        eventually(lambda: begun(2))
        os.kill(first, signal.SIGTERM)
        assert outer.wait(scaled(30)) == Exit.OK
    assert late.status() is Status.COMPLETED


def test_a_kubernetes_hook_that_sends_the_signal_itself_makes_it_two(shop, begun, tmp_path: Path):
    """preStop `kill 1`, and then Kubernetes' own SIGTERM: running jobs are handed back, and none is lost."""
    with container(tmp_path, shop.where, *WORDS) as (outer, first):
        job = shop.nap.enqueue(600)
        eventually(lambda: begun(1))
        began = time.monotonic()
        os.kill(first, signal.SIGTERM)
        time.sleep(0.5)
        os.kill(first, signal.SIGTERM)
        assert outer.wait(scaled(30)) == Exit.OK
        assert time.monotonic() - began < scaled(15)
    assert job.status() is Status.READY


NARROW = {
    "no /dev/shm": "umount -l /dev/shm; mount -t tmpfs -o mode=000,ro none /dev/shm",
    "a read-only root": (
        "mount --make-rprivate / && mount --bind {folder} {folder} && mount -o remount,bind,ro / && cd {folder}"
    ),
    "no home": "true",
}


@pytest.mark.parametrize("place", NARROW)
def test_a_worker_runs_in_a_narrow_container(place: str, shop, begun, tmp_path: Path):
    """With tasks of each kind: on the loop, in a thread, and in a process of its own."""
    environment = {name: value for name, value in os.environ.items() if name not in {"HOME", "XDG_RUNTIME_DIR"}}
    environment |= {"PYTHONPATH": str(SOURCE), **shop.where}
    if place == "no home":
        environment["HOME"] = "/nonexistent"
    prefix = in_own_mounts(NARROW[place].format(folder=tmp_path))
    with subprocess.Popen([*prefix, *WORDS], cwd=tmp_path, env=environment, stderr=subprocess.PIPE) as worker:
        try:
            assert shop.nap.enqueue(0).result(timeout=scaled(30)) > 0
            assert shop.leak.enqueue(1).result(timeout=scaled(30)) > 0
            assert shop.print_apart.enqueue("hello").result(timeout=scaled(30)) > 0
            worker.terminate()
            assert worker.wait(scaled(30)) == Exit.OK
        finally:
            worker.kill()


def test_a_job_beyond_the_memory_limit_fails_alone(shop, tmp_path: Path):
    """A limit of the address space. The allocation fails, and the job with it."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), **shop.where}
    limited = ["sh", "-c", 'ulimit -v 2000000; exec "$@"', "sh", *WORDS]
    with subprocess.Popen(limited, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL) as worker:
        try:
            first = shop.nap.enqueue(0).result(timeout=scaled(30))
            with pytest.raises(JobFailed, match="MemoryError"):
                shop.leak.enqueue(4000).result(timeout=scaled(30))
            assert shop.nap.enqueue(0).result(timeout=scaled(30)) == first
            worker.terminate()
            assert worker.wait(scaled(30)) == Exit.OK
        finally:
            worker.kill()


@contextlib.contextmanager
def control_group(mib: int) -> Iterator[Path]:
    """A control group with a memory limit, as a container has one. Returns the file of its processes."""
    root = Path("/sys/fs/cgroup")
    first_version = (root / "memory").is_dir()
    group = (root / "memory" if first_version else root) / f"penstock-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / ("memory.limit_in_bytes" if first_version else "memory.max")).write_text(str(mib << 20))
    except OSError:
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip("control groups with a memory limit are not allowed here")
    try:
        yield group / "cgroup.procs"
    finally:
        send(signal.SIGKILL, [int(one) for one in (group / "cgroup.procs").read_text().split()])
        eventually(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()


def test_the_kernel_kills_a_job_beyond_the_limit_of_a_container_and_no_other_job_ends(shop, tmp_path: Path):
    """It kills the process with all its jobs. They run again, and the one that was alone at a kill is a dead letter."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), **shop.where}
    with control_group(300) as members:
        inside = ["sh", "-c", f'echo $$ > {members} && exec "$@"', "sh", *WORDS]
        with subprocess.Popen(inside, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL) as worker:
            try:
                shop.nap.enqueue(0).result(timeout=scaled(30))
                beside = shop.nap.enqueue(3.0)
                leaking = shop.leak.enqueue(2000)
                with pytest.raises(JobFailed, match="SIGKILL"):
                    leaking.result(timeout=scaled(60))
                assert beside.result(timeout=scaled(30)) > 0
                worker.terminate()
                assert worker.wait(scaled(30)) == Exit.OK
            finally:
                worker.kill()
