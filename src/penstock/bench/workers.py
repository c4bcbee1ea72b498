"""Worker processes as a user starts them, `penstock worker`, held for as long as something is measured."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import IO

from penstock.errors import PenstockError
from penstock.worker.parent_pipe import ParentPipe

STARTING = 60.0
"""Seconds all of them have to start: twenty take twenty times half a second of CPU."""

STOPPING = 10.0


class Workers:
    """Some processes and what they said."""

    def __init__(self, said: IO[bytes], folder: str) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self._pipes: list[ParentPipe] = []
        self._said = said

    def add(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start one more. It stops at the latest when we are gone."""
        with ParentPipe() as pipe:
            process = subprocess.Popen(
                command, env={**environment, **pipe.environment}, pass_fds=(pipe.child_end,), cwd=self._folder,
                stdin=subprocess.DEVNULL, stdout=self._said, stderr=self._said, start_new_session=True,
            )  # fmt: skip
        self._processes.append(process)
        self._pipes.append(pipe)

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def check(self) -> None:
        """Raises PenstockError when one has ended."""
        for process in self._processes:
            if process.poll() is not None:
                raise PenstockError(f"a worker ended with code {process.returncode}, it said: {self._last_lines()}")

    def await_start(self) -> None:
        """Until each has reached the server and loaded its tasks."""
        deadline = time.monotonic() + STARTING
        while self._all_said().count('"event": "started"') < len(self._processes):
            self.check()
            if time.monotonic() > deadline:
                raise PenstockError(f"the workers do not start in {STARTING:.0f} s; they said: {self._last_lines()}")
            time.sleep(0.02)

    def stop(self) -> None:
        """Gracefully, all at once."""
        self.check()
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOPPING)

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        for pipe in self._pipes:
            pipe.close()

    def _all_said(self) -> str:
        # `seek` would move the place where the workers write: they share it with us.
        return os.pread(self._said.fileno(), 1 << 20, 0).decode(errors="replace")

    def _last_lines(self) -> str:
        return " ".join(self._all_said().splitlines()[-3:]) or "nothing"


@contextlib.contextmanager
def workers(queue: str, processes: int, concurrency: int, environment: dict[str, str]) -> Iterator[Workers]:
    """So many processes that serve a queue, from when all are ready. They end with this, or with this process."""
    command = (
        sys.executable, "-m", "penstock", "worker", "penstock.bench.child", "--queues", queue,
        "-c", str(concurrency), "--log-format", "json", "--log-level", "info",
    )  # fmt: skip
    # Away from the user's settings, which would make others of them; but with our modules.
    given = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    given["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, sys.path))
    with tempfile.TemporaryDirectory() as folder, open(os.path.join(folder, "said"), "w+b") as said:
        started = Workers(said, folder)
        try:
            for _ in range(processes):
                started.add(command, {**given, **environment})
            started.await_start()
            yield started
            started.stop()
        finally:
            started.kill()
