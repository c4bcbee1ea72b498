"""The usage of some work: wall time, and the CPU seconds of client, server and workers as the kernel counts them.

CPU seconds are repeatable on a busy machine; wall time is what a user experiences.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from operator import add, sub
from typing import Any

SENT = ("evalsha", "eval", "script|load", "ssubscribe", "sunsubscribe")
"""Commands that the driver sends and no script calls. The server counts the commands of scripts, too.
Only these show how many it received."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Seconds by the clock, and CPU seconds. The difference of two readings is the usage of the work in
    between; usages of several pieces of work can be added."""

    seconds: float
    client: float
    server: float
    workers: float = 0.0

    def __add__(self, more: Usage) -> Usage:
        return Usage(*map(add, astuple(self), astuple(more)))

    def __sub__(self, earlier: Usage) -> Usage:
        return Usage(*map(sub, astuple(self), astuple(earlier)))


def read_usage(client: Any, workers: Sequence[int]) -> Usage:
    """The usage so far. `client`: a raw client; `workers`: process ids. One round trip."""
    cpu = client.info("cpu")
    server = cpu["used_cpu_user"] + cpu["used_cpu_sys"]
    return Usage(time.perf_counter(), time.process_time(), server, sum(map(cpu_seconds, workers)))


def cpu_seconds(pid: int) -> float:
    """CPU seconds of a running process so far, including all its threads."""
    if sys.platform == "linux":
        return time.clock_gettime((~pid << 3) | 2)  # how the kernel derives the clock id of a process
    output = subprocess.run(["ps", "-o", "time=", "-p", str(pid)], capture_output=True, text=True, check=True).stdout
    seconds = 0.0
    for part in output.strip().replace("-", ":").split(":"):
        seconds = seconds * 60 + float(part)
    return seconds


def commands_sent(client: Any) -> int:
    """The number of commands that the server received from Penstock so far. One round trip."""
    stats = client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in SENT)


def cpu_of_command(*words: str) -> float:
    """Run a program; returns its CPU seconds. No other child process of this one may end in the meantime."""
    import resource  # not available on Windows

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(words, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
