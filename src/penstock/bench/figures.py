"""Figures with their ratios and targets, and the statistics behind them. Pure functions."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Bound: TypeAlias = Literal["at most", "at least"]


@dataclass(frozen=True, slots=True)
class Target:
    """A target for a figure's value or for its ratio (`of`). Only a target for a ratio suits other machines."""

    bound: Bound
    limit: float
    of: Literal["value", "ratio"] = "value"


@dataclass(frozen=True, slots=True)
class Ratio:
    """A multiple of `to`, which was measured in the same run: `1.3` times `a trivial EVALSHA`."""

    value: float
    to: str


@dataclass(frozen=True, slots=True)
class Figure:
    """One number: the median of several measurements, with the `lowest` and the `highest` of them."""

    name: str
    value: float
    unit: str
    ratio: Ratio | None = None
    target: Target | None = None
    lowest: float | None = None
    highest: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without a target."""
        if self.target is None:
            return None
        found = self.value if self.target.of == "value" else self.ratio.value if self.ratio else None
        if found is None:
            return None
        return found <= self.target.limit if self.target.bound == "at most" else found >= self.target.limit

    def as_json(self) -> dict[str, Any]:
        target = self.target
        return {
            "name": self.name,
            "value": _short(self.value),
            "unit": self.unit,
            "lowest": _short(self.lowest),
            "highest": _short(self.highest),
            "ratio": _short(self.ratio.value) if self.ratio else None,
            "ratio_to": self.ratio.to if self.ratio else None,
            "target": {"of": target.of, "bound": target.bound, "limit": target.limit} if target else None,
            "met": self.met,
        }


def figure(
    name: str,
    samples: float | Sequence[float],
    unit: str,
    *,
    ratio: Ratio | None = None,
    target: Target | None = None,
) -> Figure:
    """A figure from one measurement, or from the median of several."""
    if isinstance(samples, int | float):
        return Figure(name, float(samples), unit, ratio, target)
    return Figure(name, statistics.median(samples), unit, ratio, target, min(samples), max(samples))


def at_most(limit: float | None, of: Literal["value", "ratio"] = "value") -> Target | None:
    """A target; None if this placement has no limit."""
    return None if limit is None else Target("at most", limit, of)


def at_least(limit: float | None, of: Literal["value", "ratio"] = "value") -> Target | None:
    return None if limit is None else Target("at least", limit, of)


def percentile(samples: Iterable[float], share: float) -> float:
    """The smallest sample that is at least as large as `share` (0 to 1) of all samples."""
    ordered = sorted(samples)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


def _short(number: float | None) -> float | None:
    """Round to four digits, because the fifth is noise."""
    return None if number is None else float(f"{number:.4g}")
