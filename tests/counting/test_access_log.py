"""Lines of web access logs are parsed and counted: real ones, broken ones, any bytes."""

import gzip
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock import ConfigurationError
from penstock.counting.access_log import parse, requests_per
from penstock.counting.request import LONGEST, Request
from penstock.counting.tally import Tally
from tests.speed import scaled

LOGS = Path(__file__).parents[3] / "shared" / "data" / "logs"

GOOD = b'192.0.2.7 - - [02/Mar/2026:10:05:03 +0000] "GET /docs/ HTTP/1.1" 200 5120 "-" "Mozilla/5.0"'
NO_HOST = "its client is neither an address nor a host name"
BEFORE = b"02/Mar/2026:10:05:03 +0000"


def country(host: str) -> str:
    """A stand-in for a database of countries."""
    return "name" if host[0].isalpha() else "AB"[host.endswith("7")]


def long_line(size: int) -> bytes:
    return GOOD[:-1].ljust(size - 1, b"x") + b'"'


def at(stamp: bytes) -> bytes:
    return GOOD.replace(BEFORE, stamp)


def days(lines, *, utc=False):
    return requests_per("day", utc=utc)(lines).tables["days"]


@pytest.mark.parametrize(
    ("line", "request_"),
    [
        (GOOD, Request("192.0.2.7", "2026-03-02", "GET", "/docs/", 200, 5120)),
        (
            b'host.example.net - ann [31/Dec/1999:23:59:59 -0400] "POST /a HTTP/1.0" 304 -',
            Request("host.example.net", "1999-12-31", "POST", "/a", 304, 0),
        ),
        (
            rb'2001:db8::1 - - [01/Jan/2026:00:00:00 +0000] "\x16\x03\x01" 400 166 "-" "-"',
            Request("2001:db8::1", "2026-01-01", r"\x16\x03\x01", "", 400, 166),
        ),
        (b'h - - [01/Jan/2026:00:00:00 +0000] "" 408 0', Request("h", "2026-01-01", "", "", 408, 0)),
        (b'h - - [01/Jan/2026:00:00:00 +0000] "" 408 0\r\n', Request("h", "2026-01-01", "", "", 408, 0)),
        (b'h - - [01/Jan/2026:00:00:00 +0000] "-" 400 0 ' + b"x" * 9, Request("h", "2026-01-01", "-", "", 400, 0)),
        (
            b'h - a b [01/Jan/2026:00:00:00 +0000] "GET /"x" y" 200 3',
            Request("h", "2026-01-01", "GET", '/"x" y', 200, 3),
        ),
        (
            b'h - - [01/Jan/2026:00:00:00 +0000] "" 200 5" 404 7 "" 500 1',
            Request("h", "2026-01-01", '"', "200 5", 404, 7),
        ),
        (
            b'h - - [29/Feb/2024:23:59:60 +0000] "\xff\x00 \x80" 200 1',
            Request("h", "2024-02-29", "\ufffd\0", "\ufffd", 200, 1),
        ),
    ],
)
def test_a_line_is_read(line, request_):
    read = parse(line)
    assert read is not None
    assert read[:6] == request_[:6]


