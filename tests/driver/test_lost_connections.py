"""The server closes connections while calls are being written: each call is sent again, and nothing else happens."""

import asyncio
import contextlib
import gc
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.core.operations import Operation, SendCommands
from penstock.errors import ServerUnavailable
from tests.conftest import until
from tests.driver.operations import QUICK, FaceDriver, append, numbered, shown
from tests.servers import Server
from tests.speed import scaled

CALLERS = 40


@pytest.mark.parametrize("size", [10, 100_000])
async def test_calls_survive_the_loss_of_every_connection(own_server: Server, size: int):
    """Since Python 3.12 a transport raises AttributeError when it writes to a connection that was lost."""
    driver = FaceDriver("aio", own_server.address)
    faults = list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
    ended = asyncio.Event()

    async def call(number: int) -> int:
        calls = 0
        while not ended.is_set():
            await driver.run(numbered(f"k{{{number}}}", f"{calls} {'x' * size}"))
            calls += 1
        return calls

    tasks = [asyncio.create_task(call(number)) for number in range(CALLERS)]
    for _ in range(60):
        await asyncio.sleep(0.02)
        await asyncio.to_thread(own_server.client.client_kill_filter, _type="normal", skipme=True)
    ended.set()
    calls = await asyncio.wait_for(asyncio.gather(*tasks), scaled(20))
    assert faults == []
    assert min(calls) > 0
    await driver.aclose()


async def test_the_reader_may_be_the_last_to_see_a_loss(own_server: Server):
    """A transport that is closing is not written to, even before the connection's reader has run."""
    driver = FaceDriver("aio", own_server.address)
    await driver.run(append("{lost}k", "before"))
    (connection,) = driver.server_driver.aio._shared.values()
    with contextlib.suppress(AttributeError):
        connection._connection._writer.transport.abort()
    await asyncio.wait_for(driver.run(append("{lost}k", "after")), scaled(2))
    assert await driver.run(shown("{lost}k")) == ["before", "after"]
    await driver.aclose()


async def test_a_connection_in_use_survives_the_closing_of_the_idle_ones(face: str, own_server: Server):
    """A call that ends after another has closed the idle connections leaves its own to the next call and to `close`."""
    node = (str(own_server.socket), 0)

    def blocked(seconds: float) -> Operation[Any]:
        return (yield SendCommands(node, (("BLPOP", "nothing", str(seconds)),), own_connection=True))

    def clients() -> set[str]:
        return {one["id"] for one in own_server.client.client_list()}

    driver = FaceDriver(face, own_server.address)
    async with driver.running(blocked(0.6)):
        await asyncio.sleep(0.2)
        await driver.run(blocked(0.01))
        getattr(driver.server_driver, face).close_connections(node)
    before = clients()
    await driver.run(blocked(0.01))
    assert clients() == before
    assert len(before) > 1
    await driver.aclose()
    await until(lambda: len(clients()) == 1)  # the test's own


@pytest.mark.parametrize("is_unix", [False, True], ids=["tcp", "unix"])
async def test_asyncio_reports_nothing_about_a_connection_that_was_reset(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_unix: bool
):
    """It would log "Future exception was never retrieved" when the connection's objects are collected.

    asyncio has a guard against that, which comes too late if the future is collected before the protocol.
    """
    monkeypatch.delattr(asyncio.StreamReaderProtocol, "__del__")
    faults = list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
    with socket.socket(socket.AF_UNIX if is_unix else socket.AF_INET) as server, ThreadPoolExecutor() as threads:
        server.bind(str(tmp_path / "s") if is_unix else ("127.0.0.1", 0))
        server.listen()
        address = f"unix://{tmp_path / 's'}" if is_unix else f"valkey://127.0.0.1:{server.getsockname()[1]}"

        def reset_each() -> None:
            with contextlib.suppress(OSError):  # the test has ended
                while True:
                    accepted, _ = server.accept()
                    accepted.recv(1)
                    accepted.close()  # with unread bytes, so it is a reset

        threads.submit(reset_each)
        driver = FaceDriver("aio", address, replace(QUICK, give_up_after=0.5))
        with pytest.raises(ServerUnavailable):
            await driver.run(append("{reset}k", "x"))
        await driver.aclose()
        server.shutdown(socket.SHUT_RDWR)
    gc.collect()
    assert faults == []
