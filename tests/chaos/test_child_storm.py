"""Orders with children while workers are killed: each step runs one child, and each answer arrives."""

import contextlib
import os
import time
from typing import Any

from penstock import Job, Penstock
from tests.chaos import child_app, groups
from tests.chaos.groups import Group
from tests.servers import Server
from tests.speed import Deadline, scaled

ORDERS = int(os.environ.get("PENSTOCK_CHILDREN", "60"))


def start(address: str) -> Group:
    return groups.start("tests.chaos.child_app:app", "-c", "10", CHILD_URL=address)


def test_a_step_runs_one_child_whatever_is_killed():
    with (
        Server() as server,
        contextlib.closing(Penstock(server.address, prefix="child")) as app,
        groups.workers() as running,
    ):
        fulfil: Any = app.task(queue="orders", name=child_app.fulfil.name)(lambda order: None)
        jobs: list[Job[Any]] = app.enqueue_many(fulfil.call(number) for number in range(ORDERS))
        running += [start(server.address) for _ in range(2)]
        deadline, kills, ledgers = Deadline(90 + ORDERS / 5), 0, child_app.LEDGERS.values()
        while (done := sum(server.client.hlen(ledger) for ledger in ledgers)) < 6 * ORDERS:
            assert not deadline.passed(), f"{done} of {6 * ORDERS} after {kills} kills"
            if done * 5 > (kills + 1) * 6 * ORDERS and kills < 4:
                kills += 1
                groups.kill(running.pop(0))
                running.append(start(server.address))
            time.sleep(0.01)
        assert kills >= 3
        for job in jobs:
            assert job.result(scaled(30)) == [0, 1, 2, 3, 4, 5]
        counts = [count for ledger in ledgers for count in server.client.hvals(ledger)]
        assert counts == [b"1"] * (6 * ORDERS)
        assert app.queue("orders").count().dead == app.queue("bank").count().dead == 0
