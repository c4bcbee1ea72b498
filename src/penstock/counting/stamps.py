"""The kinds of times in logs, and the day and hour that a time of each kind means.

    clf    02/Mar/2026:10:05:03 +0000     Common Log Format
    iso    2026-03-02T10:05:03.5+01:00    ISO 8601, with `T` or a blank, with or without a fraction
    w3c    2026-03-02 10:05:03            two columns, always UTC
    epoch  1772445903.512                 seconds since 1970, or milli-, micro- or nanoseconds

A second may be 60. Days are those of the proleptic Gregorian calendar, from year 1 to 9999.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, date, datetime
from functools import lru_cache
from typing import Literal

from penstock.counting.request import Precision

Kind = Literal["clf", "iso", "w3c", "epoch"]

_CLF_DATE = rb"\d\d/[A-Za-z]{3}/\d{4}"
_ISO_DATE = rb"\d{4}-(?:0\d|1[0-2])-[0-3]\d"
_HOUR, _MINUTES = rb"(?:[01]\d|2[0-3])", rb":[0-5]\d:[0-6]\d"
_CLF_ZONE = rb" [+-](?:[01]\d|2[0-3])[0-5]\d"
ISO_ZONE = rb"(?:Z|[+-](?:[01]\d|2[0-3]):?[0-5]\d)"
_FRACTION = rb"(?:[.,]\d{1,9})?+"

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def stamp_pattern(kind: Kind, precision: Precision = "second", separator: bytes = b" ") -> bytes:
    """A pattern for a time, with one group that contains as much of the time as is needed. `separator`: between the
    columns of a W3C time."""
    if kind == "epoch":
        return rb"(\d{9,19})(?:\.\d{1,9})?+"
    if kind == "clf":
        parts = (_CLF_DATE, b":" + _HOUR, _MINUTES + _CLF_ZONE)
    elif kind == "iso":
        parts = (_ISO_DATE, b"[T ]" + _HOUR, _MINUTES + _FRACTION + ISO_ZONE)
    else:
        parts = (_ISO_DATE, separator + _HOUR, _MINUTES)
    needed = ("day", "hour", "second").index(precision) + 1
    return b"(%b)%b" % (b"".join(parts[:needed]), b"".join(parts[needed:]))


def moment_of(kind: Kind, *, utc: bool) -> Callable[[bytes], str | None]:
    """A function that returns the group of `stamp_pattern` as `2026-03-02 10:05:03`, or as much of that as the group
    contains; None if there is no such day.

    utc: convert to UTC, which needs a group with the precision "second".
    """
    moments = {
        "clf": _clf_in_utc if utc else _clf,
        "iso": _iso_in_utc if utc else _iso,
        "w3c": _iso,
        "epoch": _epoch,
    }
    return moments[kind]


@lru_cache(16_384)
def _clf(stamp: bytes) -> str | None:
    number = _clf_day(stamp)
    return None if number is None else f"{date.fromordinal(number)} {stamp[12:20].decode()}".rstrip()


@lru_cache(16_384)
def _clf_in_utc(stamp: bytes) -> str | None:
    return _shifted(_clf_day(stamp), stamp[12:20].decode(), stamp[21:].decode())


def _clf_day(stamp: bytes) -> int | None:
    day, month, year = stamp[:11].decode().split("/")
    return _ordinal(int(year), _MONTHS.index(month) + 1, int(day)) if month in _MONTHS else None


@lru_cache(16_384)
def _iso(stamp: bytes) -> str | None:
    number = _iso_day(stamp)
    return None if number is None else f"{date.fromordinal(number)} {stamp[11:19].decode()}".rstrip()


@lru_cache(16_384)
def _iso_in_utc(stamp: bytes) -> str | None:
    zone = stamp[-6:] if b":" in stamp[-4:] else stamp[-5:]
    return _shifted(_iso_day(stamp), stamp[11:19].decode(), "+0000" if stamp.endswith(b"Z") else zone.decode())


def _iso_day(stamp: bytes) -> int | None:
    return _ordinal(int(stamp[:4]), int(stamp[5:7]), int(stamp[8:10]))


def _ordinal(year: int, month: int, day: int) -> int | None:
    try:
        return date(year, month, day).toordinal()
    except ValueError:
        return None


def _shifted(number: int | None, time: str, zone: str) -> str | None:
    """Day and time in UTC, or None if that day does not exist. Zones are whole minutes, so seconds never change."""
    if number is None:
        return None
    sign, hours, minutes = zone[0], zone[1:3], zone[-2:]
    east = (int(hours) * 60 + int(minutes)) * (-1 if sign == "-" else 1)
    days, minute = divmod(int(time[:2]) * 60 + int(time[3:5]) - east, 1440)
    if not 1 <= number + days <= date.max.toordinal():
        return None
    return f"{date.fromordinal(number + days)} {minute // 60:02}:{minute % 60:02}:{time[6:8]}"


@lru_cache(16_384)
def _epoch(stamp: bytes) -> str | None:
    digits = {10: 0, 13: 3, 16: 6, 19: 9}.get(len(stamp), 0)
    seconds = int(stamp) // 10**digits
    if seconds >= 253_402_300_800:  # the year 10000
        return None
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}"


_ORDER: tuple[Kind, ...] = ("iso", "epoch", "clf", "w3c")
_KINDS: tuple[tuple[Kind, re.Pattern[bytes]], ...] = tuple(
    (kind, re.compile(stamp_pattern(kind) + rb"\Z")) for kind in _ORDER
)
_FRACTION_OF = re.compile(rb"[.,]\d+")


def any_stamp(text: bytes) -> bytes:
    """A time of any kind without its fraction, or nothing if it is not a time."""
    for _, pattern in _KINDS:
        if found := pattern.match(text):
            return _FRACTION_OF.sub(b"", found[1])
    return b""


def moment_of_any(*, utc: bool) -> Callable[[bytes], str | None]:
    """As `moment_of`, for the results of `any_stamp`."""

    def moment(stamp: bytes) -> str | None:
        return next((moment_of(kind, utc=utc)(stamp) for kind, pattern in _KINDS if pattern.match(stamp)), None)

    return moment
