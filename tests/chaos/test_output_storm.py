"""Jobs emit while their workers are killed: the run that completed has each of its chunks once and in order."""

import contextlib
import itertools
import os
import threading
import time
from typing import Any

import pytest

from penstock import Penstock
from penstock.info import OutputPart
from tests.chaos import groups, output_app
from tests.chaos.groups import Group
from tests.servers import Server
from tests.speed import Deadline, scaled

JOBS = int(os.environ.get("PENSTOCK_OUTPUT", "60"))


def start(address: str) -> Group:
    return groups.start("tests.chaos.output_app:app", "-c", "10", "--processes", "0", OUTPUT_URL=address)


def last_run(parts: list[OutputPart]) -> list[Any]:
    return [part.chunk for part in parts if part.attempt == parts[-1].attempt]


@pytest.mark.parametrize("queue", ["loop", "thread"])
def test_the_run_that_completed_has_its_chunks_once_and_in_order(queue: str):
    with (
        Server() as server,
        contextlib.closing(Penstock(server.address, prefix="output")) as app,
        groups.workers() as running,
    ):
        task = app.task(queue=queue, name=output_app.tasks[queue].name)(lambda number: None)
        jobs = [task.enqueue(number) for number in range(JOBS)]
        live: dict[str, list[OutputPart]] = {}
        readers = [threading.Thread(target=lambda job=job: live.update({job.id: [*job.output()]})) for job in jobs[::6]]
        for reader in readers:
            reader.start()
        running += [start(server.address) for _ in range(2)]
        deadline, kills = Deadline(90 + JOBS), 0
        while (left := app.queue(queue).count()).ready + left.running + left.delayed:
            assert not deadline.passed(), f"{left} after {kills} kills"
            time.sleep(0.7)
            if kills < 4 and left.running:
                groups.kill(running.pop(0))
                running.append(start(server.address))
                kills += 1
        assert kills >= 2
        runs = 0
        for number, job in enumerate(jobs):
            assert job.result(scaled(30)) == number
            parts = [*job.output()]
            assert last_run(parts) == [f"{number}.{place}" for place in range(output_app.CHUNKS)]
            runs += len({part.attempt for part in parts})
            for one, other in itertools.pairwise(parts):
                assert (one.attempt, one.missed) <= (other.attempt, 0)
        assert runs > JOBS, "no job ran again"
        for reader in readers:
            reader.join(scaled(30))
        assert live == {job.id: [*job.output()] for job in jobs[::6]}
        assert app.queue(queue).count().dead == 0
