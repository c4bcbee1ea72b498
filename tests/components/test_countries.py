"""The country of a host as a log names it."""

import sys
from ipaddress import ip_network

import pytest

from penstock import ConfigurationError
from penstock.components.countries import registration

# Routed nowhere, whatever the version of Python or of the database.
NOWHERE = [
    "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.2.0/24",
    "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
    "255.255.255.255/32", "::/128", "::1/128", "100::/64", "2001:db8::/32", "fc00::/7", "fe80::/10", "ff00::/8",
]  # fmt: skip


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
def test_what_is_routed_nowhere_is_private(country, network):
    first, last = ip_network(network)[0], ip_network(network)[-1]
    assert {country(str(first)), country(str(last)), country(f"[{last}]:80")} == {"private"}


def test_without_the_database_the_error_names_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "iptocc", None)
    with pytest.raises(ConfigurationError, match=r"install penstock\[countries\]"):
        registration()
