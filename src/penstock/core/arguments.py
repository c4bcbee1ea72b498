"""Checks of the arguments that users pass: numbers, durations and names, each with one error that names the fix."""

from __future__ import annotations

from typing import Any

LONGEST_WAIT = 366 * 86400.0
"""Seconds. A program that would wait for longer passes None."""


def check_seconds(what: str, name: str, value: Any, least: float, most: float, rule: str) -> None:
    """Raise ValueError unless `value` is a number of seconds from `least` to `most`.

    what, name  the function and its argument, for the message
    rule        what the argument may be, for the message
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ValueError(f"{what}({name}={shown(value)}): {rule}")


def check_wait(what: str, wait: Any) -> None:
    """Raise ValueError unless `wait` is a number of seconds, or None for a wait without a limit."""
    if wait is not None:
        check_seconds(what, "wait", wait, 0, LONGEST_WAIT, "seconds from 0, or None for ever")


def check_whole(what: str, name: str, value: Any, least: int, most: int, rule: str) -> None:
    """Raise ValueError unless `value` is a whole number from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{what}({name}={shown(value)}): {rule}")


def check_callback(what: str, name: str, value: Any) -> None:
    """Raise ValueError unless `value` is a function or None."""
    if value is not None and not callable(value):
        raise ValueError(f"{what}({name}={shown(value)}): a function, or None")


def shown(value: Any) -> str:
    """A value for an error message, in at most some sixty characters."""
    try:
        text = repr(value)
    except ValueError:  # Python prints no whole number of more than some thousand digits
        text = f"a whole number of {value.bit_length():,} bits"
    return text if len(text) <= 60 else f"{text[:60]}…"
