"""One server for the script-level tests, empty at the start of each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers import Server
from tests.store.stand import Stand


@pytest.fixture(scope="session")
def store_server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture
def stand(store_server: Server) -> Stand:
    store_server.client.flushall()
    return Stand(store_server.client)
