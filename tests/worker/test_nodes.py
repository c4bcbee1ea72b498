"""Queues on several nodes of a cluster: a node that does not answer must not delay the queues of the others."""

import asyncio
import time

import pytest

from penstock import Penstock
from tests.conftest import MakeApp, until
from tests.servers import Cluster
from tests.speed import scaled
from tests.worker.in_process import running_worker


@pytest.fixture
def place() -> str:
    return "cluster"


@pytest.fixture
def app(make_app: MakeApp) -> Penstock:
    return make_app(lease=1.2)


def two_queues_on_different_nodes(app: Penstock, cluster: Cluster) -> tuple[str, str]:
    """The names of two queues that are on different nodes."""
    names = {cluster.owner(app.queue(f"q{n}").first.bindings.keys.base): f"q{n}" for n in range(20)}
    first, second, *_ = names.values()
    return first, second


async def test_a_queue_whose_node_does_not_answer_delays_no_other_queue(app: Penstock, cluster: Cluster):
    frozen_queue, other_queue = two_queues_on_different_nodes(app, cluster)

    @app.task(queue=frozen_queue)
    async def there() -> str:
        return "there"

    @app.task(queue=other_queue)
    async def here(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "here"

    async with running_worker(app, queues=(frozen_queue, other_queue)):
        assert await (await there.enqueue.aio()).result.aio(scaled(20)) == "there"
        job = await there.enqueue.aio()
        with cluster.owner(app.queue(frozen_queue).first.bindings.keys.base).frozen():
            began, served_at = time.monotonic(), list[float]()
            # The node is frozen for a fixed time: after some seconds the cluster would declare it failed.
            while len(served_at) < 5 or served_at[-1] < 1.5:
                assert await (await here.enqueue.aio(0.01)).result.aio(scaled(20)) == "here"
                served_at.append(time.monotonic() - began)
        assert served_at[4] < scaled(1.5)
        assert await job.result.aio(scaled(30)) == "there"


async def test_a_lease_is_kept_while_the_node_of_another_queue_does_not_answer(app: Penstock, cluster: Cluster):
    frozen_queue, other_queue = two_queues_on_different_nodes(app, cluster)

    @app.task(queue=frozen_queue)
    async def there() -> None:
        await asyncio.sleep(2)

    @app.task(queue=other_queue)
    async def here() -> None:
        await asyncio.sleep(3)

    async with running_worker(app, queues=(frozen_queue, other_queue)) as worker:
        jobs = [await there.enqueue.aio(), await here.enqueue.aio()]
        await until(lambda: len(worker._runs.running) == 2)
        with cluster.owner(app.queue(frozen_queue).first.bindings.keys.base).frozen():
            await asyncio.sleep(1.6)
        for job in jobs:
            await job.result.aio(scaled(30))
    assert (await app.queue(other_queue).count.aio()).lost == 0
