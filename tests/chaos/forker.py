"""Starts processes quickly: it forks them from one interpreter that has imported everything.

A storm kills two workers a second, and each would need half a second of CPU just for its imports. A fork runs the real
command, `penstock worker …`, or a producer. When the test has ended, for whatever reason, its processes are killed.

    with Forker(folder, lease=2.0) as forker:
        pid = forker.start_worker(address, "-c", "4")
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


class Forker:
    """The test's side.

    log      the file with everything that its processes wrote to stderr
    history  the folder in which they record what happened
    """

    def __init__(self, folder: Path, *, lease: float) -> None:
        self.log = folder / "log"
        self.history = folder / "history"
        variables = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
        variables |= {
            "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
            "STORM_HISTORY": str(self.history),
            "STORM_LEASE": str(lease),
        }
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.forker"],
                env=variables,
                cwd=ROOT,
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )

    def start_worker(self, address: str, *words: str, app: str = "app", **options: Any) -> int:
        """Run `penstock worker tests.chaos.recording_worker:<app> …`. Returns its process id.

        `options` are other defaults for its WorkerSettings.
        """
        command = ["worker", f"tests.chaos.recording_worker:{app}", *words]
        return self._fork({"url": address, "command": command, "options": options})

    def start_producer(self, address: str, **arguments: Any) -> int:
        """Run `producer.produce` with these arguments. Returns its process id."""
        return self._fork({"url": address, "produce": arguments})

    def _fork(self, request: dict[str, Any]) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, self.log.read_text()
        return int(answer)

    def close(self) -> None:
        self._process.communicate()

    def __enter__(self) -> Forker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_running(pid: int) -> bool:
    """Whether a process with this id exists. The forker reaps those that have ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def child_pids(pid: int) -> list[int]:
    """The process ids of a supervisor's worker processes."""
    listed = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout
    return [int(child) for child in listed.split()]


# --- in the interpreter that forks ---


def main() -> None:
    _import_everything()
    alive: set[int] = set()
    # A signal that arrives just before a blocking read would be handled only after it, so signals write to a pipe.
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
            request = os.read(0, 65536)  # a single request: the next one is sent after this one is answered
            if not request:
                break
            pid = os.fork()
            if not pid:
                _run_fork(json.loads(request))
            alive.add(pid)
            print(pid, flush=True)
    for pid in alive:
        os.kill(pid, signal.SIGKILL)


def _import_everything() -> None:
    for name in ("valkey.connection", "valkey.asyncio.connection", "penstock.cli.worker", "tests.chaos.producer"):
        import_module(name)


def _run_fork(request: dict[str, Any]) -> None:
    """Run in the fork; never returns."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.environ["PENSTOCK_URL"] = request["url"]
    code = 1
    try:
        if "command" in request:
            code = _run_worker(request["command"], request["options"])
        else:
            code = _run_producer(request["produce"])
    finally:
        sys.stderr.flush()
        os._exit(code)


def _run_worker(command: list[str], options: dict[str, Any]) -> int:
    if options:
        worker: Any = import_module("penstock.cli.worker")
        worker.WorkerSettings = partial(worker.WorkerSettings, **options)
    sys.argv = ["penstock", *command]  # a supervisor starts its worker processes with these words
    penstock: Callable[[list[str]], int] = import_module("penstock.cli").main
    return penstock(command)


def _run_producer(arguments: dict[str, Any]) -> int:
    import_module("tests.chaos.producer").produce(**arguments)
    return 0


if __name__ == "__main__":
    main()
