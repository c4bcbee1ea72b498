"""`--reload`: one reloader, one process, and an end to both."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from penstock.cli import reload
from penstock.worker.parent_pipe import ParentPipe
from tests.servers import eventually
from tests.speed import scaled

STUBBORN = """
import pathlib, signal, sys, time

def end(*_):
    pathlib.Path("ending").touch()
    time.sleep(2)
    sys.exit(0)

signal.signal(signal.SIGTERM, end)
with open("started", "a") as notes:
    print("x", file=notes, flush=True)
time.sleep(60)
"""

CODE = "import sys; from penstock.cli import reload; sys.exit(reload.run([sys.executable, 'stubborn']))"
RELOADER = [sys.executable, "-c", CODE]
PATH = str(Path(reload.__file__).parents[2])

TASKS = """
import os
from penstock import Penstock

with open("imported", "a") as notes:
    print(os.getpid(), file=notes)
app = Penstock()

@app.task(queue="q")
async def nothing() -> None: ...
"""


@pytest.fixture(params=["with watchfiles", "without watchfiles"])
def reloader(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest):
    """A process that runs STUBBORN and restarts it when a file changes."""
    (tmp_path / "stubborn").write_text(STUBBORN)
    path = PATH
    if request.param == "without watchfiles":
        hidden = tmp_path_factory.mktemp("hidden")
        (hidden / "watchfiles.py").write_text("raise ImportError")
        path = f"{hidden}{os.pathsep}{PATH}"
    process = subprocess.Popen(RELOADER, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path})
    eventually((tmp_path / "started").exists)
    yield process
    process.kill()
    process.wait()


def runs(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    return False


@pytest.mark.parametrize("spelling", ["--reload", "--reload=true", "--reload=yes"])
def test_however_it_is_spelt_there_is_one_reloader(start, server, tmp_path, spelling):
    (tmp_path / "tasks.py").write_text(TASKS)
    reloader = start("worker", "tasks:app", "--processes", "0", spelling, PENSTOCK_URL=server.address)
    assert any("penstock " in line and "worker" in line for line in reloader.stderr), "the screen of the worker"
    (worker,) = map(int, (tmp_path / "imported").read_text().split())
    parent = int(Path(f"/proc/{worker}/stat").read_text().rpartition(") ")[2].split()[1])
    assert parent == reloader.pid
    reloader.terminate()
    assert reloader.wait(scaled(30)) in {0, 128 + signal.SIGTERM}  # the worker may not have got to its handlers yet
    assert not runs(worker)


def test_the_processes_of_a_supervisor_do_not_reload(start, server, tmp_path):
    (tmp_path / "tasks.py").write_text(TASKS)
    reloader = start("worker", "tasks:app", "--processes", "2", "--reload=true", PENSTOCK_URL=server.address)
    imported = tmp_path / "imported"
    eventually(lambda: imported.exists() and len(imported.read_text().split()) == 3)
    _, *workers = map(int, imported.read_text().split())  # the first one read the app for the supervisor
    (supervisor,) = {int(Path(f"/proc/{one}/stat").read_text().rpartition(") ")[2].split()[1]) for one in workers}
    assert supervisor not in {reloader.pid, *workers}
    reloader.kill()
    eventually(lambda: not any(map(runs, (supervisor, *workers))))


def test_a_changed_file_restarts_the_process(reloader, tmp_path):
    (tmp_path / "notes.txt").write_text("no source")
    (tmp_path / "code.py").write_text("a = 1")
    eventually(lambda: (tmp_path / "started").read_text() == "x\nx\n", within=15)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "code.py").write_text("a = 2")
    eventually(lambda: (tmp_path / "started").read_text() == "x\nx\nx\n", within=15)
    reloader.send_signal(signal.SIGTERM)
    assert reloader.wait(scaled(10)) == 0


def test_a_signal_while_the_old_process_ends_starts_no_new_one(reloader, tmp_path):
    (tmp_path / "changed.py").touch()
    eventually((tmp_path / "ending").exists)
    reloader.terminate()
    assert reloader.wait(scaled(30)) == 0
    assert (tmp_path / "started").read_text().split() == ["x"]


@pytest.mark.parametrize("early", [True, False])
def test_one_that_lost_its_parent_ends(tmp_path, early):
    """Before its first process runs, too."""
    (tmp_path / "stubborn").write_text(STUBBORN)
    with ParentPipe() as pipe:
        if early:
            pipe.close()
        environment = {**os.environ, **pipe.environment, "PYTHONPATH": PATH}
        process = subprocess.Popen(RELOADER, cwd=tmp_path, env=environment, pass_fds=(pipe.child_end,))
    if not early:
        eventually((tmp_path / "started").exists)
        pipe.close()
    try:
        assert process.wait(scaled(30)) in ({0, 128 + signal.SIGTERM} if early else {0})
    finally:
        process.kill()
        process.wait()


def test_a_signal_before_the_first_process_ends_it(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def interrupted(_):
        os.kill(os.getpid(), signal.SIGTERM)
        return ()

    monkeypatch.setattr(reload, "_files", interrupted)
    assert reload.run(["sleep", "60"]) == 128 + signal.SIGTERM


def test_a_process_that_ended_by_itself_is_waited_for_no_more(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    threading.Timer(1, os.kill, (os.getpid(), signal.SIGTERM)).start()
    assert reload.run(["true"]) == 128 + signal.SIGTERM


def test_folders_that_vanish_or_may_not_be_read_are_passed_over(tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "code.py").touch()
    (tmp_path / "loop.py").symlink_to("loop.py")
    (tmp_path / "a").chmod(0)
    walk = reload._files(tmp_path)
    first, _ = next(walk)
    for name in {"b", "c"} - {Path(first).parent.name}:
        (tmp_path / name / "code.py").unlink()
        (tmp_path / name).rmdir()
    assert {Path(name).name for name, _ in walk} <= {"code.py"}
    (tmp_path / "a").chmod(0o700)
