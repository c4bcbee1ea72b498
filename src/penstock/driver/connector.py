"""From an address, or a client that is handed in, to connections of both faces.

Nothing is imported, opened or started before the first step needs it: an app is built at import time, and a
program that only prints its help must not wait for a client library (200 ms) or a server.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Mapping, MutableMapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from weakref import WeakKeyDictionary

from penstock.config import Configuration
from penstock.core.slots import Node
from penstock.driver.address import ServerAddress, parse, read_client
from penstock.driver.route import Route
from penstock.errors import ConfigurationError, ServerTooOld
from penstock.settings import Settings

if TYPE_CHECKING:  # embedded is imported only where a server of one's own is used
    from penstock.embedded.client import Attachment

Face: TypeAlias = Literal["blocking", "aio"]
Command: TypeAlias = tuple[str | bytes | int | float, ...]

MINIMUM = {"valkey": (7, 2), "redis": (7, 0)}
"""The first versions with all commands and script flags that are used here."""

_CLASSES = {"valkey": "Valkey", "redis": "Redis"}

# A host that died without a word is noticed on an idle connection within a minute, not after the kernel's two hours.
_KEEPALIVE = {
    getattr(socket, name): value
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)
}


class Connector:
    """Everything both faces know about one server: where it is, how it is reached, whether it will do.

    `server`: an address, a client of valkey-py or redis-py, or None for $PENSTOCK_URL and else an embedded server.
    """

    def __init__(self, server: Any, settings: Settings) -> None:
        self.settings = settings
        self.route: Route | None = None
        """The way to the server; None until `locate` found it."""
        self.version: tuple[str, tuple[int, ...]] | None = None
        """`valkey` or `redis` and its number; None until a server was admitted."""
        self._origin: ServerAddress | None = None
        self._attachment: Attachment | None = None
        self._home: Path | None = None
        self._lock = threading.RLock()
        self._pid = 0
        self._blocking: Any = None
        self._aio: MutableMapping[asyncio.AbstractEventLoop, Any] = WeakKeyDictionary()
        if server is not None:
            self._follow(parse(server) if isinstance(server, str) else read_client(server))

    # --- where the server is ---

    def locate(self) -> ServerAddress:
        """Where the server is. May start an embedded server, which takes some 100 ms."""
        with self._lock:
            if self._origin is not None:
                return self._origin
            if address := Configuration().text("url"):
                return self._follow(parse(address))
            if os.environ.get("PENSTOCK_EMBEDDED") == "0":
                raise ConfigurationError(
                    "no server's address, and PENSTOCK_EMBEDDED=0 forbids a server of our own: "
                    "set PENSTOCK_URL=valkey://host:6379/0, or write Penstock('valkey://…')"
                )
            return self._attach()

    def revive(self) -> None:
        """Attach to the embedded server again, after its keeper died. Blocks while it starts."""
        with self._lock:
            if self._attachment is not None:
                self._attach()

    def _attach(self) -> ServerAddress:
        from penstock.embedded import client as embedded

        # The folder is looked for once: the working directory may be another by the time the server is revived.
        self._home = self._home or embedded.find_home()
        old, self._attachment = self._attachment, embedded.attach(self._home)
        if old is not None:
            old.close()
        return self._follow(parse(self._attachment.address))

    def _follow(self, origin: ServerAddress) -> ServerAddress:
        self._origin, self.route = origin, Route(origin)
        return origin

    @property
    def address(self) -> str:
        """For people: without the password, and without starting a server only to name it."""
        if self._origin is not None:
            return self._origin.shown
        try:
            address = Configuration().text("url")
            return parse(address).shown if address else "embedded"
        except ConfigurationError:  # told by who asked for a connection
            return "an address that cannot be read"

    @property
    def is_cluster(self) -> bool:
        return self.locate().shape == "cluster"

    @property
    def is_embedded(self) -> bool:
        return self._attachment is not None

    @property
    def has_waitaof(self) -> bool:
        return self.version is not None and (self.version[0] == "valkey" or self.version >= ("redis", (7, 2)))

    # --- connections ---

    def connection(self, face: Face, node: Node, *, timeout: float | None, sentinel: bool = False) -> Any:
        """A library's connection to a node, not opened yet. `timeout`: for each reply."""
        origin = self.locate()
        options = {**(origin.sentinel_options if sentinel else origin.options), **self._manners(timeout)}
        if origin.is_unix:
            return self._made(
                self._module(face, "connection"), "UnixDomainSocketConnection", {**options, "path": node[0]}
            )
        options = {"socket_keepalive": True, "socket_keepalive_options": _KEEPALIVE} | options
        options |= {"host": node[0], "port": node[1]}
        return self._made(self._module(face, "connection"), "SSLConnection" if origin.tls else "Connection", options)

    def _manners(self, timeout: float | None) -> dict[str, Any]:
        """How we talk, whatever a client that was handed in does. Attempts are counted in `retrying.py` alone."""
        manners: dict[str, Any] = {
            "socket_timeout": timeout,
            "socket_connect_timeout": self.settings.connect_timeout,
            "protocol": 2,
            "decode_responses": False,
        }
        if self.locate().library == "valkey":
            manners |= {"lib_name": "penstock", "lib_version": None}
        return manners

    def _module(self, face: Face, name: str) -> Any:
        library = self.locate().library
        return import_module(f"{library}.asyncio.{name}" if face == "aio" else f"{library}.{name}")

    def _made(self, module: ModuleType, kind: str, options: Mapping[str, Any]) -> Any:
        try:
            return getattr(module, kind)(**options)
        except TypeError as error:  # the faces of a library do not know the same options for TLS
            raise ConfigurationError(
                f"{module.__name__} cannot do what the address or the client asks: {error}"
            ) from None

    def admit(self, info: bytes | Exception) -> None:
        """Look at the server's `INFO server`, once; one that may not be read is trusted. Raises ServerTooOld."""
        if isinstance(info, Exception):
            self.version = "unknown", ()
            return
        said = dict(line.split(":", 1) for line in info.decode().splitlines() if ":" in line)
        name = "valkey" if "valkey_version" in said else "redis"
        text = said.get(f"{name}_version", "0")
        version = tuple(int(part) for part in text.split(".") if part.isdigit())
        if version < MINIMUM[name]:
            wanted = " or ".join(f"{n.title()} {'.'.join(map(str, v))}" for n, v in MINIMUM.items())
            raise ServerTooOld(f"{self.address} is {name.title()} {text}: Penstock needs {wanted}, or newer")
        self.version = name, version

    # --- the library's own clients, for commands that are no steps ---

    def blocking_client(self) -> Any:
        """A client of the library, one per process; replies are bytes. On a cluster making it is already I/O."""
        if self._pid != os.getpid():
            self._blocking, self._pid = self._client("blocking"), os.getpid()
        return self._blocking

    def aio_client(self) -> Any:
        """The asyncio client of the running loop."""
        for loop in [loop for loop in self._aio if loop.is_closed()]:
            del self._aio[loop]
        loop = asyncio.get_running_loop()
        client = self._aio.get(loop)
        if client is None:
            client = self._aio[loop] = self._client("aio")
        return client

    def _client(self, face: Face) -> Any:
        origin = self.locate()
        name = _CLASSES[origin.library]
        options: dict[str, Any] = {**origin.options, **self._manners(self.settings.reply_timeout)}
        options |= {"ssl": True} if origin.tls else {}
        if origin.is_unix:
            return self._made(self._module(face, "client"), name, {**options, "unix_socket_path": origin.nodes[0][0]})
        options["socket_keepalive"] = True
        if origin.shape == "cluster":
            module = self._module(face, "cluster")
            nodes = [module.ClusterNode(*node) for node in origin.nodes]
            return self._made(module, f"{name}Cluster", {**options, "startup_nodes": nodes})
        if origin.shape == "sentinel":
            greeting = {**self._manners(self.settings.reply_timeout), **origin.sentinel_options}
            greeting |= {"ssl": True} if origin.tls else {}
            sentinel = self._module(face, "sentinel").Sentinel(origin.nodes, sentinel_kwargs=greeting, **options)
            return sentinel.master_for(origin.service)
        host, port = origin.nodes[0]
        return self._made(self._module(face, "client"), name, {**options, "host": host, "port": port})

    # --- the end ---

    def close(self) -> None:
        """Close the blocking client and let go of an embedded server. The next use begins anew."""
        client, self._blocking, self._pid = self._blocking, None, 0
        if client is not None:
            client.close()
        with self._lock:
            attachment, self._attachment = self._attachment, None
            if attachment is not None:
                self._origin = self.route = None
                attachment.close()

    async def aclose(self) -> None:
        """Close the running loop's client."""
        client = self._aio.pop(asyncio.get_running_loop(), None)
        if client is not None:
            manager = getattr(getattr(client, "connection_pool", None), "sentinel_manager", None)
            for one in (client, *(manager.sentinels if manager else ())):  # the library forgets the Sentinels'
                await one.aclose()


LARGE = 65_536
"""Bytes of a last word from which on a command is put together here: the libraries grow a text as they go, and copy it
each time."""


def packer() -> Callable[[Command], bytes]:
    """Turns a command into bytes: in C, where a parser in C is installed."""
    for name in ("libvalkey", "hiredis"):
        try:
            pack: Callable[[Command], bytes] = import_module(name).pack_command
        except (ImportError, AttributeError):
            continue
        return lambda command: (_pack if _is_large(command[-1]) else pack)(command)
    return _pack


def _is_large(word: str | bytes | int | float) -> bool:
    return type(word) is bytes and len(word) > LARGE


def _pack(command: Command) -> bytes:
    """Each word is copied once."""
    parts = [b"*%d" % len(command)]
    for word in command:
        text = word if isinstance(word, bytes) else str(word).encode()
        parts += (b"\r\n$%d\r\n" % len(text), text)
    return b"".join((*parts, b"\r\n"))
