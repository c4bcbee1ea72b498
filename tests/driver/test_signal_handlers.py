"""What a signal handler raises while a reply is awaited ends the call, also if it looks like a fault of the network."""

import signal
import time
from collections.abc import Callable, Iterator

import pytest

from penstock import Penstock
from penstock.core.operations import RoundTrip
from penstock.driver.server_driver import ServerDriver
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
