"""The processes that count logs: starts them, restarts those that die, and ends them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import IO

import msgspec

from penstock.cli.logs.child import CANNOT_WORK, INCOMPLETE, STOP, WIDTH, SenderReport, Work, is_stopped
from penstock.errors import PenstockError
from penstock.worker.parent_pipe import ParentPipe
from penstock.worker.processes import describe_exit

DEATHS = 5
"""A process that dies more often than this, without work in between, is not restarted."""


class CountingProcess:
    """One process. `role`: "send" or "count". `work`, `progress` and `errors` are its stdin, stdout and stderr."""

    def __init__(self, role: str, work: IO[bytes], progress: IO[bytes], errors: IO[bytes]) -> None:
        self.role = role
        self.fault = ""
        """The files that the sender could not send."""
        self.result = SenderReport()
        self.ended = False
        self.deaths = 0
        self._work = work
        self._progress = progress
        self._errors = errors
        self._in_a_row, self._done = 0, -1
        self._start()

    def _start(self) -> None:
        """Start the process without the user's settings. It ends at the latest when this process ends."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
        environment["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))
        os.ftruncate(self._errors.fileno(), 0)
        self._parent_pipe = ParentPipe()
        with self._parent_pipe:
            self._process = subprocess.Popen(
                (sys.executable, "-P", "-m", "penstock.cli.logs.child", self.role),
                env={**environment, **self._parent_pipe.environment},
                pass_fds=(self._parent_pipe.child_end,),
                stdin=self._work,
                stdout=self._progress,
                stderr=self._errors,
                start_new_session=True,
            )

    @property
    def bytes_sent(self) -> int:
        """The sender's progress, as it writes it to stdout."""
        return int(os.pread(self._progress.fileno(), WIDTH, 0) or 0)

    def stop(self) -> None:
        """Let a sender that follows logs send the rest, and end."""
        if not is_stopped(self._work.fileno()):
            os.pwrite(self._work.fileno(), STOP, os.fstat(self._work.fileno()).st_size)

    def restart_if_dead(self, done: int) -> None:
        """Restart the process if it died. `done`: a number that grows with the work of all processes.

        Raises PenstockError if a restart would not help.
        """
        if self.ended or (code := self._process.poll()) is None:
            return
        self._parent_pipe.close()
        self.ended = code in {0, INCOMPLETE}
        if code == INCOMPLETE:
            self.fault = self._last_line()
        elif code == 0 and self.role == "send":
            self.result = msgspec.json.decode(os.pread(self._progress.fileno(), 1 << 26, WIDTH), type=SenderReport)
            self.fault = self.result.fault
        elif code == CANNOT_WORK:
            raise PenstockError(self._last_line())
        elif not self.ended:
            self._died(code, done)

    def _died(self, code: int, done: int) -> None:
        self.deaths += 1
        self._in_a_row = self._in_a_row + 1 if done == self._done else 1
        self._done = done
        if self._in_a_row > DEATHS:
            raise PenstockError(
                f"the process for {self.role!r} {describe_exit(code)} {DEATHS} times without work in between: "
                f"{self._last_line() or 'it printed nothing'}"
            )
        self._start()

    def _last_line(self) -> str:
        # Not `seek`: the process shares the file position, and writes there.
        errors = os.pread(self._errors.fileno(), 1 << 20, 0).decode(errors="replace")
        return errors.strip().rpartition("\n")[2]

    def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
            self._process.wait()
            self._parent_pipe.close()


@contextlib.contextmanager
def counting_processes(work: Work, receivers: int) -> Iterator[list[CountingProcess]]:
    """The sender, then the counters. All of them end with the block."""
    with contextlib.ExitStack() as files:
        stdin, *outputs = (files.enter_context(tempfile.TemporaryFile()) for _ in range(2 * receivers + 3))
        stdin.write(msgspec.json.encode(work))
        stdin.flush()
        processes: list[CountingProcess] = []
        try:
            for role in ["send", *["count"] * receivers]:
                processes.append(CountingProcess(role, stdin, outputs.pop(), outputs.pop()))
            yield processes
        finally:
            for process in processes:
                process.kill()
