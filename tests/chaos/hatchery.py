"""Processes that begin at once: forks of one interpreter that has imported everything.

A storm kills two workers a second; each would take half a second of CPU only to import. What a fork runs is the real
command, `penstock worker …`, or a producer. When the test is gone, however it went, its processes are killed.

    with Hatchery(history=folder, lease=2.0) as hatchery:
        pid = hatchery.worker(address, "-c", "4")
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


class Hatchery:
    """The test's side. `log`: the file that has everything its processes said."""

    def __init__(self, folder: Path, *, lease: float) -> None:
        self.log = folder / "log"
        self.history = folder / "history"
        ours = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
        ours |= {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "STORM_HISTORY": str(self.history), "STORM_LEASE": str(lease)}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.hatchery"],
                env=ours, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
            )  # fmt: skip

    def worker(self, address: str, *words: str, app: str = "app", **options: Any) -> int:
        """`penstock worker tests.chaos.notes:<app> …`; its pid. `options`: other defaults for WorkerSettings."""
        command = ["worker", f"tests.chaos.notes:{app}", *words]
        return self._hatch({"url": address, "command": command, "options": options})

    def producer(self, address: str, **order: Any) -> int:
        return self._hatch({"url": address, "produce": order})

    def _hatch(self, order: dict[str, Any]) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, self.log.read_text()
        return int(answer)

    def close(self) -> None:
        self._process.communicate()

    def __enter__(self) -> Hatchery:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def runs(pid: int) -> bool:
    """Is there a process of this number? The hatchery takes those that ended away."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def children(pid: int) -> list[int]:
    """Of a supervisor."""
    said = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout
    return [int(child) for child in said.split()]


# --- the interpreter's side ---


def main() -> None:
    _warm_up()
    alive: set[int] = set()
    # A signal that comes just before a blocking read would be noticed after it; hence the pipe.
    wake, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([0, wake], [], [])
        if wake in ready:
            os.read(wake, 4096)
            alive -= {pid for pid in alive if os.waitpid(pid, os.WNOHANG)[0]}
        if 0 in ready:
            order = os.read(0, 65536)  # one at a time: the next is sent when this one is answered
            if not order:
                break
            pid = os.fork()
            if not pid:
                _hatched(json.loads(order))
            alive.add(pid)
            print(pid, flush=True)
    for pid in alive:
        os.kill(pid, signal.SIGKILL)


def _warm_up() -> None:
    for name in (
        "valkey.connection", "valkey.asyncio.connection", "penstock.cli.worker",
        "tests.chaos.producer",
    ):  # fmt: skip
        import_module(name)


def _hatched(order: dict[str, Any]) -> None:
    """In the fork; never returns."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    silence = os.open(os.devnull, os.O_RDWR)
    os.dup2(silence, 0)
    os.dup2(silence, 1)
    os.environ["PENSTOCK_URL"] = order["url"]
    code = 1
    try:
        code = _work(order["command"], order["options"]) if "command" in order else _produce(order["produce"])
    finally:
        sys.stderr.flush()
        os._exit(code)


def _work(command: list[str], options: dict[str, Any]) -> int:
    if options:
        worker: Any = import_module("penstock.cli.worker")
        worker.WorkerSettings = partial(worker.WorkerSettings, **options)
    sys.argv = ["penstock", *command]  # a supervisor reads there what its children are to do
    penstock: Callable[[list[str]], int] = import_module("penstock.cli").main
    return penstock(command)


def _produce(order: dict[str, Any]) -> int:
    import_module("tests.chaos.producer").produce(**order)
    return 0


if __name__ == "__main__":
    main()
