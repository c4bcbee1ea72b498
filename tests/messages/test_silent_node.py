"""A member whose index of chats is on a node that does not answer."""

import asyncio
import contextlib
import time
from collections.abc import Iterator

import pytest

from penstock import Penstock
from tests.conftest import Do
from tests.servers import Cluster
from tests.speed import scaled


@pytest.fixture
def patient_cluster() -> Iterator[Cluster]:
    """A cluster that continues to serve while one of its nodes is frozen."""
    with Cluster(2) as started:
        for node in started.nodes:
            node.ask("CONFIG", "SET", "cluster-node-timeout", 60_000)
        yield started


@pytest.mark.parametrize("face", ["blocking", "aio"])
async def test_a_silent_member_does_not_delay_a_sender(patient_cluster: Cluster, do: Do, face: str):
    app = Penstock(patient_cluster.address)
    silent, healthy = patient_cluster.nodes

    def named(kind: str, node: object) -> Iterator[str]:
        for n in range(1000):
            if patient_cluster.owner(f"{{penstock:{kind}:{n}}}") is node:
                yield str(n)

    (far, *_), (near, *_) = named("chats", silent), named("chats", healthy)
    chat = await app.chats.create.aio([far, near], id=next(named("chat", healthy)))
    mine, theirs = app.chats.of(near), app.chats.of(far)
    for member in (mine, theirs):
        assert not await member.pull.aio()  # from now on it wants to be notified
    with silent.frozen():
        for _ in range(3):
            began = time.monotonic()
            await do(chat.send, near, "hi")
            assert time.monotonic() - began < scaled(1)
        (first, *_) = await asyncio.wait_for(mine.pull.aio(wait=20), scaled(10))
        assert first.body == "hi"
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(theirs.pull.aio(wait=20), scaled(30))
    assert [message.body for message in await theirs.pull.aio()] == ["hi"] * 3
    await app.aclose()
