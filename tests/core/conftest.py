"""These tests run on both faces, on one server and on a cluster, with an address and with a client."""

from typing import Any

import pytest

from tests.everywhere import face, place  # noqa: F401 - fixtures
from tests.servers import Server


@pytest.fixture
def client(script_server: Server) -> Any:
    """A client of an empty server, for tests of scripts."""
    script_server.client.flushall()
    return script_server.client
