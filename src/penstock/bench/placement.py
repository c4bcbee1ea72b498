"""The CPU on which each part runs.

A round trip on one CPU takes a tenth of the time of one between two. So figures from different placements cannot be
compared, and neither can figures from a placement that the kernel changes.

    same    server, workers and client on one CPU: CPU seconds repeat well; nothing runs in parallel
    split   server on one CPU, workers and client on another: round trips are slow, as over a network
    free    wherever the kernel puts them
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeAlias

from penstock.errors import ConfigurationError
from penstock.testing.server import ServerInUse

Pin: TypeAlias = Literal["same", "split", "free"]


@contextlib.contextmanager
def placed(pin: Pin, server: ServerInUse) -> Iterator[None]:
    """Pin the server and this process with all its children. Afterwards both may run anywhere again."""
    if pin == "free":
        yield
        return
    server_cpu, our_cpu = _cpus(pin)
    if server.pid is None:
        raise ConfigurationError(
            f"--pin {pin}: only a server that this command started can be pinned; leave out --url and $PENSTOCK_URL, "
            "or start both with taskset and leave out --pin"
        )
    before = os.sched_getaffinity(0)
    try:
        _move(server.pid, {server_cpu})
        os.sched_setaffinity(0, {our_cpu})
        yield
    finally:
        os.sched_setaffinity(0, before)
        with contextlib.suppress(ProcessLookupError):
            _move(server.pid, before)


def _cpus(pin: Pin) -> tuple[int, int]:
    """The CPU of the server, and that of the others."""
    if sys.platform != "linux":
        raise ConfigurationError(f"--pin {pin}: only Linux can pin processes; leave out --pin")
    cpus = sorted(os.sched_getaffinity(0))
    if pin == "split" and len(cpus) < 2:
        raise ConfigurationError("--pin split: there is one CPU only; use --pin same")
    return cpus[0], cpus[0] if pin == "same" else cpus[1]


def _move(pid: int, cpus: set[int]) -> None:
    """Pin all threads of a process."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), cpus)
