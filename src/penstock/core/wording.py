"""Formats durations and numbers for people. `ops/wording.py` has more."""

from __future__ import annotations

_AGES = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))


def age(seconds: float) -> str:
    """A duration: `0.4 s`, `12 s`, `3 min`, `5 h`, `2 d`."""
    for unit, name in _AGES:
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def exactly(seconds: float) -> str:
    """A duration that was set by a person, and is not rounded: `0.25 s`, `90 s`, `150 s`, `10 min`, `60 h`."""
    for unit, name in _AGES:
        if seconds >= 2 * unit and seconds % unit == 0:
            return f"{seconds / unit:,.0f} {name}"
    return f"{seconds:,.15g} s"


def many(number: int, noun: str, plural: str = "") -> str:
    """A number and what is counted: `1 job`, `1,234 jobs`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
