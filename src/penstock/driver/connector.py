"""How to reach a server: its address, its version, and connections for both faces.

Nothing is imported, opened or started before the first operation. An app is created while its module is imported, and a
program that only prints its help must wait neither for a client library (200 ms) nor for a server.
"""

from __future__ import annotations

import math
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias
from weakref import WeakKeyDictionary, WeakMethod, WeakSet, WeakValueDictionary

from penstock.config import Configuration
from penstock.core.slots import Node
from penstock.driver.address import ServerAddress, parse_address
from penstock.driver.library import log_in_only_once, log_in_option, read_client, sentinel_clients
from penstock.driver.route import Route
from penstock.errors import ConfigurationError
from penstock.settings import Settings

if TYPE_CHECKING:  # imported only when it is used
    import asyncio

    from penstock.driver.retrying import Attempts
    from penstock.embedded.client import Attachment


class ConnectionHolder(Protocol):
    """The blocking engine of a process, or the engine of one event loop."""

    pid: int
    """The process that made it."""

    def hang_up(self, node: Node) -> None: ...

    def close_copies(self) -> None:
        """In a forked child: close the child's copies of the sockets of this face."""


FaceName: TypeAlias = Literal["blocking", "aio"]
Command: TypeAlias = tuple[str | bytes | int | float, ...]

_CLIENT_CLASSES = {"valkey": "Valkey", "redis": "Redis"}

# With these, an idle connection to a host that died fails within a minute, not after the kernel's default of two hours.
_KEEPALIVE = {
    getattr(socket, name): value
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)
}


# The connectors of this process, for a forked child.
_connectors: WeakSet[Connector] = WeakSet()


def _leave_parent() -> None:
    for connector in list(_connectors):
        connector.leave_parent()


os.register_at_fork(after_in_child=_leave_parent)


