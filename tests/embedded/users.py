"""Processes that use an embedded server, and how a test watches them."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import valkey

from penstock.embedded import client as embedded
from penstock.embedded import keeper
from penstock.embedded.client import Attachment, status
from tests.speed import Deadline

SOURCE = str(Path(embedded.__file__).parents[2])

USER = """
import json, sys
from pathlib import Path
from penstock.embedded.client import attach

held = None
for line in sys.stdin:
    if line == "attach\\n":
        try:
            held = attach(Path(sys.argv[1]))
            print(json.dumps({"pid": held.pid, "started": held.started}), flush=True)
        except Exception as error:
            print(json.dumps({"error": type(error).__name__, "text": str(error)}), flush=True)
    else:
        held.close()
"""


class User:
    """A process that attaches, or closes its attachment, when it is sent the word."""

    def __init__(self, home: Path, *wrapper: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            [*wrapper, sys.executable, "-c", USER, str(home)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": SOURCE} | environment,
        )

    def send(self, verb: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{verb}\n".encode())
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def attach(self) -> dict[str, Any]:
        self.send("attach")
        return self.answer()

    def end(self) -> None:
        self.process.kill()
        with contextlib.suppress(BrokenPipeError):
            self.process.communicate()


@contextlib.contextmanager
def client(attachment: Attachment) -> Iterator[Any]:
    server = valkey.Valkey.from_url(attachment.address, decode_responses=True)
    try:
        yield server
    finally:
        server.close()


def is_alive(pid: int) -> bool:
    return keeper.command_of(str(pid)) != ""


def eventually(what: Callable[[], bool], within: float = 30.0) -> bool:
    deadline = Deadline(within)
    while not what():
        if deadline.passed():
            return False
        time.sleep(0.02)
    return True


def processes(home: Path) -> list[int]:
    now = status(home)
    assert now is not None
    return [now.keeper, now.pid]


def in_own_mounts(setup: str) -> list[str]:
    """A command prefix that runs a program where only it sees the file systems that `setup` mounts."""
    inside = ["unshare", "--user", "--map-root-user", "--mount"] if os.geteuid() else ["unshare", "--mount"]
    try:
        probe = subprocess.run([*inside, "true"], capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("no unshare here")
    if probe.returncode:
        pytest.skip("mounting is not allowed here")
    return [*inside, "sh", "-c", f'{setup} && exec "$@"', "sh"]
