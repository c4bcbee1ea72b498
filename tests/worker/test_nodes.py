"""Queues on several nodes: one that is away must not keep the others from being served."""

import asyncio
import time

import pytest

from penstock import Penstock
from tests.conftest import MakeApp, until
from tests.servers import Cluster
from tests.speed import scaled
from tests.worker.work import at_work


@pytest.fixture
def place() -> str:
    return "cluster"


@pytest.fixture
def app(make_app: MakeApp) -> Penstock:
    return make_app(lease=1.2)


def on_other_nodes(app: Penstock, cluster: Cluster) -> tuple[str, str]:
    """Two queues, each on another node."""
    names = {cluster.owner(app.queue(f"q{n}").bindings.keys.base): f"q{n}" for n in range(20)}
    first, second, *_ = names.values()
    return first, second


async def test_a_queue_whose_node_is_away_holds_up_no_other(app: Penstock, cluster: Cluster):
    away, near = on_other_nodes(app, cluster)

    @app.task(queue=away)
    async def there() -> str:
        return "there"

    @app.task(queue=near)
    async def here(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "here"

    async with at_work(app, queues=(away, near)):
        assert await (await there.enqueue.aio()).result.aio(scaled(20)) == "there"
        job = await there.enqueue.aio()
        with cluster.owner(app.queue(away).bindings.keys.base).frozen():
            began, served = time.monotonic(), 0
            while time.monotonic() - began < scaled(1.5):
                assert await (await here.enqueue.aio(0.01)).result.aio(scaled(20)) == "here"
                served += 1
        assert served >= 5
        assert await job.result.aio(scaled(30)) == "there"


async def test_a_lease_is_kept_while_the_node_of_another_queue_is_away(app: Penstock, cluster: Cluster):
    away, near = on_other_nodes(app, cluster)

    @app.task(queue=away)
    async def there() -> None:
        await asyncio.sleep(2)

    @app.task(queue=near)
    async def here() -> None:
        await asyncio.sleep(3)

    async with at_work(app, queues=(away, near)) as worker:
        jobs = [await there.enqueue.aio(), await here.enqueue.aio()]
        await until(lambda: len(worker._inflight.running) == 2)
        with cluster.owner(app.queue(away).bindings.keys.base).frozen():
            await asyncio.sleep(1.6)
        for job in jobs:
            await job.result.aio(scaled(30))
    assert (await app.queue(near).count.aio()).lost == 0
