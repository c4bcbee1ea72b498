"""Limits: places, parked jobs, and which of them gets the next place."""

from __future__ import annotations

import pytest

from penstock.jobs.limit_bindings import LimitBindings
from tests.jobs.stand import FakeWorker, Stand, at_most, ids, per_second, problems_in, record, settlement


@pytest.fixture
def worker(stand: Stand) -> FakeWorker:
    return FakeWorker(stand, "w")


def left_keys(stand: Stand) -> list[str]:
    """The keys that only limits use."""
    family = ("places", "parking", "admitted", "admissions", "parked:")
    return [name for name in stand.without_ttl() if name.startswith(family)]


def test_jobs_beyond_the_limit_are_parked_and_one_takes_each_place_that_is_freed(
    stand: Stand, worker: FakeWorker
) -> None:
    stand.put("a", "b", "c", limits=[at_most(1)])
    assert stand.states("a", "b", "c") == "rpp"

    (a,) = worker.claim(10)
    assert a.id == "a"
    assert worker.claim(10) == []
    worker.settle(a)
    assert stand.states("a", "b", "c") == "-rp"
    (b,) = worker.claim(10)
    assert worker.settle(b)
    (c,) = worker.claim(10)
    assert worker.settle(c)

    assert left_keys(stand) == []
    assert stand.counts() == "0 0 0 0"


def test_a_turn_claims_the_job_whose_place_it_freed_itself(stand: Stand, worker: FakeWorker) -> None:
    stand.put("a", "b", limits=[at_most(1)])
    (a,) = worker.claim(1)
    turn = worker.turn(1, settlement(a))
    assert ids(turn.claims) == ["b"]


def test_each_key_has_places_of_its_own(stand: Stand, worker: FakeWorker) -> None:
    for key in "xyz":
        stand.put(key + "1", key + "2", limits=[at_most(1, key)])
    assert sorted(ids(worker.claim(10))) == ["x1", "y1", "z1"]


@pytest.mark.parametrize("ending", ["retry", "later"])
def test_a_job_that_is_retried_keeps_its_place_in_a_limit_of_one(stand: Stand, worker: FakeWorker, ending: str) -> None:
    stand.put("a", "b", limits=[at_most(1)])
    (a,) = worker.claim(10)
    worker.settle(a, ending=ending, delay=5.0)  # type: ignore[arg-type]
    assert worker.claim(10) == []
    stand.advance(5)
    assert ids(worker.claim(10)) == ["a"]


def test_a_job_that_is_retried_gives_up_its_place_in_a_limit_of_two(stand: Stand, worker: FakeWorker) -> None:
    stand.put("a", "b", "c", limits=[at_most(2)])
    a, _b = worker.claim(10)
    worker.settle(a, ending="retry", delay=5.0)
    assert ids(worker.claim(10)) == ["c"]
    stand.advance(5)
    assert worker.claim(10) == []
    assert stand.state("a") == "p"


@pytest.mark.parametrize("ending", ["bury", "drop", "cancel"])
def test_a_job_that_ends_for_good_frees_its_place(stand: Stand, worker: FakeWorker, ending: str) -> None:
    stand.put("a", "b", limits=[at_most(1)])
    (a,) = worker.claim(10)
    worker.settle(a, ending=ending)  # type: ignore[arg-type]
    (b,) = worker.claim(10)
    assert b.id == "b"
    worker.settle(b)
    assert left_keys(stand) == []


def test_a_requeued_dead_letter_waits_for_a_place(stand: Stand, worker: FakeWorker) -> None:
    stand.put("a", "b", limits=[at_most(1)])
    (a,) = worker.claim(10)
    worker.settle(a, ending="bury")
    (b,) = worker.claim(10)
    stand.run(stand.bindings.requeue(["a"]))
    assert stand.state("a") == "p"
    worker.settle(b)
    assert ids(worker.claim(10)) == ["a"]


