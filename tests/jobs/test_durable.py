"""`durable=True`: the enqueue returns when the job is on disk, or raises an error that says why it cannot."""

from collections.abc import Callable
from typing import Any

import pytest

from penstock import Penstock
from penstock.errors import DurabilityUnavailable
from tests.conftest import Do
from tests.servers import Server, needs_waitaof


@pytest.fixture
def place() -> str:
    return "valkey"


@needs_waitaof
async def test_a_durable_job_is_on_the_disk(do: Do, start: Callable[..., Server]):
    server = start("--appendonly", "yes", "--appendfsync", "always")
    app = Penstock(server.address)

    @app.task(queue="raw")
    def task(n: int) -> None: ...

    queue = app.queue("raw")
    await do(queue.put, 1, durable=True)
    await do(queue.put_many, [2, 3], durable=True)
    await do(task.using(durable=True).enqueue, 4)
    await do(app.enqueue_many, [task.using(durable=True).call(5)])
    assert server.client.info("commandstats")["cmdstat_waitaof"]["calls"] >= 4
    server.restart()
    assert (await do(queue.count)).ready == 5
    await app.aclose()


@pytest.mark.parametrize(
    "options",
    [("--appendonly", "yes", "--appendfsync", "everysec"), ("--appendonly", "no")],
    ids=["everysec", "no log"],
)
async def test_nothing_is_enqueued_if_the_server_cannot_promise_the_disk(
    do: Do, start: Callable[..., Server], options: Any
):
    app = Penstock(start(*options).address)

    @app.task(queue="raw")
    def task(n: int) -> None: ...

    queue = app.queue("raw")
    for verb, *arguments in [(queue.put, 1), (queue.put_many, [1, 2])]:
        with pytest.raises(DurabilityUnavailable, match="appendfsync always"):
            await do(verb, *arguments, durable=True)
    with pytest.raises(DurabilityUnavailable):
        await do(task.using(durable=True).enqueue, 1)
    assert (await do(queue.count)).waiting == 0
    await do(queue.put, 1)
    await app.aclose()
