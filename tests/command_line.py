"""Fixtures that run `penstock` commands: `start` and `run` in a process of its own, as a user does; `penstock` in the
process of the test, which is quicker."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock as package
from penstock import Penstock
from penstock.cli import main
from tests.conftest import Apps
from tests.servers import Server, default_signals
from tests.speed import scaled

Start = Callable[..., subprocess.Popen[str]]
Run = Callable[..., subprocess.CompletedProcess[str]]
Command = Callable[..., tuple[int, str, str]]

RECORD_START = """
from pathlib import Path

def record_start() -> None:
    with Path("begun").open("a") as begun:
        begun.write("!")
"""
"""Code for tasks that record their start: a job that was only claimed is handed back at a stop, and no crash counts
against it."""

SOURCE = Path(package.__file__).parents[1]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts `penstock …` in the test's folder. Processes that still run at the end of the test are killed."""
    started: list[subprocess.Popen[str]] = []
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    ours = {"PYTHONPATH": str(SOURCE), "NO_COLOR": "1"}

    def begin(*words: str | Path, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock", *map(str, words)],
            cwd=tmp_path,
            env={**inherited, **ours, **environment},
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        started.append(process)
        return process

    with default_signals():
        yield begin
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def run(start: Start) -> Run:
    """Runs `penstock …` to its end."""

    def to_the_end(*words: str | Path, **environment: str) -> Any:
        process = start(*words, **environment)
        out, err = process.communicate(timeout=scaled(60))
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    return to_the_end


@pytest.fixture
def penstock(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs one command in this process; returns its exit code, stdout and stderr."""

    def command(*words: str) -> tuple[int, str, str]:
        code = main(words)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return command


@pytest.fixture
def shop(apps: Apps, server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Penstock]:
    """An app whose server and prefix the commands find in the environment. They run in the test's folder."""
    app = apps.make()
    monkeypatch.setenv("PENSTOCK_URL", server.address)
    monkeypatch.setenv("PENSTOCK_PREFIX", app.settings.prefix)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(tmp_path)
    yield app
    app.close()


@pytest.fixture
def begun(tmp_path: Path) -> Callable[..., bool]:
    """`begun(n)`: whether tasks in the test's folder have called `record_start` at least n times."""
    return lambda calls=1: (tmp_path / "begun").exists() and (tmp_path / "begun").stat().st_size >= calls
