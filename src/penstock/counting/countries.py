"""The country of a host as a log names it: two letters, or one of four buckets for what has none.

    private    loopback, link-local, documentation, multicast and all else that is routed nowhere
    invalid    looks like an address, and is none: 256.1.1.1, 1:2:3, -
    unknown    an address that the database has no country for
    name       a host name: nothing is resolved

An address may stand in brackets, with a port after the brackets or after an IPv4, or with a zone; none of them
counts. An IPv4 in IPv6 (::ffff:192.0.2.7) is the IPv4.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address
from os import PathLike

from penstock.errors import ConfigurationError

_WRITTEN = re.compile(r"\[([^]]*)\](?::\d{1,5})?|([\d.]+):\d{1,5}|(.*)", re.DOTALL)


def registration() -> Callable[[str], str]:
    """Tells a host's country of registration, which need not be where it is used.

    By the registries' statistics of the day on which the installed iptocc was made; pure, 1 µs or so, never raises.
    Raises ConfigurationError where iptocc is not installed.
    """
    try:
        from iptocc import country_code
    except ModuleNotFoundError:
        raise ConfigurationError("the country of a host is told by iptocc: install penstock[countries]") from None
    # As written first, which most often is all: iptocc knows no other form of an address than the usual one.
    return lambda host: country_code(host) or _country(country_code, host)


def mmdb(path: str | PathLike[str]) -> Callable[[str], str]:
    """Tells a host's country by a database of your own in the MMDB format: GeoLite2, DB-IP, IPFire, IPinfo and others.

    It may have countries for private addresses. Raises ConfigurationError where maxminddb is not installed, and for a
    file that is no such database; what it returns raises for one that is damaged inside.
    """
    try:
        from maxminddb import InvalidDatabaseError, open_database
    except ModuleNotFoundError:
        raise ConfigurationError("databases in the MMDB format need maxminddb: install penstock[mmdb]") from None
    try:
        database = open_database(path)
    except (OSError, InvalidDatabaseError) as error:
        raise ConfigurationError(f"{path} cannot be read as a database of countries: {error}") from error

    def code_of(address: str) -> str | None:
        try:
            record = database.get(address)
        except ValueError:  # an IPv6 in a database of IPv4
            return None
        found = record.get("country", record.get("country_code")) if isinstance(record, dict) else None
        code = found.get("iso_code") if isinstance(found, dict) else found
        return code if isinstance(code, str) else None

    return partial(_country, code_of)


def _country(code_of: Callable[[str], str | None], host: str) -> str:
    bare = _bare(host)
    address = _address(bare)
    if address is None:
        return "name" if bare.count(":") < 2 and any(map(str.isalpha, bare)) else "invalid"
    if code := code_of(str(address)):
        return code
    return "private" if address.is_multicast or not address.is_global else "unknown"


def _bare(host: str) -> str:
    """Without brackets, port and zone."""
    found = _WRITTEN.fullmatch(host)
    assert found is not None
    assert found.lastindex is not None
    return found[found.lastindex].partition("%")[0]


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
