"""Each format reads the requests that a server writes in it, and never takes another part of a line for the client."""

from __future__ import annotations

import json
import operator
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.counting import Request, Tally, parse, requests_per
from penstock.counting.formats import guess_format, log_format
from penstock.counting.request import LONGEST
from penstock.counting.w3c import layouts
from tests.speed import scaled

COMBINED = '203.0.113.9 - - [02/Mar/2026:10:05:03 +0000] "GET /docs/?q=1 HTTP/1.1" 200 5120 "-" "curl/8.5"'
COMMON = COMBINED.removesuffix(' "-" "curl/8.5"')
CADDY = (
    '{"level":"info","ts":1772445903.512,"logger":"http.log.access","msg":"handled request","request":{"remote_ip":'
    '"203.0.113.9","remote_port":"4711","client_ip":"203.0.113.9","proto":"HTTP/2.0","method":"GET","host":'
    '"www.example.org","uri":"/docs/?q=1","headers":{"User-Agent":["curl/8.5"]}},"bytes_read":0,"user_id":"",'
    '"duration":0.000929675,"size":5120,"status":200,"resp_headers":{"Server":["Caddy"]}}'
)
TRAEFIK = (
    '{"ClientAddr":"203.0.113.9:4711","ClientHost":"203.0.113.9","ClientUsername":"-","DownstreamContentSize":5120,'
    '"DownstreamStatus":200,"Duration":929675,"RequestHost":"www.example.org","RequestMethod":"GET","RequestPath":'
    '"/docs/?q=1","StartLocal":"2026-03-02T10:05:03.512304Z","StartUTC":"2026-03-02T10:05:03.512304Z",'
    '"request_User-Agent":"curl/8.5","level":"info","msg":"","time":"2026-03-02T10:05:03Z"}'
)
NGINX_JSON = (
    '{"time_local":"02/Mar/2026:10:05:03 +0000","remote_addr":"203.0.113.9","remote_user":"","request":'
    '"GET /docs/?q=1 HTTP/1.1","status":"200","body_bytes_sent":"5120","http_referrer":"","http_user_agent":"curl/8.5"}'
)
ALB = (
    "https 2026-03-02T10:05:03.512304Z app/my-lb/50dc6c495c0c9188 203.0.113.9:4711 10.0.0.1:80 0.086 0.048 0.037 200 "
    '200 0 5120 "GET /docs/?q=1 HTTP/1.1" "curl/8.5" ECDHE-RSA-AES128-GCM-SHA256 TLSv1.2 arn:aws:x '
    '"Root=1-58337281-1d84f3d73c47ec4e58577259" "www.example.org" "arn:aws:acm:x" 1 2026-03-02T10:05:03.512304Z '
    '"authenticate,forward" "-" "-" "10.0.0.1:80" "200" "-" "-"'
)
PREFIXES = {
    "syslog": [
        "Oct 12 10:05:03 web1 nginx: ",
        "Oct  2 10:05:03 web-1.example.org nginx[4711]: ",
        "<190>Oct 12 10:05:03 web1 nginx: ",
        "2026-03-02T10:05:03.512304+01:00 web1 nginx: ",
        "<190>1 2026-03-02T10:05:03.512304Z web1 nginx 4711 - - ",
        '<190>1 2026-03-02T10:05:03Z web1 nginx - ID47 [a@32473 iut="3" b="\\"]"][c d="x"] ',
        "Mar 02 10:05:03.123456 web1 nginx[31]: ",
        "Mon 2026-03-02 10:05:03 UTC web1 nginx[31]: ",
        "Mon 2026-03-02 10:05:03.123456 CET web1 nginx[31]: ",
        "Mon 2026-03-02 10:05:03 +03 web1 docker/web-1[31]: ",
        "2026-03-02T10:05:03+0100 web1 nginx[31]: ",
        "1772445903.123456 web1 nginx[31]: ",
    ],
    "cri": ["2026-03-02T10:05:03.123456789Z stdout F ", "2026-03-02T10:05:03.123456789+01:00 stderr F "],
    "kubectl": [
        "2026-03-02T10:05:03.123456789Z ",
        "[pod/web-0/nginx] ",
        "[pod/web-0/nginx] 2026-03-02T10:05:03.123456789+01:00 ",
    ],
    "compose": [
        "web-1  | ",
        "web_1 | ",
        "my.web-1              | 2026-03-02T10:05:03.123456789Z ",
        "\x1b[36mweb-1  | \x1b[0m",
    ],
}
SAME = {
    "combined": COMBINED,
    "common": COMMON,
    "vhost_combined": f"www.example.org:443 {COMBINED}",
    "caddy": CADDY,
    "traefik": TRAEFIK,
    "nginx-json": NGINX_JSON,
    "alb": ALB,
}
"""The same request in each format."""


