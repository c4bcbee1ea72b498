"""Starts examples that are web servers."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.servers import Server

PROGRAM = Path(__file__).parent.parent / "examples" / "search_box" / "server.py"


@contextlib.contextmanager
def search_box(server: Server) -> Iterator[str]:
    """The address of the page of the example `search_box`."""
    server.client.flushall()
    with web_example(server, PROGRAM) as address:
        yield address


@contextlib.contextmanager
def web_example(server: Server, program: Path, *words: str) -> Iterator[str]:
    """What the program prints first: the address of its page. `words`: its arguments."""
    process = subprocess.Popen(
        [sys.executable, str(program), *words],
        env={"PENSTOCK_URL": server.address, "PYTHONPATH": ":".join(sys.path), "PORT": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout
        address = process.stdout.readline().strip()
        assert address, process.stderr.read() if process.stderr else ""
        yield address
    finally:
        process.kill()
        process.communicate(timeout=30)
