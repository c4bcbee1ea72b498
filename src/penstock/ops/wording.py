"""Formats numbers and names for people."""

from __future__ import annotations

from penstock.core.wording import age, exactly, many

__all__ = ["age", "ago", "exactly", "many", "milliseconds", "size", "terminal_safe"]

_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")


def ago(at: float, now: float) -> str:
    """How long before `now` the time `at` was: `3 min ago`; `0.0 s ago` if it is later. Both are seconds since 1970."""
    return f"{age(max(0.0, now - at))} ago"


def lost(lease: float) -> str:
    """A worker whose lease is not above 0. Exactly 0: its process is gone, which this machine sees before it ends."""
    return f"lost for {age(-lease)}" if lease else "its process is gone"


def milliseconds(seconds: float) -> str:
    """A short duration: `0.05 ms`, `12 ms`, `1.5 s`."""
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1000:.0f} ms" if seconds >= 0.01 else f"{round(seconds * 1000, 2):g} ms"


def size(octets: float) -> str:
    """A number of bytes: `512 B`, `1.5 MiB`. Units are powers of 1024, as in the server."""
    unit = 0
    while octets >= 1000 and unit < len(_SIZES) - 1:
        octets, unit = octets / 1024, unit + 1
    return f"{octets:.{0 if octets >= 100 or not unit else 1}f} {_SIZES[unit]}"


def terminal_safe(text: str) -> str:
    """The text in one line, with everything escaped that a terminal interprets: colours, cursor, text direction."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
