"""What a command sets up for itself and takes away again: a server, keys on a server of others, worker processes."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.embedded import client as embedded
from penstock.errors import ConfigurationError


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
