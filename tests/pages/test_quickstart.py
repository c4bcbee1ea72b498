"""The first ten minutes, and the program of the README: their files, run in the order in which the page runs them."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import Penstock
from penstock.testing import TemporaryServer
from tests.pages.blocks import is_as_shown
from tests.speed import Deadline, scaled

ROOT = Path(__file__).parents[2]
FILE = re.compile(r'^```\w+ title="([\w.]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)


@pytest.fixture
def address() -> Iterator[str]:
    with TemporaryServer() as server:
        yield server.address


class Reader:
    """Somebody who follows a page in a folder."""

    def __init__(self, page: Path, folder: Path, address: str) -> None:
        self.text = page.read_text("utf-8")
        self.folder = folder
        self.environment = {
            **os.environ,
            "PENSTOCK_URL": address,
            "PYTHONPATH": os.pathsep.join([str(folder), *sys.path]),
        }
        for name, source in FILE.findall(self.text):
            (folder / name).write_text(source, "utf-8")

    def start_worker(self, runners: int) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-m", "penstock", "worker", "tasks:app", "-c", str(runners)]
        return subprocess.Popen(words, cwd=self.folder, env=self.environment, start_new_session=True)

    def run(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=scaled(60),
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def shown(self, command: str) -> str:
        """What the page shows behind a command, up to the next one."""
        _, _, rest = self.text.partition(f"$ {command}\n")
        return re.split(r"^(?:```|\$ )", rest, maxsplit=1, flags=re.MULTILINE)[0]


def kill(worker: subprocess.Popen[bytes]) -> None:
    """Kill a worker and its processes, as `kill -9 $(pgrep …)` does."""
    if worker.poll() is None:
        found = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(worker.pid)], capture_output=True, text=True, check=False
        )
        for pid in [worker.pid, *map(int, found.stdout.split())]:
            os.kill(pid, signal.SIGKILL)
        worker.wait()


def test_the_program_of_the_readme_prints_what_is_shown(address: str, tmp_path: Path):
    reader = Reader(ROOT / "README.md", tmp_path, address)
    worker = reader.start_worker(10)
    try:
        printed = reader.run("tasks.py")
    finally:
        kill(worker)
    assert is_as_shown(printed, re.sub(r":[0-9A-Z]{26} ", ":… ", reader.shown("python tasks.py")))


def test_the_first_ten_minutes(address: str, tmp_path: Path):
    reader = Reader(ROOT / "docs" / "quickstart.md", tmp_path, address)
    workers = [reader.start_worker(10)]
    try:
        printed = reader.run("order.py").splitlines()
        assert printed[-1] == reader.shown("python order.py").splitlines()[-1]
        assert printed[0].startswith("JobProgress(fraction=")
        assert reader.run("many.py") == reader.shown("python many.py")
        kill(workers[0])
        table, shown = reader.run("-m", "penstock", "queue", "ls"), reader.shown("penstock queue ls")
        assert table.splitlines()[0].split() == shown.splitlines()[0].split()
        operating = Reader(ROOT / "docs" / "howto" / "operate.md", tmp_path, address).shown("penstock queue ls")
        assert table.splitlines()[0].split() == operating.splitlines()[0].split()
        workers.append(reader.start_worker(50))
        with Penstock(address) as app:
            deadline = Deadline(60)
            while app.queue("mail").count().completed <= 101:
                assert not deadline.passed(), app.queue("mail").count()
                time.sleep(0.1)
            counts = app.queue("mail").count()
            assert (counts.dead, counts.failed) == (0, 0)
        assert "1 passed" in reader.run("-m", "pytest", "-q", "test_tasks.py")
    finally:
        for worker in workers:
            kill(worker)


def test_the_readme_is_short_and_its_links_are_absolute():
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(text.split()) < 900
    assert not re.search(r"\]\((?!https://)", text)
