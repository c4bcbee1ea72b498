"""Memory that a worker process shares with its supervisor: the jobs that run now, and its incarnation in each queue.

The worker writes it. The supervisor reads it, even after the worker was killed. A pipe carries the
reports that must reach the supervisor at once.

    header        number of queues; number of runners; whether the process begins slowly; whether it is the sole trial
                  of its host; whether a job has ended here
    per queue     incarnation; monotonic time of the last renewal of its lease; whether it holds jobs
    per runner    1 + index of the queue, or 0 if the runner is free; length of the token; the token
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from collections import defaultdict
from dataclasses import dataclass
from typing import Final

VARIABLE: Final = "PENSTOCK_SHARED_STATUS"
"""The environment variable in which a worker process finds its SharedStatus: the descriptors of memory and pipe."""

RETIRING: Final = b"r"
"""Report: the process claims no more jobs and will end by itself. Its successor can be started."""

ASKED_TO_STOP: Final = b"x"
"""Report: an operator has asked this process to stop. It has no successor."""

SUSPECTS: Final = b"s"
"""Report: a suspect waits for its trial."""

SOLE: Final = b"o"
"""Report of a trial process: it ends, because the next suspect must be tried while no other trial runs on this host."""

_HEADER = struct.Struct("II???")
_QUEUE = struct.Struct("26sd?")
_RUNNER = struct.Struct("BB254s")
"""A token is 12 digits of the claim number and a job id of at most 200 bytes."""


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """A worker's state in one queue."""

    incarnation: str
    """Empty until the process has made its worker."""
    renewed_at: float
    """`time.monotonic()` of the last renewal of the lease. All processes of a machine share this clock."""
    holds_jobs: bool


class SharedStatus:
    """The shared memory of one worker process.

    The worker's writes to the memory need no system call and take less than a microsecond for each job.
    """

    def __init__(self, fd: int, pipe: int) -> None:
        """Map the file that `create` made, in this process or in the parent. `pipe`: this process's end."""
        self.fd = fd
        self.pipe = pipe
        self._memory = mmap.mmap(fd, 0)
        self.queues, self._runners, *marks = _HEADER.unpack_from(self._memory)
        self.begins_slowly, self.is_sole_trial, self._has_ended_a_job = marks
        self._first_runner = _HEADER.size + self.queues * _QUEUE.size
        self._free = list(range(self._runners))
        self._runner_of: dict[bytes, int] = {}

    @classmethod
    def create(
        cls, queues: int, runners: int, *, begins_slowly: bool = False, is_sole_trial: bool = False
    ) -> tuple[SharedStatus, int]:
        """Make the memory and the pipe. Returns the parent's side, and the child's end of the pipe.

        begins_slowly  the child adds its runners little by little (see `Runs`)
        is_sole_trial  the child is a trial process, and no other trial process runs meanwhile
        """
        import tempfile  # which a worker process does not need

        with tempfile.TemporaryFile() as file:
            file.truncate(_HEADER.size + queues * _QUEUE.size + runners * _RUNNER.size)
            file.seek(0)
            file.write(_HEADER.pack(queues, runners, begins_slowly, is_sole_trial, False))
            file.flush()
            ours, theirs = os.pipe()
            os.set_blocking(ours, False)
            os.set_blocking(theirs, False)
            return cls(os.dup(file.fileno()), ours), theirs

    @classmethod
    def from_environment(cls) -> SharedStatus | None:
        """The child's side; None in a process that was started without one. Removes the variable."""
        found = os.environ.pop(VARIABLE, None)
        return cls(*map(int, found.split(","))) if found else None

    def environment(self, child_end: int) -> dict[str, str]:
        """The environment with which the child finds its side."""
        return {VARIABLE: f"{self.fd},{child_end}"}

    def close(self) -> None:
        self._memory.close()
        os.close(self.fd)
        os.close(self.pipe)

    # --- called in the worker ---

    def update_queue(self, queue: int, status: QueueStatus) -> None:
        """Overwrite the status of the queue with this index."""
        at = _HEADER.size + queue * _QUEUE.size
        _QUEUE.pack_into(self._memory, at, status.incarnation.encode(), status.renewed_at, status.holds_jobs)

    def job_started(self, queue: int, token: bytes) -> None:
        """A claimed job of this queue now runs in this process."""
        if not self._free:
            # After a lost lease the worker starts new jobs while the cancelled ones are still ending here.
            return
        runner = self._runner_of[token] = self._free.pop()
        at = self._first_runner + runner * _RUNNER.size
        # The queue is written last. If the process is killed before that, the job does not count as started.
        self._memory[at + 2 : at + 2 + len(token)] = token
        self._memory[at + 1] = len(token)
        self._memory[at] = queue + 1

    def job_ended(self, token: bytes) -> None:
        """The job no longer runs here. Ignores a token whose start was not recorded."""
        runner = self._runner_of.pop(token, None)
        if runner is not None:
            self._memory[self._first_runner + runner * _RUNNER.size] = 0
            self._free.append(runner)

    def note_job_has_ended(self) -> None:
        """A job has ended here, in whatever way: this process is able to work."""
        if not self._has_ended_a_job:
            self._has_ended_a_job = True
            _HEADER.pack_into(self._memory, 0, self.queues, self._runners, self.begins_slowly, self.is_sole_trial, True)

    def report(self, what: bytes) -> None:
        """Send a report, such as RETIRING, to the supervisor."""
        # A full pipe holds thousands of reports that the supervisor has not read: one more would say nothing new.
        with contextlib.suppress(OSError):
            os.write(self.pipe, what)

    # --- called in the supervisor ---

    def read_reports(self) -> bytes:
        """The reports that have arrived since the last call."""
        try:
            return os.read(self.pipe, 4096)
        except OSError:
            return b""

    def has_ended_a_job(self) -> bool:
        return bool(_HEADER.unpack_from(self._memory)[4])

    def queue_statuses(self) -> list[QueueStatus]:
        """The status of each queue, in the worker's order of queues."""
        found = []
        for queue in range(self.queues):
            name, renewed_at, holds_jobs = _QUEUE.unpack_from(self._memory, _HEADER.size + queue * _QUEUE.size)
            found.append(QueueStatus(name.rstrip(b"\0").decode(errors="replace"), renewed_at, holds_jobs))
        return found

    def running_jobs(self) -> dict[int, list[bytes]]:
        """The tokens of the jobs that run, by the index of their queue."""
        found = defaultdict(list)
        for runner in range(self._runners):
            queue, length, token = _RUNNER.unpack_from(self._memory, self._first_runner + runner * _RUNNER.size)
            if queue:
                found[queue - 1].append(token[:length])
        return found
