"""On which CPU each part runs. A round trip on one CPU takes a tenth of one between two, so that figures of different
placements, or of one that the kernel changes as it likes, do not compare.

    same    server, workers and client on one CPU: CPU seconds repeat well; nothing runs at once
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
    """Pin the server and this process, and so all that it starts; afterwards both may run anywhere again."""
    if pin == "free":
        yield
        return
    server_cpu, our_cpu = _cpus(pin)
    if server.pid is None:
        raise ConfigurationError(
            f"--pin {pin}: the server at that address is not ours to pin; leave out --url and $PENSTOCK_URL, "
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
    """For the server and for the rest."""
    if sys.platform != "linux":
        raise ConfigurationError(f"--pin {pin}: only Linux can pin processes; leave out --pin")
    cpus = sorted(os.sched_getaffinity(0))
    if pin == "split" and len(cpus) < 2:
        raise ConfigurationError("--pin split: there is one CPU only; use --pin same")
    return cpus[0], cpus[0] if pin == "same" else cpus[1]


def _move(pid: int, cpus: set[int]) -> None:
    """All threads of the process."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), cpus)