def test_a_job_that_was_handed_back_or_taken_back_keeps_its_place(stand: Stand, worker: FakeWorker) -> None:
    stand.put("a", "b", limits=[at_most(1)])
    (a,) = worker.claim(10)
    worker.settle(a, ending="release")
    assert ids(worker.claim(10)) == ["a"]
    stand.advance(60)
    other = FakeWorker(stand, "other")
    assert ids(other.claim(10)) == ["a"]
    assert stand.state("b") == "p"


def test_cancelled_jobs_free_their_places_and_leave_no_keys(stand: Stand, worker: FakeWorker) -> None:
    stand.put("a", "b", "c", limits=[at_most(1)])
    stand.run(stand.bindings.cancel(["a", "b"]))
    assert ids(worker.claim(10)) == ["c"]
    stand.put("d", "e", limits=[at_most(1)])
    stand.run(stand.bindings.cancel(["d", "e"]))
    worker.settle(*[])
    assert left_keys(stand) == ["places"]


def test_an_urgent_job_takes_the_place_of_a_less_urgent_one_that_was_not_claimed(
    stand: Stand, worker: FakeWorker
) -> None:
    stand.put("slow1", "slow2", limits=[at_most(1)])
    stand.put("urgent", priority=0, limits=[at_most(1)])
    assert stand.states("slow1", "slow2", "urgent") == "ppr"
    claimed = []
    while turn := worker.claim(1):
        claimed += ids(turn)
        worker.settle(*turn)
    assert claimed == ["urgent", "slow1", "slow2"]
    assert left_keys(stand) == []


def test_tenants_take_turns_among_the_parked_jobs_of_a_key(stand: Stand, worker: FakeWorker) -> None:
    stand.put("first", limits=[at_most(1)])
    stand.put("a1", "a2", "a3", tenant="a", limits=[at_most(1)])
    stand.put("b1", tenant="b", limits=[at_most(1)])
    claimed = []
    while turn := worker.claim(1):
        claimed += ids(turn)
        worker.settle(*turn)
    assert claimed == ["first", "a1", "b1", "a2", "a3"]


def test_a_heavier_tenant_gets_more_of_the_places_of_a_key(stand: Stand, worker: FakeWorker) -> None:
    stand.run(stand.bindings.set_weight("a", 3))
    for n in range(24):
        stand.put(f"a{n}", limits=[at_most(1)], tenant="a")
        stand.put(f"b{n}", limits=[at_most(1)], tenant="b")
    served = []
    for _ in range(24):
        (job,) = worker.claim(1)
        served.append(job.id[0])
        worker.settle(job)
    assert served.count("a") in {17, 18, 19}


def test_a_heavier_tenant_that_parks_one_job_at_a_time_gets_more_of_the_places(
    stand: Stand, worker: FakeWorker
) -> None:
    stand.run(stand.bindings.set_weight("a", 3))
    for tenant in "ab":
        stand.put(f"{tenant}0", f"{tenant}1", limits=[at_most(1)], tenant=tenant)
    served: list[str] = []
    for n in range(2, 26):
        (job,) = worker.claim(1)
        served.append(job.id[0])
        stand.put(f"{job.id[0]}{n}", limits=[at_most(1)], tenant=job.id[0])
        worker.settle(job)
    assert served.count("a") in {17, 18, 19}


def test_expired_parked_jobs_are_passed_over(stand: Stand, worker: FakeWorker) -> None:
    stand.put("a", limits=[at_most(1)])
    (a,) = worker.claim(1)
    stand.put(*(f"e{i}" for i in range(70)), expires=1, limits=[at_most(1)])
    stand.put("z", limits=[at_most(1)])
    stand.advance(2)
    worker.settle(a)
    assert ids(worker.claim(1)) == ["z"]
    assert stand.run(stand.bindings.counts()).expired == 70


def test_a_rate_counts_starts(stand: Stand, worker: FakeWorker) -> None:
    stand.put(*"abcdef", limits=[per_second(2)])
    first = worker.claim(10)
    assert ids(first) == ["a", "b"]
    worker.settle(*first)
    assert worker.claim(10) == []
    stand.advance(0.5)
    assert ids(worker.claim(10)) == ["c"]
    stand.advance(9)
    assert ids(worker.claim(10)) == ["d", "e"]


