"""Every component at work while primaries fail and while slots move: nothing that was replicated is lost, nothing else
is lost or doubled, and all of it continues."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

from penstock import Penstock, Settings
from penstock.core.slots import slot
from tests.chaos.load import WORK, Load
from tests.clusters import FailoverServers, ReplicatedCluster, SentinelServers
from tests.servers import Cluster, eventually
from tests.slot_moves import move_slot, serves

PATIENT = Settings(give_up_after=60, lease=2)
IN_STORMS = pytest.mark.skipif("PENSTOCK_STORM_SECONDS" not in os.environ, reason="`make storm` runs this")


def kill(servers: FailoverServers) -> None:
    servers.victim.kill()


def freeze(servers: FailoverServers) -> None:
    servers.freeze_machine()


def freeze_and_thaw(servers: FailoverServers) -> None:
    """The old primary thaws when another one has taken over."""
    servers.victim.freeze()


@pytest.mark.parametrize(
    ("kind", "fail"),
    [
        pytest.param(ReplicatedCluster, kill, id="cluster-kill"),
        pytest.param(ReplicatedCluster, freeze, id="cluster-freeze", marks=IN_STORMS),
        pytest.param(ReplicatedCluster, freeze_and_thaw, id="cluster-thaw", marks=IN_STORMS),
        pytest.param(SentinelServers, kill, id="sentinel-kill", marks=IN_STORMS),
        pytest.param(SentinelServers, freeze, id="sentinel-freeze", marks=IN_STORMS),
        pytest.param(SentinelServers, freeze_and_thaw, id="sentinel-thaw", marks=IN_STORMS),
    ],
)
def test_every_component_continues_after_a_fail_over_under_load(
    kind: type[FailoverServers], fail: Callable[[FailoverServers], None]
):
    with kind() as servers, Penstock(servers.address, prefix="load", settings=PATIENT) as app:
        with Load(app, name=servers.name) as load:
            load.until_all_continue()
            replicated = time.time()
            servers.replicate()
            fail(servers)
            eventually(servers.has_failed_over)
            if fail is freeze_and_thaw:
                servers.victim.thaw()
            load.until_all_continue(60)
        print(load)
        assert load.violations(upto=replicated) == []


@pytest.mark.parametrize("pause", [0.0, pytest.param(0.01, marks=IN_STORMS)], ids=["fast", "throttled"])
def test_every_component_keeps_its_promises_while_its_slots_move(small_cluster: Cluster, pause: float):
    """Each slot moves to the other node and back, key by key."""
    prefix = f"load{time.monotonic_ns()}"
    with Penstock(small_cluster.address, prefix=prefix, settings=PATIENT) as app:
        with Load(app) as load:
            load.until_all_continue()
            slots = [slot(kind.key(app, f"n{number}")) for number, kind in enumerate(WORK)]
            nodes = small_cluster.nodes
            for number in [*slots, *slots]:
                owner = next(one for one in nodes if serves(one, number))
                move_slot(owner, next(one for one in nodes if one is not owner), number, pause)
            load.until_all_continue()
        print(load)
        assert load.violations() == []
