"""Ages and durations as people type them: 90s, 15m, 12h, 7d, 2w."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias

from cyclopts import Parameter

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_AGE = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")


def read_age(_: Any, tokens: Sequence[Any]) -> float:
    """Seconds, from a number and its unit. Raises ValueError for anything else."""
    text = tokens[0].value
    found = _AGE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r}: use a number and a unit, as in 90s, 15m, 12h, 7d or 2w")
    return float(found[1]) * _SECONDS[found[2]]


Age: TypeAlias = Annotated[float, Parameter(converter=read_age)]
"""Seconds."""
