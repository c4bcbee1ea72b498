"""A `def` task forks, and the copy outlives the worker: it keeps nothing of the worker alive."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import Penstock
from tests.cli.worker_shop import gone
from tests.servers import Server, eventually
from tests.speed import scaled

TASKS = """
import os, time
from penstock import Penstock

app = Penstock(prefix="clones")

@app.task(queue="q")
def leave_a_clone() -> int:
    clone = os.fork()
    if not clone:
        time.sleep(60)
        os._exit(0)
    return clone

@app.task(queue="q")
def run_beside_a_clone() -> str:
    if os.path.exists("clone"):
        return "ran again"
    clone = os.fork()
    if not clone:
        time.sleep(60)
        os._exit(0)
    with open("clone.new", "w") as file:
        file.write(str(clone))
    os.rename("clone.new", "clone")
    time.sleep(60)
    return "ran in the killed worker"

@app.task(queue="q")
def return_twice() -> int:
    clone = os.fork()
    if clone:
        time.sleep(0.3)
    return clone
"""


@pytest.fixture
def app(server: Server, tmp_path: Path) -> Iterator[Penstock]:
    (tmp_path / "tasks.py").write_text(TASKS)
    with Penstock(server.address, prefix="clones") as app:
        yield app
    for key in server.client.keys("*clones*"):
        server.client.delete(key)


def clone_of(app: Penstock, name: str) -> int:
    """Run the task of this name. Returns the process id of the copy that it makes."""

    def task() -> int:
        return 0

    clone = app.task(queue="q", name=name)(task).enqueue().result(timeout=scaled(30))
    assert clone
    return clone


def clients(server: Server) -> int:
    return len(server.client.client_list())


@pytest.mark.parametrize("processes", [0, 1])
def test_a_clone_holds_no_connection_of_a_worker_that_was_killed(
    start: Any, app: Penstock, server: Server, processes: int
):
    app.queue("q").count()
    before = clients(server)
    command = start("worker", "tasks:app", "--processes", str(processes), PENSTOCK_URL=server.address)
    clone = clone_of(app, "leave_a_clone")
    try:
        workers = {int(worker.name.rpartition(":")[2]) for worker in app.queue("q").workers()}
        for pid in (command.pid, *workers - {command.pid}):
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: clients(server) <= before + 1)  # this program waits for results on another connection
        assert not gone(clone)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(clone, signal.SIGKILL)


@pytest.mark.parametrize("processes", [0, 1])
def test_a_clone_does_not_extend_the_lease_of_its_job(
    start: Any, app: Penstock, server: Server, tmp_path: Path, processes: int
):
    """The worker and its supervisor are killed at once, so only the end of the lease hands the job back."""

    def task() -> str:
        return ""

    job = app.task(queue="q", name="run_beside_a_clone")(task).enqueue()
    command = start("worker", "tasks:app", "--processes", str(processes), PENSTOCK_URL=server.address)
    eventually((tmp_path / "clone").exists)
    clone = int((tmp_path / "clone").read_text())
    try:
        workers = {int(worker.name.rpartition(":")[2]) for worker in app.queue("q").workers()}
        for pid in (command.pid, *workers - {command.pid}):
            os.kill(pid, signal.SIGKILL)
        start("worker", "tasks:app", "--processes", "0", PENSTOCK_URL=server.address)
        assert job.result(timeout=scaled(20)) == "ran again"
        assert not gone(clone)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(clone, signal.SIGKILL)


def test_a_copy_that_returns_from_the_task_ends(start: Any, app: Penstock, server: Server):
    start("worker", "tasks:app", "--processes", "0", PENSTOCK_URL=server.address)
    clone = clone_of(app, "return_twice")
    eventually(lambda: gone(clone))


def test_a_clone_does_not_keep_an_embedded_server_running(tmp_path: Path):
    program = """
import os, sys, time
from penstock import Penstock
app = Penstock()
app.queue("q").put(1)
clone = os.fork()
if not clone:
    os.close(1)  # the test reads to its end
    time.sleep(60)
    os._exit(0)
print(clone, flush=True)
"""
    environment = {name: value for name, value in os.environ.items() if name != "PENSTOCK_URL"}
    (tmp_path / ".penstock").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    clone = int(done.stdout)
    try:
        from penstock.embedded.client import status

        eventually(lambda: status(tmp_path / ".penstock") is None)
        assert not gone(clone)
    finally:
        os.kill(clone, signal.SIGKILL)
