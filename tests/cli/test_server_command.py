"""`penstock server start|stop|status`: a server that stays until it is stopped, and leaves nothing behind."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import Penstock
from penstock.cli.exits import Exit
from penstock.embedded import client as embedded
from penstock.embedded import keeper
from tests.servers import eventually
from tests.speed import scaled


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A project of its own, without an address of a server."""
    for name in ("PENSTOCK_URL", "PENSTOCK_PREFIX", "PENSTOCK_EMBEDDED"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    embedded.stop(tmp_path / embedded.HOME)


def status(penstock):
    code, out, _ = penstock("server", "status", "--json")
    return code, json.loads(out)


def lives(pid):
    return Path(f"/proc/{pid}/stat").exists() and Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"


def test_a_started_server_outlives_the_command_and_its_users_until_it_is_stopped(folder, penstock):
    code, out, _ = penstock("server", "start")
    assert code == Exit.OK
    assert out.startswith("Started, and keeps running until `penstock server stop`.\n")
    with Penstock() as app:
        app.queue("mail").put(1)
    import time

    time.sleep(keeper.IDLE_TIMEOUT + 0.5)
    code, report = status(penstock)
    assert (code, report["running"], report["kept"], report["users"]) == (Exit.OK, True, True, 0)
    assert report["version"].startswith("valkey ")
    assert report["memory_bytes"] > 0
    assert report["data_bytes"] > 0
    code, out, _ = penstock("server", "stop")
    assert (code, "the data is kept" in out) == (Exit.OK, True)
    assert not lives(report["pid"])
    eventually(lambda: not lives(report["keeper"]))
    with Penstock() as app:
        assert app.queue("mail").count().ready == 1


def test_a_server_is_forgotten_only_on_request_and_whole(folder, penstock, monkeypatch, tmp_path_factory):
    runtime = tmp_path_factory.mktemp("run")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    assert penstock("server", "forget")[:2] == (Exit.OK, f"There is no {folder / embedded.HOME}.\n")
    penstock("server", "start")
    with Penstock() as app:
        app.queue("mail").put(1)
        code, _, err = penstock("server", "forget")
        assert code == Exit.USAGE
        assert "nothing was done: add --yes" in err
        assert app.queue("mail").count().ready == 1
    _, report = status(penstock)
    os.kill(report["keeper"], signal.SIGKILL)  # which leaves its sockets
    eventually(lambda: not lives(report["pid"]))
    assert list(runtime.rglob("*.keeper"))
    assert penstock("server", "forget", "--yes")[:2] == (Exit.OK, f"Deleted {folder / embedded.HOME}.\n")
    assert not (folder / embedded.HOME).exists()
    assert list(runtime.iterdir()) == []


def test_files_that_are_not_penstocks_stay(folder, penstock):
    penstock("server", "start")
    (folder / embedded.HOME / "notes.txt").write_text("mine")
    code, out, _ = penstock("server", "forget", "--yes")
    assert (code, "notes.txt" in out) == (Exit.FAILED, True)
    assert [file.name for file in (folder / embedded.HOME).iterdir()] == ["notes.txt"]


def test_starting_twice_keeps_the_same_server(folder, penstock):
    penstock("server", "start")
    before = status(penstock)[1]
    code, out, _ = penstock("server", "start")
    assert (code, out.startswith("It runs already, and keeps running")) == (Exit.OK, True)
    assert status(penstock)[1]["pid"] == before["pid"]


def test_a_server_that_programs_hold_up_is_kept_from_then_on(folder, penstock):
    with Penstock() as app:
        app.queue("mail").put(1)
        assert status(penstock)[1]["kept"] is False
        penstock("server", "start")
    assert status(penstock)[1]["users"] == 0
    assert status(penstock)[1]["kept"] is True


def test_none_runs(folder, penstock):
    code, report = status(penstock)
    assert (code, report["running"], report["state"]) == (Exit.SERVER, False, "stopped")
    code, out, _ = penstock("server", "stop")
    assert (code, out) == (Exit.OK, f"No server runs in {folder}/.penstock.\n")
    assert not (folder / ".penstock").exists()


def test_stopping_says_who_used_it(folder, penstock):
    with Penstock() as app:
        app.queue("mail").put(1)
        _, out, _ = penstock("server", "stop")
        assert "1 program used it and may start it again" in out


def test_a_kept_server_that_crashes_is_started_again_and_still_kept(folder, penstock):
    penstock("server", "start")
    before = status(penstock)[1]
    os.kill(before["pid"], signal.SIGKILL)
    eventually(lambda: status(penstock)[1]["pid"] not in {before["pid"], None})
    eventually(lambda: status(penstock)[1]["running"])
    assert status(penstock)[1]["kept"] is True


def test_a_keeper_that_is_killed_takes_a_kept_server_along(folder, penstock):
    penstock("server", "start")
    before = status(penstock)[1]
    os.kill(before["keeper"], signal.SIGKILL)
    eventually(lambda: not lives(before["pid"]))
    assert status(penstock)[0] == Exit.SERVER


def test_it_may_be_forbidden(folder, penstock, monkeypatch):
    monkeypatch.setenv("PENSTOCK_EMBEDDED", "0")
    assert penstock("server", "start")[0] == Exit.USAGE
    assert not (folder / ".penstock").exists()


def test_a_program_with_another_server_is_noted(folder, penstock, monkeypatch):
    monkeypatch.setenv("PENSTOCK_URL", "valkey://example.org")
    code, _, err = penstock("server", "start")
    assert code == Exit.OK
    assert "points programs to another server" in err


def test_a_worker_of_two_processes_names_the_server_once(folder):
    (folder / "tasks.py").write_text(
        "from penstock import Penstock\napp = Penstock()\n@app.task\nasync def hi() -> None: ...\n"
    )
    command = [sys.executable, "-m", "penstock", "worker", "tasks:app", "--processes", "2", "--burst"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=scaled(60), check=False)
    assert ended.returncode == Exit.OK
    assert ended.stderr.count("the server in") == 1
