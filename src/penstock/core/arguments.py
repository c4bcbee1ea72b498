"""Checks of the arguments that users pass: numbers, durations and names, each with one error that names the fix.

A wrong number raises ValueError, even if its type is wrong: `lease="10"` is as wrong as `lease=-10`.
ConfigurationError, for a mistake in what a program or its settings declare, and BadName are subclasses of ValueError.
So `except ValueError` catches all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from penstock.errors import ConfigurationError

P = ParamSpec("P")
R = TypeVar("R")

LONGEST_WAIT = 366 * 86400.0
"""Seconds. A program that would wait for longer passes None."""


def is_number(value: Any, least: float, most: float) -> bool:
    """Whether `value` is a number from `least` to `most`. True, False and NaN are not numbers here."""
    return not isinstance(value, bool) and isinstance(value, int | float) and least <= value <= most


def is_whole(value: Any, least: int, most: int) -> bool:
    """Whether `value` is a whole number from `least` to `most`. True and False are not numbers here."""
    return not isinstance(value, bool) and isinstance(value, int) and least <= value <= most


def is_text(value: Any, least: int, most: int) -> bool:
    """Whether `value` is a text of `least` to `most` bytes of UTF-8, which has no half of a character."""
    try:
        return isinstance(value, str) and least <= len(value.encode()) <= most
    except UnicodeEncodeError:
        return False


def utf8_size(what: str, text: str) -> int:
    """The bytes of a text in UTF-8. Raises ConfigurationError if it has half of a character, which UTF-8 lacks.

    what  the argument, for the message
    """
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise ConfigurationError(
            f"{what}={shown(text)}: half a character (a lone surrogate) at position {error.start} cannot be sent; "
            "decode the text with errors='replace' where it comes from"
        ) from None


def check_number(what: str, name: str, value: Any, least: float, most: float, rule: str) -> None:
    """Raise ValueError unless `value` is a number from `least` to `most`, such as seconds.

    what, name  the function and its argument, for the message
    rule        what the argument may be, for the message
    """
    if not is_number(value, least, most):
        raise ValueError(f"{what}({name}={shown(value)}): {rule}")


def check_wait(what: str, wait: Any) -> None:
    """Raise ValueError unless `wait` is a number of seconds, or None for a wait without a limit."""
    if wait is not None:
        check_number(what, "wait", wait, 0, LONGEST_WAIT, "seconds from 0, or None for ever")


def check_whole(what: str, name: str, value: Any, least: int, most: int, rule: str) -> None:
    """Raise ValueError unless `value` is a whole number from `least` to `most`."""
    if not is_whole(value, least, most):
        raise ValueError(f"{what}({name}={shown(value)}): {rule}")


def check_many(what: str, name: str, value: Any, *, letters: bool = False) -> None:
    """Raise ValueError unless `value` is iterable. A text is refused, unless `letters` accepts it letter by letter."""
    if (isinstance(value, str | bytes) and not letters) or not hasattr(value, "__iter__"):
        raise ValueError(f"{what}({name}={shown(value)}): several values, for example in a list")


def check_flag(what: str, name: str, value: Any) -> None:
    """Raise ValueError unless `value` is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{what}({name}={shown(value)}): True or False")


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


def names_options(method: Callable[P, R]) -> Callable[P, R]:
    """Have a method raise ConfigurationError for an option that it does not have: the error names the right one."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except TypeError:
            from penstock.core.other_words import unknown_option_of

            if error := unknown_option_of(method, kwargs):
                raise error from None
            raise

    return call
