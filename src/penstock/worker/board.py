"""What a worker process shows its supervisor: the jobs that run in it now, and its incarnations.

Memory that both have mapped, so that it can be read after the process died, whatever killed it. The worker writes, the
supervisor reads.

    header        queues, runners
    a queue       incarnation, monotonic time of its last sign of life, whether it holds jobs
    a runner      1 + number of the queue, or 0 while it runs nothing; length of the token; the token
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from collections import defaultdict
from dataclasses import dataclass

_HEADER = struct.Struct("II")
_QUEUE = struct.Struct("26sd?")
_RUNNER = struct.Struct("BB254s")
"""An id has at most 200 bytes, and its claim's number 12 digits."""


@dataclass(frozen=True, slots=True)
class Shown:
    """One queue as the worker showed it last."""

    me: str
    renewed: float
    """By time.monotonic(), which all processes of a machine share."""
    holds: bool


class Board:
    """Writing costs less than a microsecond a job, and no system call."""

    def __init__(self, fd: int) -> None:
        """Map what `make` made, in this process or its parent."""
        self.fd = fd
        self._memory = mmap.mmap(fd, 0)
        self.queues, self._runners = _HEADER.unpack_from(self._memory)
        self._first = _HEADER.size + self.queues * _QUEUE.size
        self._free = list(range(self._runners))
        self._places: dict[bytes, int] = {}

    @classmethod
    def make(cls, queues: int, runners: int) -> Board:
        with tempfile.TemporaryFile() as file:
            file.truncate(_HEADER.size + queues * _QUEUE.size + runners * _RUNNER.size)
            file.seek(0)
            file.write(_HEADER.pack(queues, runners))
            file.flush()
            return cls(os.dup(file.fileno()))

    def close(self) -> None:
        self._memory.close()
        os.close(self.fd)

    # --- the worker ---

    def show(self, queue: int, shown: Shown) -> None:
        at = _HEADER.size + queue * _QUEUE.size
        _QUEUE.pack_into(self._memory, at, shown.me.encode(), shown.renewed, shown.holds)

    def start(self, queue: int, token: bytes) -> None:
        """This claim runs in this process now."""
        if not self._free:
            return  # more than its runners are busy only while tasks that lost their lease still end
        place = self._places[token] = self._free.pop()
        at = self._first + place * _RUNNER.size
        # Its queue comes last: whoever dies in between has not begun to run it.
        self._memory[at + 2 : at + 2 + len(token)] = token
        self._memory[at + 1] = len(token)
        self._memory[at] = queue + 1

    def end(self, token: bytes) -> None:
        place = self._places.pop(token, None)
        if place is not None:
            self._memory[self._first + place * _RUNNER.size] = 0
            self._free.append(place)

    # --- the supervisor ---

    def shown(self) -> list[Shown]:
        """For each queue; `me` is "" before the worker's first turn there."""
        found = []
        for queue in range(self.queues):
            me, renewed, holds = _QUEUE.unpack_from(self._memory, _HEADER.size + queue * _QUEUE.size)
            found.append(Shown(me.rstrip(b"\0").decode(errors="replace"), renewed, holds))
        return found

    def running(self) -> dict[int, list[bytes]]:
        """By queue, the tokens of what runs."""
        found = defaultdict(list)
        for place in range(self._runners):
            queue, length, token = _RUNNER.unpack_from(self._memory, self._first + place * _RUNNER.size)
            if queue:
                found[queue - 1].append(token[:length])
        return found
