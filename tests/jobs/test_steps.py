"""The steps of one run, beside a worker that has lost the job, and beside a clock that has advanced."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from penstock import LeaseLost
from penstock.core.operations import Operation
from penstock.jobs.durable_bindings import StepBindings
from penstock.jobs.retry import Suspended
from penstock.jobs.steps import Steps
from tests.jobs.stand import FakeWorker, Stand


@pytest.fixture
def run(stand: Stand) -> Any:
    """The second run of a job, which has recorded a step."""
    stand.put("a")
    worker = FakeWorker(stand, "w")
    (claim,) = worker.claim()
    stand.run(StepBindings(stand.bindings).record("w", claim.token, "@before", "begin", b"1"))
    worker.settle(claim, ending="retry")
    (claim,) = worker.claim()
    return SimpleNamespace(shard=SimpleNamespace(bindings=stand.bindings, name="q"), incarnation="w", claim=claim)


@pytest.fixture
def do(stand: Stand) -> Any:
    def execute(operation: Operation[Any]) -> Any:
        try:
            trip: Any = next(operation)
            while True:
                trip = operation.send(stand.run(trip))
        except StopIteration as done:
            return done.value

    return execute


def test_a_run_that_has_lost_the_job_finds_records_and_receives_nothing(do: Any, run: Any):
    steps = Steps(run)
    assert do(steps.find("1", "pay", ("result",), "step(pay)")) is None
    run.incarnation = "other"
    for operation in (
        Steps(run).find("1", "pay", ("result",), "step(pay)"),
        steps.record("1", "pay", b"7"),
        steps.receive("1", "go", 0),
    ):
        with pytest.raises(LeaseLost, match="does not hold it any longer"):
            do(operation)


def test_the_value_that_was_recorded_first_counts(do: Any, run: Any):
    assert [do(Steps(run).record("1", "pay", value)) for value in (b"7", b"8")] == [b"7", b"7"]


def test_a_sleep_ends_while_its_run_does_other_things(do: Any, run: Any, monkeypatch: pytest.MonkeyPatch):
    now = time.monotonic()
    steps = Steps(run)
    monkeypatch.setattr("penstock.jobs.steps.time.monotonic", lambda: now)
    with pytest.raises(Suspended):
        do(steps.sleep("1", 60))
    do(steps.find("2", "pay", ("result",), "step(pay)"))
    assert steps._recorded is not None
    steps._recorded["1"] = SimpleNamespace(kind="waits", name="", value=b"%d" % (steps._now + 60_000))  # type: ignore[assignment]
    with pytest.raises(Suspended):
        do(steps.sleep("1", 60))
    now += 60
    do(steps.sleep("1", 60))
