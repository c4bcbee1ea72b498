"""What a command sets up for itself and takes away again: a server, keys on a server of others, worker processes."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from penstock.app import Penstock
from penstock.driver import embedded
from penstock.driver.retrying import code
from penstock.errors import ConfigurationError, ServerUnavailable

LOT = 5000


@dataclass(frozen=True, slots=True)
class Place:
    """Where a server is. `pid` is its process if it is ours, else None."""

    address: str
    pid: int | None = None


@contextlib.contextmanager
def temporary_server(url: str | None, purpose: str) -> Iterator[Place]:
    """The server at this address, or one in a temporary folder that ends with this."""
    if url:
        yield Place(url)
        return
    if os.environ.get("PENSTOCK_EMBEDDED") == "0":
        raise ConfigurationError("PENSTOCK_EMBEDDED=0 forbids a server of our own: name one with --url")
    with tempfile.TemporaryDirectory(prefix=f"penstock-{purpose}-", ignore_cleanup_errors=True) as folder:
        home = Path(folder, embedded.HOME)
        with embedded.attach(home) as attachment:
            try:
                yield Place(attachment.address, attachment.pid)
            finally:
                embedded.stop(home)


def keep_nothing(app: Penstock) -> None:
    """A server of our own writes no file: what is in it is of no use to anybody later."""
    with library_client(app) as client:
        client.config_set("appendonly", "no")


@contextlib.contextmanager
def library_client(app: Penstock) -> Iterator[Any]:
    """The library's own client, for what is no verb of ours, with our error for any of its own."""
    try:
        yield app._driver.connector.blocking_client()
    except Exception as error:
        if not code(error):  # neither the server's nor of the way to it
            raise
        raise ServerUnavailable(f"lost the server at {app._driver.connector.address}: {error}") from error


def clear(app: Penstock, pattern: str) -> None:
    """Delete every key that matches. A scan, because an interrupted run leaves keys that nobody else could name."""
    with library_client(app) as client:
        client.ping()  # after the answer, the server has also done what a killed worker had sent
        keys = client.scan_iter(match=pattern, count=1000)
        while lot := list(islice(keys, LOT)):
            client.unlink(*lot)
