"""Servers of one test, and a driver on each face."""

import itertools
from collections.abc import AsyncIterator, Callable

import pytest
import redis
import redis.asyncio

from tests import everywhere
from tests.driver.operations import FaceDriver
from tests.servers import Server

_names = itertools.count()
face = everywhere.face


@pytest.fixture
def own_server(start: Callable[..., Server]) -> Server:
    return start()


@pytest.fixture(params=["valkey", "redis"])
async def driver(face: str, server: Server, request: pytest.FixtureRequest) -> AsyncIterator[FaceDriver]:
    """By address, with valkey-py, and by a blocking client of redis-py."""
    client = redis.Redis(unix_socket_path=str(server.socket)) if request.param == "redis" else None
    made = FaceDriver(face, client or server.address)
    yield made
    await made.aclose()
    if client is not None:
        client.close()


@pytest.fixture
def key() -> str:
    return f"k{{{next(_names)}}}"
