"""Worker processes as a user starts them, `penstock worker`, for the duration of a measurement."""

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
"""Seconds within which all workers must start. Each takes half a second of CPU, so twenty take ten."""

STOPPING = 10.0


class Workers:
    """Worker processes and their output."""

    def __init__(self, output: IO[bytes], folder: str) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self._pipes: list[ParentPipe] = []
        self._output = output

    def add(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start one more. It stops at the latest when this process ends."""
        with ParentPipe() as pipe:
            process = subprocess.Popen(
                command,
                env={**environment, **pipe.environment},
                pass_fds=(pipe.child_end,),
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                start_new_session=True,
            )
        self._processes.append(process)
        self._pipes.append(pipe)

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def check(self) -> None:
        """Raises PenstockError if one of them has ended."""
        for process in self._processes:
            if process.poll() is not None:
                raise PenstockError(f"a worker ended with code {process.returncode}, it printed: {self._last_lines()}")

    def await_start(self) -> None:
        """Wait until each has reached the server and loaded its tasks."""
        deadline = time.monotonic() + STARTING
        while self._output_text().count('"event": "started"') < len(self._processes):
            self.check()
            if time.monotonic() > deadline:
                raise PenstockError(
                    f"the workers did not start within {STARTING:.0f} s; they printed: {self._last_lines()}"
                )
            time.sleep(0.02)

    def stop(self) -> None:
        """Stop all of them gracefully."""
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

    def _output_text(self) -> str:
        # Not `seek`: the workers share the file position, and write there.
        return os.pread(self._output.fileno(), 1 << 20, 0).decode(errors="replace")

    def _last_lines(self) -> str:
        return " ".join(self._output_text().splitlines()[-3:]) or "nothing"


@contextlib.contextmanager
def workers(queue: str, processes: int, concurrency: int, environment: dict[str, str]) -> Iterator[Workers]:
    """Start processes that serve a queue, and wait until all are ready. They are stopped when the block ends."""
    command = (
        sys.executable,
        "-m",
        "penstock",
        "worker",
        "penstock.bench.child",
        "--queues",
        queue,
        "-c",
        str(concurrency),
        "--processes",
        "0",
        "--log-format",
        "json",
        "--log-level",
        "info",
    )
    # Without the user's settings, which would change the workers, but with this process's modules.
    given = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    given["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, sys.path))
    with tempfile.TemporaryDirectory() as folder, open(os.path.join(folder, "output"), "w+b") as output:
        started = Workers(output, folder)
        try:
            for _ in range(processes):
                started.add(command, {**given, **environment})
            started.await_start()
            yield started
            started.stop()
        finally:
            started.kill()
