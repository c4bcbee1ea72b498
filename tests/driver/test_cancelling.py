"""What a cancelled or interrupted operation still does."""

import asyncio
from typing import Any

import anyio
import anyio.to_thread
import pytest

from penstock.core.operations import Listen, Operation, Wait
from penstock.driver.aio_connection import AioConnection
from penstock.driver.server_driver import ServerDriver
from tests.conftest import until
from tests.driver.operations import (
    QUICK,
    FaceDriver,
    append,
    count,
    shown,
)
from tests.servers import Server, interrupt_when
from tests.speed import scaled


def waiting_in_order(key: str) -> Operation[str]:
    """As a lock waits: with a place among the waiters, which it gives up when the wait is cancelled."""
    listener = yield Listen(key)
    yield append(key, "in")
    try:
        yield Wait(listener, None)
    except BaseException:
        yield append(key, "out")
        yield append(key, "gone")
        raise
    return "woken"


@pytest.mark.parametrize("scope", ["task", "anyio"])
async def test_a_cancelled_wait_cleans_up(key: str, server: Server, scope: str):
    driver = FaceDriver("aio", server.address)
    if scope == "task":
        task = asyncio.create_task(driver.run(waiting_in_order(key)))
        await until(lambda: server.client.llen(key) == 1)
        await asyncio.sleep(scaled(0.1))  # until the reply has been read and the wait begins
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        with anyio.move_on_after(1) as timeout:
            await driver.run(waiting_in_order(key))
        assert timeout.cancelled_caught
    assert server.client.lrange(key, 0, -1) == [b"in", b"out", b"gone"]
    await driver.aclose()


def test_an_interrupted_wait_cleans_up(key: str, server: Server):
    driver = ServerDriver(server.address, QUICK)
    with interrupt_when(lambda: server.client.llen(key) == 1), pytest.raises(KeyboardInterrupt):
        driver.blocking.run(waiting_in_order(key))
    assert server.client.lrange(key, 0, -1) == [b"in", b"out", b"gone"]
    assert driver.blocking.run(count(key + "n")) == 1
    driver.close()


async def test_a_cancelled_call_affects_no_other(key: str, server: Server):
    driver = FaceDriver("aio", server.address)
    others: list[asyncio.Task[Any]] = []
    for n in range(300):
        keys = f"{key}{n}"
        cancelled = asyncio.create_task(driver.run(append(keys, "a")))
        others.append(asyncio.create_task(driver.run(append(keys, "b"))))
        others.append(asyncio.create_task(driver.run(shown(keys))))
        for _ in range(n % 5):
            await asyncio.sleep(0)
        cancelled.cancel()
    answers = await asyncio.gather(*others)
    assert all(answers[i] in {1, 2} and answers[i + 1][-1] == "b" for i in range(0, 600, 2))
    assert sum("penstock" in one.get("lib-name", "") for one in server.client.client_list()) <= 1
    await driver.aclose()


async def test_a_face_that_is_closed_while_its_subscriber_logs_in_leaves_no_connection(
    key: str, server: Server, monkeypatch: pytest.MonkeyPatch
):
    """Otherwise the end of a worker would wait for ever for the reader of that connection."""
    driver = FaceDriver("aio", server.address)
    exchange, logs_in = AioConnection.exchange, asyncio.Event()

    async def never_answered(connection: AioConnection, *commands: Any) -> Any:
        if commands[0] == ("CLIENT", "ID"):
            logs_in.set()
            await asyncio.sleep(60)
        return await exchange(connection, *commands)

    monkeypatch.setattr(AioConnection, "exchange", never_answered)
    listener = driver.server_driver.aio.listen(key)
    await asyncio.wait_for(logs_in.wait(), scaled(20))
    await asyncio.wait_for(driver.aclose(), scaled(5))
    listener.close()
