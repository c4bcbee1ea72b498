"""Where a server is and how to greet it: read from an address, or from a client of valkey-py or redis-py.

    valkey://user:password@host:6379/0              valkeys:// for TLS; redis:// and rediss:// mean the same
    unix:///run/valkey.sock?db=0&password=…
    valkey+cluster://host:7000,host:7001            any nodes of the cluster; the others are asked for
    valkey+sentinel://host:26379,host:26379/mymaster/0

A client that is handed in is only read: the connections are made anew from what made its own, with either face of
its library. So its pool, its timeouts and its `decode_responses` neither help nor harm, its owner closes it, and
we close ours. No client library is imported here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from penstock.core.slots import Node
from penstock.errors import ConfigurationError

Shape: TypeAlias = Literal["server", "cluster", "sentinel"]

_EXAMPLES = (
    "valkey://host:6379/0, valkeys:// (TLS), redis://, rediss://, unix:///path?db=0, "
    "valkey+cluster://host:7000,host:7001 or valkey+sentinel://host:26379,host:26379/service/0"
)
_PORTS = {"server": 6379, "cluster": 6379, "sentinel": 26379}
_SHAPES: dict[str, Shape] = {"": "server", "cluster": "cluster", "sentinel": "sentinel"}
_TLS = {"valkey": False, "redis": False, "valkeys": True, "rediss": True}

# What an address may say after the `?`, beside `db`. Switches are read as words.
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
# Other users of the same address may tune their pools in it; ours are tuned by `Settings`.
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
# What is taken over from a client: how to greet the server, not how to wait for it.
_GREETING = ("db", "username", "password", "credential_provider", "client_name")


@dataclass(frozen=True)
class ServerAddress:
    """A server, a cluster, or the Sentinels that know the server."""

    shape: Shape
    nodes: tuple[Node, ...]
    shown: str
    """The address for people: without the password."""
    tls: bool = False
    service: str = ""
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """What the library's connection class is called with, beside the node."""
    sentinel_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    library: str = "valkey"
    remap: Callable[[Node], Node] | None = None
    """From the address a cluster node says it has to the one where it can be reached."""

    @property
    def is_unix(self) -> bool:
        return self.shape == "server" and self.nodes[0][1] == 0


def parse(address: str) -> ServerAddress:
    """Read an address. Raises ConfigurationError with the forms that are known."""
    try:
        url = urlsplit(address)
        return _unix(url) if url.scheme == "unix" else _tcp(url)
    except ConfigurationError:
        raise
    except ValueError as error:
        raise ConfigurationError(f"{error} in the server's address: write {_EXAMPLES}") from None


def _tcp(url: SplitResult) -> ServerAddress:
    kind, _, shape_name = url.scheme.partition("+")
    if kind not in _TLS or shape_name not in _SHAPES:
        raise ConfigurationError(f"{url.scheme!r} begins no server's address: write {_EXAMPLES}")
    shape, tls = _SHAPES[shape_name], _TLS[kind]
    login, _, hosts = url.netloc.rpartition("@")
    nodes = tuple(_node(part, _PORTS[shape]) for part in (hosts or "localhost").split(","))
    if shape == "server" and len(nodes) > 1:
        raise ConfigurationError(f"more than one host: write {kind}+cluster://{hosts} or {kind}+sentinel://{hosts}/…")
    path = [unquote(part) for part in url.path.split("/") if part]
    service = path.pop(0) if shape == "sentinel" and path else ""
    if shape == "sentinel" and not service:
        raise ConfigurationError(f"which service? Write {url.scheme}://{hosts}/mymaster/0")
    options, sentinel = _options(url, login, path.pop(0) if path else "0")
    if path:
        raise ConfigurationError(f"too much after the host: {url.path!r}; write {_EXAMPLES}")
    if tls:
        options.setdefault("ssl_check_hostname", options.get("ssl_cert_reqs", "required") != "none")
    shown = f"{url.scheme}://{hosts or 'localhost'}" + "".join(f"/{quote(part)}" for part in (service,) if part)
    shown += f"/{options['db']}" if options.get("db") else ""
    return ServerAddress(shape, nodes, shown, tls, service, options, sentinel)


def _unix(url: SplitResult) -> ServerAddress:
    path = unquote(url.path)
    if not path:
        raise ConfigurationError("which socket? Write unix:///path/to/the.sock?db=0")
    options, _ = _options(url, url.netloc.rpartition("@")[0], "0")
    shown = f"unix://{path}" + (f"?db={options['db']}" if options.get("db") else "")
    return ServerAddress("server", ((path, 0),), shown, options=options)