def test_an_idle_worker_takes_a_turn_when_a_rate_has_room_again(stand: Stand, worker: FakeWorker) -> None:
    stand.put("a", "b", "c", limits=[per_second(2)])
    worker.claim(10)
    turn = worker.turn(10, address="p/1", sleep=60)
    assert turn.due_in is not None
    assert turn.due_in <= 0.5


def test_jobs_pass_several_limits_in_one_order_and_keep_their_places(stand: Stand, worker: FakeWorker) -> None:
    both = [at_most(2, "x", "a"), at_most(1, "y", "b")]
    stand.put("1", "2", "3", limits=both)
    assert stand.states("1", "2", "3") == "rpp"
    assert stand.job("2").limits_passed == 1
    stand.put("4", limits=[at_most(2, "x", "a")])
    assert stand.state("4") == "p"  # 1 and 2 have the two places
    claimed = []
    while turn := worker.claim(1):
        claimed += ids(turn)
        worker.settle(*turn)
    assert sorted(claimed) == ["1", "2", "3", "4"]
    assert left_keys(stand) == []


def test_a_claim_meets_no_parked_job(stand: Stand, worker: FakeWorker) -> None:
    stand.put(*(f"p{i}" for i in range(300)), limits=[at_most(1)])
    assert stand.entries() == 1
    turn = worker.turn(10)
    assert ids(turn.claims) == ["p0"]
    assert not turn.more


def test_a_job_that_kept_all_of_its_places_can_be_promoted(stand: Stand, worker: FakeWorker) -> None:
    stand.put("a", "b", limits=[at_most(1)])
    (claim,) = worker.claim(5)
    worker.settle(claim, ending="retry", delay=60)
    assert stand.run(stand.bindings.edit("a", due=0.0)) == "edited"
    assert [claim.id for claim in worker.claim(5)] == ["a"]


def test_the_numbers_of_the_newest_release_hold(stand: Stand, worker: FakeWorker) -> None:
    stand.put(*"abcd", limits=[at_most(1, release=5)])
    stand.put("e", limits=[at_most(3, release=6)])
    stand.put("f", limits=[at_most(1, release=5)])
    assert ids(worker.take_all(10)[0].claims) == ["a", "b", "c"]


@pytest.mark.parametrize(("first", "then", "states"), [(1, 5, "rr"), (5, 1, "rp")], ids=["higher", "lower"])
def test_a_rate_that_changes_between_two_jobs_of_one_call_holds_for_the_second(
    stand: Stand, first: int, then: int, states: str
):
    stand.put_drafts([("a", record(limits=[per_second(first)])), ("b", record(limits=[per_second(then, release=2)]))])
    assert stand.states("a", "b") == states


def test_a_higher_number_admits_parked_jobs_at_once(stand: Stand, worker: FakeWorker) -> None:
    for key in "xyz":
        stand.put(*(f"{key}{i}" for i in range(3)), limits=[at_most(1, key)])
    assert stand.run(LimitBindings(stand.bindings).set_limit("c:n", 2, 0, 0))
    assert len(worker.claim(100)) == 6
    (limit,) = stand.run(LimitBindings(stand.bindings).limits(10))
    assert (limit.name, limit.kind, limit.most) == ("n", "concurrency", 2)
    assert [(usage.key, usage.used, usage.parked) for usage in limit.keys] == [("x", 2, 1), ("y", 2, 1), ("z", 2, 1)]


def test_a_higher_number_admits_the_parked_jobs_of_many_keys_in_some_turns(stand: Stand, worker: FakeWorker) -> None:
    for n in range(70):
        stand.put(f"{n}a", f"{n}b", limits=[at_most(1, f"k{n}")])
    stand.run(LimitBindings(stand.bindings).set_limit("c:n", 2, 0, 0))
    assert sum(len(turn.claims) for turn in worker.take_all(200)) == 140


