"""What work used: wall time, and the CPU seconds of client, server and workers, as the kernel counts them.

CPU seconds are the figure that repeats on a busy machine; wall time is what a user waits for.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from operator import add, sub
from typing import Any

SENT = ("evalsha", "eval", "script|load", "blmpop")
"""Commands that our clients send and our scripts cannot call: the server counts those of scripts, too."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Seconds by the clock and of CPU. Subtract two readings, add up pieces of work."""

    seconds: float
    client: float
    server: float
    workers: float = 0.0

    def __add__(self, more: Usage) -> Usage:
        return Usage(*map(add, astuple(self), astuple(more)))

    def __sub__(self, earlier: Usage) -> Usage:
        return Usage(*map(sub, astuple(self), astuple(earlier)))


def read_usage(client: Any, workers: Sequence[int]) -> Usage:
    """Now; `client` is one of the library's, `workers` are process ids. One round trip."""
    told = client.info("cpu")
    server = told["used_cpu_user"] + told["used_cpu_sys"]
    return Usage(time.perf_counter(), time.process_time(), server, sum(map(cpu_seconds, workers)))


def cpu_seconds(pid: int) -> float:
    """What a running process has used so far, all its threads."""
    if sys.platform == "linux":
        return time.clock_gettime((~pid << 3) | 2)  # the kernel's own making of a process's clock id
    told = subprocess.run(["ps", "-o", "time=", "-p", str(pid)], capture_output=True, text=True, check=True).stdout
    seconds = 0.0
    for part in told.strip().replace("-", ":").split(":"):
        seconds = seconds * 60 + float(part)
    return seconds


def commands_sent(client: Any) -> int:
    """How many commands the server got from Penstock so far. One round trip."""
    told = client.info("commandstats")
    return sum(told.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in SENT)


def cpu_of_command(*words: str) -> float:
    """CPU seconds of a program from its start to its end. No other child may end meanwhile."""
    import resource  # here, because Windows has none

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(words, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
