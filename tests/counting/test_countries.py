"""The country of a host that a log names."""

import sys
from ipaddress import ip_network

import pytest

from penstock import ConfigurationError
from penstock.counting.access_log import requests_per
from penstock.counting.countries import mmdb, registration

# Unrouted in every version of Python and of the database.
NOWHERE = [
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.2.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/4",
    "240.0.0.0/4",
    "255.255.255.255/32",
    "::/128",
    "::1/128",
    "100::/64",
    "2001:db8::/32",
    "fc00::/7",
    "fe80::/10",
    "ff00::/8",
]


@pytest.fixture(scope="module")
def country():
    return registration()


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("8.8.8.8", "US"),
        ("2001:4860:4860::8888", "US"),
        ("193.0.6.139", "NL"),
        ("::ffff:193.0.6.139", "NL"),
        ("::FFFF:c100:68b", "NL"),
        ("8.8.8.8:51234", "US"),
        ("[8.8.8.8]", "US"),
        ("[2001:4860:4860::8888]", "US"),
        ("[2001:4860:4860::8888]:443", "US"),
        ("[::ffff:193.0.6.139]:443", "NL"),
        ("2001:4860:4860:0000:0000:0000:0000:8888", "US"),
        ("2001:4860:4860::8888%eth0", "US"),
        ("[2001:4860:4860::8888%25eth0]:443", "US"),
        ("[2001:4860:4860::8888]:123456", "invalid"),
        ("fe80::1%eth0", "private"),
        ("[fe80::1%25eth0]:80", "private"),
        ("10.0.0.1:8080", "private"),
        ("::ffff:10.0.0.1", "private"),
        ("4000::1", "unknown"),
        ("256.1.1.1", "invalid"),
        ("01.2.3.4", "invalid"),
        ("1.2.3", "invalid"),
        ("1.2.3.4.5", "invalid"),
        ("1.2.3.4:", "invalid"),
        ("1.2.3.4:123456", "invalid"),
        ("12345", "invalid"),
        ("1:2:3", "invalid"),
        ("2001:db8:::1", "invalid"),
        ("2001:db8::x", "invalid"),
        ("[::1", "invalid"),
        ("[]", "invalid"),
        ("-", "invalid"),
        ("", "invalid"),
        ("localhost", "name"),
        ("unicomp6.unicomp.net", "name"),
        ("129-188-154-200.example", "name"),
        ("cafe:80", "name"),
        ("example.net:443", "name"),
        ("unix:", "name"),
        ("名前.example", "name"),
    ],
)
def test_a_host_has_a_country_or_a_bucket(country, host, expected):
    assert country(host) == expected


@pytest.mark.parametrize("network", NOWHERE)
def test_unrouted_addresses_are_private(country, network):
    first, last = ip_network(network)[0], ip_network(network)[-1]
    assert {country(str(first)), country(str(last)), country(f"[{last}]:80")} == {"private"}


def test_without_the_database_the_error_names_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "iptocc", None)
    with pytest.raises(ConfigurationError, match=r"install penstock\[countries\]"):
        registration()


# --- a custom database ---


def written(value) -> bytes:
    """A value in the MMDB format: kind and length, then the value. Bytes are encoded already."""
    match value:
        case str():
            return bytes([2 << 5 | len(value)]) + value.encode()
        case dict():
            return bytes([7 << 5 | len(value)]) + b"".join(written(part) for item in value.items() for part in item)
        case int():
            return bytes([5 << 5 | 2]) + value.to_bytes(2, "big")
        case bytes():
            return value
    raise TypeError(value)


def database(path, record, *, ip_version=4):
    """A database of one node: addresses that begin with a 0 bit have the record, all others have none."""
    about = {
        "binary_format_major_version": 2,
        "binary_format_minor_version": 0,
        "database_type": "Test",
        "description": {},
        "ip_version": ip_version,
        "record_size": 24,
        "languages": bytes([0, 4]),
        "build_epoch": bytes([8, 2, *bytes(7), 1]),
        "node_count": bytes([6 << 5 | 4, 0, 0, 0, 1]),
    }
    first, none = 1 + 16, 1
    node = first.to_bytes(3, "big") + none.to_bytes(3, "big")
    path.write_bytes(node + bytes(16) + written(record) + b"\xab\xcd\xefMaxMind.com" + written(about))
    return path


@pytest.mark.parametrize("record", [{"country": {"iso_code": "XA"}}, {"country": "XA"}, {"country_code": "XA"}])
def test_a_custom_database_returns_the_country(tmp_path, record):
    country = mmdb(database(tmp_path / "own.mmdb", record))
    expected = {
        "8.8.8.8": "XA",
        "[8.8.8.8]:80": "XA",
        "::ffff:8.8.8.8": "XA",
        "10.0.0.1": "XA",
        "130.1.1.1": "unknown",
        "192.168.0.1": "private",
        "2a00::1": "unknown",
        "h": "name",
        "1.2.3": "invalid",
        "12345": "invalid",
    }
    assert {host: country(host) for host in expected} == expected
    line = b'8.8.4.4 - - [02/Mar/2026:10:05:03 +0000] "GET / HTTP/1.1" 200 5'
    assert requests_per("country", countries=country)([line]).tables == {"countries": {"XA": 1}}


def test_a_database_of_ipv6_returns_the_country(tmp_path):
    country = mmdb(str(database(tmp_path / "own.mmdb", {"country_code": "XA"}, ip_version=6)))
    assert [country(host) for host in ("8.8.8.8", "2a00::1", "[2a00::1%1]:80", "fe80::1")] == [
        "XA",
        "XA",
        "XA",
        "private",
    ]


@pytest.mark.parametrize("record", ["XA", {}, {"country": {}}, {"country": 7}, {"city": "XA"}])
def test_a_record_without_a_country_is_unknown(tmp_path, record):
    assert mmdb(database(tmp_path / "own.mmdb", record))("8.8.8.8") == "unknown"


def test_a_file_that_is_no_database_raises(tmp_path):
    (tmp_path / "text.mmdb").write_text("no database")
    for name in ("text.mmdb", "gone.mmdb"):
        with pytest.raises(ConfigurationError, match=f"{name} cannot be read as a database of countries"):
            mmdb(tmp_path / name)


def test_without_the_reader_the_error_names_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "maxminddb", None)
    with pytest.raises(ConfigurationError, match=r"install penstock\[mmdb\]"):
        mmdb("own.mmdb")
