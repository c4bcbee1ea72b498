"""Durable steps and signals: the script side."""

from typing import Any

import pytest

from penstock.jobs.claims import Claim, Settlement
from penstock.jobs.durable_bindings import ChildRow, Recorded, StepBindings, suspension
from penstock.jobs.retention import Retention
from penstock.settings import MiB
from tests.jobs.stand import START, FakeWorker, Stand, at_most, problems_in, record, settlement


@pytest.fixture
def worker(stand: Stand) -> FakeWorker:
    stand.put("a")
    return FakeWorker(stand, "w")


@pytest.fixture
def steps(stand: Stand) -> StepBindings:
    return StepBindings(stand.bindings)


def suspend(worker: FakeWorker, claim: Claim, seconds: float, signal: str = "", step: str = "1") -> None:
    assert not worker.turn(0, Settlement(claim.token, suspension(step, signal), "suspend", seconds)).stale


def recorded(stand: Stand, steps: StepBindings, claim: Claim, incarnation: str = "w") -> dict[str, Any]:
    found = stand.run(steps.load(incarnation, claim.token))
    assert found is not None
    return {step: (one.kind, one.name, one.value) for step, one in found[1].items()}


def test_a_step_is_recorded_once_however_often_it_is_sent(stand: Stand, worker: FakeWorker, steps: StepBindings):
    (claim,) = worker.claim()
    assert stand.run(steps.record("w", claim.token, "1", "pay", b"7")) is None
    again = stand.run(steps.record("w", claim.token, "1", "pay", b"8"))
    assert again == Recorded("result", START, "pay", b"7")
    assert recorded(stand, steps, claim) == {"1": ("result", "pay", b"7")}
    worker.settle(claim)
    assert not [name for name in stand.names() if "steps:" in name]


def test_a_worker_that_has_lost_the_job_records_and_receives_nothing(
    stand: Stand, worker: FakeWorker, steps: StepBindings
):
    (claim,) = worker.claim()
    stand.run(steps.record("w", claim.token, "1", "pay", b"7"))
    stand.advance(11)
    other = FakeWorker(stand, "v")
    (again,) = other.claim()
    stand.run(steps.signal("a", "go", b"1"))
    for token in (claim.token, again.token):
        assert stand.run(steps.record("w", token, "2", "pack", b"8")) == -1
        assert stand.run(steps.receive("w", token, "2", "go")) is False
        assert stand.run(steps.load("w", token)) is None
    assert recorded(stand, steps, again, "v") == {"1": ("result", "pay", b"7")}


@pytest.mark.parametrize("ending", ["retry", "release", "loss", "crash", "bury"])
def test_steps_are_kept_however_a_run_ends(stand: Stand, worker: FakeWorker, steps: StepBindings, ending: Any):
    (claim,) = worker.claim()
    stand.run(steps.record("w", claim.token, "1", "pay", b"7"))
    worker.settle(claim, ending=ending)
    if ending == "bury":
        stand.run(stand.bindings.requeue(["a"]))
    (again,) = worker.claim()
    assert recorded(stand, steps, again) == {"1": ("result", "pay", b"7")}
    worker.settle(again, ending="drop")
    assert not [name for name in stand.names() if "steps:" in name]


def test_a_sleeping_job_is_due_at_its_time_and_pays_no_attempt(stand: Stand, worker: FakeWorker, steps: StepBindings):
    stand.put("b", expires=5)
    first, second = worker.claim(2)
    suspend(worker, first, 60)
    suspend(worker, second, 30)
    assert (stand.states("a", "b"), stand.counts()) == ("ss", "0 0 0 0")
    stand.advance(30)
    worker = FakeWorker(stand, "v")
    (claim,) = worker.claim()
    assert (claim.id, claim.record.attempts, claim.record.expires) == ("b", 0, 0)
    suspend(worker, claim, 30)  # a run that began too early keeps the end of the first
    (claim,) = worker.claim()
    assert claim.id == "b"


