"""A raw client for commands that Penstock does not wrap."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import islice
from typing import Any

from penstock.app import Penstock
from penstock.driver.retrying import error_code
from penstock.errors import ServerUnavailable

KEYS_PER_UNLINK = 5000


@contextlib.contextmanager
def raw_client(app: Penstock) -> Iterator[Any]:
    """The blocking client of valkey-py or redis-py that the app itself uses.

    Raises ServerUnavailable in place of the client library's own errors.
    """
    try:
        yield app._driver.connector.blocking_client()
    except Exception as error:
        if not error_code(error):  # not an error of the server or of the connection
            raise
        raise ServerUnavailable(f"lost the server at {app._driver.connector.address}: {error}") from error


def disable_persistence(app: Penstock) -> None:
    """Keep a temporary server from writing files: its data is not needed after it ends."""
    with raw_client(app) as client:
        client.config_set("appendonly", "no")


def has_keys(app: Penstock, pattern: str) -> bool:
    """Whether any key matches the pattern. Scans the keys of the server until it finds one."""
    with raw_client(app) as client:
        return next(iter(client.scan_iter(match=pattern, count=1000)), None) is not None


def delete_keys(app: Penstock, pattern: str) -> int:
    """Delete every key that matches the pattern; returns how many there were.

    Scans all keys of the server, because an interrupted run leaves keys whose names are unknown.
    """
    deleted = 0
    with raw_client(app) as client:
        client.ping()  # once this returns, the server has executed all that a killed worker sent
        keys = client.scan_iter(match=pattern, count=1000)
        while batch := list(islice(keys, KEYS_PER_UNLINK)):
            deleted += client.unlink(*batch)
    return deleted
