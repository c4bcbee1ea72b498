"""The real logrotate rotates a log that is written all the time, for a simulated week: every line is received once.

`make test-logs` runs these tests, which need Debian's logrotate. `make test` skips them, because they take minutes.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import LineBatch, Penstock
from penstock.errors import FileDamaged, FilesError
from tests.conftest import Apps
from tests.speed import scaled

LOGROTATE = shutil.which("logrotate") or shutil.which("logrotate", path="/usr/sbin:/sbin")
ROOT = Path(__file__).parents[2]
DAYS = 7
SECONDS_PER_DAY = 1.5

pytestmark = pytest.mark.skipif("PENSTOCK_LOGROTATE" not in os.environ, reason="make test-logs runs these")

CREATE = {
    "create": "create",
    "compress": "create\n compress",
    "delaycompress": "create\n compress\n delaycompress",
    "dateext": "create\n compress\n dateext\n dateformat -%Y%m%d-%s",
}
COPYTRUNCATE = {"copytruncate": "copytruncate", "copytruncate compress": "copytruncate\n compress"}


@pytest.fixture
def place() -> str:
    return "valkey"


@pytest.fixture
def app(apps: Apps) -> Iterator[Penstock]:
    with apps.make() as made:
        yield made


class Rotation:
    """A live log in a folder of its own, its writer, and logrotate."""

    def __init__(self, folder: Path, options: str, *, reopens: bool, days: int = DAYS) -> None:
        self.logs = folder / "logs"
        self.logs.mkdir()
        self.log = self.logs / "access.log"
        self.log.touch()
        self._config, self._state = folder / "logrotate.conf", folder / "state"
        seconds = (days + 0.5) * SECONDS_PER_DAY
        command = [sys.executable, "-m", "tests.files.live_writer", str(self.log), str(seconds), "7"]
        self.writer = subprocess.Popen(
            [*command, "reopen" if reopens else "append"], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        after = f" postrotate\n  kill -HUP {self.writer.pid}\n endscript\n" if reopens else ""
        self._config.write_text(f"{self.log} {{\n rotate 20\n nomail\n {options}\n{after}}}\n")
        self._config.chmod(0o644)

    def run(self, days: int = DAYS) -> None:
        for _ in range(days):
            time.sleep(SECONDS_PER_DAY)
            assert LOGROTATE is not None, "logrotate is not installed: apt-get install logrotate"
            subprocess.run([LOGROTATE, "-f", "-s", self._state, self._config], check=True, timeout=60)

    def written(self) -> int:
        out, _ = self.writer.communicate(timeout=60)
        return int(out)


def received(app: Penstock, *, with_fragments: bool) -> Counter[int]:
    """The numbers of the lines. With copytruncate a log begins in the middle of a line after each rotation."""
    found = Counter[int]()
    for batch in _batches(app):
        for line in batch:
            matched = re.fullmatch(rb"line (\d{8}) of the live log, x*", line)
            if not matched and with_fragments:
                continue
            assert matched, f"{batch.file}: half a line: {line[:80]!r}"
            found[int(matched[1])] += 1
    return found


def _batches(app: Penstock) -> Iterator[LineBatch]:
    stream = app.files("access").receiver("r").batches(wait=0)
    while True:
        try:
            yield from stream
        except FileDamaged as error:
            damaged = str(error)
        else:
            return
        assert "changed since its upload began" in damaged  # it was truncated while it was read


def in_files(folder: Path) -> set[int]:
    """The lines that survive in any file."""
    numbers = set[int]()
    for path in folder.iterdir():
        text = subprocess.run(
            ["gzip", "-cd", path] if path.suffix == ".gz" else ["cat", path], capture_output=True, check=True
        ).stdout
        numbers |= {int(number) for number in re.findall(rb"^line (\d{8}) of the live log, x*$", text, re.MULTILINE)}
    return numbers


@pytest.mark.parametrize("how", [*CREATE, *COPYTRUNCATE])
def test_every_line_is_received_once_while_the_log_is_followed(app: Penstock, tmp_path: Path, how: str):
    channel = app.files("access")
    channel.open(["r"])
    rotation = Rotation(tmp_path, {**CREATE, **COPYTRUNCATE}[how], reopens=how in CREATE)
    stopped = threading.Event()
    sender = threading.Thread(
        target=channel.send_lines,
        args=(rotation.logs,),
        kwargs={"follow": lambda: not stopped.is_set(), "settle": 2, "final": True},
    )
    sender.start()
    rotation.run()
    lines = rotation.written()
    time.sleep(1)
    stopped.set()
    sender.join(scaled(60))
    check(app, rotation, lines, exact=how in CREATE)


@pytest.mark.parametrize("how", [*CREATE, *COPYTRUNCATE])
def test_every_line_is_received_once_if_cron_sends_the_folder(app: Penstock, tmp_path: Path, how: str):
    channel = app.files("access")
    channel.open(["r"])
    rotation = Rotation(tmp_path, {**CREATE, **COPYTRUNCATE}[how], reopens=how in CREATE)
    rotating = threading.Thread(target=rotation.run)
    rotating.start()
    while rotating.is_alive():
        with contextlib.suppress(FilesError):  # a log was truncated while it was read: the next run continues
            channel.send_lines(rotation.logs, settle=1)
        time.sleep(0.3)
    lines = rotation.written()
    channel.send_lines(rotation.logs, final=True)
    # If the log is packed at once, what the writer wrote to it after that is in no file.
    check(app, rotation, lines, exact=how in {"create", "delaycompress"})


def test_one_path_is_enough_to_follow_a_log(app: Penstock, tmp_path: Path):
    channel = app.files("access")
    channel.open(["r"])
    rotation = Rotation(tmp_path, CREATE["compress"], reopens=True, days=3)
    stopped = threading.Event()
    sender = threading.Thread(
        target=channel.send_lines,
        args=(rotation.log,),
        kwargs={"follow": lambda: not stopped.is_set(), "settle": 2, "final": True},
    )
    sender.start()
    rotation.run(3)
    lines = rotation.written()
    time.sleep(1)
    stopped.set()
    sender.join(scaled(60))
    check(app, rotation, lines, exact=True)


def check(app: Penstock, rotation: Rotation, lines: int, *, exact: bool) -> None:
    """`exact`: every line is received. Otherwise every line that survives in a file, since logrotate itself loses some:
    those that are written between the copy and the truncation."""
    found = received(app, with_fragments=not exact)
    app.files("access").delete()
    twice = sorted(number for number, times in found.items() if times > 1)
    assert twice == [], f"{len(twice)} of {lines} lines twice"
    survived = in_files(rotation.logs)
    assert survived <= found.keys(), f"{len(survived - found.keys())} lines of {len(survived)} in files are missing"
    missing = set(range(lines)) - found.keys()
    assert len(missing) <= (0 if exact else lines // 10), f"{len(missing)} of {lines} lines: {sorted(missing)[:20]}"
