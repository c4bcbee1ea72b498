"""What the system tells of another process: how it ended, whether it can run."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import NamedTuple


class State(NamedTuple):
    """One look at a process."""

    letter: str
    """As `ps` shows it: T and t are stopped, Z and X are dead."""
    ticks: int
    """Of CPU used so far."""

    @property
    def can_run(self) -> bool:
        return self.letter not in "TtZX"


def look_at(pid: int) -> State | None:
    """None: there is no such process, or this is not Linux, which alone tells."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    letter, *rest = stat.rpartition(") ")[2].split()
    return State(letter, int(rest[10]) + int(rest[11]))


def ending(code: int) -> str:
    """An exit code, as `subprocess` gives it, in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