def test_a_wait_without_a_time_out_lasts_until_the_signal(stand: Stand, worker: FakeWorker, steps: StepBindings):
    (claim,) = worker.claim()
    assert stand.run(steps.receive("w", claim.token, "1", "go")) is True
    suspend(worker, claim, 0, "go")
    stand.advance(10 * 365 * 86400)
    worker = FakeWorker(stand, "v")
    assert not worker.claim()
    stand.run(steps.signal("a", "other", b"0"))
    assert not worker.claim()
    assert stand.run(steps.signal("a", "go", b"1")) == "sent"
    (claim,) = worker.claim()
    for _ in range(2):
        assert stand.run(steps.receive("v", claim.token, "1", "go")) == Recorded(
            "signal", stand.clock.now_ms, "go", b"1"
        )
    assert stand.run(steps.receive("v", claim.token, "2", "go")) is True


def test_a_signal_that_comes_before_the_run_has_ended_makes_it_ready_at_once(
    stand: Stand, worker: FakeWorker, steps: StepBindings
):
    (claim,) = worker.claim()
    assert stand.run(steps.receive("w", claim.token, "1", "go")) is True
    stand.run(steps.signal("a", "go", b"1"))
    suspend(worker, claim, 600, "go")
    assert stand.states("a") == "r"


def test_of_signal_and_time_out_the_first_that_is_recorded_counts(
    stand: Stand, worker: FakeWorker, steps: StepBindings
):
    stand.put("b")
    for claim in worker.claim(2):
        suspend(worker, claim, 5, "go")
    stand.advance(5)
    first, second = worker.claim(2)
    timeout = stand.run(steps.receive("w", first.token, "1", "go"))
    stand.run(steps.signal("a", "go", b"1"))
    stand.run(steps.signal("b", "go", b"1"))
    assert isinstance(timeout, Recorded)
    assert timeout.kind == "timeout"
    assert stand.run(steps.receive("w", first.token, "1", "go")) == timeout
    late = stand.run(steps.receive("w", second.token, "1", "go"))
    assert isinstance(late, Recorded)
    assert late.kind == "signal"


def test_a_sleeping_job_gives_its_place_up(stand: Stand, worker: FakeWorker, steps: StepBindings):
    for id in ("b", "c"):
        stand.put(id, limits=[at_most(1)])
    first, held = worker.claim(2)
    assert (first.id, held.id, stand.states("c")) == ("a", "b", "p")
    suspend(worker, held, 60, "go")
    assert stand.states("b", "c") == "sr"
    stand.run(steps.signal("b", "go", b"1"))
    assert stand.states("b", "c") == "pr"
    (other,) = worker.claim()
    worker.settle(other)
    assert stand.states("b") == "r"


def test_a_signal_is_kept_for_a_job_in_any_state(stand: Stand, worker: FakeWorker, steps: StepBindings):
    stand.put("b", delay=60)
    (claim,) = worker.claim()
    worker.settle(claim, ending="bury")
    for id in ("a", "b"):
        assert stand.run(steps.signal(id, "go", b"1")) == "sent"
    assert stand.run(steps.signal("c", "go", b"1")) == "none"
    assert stand.states("a", "b") == "dw"
    stand.run(stand.bindings.requeue(["a"]))
    (claim,) = worker.claim()
    assert isinstance(stand.run(steps.receive("w", claim.token, "1", "go")), Recorded)
    worker.settle(claim)
    stand.run(stand.bindings.cancel(["b"]))
    assert stand.run(steps.signal("a", "go", b"1")) == "done"
    assert not [name for name in stand.names() if "steps:" in name]


def test_steps_of_running_work_pass_a_full_server(stand: Stand, worker: FakeWorker, steps: StepBindings):
    (claim,) = worker.claim()
    stand.client.config_set("maxmemory", 1)
    try:
        assert stand.run(steps.record("w", claim.token, "1", "pay", b"7")) is None
        suspend(worker, claim, 60, step="2")
    finally:
        stand.client.config_set("maxmemory", 0)
    assert stand.states("a") == "s"


def test_a_rerun_with_many_finished_steps_reads_them_in_one_round_trip(
    stand: Stand, worker: FakeWorker, steps: StepBindings
):
    (claim,) = worker.claim()
    for n in range(100):
        stand.run(steps.record("w", claim.token, str(n + 1), "pay", b"%d" % n))
    assert [value for _, _, value in recorded(stand, steps, claim).values()] == [b"%d" % n for n in range(100)]
    shown = stand.run(steps.show("a"))
    assert [one.step for one in shown] == [str(n + 1) for n in range(100)]


