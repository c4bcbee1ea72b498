"""Makes sure that the standard streams are open and can print any text.

A program may be started with a closed stream, as by `penstock worker >&-` in a shell. The next file or socket that it
opens would then get the number of that stream, and everything that is printed would go there.
"""

from __future__ import annotations

import io
import os
import sys

_STREAMS = (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w"))


def open_closed_streams() -> None:
    """Call it before the program opens a file that it keeps. Does nothing if all three streams are open."""
    for name, number, mode in _STREAMS:
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            stream = open(number, mode, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115 - kept open
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


def print_any_text() -> None:
    """Have stdout and stderr print a character that their encoding lacks as an escape, instead of raising an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
