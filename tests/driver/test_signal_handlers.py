"""What a signal handler raises while a reply is awaited ends the call, also if it looks like a fault of the network."""

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from penstock import Penstock
from penstock.core.operations import RoundTrip
from penstock.driver.aio_connection import AioConnection
from penstock.driver.library import stream_writer
from penstock.driver.server_driver import ServerDriver
from penstock.driver.subscriber import Subscriber
from tests.conftest import until
from tests.driver.operations import append, waiting
from tests.servers import Server, handling
from tests.speed import scaled

ERRORS = [TimeoutError, OSError, ConnectionError, ConnectionResetError, EOFError, ValueError]


@pytest.fixture
def server(start: Callable[..., Server]) -> Iterator[Server]:
    started = start()
    yield started
    started.thaw()


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("work", [append("{signal}k", "x"), append("{signal}k", "x", durable=True)])
def test_the_error_of_an_alarm_ends_a_call_at_a_silent_server(
    server: Server, kind: type[Exception], work: RoundTrip[int]
):
    driver = ServerDriver(server.address)
    driver.blocking.run(append("{signal}k", "first"))
    server.freeze()
    assert ends_with_alarm(kind, lambda: driver.blocking.run(work)) < scaled(2)
    server.thaw()
    driver.close()


def test_the_error_of_an_alarm_ends_a_call_at_a_server_that_is_away(server: Server):
    driver = ServerDriver(server.address)
    driver.blocking.run(append("{signal}k", "first"))
    server.kill()
    assert ends_with_alarm(TimeoutError, lambda: driver.blocking.run(append("{signal}k", "x"))) < scaled(2)
    driver.close()
    server.start()


def test_the_error_of_an_alarm_ends_a_wait(server: Server):
    driver = ServerDriver(server.address)
    assert ends_with_alarm(TimeoutError, lambda: driver.blocking.run(waiting("{signal}k", 20))) < scaled(2)
    driver.close()


def test_a_wait_that_an_alarm_ended_leaves_nothing(server: Server):
    with Penstock(server.address) as app, Penstock(server.address) as other:
        held = other.lock("signal", lease=20).acquire()
        assert ends_with_alarm(OSError, app.lock("signal", lease=20, wait=None).acquire) < scaled(2)
        held.release()
        with app.lock("signal", wait=0):
            pass


# --- asyncio ---


@pytest.fixture
async def app(server: Server) -> AsyncIterator[Penstock]:
    async with Penstock(server.address) as opened:
        await opened.queue("signal").count.aio()
        yield opened


def interrupt_once(connection: AioConnection, kind: type[Exception]) -> contextlib.AbstractContextManager[None]:
    """A signal arrives while the task that reads the replies reads the next one. Its handler raises `kind`."""
    parser = connection._connection._parser
    read = parser.read_response

    async def read_response(*args: Any, **kwargs: Any) -> Any:
        reply = await read(*args, **kwargs)
        del parser.read_response
        signal.raise_signal(signal.SIGALRM)
        return reply

    parser.read_response = read_response
    return raising(kind)


def raising(kind: type[Exception]) -> contextlib.AbstractContextManager[None]:
    def handler(number: int, frame: object) -> None:
        raise kind("mine")

    return handling(handler, signal.SIGALRM)


@pytest.mark.parametrize("kind", ERRORS)
async def test_the_error_of_a_handler_that_interrupts_the_reader_ends_the_call(app: Penstock, kind: type[Exception]):
    queue = app.queue("signal")
    (connection,) = app._driver.aio._shared.values()
    await queue.count.aio()
    with interrupt_once(connection, kind):
        began = time.monotonic()
        others = [asyncio.create_task(queue.count.aio()) for _ in range(5)]
        with pytest.raises(kind, match="mine"):
            await asyncio.gather(*others)
        assert time.monotonic() - began < scaled(1)
        ends = await asyncio.gather(*others, return_exceptions=True)
    assert [type(end) for end in ends].count(kind) == 1  # the connection is opened again for the others
    assert (await queue.count.aio()).ready == 0


@pytest.mark.parametrize("kind", ERRORS)
async def test_the_error_of_a_handler_that_interrupts_the_sender_ends_the_call(app: Penstock, kind: type[Exception]):
    queue = app.queue("signal")
    (connection,) = app._driver.aio._shared.values()
    writer = stream_writer(connection._connection)
    assert writer is not None
    write = writer.write

    def interrupted(data: bytes) -> None:
        del writer.write
        signal.raise_signal(signal.SIGALRM)
        write(data)

    writer.write = interrupted  # type: ignore[method-assign, assignment]
    with raising(kind), pytest.raises(kind, match="mine"):
        await queue.count.aio()
    assert (await queue.count.aio()).ready == 0


@pytest.mark.parametrize("kind", [TimeoutError, ValueError])
async def test_a_wait_outlives_a_handler_that_interrupts_its_subscriber(
    server: Server, app: Penstock, kind: type[Exception]
):
    queue, reported = app.queue("signal"), list[Any]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
    wait = asyncio.create_task(queue.claim.aio(wait=20))
    subscribers = app._driver.aio._subscriber_tasks
    await until(lambda: subscribers and all(channel_is_ready(one) for one in subscribers))
    (subscriber,) = subscribers
    (channel,) = subscriber.channels
    connection: Any = subscriber._connection
    with interrupt_once(connection, kind):
        # The read that is under way is not interrupted, only the one after it. So it takes two messages.
        await until(lambda: server.client.execute_command("SPUBLISH", channel, "") and reported)
    await queue.put.aio("x")
    (item,) = await asyncio.wait_for(wait, scaled(20))
    assert [type(error) for error in reported] == [kind]
    assert not subscribers[subscriber].done()
    await item.complete.aio()


def channel_is_ready(subscriber: Subscriber) -> bool:
    return bool(subscriber.channels) and all(channel.is_subscribed for channel in subscriber.channels.values())


async def test_a_handler_of_the_loop_that_raises_disturbs_no_call(server: Server, app: Penstock):
    loop, reported = asyncio.get_running_loop(), list[Any]()
    loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))

    def handler() -> None:
        raise TimeoutError("mine")

    loop.add_signal_handler(signal.SIGALRM, handler)
    server.freeze()
    call = asyncio.create_task(app.queue("signal").put.aio("x"))
    await asyncio.sleep(0.1)
    signal.raise_signal(signal.SIGALRM)
    await until(lambda: reported)
    server.thaw()
    await call
    loop.remove_signal_handler(signal.SIGALRM)
    assert [str(error) for error in reported] == ["mine"]


def test_the_error_of_an_alarm_ends_the_loop_that_waits_for_a_reply(server: Server):
    async def call() -> None:
        async with Penstock(server.address) as app:
            await app.queue("signal").count.aio()
            server.freeze()
            await app.queue("signal").count.aio()

    assert ends_with_alarm(TimeoutError, lambda: asyncio.run(call())) < scaled(3)


def ends_with_alarm(kind: type[Exception], work: Callable[[], object]) -> float:
    """Seconds until `work`, which an alarm interrupts, has raised what the handler raised."""

    def handler(number: int, frame: object) -> None:
        raise kind("mine")

    with handling(handler, signal.SIGALRM):
        began = time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        try:
            with pytest.raises(kind, match="mine"):
                work()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    return time.monotonic() - began