def test_a_worker_whose_lease_has_run_out_records_nothing_even_before_the_job_is_taken_back(
    stand: Stand, worker: FakeWorker, steps: StepBindings
):
    (claim,) = worker.claim()
    stand.run(steps.signal("a", "go", b"1"))
    stand.advance(11)
    assert stand.run(steps.record("w", claim.token, "1", "pay", b"7")) == -1
    assert stand.run(steps.receive("w", claim.token, "1", "go")) is False
    assert stand.run(steps.load("w", claim.token)) is None


def test_each_step_counts_256_bytes_beside_its_result(stand: Stand, worker: FakeWorker, steps: StepBindings):
    (claim,) = worker.claim()
    assert stand.run(steps.record("w", claim.token, "1", "pay", b"7" * (MiB - 400))) is None
    assert stand.run(steps.record("w", claim.token, "2", "pack", b"8")) == MiB - 400 + 256 + len("pay") + 8


def test_a_received_signal_occupies_nothing_but_its_step(stand: Stand, worker: FakeWorker, steps: StepBindings):
    (claim,) = worker.claim()
    for n in range(4):
        assert stand.run(steps.signal("a", "go", b"1" * 200_000)) == "sent"
        assert isinstance(stand.run(steps.receive("w", claim.token, str(n), "go")), Recorded)
    assert stand.run(steps.signal("a", "go", b"1" * 200_000)) == "sent"
    assert stand.run(steps.signal("a", "go", b"1" * 200_000)) == "full"


def test_a_signal_that_no_step_received_is_forgotten_with_its_job(
    stand: Stand, worker: FakeWorker, steps: StepBindings
):
    (claim,) = worker.claim()
    stand.run(steps.signal("a", "go", b"1"))
    worker.settle(claim)
    assert not [name for name in stand.names() if "steps:" in name]


def test_a_damaged_parent_that_is_removed_leaves_its_list_of_children_only_for_a_time(stand: Stand):
    worker = FakeWorker(stand, "w")
    stand.put("p")
    (parent,) = worker.claim()
    row = ChildRow("1", "", "child", "f", record("ada"))
    stand.run(StepBindings(stand.bindings).run_children("w", parent.token, [row], durable=False))
    worker.settle(parent, ending="bury", text="x")
    stand.client.hset(stand.base + "jobs", "p", b"x")
    stand.run(stand.bindings.remove_dead(["p"]))
    worker.turn()
    assert stand.state("child") == "-"
    assert 0 < stand.client.pttl(stand.base + "predecessors:p") <= 3_600_000


def test_a_child_that_is_claimed_in_the_turn_that_orphans_it_is_asked_to_end(stand: Stand):
    stand.run(Retention(dead_letters=0).store(stand.bindings))
    worker = FakeWorker(stand, "w")
    stand.put("p")
    (parent,) = worker.claim()
    row = ChildRow("1", "", "child", "f", record("ada"))
    stand.run(StepBindings(stand.bindings).run_children("w", parent.token, [row], durable=False))
    (child,) = worker.turn(1, settlement(parent, "bury", text="x")).claims
    assert child.id == "child"
    assert stand.run(stand.bindings.heartbeat("w", 10)) == [child.token]


def test_the_audit_knows_the_children_of_a_job(stand: Stand):
    worker = FakeWorker(stand, "w")
    stand.put("p")
    (parent,) = worker.claim()
    row = ChildRow("1", "", "child", "f", record("ada"))
    stand.run(StepBindings(stand.bindings).run_children("w", parent.token, [row], durable=False))
    assert not problems_in(stand.raw_dump())
    stand.client.hdel(stand.base + "dependents", "child")
    assert problems_in(stand.raw_dump()) == ["children:p: no edge leads there from [b'child']"]
    stand.client.rename(stand.base + "children:p", stand.base + "orphans:9")
    assert problems_in(stand.raw_dump()) == ["orphans: ['orphans:9'] belong to no event"]