@pytest.mark.parametrize(
    "user",
    [b"ann", b"ann lee", b'""', rb"a\"b", rb"\"\" \"", b"a[b", b"[02/Mar/2026]", b"[x] [y]", "zoë".encode(), b"\xff"],
)
def test_a_user_name_may_be_anything_a_server_writes(user):
    line = GOOD.replace(b"- - ", b"- " + user + b" ")
    assert parse(line) == parse(GOOD)
    assert requests_per("day")([line]) == Tally({"days": {"2026-03-02": 1}})


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", "an empty line"),
        (b" \t\r\n", "an empty line"),
        (b"garbage", "not a line of an access log"),
        (b"\0\xff\xfe", "not a line of an access log"),
        (GOOD[:60], "not a line of an access log"),
        (GOOD[: GOOD.index(b" 5120")], "not a line of an access log"),
        (b" " + GOOD, "not a line of an access log"),
        (GOOD[1:].replace(b"92.0.2.7", b""), "not a line of an access log"),
        (GOOD.replace(b"200", b"2000"), "not a line of an access log"),
        (GOOD.replace(b"5120", b"x"), "not a line of an access log"),
        (GOOD.replace(b"5120", b"5120x"), "not a line of an access log"),
        (GOOD.replace(b"5120", b"1" * 19), "its size is more than a table can hold"),
        (GOOD.replace(b"5120", b"%d" % 2**53), "its size is more than a table can hold"),
        (GOOD.replace(b"192.0.2.7", b"h" * 256), "not a line of an access log"),
        (GOOD.replace(b"192.0.2.7", "\ufffd".encode()), NO_HOST),
        (GOOD[3:], NO_HOST),
        (GOOD[6:], NO_HOST),
        (GOOD + b"\n" + GOOD, "not a line of an access log"),
        (GOOD + b"\n\n", "not a line of an access log"),
        (GOOD.replace(b"GET", b"G\nT"), "not a line of an access log"),
        (at(b"2/Mar/2026:10:05:03 +0000"), "not a line of an access log"),
        (at(b"02/Mar/2026:24:05:03 +0000"), "not a line of an access log"),
        (at(b"02/Mar/2026:10:60:03 +0000"), "not a line of an access log"),
        (at(b"02/Mar/2026:10:05:03 +2400"), "not a line of an access log"),
        (at(b"02/Mar/2026:10:05:03"), "not a line of an access log"),
        (at("٠٢/Mar/2026:10:05:03 +0000".encode()), "not a line of an access log"),
        (at(b"30/Feb/2026:10:05:03 +0000"), "no such date"),
        (at(b"29/Feb/2023:10:05:03 +0000"), "no such date"),
        (at(b"29/Feb/1900:10:05:03 +0000"), "no such date"),
        (at(b"00/Mar/2026:10:05:03 +0000"), "no such date"),
        (at(b"02/Mrz/2026:10:05:03 +0000"), "no such date"),
        (at(b"02/Mar/0000:10:05:03 +0000"), "no such date"),
        (long_line(LONGEST + 1), "longer than 65,536 bytes"),
        (long_line(LONGEST + 1) + b"\n", "longer than 65,536 bytes"),
    ],
)
@pytest.mark.parametrize("utc", [False, True])
def test_a_malformed_line_is_rejected_with_the_reason(line, reason, utc):
    assert parse(line) is None
    count = requests_per("day", utc=utc)
    assert count([line]) == Tally({"days": {}}, {0: reason})
    assert count([GOOD, line, GOOD, line]) == Tally({"days": {"2026-03-02": 2}}, {1: reason, 3: reason})


def test_the_longest_line_is_counted():
    longest = long_line(LONGEST)
    assert parse(longest) == parse(longest + b"\n") != parse(GOOD)
    assert days([GOOD, longest, longest + b"\n"]) == {"2026-03-02": 3}


def test_requests_are_counted_by_day_country_and_host():
    lines = [
        GOOD,
        GOOD,
        GOOD.replace(b".7", b".8"),
        at(b"03/Mar/2026:00:00:00 +0000"),
        GOOD.replace(b"192.0.2.7", b"h"),
    ]
    two, three = "2026-03-02", "2026-03-03"
    assert requests_per("country", "day", "host", countries=country)(lines) == Tally(
        {
            "days": {two: 4, three: 1},
            "countries": {"B": 3, "A": 1, "name": 1},
            "by_day": {f"{two} B": 2, f"{two} A": 1, f"{two} name": 1, f"{three} B": 1},
            "hosts": {"192.0.2.7": 3, "192.0.2.8": 1, "h": 1},
        }
    )
    assert list(requests_per("day")(lines).tables) == ["days"]
    assert list(requests_per("country", countries=country)(lines).tables) == ["countries"]
    assert list(requests_per("host", "day")(lines).tables) == ["days", "hosts"]
    assert list(requests_per("host", "country", countries=country)(lines).tables) == ["countries", "hosts"]


def test_an_empty_batch_has_empty_tables():
    assert requests_per("day", "host")([]) == Tally({"days": {}, "hosts": {}})


