"""The processes that count logs: started, started again when they die, and ended."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import IO

import msgspec

from penstock.cli.logs.child import NOT_WHOLE, TOLD, Work
from penstock.errors import PenstockError
from penstock.worker.parent_pipe import ParentPipe
from penstock.worker.processes import describe_exit

DEATHS = 5
"""One that dies so often without any work done in between will do so again."""


class Child:
    """One process. `role`: "send" or "count". `work`, `told`, `said`: its stdin, stdout and stderr."""

    def __init__(self, role: str, work: IO[bytes], told: IO[bytes], said: IO[bytes]) -> None:
        self.role = role
        self.fault = ""
        """What could not be sent."""
        self.ended = False
        self.deaths = 0
        self._work = work
        self._told = told
        self._said = said
        self._in_a_row, self._done = 0, -1
        self._start()

    def _start(self) -> None:
        """It ends at the latest when we are gone. Away from the user's settings and modules, but with our modules."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
        environment["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))
        os.ftruncate(self._said.fileno(), 0)
        self._parent_pipe = ParentPipe()
        with self._parent_pipe:
            self._process = subprocess.Popen(
                (sys.executable, "-P", "-m", "penstock.cli.logs.child", self.role),
                env={**environment, **self._parent_pipe.environment}, pass_fds=(self._parent_pipe.child_end,),
                stdin=self._work, stdout=self._told, stderr=self._said, start_new_session=True,
            )  # fmt: skip

    @property
    def told(self) -> int:
        """How far it is, as it keeps it on stdout."""
        return int(os.pread(self._told.fileno(), 32, 0) or 0)

    def look(self, done: int) -> None:
        """Start it again if it died. `done`: a number that grows with the work that all of them do.

        Raises PenstockError where that is of no use.
        """
        if self.ended or (code := self._process.poll()) is None:
            return
        self._parent_pipe.close()
        self.ended = code in {0, NOT_WHOLE}
        if code == NOT_WHOLE:
            self.fault = self._last_line()
        elif code == TOLD:
            raise PenstockError(self._last_line())
        elif not self.ended:
            self._died(code, done)

    def _died(self, code: int, done: int) -> None:
        self.deaths += 1
        self._in_a_row = self._in_a_row + 1 if done == self._done else 1
        self._done = done
        if self._in_a_row > DEATHS:
            raise PenstockError(
                f"a process that was to {self.role} {describe_exit(code)} {DEATHS} times and did nothing in between; "
                f"it said: {self._last_line() or 'nothing'}"
            )
        self._start()

    def _last_line(self) -> str:
        # `seek` would move the place where it writes: they share it with us.
        said = os.pread(self._said.fileno(), 1 << 20, 0).decode(errors="replace")
        return said.strip().rpartition("\n")[2]

    def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
            self._process.wait()
            self._parent_pipe.close()


@contextlib.contextmanager
def crew(work: Work, receivers: int) -> Iterator[list[Child]]:
    """One that sends, then so many that count. None is left when this ends."""
    with contextlib.ExitStack() as files:
        order, *others = (files.enter_context(tempfile.TemporaryFile()) for _ in range(2 * receivers + 3))
        order.write(msgspec.json.encode(work))
        order.flush()
        children: list[Child] = []
        try:
            for role in ["send", *["count"] * receivers]:
                children.append(Child(role, order, others.pop(), others.pop()))
            yield children
        finally:
            for child in children:
                child.kill()
