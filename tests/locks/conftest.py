"""Each test runs on both faces, and in three places: on a server, on a cluster, and with a client of the user."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from penstock.driver.listening import channel_name
from tests.everywhere import face, place  # noqa: F401 - fixtures
from tests.servers import Cluster, Server

FrozenFace = Callable[..., str]


@pytest.fixture
def frozen_face() -> Iterator[FrozenFace]:
    """`frozen_face(server, "h", key)` makes a face that gets messages and does nothing. Returns an address of it."""
    with ExitStack() as opened:

        def subscribe(deployment: Server | Cluster, name: str, key: str) -> str:
            is_cluster = isinstance(deployment, Cluster)
            server = deployment.owner(key) if isinstance(deployment, Cluster) else deployment
            channel = channel_name(name, key, is_cluster=is_cluster)
            subscriber: Any = server.client.pubsub()
            opened.callback(subscriber.close)
            subscriber.ssubscribe(channel)
            assert subscriber.get_sharded_message(timeout=10)["type"] == "ssubscribe"
            return f"{channel}/1"

        yield subscribe