def docker(line: str) -> str:
    return json.dumps({"log": f"{line}\n", "stream": "stdout", "time": "2026-03-02T10:05:03.512304Z"})


def hosts(line: str, **options: Any) -> Tally:
    return requests_per("host", **options)([line.encode()])


@pytest.mark.parametrize("name", SAME)
def test_a_request_is_the_same_in_every_format(name: str):
    line = SAME[name]
    read = parse(line.encode())
    assert read is not None
    assert read[:7] == ("203.0.113.9", "2026-03-02", "GET", "/docs/?q=1", 200, 5120, "10:05:03")
    assert parse(line.encode(), name) == read
    assert read.agent == ("" if name == "common" else "curl/8.5")
    guessed = guess_format([line.encode()] * 3)
    assert guessed is not None
    assert guessed.name == name
    assert hosts(line).tables == hosts(line, format=name).tables == {"hosts": {"203.0.113.9": 1}}
    for other in SAME:
        if {name, other} != {"combined", "common"} and other != name:
            assert parse(line.encode(), other) is None, other


@pytest.mark.parametrize("name", [name for name in SAME if name != "alb"])
def test_a_line_behind_a_prefix_is_the_same_request(name: str):
    line = SAME[name]
    prefixed = [("docker", docker(line))]
    prefixed += [(prefix, before + line) for prefix, befores in PREFIXES.items() for before in befores]
    for prefix, text in prefixed:
        assert parse(text.encode()) == parse(line.encode()), text
        assert parse(text.encode(), f"{prefix}+{name}") == parse(line.encode()), text
        guessed = guess_format([text.encode()] * 3)
        assert guessed is not None
        assert guessed.name == f"{prefix}+{name}", text
        assert parse(text.encode(), name) is None, text


