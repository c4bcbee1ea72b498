"""The country of a host as a log names it: a two-letter code, or one of four buckets for a host without a country.

    private    loopback, link-local, documentation, multicast, and every other address that is routed nowhere
    invalid    looks like an address but is not one: 256.1.1.1, 1:2:3, -
    unknown    an address for which the database has no country
    name       a host name: names are not resolved

An address may be in brackets, may have a port after the brackets or after an IPv4 address, and may have a zone; all of
these are ignored. An IPv4 address in IPv6 (::ffff:192.0.2.7) counts as the IPv4 address.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address
from os import PathLike

from penstock.errors import ConfigurationError

_ADDRESS_AND_PORT = re.compile(r"\[([^]]*)\](?::\d{1,5})?|([\d.]+):\d{1,5}|(.*)", re.DOTALL)


def registration() -> Callable[[str], str]:
    """A function that returns the country where a host's address is registered, which need not be where it is used.

    The function uses the registries' statistics of the day on which the installed iptocc was made. It is pure, takes
    about 1 µs and never raises.

    Raises ConfigurationError if iptocc is not installed.
    """
    try:
        from iptocc import country_code
    except ModuleNotFoundError:
        raise ConfigurationError("the country of a host needs iptocc: install penstock[countries]") from None
    # Try the host unchanged first. iptocc knows only the usual form of an address, but nearly all are in that form.
    return lambda host: country_code(host) or _country(country_code, host)


def mmdb(path: str | PathLike[str]) -> Callable[[str], str]:
    """A function that returns the country of a host from your own database in the MMDB format: GeoLite2, DB-IP, IPFire,
    IPinfo and others.

    Such a database may have countries for private addresses. The function raises if the database is damaged inside.

    Raises ConfigurationError if maxminddb is not installed, or if the file is not such a database.
    """
    try:
        from maxminddb import InvalidDatabaseError, open_database
    except ModuleNotFoundError:
        raise ConfigurationError("databases in the MMDB format need maxminddb: install penstock[mmdb]") from None
    try:
        database = open_database(path)
    except (OSError, InvalidDatabaseError) as error:
        raise ConfigurationError(f"{path} cannot be read as a database of countries: {error}") from None

    def code_of(address: str) -> str | None:
        try:
            record = database.get(address)
        except ValueError:  # an IPv6 address in a database of IPv4
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
    """The host without brackets, port and zone."""
    found = _ADDRESS_AND_PORT.fullmatch(host)
    assert found is not None
    assert found.lastindex is not None
    return found[found.lastindex].partition("%")[0]


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
