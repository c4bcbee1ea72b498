"""The turn and its parts: settle, promote, take back, claim."""

from __future__ import annotations

from functools import partial

import pytest

from penstock.jobs import constants
from penstock.jobs.claims import Ending
from penstock.jobs.finished import CompletedRows
from tests.jobs.stand import (
    RUNNING,
    START,
    FakeWorker,
    Stand,
    difference,
    entry,
    ids,
    record,
    settlement,
)
from tests.jobs.test_flow_bounds import commands

OTHERS: list[Ending] = ["retry", "later", "release", "bury", "drop"]


# --- claims ---


@pytest.mark.parametrize("jobs", [20, 100])
def test_a_turn_of_many_jobs_costs_few_commands(stand: Stand, jobs: int):
    """It settles as many jobs as it claims, and their rows become a block of their own. 28 may only become fewer."""
    stand.put(*(f"j{n:025}" for n in range(5 * jobs)))
    worker, costs = FakeWorker(stand, "w"), []
    claims = worker.claim(jobs)
    for _ in range(3):
        rows = CompletedRows("w")
        for claim in claims:
            rows.add(claim)
        turn = partial(worker.turn, jobs, *(settlement(claim) for claim in claims), rows=rows.take)
        costs.append(commands(stand, turn))
        claims = worker.repeat_turn().claims
        assert len(claims) == jobs
    assert min(costs) <= 28, costs


def test_a_claim_takes_a_job_from_its_lane(stand: Stand):
    stand.put_for(ada="j k")
    before = stand.dump()
    turn = FakeWorker(stand, "w").turn(1)
    (claim,) = turn.claims
    assert (claim.token, stand.state("j"), claim.deliveries) == (b"\0\0\0\0\0\3j", RUNNING, 1)
    changed = difference(before, stand.dump())
    assert changed["held:w"].pop(b"")
    assert changed == {
        "meta": {
            "sequence": "3",
            "ready": "1",
            "running": "1",
            "entries5": "1",
            "v5": str(2**36 - 2**20),
            "second_ready": "1",
            "next_lease": str(START + 10_000),
        },
        "heads:5": {b"ada": entry(2, "k", more=True)},
        "lane:5:ada": None,
        "rotation:5": [(b"ada", 2 * 2**36 - 2**20)],
        "tenants": {b"ada": bytes([0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0])},
        "leases": [(b"w", START + 10_000.0)],
        "held:w": {b"j": (3).to_bytes(6) + START.to_bytes(6) + bytes([0]) + (600_000).to_bytes(5) + b"\3ada"},
        "owners": {b"j": b"w %d" % START},
    }


def test_an_empty_queue_is_left_empty(stand: Stand):
    turn = FakeWorker(stand, "w").turn(5)
    assert (turn.alive, turn.claims, turn.more, turn.due_in) == (True, [], False, None)
    assert stand.dump().keys() == {"meta", "leases", "held:w"}
    assert stand.run(stand.bindings.overview(10)).used


def test_a_completed_job_leaves_only_its_result(stand: Stand):
    stand.put_for(a="a1 a2", b="b1")
    worker = FakeWorker(stand, "w")
    claims = worker.claim(9)
    worker.settle(*claims[1:], text="[1]")
    worker.settle(claims[0])
    assert stand.dump().keys() == {"meta", "results", "ends:20", "leases", "held:w", "intake"}
    assert stand.dump()["results"].keys() == {b"a1", b"a2", b"b1"}
    assert (stand.done("a1"), stand.done("b1")) == (b"cnull", b"c[1]")


def test_a_result_with_ttl_0_is_not_kept(stand: Stand):
    stand.put("j", ttl=0)
    worker = FakeWorker(stand, "w")
    assert worker.settle(*worker.claim(), text="1")
    assert stand.done("j") is None


def test_tenants_take_turns_in_the_order_of_their_arrival(stand: Stand):
    stand.put_for(z="z1 z2 z3", a="a1 a2", m="m1")
    assert ids(FakeWorker(stand, "w").claim(9)) == ["a1", "m1", "z1", "a2", "z2", "z3"]


