"""Worker processes of an app, each with what it starts in a process group of its own, which a test kills or freezes."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

from tests.speed import scaled

Group = subprocess.Popen[bytes]


@contextlib.contextmanager
def workers() -> Iterator[list[Group]]:
    """The list of the workers that a test starts. All are ended."""
    started: list[Group] = []
    try:
        yield started
    finally:
        stop(started)


def start(app: str, *words: str, **environment: str) -> Group:
    """Start `penstock worker` with these words."""
    return subprocess.Popen(
        [sys.executable, "-m", "penstock", "worker", app, *words],
        env=os.environ | environment,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def stop(groups: list[Group]) -> None:
    """Stop workers gracefully, and kill those that do not end."""
    for one in groups:
        one.terminate()
    for one in groups:
        try:
            one.wait(scaled(10))
        except subprocess.TimeoutExpired:
            kill(one)
    groups.clear()


def kill(group: Group) -> None:
    os.killpg(group.pid, signal.SIGKILL)
    group.wait()


def freeze(group: Group) -> None:
    os.killpg(group.pid, signal.SIGSTOP)


def thaw(group: Group) -> None:
    os.killpg(group.pid, signal.SIGCONT)
