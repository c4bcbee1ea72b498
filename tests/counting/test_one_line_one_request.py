"""A line is one request or none: what other programs, other fields and clients write into a log is never counted."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.counting import Tally, parse, requests_per
from penstock.counting.formats import guess_format
from tests.counting.test_formats import CADDY, COMBINED, COMMON, NGINX_JSON, TRAEFIK

TIME = "[02/Mar/2026:10:05:03 +0000]"
TAIL = f'{TIME} "GET /a HTTP/1.1" 200 5'


def counted(line: str, format: str | None = None, by: str = "host") -> dict[str, int]:
    tables, rejected = requests_per(by, format=format)([line.encode()])  # type: ignore[arg-type]
    (table,) = (tables[name] for name in tables if name.startswith(by.removesuffix("s")))
    assert sum(table.values()) + len(rejected) == 1
    return dict(table)


def reason(line: str, format: str | None = None) -> str:
    return requests_per("day", format=format)([line.encode()]).rejected[0]


# --- the client is never the virtual host ---


@pytest.mark.parametrize(
    "client", ["192.0.2.7", "2001:db8::1", "192.0.2.7:51234", "[2001:db8::1]:443", "dsl-7.example.net"]
)
@pytest.mark.parametrize("tail", [TAIL, f'{TAIL} "-" "curl/8"', f'{TAIL} "https://e.example/" "curl/8" 0.003'])
@pytest.mark.parametrize(
    "before", ["www.example.com {} -", "www.example.com {} bob", "www.example.com - {}", "web {} -"]
)
def test_a_name_before_an_address_is_no_client(before: str, tail: str, client: str):
    line = f"{before.format(client)} {tail}"
    if client.startswith("dsl") and before.endswith("- {}"):
        return  # a user may have a dot in its name
    for format in (None, "common", "combined", "vhost_combined"):
        assert counted(line, format) == {}
    found = reason(line)
    assert "may be the virtual host" in found
    given = found.split("--format '")[1].split("'")[0]
    assert counted(line, given) == {client.removesuffix(":51234").removesuffix(":443").strip("[]"): 1}


@pytest.mark.parametrize("line", [f"10.0.0.1 192.0.2.7 - {TAIL}", f"192.0.2.1 2001:db8::1 bob {TAIL}"])
def test_two_addresses_before_the_time_are_no_client(line: str):
    assert counted(line) == counted(line, "common") == {}
    found = reason(line)
    assert "two addresses" in found
    assert counted(line, found.split("--format '")[1].split("'")[0]) == {line.partition(" ")[0]: 1}


@pytest.mark.parametrize("vhost", ["www.example.com", "example.com.", "localhost", "_", "-", "xn--bcher-kva.example"])
@pytest.mark.parametrize("client", ["192.0.2.7", "2001:db8::1", "192.0.2.7, 10.0.0.1"])
@pytest.mark.parametrize("user", ["- -", "- bob", "- ann lee"])
def test_a_virtual_host_needs_no_port_before_a_whole_line(vhost: str, client: str, user: str):
    for tail, format in ((TAIL, "vhost_common"), (f'{TAIL} "-" "curl/8"', "vhost_combined")):
        line = f"{vhost} {client} {user} {tail}"
        for name in (None, format):
            read = parse(line.encode(), name)
            assert read is not None
            assert (read.client, read.vhost, read.status) == (client.partition(",")[0], vhost, 200)
        guessed = guess_format([line.encode()])
        assert guessed is not None
        assert guessed.name == format


@pytest.mark.parametrize("user", ["192.0.2.9", "2001:db8::9"])
def test_a_client_that_logs_in_as_an_address_stays_the_client(user: str):
    assert counted(f"192.0.2.7 - {user} {TAIL}") == {"192.0.2.7": 1}


# --- a client cannot write its own status and size ---


@pytest.mark.parametrize("escape", ["\\", ""])
@pytest.mark.parametrize("end", ["", ' "-" "curl/8"'])
@pytest.mark.parametrize(
    "target", ['/a{}" 200 999999999999999999', '/a{}" 200 99', '/a{}" 200 99 "-" "x', '/{}"{}" 200 1 ', '/a{}" - - ']
)
def test_a_request_ends_at_its_closing_quote(target: str, escape: str, end: str):
    target = target.replace("{}", escape)
    line = f'192.0.2.7 - - {TIME} "GET {target} HTTP/1.1" 404 5{end}'
    read = parse(line.encode())
    assert read is not None
    assert (read.status, read.size, read.path) == (404, 5, target)
    assert counted(line, by="status") == counted(line, "combined" if end else "common", "status") == {"404": 1}


@pytest.mark.parametrize("request_", ['\\"', '\\" 200 5', "\\\\", '\\\\\\" 200 7 ', "\\x22 200 5 ", "-", ""])
def test_a_malformed_request_ends_at_its_closing_quote_too(request_: str):
    assert counted(f'192.0.2.7 - - {TIME} "{request_}" 400 5 "-" "x"', by="status") == {"400": 1}


@pytest.mark.parametrize("text", ['\\"', 'x\\" 200 5 ', '\\" \\"', "C:\\\\", 'a "b"c', '\\" HTTP/1.1\\" 200 5 '])
def test_a_referer_and_an_agent_change_no_other_column(text: str):
    line = f'192.0.2.7 - - {TIME} "GET /a HTTP/1.1" 404 5 "{text}" "{text}"'
    assert counted(line, by="status") == {"404": 1}
    read = parse(line.encode(), "combined")
    assert read is not None
    assert (read.referer, read.agent, read.size) == (text, text, 5)


_piece = st.sampled_from(
    ['\\"', '" ', " 200 5", ' 200 5 "', " HTTP/1.1", 'HTTP/1.0" 200 5 ', "/a", "\\\\", " ", "x", " - - ", "|", "\t"]
)


@given(st.lists(_piece, max_size=12).map("".join))
def test_no_request_of_a_server_that_escapes_quotes_forges_a_status(text: str):
    """As Apache writes it: a backslash before each quote and each backslash."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\t", "\\t")
    for request in (f"GET /{escaped} HTTP/1.1", escaped):
        line = f'192.0.2.7 - - {TIME} "{request}" 404 7 "{escaped}" "{escaped}"'
        read = parse(line.encode(), "combined")
        assert read is not None
        assert (read.client, read.status, read.size) == ("192.0.2.7", 404, 7)
        assert counted(line, by="status") == {"404": 1}


