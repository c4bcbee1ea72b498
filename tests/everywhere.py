"""Fixtures that run a test on both faces, and on a server, on a cluster, and with a client handed in."""

import pytest


@pytest.fixture(params=["blocking", "aio"])
def face(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["valkey", "cluster", "redis"])
def place(request: pytest.FixtureRequest) -> str:
    return str(request.param)
