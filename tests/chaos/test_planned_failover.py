"""Planned fail-overs while processes produce, and own locks: nothing is lost, and no lock has two owners.

`SENTINEL FAILOVER` and `CLUSTER FAILOVER`, as an operator orders them.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from penstock import LeaseLost, NotDurable, Penstock, Settings
from tests.chaos import groups
from tests.chaos.load import WORK, WorkerWork
from tests.chaos.load import Load as LoadOfAll
from tests.clusters import FailoverServers, ReplicatedCluster, SentinelServers
from tests.servers import Server, eventually
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


# --- every component ---

TRIES = 10 if "PENSTOCK_STORM_SECONDS" in os.environ else 1

LEASE = 3.0
"""Seconds. Also of a receiver of files, which has the lease of the app."""

SLOW = {
    *("latch.meet", "latch.meet_too", "barrier.meet", "barrier.meet_too", "election.observe"),
    "worker.enqueue_durably",
}
"""Parts that wait for each other or for a change, for longer than a second also without a fail-over; and the one that
waits until a replica follows the new primary, and the Sentinels agree on that."""


class Announcement:
    """When the successor was announced: by the Sentinels, or by the replica of a cluster that became the primary."""

    def __init__(self, servers: FailoverServers) -> None:
        self._servers, self._survivors = servers, servers.survivors
        self.at = math.inf
        self.heir = servers.victim
        self._thread = threading.Thread(target=self._await, daemon=True)
        self._thread.start()

    def _await(self) -> None:
        while self.heir is self._servers.victim:
            time.sleep(0.005)
            self.heir = next(filter(self._is_announced, self._survivors), self.heir)
        self.at = time.monotonic()

    def _is_announced(self, one: Server) -> bool:
        if isinstance(self._servers, SentinelServers):
            return any(sentinel.primary_port() == one.port for sentinel in self._servers.sentinels)
        return one.role() == "master"

    def wait(self) -> float:
        self._thread.join(scaled(30))
        return self.at


@contextlib.contextmanager
def worker_of(servers: FailoverServers, prefix: str, queue: str) -> Iterator[None]:
    with groups.workers() as started:
        environment = {"SWITCH_URL": servers.address, "SWITCH_PREFIX": prefix, "SWITCH_QUEUE": queue}
        started.append(groups.start("tests.chaos.switch_app:app", "-c", "4", **environment))
        yield


@pytest.mark.parametrize("attempt", range(TRIES))
def test_every_component_continues_and_keeps_its_promises(servers: FailoverServers, attempt: int):
    prefix = f"p{os.urandom(3).hex()}"
    with Penstock(servers.address, prefix=prefix, settings=Settings(give_up_after=60, lease=LEASE)) as app:
        load = LoadOfAll(app, name=servers.name, kinds=(*WORK, WorkerWork))
        jobs = load.work[-1]
        assert isinstance(jobs, WorkerWork)
        with worker_of(servers, prefix, jobs.name):
            with load:
                load.until_all_continue()
                began = time.time()
                announcement = Announcement(servers)
                servers.plan_fail_over()
                at = announcement.wait()
                eventually(servers.has_failed_over)
                load.until_all_continue()
                if TRIES > 1:
                    servers.recover()  # ten seconds behind Sentinels, until the old primary is demoted
                    load.until_all_continue()
            eventually(lambda: not (count := app.queue(jobs.name).count()).waiting and not count.running, 30)
        gaps = load.gaps(at)
        done = announcement.heir.client.hgetall(app.queue(jobs.name).key("done"))
        jobs.completed.update({int(n): int(times) for n, times in done.items()})
        print(load)
        print(f"{jobs.doubts} in doubt; gaps: { ({name: round(gap, 2) for name, gap in sorted(gaps.items())}) }")
        # A plain call that was answered in the milliseconds before a promotion may be lost behind Sentinels.
        is_cluster = isinstance(servers, ReplicatedCluster)
        assert load.violations(upto=math.inf if is_cluster else began) == []
        gaps["files.receive"] -= LEASE  # of the receiver, if its release was lost
        late = {name: gap for name, gap in gaps.items() if name not in SLOW and gap > scaled(1)}
        assert late == {}
