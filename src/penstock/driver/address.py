"""Reads an address: where a server is, and how to log in to it. `library.py` reads the same from a client.

valkey://user:password@host:6379/0              valkeys:// for TLS; redis:// and rediss:// mean the same
unix:///run/valkey.sock?db=0&password=…
valkey+cluster://host:7000,host:7001            any nodes of the cluster; the others are looked up
valkey+sentinel://host:26379,host:26379/mymaster/0
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from penstock.core.slots import Node
from penstock.errors import ConfigurationError

Topology: TypeAlias = Literal["server", "cluster", "sentinel"]

EXAMPLES = (
    "valkey://host:6379/0, valkeys:// (TLS), redis://, rediss://, unix:///path?db=0, "
    "valkey+cluster://host:7000,host:7001 or valkey+sentinel://host:26379,host:26379/service/0"
)
_UNQUOTED = (
    "the server's address has a '/', '?' or '#' before its '@', or a '#' elsewhere: in a user name or a password write "
    "'/' as %2F, '?' as %3F, '#' as %23 and '@' as %40"
)
_PORTS = {"server": 6379, "cluster": 6379, "sentinel": 26379}
_TOPOLOGIES: dict[str, Topology] = {"": "server", "cluster": "cluster", "sentinel": "sentinel"}
_TLS = {"valkey": False, "redis": False, "valkeys": True, "rediss": True}

# The options that may follow the `?` of an address, besides `db`. A switch is on or off: `1`, `true`, `yes` or `on`.
_OPTIONS = {
    "username",
    "password",
    "client_name",
    "sentinel_username",
    "sentinel_password",
    "ssl_keyfile",
    "ssl_certfile",
    "ssl_cert_reqs",
    "ssl_ca_certs",
    "ssl_ca_data",
    "ssl_ciphers",
}
_SWITCHES = {"ssl_check_hostname"}
# Accepted and ignored: other programs may tune their clients with them. Penstock has `Settings` for that.
_IGNORED = {
    "decode_responses",
    "health_check_interval",
    "max_connections",
    "protocol",
    "retry_on_timeout",
    "socket_connect_timeout",
    "socket_keepalive",
    "socket_timeout",
    "timeout",
}


@dataclass(frozen=True)
class ServerAddress:
    """A server, a cluster, or the Sentinels that know the server."""

    topology: Topology
    nodes: tuple[Node, ...]
    """The server, some nodes of the cluster, or the Sentinels."""
    display: str
    """The address without its password, for people."""
    tls: bool = False
    service: str = ""
    """The name that the Sentinels give the master."""
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Arguments for the library's connection class, besides the node."""
    sentinel_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Arguments for a connection to a Sentinel."""
    library: str = "valkey"
    """`valkey` or `redis`: the client library that opens the connections."""
    remap: Callable[[Node], Node] | None = None
    """Maps the address that a Sentinel or a cluster node reports to one that can be reached from here."""

    @property
    def is_unix(self) -> bool:
        return self.topology == "server" and self.nodes[0][1] == 0


def parse_address(address: str) -> ServerAddress:
    """Read an address. Raises ConfigurationError, which lists the known forms."""
    if not _is_encodable(address):
        raise ConfigurationError(
            "the server's address has half a character (a lone surrogate), which cannot be sent: write each byte of it "
            "as %XX, or decode the address with errors='replace' where it comes from"
        )
    try:
        url = urlsplit(address)
        if url.fragment or (url.scheme != "unix" and "@" in url.path):
            raise ConfigurationError(_UNQUOTED)
        return _unix(url) if url.scheme == "unix" else _tcp(url)
    except ValueError as error:
        # A password with such a character is split, and its rest looks like a path or a query: do not show that.
        if "@" in address and not _has_login(address):
            raise ConfigurationError(_UNQUOTED) from None
        if isinstance(error, ConfigurationError):
            raise
        raise ConfigurationError(f"{error} in the server's address: write {EXAMPLES}") from None


def _is_encodable(address: str) -> bool:
    """Whether the address has whole characters. The path of a socket may have what Python makes of other bytes."""
    socket, _, options = address.partition("?")
    try:
        (os.fsencode if address.startswith("unix://") else str.encode)(socket)
        options.encode()
    except UnicodeEncodeError:
        return False
    return True


def _has_login(address: str) -> bool:
    """Whether the last `@` of the address ends its login."""
    login, _, rest = address.partition("://")[2].rpartition("@")
    return not any(character in login for character in "/?#") and bool(rest)


def _tcp(url: SplitResult) -> ServerAddress:
    kind, _, topology_name = url.scheme.partition("+")
    if kind not in _TLS or topology_name not in _TOPOLOGIES:
        raise ConfigurationError(f"a server's address cannot begin like this: write {EXAMPLES}")
    topology, tls = _TOPOLOGIES[topology_name], _TLS[kind]
    login, _, hosts = url.netloc.rpartition("@")
    nodes = tuple(_node(part, _PORTS[topology]) for part in (hosts or "localhost").split(","))
    if topology == "server" and len(nodes) > 1:
        raise ConfigurationError(f"more than one host: write {kind}+cluster://{hosts} or {kind}+sentinel://{hosts}/…")
    path = [unquote(part) for part in url.path.split("/") if part]
    service = path.pop(0) if topology == "sentinel" and path else ""
    if topology == "sentinel" and not service:
        raise ConfigurationError(f"the address names no Sentinel service: write {url.scheme}://{hosts}/mymaster/0")
    options, sentinel = _options(url, login, path.pop(0) if path else "0")
    if path:
        raise ConfigurationError(f"too much after the host: {url.path!r}; write {EXAMPLES}")
    if tls:
        options.setdefault("ssl_check_hostname", options.get("ssl_cert_reqs", "required") != "none")
    display = f"{url.scheme}://{hosts or 'localhost'}" + "".join(f"/{quote(part)}" for part in (service,) if part)
    display += f"/{options['db']}" if options.get("db") else ""
    return ServerAddress(topology, nodes, display, tls, service, options, sentinel)


def _unix(url: SplitResult) -> ServerAddress:
    path = unquote(url.path)
    if not path:
        raise ConfigurationError("the address names no socket: write unix:///path/to/the.sock?db=0")
    options, _ = _options(url, url.netloc.rpartition("@")[0], "0")
    display = f"unix://{path}" + (f"?db={options['db']}" if options.get("db") else "")
    return ServerAddress("server", ((path, 0),), display, options=options)


def _node(text: str, port: int) -> Node:
    parts = urlsplit(f"//{text}")
    return parts.hostname or "localhost", parts.port or port


def _options(url: SplitResult, login: str, db: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options for connections to the server, and those for connections to a Sentinel."""
    options: dict[str, Any] = {}
    username, _, password = login.partition(":")
    values = {"username": unquote(username), "password": unquote(password), "db": db} | dict(
        parse_qsl(url.query, strict_parsing=bool(url.query))
    )
    for name, value in values.items():
        if not value:
            continue
        if name == "db":
            if not value.isdecimal():
                raise ConfigurationError(f"the database in the server's address is not a number: write {EXAMPLES}")
            options |= {"db": int(value)} if int(value) else {}
        elif name in _SWITCHES:
            options[name] = value.lower() in {"1", "true", "yes", "on"}
        elif name in _OPTIONS:
            options[name] = value
        elif name not in _IGNORED:
            known = ", ".join(sorted({"db", *_OPTIONS, *_SWITCHES}))
            raise ConfigurationError(f"{name!r} is not an option of a server's address; known are {known}")
    sentinel = {name.removeprefix("sentinel_"): options.pop(name) for name in list(options) if "sentinel_" in name}
    return options, sentinel