def _node(text: str, port: int) -> Node:
    parts = urlsplit(f"//{text}")
    return parts.hostname or "localhost", parts.port or port


def _options(url: SplitResult, login: str, db: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the address says about the connection, and what about the one to a Sentinel."""
    options: dict[str, Any] = {}
    username, _, password = login.partition(":")
    said = {"username": unquote(username), "password": unquote(password), "db": db} | dict(parse_qsl(url.query))
    for name, value in said.items():
        if not value:
            continue
        if name == "db":
            options |= {"db": int(value)} if int(value) else {}
        elif name in _SWITCHES:
            options[name] = value.lower() in {"1", "true", "yes", "on"}
        elif name in _OPTIONS:
            options[name] = value
        elif name not in _IGNORED:
            known = ", ".join(sorted({"db", *_OPTIONS, *_SWITCHES}))
            raise ConfigurationError(f"{name!r} in the server's address says nothing here; known are {known}")
    sentinel = {name.removeprefix("sentinel_"): options.pop(name) for name in list(options) if "sentinel_" in name}
    return options, sentinel


def read_client(client: Any) -> ServerAddress:
    """Where a client's server is, for connections of our own.

    Takes clients and pools of valkey-py and redis-py, either face; one server, Sentinel or cluster.
    """
    library = next((root for root in _roots(client) if root in {"valkey", "redis"}), None)
    if library and hasattr(client, "nodes_manager"):
        return _of_cluster(client, library)
    pool = getattr(client, "connection_pool", client)
    if library is None or not hasattr(pool, "connection_kwargs"):
        raise ConfigurationError(
            f"{type(client).__name__} is no client of valkey-py or redis-py: hand in one of those, or write {_EXAMPLES}"
        )
    names = {kind.__name__ for kind in pool.connection_class.__mro__}
    told = pool.connection_kwargs
    tls = "SSLConnection" in names
    if hasattr(pool, "sentinel_manager"):
        return _of_sentinel(pool, library, tls)
    if "UnixDomainSocketConnection" in names:
        path = told["path"]
        return ServerAddress("server", ((path, 0),), f"unix://{path}", options=_greeting(told), library=library)
    node = told.get("host", "localhost"), int(told.get("port", 6379))
    shown = _shown(library, tls, "", [node]) + (f"/{told['db']}" if told.get("db") else "")
    return ServerAddress("server", (node,), shown, tls, options=_greeting(told), library=library)


def _roots(client: Any) -> Iterable[str]:
    return (kind.__module__.partition(".")[0] for kind in type(client).__mro__)


def _of_cluster(client: Any, library: str) -> ServerAddress:
    manager = client.nodes_manager
    # The two faces keep what they were told in different places.
    told = getattr(client, "connection_kwargs", None) or manager.connection_kwargs
    tls = bool(told.get("ssl")) or "SSL" in getattr(told.get("connection_class"), "__name__", "")
    nodes = tuple((node.host, int(node.port)) for node in manager.startup_nodes.values())
    shown = _shown(library, tls, "+cluster", nodes)
    return ServerAddress(
        "cluster", nodes, shown, tls, "", _greeting(told), library=library, remap=manager.address_remap
    )


def _of_sentinel(pool: Any, library: str, tls: bool) -> ServerAddress:
    asked = [sentinel.connection_pool.connection_kwargs for sentinel in pool.sentinel_manager.sentinels]
    nodes = tuple((one["host"], int(one["port"])) for one in asked)
    shown = f"{_shown(library, tls, '+sentinel', nodes)}/{quote(pool.service_name)}"
    options = _greeting(pool.connection_kwargs)
    return ServerAddress("sentinel", nodes, shown, tls, pool.service_name, options, _greeting(asked[0]), library)


def _greeting(told: Mapping[str, Any]) -> dict[str, Any]:
    wanted = {name: value for name, value in told.items() if name in _GREETING or name.startswith("ssl_")}
    return {name: value for name, value in wanted.items() if value is not None and not (name == "db" and not value)}


def _shown(library: str, tls: bool, shape: str, nodes: Iterable[Node]) -> str:
    scheme = {"valkey": "valkeys", "redis": "rediss"}[library] if tls else library
    return f"{scheme}{shape}://" + ",".join(f"{host}:{port}" for host, port in nodes)
