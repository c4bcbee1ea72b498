"""An enqueue in a pipeline or transaction of the user's own client."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import redis
import redis.asyncio
import valkey
import valkey.asyncio

from penstock import BadCall, ConfigurationError, Penstock, Queue
from penstock.errors import PayloadTooLarge
from tests.conftest import Do, MakeApp, until
from tests.jobs.stand import idle_workers
from tests.speed import scaled


@pytest.fixture
def queue(app: Penstock) -> Queue:
    return app.queue("raw")


@pytest.fixture
async def connect(place: str, face: str, deployment: Any, queue: Queue) -> AsyncIterator[Callable[..., Any]]:
    """Makes the user's client: of the library and the face under test, or of one node of the cluster (`one_node`)."""
    library: Any = redis if place == "redis" else valkey
    module, name = library.asyncio if face == "aio" else library, library.__name__.title()
    made: list[Any] = []

    def connect(*, one_node: bool = False) -> Any:
        if place == "cluster" and not one_node:
            made.append(module.ValkeyCluster(host="127.0.0.1", port=deployment.nodes[0].port))
        else:
            node = deployment.owner(queue.key("")) if place == "cluster" else deployment
            made.append(getattr(module, name)(unix_socket_path=str(node.socket)))
        return made[-1]

    yield connect
    for client in made:
        if face == "aio":
            await client.aclose()
        else:
            client.close()


@pytest.fixture
def client(connect: Callable[..., Any]) -> Any:
    return connect()


async def execute(pipe: Any, face: str) -> list[Any]:
    done = pipe.execute()
    answers: list[Any] = await done if face == "aio" else done
    return answers


async def test_nothing_is_put_before_the_pipeline_is_executed(queue: Queue, do: Do, client: Any, face: str):
    pipe = client.pipeline()
    jobs = [queue.put_in(pipe, n, tenant="t", priority=n) for n in range(3)]
    assert (await do(queue.count)).ready == 0
    await execute(pipe, face)
    items = await do(queue.claim, 10)
    assert [(item.id, item.body, item.tenant) for item in items] == [(job.id, n, "t") for n, job in enumerate(jobs)]
    for item in items:
        await do(item.complete)


async def test_a_put_and_the_users_own_write_are_one_transaction(
    queue: Queue, do: Do, connect: Callable[..., Any], face: str, raw: Any
):
    key = queue.key("daily")
    pipe = connect(one_node=True).pipeline(transaction=True)
    pipe.incr(key)
    job = queue.put_in(pipe, "x", delay=60)
    pipe.incr(key)
    replies = await execute(pipe, face)
    assert (replies[0], replies[-1]) == (1, 2)
    assert (await do(job.info)).body == "x"
    raw.delete(key)


@pytest.mark.parametrize("transaction", [True, False])
async def test_a_server_that_forgot_the_script_runs_the_pipeline_whole(
    queue: Queue, do: Do, connect: Callable[..., Any], face: str, nodes: list[Any], transaction: bool
):
    await do(queue.put, 0)
    for node in nodes:
        node.script_flush()
    pipe = connect(one_node=True).pipeline(transaction=transaction)
    for n in (1, 2):
        queue.put_in(pipe, n)
    await execute(pipe, face)
    items = await do(queue.claim, 10)
    assert [item.body for item in items] == [0, 1, 2]
    for item in items:
        await do(item.complete)


async def test_a_discarded_transaction_puts_nothing(queue: Queue, do: Do, client: Any, face: str):
    pipe = client.pipeline()
    queue.put_in(pipe, "x")
    if face == "aio":
        await pipe.reset()
    else:
        pipe.reset()
    assert (await do(queue.count)).ready == 0


async def test_a_refused_value_leaves_the_pipeline_unchanged(make_app: MakeApp, do: Do, client: Any, face: str):
    queue = make_app(max_payload=10).queue("raw")
    pipe = client.pipeline()
    queue.put_in(pipe, "good")
    for value, error in ((object(), BadCall), ("x" * 20, PayloadTooLarge)):
        with pytest.raises(error):
            queue.put_in(pipe, value)
    with pytest.raises(ValueError, match="priority=10"):
        queue.put_in(pipe, "x", priority=10)
    with pytest.raises(ConfigurationError, match="colour"):
        queue.put_in(pipe, "x", colour="red")  # type: ignore[call-arg]
    await execute(pipe, face)
    assert (await do(queue.count)).ready == 1


async def test_a_task_is_enqueued_in_a_pipeline(app: Penstock, do: Do, client: Any, face: str):
    @app.task(queue="raw")
    def add(a: int, b: int = 2) -> int: ...  # type: ignore[empty-body]

    pipe = client.pipeline()
    with pytest.raises(BadCall):
        add.enqueue_in(pipe, "one")  # type: ignore[arg-type]
    job = add.using(tenant="t").enqueue_in(pipe, 1, b=3)
    await execute(pipe, face)
    (item,) = await do(app.queue("raw").claim, 10)
    assert (item.id, item.body, item.tenant) == (job.id, ["add", {"a": 1, "b": 3}], "t")
    await do(item.complete, 4)
    assert await do(job.result) == 4


async def test_a_put_in_a_pipeline_wakes_a_waiting_claim(queue: Queue, do: Do, client: Any, face: str, raw: Any):
    waiting = asyncio.create_task(do(queue.claim, wait=10))
    await until(lambda: idle_workers(raw, queue.first.bindings.keys.base))
    pipe = client.pipeline()
    queue.put_in(pipe, "x")
    await execute(pipe, face)
    (item,) = await asyncio.wait_for(waiting, scaled(1))
    await do(item.complete)
