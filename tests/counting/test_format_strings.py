"""A format is described by the text that a server has in its configuration."""

from __future__ import annotations

import pytest

from penstock import ConfigurationError
from penstock.counting import Tally, parse, requests_per
from tests.counting.test_formats import COMBINED, COMMON, hosts


@pytest.mark.parametrize(
    ("format", "line"),
    [
        ('$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent', COMMON),
        (
            '$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" '
            '"$http_user_agent" rt=$request_time',
            f"{COMBINED} rt=0.003",
        ),
        (
            '$http_x_forwarded_for - $remote_user [$time_local] "$request" $status $bytes_sent via $remote_addr',
            f"{COMMON} via 10.0.0.1".replace("203.0.113.9", "203.0.113.9, 10.1.1.1"),
        ),
        (
            '$host $remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent',
            f"www.example.org {COMMON}",
        ),
        (
            "$time_iso8601|${remote_addr}|$request_method|$uri?$args|$status|$body_bytes_sent",
            "2026-03-02T10:05:03+00:00|203.0.113.9|GET|/docs/?q=1|200|5120",
        ),
        (
            "$msec $remote_addr $request_method $request_uri $status $body_bytes_sent",
            "1772445903.512 203.0.113.9 GET /docs/?q=1 200 5120",
        ),
        ('%h %l %u %t "%r" %>s %b', COMMON),
        ('%h %l %u %t \\"%r\\" %>s %O \\"%{Referer}i\\" \\"%{User-Agent}i\\" %D', f"{COMBINED} 512"),
        ('%v:%p %a %l %u %t "%r" %s %B', f"www.example.org:443 {COMMON}"),
        (
            '%{X-Forwarded-For}i %400,501{Cookie}i %u %t "%m %U%q %H" %>s %b "%h"',
            '203.0.113.9, 10.0.0.1 - - [02/Mar/2026:10:05:03 +0000] "GET /docs/?q=1 HTTP/1.1" 200 5120 "10.0.0.2"',
        ),
        ("%{sec}t %a %m %U%q %s %b 100%%", "1772445903 203.0.113.9 GET /docs/?q=1 200 5120 100%"),
        (
            "$remote_addr|$time_local|$request|$status|$body_bytes_sent|$http_user_agent",
            "203.0.113.9|02/Mar/2026:10:05:03 +0000|GET /docs/?q=1 HTTP/1.1|200|5120|curl/8.5 (a|b)",
        ),
        (
            "time:$time_iso8601\thost:$remote_addr\treq:$request\tstatus:$status\tsize:$bytes_sent\tu:$agent",
            "time:2026-03-02T10:05:03+00:00\thost:203.0.113.9\treq:GET /docs/?q=1 HTTP/1.1\tstatus:200\tsize:5120\tu:a",
        ),
        (
            r"host:$remote_addr\ttime:$msec\tmethod:$request_method\turi:$request_uri\tstatus:$status\tsize:$bytes_sent",
            "host:203.0.113.9\ttime:1772445903.512\tmethod:GET\turi:/docs/?q=1\tstatus:200\tsize:5120",
        ),
        (
            '$remote_addr [$time_local] $request $status $body_bytes_sent "$host"',
            f'{COMMON.replace(" - -", "").replace(chr(34), "")} "ex"',
        ),
        (
            '$remote_addr [$time_local] "$request" status=$status size=$body_bytes_sent agent="$http_user_agent"',
            '203.0.113.9 [02/Mar/2026:10:05:03 +0000] "GET /docs/?q=1 HTTP/1.1" status=200 size=5120 agent="status=4"',
        ),
        (
            '%h;%t;"%r";%>s;%b;"%{User-agent}i"',
            '203.0.113.9;[02/Mar/2026:10:05:03 +0000];"GET /docs/?q=1 HTTP/1.1";200;5120;"X11; Linux"',
        ),
        ("%h\t%t\t%r\t%>s\t%b", "203.0.113.9\t[02/Mar/2026:10:05:03 +0000]\tGET /docs/?q=1 HTTP/1.1\t200\t5120"),
        (
            '"$time_iso8601","$remote_addr","$request","$status","$body_bytes_sent","$http_user_agent"',
            '"2026-03-02T10:05:03+00:00","203.0.113.9","GET /docs/?q=1 HTTP/1.1","200","5120","a, \\"b\\""',
        ),
        (
            '{"time":"$time_iso8601","ip":"$remote_addr","r":"$request","s":$status,"size":$bytes_sent}',
            '{"time":"2026-03-02T10:05:03+00:00","ip":"203.0.113.9","r":"GET /docs/?q=1 HTTP/1.1","s":200,"size":5120}',
        ),
        ("log_format x '$remote_addr - $remote_user [$time_local] \"$request\" '\n '$status $bytes_sent';", COMMON),
        ("log_format x escape=json '$remote_addr - - [$time_local] \"$request\" $status $bytes_sent';", COMMON),
        ('LogFormat "%h %l %u %t \\"%r\\" %>s %b" common', COMMON),
        ("'$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent'", COMMON),
        (
            'syslog+$remote_addr [$time_local] "$request" $status $body_bytes_sent',
            f"Oct 12 10:05:03 web1 nginx: {COMMON.replace(' - -', '')}",
        ),
    ],
)
def test_a_format_is_described_as_a_server_is_configured(format: str, line: str):
    read = parse(line.encode(), format)
    assert read is not None
    assert read[:7] == ("203.0.113.9", "2026-03-02", "GET", "/docs/?q=1", 200, 5120, "10:05:03")
    assert parse(f"x {line}".encode(), format) is None or format.startswith("syslog+")
    assert parse(line[:20].encode(), format) is None
    assert hosts(line, format=format) == Tally({"hosts": {"203.0.113.9": 1}})


