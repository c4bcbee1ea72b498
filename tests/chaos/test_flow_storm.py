"""Large flows while workers are killed and frozen: each waits for all of its parts, and then runs once."""

import contextlib
import os
import time

from penstock import RESULT, Penstock
from tests.chaos import flow_app, groups
from tests.chaos.groups import Group
from tests.servers import Server
from tests.speed import Deadline, scaled

PARTS = int(os.environ.get("PENSTOCK_FLOW", "300"))


def start(address: str) -> Group:
    return groups.start("tests.chaos.flow_app:app", "-c", "10", FLOW_URL=address)


def test_a_flow_over_two_queues_ends_once_whatever_is_killed_or_frozen():
    with (
        Server() as server,
        contextlib.closing(Penstock(server.address, prefix="flow")) as app,
        groups.workers() as running,
    ):
        part = app.task(queue="parts", name=flow_app.part.name)(lambda number: None)
        total = app.task(queue="totals", name=flow_app.total.name)(lambda numbers, name: None)
        job = part.map(range(PARTS)).then(total.call(RESULT, "all")).enqueue()
        running += [start(server.address) for _ in range(2)]
        deadline, shocks = Deadline(60 + PARTS / 20), 0
        while (done := server.client.hlen(flow_app.PARTS)) < PARTS:
            assert not deadline.passed(), f"{done} of {PARTS} after {shocks} shocks"
            if done * 4 > (shocks + 1) * PARTS and shocks < 3:
                shocks += 1
                victim = running.pop(0)
                if shocks % 2:
                    groups.kill(victim)
                    running.append(start(server.address))
                else:
                    groups.freeze(victim)
                    time.sleep(1.5)
                    groups.thaw(victim)
                    running.append(victim)
            time.sleep(0.01)
        assert shocks >= 2, "at least one worker was killed, and one was frozen"
        assert job.result(scaled(30)) == sum(range(PARTS))
        assert server.client.hgetall(flow_app.PARTS) == {b"%d" % number: b"1" for number in range(PARTS)}
        assert server.client.hgetall(flow_app.TOTALS) == {b"all": b"1"}
        assert app.queue("parts").count().dead == app.queue("totals").count().dead == 0