def test_the_country_of_a_host_is_looked_up_once():
    answers = {"192.0.2.7": "X"}
    count = requests_per("country", countries=answers.pop)
    for _ in range(3):
        assert count([GOOD, at(b"03/Mar/2026:00:00:00 +0000")]).tables == {"countries": {"X": 2}}


def test_the_default_countries_are_those_of_registration():
    lines = [b"8.8.8.8" + GOOD[9:], b"193.0.6.139" + GOOD[9:], b"h" + GOOD[9:], b"1.2.3.400" + GOOD[9:], GOOD]
    expected = {"US": 1, "NL": 1, "name": 1, "invalid": 1, "private": 1}
    assert requests_per("country")(lines).tables["countries"] == expected


@pytest.mark.parametrize("by", [(), ("week",), ("day", "week")])
def test_unknown_words_to_count_by_are_refused(by):
    with pytest.raises(ConfigurationError, match="by day, hour, country, host, url, status, agent, bytes, not by"):
        requests_per(*by)


@pytest.mark.parametrize(
    ("stamp", "local", "utc"),
    [
        (b"01/Jul/1995:19:59:59 -0400", "1995-07-01", "1995-07-01"),
        (b"01/Jul/1995:20:00:00 -0400", "1995-07-01", "1995-07-02"),
        (b"28/Feb/2024:23:00:00 -0100", "2024-02-28", "2024-02-29"),
        (b"28/Feb/2023:23:00:00 -0100", "2023-02-28", "2023-03-01"),
        (b"01/Mar/2024:05:29:59 +0530", "2024-03-01", "2024-02-29"),
        (b"01/Mar/2024:05:30:00 +0530", "2024-03-01", "2024-03-01"),
        (b"01/Jan/2026:00:14:00 +0015", "2026-01-01", "2025-12-31"),
        (b"31/Dec/2025:23:45:00 -0015", "2025-12-31", "2026-01-01"),
        (b"31/Dec/2016:23:59:60 +0000", "2016-12-31", "2016-12-31"),
        (b"02/Mar/2026:00:00:00 +2359", "2026-03-02", "2026-03-01"),
    ],
)
def test_the_day_is_the_one_written_or_the_one_in_utc(stamp, local, utc):
    assert days([at(stamp)]) == {local: 1}
    assert days([at(stamp)], utc=True) == {utc: 1}


@pytest.mark.parametrize("stamp", [b"01/Jan/0001:00:00:00 +0001", b"31/Dec/9999:23:59:00 -0001"])
def test_a_day_that_utc_does_not_have_is_rejected(stamp):
    assert sum(days([at(stamp)]).values()) == 1
    assert requests_per("day", utc=True)([at(stamp)]) == Tally({"days": {}}, {0: "no such date"})


# --- any lines ---

_texts = [
    b"192.0.2.7",
    b"h",
    b"[::1]:80",
    b" ",
    b" - ",
    b" - - ",
    b'"',
    b'""',
    rb"\"",
    b"[",
    b"] ",
    b"\n",
    b"\r",
    b"\xff",
    b"[02/Mar/2026:10:05:03 +0000] ",
    b"[29/Feb/2024:23:05:03 -0130] ",
    b"[30/Feb/2024:23:05:03 +0000] ",
    b"[01/Jan/0001:00:00:00 +0100] ",
    b'"GET / HTTP/1.1"',
    b" 200 5",
    b" 304 -",
    b"x" * (LONGEST - 40),
    GOOD,
    GOOD + b"\n",
]
_hosts, _users, _stamps, _ends = _texts[:3], _texts[4:6], _texts[14:18], _texts[19:21]
_pieces = st.lists(st.sampled_from(_texts), max_size=9) | st.tuples(
    *map(st.sampled_from, [_hosts, _users, _stamps, [b'"GET /"'], _ends])
)
_line = st.binary(max_size=40) | _pieces.map(b"".join)
_lines = st.lists(_line, max_size=20)
_by = st.sets(st.sampled_from(["day", "country", "host"]), min_size=1)


@given(_lines, _by, st.booleans())
@example([GOOD, b'h - - [02/Mar/2026:10:05:03 +0000] "GET"', GOOD], {"day"}, False)
def test_each_line_is_counted_in_every_table_or_rejected(lines, by, utc):
    tables, rejected = requests_per(*by, utc=utc, countries=country)(lines)
    for table in tables.values():
        assert sum(table.values()) + len(rejected) == len(lines)
        assert all(table.values())
    assert all(reason and 0 <= place < len(lines) for place, reason in rejected.items())


