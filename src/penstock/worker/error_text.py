"""Errors of jobs as text: one line for the reason, and the traceback."""

from __future__ import annotations

import os
import traceback

_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
"""The folder of the library. Tasks of its own demo are in it, too: a traceback with no other frame is kept whole."""

_MAX_TRACEBACK = 8_000
"""Characters of a traceback to keep, counted from its end, because the line that raised the error matters most."""


def encodable(text: str) -> str:
    """The text with lone surrogates escaped, because UTF-8 cannot encode them."""
    return text.encode("utf-8", "backslashreplace").decode()


def describe(error: BaseException) -> str:
    """One line that says what happened."""
    name = class_name(error)
    try:
        if isinstance(error, SystemExit):
            return f"the task called sys.exit({error.code!r}); raise an exception instead"
        text = str(error)
    except BaseException:
        text = "(its text cannot be read)"
    return f"{name}: {encodable(text)}" if text else name


def cause_of(error: BaseException) -> BaseException | None:
    """The error that led to this one, as a traceback shows it: that of `raise … from`, or the one that was handled."""
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def with_cause(text: str, error: BaseException) -> str:
    """The text, followed by the error that led to this one."""
    cause = cause_of(error)
    return text if cause is None else f"{text} ({describe(cause)})"


def class_name(error: BaseException) -> str:
    """The name of the error's class. A metaclass may hide it from `__name__`."""
    return str(type.__dict__["__name__"].__get__(type(error)))


def traceback_of(error: BaseException) -> str:
    """The end of the traceback, without the frames of the worker that called the task. Empty if the error cannot be
    formatted.
    """
    try:
        own = error.__traceback__
        while own is not None and own.tb_frame.f_code.co_filename.startswith(_PACKAGE):
            own = own.tb_next
        return "".join(traceback.format_exception(type(error), error, own or error.__traceback__))[-_MAX_TRACEBACK:]
    except BaseException:
        return ""