@pytest.mark.parametrize(
    ("clients", "client"),
    [
        ("203.0.113.9, 10.0.0.1", "203.0.113.9"),
        ("203.0.113.9,10.0.0.1, 10.0.0.2", "203.0.113.9"),
        ("2001:db8::1, 10.0.0.1", "2001:db8::1"),
        ("unknown, 10.0.0.1", "unknown"),
        ("203.0.113.9:4711, 10.0.0.1:80", "203.0.113.9"),
        ("203.0.113.9:4711", "203.0.113.9"),
        ("203-0-113-9.dsl.example.net", "203-0-113-9.dsl.example.net"),
        ("9.113.0.203.in.example.net, 9.113.0.203.example.net", "9.113.0.203.in.example.net"),
        ("[2001:db8::1]:4711", "2001:db8::1"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("2001:db8::4711", "2001:db8::4711"),
        ("fe80::1%eth0", "fe80::1%eth0"),
        ("::ffff:192.0.2.7", "::ffff:192.0.2.7"),
        ("2001:db8:0:0:0:0:0:1", "2001:db8:0:0:0:0:0:1"),
        ("unix:", "unix:"),
        ("-", "-"),
    ],
)
def test_the_client_of_a_list_is_the_first(clients: str, client: str):
    for line in (COMBINED, COMMON):
        assert hosts(line.replace("203.0.113.9", clients)) == Tally({"hosts": {client: 1}})


@pytest.mark.parametrize(
    "line",
    [
        COMBINED[4:],  # 0.113.9, the rest of an address
        COMBINED[9:],
        COMBINED[12:],
        COMBINED[14:],
        COMBINED[COMBINED.index("[") :],
        f"x {COMBINED[COMBINED.index('[') :]}",
        f"x y {COMBINED[COMBINED.index('[') :]}"[:-20].replace("x y", "x"),
        f"x {COMBINED}",
        f"web1 nginx {COMBINED}",
        f"10:05:03 {COMBINED}",
        f"Oct 12 10:05:03 {COMBINED}",
        f"Oct 12 10:05:03 web1 nginx {COMBINED}",
        f"2026-03-02T10:05:03.123456789Z stdout P {COMBINED}",
        f"2026-03-02T10:05:03.123456789Z stdout {COMBINED}",
        f"[x] {COMBINED}",
        f"203.0.113.9, {COMBINED[12:]}",
        f"x - ann {COMBINED}",
        json.dumps({"log": COMBINED, "stream": "stdout"}),  # a piece of a line
        json.dumps({"log": f"{COMBINED}\n{COMBINED}\n"}),
        json.dumps({"request": COMBINED}),
        CADDY.replace('"status":200', '"status":"x"'),
        CADDY[:-1],
        CADDY.replace("203.0.113.9", "203.0"),
        TRAEFIK.replace('"DownstreamStatus":200', '"DownstreamStatus":true'),
        NGINX_JSON.replace("02/Mar", "31/Feb"),
        NGINX_JSON.replace('"5120"', '"many"'),
        NGINX_JSON.replace('"remote_addr"', '"elsewhere"'),
        ALB.replace(":4711", ""),
        "[]",
        "{}",
        "null",
        "{",
        '{"request": []}',
        '{"ts": NaN}',
        '{"request": {"headers": 1}, "ts": 1}',
    ],
)
@pytest.mark.parametrize("format", [None, *SAME])
def test_no_other_part_of_a_line_is_taken_for_the_client(line: str, format: str | None):
    found = hosts(line, format=format)
    assert (found.tables, list(found.rejected)) == ({"hosts": {}}, [0])
    assert parse(line.encode(), format) is None


# --- W3C ---

IIS = (
    "#Software: Microsoft Internet Information Services 10.0\n#Version: 1.0\n#Date: 2026-03-02 10:05:03\n"
    "#Fields: date time s-ip cs-method cs-uri-stem cs-uri-query s-port cs-username c-ip cs(User-Agent) cs(Referer) "
    "sc-status sc-substatus sc-win32-status time-taken\n"
    "2026-03-02 10:05:03 10.0.0.1 GET /docs/ q=1 443 - 203.0.113.9 curl/8.5 - 200 0 0 15\n"
    "2026-03-02 10:05:04 10.0.0.1 GET /docs/ - 443 - 203.0.113.9 curl/8.5 - 404 0 0 15\n"
    "2026-03-02 10:05:04 10.0.0.1 GET /docs/ - 443 - curl/8.5\n"
)
CLOUDFRONT = (
    "#Version: 1.0\n#Fields: date time x-edge-location sc-bytes c-ip cs-method cs(Host) cs-uri-stem sc-status "
    "cs(Referer) cs(User-Agent) cs-uri-query cs(Cookie) x-edge-result-type\n"
    "2026-03-02\t10:05:03\tFRA50-C1\t5120\t203.0.113.9\tGET\td1.cloudfront.net\t/docs/\t200\t-\tcurl/8.5\tq=1\t-\tHit\n"
)


def test_the_columns_of_a_w3c_log_are_those_that_it_names():
    lines = IIS.encode().splitlines()
    format = guess_format(lines)
    assert format is not None
    read = parse(lines[4], format)
    assert read == Request("203.0.113.9", "2026-03-02", "GET", "/docs/?q=1", 200, 0, "10:05:03", "curl/8.5", "-")
    tables, rejected = requests_per("url", "status", format=format)(lines)
    assert tables["urls"] == {"/docs/?q=1": 1, "/docs/": 1}
    assert tables["statuses"] == {"200": 1, "404": 1}
    assert tables["directives"] == {"#Software": 1, "#Version": 1, "#Date": 1, "#Fields": 1}
    assert list(rejected) == [6]
    lines = CLOUDFRONT.encode().splitlines()
    read = parse(lines[2], guess_format(lines))
    assert read is not None
    assert read[:8] == ("203.0.113.9", "2026-03-02", "GET", "/docs/?q=1", 200, 5120, "10:05:03", "curl/8.5")
    assert hosts(lines[2].decode()).rejected  # without the names of the columns no line can be read


def test_the_layouts_of_a_w3c_log_have_the_numbers_of_their_lines():
    text = (IIS + CLOUDFRONT).encode()
    assert [line for line, _ in layouts(text)] == [4, 9]
    assert [line for line, _ in layouts(text, first_line=11)] == [14, 19]


# --- generated lines ---


class Generated(NamedTuple):
    client: str
    at: datetime
    method: str
    path: str
    status: int
    size: int
    agent: str


def in_w3c(agent: str) -> str:
    return re.sub("[ \\t]", "+", agent)


def bare(client: str) -> str:
    """A generated client without its port."""
    found = re.fullmatch(r"\[(.*)\](?::\d+)?|(\d+\.\d+\.\d+\.\d+):\d+", client)
    return found[1] or found[2] if found else client


def _with_port(client: str, port: int) -> str:
    return (
        client
        if client[0].isalpha() and ":" not in client
        else f"[{client}]:{port}"
        if ":" in client
        else f"{client}:{port}"
    )


_word = st.text("abcXYZ019_.-~", min_size=1, max_size=12)
_hosts = st.ip_addresses().map(str) | st.from_regex(r"[a-z][a-z0-9_-]{0,20}(\.[a-z]{2,8}){0,3}", fullmatch=True)
_zones = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
_generated = st.builds(
    Generated,
    client=_hosts | st.builds(_with_port, _hosts, st.integers(1, 65535)),
    at=st.datetimes(datetime(1975, 1, 3), datetime(2099, 12, 30), timezones=_zones).map(
        lambda at: at.replace(microsecond=0)
    ),
    method=st.sampled_from(["GET", "POST", "PROPFIND"]),
    path=st.lists(_word, min_size=1, max_size=4).map(lambda words: "/" + "/".join(words)),
    status=st.integers(100, 599),
    size=st.integers(0, 10**12),
    agent=st.text("abc XYZ()/;[]-,.|\t=", min_size=1, max_size=30)
    .map(str.strip)
    .filter(lambda agent: agent not in {"", "-"}),
)


def clf(one: Generated, user: str = "-") -> str:
    start = f"{one.client} - {user} [{one.at:%d/%b/%Y:%H:%M:%S %z}]"
    return f'{start} "{one.method} {one.path} HTTP/1.1" {one.status} {one.size}'


def caddy(one: Generated) -> str:
    request = {"remote_ip": one.client, "method": one.method, "uri": one.path, "headers": {"User-Agent": [one.agent]}}
    return json.dumps({"ts": one.at.timestamp(), "request": request, "status": one.status, "size": one.size})


def traefik(one: Generated) -> str:
    return json.dumps(
        {
            "ClientHost": one.client,
            "StartLocal": one.at.isoformat(),
            "RequestMethod": one.method,
            "RequestPath": one.path,
            "DownstreamStatus": one.status,
            "DownstreamContentSize": one.size,
            "request_User-Agent": one.agent,
        }
    )


def nginx_json(one: Generated) -> str:
    return json.dumps(
        {
            "time_iso8601": one.at.isoformat(),
            "remote_addr": one.client,
            "request_method": one.method,
            "request_uri": one.path,
            "status": one.status,
            "body_bytes_sent": one.size,
            "http_user_agent": one.agent,
        }
    )


def alb(one: Generated) -> str:
    return (
        f"https {one.at.astimezone(UTC):%Y-%m-%dT%H:%M:%S.000001Z} app/lb/1 {one.client}:4711 - -1 -1 -1 "
        f'{one.status} - 0 {one.size} "{one.method} {one.path} HTTP/1.1" "{one.agent}" - -'
    )


def custom(one: Generated) -> str:
    return (
        f"{one.at.isoformat()} {one.client} {one.status} {one.size} {one.method} {one.path} "
        f'x="{one.agent}" "{one.agent}" 0.01'
    )


CUSTOM = '$time_iso8601 $remote_addr $status $bytes_sent $request_method $uri x="$x" "$http_user_agent" $request_time'
WRITERS: dict[str, Callable[[Generated], str]] = {
    "common": clf,
    "combined": lambda one: f'{clf(one, "ann lee")} "https://example.org/" "{one.agent}"',
    "vhost_combined": lambda one: f'www.example.org:80 {clf(one, "ann")} "-" "{one.agent}"',
    "caddy": caddy,
    "traefik": traefik,
    "nginx-json": nginx_json,
    "alb": alb,
    CUSTOM: custom,
    "w3c date time c-ip cs-method cs-uri-stem sc-status sc-bytes cs(user-agent)": lambda one: (
        f"{one.at.astimezone(UTC):%Y-%m-%d %H:%M:%S} {one.client} {one.method} {one.path} {one.status} {one.size} "
        f"{in_w3c(one.agent)}"
    ),
}
IN_UTC = ("caddy", "alb", "w3c")
WRAPPERS: dict[str, Callable[[str], str]] = {
    "": lambda line: line,
    "docker+": docker,
    **{f"{name}+{n}": partial(operator.add, before) for name, all in PREFIXES.items() for n, before in enumerate(all)},
}
"""Prefixes -> functions that write a line behind them; several of one prefix have numbers."""

OTHERS = [
    "",
    '2026/03/02 10:05:03 [error] 31#31: *1 open() failed, client: 203.0.113.9, request: "GET /a HTTP/1.1"',
    '{"level":"error","time":"2026-03-02T10:05:03Z","client":"203.0.113.9","status":502,"msg":"no upstream"}',
    '{"level":"debug","ts":1772445903.5,"logger":"http.handlers.reverse_proxy","request":{"remote_ip":"203.0.113.9",'
    '"method":"GET","uri":"/a"},"status":200}',
    'www.example.org 203.0.113.9 - [02/Mar/2026:10:05:03 +0000] "GET /a HTTP/1.1" 200 5',
    "I0302 10:05:03.123456       1 main.go:42] started 203.0.113.9",
    "#Software: x",
]
"""Lines that other programs write into the stream of an access log."""


@pytest.mark.parametrize("name", WRITERS)
@settings(max_examples=50)
@given(
    generated=st.lists(_generated, min_size=1, max_size=5),
    prefix=st.sampled_from(sorted(WRAPPERS)),
    others=st.lists(st.sampled_from(OTHERS), max_size=3),
    mark=st.booleans(),
)
def test_generated_lines_are_read_as_they_were_meant(
    name: str, generated: list[Generated], prefix: str, others: list[str], mark: bool
):
    wrap, prefix = WRAPPERS[prefix], prefix.rstrip("0123456789")
    lines = [b"\xef\xbb\xbf" * mark + wrap(WRITERS[name](one)).encode() for one in generated]
    for one, line in zip(generated, lines, strict=True):
        in_utc = name.startswith(IN_UTC)
        at = one.at.astimezone(UTC) if in_utc else one.at
        read = parse(line, prefix + name)
        assert read is not None
        assert read[:7] == (
            bare(one.client),
            f"{at:%Y-%m-%d}",
            one.method,
            one.path,
            one.status,
            one.size,
            f"{at:%H:%M:%S}",
        )
        if name != "common":
            assert read.agent == (in_w3c(one.agent) if name.startswith("w3c") else one.agent)
        if "$" not in name and "w3c" not in name:
            assert parse(line) == read
            with_noise = requests_per("host")([*(wrap(other).encode() for other in others), line])
            assert with_noise.tables["hosts"] == {bare(one.client): 1}
            guessed = guess_format([line])
            assert guessed is not None
            assert guessed.name == prefix + name
        assert set(requests_per("day", utc=True, format=prefix + name)([line]).tables["days"]) == {
            f"{one.at.astimezone(UTC):%Y-%m-%d}"
        }
    noise = [wrap(other).encode() for other in others if not name.startswith("w3c") or not other.startswith("#")]
    tables, rejected = requests_per("host", "bytes", "status", format=prefix + name)([*noise, *lines, *noise])
    assert len(rejected) == 2 * len(noise)
    assert tables["bytes"] == {"all": sum(one.size for one in generated)}
    assert sum(tables["hosts"].values()) == sum(tables["statuses"].values()) == len(lines)
    assert sum(tables["hosts_bytes"].values()) == tables["bytes"]["all"]


@pytest.mark.parametrize("name", WRITERS)
@settings(max_examples=50)
@given(one=_generated, cut=st.integers(0, 400), junk=st.binary(max_size=5))
def test_a_damaged_line_has_the_same_client_or_none(name: str, one: Generated, cut: int, junk: bytes):
    """A line may end anywhere, or have other bytes inserted. The client is never another field."""
    line = WRITERS[name](one).encode()
    other = WRITERS[name](one._replace(client="1" if one.client[0] == "0" else "0")).encode()
    end = next(at for at, byte in enumerate(line) if byte != other[at]) + len(one.client.encode())
    cut = min(cut, len(line))
    for damaged in (line[:cut], line[:cut] + junk + line[cut:]):
        read = parse(damaged, name)
        if read is not None:
            assert read.client.encode() in damaged
            assert read.client in {bare(one.client), ""} or cut <= end


@pytest.mark.parametrize(
    "piece",
    [
        b"h",
        b"h ",
        b"h - ",
        b"h, ",
        b"1.2.3.4,",
        b"a:",
        b"::",
        b"- ",
        b'"" ',
        b"[",
        b'"',
        rb"\"",
        b'" 200 ',
        b"] ",
        b"02/Mar/2026:10:05:03 +0000",
        b"[02/Mar/2026:10:05:03 +0000] ",
        b"{",
        b'{"log":',
        b'["',
        b"Oct 12 10:05:03 x y: ",
        b"2026-03-02T10:05:03Z ",
        b"<190>1 - - - - - [",
        rb'[a b="\"',
        b"0.1 ",
    ],
)
@pytest.mark.parametrize(
    "start", [b"", b"h - ", b"<190>1 - - - - - ", b'h - - [02/Mar/2026:10:05:03 +0000] "', b"2026-03-02"]
)
def test_every_line_is_matched_in_linear_time_in_every_format(start: bytes, piece: bytes):
    line = (start + piece * LONGEST)[:LONGEST]
    began = time.process_time()
    for format in (None, *WRITERS, "syslog+common", "cri+common", "docker+common"):
        assert parse(line, format) is None
    assert time.process_time() - began < scaled(2.0)


def test_other_formats_are_named_in_the_reason():
    found = requests_per("day", format="combined")([COMMON.encode(), b"x", docker(CADDY).encode()])
    assert found.rejected == {
        0: "in the format common, not combined",
        1: "not in the format combined",
        2: "in the format docker+caddy, not combined",
    }
    assert log_format("main").name == "combined"
