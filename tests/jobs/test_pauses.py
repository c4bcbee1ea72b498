"""Pauses of a task or of a tenant: its jobs are parked, and come back in their order."""

from __future__ import annotations

import pytest

from penstock.core.operations import RoundTrip
from penstock.errors import BadCall
from penstock.jobs.pauses import scope_name
from tests.jobs.stand import START, FakeWorker, Stand, at_most, ids, problems_in, record, settlement


@pytest.fixture
def worker(stand: Stand) -> FakeWorker:
    return FakeWorker(stand, "w")


def pause(stand: Stand, tenant: str, on: bool = True) -> int:
    return stand.run(stand.bindings.pause_scope("p:tenant=" + tenant, on))


def run_all(worker: FakeWorker, want: int = 1) -> list[str]:
    """Claim and complete jobs until none is left, and check the keys after each turn."""
    done: list[str] = []
    claims, more = worker.claim(want), True
    while claims or more:
        done += ids(claims)
        turn = worker.turn(want, *(settlement(claim) for claim in claims))
        claims, more = turn.claims, turn.more
        assert_consistent(worker.stand)
    return done


def assert_consistent(stand: Stand) -> None:
    assert problems_in(stand.raw_dump()) == []


def test_jobs_of_a_paused_tenant_are_parked_and_others_go_on(stand: Stand, worker: FakeWorker) -> None:
    stand.put_for(ada="a1 a2", bo="b1 b2")
    pause(stand, "ada")
    assert run_all(worker) == ["b1", "b2"]
    assert stand.states("a1", "a2") == "pp"
    assert stand.run(stand.bindings.counts()).parked == 2
    assert stand.run(stand.bindings.tenant_counts("ada")).parked == 2


def test_parked_jobs_come_back_in_their_order_before_newer_ones(stand: Stand, worker: FakeWorker) -> None:
    stand.put_for(ada="a1 a2")
    pause(stand, "ada")
    stand.put_for(ada="a3 a4")
    assert run_all(worker) == []
    stand.put_for(ada="a5")
    assert pause(stand, "ada", on=False)
    stand.put_for(ada="a6")
    assert run_all(worker) == ["a1", "a2", "a3", "a4", "a5", "a6"]
    assert stand.counts() == "0 0 0 0"
    assert "pauses" not in stand.dump()
    assert stand.dump()["meta"].get(b"pauses") is None


def test_a_paused_task_is_parked_and_a_bare_value_goes_on(stand: Stand, worker: FakeWorker) -> None:
    stand.put("m1", "m2", task="mail")
    stand.put("v")
    stand.run(stand.bindings.pause_scope("p:task=mail", True))
    assert run_all(worker) == ["v"]
    stand.run(stand.bindings.pause_scope("p:tenant=", True))
    stand.run(stand.bindings.pause_scope("p:task=mail", False))
    assert run_all(worker) == []
    assert stand.states("m1", "m2") == "pp"
    pause(stand, "", on=False)
    assert run_all(worker) == ["m1", "m2"]


def test_a_tenant_waits_for_no_more_than_its_turn_while_another_is_parked(stand: Stand, worker: FakeWorker) -> None:
    stand.put(*(f"a{i}" for i in range(300)), tenant="ada")
    stand.put("b1", "b2", tenant="bo")
    pause(stand, "ada")
    assert ids(worker.claim(2)) == ["b1", "b2"]
    assert stand.run(stand.bindings.counts()).parked == 2


def test_a_claim_parks_a_bounded_number_of_jobs(stand: Stand, worker: FakeWorker) -> None:
    stand.put(*(f"a{i}" for i in range(300)), tenant="ada")
    pause(stand, "ada")
    parked = []
    while worker.turn(100).more:
        parked.append(stand.run(stand.bindings.counts()).parked)
    assert parked == [100, 200, 300]
    pause(stand, "ada", on=False)
    assert stand.counts() == "50 0 0 0"
    assert sorted(run_all(worker, 100)) == sorted(f"a{i}" for i in range(300))


def test_a_resumed_part_is_admitted_without_other_work(stand: Stand, worker: FakeWorker) -> None:
    """The timekeeper is woken for what one script could not admit."""
    pause(stand, "ada")
    stand.put(*(f"a{i}" for i in range(150)), tenant="ada")
    pause(stand, "ada", on=False)
    assert len(worker.claim(100)) == 100
    turn = worker.turn(100, address="p/1", sleep=50)
    assert len(turn.claims) == 50


def test_a_paused_job_gives_its_place_in_a_limit_to_another(stand: Stand, worker: FakeWorker) -> None:
    stand.put("a1", tenant="ada", limits=[at_most(1)])
    stand.put("b1", tenant="bo", limits=[at_most(1)])
    assert stand.states("a1", "b1") == "rp"
    pause(stand, "ada")
    assert run_all(worker) == ["b1"]
    stand.put("a2", tenant="ada", limits=[at_most(1)])
    stand.put("b2", tenant="bo", limits=[at_most(1)])
    assert stand.states("a1", "a2", "b2") == "ppr"
    assert_consistent(stand)
    pause(stand, "ada", on=False)
    assert sorted(run_all(worker)) == ["a1", "a2", "b2"]
    assert [name for name in stand.without_ttl() if name.startswith(("places", "parking", "pauses", "admi"))] == []