@pytest.mark.parametrize("size", [2**53 - 1 - 7_199_254_740_992, 10**15, 0])
def test_a_size_below_the_limit_is_counted(size: int):
    for line in (COMBINED.replace("5120", f"{size}"), NGINX_JSON.replace("5120", f"{size}")):
        assert requests_per("bytes")([line.encode()]).tables["bytes"] == {"all": size}


@pytest.mark.parametrize("size", [2**53, 10**16, 10**18 - 1, 10**30])
def test_a_size_that_no_table_can_hold_rejects_its_line_only(size: int):
    good = COMBINED.encode()
    large = [line.replace("5120", f"{size}").encode() for line in (COMBINED, COMMON, NGINX_JSON, CADDY, TRAEFIK)]
    tables, rejected = requests_per("bytes")([good, *large, good])
    assert tables["bytes"] == {"all": 2 * 5120}
    assert list(rejected) == [1, 2, 3, 4, 5]
    assert rejected[1] == "its size is more than a table can hold"


@pytest.mark.parametrize(
    "format", [None, "common", '$remote_addr - $remote_user [$time_local] "$request" $status $size']
)
def test_an_aborted_request_has_no_status(format: str | None):
    line = f'192.0.2.7 - - {TIME} "GET /a HTTP/1.1" - -'
    assert counted(line, format, "status") == {"-": 1}
    assert counted(NGINX_JSON.replace('"200"', '"-"'), by="status") == {"-": 1}


@pytest.mark.parametrize("url", ["/a b", "/a  b c", "/a HTTP/1.1 b", "/ "])
def test_a_url_with_blanks_is_counted_whole(url: str):
    for version in (" HTTP/1.1", " HTTP/2", ""):
        line = f'192.0.2.7 - - {TIME} "GET {url}{version}" 200 5'
        assert counted(line, by="url") == {url: 1}
        read = parse(line.encode())
        assert read is not None
        assert (read.method, read.path) == ("GET", url)


# --- JSON: other objects in the same stream ---

_REQUEST = json.loads(CADDY)["request"]
CADDY_V1 = '192.0.2.7 - - [02/Mar/2026:10:05:03 +0000] "GET /a HTTP/1.1" 200 5'


@pytest.mark.parametrize(
    "other",
    [
        {"logger": "http.log.error", "msg": "dial tcp", "status": 502, "duration": 0.1, "err_id": "a"},
        {"logger": "http.log.error.log0", "msg": "x", "status": 502, "size": 3},
        {"logger": "http.handlers.reverse_proxy", "msg": "upstream roundtrip", "status": 200, "headers": {}},
        {"logger": "http.handlers.rewrite", "msg": "rewrote request", "method": "GET", "uri": "/a"},
        {"logger": "http.log.accessories", "msg": "handled request", "status": 200, "size": 1},
        {"msg": "upstream roundtrip", "status": 200, "size": 1},
        {"msg": "dial tcp", "status": 502},
        {"status": 502, "duration": 0.1},
        {"logger": ["http.log.access"], "status": 200, "size": []},
    ],
)
def test_only_the_access_log_of_caddy_is_counted(other: dict[str, object]):
    for format in (None, "caddy", "nginx-json"):
        line = json.dumps({"level": "error", "ts": 1772445903.5, "request": _REQUEST, **other})
        assert counted(line, format) == {}


