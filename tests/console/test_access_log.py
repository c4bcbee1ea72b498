"""Lines of web access logs: real ones, broken ones, made-up ones."""

import gzip
from collections import Counter
from pathlib import Path
from statistics import median

import pytest

from penstock import PenstockError
from penstock.console.access_log import LONGEST, Request, generate, lines, parse

LOGS = Path(__file__).parents[3] / "shared" / "data" / "logs"

GOOD = '192.0.2.7 - - [02/Mar/2026:10:05:03 +0000] "GET /docs/ HTTP/1.1" 200 5120 "-" "Mozilla/5.0"'


@pytest.mark.parametrize(
    ("line", "request_"),
    [
        (GOOD, Request("192.0.2.7", "2026-03-02", "GET", "/docs/", 200, 5120)),
        (
            'host.example.net - ann [31/Dec/1999:23:59:59 -0400] "POST /a HTTP/1.0" 304 -',
            Request("host.example.net", "1999-12-31", "POST", "/a", 304, 0),
        ),
        (r'2001:db8::1 - - [01/Jan/2026:00:00:00 +0000] "\x16\x03\x01" 400 166 "-" "-"',
         Request("2001:db8::1", "2026-01-01", r"\x16\x03\x01", "", 400, 166)),
        ('h - - [01/Jan/2026:00:00:00 +0000] "" 408 0', Request("h", "2026-01-01", "", "", 408, 0)),
        ('h - a b [01/Jan/2026:00:00:00 +0000] "GET /"x" y" 200 3', Request("h", "2026-01-01", "GET", '/"x"', 200, 3)),
    ],
)  # fmt: skip
def test_a_line_is_read(line, request_):
    assert parse(line) == request_


@pytest.mark.parametrize(
    "line",
    [
        "",
        "garbage",
        GOOD[:60],
        GOOD.replace("02/Mar", "31/Feb"),
        GOOD.replace("Mar", "Mrz"),
        GOOD.replace("200", "2000"),
        GOOD.replace("5120", "x"),
        GOOD.replace("192.0.2.7", "h" * 256),
        GOOD.replace("192.0.2.7", "\ufffd"),
        GOOD + "x" * LONGEST,
        '[02/Mar/2026:10:05:03 +0000] "' * 2000,
    ],
)
def test_a_malformed_line_is_none(line):
    assert parse(line) is None


def test_a_log_may_be_packed_and_lines_may_end_in_any_way(tmp_path):
    text = b"one\r\ntwo\xff\n\nlast"
    (tmp_path / "plain.log").write_bytes(text)
    (tmp_path / "packed.log").write_bytes(gzip.compress(text))
    expected = ["one", "two\ufffd", "", "last"]
    assert list(lines(tmp_path / "plain.log")) == list(lines(tmp_path / "packed.log")) == expected


def test_a_cut_off_log_is_told_with_the_place(tmp_path):
    path = tmp_path / "cut.log.gz"
    path.write_bytes(gzip.compress("".join(f"{n * n}\n" for n in range(10_000)).encode())[:-5000])
    with pytest.raises(PenstockError, match=r"cut\.log\.gz cannot be read after line [\d,]+: .*end"):
        list(lines(path))


def test_a_log_that_is_not_there_is_told(tmp_path):
    with pytest.raises(PenstockError, match=r"gone\.log cannot be read: No such file"):
        list(lines(tmp_path / "gone.log"))


def test_a_made_up_log_is_well_formed_and_the_same_each_time():
    made = list(generate(2000, seed=7))
    requests = [parse(line) for line in made]
    assert made == list(generate(2000, seed=7)) != list(generate(2000, seed=8))
    assert len(made) == 2000
    assert None not in requests
    assert len({request.day for request in requests if request}) == 4
    jobs = Counter(request.client for request in requests if request).values()
    assert len(jobs) > 200
    assert max(jobs) > 20 * median(jobs)


@pytest.mark.skipif(not LOGS.is_dir(), reason="the real logs are not here")
@pytest.mark.parametrize(
    ("name", "days"),
    [
        ("elastic-apache-2015.log", {"2015-05-17": 1632, "2015-05-18": 2893, "2015-05-19": 2896, "2015-05-20": 2579}),
        ("nginx-scanners-2021.log.gz", {"2021-11-12": 528, "2021-11-21": 318, "2021-11-22": 154}),
        ("nasa-jul95-first2k.log", {"1995-07-01": 2000}),
    ],
)
def test_a_real_log_is_read_to_the_last_line(name, days):
    assert Counter(request and request.day for request in map(parse, lines(LOGS / name))) == days
