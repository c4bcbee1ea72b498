"""Two hundred idle workers: how many turns a job causes, and how soon it starts after half of them were killed."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator

import pytest

from tests.servers import Server, eventually
from tests.speed import scaled
from tests.worker import idle_workers

WORKERS = 200
JOBS = 50


@pytest.fixture
def server(start: Callable[..., Server]) -> Server:
    return start()


@pytest.fixture
def programs(server: Server) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Programs with idle workers, in the order in which the workers became idle."""
    started = []
    try:
        for n in range(1, 5):
            started.append(idle_workers.start(server.address, WORKERS // 4))
            eventually(lambda n=n: server.client.zcard("{penstock:q}:sleepers") == n * WORKERS // 4, within=60)  # type: ignore[misc]
        yield started
    finally:
        for program in started:
            program.kill()
            program.wait()


def calls(server: Server) -> int:
    sent: int = server.client.info("commandstats")["cmdstat_evalsha"]["calls"]
    return sent


def test_each_job_starts_at_once_with_few_turns(server: Server, programs: list[subprocess.Popen[bytes]]):
    """First while all workers are alive, then when the half that became idle last was killed."""
    app, when = idle_workers.make_app(server.address)
    with app:
        when.enqueue().result(scaled(30))
        for killed in ([], programs[2:]):
            time.sleep(0.2)
            for program in killed:
                program.kill()
                program.wait()
            before, began, waits = calls(server), time.monotonic(), []
            for _ in range(JOBS):
                asked = time.time()
                waits.append(when.enqueue().result(scaled(30)) - asked)
                time.sleep(0.01)
            deputies = (time.monotonic() - began) / 0.05 + 1
            # Otherwise each job is enqueued, claimed and settled, and its result is asked for twice.
            assert calls(server) - before <= 5 * JOBS + deputies + 5
            assert max(waits) < scaled(0.05), waits