@pytest.mark.parametrize("batch", [1, 2, 4, 100])
def test_batches_of_any_size_serve_in_the_same_order(stand: Stand, batch: int):
    stand.put_for(z="z1 z2 z3", a="a1 a2", m="m1")
    worker = FakeWorker(stand, "w")
    served = [key for _ in range(0, 6, batch) for key in ids(worker.claim(batch))]
    assert served == ["a1", "m1", "z1", "a2", "z2", "z3"]


def test_priorities_are_strict(stand: Stand):
    for level in (9, 0, 5):
        stand.put(f"{level}a", f"{level}b", priority=level)
    worker = FakeWorker(stand, "w")
    assert ids(worker.claim(3)) == ["0a", "0b", "5a"]
    stand.put("0c", priority=0)
    assert ids(worker.claim(9)) == ["0c", "5b", "9a", "9b"]


def test_cancelled_jobs_let_no_less_urgent_job_overtake(stand: Stand):
    stand.put("gone", tenant="a", priority=1)
    stand.put("urgent", tenant="b", priority=1)
    stand.put("idle", priority=9)
    stand.run(stand.bindings.cancel(["gone"]))
    assert ids(FakeWorker(stand, "w").claim(1)) == ["urgent"]


def test_a_worker_does_not_become_idle_behind_cancelled_jobs(stand: Stand):
    stand.put_for(a="gone", b="b1")
    stand.run(stand.bindings.cancel(["gone"]))
    assert ids(FakeWorker(stand, "w").turn(1, address="p/1", sleep=50).claims) == ["b1"]


def test_a_turn_freed_by_a_cancelled_job_goes_to_the_tenant_that_waited(stand: Stand):
    stand.put_for(a="gone", b="b1 b2 b3 b4", c="c1", d="d1")
    stand.run(stand.bindings.cancel(["gone"]))
    assert ids(FakeWorker(stand, "w").claim(3)) == ["b1", "c1", "d1"]


def test_a_tenant_that_returns_at_once_waits_behind_those_before_it(stand: Stand):
    """Whatever the order of their names: the first two have the same virtual time, as they arrived before any turn."""
    stand.put_for(l="l1", u="u1")
    worker = FakeWorker(stand, "w")
    assert ids(worker.claim()) == ["l1"]
    stand.put_for(z="z1")
    assert ids(worker.claim()) == ["u1"]
    stand.put_for(u="u2")
    assert ids(worker.claim(2)) == ["z1", "u2"]


def test_an_arriving_tenant_goes_before_the_next_job_of_a_backlog(stand: Stand):
    stand.put_for(a=" ".join(f"a{i}" for i in range(9)))
    worker = FakeWorker(stand, "w")
    assert ids(worker.claim(3)) == ["a0", "a1", "a2"]
    stand.put_for(z="z1")
    assert ids(worker.claim(3)) == ["z1", "a3", "a4"]


def test_a_waiting_tenant_keeps_its_turn_when_another_of_its_jobs_arrives(stand: Stand):
    """Also if the waiting job was released, and the lane is empty."""
    stand.put_for(t="t1", u="u1 u2 u3")
    worker = FakeWorker(stand, "w")
    (claim,) = worker.claim()
    worker.settle(claim, ending="release")
    before = dict(stand.dump()["rotation:5"])
    assert ids(worker.claim()) == ["u1"]
    stand.put_for(t="t2")
    assert dict(stand.dump()["rotation:5"])[b"t"] == before[b"t"]
    assert ids(worker.claim(2)) == ["t1", "u2"]


def test_a_tenant_of_weight_three_has_three_turns_to_one(stand: Stand):
    stand.put_for(a=" ".join(f"a{i}" for i in range(9)), b=" ".join(f"b{i}" for i in range(9)))
    stand.run(stand.bindings.set_weight("b", 3))
    worker = FakeWorker(stand, "w")
    worker.claim(2)
    served = [key[0] for key in ids(worker.claim(8))]
    assert (served.count("a"), served.count("b")) == (2, 6)


# --- what goes first ---


def test_released_jobs_go_before_the_others_of_their_tenant(stand: Stand):
    stand.put("a", "b", "c", "d")
    worker = FakeWorker(stand, "w")
    first, second = worker.claim(2)
    worker.settle(first, second, ending="release")
    assert stand.job("a").deliveries == 0
    assert ids(worker.claim(9)) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("want", [1, 2, 3, 64])