@pytest.mark.parametrize(
    "access",
    [
        {"logger": "http.log.access", "msg": "handled request"},
        {"logger": "http.log.access.log0", "msg": "handled request", "level": "error"},
        {"logger": "http.log.access.my_site"},
        {"msg": "handled request"},
        {},
    ],
)
def test_the_access_log_of_caddy_may_be_filtered(access: dict[str, object]):
    line = json.dumps({"ts": 1772445903.5, "request": _REQUEST, "status": 502, "size": 0, **access})
    assert counted(line, by="status") == {"502": 1}
    assert counted(CADDY_V1) == {"192.0.2.7": 1}


@pytest.mark.parametrize(
    "other",
    [
        {"remote_addr": "192.0.2.7", "time": "2026-03-02T10:05:03Z", "status": 200},
        {"remote_addr": "192.0.2.7", "time": "2026-03-02T10:05:03Z", "status": 200, "method": "GET"},
        {"client": "192.0.2.7", "time": "2026-03-02T10:05:03Z", "status": 200, "request": {"uri": "/a"}},
        {"client": "192.0.2.7", "time": "2026-03-02T10:05:03Z", "status": 200, "request": None, "uri": None},
        {"client": "192.0.2.7", "time": "2026-03-02T10:05:03Z", "status": 200, "msg": "connected", "uri": ""},
        {"client": "192.0.2.7", "time": "2026-03-02T10:05:03Z", "status": 200, "request": "GET /", "size": [1]},
        {"client": "192.0.2.7", "time": "2026-03-02T10:05:03Z", "status": [200], "request": "GET / HTTP/1.1"},
        {"ClientHost": "192.0.2.7", "StartUTC": "2026-03-02T10:05:03Z", "DownstreamStatus": 200, "msg": "x"},
        {"level": "error", "msg": "x", "time": "2026-03-02T10:05:03Z", "ClientHost": "192.0.2.7"},
        {
            "start_time": "2026-03-02T10:05:03Z",
            "response_code": 0,
            "downstream_remote_address": "192.0.2.7:1",
            "method": None,
            "path": None,
            "bytes_sent": 5,
        },
    ],
)
def test_an_object_without_a_request_is_no_request(other: dict[str, object]):
    for format in (None, "nginx-json", "traefik", "envoy", "caddy"):
        assert counted(json.dumps(other), format) == {}


ENVOY = {
    "start_time": "2026-03-02T10:05:03.512Z",
    "method": "GET",
    "path": "/a?q=1",
    "protocol": "HTTP/1.1",
    "response_code": 200,
    "bytes_received": 0,
    "bytes_sent": 5120,
    "user_agent": "curl/8.5",
    "authority": "ex.example",
    "downstream_remote_address": "192.0.2.7:51234",
    "x_forwarded_for": None,
    "upstream_host": "10.0.0.1:80",
}
APACHE_JSON = {
    "time": "[02/Mar/2026:10:05:03 +0000]",
    "remoteIP": "192.0.2.7",
    "host": "ex.example",
    "request": "/a",
    "query": "?q=1",
    "method": "GET",
    "status": "200",
    "size": "5120",
    "userAgent": "curl/8.5",
    "referer": "-",
}


@pytest.mark.parametrize(("line", "format"), [(ENVOY, "envoy"), (APACHE_JSON, "nginx-json")])
def test_other_objects_of_access_logs_are_read(line: dict[str, object], format: str):
    for name in (None, format):
        read = parse(json.dumps(line).encode(), name)
        assert read is not None
        assert read[:8] == ("192.0.2.7", "2026-03-02", "GET", "/a?q=1", 200, 5120, "10:05:03", "curl/8.5")
    proxied = {**ENVOY, "x_forwarded_for": "198.51.100.1, 10.0.0.9"}
    assert counted(json.dumps(proxied)) == {"198.51.100.1": 1}


# --- a byte order mark ---


@pytest.mark.parametrize("line", [COMBINED, CADDY, f"Oct 12 10:05:03 web1 nginx: {COMMON}"])
def test_a_byte_order_mark_is_no_part_of_a_line(line: str):
    marked = b"\xef\xbb\xbf" + line.encode()
    assert parse(marked) == parse(line.encode()) is not None
    assert requests_per("day")([marked, line.encode(), marked]) == Tally({"days": {"2026-03-02": 3}})
    guessed, bare = guess_format([marked]), guess_format([line.encode()])
    assert guessed is not None
    assert guessed == bare
