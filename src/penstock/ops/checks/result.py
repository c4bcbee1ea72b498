"""The result of a check of the doctor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Level: TypeAlias = Literal["ok", "warn", "fail"]
"""`fail`: the server refuses work, or will lose jobs in normal operation, at a restart or when it is full. `warn`: it
works, but a crash can lose the last jobs, or an operator should take a look."""

Verdict: TypeAlias = tuple[Level, str, str]
"""The level, the finding, and the advice ("" if there is nothing to do)."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One verdict of the doctor.

    `advice` says what to do if the level is not `ok`; `server` names the server if there are several.
    """

    topic: str
    level: Level
    message: str
    advice: str = ""
    server: str = ""
