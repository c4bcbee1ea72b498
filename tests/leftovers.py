"""Nothing that a test process started or wrote to the temporary folder outlives it, however it ends.

Each test process has a mark in its environment, which every process that it starts inherits, and a temporary folder of
its own. A sweeper, a small process that waits for the end of the test process, kills the processes that still have
the mark and deletes the folder: also after Ctrl-C, SIGKILL, or pytest's `faulthandler_timeout`.

Processes are found in /proc, where a server that has changed its title shows no environment: it is known by its working
directory. Without a /proc (macOS) only the folder is deleted.

    python leftovers.py PARENT FOLDER GRACE < PIPE      a sweeper; the pipe ends with the test process
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

MARK = "TESTED_BY"
"""Name of the environment variable. Not PENSTOCK_…: those are settings, which tests remove."""

DONE = b"done"
"""Sent to the sweeper by a test process that ends normally."""


@contextlib.contextmanager
def swept(grace: float = 5.0) -> Iterator[None]:
    """Give a test session its mark, temporary folder and sweeper. Raises AssertionError if processes are left at the
    end.

    grace   seconds that they have to end by themselves, as an embedded server does after its last user
    """
    folder = tempfile.mkdtemp(prefix="pst-")  # short: paths of unix sockets begin with it
    before = {name: os.environ.get(name) for name in (MARK, "TMPDIR")}
    os.environ |= {MARK: folder, "TMPDIR": folder}
    tempfile.tempdir = folder
    # In a session of its own: Ctrl-C in a terminal goes to all others.
    sweeper = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, str(os.getpid()), folder, str(grace)],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield
        left = left_behind(folder, grace, besides=(os.getpid(), sweeper.pid))
        end(left)
        assert not left, f"the tests left processes behind: {left}"
    finally:
        tempfile.tempdir = None
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
        _remove_folder_of_multiprocessing(folder)
        shutil.rmtree(folder, ignore_errors=True)
        sweeper.communicate(DONE)


def _remove_folder_of_multiprocessing(folder: str) -> None:
    """Otherwise `multiprocessing` prints a traceback at the exit of this process, because its folder is gone."""
    if (util := sys.modules.get("multiprocessing.util")) is None:
        return
    for finalizer in list(util._finalizer_registry.values()):
        if finalizer._callback is util._remove_temp_dir and finalizer._args[1].startswith(folder):
            finalizer()


def left_behind(mark: str, grace: float, besides: tuple[int, ...]) -> dict[int, str]:
    """Pid and command of each process with the mark that does not end within `grace` seconds."""
    deadline = time.monotonic() + grace
    while True:
        found = {pid: command for pid, command in marked(mark) if pid not in besides and not _serves_us(pid, command)}
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.02)


def marked(mark: str) -> Iterator[tuple[int, str]]:
    """Pid and command of each process that has the mark, or works in the folder of this name."""
    sign = f"{MARK}={mark}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            works_there = (entry / "cwd").readlink().is_relative_to(mark)
            if works_there or sign in (entry / "environ").read_bytes().split(b"\0"):
                yield int(entry.name), (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


def tree(pid: int) -> list[int]:
    """A process and all that it has started, itself first: what systemd finds in the control group of a service."""
    found = [pid]
    for one in found:
        with contextlib.suppress(OSError):
            found += map(int, Path(f"/proc/{one}/task/{one}/children").read_text().split())
    return found


def _serves_us(pid: int, command: str) -> bool:
    """The fork server and the resource tracker of `multiprocessing` end with the process that uses them."""
    if "multiprocessing" not in command:
        return False
    with contextlib.suppress(OSError):
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(after_name[1]) == os.getpid()
    return False


def end(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def sweep(parent: int, folder: str, grace: float) -> None:
    """Wait for the end of the parent. Unless it sent DONE, kill the processes that have its mark, and delete its
    folder."""
    while os.getppid() == parent:
        if select.select([0], [], [], 1.0)[0] and os.read(0, len(DONE)) == DONE:
            return
        time.sleep(0.02)
    end(left_behind(folder, grace, besides=(os.getpid(),)))
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sweep(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