@pytest.mark.parametrize(
    ("format", "fault"),
    [
        ("combind", "no format is called 'combind'"),
        ("syslog+combind", "no format is called 'combind'"),
        ("", "no format is called ''"),
        ("$remote_addr $status", "has no time that is known"),
        ("%h %>s", "has no time that is known"),
        ("$remote_addr$status [$time_local]", r"write something between \$remote_addr and \$status"),
        ("%h%l %t", "write something between %h and %l"),
        ("w3c date time cs-method", "needs the fields date time and c-ip"),
        ("w3c time date c-ip", "needs the fields date time and c-ip"),
        ("w3c date time c-ip cs-uri-stem cs-method", "in this order"),
    ],
)
def test_an_unknown_format_is_refused_with_the_fix(format: str, fault: str):
    with pytest.raises(ConfigurationError, match=fault):
        requests_per("day", format=format)


@pytest.mark.parametrize("separator", ["|", "\t", " | ", ";"])
@pytest.mark.parametrize("target", ["/a{0}200{0}5{0}x", "/a{0}200{0}99{0}curl/8", "/{0}{0}"])
def test_a_client_cannot_add_fields_to_a_request(separator: str, target: str):
    format = separator.join(["$remote_addr", "$time_iso8601", "$request", "$status", "$bytes_sent", "$http_user_agent"])
    line = separator.join(
        ["192.0.2.7", "2026-03-02T10:05:03Z", f"GET {target.format(separator)} HTTP/1.1", "404", "7", "ua"]
    )
    read = parse(line.encode(), format)
    assert read is not None
    assert (read.status, read.size, read.path) == (404, 7, target.format(separator))


def test_a_url_with_the_separator_adds_no_fields():
    format = "$remote_addr|$msec|$request_method|$request_uri|$status|$body_bytes_sent|$http_user_agent"
    for target, status in {"/a": 404, "/a|200|99": None, "/a|200|99|x": None, "/a|b": None}.items():
        read = parse(f"192.0.2.7|1772445903.512|GET|{target}|404|7|curl/8 (x)".encode(), format)
        assert (read and read.status) == status