class Connector:
    """The knowledge about one server that both faces share: where it is, how to connect to it, and its version.

    `server`: an address, a client of valkey-py or redis-py, or None for the configured `url` and, without one, an
    embedded server.
    """

    def __init__(self, server: Any, settings: Settings) -> None:
        self.settings = settings
        self.route: Route | None = None
        """Which node serves which key; None until `locate` has found the server."""
        self.version: tuple[str, tuple[int, ...]] | None = None
        """`valkey` or `redis`, and its version; None until the first connection."""
        self._address: ServerAddress | None = None
        self._attachment: Attachment | None = None
        self._home: Path | None = None
        self._pinged: dict[Node, float] = {}
        self.follow_sentinels: Callable[[], None] = lambda: None
        """Called behind Sentinel whenever a primary was looked up."""
        self.on_takeover: list[WeakMethod[Callable[[], None]]] = []
        """Called when another node has taken over from one that this process used."""
        self._lock = threading.RLock()
        self._pid = 0
        self._faces: WeakValueDictionary[int, ConnectionHolder] = WeakValueDictionary()
        self._blocking: Any = None
        self._aio: MutableMapping[asyncio.AbstractEventLoop, Any] = WeakKeyDictionary()
        _connectors.add(self)
        if server is not None:
            self.use(parse_address(server) if isinstance(server, str) else read_client(server))

    def leave_parent(self) -> None:
        """In a forked child: close its copies of all connections, and detach from an embedded server.

        Otherwise the server and the keeper could not see that the parent has died. The next use connects again.
        """
        self._lock = threading.RLock()  # another thread may have held it at the fork
        for reference in self._faces.valuerefs():
            if (face := reference()) is not None:
                face.close_copies()
        attachment, self._attachment = self._attachment, None
        if attachment is not None:
            self._address = self.route = None
            attachment.close()

    # --- where the server is ---

    def locate(self) -> ServerAddress:
        """Find out where the server is. May start an embedded server, which takes about 100 ms."""
        with self._lock:
            if self._address is not None:
                return self._address
            if address := Configuration().text("url"):
                return self.use(parse_address(address))
            if os.environ.get("PENSTOCK_EMBEDDED") == "0":
                raise ConfigurationError(
                    "no server address is set, and PENSTOCK_EMBEDDED=0 forbids an embedded server: "
                    "set PENSTOCK_URL=valkey://host:6379/0, or write Penstock('valkey://…')"
                )
            return self._attach()

    def reattach(self) -> None:
        """Attach to the embedded server again, after its keeper died. Blocks while the server starts."""
        with self._lock:
            if self._attachment is not None:
                self._attach()

    def _attach(self) -> ServerAddress:
        from penstock.embedded import client as embedded

        # The folder is found only once: the working directory may have changed before the server is attached again.
        self._home = self._home or embedded.find_home()
        old, self._attachment = self._attachment, embedded.attach(self._home)
        if old is not None:
            old.close()
        return self.use(parse_address(self._attachment.address))

    def use(self, address: ServerAddress) -> ServerAddress:
        """Use this address from now on. Call it before the first operation."""
        if self.settings.address_remap is not None:
            address = replace(address, remap=self.settings.address_remap)
        self._address, self.route = address, Route(address)
        return address

    @property
    def given_address(self) -> ServerAddress | None:
        """The address; None for an embedded server, and for an address in the configuration that was not needed yet."""
        return None if self.is_embedded else self._address

    @property
    def address(self) -> str:
        """The address for people, without its password. Starts no server: `embedded` until one is in use."""
        if self._address is not None:
            return self._address.display
        try:
            address = Configuration().text("url")
            return parse_address(address).display if address else "embedded"
        except ConfigurationError:  # connecting raises this error
            return "an address that cannot be read"

    @property
    def is_cluster(self) -> bool:
        return self.locate().topology == "cluster"

    @property
    def is_embedded(self) -> bool:
        return self._attachment is not None

    @property
    def has_waitaof(self) -> bool:
        return self.version is not None and (self.version[0] == "valkey" or self.version >= ("redis", (7, 2)))

    # --- connections ---

    def may_ping(self, node: Node) -> bool:
        """Whether a subscriber may send the node a PING now: at most one face of a process per interval."""
        now = time.monotonic()
        if now - self._pinged.get(node, -math.inf) < self.settings.ping_interval * 0.9:
            return False
        self._pinged[node] = now
        return True

    def connection(self, face: FaceName, node: Node, *, timeout: float | None, sentinel: bool = False) -> Any:
        """A client library's connection object for a node, not connected yet. `timeout`: seconds for each reply."""
        address = self.locate()
        options = {**(address.sentinel_options if sentinel else address.options), **self._connection_options(timeout)}
        if face == "aio":
            options |= log_in_option(address.library)
        if address.is_unix:
            options |= {"path": node[0]}
            connection = self._construct(self._module(face, "connection"), "UnixDomainSocketConnection", options)
            if face == "aio":
                log_in_only_once(connection)
            return connection
        if address.tls:
            _check_files(options)
        options = {"socket_keepalive": True, "socket_keepalive_options": _KEEPALIVE} | options
        options |= {"host": node[0], "port": node[1]}
        return self._construct(
            self._module(face, "connection"), "SSLConnection" if address.tls else "Connection", options
        )

    def attempts(self, give_up_after: float) -> Attempts:
        """Attempts at an operation. Until a server was reached, they end soon if the address may be wrong.

        If the address names several nodes, it is not taken to be wrong because one of them is down or gone.
        """
        from penstock.driver.retrying import Attempts

        address = self._address
        is_new = self.version is None and (address is None or len(address.nodes) == 1)
        return Attempts(give_up_after, is_new=is_new, is_single=address is None or address.topology == "server")

    def add_face(self, face: ConnectionHolder) -> None:
        self._faces[id(face)] = face

    def hang_up(self, node: Node) -> None:
        """Close every connection of this process to a node that serves no calls now, whichever face has opened it.

        The calls on these connections fail at once and look for the node again, instead of waiting for a reply each.
        """
        if self.route is not None and self.route.note_hang_up(node):
            self._hang_up_faces(node)

    def _hang_up_faces(self, node: Node) -> None:
        for reference in self._faces.valuerefs():
            # A forked child must not touch the connections that it has inherited.
            if (face := reference()) is not None and face.pid == os.getpid():
                face.hang_up(node)

    def took_over(self, left: Node) -> None:
        """Another node has taken over from this one: leave it, and have every lease checked at its successor."""
        if self.route is not None and self.route.uses_sentinels:
            self._hang_up_faces(left)
        for reference in self.on_takeover:
            if (notify := reference()) is not None:
                notify()

    def _connection_options(self, timeout: float | None) -> dict[str, Any]:
        """Options that override those of the user's client. The library never retries: `retrying.py` does."""
        options: dict[str, Any] = {
            "socket_timeout": timeout,
            "socket_connect_timeout": self.settings.connect_timeout,
            "protocol": 2,
            "decode_responses": False,
        }
        if self.locate().library == "valkey":
            options |= {"lib_name": "penstock", "lib_version": None}
        return options

    def import_library(self) -> None:
        """Import the client library now, in less memory than its first use would take (`library_import.py`)."""
        from penstock.driver.library_import import import_library

        import_library(self.given_address.library if self.given_address else "valkey")

    def _module(self, face: FaceName, name: str) -> Any:
        library = self.locate().library
        return import_module(f"{library}.asyncio.{name}" if face == "aio" else f"{library}.{name}")

    def _construct(self, module: ModuleType, kind: str, options: Mapping[str, Any]) -> Any:
        try:
            return getattr(module, kind)(**options)
        except TypeError as error:  # the blocking and asyncio classes of a library take different TLS options
            raise ConfigurationError(
                f"{module.__name__} does not support an option of the address or the client: {error}"
            ) from None

    # --- the library's own clients, for commands that no operation covers ---

    def blocking_client(self) -> Any:
        """The library's client, one per process, whose replies are bytes. Making one for a cluster already connects."""
        if self._pid != os.getpid():
            self._blocking, self._pid = self._client("blocking"), os.getpid()
        return self._blocking

    def aio_client(self) -> Any:
        """The library's asyncio client, one per event loop."""
        import asyncio

        for loop in [loop for loop in self._aio if loop.is_closed()]:
            del self._aio[loop]
        loop = asyncio.get_running_loop()
        client = self._aio.get(loop)
        if client is None:
            client = self._aio[loop] = self._client("aio")
        return client

    def _client(self, face: FaceName) -> Any:
        address = self.locate()
        name = _CLIENT_CLASSES[address.library]
        options: dict[str, Any] = {**address.options, **self._connection_options(self.settings.reply_timeout)}
        options |= {"ssl": True} if address.tls else {}
        if address.is_unix:
            return self._construct(
                self._module(face, "client"), name, {**options, "unix_socket_path": address.nodes[0][0]}
            )
        options["socket_keepalive"] = True
        if address.topology == "cluster":
            module = self._module(face, "cluster")
            nodes = [module.ClusterNode(*node) for node in address.nodes]
            return self._construct(module, f"{name}Cluster", {**options, "startup_nodes": nodes})
        if address.topology == "sentinel":
            sentinel_options = {**self._connection_options(self.settings.reply_timeout), **address.sentinel_options}
            sentinel_options |= {"ssl": True} if address.tls else {}
            sentinel = self._module(face, "sentinel").Sentinel(
                address.nodes, sentinel_kwargs=sentinel_options, **options
            )
            return sentinel.master_for(address.service)
        host, port = address.nodes[0]
        return self._construct(self._module(face, "client"), name, {**options, "host": host, "port": port})

    # --- the end ---

    def close(self) -> None:
        """Close the blocking client and detach from an embedded server. The next use connects again."""
        client, self._blocking, self._pid = self._blocking, None, 0
        if client is not None:
            client.close()
        with self._lock:
            attachment, self._attachment = self._attachment, None
            if attachment is not None:
                self._address = self.route = None
                attachment.close()

    async def aclose(self) -> None:
        """Close the asyncio client of the running event loop."""
        import asyncio

        client = self._aio.pop(asyncio.get_running_loop(), None)
        if client is not None:
            for one in (client, *sentinel_clients(client)):
                await one.aclose()


