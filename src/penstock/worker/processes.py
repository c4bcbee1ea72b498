"""Questions to the operating system: how much memory does this process use, can another one run, how did it end?"""

from __future__ import annotations

import os
import resource
import signal
import sys
from pathlib import Path
from typing import NamedTuple


class ProcessState(NamedTuple):
    """The state of a process at one moment."""

    letter: str
    """As `ps` shows it: T and t are stopped, Z and X are dead."""
    cpu_ticks: int
    """Clock ticks of CPU time used so far."""

    @property
    def can_run(self) -> bool:
        return self.letter not in "TtZX"


def process_state(pid: int) -> ProcessState | None:
    """Read /proc. Returns None if there is no such process, and on systems other than Linux."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    letter, *rest = stat.rpartition(") ")[2].split()
    return ProcessState(letter, int(rest[10]) + int(rest[11]))


def describe_exit(code: int) -> str:
    """An exit code, as `subprocess` returns it, in words: "ended with exit code 3", "was killed by SIGKILL"."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def resident_bytes() -> int:
    """The memory of this process that is in RAM. On systems other than Linux: the most that it ever had."""
    if found := resident_kib() * 1024:
        return found
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def resident_kib() -> int:
    """KiB of this process that are in RAM, from /proc; 0 on systems other than Linux."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") // 1024
    except OSError:
        return 0
