"""The state of the wait for other jobs, as `flow.lua` stores it."""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final

from penstock.jobs.constants import OPEN

_WAIT: Final = Struct(">HI I I I I B")


@dataclass(frozen=True, slots=True)
class WaitState:
    """The wait of a job: how many predecessors it has, how many have not ended, and how many are dead letters.

    number  of the wait, which the edges that lead to it have as well
    """

    total: int
    left: int
    dead: int
    is_open: bool
    number: int = 0

    @classmethod
    def read(cls, packed: bytes) -> WaitState:
        high, low, total, left, dead, _, flags = _WAIT.unpack_from(packed)
        return cls(total, left, dead, bool(flags & OPEN), high << 32 | low)
