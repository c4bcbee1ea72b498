"""What an operator should look at: each finding, and the queue that has none."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from penstock import Penstock
from penstock.jobs.counts import Counts, WorkerInfo
from penstock.jobs.history import Moment
from penstock.ops import health
from penstock.ops.answers import Finding
from penstock.ops.health import _of_counts, _of_history
from penstock.ops.inspect import Inspector
from penstock.ops.workers import joined_workers
from penstock.testing import TemporaryServer

NOW = 1_800_000_000.0
QUIET = Moment(NOW, 10.0, *([0] * 15))
WORKER = WorkerInfo("mail", "host:7", 10, NOW, 0, 5.0)
PROGRAM = replace(WORKER, name="", concurrency=0, since=None)


@pytest.fixture
def app() -> Iterator[Penstock]:
    with TemporaryServer() as server, Penstock(server.address) as app:
        yield app


def kinds(found: list[Finding]) -> list[str]:
    return [one.kind for one in found]


@pytest.mark.parametrize(
    ("counts", "workers", "expected"),
    [
        (Counts(), [], []),
        (Counts(ready=3, oldest=9.0), [], []),
        (Counts(ready=3, oldest=11.0), [], ["no_worker"]),
        (Counts(ready=3, oldest=11.0), [replace(WORKER, lease=-1.0)], ["no_worker"]),
        (Counts(ready=3, oldest=11.0), [WORKER], []),
        (Counts(ready=3, oldest=11.0), [replace(WORKER, asked="quiet")], ["no_worker"]),
        (Counts(ready=3, oldest=11.0), [replace(WORKER, asked="quiet"), WORKER], []),
        (Counts(ready=3, oldest=11.0), [PROGRAM], []),
        (Counts(ready=3, oldest=61.0), [WORKER], ["late"]),
        (Counts(ready=3, oldest=61.0, paused=True), [], ["paused"]),
        (Counts(paused=True), [WORKER], ["paused"]),
        (Counts(parked=3, oldest_parked=299.0), [WORKER], []),
        (Counts(parked=3, oldest_parked=300.0), [WORKER], ["parked"]),
        (Counts(dead=1), [WORKER, replace(WORKER, held=2, lease=-1.0)], ["lost", "dead"]),
    ],
)
def test_counts_and_workers_are_judged(counts: Counts, workers: list[WorkerInfo], expected: list[str]):
    assert kinds(_of_counts("mail", counts, workers)) == expected


def moments(**last: int) -> list[Moment]:
    return [replace(QUIET, at=NOW - 5, **last)]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (moments(completed=100), []),
        (moments(completed=100, failed=5), []),
        (moments(completed=5, retried=5), ["failing"]),
        ([replace(QUIET, at=NOW - 70, failed=5)], []),
    ],
)
def test_runs_that_failed_in_the_last_minute_are_judged(found: list[Moment], expected: list[str]):
    assert kinds(_of_history("mail", found, NOW)) == expected


def test_a_queue_with_shards_is_judged_as_one(app: Penstock, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(health, "NO_WORKER_AFTER", -1.0)
    app.queue("mail", shards=4).put_many(range(100), tenant="acme")
    app.queue("mail").put_many(range(100), tenant="globex")
    found = Inspector(app).health.queues(["mail"])
    assert [(one.kind, one.jobs) for one in found.findings] == [("no_worker", 200)]


def test_a_worker_of_this_machine_whose_process_is_gone_is_not_alive():
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    mine = replace(WORKER, name=f"{socket.gethostname()}:{os.getpid()}")
    gone = replace(WORKER, name=f"{socket.gethostname()}:{process.pid}", lease=90.0)
    elsewhere = replace(gone, name=f"other:{process.pid}")
    assert [one.lease for one in joined_workers("mail", [mine, gone, elsewhere])] == [5.0, 0.0, 90.0]
