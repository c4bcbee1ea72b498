"""Web access logs in the Common and the Combined Log Format: one line read, or many counted.

    192.0.2.7 - - [02/Mar/2026:10:05:03 +0000] "GET /docs/ HTTP/1.1" 200 5120 "https://example.org/" "Mozilla/5.0"

The Common one ends with the size, and to the size a line must be well formed; what follows may be anything. Lines are
bytes: what was sent as a request may be any garbage.
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
"""Bytes of a line; servers cut a request at 8 KiB or so."""

HOSTS = 65_536
"""Hosts whose country is remembered: some 18 MB."""

# --- what a line looks like ---
#
# The time is in proportion to the line, whatever is in it: no user's name goes past a bare quote, so that a request
# begins at one place only, and a request is possessive. The lookahead stands first in its loop: before 3.11.5 a
# possessive loop does not give back what its body took before it failed.

_HOST = rb"[!-~]{1,255}"
# Mostly a hyphen. A name may hold spaces and brackets; a quote is written as \", an empty name as "".
_USER = rb'(?:- |(?:"" )?[^"\n]*?(?:\\"[^"\n]*?)*?)'
_DATE = rb"\d\d/[A-Za-z]{3}/\d{4}"
_TIME = rb":(?:[01]\d|2[0-3]):[0-5]\d:[0-6]\d [+-](?:[01]\d|2[0-3])[0-5]\d"
# The request may hold anything, quotes too: it ends at the first quote that a status and a size follow.
_REQUEST = rb'[^"\n]*+(?:(?!" \d{3} (?:\d{1,18}|-)(?:[ \r\n]|\Z))"[^"\n]*+)*+'

_ONE = re.compile(
    rb'(%b) \S+ %b\[(%b)%b\] "(%b)" (\d{3}) (\d{1,18}|-)[^\n]*\Z' % (_HOST, _USER, _DATE, _TIME, _REQUEST)
)


def _many(stamp: bytes) -> re.Pattern[bytes]:
    """Finds host and stamp of each line, two empty texts for one that is malformed. All lines end in LF."""
    return re.compile(rb'(?:(%b) \S+ %b\[%b\] "%b"[^\n]*+|[^\n]*+)\n' % (_HOST, _USER, stamp, _REQUEST))


_WITH_DATE = _many(rb"(%b)%b" % (_DATE, _TIME))
_WITH_TIME = _many(rb"(%b%b)" % (_DATE, _TIME))

_MONTHS = (b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec")


class Request(NamedTuple):
    """One line. `client` is an address or a host name, `day` the local date as it was written, as 2026-03-02."""

    client: str
    day: str
    method: str
    path: str
    status: int
    size: int


def parse(line: bytes) -> Request | None:
    """The request of a line, with or without its end; None for a malformed one. What is no UTF-8 becomes U+FFFD."""
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
    """A function of an aggregate: counts the requests in a batch of lines. It is pure and never raises.

    Its tables: for "day" `days` (2015-05-17), for "country" `countries` (a code or a bucket), for both also `by_day`
    ("2015-05-17 US"), for "host" `hosts` (as written). The day is the one in the line, with `utc` the one in UTC.
    `countries` tells the country of a host as written, and should not raise; the default is `registration()`,
    `mmdb(path)` asks a database of your own.

    Each line, with or without its end, is counted once in each table, exactly if `parse` can read it, or is in
    `rejected`. With `utc` a day before year 1 or after 9999 is none.

    Raises ConfigurationError for nothing or a thing unknown to count by, and where iptocc is needed and not there.
    """
    if not by or set(by) - set(get_args(By)):
        raise ConfigurationError(f"requests are counted by {', '.join(get_args(By))}, not by {', '.join(by) or 'none'}")
    wanted = [name for name, parts in _TABLES.items() if parts <= set(by)]
    find, day_of = (_WITH_TIME.findall, _day_in_utc) if utc else (_WITH_DATE.findall, _day)
    country_of = _remembered(countries or registration()) if "country" in by else None

    def count(lines: Sequence[bytes]) -> Tally:
        found: list[tuple[bytes, bytes]] = find(_text(lines))
        pairs, hosts = Counter[tuple[str, str]](), Counter[str]()
        bad = set()
        for request, times in Counter(found).items():
            host, stamp = request
            day = day_of(stamp)
            if day is None:
                bad.add(request)
                continue
            pairs[day, country_of(host) if country_of else ""] += times
            if "hosts" in wanted:
                hosts[host.decode()] += times
        tables = _tables(pairs) | {"hosts": hosts}
        places = enumerate(found) if bad else ()
        rejected = {place: _reason(lines[place]) for place, request in places if request in bad}
        return Tally({name: tables[name] for name in wanted}, rejected)

    return count


def _text(lines: Sequence[bytes]) -> bytes:
    """All lines, each with one line end. A line that cannot be right is an empty one there."""
    text = b"\n".join([*lines, b""])
    if text.count(b"\n") == len(lines) and max(map(len, lines), default=0) <= LONGEST:
        return text
    bare = [line.removesuffix(b"\n") for line in lines]
    return b"\n".join([*(b"" if len(line) > LONGEST or b"\n" in line else line for line in bare), b""])


def _tables(pairs: Counter[tuple[str, str]]) -> dict[str, Counter[str]]:
    days, countries = Counter[str](), Counter[str]()
    for (day, country), times in pairs.items():
        days[day] += times
        countries[country] += times
    by_day = Counter({f"{day} {country}": times for (day, country), times in pairs.items()})
    return {"days": days, "countries": countries, "by_day": by_day}


def _reason(line: bytes) -> str:
    line = line.removesuffix(b"\n")
    if len(line) > LONGEST:
        return f"longer than {LONGEST:,} bytes"
    if not line.strip():
        return "an empty line"
    return "no such date" if _ONE.match(line) else "not a line of an access log"


def _remembered(countries: Callable[[str], str]) -> Callable[[bytes], str]:
    return lru_cache(HOSTS)(lambda host: countries(host.decode()))


def _day_in_utc(stamp: bytes) -> str | None:
    return _day(stamp[:17] + stamp[20:])  # the seconds change no day


@lru_cache(16_384)
def _day(stamp: bytes) -> str | None:
    """Of `17/May/2015` that day, of `17/May/2015:22:05 -0400` the one in UTC, as 2015-05-18; None if there is none."""
    try:
        day, month, year = stamp[:11].split(b"/")
        number = date(int(year), _MONTHS.index(month) + 1, int(day)).toordinal()
        if len(stamp) > 11:
            east = int(stamp[18:21]) * 60 + int(stamp[18:19] + stamp[21:])
            number += (int(stamp[12:14]) * 60 + int(stamp[15:17]) - east) // 1440
        return date.fromordinal(number).isoformat()
    except ValueError:
        return None