def test_all_released_jobs_are_served_whatever_the_size_of_turns(stand: Stand, want: int):
    """The rest of a front list keeps its tenant's turn, also if the lane is empty."""
    many, few = [f"a{i}" for i in range(67)], [f"b{i}" for i in range(31)]
    stand.put_for(a=" ".join(many), b=" ".join(few))
    FakeWorker(stand, "w").claim(98)
    stand.advance(10)
    worker = FakeWorker(stand, "v")
    served = [key for _ in range(98) for key in ids(worker.claim(want))]
    assert [[key for key in served if key[0] == tenant] for tenant in "ab"] == [many, few]


def test_a_retry_without_delay_goes_to_the_end(stand: Stand):
    stand.put("a", "b")
    worker = FakeWorker(stand, "w")
    worker.settle(*worker.claim(), ending="retry")
    assert ids(worker.claim(2)) == ["b", "a"]
    assert (stand.job("a").attempts, stand.job("a").deliveries) == (1, 1)


def test_due_jobs_go_first_only_if_the_queue_is_set_so(stand: Stand):
    stand.put("due", delay=1)
    stand.put("a")
    stand.advance(1)
    worker = FakeWorker(stand, "w")
    assert ids(worker.claim(9)) == ["a", "due"]
    stand.run(stand.bindings.set_switch("due_first", True))
    stand.put("b")
    stand.put("due too", delay=1)
    stand.advance(1)
    assert ids(worker.claim(9)) == ["due too", "b"]


def test_due_jobs_are_promoted_in_order_a_hundred_per_turn(stand: Stand):
    jobs = [(f"j{(i * 77) % 250}", record(delay=1 + (i * 77) % 250 / 1000)) for i in range(250)]
    stand.put_drafts(jobs)
    stand.advance(2)
    turns = FakeWorker(stand, "w").take_all(200)
    assert [len(turn.claims) for turn in turns] == [100, 100, 50]
    assert [key for turn in turns for key in ids(turn.claims)] == [f"j{i}" for i in range(250)]


def test_equal_times_keep_the_order_of_enqueueing(stand: Stand):
    stand.put("b", "a", delay=1)
    stand.put("c", at=START + 1000)
    stand.advance(1)
    assert ids(FakeWorker(stand, "w").claim(9)) == ["b", "a", "c"]


# --- expiry ---


def test_an_expired_job_ends_and_takes_no_turn(stand: Stand):
    stand.put("old", tenant="a", expires=1)
    stand.put("a", tenant="a")
    stand.put("b", tenant="b")
    stand.advance(1)
    assert ids(FakeWorker(stand, "w").claim(1)) == ["a"]
    assert stand.done("old") == constants.EXPIRED
    assert (stand.counts(), stand.dump()["meta"][b"expired"]) == ("1 0 1 0", b"1")


def test_a_job_that_was_started_in_time_does_not_expire(stand: Stand):
    stand.put("j", expires=1)
    worker = FakeWorker(stand, "w")
    worker.settle(*worker.claim(), ending="retry", delay=5)
    stand.advance(5)
    assert ids(worker.claim()) == ["j"]


def test_a_job_runs_until_the_millisecond_it_expires(stand: Stand):
    stand.put("j", expires=1)
    stand.advance(0.999)
    assert ids(FakeWorker(stand, "w").claim(1)) == ["j"]


def test_a_turn_that_ends_in_an_error_after_its_claim_loses_no_job(stand: Stand):
    worker, other = FakeWorker(stand, "w"), FakeWorker(stand, "v")
    worker.turn()
    stand.put("a", "b")
    tenants = stand.base + "tenants"
    kept = stand.client.hgetall(tenants)
    stand.client.delete(tenants)
    stand.client.set(tenants, "damaged")
    with pytest.raises(Exception, match="WRONGTYPE"):
        worker.turn(1)
    stand.client.delete(tenants)
    stand.client.hset(tenants, mapping=kept)
    assert len(worker.repeat_turn().claims) == 1
    served = set[str]()
    for _ in range(12):
        stand.advance(5)
        claims = other.turn(5).claims
        served |= {claim.id for claim in claims}
        other.settle(*claims)
    assert served == {"a", "b"}
