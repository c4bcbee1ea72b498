"""The undocumented attributes of valkey-py and redis-py that the driver uses. Only this module touches them.

    of a blocking connection    `_sock`, its socket, and `_parser`, whose `_reader` parses in C where that is installed
    of an asyncio connection    `_writer`, its `asyncio.StreamWriter`, and the hook `on_connect`
    of a pipeline               `command_stack` and `pipeline_execute_command`
    of a client                 its pool, the pool's arguments, the Sentinels and the nodes of a cluster

`tests/driver/test_library.py` checks each of them for both libraries; a failed test names the attribute.

Penstock reads only the address and the login from a user's client. With them, the driver opens its own connections
through the client's library, for blocking and for asyncio callers. So the client's pool, its timeouts and its
`decode_responses` have no effect here, and Penstock never closes the client. This module imports no client library.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from penstock.core.slots import Node
from penstock.driver.address import EXAMPLES, ServerAddress
from penstock.errors import ConfigurationError

if TYPE_CHECKING:  # a program without asyncio need not wait for its import
    import asyncio

# The options taken from a client: how to log in to the server, not how long to wait for it.
_LOGIN_OPTIONS = ("db", "username", "password", "credential_provider", "client_name")


# --- connections ---


def open_socket(connection: Any) -> socket.socket | None:
    """The socket of a blocking connection; None if it is not connected."""
    opened: socket.socket | None = connection._sock
    return opened


def reply_parser(connection: Any) -> tuple[Any, object] | None:
    """The parser in C of a blocking connection that is open, and what its `gets` returns before a reply is whole.

    None if the library parses replies in Python.
    """
    parser = connection._parser
    reader = getattr(parser, "_reader", None)
    incomplete = getattr(sys.modules.get(type(parser).__module__), "NOT_ENOUGH_DATA", None)
    return None if incomplete is None or not hasattr(reader, "feed") else (reader, incomplete)


def stream_writer(connection: Any) -> asyncio.StreamWriter | None:
    """The writer of an asyncio connection; None if it is not connected."""
    writer: asyncio.StreamWriter | None = connection._writer
    return writer


async def log_in(connection: Any) -> None:
    """Log in on an asyncio connection that was just opened; the library calls it while it connects.

    Since Python 3.12 `writelines` also writes to a transport whose connection is lost. It may then leave a writer
    registered for a descriptor that the next connection gets (CPython issue 136234). `write` does not.
    """
    if (writer := stream_writer(connection)) is not None:
        guarded: Any = writer
        guarded.writelines = lambda data: writer.write(b"".join(data))
    vars(connection).pop("on_connect", None)  # see `log_in_only_once`
    try:
        await connection.on_connect()
    except BaseException:
        if writer is not None:
            await end_writer(writer)
        raise


def log_in_only_once(connection: Any) -> None:
    """Let an asyncio connection over a unix socket log in only in `log_in`.

    It would call `on_connect` before that as well, and forget its writer if that fails.
    """
    connection.on_connect = _not_yet


async def _not_yet() -> None:
    pass


async def end_writer(writer: asyncio.StreamWriter) -> None:
    """Close it at once, and wait for that. Otherwise asyncio may log later why its connection was lost."""
    writer.transport.abort()
    with contextlib.suppress(Exception):
        await writer.wait_closed()


def log_in_option(library: str) -> dict[str, Any]:
    """The argument that makes an asyncio connection call `log_in`."""
    return {f"{library}_connect_func": log_in}


def socket_number(connection: Any) -> int:
    """The file descriptor under an asyncio connection, also one of uvloop; -1 if it is not connected."""
    writer = stream_writer(connection)
    found: Any = None if writer is None else writer.get_extra_info("socket")
    return -1 if found is None else int(found.fileno())


def copied_socket(connection: Any) -> socket.socket | None:
    """The socket under an asyncio connection, so that a forked child can close its copy.

    The transport only wraps the socket. Closing the transport would also change the selector, which parent and child
    share.
    """
    writer = stream_writer(connection)
    copy: socket.socket | None = getattr(writer and writer.get_extra_info("socket"), "_sock", None)
    return copy


# --- pipelines ---


def is_cluster_pipeline(pipeline: Any) -> bool:
    return any(kind.__name__ == "ClusterPipeline" for kind in type(pipeline).__mro__)


def pipeline_commands(pipeline: Any) -> list[Any]:
    """The commands of a pipeline that were not sent yet. Each execute() begins a new list."""
    commands: list[Any] = pipeline.command_stack
    return commands


def add_command(pipeline: Any, *words: Any) -> None:
    """Add a command to a pipeline. After a WATCH, `execute_command` would send it at once."""
    pipeline.pipeline_execute_command(*words)


# --- clients ---


def read_client(client: Any) -> ServerAddress:
    """The address of a client's server.

    `client`: a client or a connection pool of valkey-py or redis-py, blocking or asyncio, for one server, Sentinel or a
    cluster. Raises ConfigurationError for anything else.
    """
    library = next((root for root in _root_packages(client) if root in {"valkey", "redis"}), None)
    if library and hasattr(client, "nodes_manager"):
        return _read_cluster_client(client, library)
    pool = getattr(client, "connection_pool", client)
    if library is None or not hasattr(pool, "connection_kwargs"):
        raise ConfigurationError(
            f"{type(client).__name__} is not a client of valkey-py or redis-py: pass one of those, or write {EXAMPLES}"
        )
    names = {kind.__name__ for kind in pool.connection_class.__mro__}
    arguments = pool.connection_kwargs
    tls = "SSLConnection" in names
    if hasattr(pool, "sentinel_manager"):
        return _read_sentinel_pool(pool, library, tls)
    if "UnixDomainSocketConnection" in names:
        path = arguments["path"]
        return ServerAddress(
            "server", ((path, 0),), f"unix://{path}", options=_login_options(arguments), library=library
        )
    node = arguments.get("host", "localhost"), int(arguments.get("port", 6379))
    display = _display(library, tls, "", [node]) + (f"/{arguments['db']}" if arguments.get("db") else "")
    return ServerAddress("server", (node,), display, tls, options=_login_options(arguments), library=library)


def sentinel_clients(client: Any) -> Iterable[Any]:
    """The clients with which an asyncio client asks the Sentinels. Closing that client does not close them."""
    manager = getattr(getattr(client, "connection_pool", None), "sentinel_manager", None)
    return manager.sentinels if manager else ()


def _root_packages(client: Any) -> Iterable[str]:
    return (kind.__module__.partition(".")[0] for kind in type(client).__mro__)


def _read_cluster_client(client: Any, library: str) -> ServerAddress:
    manager = client.nodes_manager
    # The blocking and the asyncio client keep their arguments in different places.
    arguments = getattr(client, "connection_kwargs", None) or manager.connection_kwargs
    tls = bool(arguments.get("ssl")) or "SSL" in getattr(arguments.get("connection_class"), "__name__", "")
    nodes = tuple((node.host, int(node.port)) for node in manager.startup_nodes.values())
    display = _display(library, tls, "+cluster", nodes)
    return ServerAddress(
        "cluster", nodes, display, tls, "", _login_options(arguments), library=library, remap=manager.address_remap
    )


def _read_sentinel_pool(pool: Any, library: str, tls: bool) -> ServerAddress:
    sentinels = [sentinel.connection_pool.connection_kwargs for sentinel in pool.sentinel_manager.sentinels]
    nodes = tuple((one["host"], int(one["port"])) for one in sentinels)
    display = f"{_display(library, tls, '+sentinel', nodes)}/{quote(pool.service_name)}"
    options = _login_options(pool.connection_kwargs)
    return ServerAddress(
        "sentinel", nodes, display, tls, pool.service_name, options, _login_options(sentinels[0]), library
    )


def _login_options(arguments: Mapping[str, Any]) -> dict[str, Any]:
    wanted = {name: value for name, value in arguments.items() if name in _LOGIN_OPTIONS or name.startswith("ssl_")}
    return {name: value for name, value in wanted.items() if value is not None and not (name == "db" and not value)}


def _display(library: str, tls: bool, topology: str, nodes: Iterable[Node]) -> str:
    scheme = {"valkey": "valkeys", "redis": "rediss"}[library] if tls else library
    return f"{scheme}{topology}://" + ",".join(f"{host}:{port}" for host, port in nodes)
