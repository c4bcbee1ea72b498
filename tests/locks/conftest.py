"""Each test runs on both faces, and in three places: on a server, on a cluster, and with a client of the user."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from penstock import Penstock
from penstock.driver.listening import channel_name
from tests.conftest import until
from tests.everywhere import face, place  # noqa: F401 - fixtures
from tests.locks.absent_waiters import leased
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


ABSENT = Path(__file__).with_name("absent_waiters.py")


class Crowd:
    """Processes that wait for one lock until they are killed."""

    def __init__(
        self, server: Server, app: Penstock, kind: str, name: str, *, processes: int, faces: int, waiters: int
    ) -> None:
        words = [sys.executable, str(ABSENT), server.address, app.settings.prefix, kind, name]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        self.size = processes * faces * waiters
        self._key = leased(app, kind, name).bindings.declared[0] + "waiters"
        self._client = server.client
        self._running = [
            subprocess.Popen([*words, str(faces), str(waiters)], env=environment) for _ in range(processes)
        ]

    def waiting(self) -> int:
        return int(self._client.zcard(self._key))

    async def arrived(self) -> None:
        await until(lambda: self.waiting() == self.size, 60)

    def kill(self) -> None:
        for one in self._running:
            one.kill()
        for one in self._running:
            one.wait()


@pytest.fixture
def crowd(app: Penstock, deployment: Server) -> Iterator[Callable[..., Crowd]]:
    made: list[Crowd] = []

    def start(kind: str, name: str, **sizes: int) -> Crowd:
        made.append(Crowd(deployment, app, kind, name, **sizes))
        return made[-1]

    yield start
    for one in made:
        one.kill()
