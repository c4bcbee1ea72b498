"""Shortens the long names in the text of an error."""

from __future__ import annotations

import re

_LONG = 600
"""A message of at most this many characters is printed whole."""

_QUOTED = re.compile(r"""(['"])((?:(?!\1)[^\\]|\\.){250})(?:(?!\1)[^\\]|\\.){60,}\1""", re.DOTALL)
_UNBROKEN = re.compile(r"(\S{250})\S{60,}")
"""A word too long to print whole. The path of a file is usually shorter."""


def with_short_names(message: str) -> str:
    """The message. If it is long, its long quoted texts and long words are cut."""
    if len(message) <= _LONG:
        return message
    return _UNBROKEN.sub(r"\1…", _QUOTED.sub(r"\1\2…\1", message))
