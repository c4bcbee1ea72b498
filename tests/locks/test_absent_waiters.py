"""Waiters whose process is gone delay the others by milliseconds, however many they are."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock import Penstock
from tests.conftest import MakeApp, until
from tests.locks.absent_waiters import leased
from tests.servers import Server
from tests.speed import scaled

ABSENT = Path(__file__).with_name("absent_waiters.py")
KINDS = ["lock", "semaphore", "rwlock"]

pytestmark = pytest.mark.parametrize("place", ["valkey"])


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


@pytest.mark.parametrize("kind", KINDS)
async def test_a_crowd_that_was_killed_delays_the_last_waiter_by_milliseconds(
    app: Penstock, make_app: MakeApp, kind: str, crowd: Callable[..., Crowd]
):
    name = f"crowd:{kind}"
    held = await leased(app, kind, name).acquire.aio()
    absent = crowd(kind, name, processes=3, faces=5, waiters=20)
    await absent.arrived()
    last = asyncio.create_task(leased(make_app(prefix=app.settings.prefix), kind, name).acquire.aio())
    await until(lambda: absent.waiting() == absent.size + 1)
    absent.kill()
    await asyncio.sleep(0.2)
    began = time.monotonic()
    await held.release.aio()
    got = await asyncio.wait_for(last, scaled(1.5))
    assert time.monotonic() - began < scaled(0.05)
    await got.release.aio()