def test_a_lower_number_stops_no_job_but_admits_none_before_enough_have_ended(stand: Stand, worker: FakeWorker) -> None:
    stand.put(*"abcd", limits=[at_most(3)])
    a, b, c = worker.claim(10)
    stand.run(LimitBindings(stand.bindings).set_limit("c:n", 1, 0, 0))
    worker.settle(a, b)
    assert worker.claim(10) == []
    worker.settle(c)
    assert ids(worker.claim(10)) == ["d"]


@pytest.mark.parametrize("tenant", [None, "t1"])
def test_a_purge_cancels_parked_jobs(stand: Stand, worker: FakeWorker, tenant: str | None) -> None:
    for name in ("t1", "t2"):
        for key in "xyz":
            stand.put(*(f"{name}{key}{i}" for i in range(10)), tenant=name, limits=[at_most(1, key)])
    cancelled, offset, done = 0, 0, False
    while not done:
        some, offset, done, _ = stand.run(stand.bindings.purge_parked(tenant, offset, 7))
        cancelled += some
    assert cancelled == (57 if tenant is None else 27)
    assert stand.run(stand.bindings.counts()).parked == (0 if tenant is None else 30)


def test_the_audit_finds_no_fault_in_any_state(stand: Stand, worker: FakeWorker) -> None:
    stand.put(*"abc", limits=[at_most(1), per_second(1)])
    stand.put(*"def", limits=[at_most(2, "j")], priority=1)
    (claim, *_) = worker.claim(1)
    worker.settle(claim, ending="retry", delay=3)
    worker.claim(1)
    assert problems_in(stand.raw_dump()) == []
    stand.client.hset(stand.base + "places", "c:n=k", b"\x07\x00\x00\x90")
    assert any("places: c:n=k" in problem for problem in problems_in(stand.raw_dump()))


def test_a_job_gives_a_place_that_it_kept_while_parked_to_a_more_urgent_job(stand: Stand, worker: FakeWorker) -> None:
    one, two = at_most(1, "k", "one"), at_most(1, "", "two")
    stand.put("holder", limits=[two])
    stand.put("less", priority=5, limits=[one, two])
    stand.put("urgent", priority=1, limits=[one])
    assert (
        stand.states("holder", "less", "urgent") == "rpp"
    )  # `less` has its place of `one`, and waits for one of `two`

    stand.run(LimitBindings(stand.bindings).set_limit("c:two", 2, 0, 0))
    assert stand.states("less", "urgent") == "pr"
    assert ids(worker.claim(10)) == ["urgent", "holder"]


def test_a_retried_job_gives_its_place_to_a_more_urgent_job_when_it_is_due(stand: Stand, worker: FakeWorker) -> None:
    stand.put("less", limits=[at_most(1)])
    (less,) = worker.claim(1)
    stand.put("urgent", priority=1, limits=[at_most(1)])
    worker.settle(less, ending="retry", delay=5.0)
    stand.advance(5)
    assert ids(worker.claim(10)) == ["urgent"]
    assert stand.state("less") == "p"


def test_a_change_by_an_operator_outlasts_a_release_whose_clock_is_ahead(stand: Stand) -> None:
    ahead = stand.clock.now_ms + 60_000
    stand.put("a", limits=[at_most(1, release=ahead)])
    stand.run(LimitBindings(stand.bindings).set_limit("c:n", 2, 0, 0))
    stand.put("b", "c", limits=[at_most(1, release=ahead)])
    assert stand.states("a", "b", "c") == "rrp"


def test_a_list_of_many_limits_has_fewer_keys_of_each(stand: Stand) -> None:
    """Forty limits with a hundred keys each would block the server for 80 ms."""
    for number in range(40):
        for key in range(8):
            stand.put(f"{number}-{key}a", f"{number}-{key}b", limits=[per_second(1, f"k{key}", f"n{number}")])
    found = stand.run(LimitBindings(stand.bindings).limits(100))
    assert len(found) == 40
    assert {len(limit.keys) for limit in found} == {3}
