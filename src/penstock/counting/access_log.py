"""Web access logs in the Common and the Combined Log Format: parse one line, or count many.

    192.0.2.7 - - [02/Mar/2026:10:05:03 +0000] "GET /docs/ HTTP/1.1" 200 5120 "https://example.org/" "Mozilla/5.0"

The Common format ends with the size. Up to there a line must be well formed; the rest may be anything. Lines are bytes,
because a request may be any garbage.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import date
from functools import lru_cache
from typing import Literal, NamedTuple, get_args

from penstock.counting.countries import registration
from penstock.counting.tally import Tally
from penstock.errors import ConfigurationError

By = Literal["day", "country", "host"]
_TABLES: dict[str, set[By]] = {
    "days": {"day"}, "countries": {"country"}, "by_day": {"day", "country"}, "hosts": {"host"},
}  # fmt: skip

LONGEST = 64 * 1024
"""Bytes of the longest line that is accepted; servers cut a request at about 8 KiB."""

MAX_HOSTS = 65_536
"""Hosts whose country is cached: about 18 MB."""

# --- what a line looks like ---
#
# Matching takes time in proportion to the length of the line, whatever is in it. The pattern of a user's name never
# matches a bare quote, so a request can begin in one place only, and the pattern of a request can be possessive. In its
# loop the lookahead comes first: when an iteration of a possessive loop fails, Python before 3.11.5 does not give back
# what that iteration had matched until then.

_HOST = rb"[!-~]{1,255}"
# Usually a hyphen. A name may contain spaces and brackets; a quote is written as \", an empty name as "".
_USER = rb'(?:- |(?:"" )?[^"\n]*?(?:\\"[^"\n]*?)*?)'
_DATE = rb"\d\d/[A-Za-z]{3}/\d{4}"
_TIME = rb":(?:[01]\d|2[0-3]):[0-5]\d:[0-6]\d [+-](?:[01]\d|2[0-3])[0-5]\d"
# A request may contain anything, even quotes. It ends at the first quote that is followed by a status and a size.
_REQUEST = rb'[^"\n]*+(?:(?!" \d{3} (?:\d{1,18}|-)(?:[ \r\n]|\Z))"[^"\n]*+)*+'

_ONE = re.compile(
    rb'(%b) \S+ %b\[(%b)%b\] "(%b)" (\d{3}) (\d{1,18}|-)[^\n]*\Z' % (_HOST, _USER, _DATE, _TIME, _REQUEST)
)


def _many(stamp: bytes) -> re.Pattern[bytes]:
    """A pattern whose `findall` returns host and stamp of each line of a text, or two empty strings for a malformed
    line. Each line of the text must end in LF."""
    return re.compile(rb'(?:(%b) \S+ %b\[%b\] "%b"[^\n]*+|[^\n]*+)\n' % (_HOST, _USER, stamp, _REQUEST))


_WITH_DATE = _many(rb"(%b)%b" % (_DATE, _TIME))
_WITH_TIME = _many(rb"(%b%b)" % (_DATE, _TIME))

_MONTHS = (b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec")


class Request(NamedTuple):
    """One line of a log. `client` is an address or a host name, `day` the local date in the line, such as
    2026-03-02."""

    client: str
    day: str
    method: str
    path: str
    status: int
    size: int


def parse(line: bytes) -> Request | None:
    """The request in a line, given with or without its line end; None if the line is malformed. Bytes that are not
    UTF-8 become U+FFFD."""
    line = line.removesuffix(b"\n")
    found = _ONE.match(line) if len(line) <= LONGEST else None
    day = _day(found[2]) if found else None
    if found is None or day is None:
        return None
    client, _, request, status, size = found.groups()
    method, _, rest = request.decode("utf-8", "replace").partition(" ")
    return Request(client.decode(), day, method, rest.partition(" ")[0], int(status), 0 if size == b"-" else int(size))


def requests_per(
    *by: By, utc: bool = False, countries: Callable[[str], str] | None = None
) -> Callable[[Sequence[bytes]], Tally]:
    """Make a function for an aggregate, which counts the requests in a batch of lines. The function is pure and never
    raises.

    by         "day" fills the table `days` (2015-05-17), "country" fills `countries` (a code or a bucket), and "host"
               fills `hosts` (as written). "day" and "country" together also fill `by_day` ("2015-05-17 US")
    utc        convert days to UTC; otherwise the day is the one in the line
    countries  returns the country of a host as written, and should not raise. Default: `registration()`; `mmdb(path)`
               uses your own database

    A line that `parse` can read is counted once in each table. Any other line is rejected; with `utc`, also a line
    whose day is before year 1 or after year 9999.

    Raises ConfigurationError if there is nothing to count by, for a word that is not in the list above, and if iptocc
    is needed and not installed.
    """
    if not by or set(by) - set(get_args(By)):
        raise ConfigurationError(f"requests are counted by {', '.join(get_args(By))}, not by {', '.join(by) or 'none'}")
    wanted = [name for name, parts in _TABLES.items() if parts <= set(by)]
    find, day_of = (_WITH_TIME.findall, _day_in_utc) if utc else (_WITH_DATE.findall, _day)
    country_of = _cached(countries or registration()) if "country" in by else None

    def count(lines: Sequence[bytes]) -> Tally:
        found: list[tuple[bytes, bytes]] = find(_text(lines))
        pairs, hosts = Counter[tuple[str, str]](), Counter[str]()
        malformed = set()
        for request, n in Counter(found).items():
            host, stamp = request
            day = day_of(stamp)
            if day is None:
                malformed.add(request)
                continue
            pairs[day, country_of(host) if country_of else ""] += n
            if "hosts" in wanted:
                hosts[host.decode()] += n
        tables = _tables(pairs) | {"hosts": hosts}
        indexes = enumerate(found) if malformed else ()
        rejected = {index: _reason(lines[index]) for index, request in indexes if request in malformed}
        return Tally({name: tables[name] for name in wanted}, rejected)

    return count


def _text(lines: Sequence[bytes]) -> bytes:
    """All lines joined, each with one LF at its end. A line that is too long or has an LF inside becomes empty, which
    is malformed."""
    text = b"\n".join([*lines, b""])
    if text.count(b"\n") == len(lines) and max(map(len, lines), default=0) <= LONGEST:
        return text
    bare = [line.removesuffix(b"\n") for line in lines]
    return b"\n".join([*(b"" if len(line) > LONGEST or b"\n" in line else line for line in bare), b""])


def _tables(pairs: Counter[tuple[str, str]]) -> dict[str, Counter[str]]:
    days, countries = Counter[str](), Counter[str]()
    for (day, country), n in pairs.items():
        days[day] += n
        countries[country] += n
    by_day = Counter({f"{day} {country}": n for (day, country), n in pairs.items()})
    return {"days": days, "countries": countries, "by_day": by_day}


def _reason(line: bytes) -> str:
    line = line.removesuffix(b"\n")
    if len(line) > LONGEST:
        return f"longer than {LONGEST:,} bytes"
    if not line.strip():
        return "an empty line"
    return "no such date" if _ONE.match(line) else "not a line of an access log"


def _cached(countries: Callable[[str], str]) -> Callable[[bytes], str]:
    return lru_cache(MAX_HOSTS)(lambda host: countries(host.decode()))


def _day_in_utc(stamp: bytes) -> str | None:
    return _day(stamp[:17] + stamp[20:])  # seconds never change the day


@lru_cache(16_384)
def _day(stamp: bytes) -> str | None:
    """The day of `17/May/2015` as 2015-05-17, and of `17/May/2015:22:05 -0400` the day in UTC, 2015-05-18. None if
    there is no such day."""
    try:
        day, month, year = stamp[:11].split(b"/")
        number = date(int(year), _MONTHS.index(month) + 1, int(day)).toordinal()
        if len(stamp) > 11:
            east = int(stamp[18:21]) * 60 + int(stamp[18:19] + stamp[21:])
            number += (int(stamp[12:14]) * 60 + int(stamp[15:17]) - east) // 1440
        return date.fromordinal(number).isoformat()
    except ValueError:
        return None