@pytest.mark.parametrize("ending", ["release", "retry", "later", "loss"])
def test_a_job_that_comes_back_during_a_pause_is_parked(stand: Stand, worker: FakeWorker, ending: str) -> None:
    stand.put("a1", "a2", tenant="ada", limits=[at_most(1), at_most(1, name="o")])
    (a1,) = worker.claim()
    pause(stand, "ada")
    worker.settle(a1, ending=ending)  # type: ignore[arg-type]
    assert stand.states("a1", "a2") == "pp"
    assert_consistent(stand)
    pause(stand, "ada", on=False)
    assert run_all(worker) == ["a1", "a2"]


def test_a_suspect_of_a_paused_tenant_is_not_tried(stand: Stand) -> None:
    stand.put("a1", tenant="ada")
    for name in "xy":
        worker = FakeWorker(stand, name)
        (claim,) = worker.claim()
        worker.settle(claim, ending="loss")
    trial = FakeWorker(stand, "trial")
    pause(stand, "ada")
    assert trial.turn(1, trial="only").claims == []
    assert stand.state("a1") == "p"
    assert_consistent(stand)
    pause(stand, "ada", on=False)
    assert ids(trial.turn(1, trial="only").claims) == ["a1"]


def test_parked_jobs_can_be_cancelled_edited_and_purged(stand: Stand, worker: FakeWorker) -> None:
    pause(stand, "ada")
    stand.put("a1", "a2", "a3", "a4", tenant="ada")
    stand.put("l", tenant="ada", limits=[at_most(1)])
    assert stand.run(stand.bindings.cancel(["a1", "l"])) == ["cancelled", "cancelled"]
    assert stand.run(stand.bindings.edit("a2", priority=0, payload=b"2")) == "edited"
    assert_consistent(stand)
    pause(stand, "ada", on=False)
    assert run_all(worker) == ["a2", "a3", "a4"]
    pause(stand, "ada")
    stand.put("b1", "b2", tenant="ada")
    assert stand.run(stand.bindings.purge_parked("ada", 0, 100))[0] == 2
    pause(stand, "ada", on=False)
    assert_consistent(stand)
    assert [name for name in stand.without_ttl() if name.startswith(("places", "parking", "pauses"))] == []


def test_a_staged_job_of_a_paused_tenant_is_parked_by_the_next_script(stand: Stand, worker: FakeWorker) -> None:
    pause(stand, "ada")
    stand.put("first")
    stage = stand.bindings.take_in("s", record("ada"))
    assert stand.run(RoundTrip(stage.script, stage.keys, ("caller", 1, *stage.args[2:]), stage.read))
    assert stand.run(stand.bindings.counts()).parked == 1
    assert_consistent(stand)
    pause(stand, "ada", on=False)
    assert sorted(run_all(worker)) == ["first", "s"]


def test_a_pause_of_what_is_paused_changes_nothing(stand: Stand) -> None:
    assert pause(stand, "ada") == 1
    before = stand.dump()
    assert pause(stand, "ada") == 0
    assert pause(stand, "bo", on=False) == 0
    assert stand.dump() == before


def test_a_queue_has_at_most_a_thousand_paused_scopes(stand: Stand) -> None:
    for i in range(1000):
        assert pause(stand, f"t{i}") == 1
    assert pause(stand, "one more") == -1
    assert pause(stand, "t0", on=False) == 1
    assert pause(stand, "one more") == 1


def test_a_queue_reads_pauses_only_while_it_has_some(stand: Stand) -> None:
    def reads() -> int:
        return int(stand.client.info("commandstats")["cmdstat_hget"]["calls"])

    def reads_of_an_enqueue(name: str) -> int:
        before = reads()
        stand.put(name)
        return reads() - before

    stand.put("first")
    plain = reads_of_an_enqueue("a")
    pause(stand, "ada")
    assert reads_of_an_enqueue("b") == plain + 1
    pause(stand, "ada", on=False)
    assert reads_of_an_enqueue("c") == plain


def test_a_parked_unique_job_that_is_replaced_with_a_larger_one_is_not_forgotten(
    stand: Stand, worker: FakeWorker
) -> None:
    stand.put("a", limits=[at_most(1)])
    small, large = (record(limits=[at_most(1)], unique=("k", "r", 0), payload=b'"%s"' % (b"x" * n)) for n in (1, 5000))
    stand.put_drafts([("b", small)])
    stand.put_drafts([("c", large)])
    assert_consistent(stand)
    assert run_all(worker) == ["a", "b"]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"task": "send", "tenant": "ada"}, "one at a time"),
        ({"task": ""}, "bare values have no task"),
        ({"tenant": "x" * 300}, "at most 255 bytes"),
    ],
)
def test_what_cannot_be_paused_is_refused(options: dict[str, str], complaint: str) -> None:
    with pytest.raises((BadCall, ValueError), match=complaint):
        scope_name("q", options.get("task"), options.get("tenant"))


def test_a_pause_has_a_time_and_an_author(stand: Stand) -> None:
    stand.run(stand.bindings.pause_scope("p:task=mail", True, "ada@desk"))
    stand.run(stand.bindings.set_switch("paused", True, "bo@desk"))
    first = stand.run(stand.bindings.pauses())
    stand.advance(5)
    stand.run(stand.bindings.pause_scope("p:task=mail", True, "cy@desk"))
    stand.run(stand.bindings.set_switch("paused", True, "cy@desk"))
    assert stand.run(stand.bindings.pauses()) == first
    assert [(one.name, one.by, one.since) for one in first] == [
        ("queue", "bo@desk", START / 1000),
        ("task mail", "ada@desk", START / 1000),
    ]
    stand.run(stand.bindings.set_switch("paused", False))
    stand.run(stand.bindings.pause_scope("p:task=mail", False))
    assert stand.run(stand.bindings.pauses()) == []
    assert b"pause" not in stand.dump()["meta"]
