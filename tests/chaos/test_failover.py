"""The primary fails while processes wait for every component, and a replica takes over: every wait ends in time.

All waits of a test experience one fail-over. There is a process for each of them, in which nothing else happens that
could notice the failure; and one process for each face that waits for everything at once.
"""

from __future__ import annotations

import faulthandler
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock import Penstock
from penstock.testing import message_violations
from tests.chaos import storm
from tests.chaos.waiting_processes import Waiting, WaitingProcesses, everything
from tests.chaos.waits import PREFIX, WAITS
from tests.clusters import FailoverServers, ReplicatedCluster, SentinelServers
from tests.servers import eventually

LIMIT = 5.0
"""Seconds from the end of the fail-over, and from an event after it, to the end of the wait for that event."""

NEXT_LIMIT = 1.0
"""Seconds from a later event to the end of the wait for it."""


def plan(servers: FailoverServers) -> list[Waiting]:
    """All names are chosen so that their keys are on the primary that fails."""
    with Penstock(servers.address, prefix=PREFIX) as app:

        def name(component: str, stem: str) -> str:
            return servers.name(lambda name: WAITS[component].key(app, name), stem)

        together = [everything(face, "together", name) for face in ("blocking", "aio")]
        alone = [everything(face, "alone", name) for face in ("blocking", "aio")]
    return together + [Waiting(process.face, [wait]) for process in alone for wait in process.waits]


@pytest.fixture(params=[ReplicatedCluster, SentinelServers], ids=["cluster", "sentinel"])
def servers(request: pytest.FixtureRequest) -> Iterator[FailoverServers]:
    with request.param() as started:
        yield started


def freeze(servers: FailoverServers) -> None:
    servers.victim.freeze()


def freeze_machine(servers: FailoverServers) -> None:
    """Behind Sentinels, one of them runs on the same machine."""
    servers.freeze_machine()


def kill(servers: FailoverServers) -> None:
    servers.victim.kill()


def plan_fail_over(servers: FailoverServers) -> None:
    """Nothing fails: an operator orders it."""
    servers.plan_fail_over()


@pytest.mark.parametrize(
    ("fail", "is_thawed"),
    [(freeze_machine, False), (kill, False), (freeze, True), (plan_fail_over, False)],
    ids=["freeze", "kill", "thaw", "planned"],
)
def test_every_wait_survives_a_fail_over(servers: FailoverServers, fail: Callable[..., Any], is_thawed: bool):
    """`make storm` has several fail-overs, one after the other."""
    fail_overs = max(1, int(storm.seconds() / 200))
    if fail_overs > 1:
        faulthandler.cancel_dump_traceback_later()  # it takes longer than other tests may
    with WaitingProcesses(servers.address, rounds=1 + 3 * fail_overs) as processes:
        processes.start(*plan(servers))
        with Penstock(servers.address, prefix=PREFIX) as app:
            processes.trigger(app, 0)
        assert processes.late(0, 10) == []
        for n in range(1, 1 + 3 * fail_overs, 3):
            if n > 1:
                servers.recover()
            time.sleep(1)  # all of them wait again
            servers.replicate()
            fail(servers)
            began = time.time()
            eventually(servers.has_failed_over)
            end = time.time()
            print(f"fail-over in {end - began:.2f} s")
            if is_thawed:
                servers.victim.thaw()
            with Penstock(servers.address, prefix=PREFIX) as app:
                processes.trigger(app, n)
                late = processes.late(n, LIMIT, since=end)
                processes.trigger(app, n + 1)
                late += processes.late(n + 1, NEXT_LIMIT)
                if is_thawed:
                    eventually(lambda: servers.victim.role() == "slave")
                processes.trigger(app, n + 2)
                late += processes.late(n + 2, NEXT_LIMIT)
            assert late == []
        assert message_violations(processes.message_events()) == []
