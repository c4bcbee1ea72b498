"""Fixtures of the tests of the dashboard: a server for each module, and an app with a prefix of its own."""

from collections.abc import Iterator

import pytest

from penstock import Penstock
from penstock.testing import TemporaryServer


@pytest.fixture(scope="module")
def server() -> Iterator[TemporaryServer]:
    with TemporaryServer() as server:
        yield server


@pytest.fixture
def app(server: TemporaryServer, request: pytest.FixtureRequest) -> Iterator[Penstock]:
    with Penstock(server.address, prefix=f"p{abs(hash(request.node.nodeid)) % 10**9}") as app:
        yield app
