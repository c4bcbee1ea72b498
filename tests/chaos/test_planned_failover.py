"""Planned fail-overs while processes produce, and own locks: nothing is lost, and no lock has two owners.

`SENTINEL FAILOVER` and `CLUSTER FAILOVER`, as an operator orders them.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from penstock import LeaseLost, NotDurable, Penstock
from tests.clusters import FailoverServers, ReplicatedCluster, SentinelServers
from tests.servers import eventually
from tests.speed import scaled

PROMOTION = 1.5
"""Seconds until the Sentinels announce a planned fail-over: they ask the new primary for its role once a second."""


@pytest.fixture(params=[ReplicatedCluster, SentinelServers], ids=["cluster", "sentinel"])
def servers(request: pytest.FixtureRequest) -> Iterator[FailoverServers]:
    with request.param() as started:
        yield started


class Load:
    """Repeats what a test does in threads until `stop`, and keeps what went wrong."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []
        self.longest = 0.0
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, work: Callable[[], object], pause: float = 0.002) -> None:
        def repeat() -> None:
            while not self._ended.is_set():
                began = time.monotonic()
                try:
                    work()
                except NotDurable:
                    pass
                except Exception as error:
                    self.errors.append(error)
                self.longest = max(self.longest, time.monotonic() - began)
                time.sleep(pause)

        thread = threading.Thread(target=repeat, daemon=True)
        thread.start()
        self._threads.append(thread)

    def stop(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(scaled(20))


def fail_over(servers: FailoverServers) -> None:
    """A planned one, and the demotion of the old primary."""
    servers.plan_fail_over()
    eventually(servers.has_failed_over)
    servers.recover()


@pytest.mark.parametrize("durable", [False, True], ids=["plain", "durable"])
def test_no_accepted_job_is_lost(servers: FailoverServers, durable: bool):
    with Penstock(servers.address, prefix=f"p{os.urandom(3).hex()}") as app:
        queue = app.queue(servers.name(lambda name: app.queue(name).key("x")))
        accepted: list[int] = []
        load = Load()

        def produce() -> None:
            queue.put(len(accepted), durable=durable)
            accepted.append(1)

        for _ in range(3):
            load.start(produce)
        time.sleep(0.5)
        fail_over(servers)
        time.sleep(0.5)
        load.stop()
        assert load.errors == []
        assert load.longest < PROMOTION + scaled(1.5)
        assert queue.count().waiting >= len(accepted) > 100
        queue.purge()


def test_no_lock_has_two_sure_owners(servers: FailoverServers):
    with contextlib.ExitStack() as stack:
        prefix = f"p{os.urandom(3).hex()}"
        apps = [stack.enter_context(Penstock(servers.address, prefix=prefix)) for _ in range(3)]
        name = servers.name(lambda name: apps[0].lock(name).key)
        owners, overlaps, acquired = 0, 0, 0
        guard, load = threading.Lock(), Load()

        def own(app: Penstock) -> None:
            nonlocal owners, overlaps, acquired
            with contextlib.suppress(LeaseLost), app.lock(name, lease=3, wait=scaled(20)) as held:
                with guard:
                    owners, acquired = owners + 1, acquired + 1
                    overlaps += owners > 1
                try:
                    until = time.monotonic() + 0.05
                    while time.monotonic() < until and not held.lost.is_set():
                        time.sleep(0.002)
                finally:
                    with guard:
                        owners -= 1

        for app in apps:
            load.start(lambda app=app: own(app))  # type: ignore[misc]
        time.sleep(0.5)
        fail_over(servers)
        load.stop()
        assert load.errors == []
        assert overlaps == 0
        assert acquired > 5
        assert load.longest < PROMOTION + scaled(5)
