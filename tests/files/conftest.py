"""These tests run with both faces, on a single server, on a cluster, and with a client that the caller supplies."""

from collections.abc import Iterator
from typing import Any

import pytest

from penstock import Channel, Penstock
from penstock.files import source_reader, upload
from tests.everywhere import face, place  # noqa: F401 - fixtures
from tests.files.channel_calls import CLOCK
from tests.jobs.stand import START
from tests.servers import Server


@pytest.fixture
def channel(app: Penstock) -> Channel:
    return app.files("access")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make blocks and round trips so small that short files take many of them."""
    monkeypatch.setattr(source_reader, "BLOCK_SIZE", 100)
    monkeypatch.setattr(upload, "BLOCKS_PER_PUT", 2)


@pytest.fixture
def client(script_server: Server) -> Iterator[Any]:
    """A client of an empty server, for calls of single scripts."""
    script_server.client.flushall()
    CLOCK.now_ms = START
    yield script_server.client
    CLOCK.now_ms = START
