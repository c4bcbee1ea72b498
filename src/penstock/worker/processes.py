"""Questions to the operating system about another process: can it run, and how did it end?"""

from __future__ import annotations

import signal
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
