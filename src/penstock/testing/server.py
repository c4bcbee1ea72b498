"""A temporary Valkey server: for tests, for examples, and for commands that need a server for one run."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.embedded import client as embedded
from penstock.errors import ConfigurationError

_FORBIDDEN = "PENSTOCK_EMBEDDED=0 forbids the embedded server: "

_addresses: set[str] = set()
"""The addresses of the temporary servers that run in this process now."""


class TemporaryServer:
    """A real server in a temporary folder that runs for the duration of a `with` or `async with` block.

        with TemporaryServer() as server, Penstock(server.address) as app:
            app.queue("mail").put("hello")

    The server is the program that `$PENSTOCK_SERVER` names, else the one of `penstock[server]`, else a `valkey-server`
    or `redis-server` on PATH. It listens on a unix socket and starts in about 0.1 s; any number of servers can run side
    by side. At the end of the block the server stops and its data is deleted. If the process is killed inside the
    block, the server stops too, but the folder with its data remains.

    Entering raises ConfigurationError where no such program is found, or with PENSTOCK_EMBEDDED=0.
    """

    def __init__(self) -> None:
        self._attachment: embedded.Attachment | None = None
        self._cleanup = contextlib.ExitStack()

    @property
    def address(self) -> str:
        """`unix://…`, for `Penstock(…)`, for $PENSTOCK_URL and for any client library."""
        return self._running().address

    @property
    def pid(self) -> int:
        """The process id of the server."""
        return self._running().pid

    def _running(self) -> embedded.Attachment:
        if self._attachment is None:
            raise RuntimeError("this TemporaryServer is not running: use it inside its `with` block")
        return self._attachment

    def __enter__(self) -> TemporaryServer:
        if os.environ.get("PENSTOCK_EMBEDDED") == "0":
            raise ConfigurationError(f"{_FORBIDDEN}unset it, or test on a server at PENSTOCK_URL")
        with contextlib.ExitStack() as cleanup:
            folder = tempfile.TemporaryDirectory(prefix="penstock-", ignore_cleanup_errors=True)
            home = Path(cleanup.enter_context(folder), embedded.HOME)
            self._attachment = cleanup.enter_context(embedded.attach(home))
            cleanup.callback(embedded.stop, home)
            _addresses.add(self.address)
            cleanup.callback(_addresses.discard, self.address)
            self._cleanup = cleanup.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._attachment = None
        self._cleanup.close()

    async def __aenter__(self) -> TemporaryServer:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.__exit__)


def is_temporary(address: str) -> bool:
    """Whether a TemporaryServer of this process runs at this address."""
    return address.partition("?")[0] in _addresses


@dataclass(frozen=True, slots=True)
class ServerInUse:
    """The server that a command works on. `pid` is its process if the command started it, else None."""

    address: str
    pid: int | None = None


@contextlib.contextmanager
def given_or_temporary_server(url: str | None) -> Iterator[ServerInUse]:
    """The server at `url`; without a `url`, a temporary server that ends with the block."""
    if url:
        yield ServerInUse(url)
        return
    if os.environ.get("PENSTOCK_EMBEDDED") == "0":
        raise ConfigurationError(f"{_FORBIDDEN}name one with --url")
    with TemporaryServer() as server:
        yield ServerInUse(server.address, server.pid)