def _check_files(options: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for a missing file of the TLS options, which the errors of the libraries do not name."""
    for name in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile"):
        if (file := options.get(name)) and not os.access(file, os.R_OK):
            raise ConfigurationError(
                f"{name}={file} in the server's address: there is no such file, or it is not readable"
            )


# An argument of more than this many bytes is sent from where it is. The libraries append to a growing string, which
# copies a large argument several times.
_LARGE = 65_536

_TEXTS = {str, bytes}


def packer() -> Callable[[Command], list[bytes]]:
    """A function that turns a command into bytes, in pieces. It is in C if libvalkey or hiredis is installed."""
    for name in ("libvalkey", "hiredis"):
        try:
            pack: Callable[[Command], bytes] = import_module(name).pack_command
        except (ImportError, AttributeError):
            continue
        return partial(_pack_checked, pack)
    return partial(_pack_checked, lambda command: b"".join(_pack(command)))


def _pack_checked(pack: Callable[[Command], bytes], command: Command) -> list[bytes]:
    last = command[-1]
    try:
        if type(last) is bytes and len(last) > _LARGE:
            return _pack(command)
        return [pack(command if _TEXTS.issuperset(map(type, command)) else _without_numbers(command))]
    except UnicodeEncodeError as error:
        raise ConfigurationError(
            f"{error.object[:80]!r}: a name or an id has half of a surrogate pair at position {error.start}, which "
            "UTF-8 lacks; decode it with errors='replace' where it comes from"
        ) from None


def _without_numbers(command: Command) -> Command:
    """The command with its numbers as texts.

    The C function crashes the process if Ctrl-C arrives while it converts a number: Python raises KeyboardInterrupt
    there, and libvalkey 4.2 and hiredis 3.5 do not check for an error.
    """
    return tuple(
        [
            one if (kind := type(one)) is str or kind is bytes or not isinstance(one, int | float) else str(one)
            for one in command
        ]
    )


def _pack(command: Command) -> list[bytes]:
    """Turn a command into bytes. Its large arguments are pieces of their own, which are not copied."""
    pieces, small = list[bytes](), [b"*%d" % len(command)]
    for argument in command:
        text = argument if isinstance(argument, bytes) else str(argument).encode()
        small.append(b"\r\n$%d\r\n" % len(text))
        if len(text) > _LARGE:
            pieces += (b"".join(small), text)
            small.clear()
        else:
            small.append(text)
    return [*pieces, b"".join((*small, b"\r\n"))]