@given(_lines)
def test_a_line_is_counted_exactly_if_it_can_be_parsed(lines):
    read = [parse(line) for line in lines]
    tables, rejected = requests_per("day", "host")(lines)
    assert set(rejected) == {place for place, request in enumerate(read) if request is None}
    assert tables["days"] == Counter(request.day for request in read if request)
    assert tables["hosts"] == Counter(request.client for request in read if request)


@given(_lines, st.lists(st.integers(0, 20)), st.booleans())
def test_no_split_into_batches_changes_the_sums(lines, cuts, utc):
    count = requests_per("day", "country", "host", utc=utc, countries=country)
    whole = count(lines)
    sums = {name: Counter[str]() for name in whole.tables}
    rejected: dict[int, str] = {}
    edges = sorted({0, len(lines), *(cut for cut in cuts if cut < len(lines))})
    for start, end in pairwise(edges):
        part = count(lines[start:end])
        for name, table in part.tables.items():
            sums[name].update(table)
        rejected |= {start + place: reason for place, reason in part.rejected.items()}
    assert (sums, rejected) == whole


@pytest.mark.parametrize(
    "piece",
    [
        b"h",
        b"h ",
        b"h - ",
        b'"" ',
        b"[",
        b'"',
        rb"\"",
        b'" 200 ',
        b'" 200 5x',
        b"] ",
        b"[02/Mar/2026:10:05:03 +0000] ",
        b'[02/Mar/2026:10:05:03 +0000] "',
        b'h - - [02/Mar/2026:10:05:03 +0000] ""',
        rb"h - - [02/Mar/2026:10:05:03 +0000] \"",
    ],
)
@pytest.mark.parametrize("start", [b"", b"h - ", b'h - - [02/Mar/2026:10:05:03 +0000] "'])
def test_every_line_is_matched_in_linear_time(start, piece):
    """A line of 64 KiB takes some milliseconds. Trying to match from every position would take seconds."""
    line = (start + piece * LONGEST)[:LONGEST]
    began = time.process_time()
    assert parse(line) is None
    assert requests_per("day")([line]).rejected
    assert time.process_time() - began < scaled(0.5)


# --- real logs ---


@pytest.mark.skipif(not LOGS.is_dir(), reason="the real logs are not here")
@pytest.mark.parametrize(
    ("name", "days", "countries", "buckets"),
    [
        (
            "elastic-apache-2015.log",
            {"2015-05-17": 1632, "2015-05-18": 2893, "2015-05-19": 2896, "2015-05-20": 2579},
            {"US": 3971, "FR": 873, "DE": 520, "SE": 442, "IN": 421, "CN": 416, "GB": 326},
            97,
        ),
        (
            "nginx-scanners-2021.log.gz",
            {"2021-11-12": 528, "2021-11-21": 318, "2021-11-22": 154},
            {"US": 460, "IN": 97, "LV": 57, "RU": 55, "GR": 45, "PL": 41, "CN": 37},
            34,
        ),
        ("nasa-jul95-first2k.log", {"1995-07-01": 2000}, {"name": 1733, "US": 176, "AU": 31, "CA": 21}, 10),
    ],
)
def test_a_real_log_is_counted_to_the_last_line(name, days, countries, buckets):
    packed = (LOGS / name).read_bytes()
    lines = (gzip.decompress(packed) if name.endswith(".gz") else packed).splitlines()
    tables, rejected = requests_per("day", "country")(lines)
    assert not rejected
    assert tables["days"] == days == Counter(request and request.day for request in map(parse, lines))
    assert sum(tables["by_day"].values()) == sum(tables["countries"].values()) == len(lines)
    # Registries move addresses now and then: the table below is valid for one day.
    for code, times in countries.items():
        assert tables["countries"][code] == pytest.approx(times, rel=0.1, abs=5)
    assert len(tables["countries"]) == pytest.approx(buckets, abs=5)
    assert requests_per("day", utc=True)(lines).tables["days"] == days
