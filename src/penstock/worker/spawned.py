"""Runs a job in a process of its own that is started afresh, where the fork server cannot be used.

It is only a fallback, because each run has to start Python and import the task's module first. The process is not
forked, so nothing depends on what survives a fork.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from penstock.worker import forkserver
from penstock.worker.run_channel import RunChannel

_PROGRAM = """\
import sys; sys.path.insert(0, {root!r}); from penstock.worker.forkserver import run_spawned
run_spawned({channel}, {worker})"""


class SpawnedProcess(RunChannel):
    """A process that runs one job."""

    def __init__(self, process: asyncio.subprocess.Process, channel: socket.socket) -> None:
        super().__init__(channel)
        self._process = process
        self._watch = asyncio.create_task(self._await_end())

    @classmethod
    async def start(cls) -> SpawnedProcess:
        """Raises OSError if there is no memory or no descriptor for another process."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                passed = fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD_CLOEXEC, 3)
            try:
                root = str(Path(forkserver.__file__).parents[2])
                program = _PROGRAM.format(root=root, channel=passed, worker=os.getpid())
                flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    *flags,
                    "-c",
                    program,
                    pass_fds=[passed],
                    stdin=asyncio.subprocess.DEVNULL,
                    start_new_session=True,
                )
            finally:
                os.close(passed)
        except BaseException:
            ours.close()
            raise
        ours.setblocking(False)
        return cls(process, ours)

    async def _await_end(self) -> None:
        code = await self._process.wait()
        if not self.ended.done():
            self.ended.set_result(code)

    async def kill(self) -> None:
        """Kill the process and everything that it started, and wait until it is dead."""
        try:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._watch
        finally:
            self.close()
