"""A raw client for commands that Penstock does not wrap."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import islice
from typing import Any

from penstock.app import Penstock
from penstock.driver.retrying import code
from penstock.errors import ServerUnavailable

LOT = 5000


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
