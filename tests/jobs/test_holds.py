"""Keys of a rate that a job or an operator has closed for a while."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.jobs.constants import OUT_OF_RANGE, UNKNOWN_RATE
from penstock.jobs.limit_bindings import LimitBindings
from tests.jobs.stand import START, FakeWorker, Stand, at_most, ids, per_second, problems_in


@pytest.fixture
def worker(stand: Stand) -> FakeWorker:
    return FakeWorker(stand, "w", lease=1000)


def hold(stand: Stand, seconds: float | None, key: str = "k", *, must_exist: bool = True) -> int:
    """Close a key of the rate `n`; None opens it."""
    at = 0 if seconds is None else round(seconds * 1000)
    call = LimitBindings(stand.bindings).hold_limit(f"r:n={key}", at, is_date=False, must_exist=must_exist)
    return stand.run(call)


def sound(stand: Stand) -> None:
    problems = problems_in(stand.raw_dump())
    assert not problems, problems


def test_no_job_of_a_closed_key_starts_until_the_hold_ends(stand: Stand, worker: FakeWorker) -> None:
    stand.put("a", limits=[per_second(10)])
    stand.put("other", limits=[per_second(10, "l")])
    assert hold(stand, 30) == START + 30_000
    stand.put("b", limits=[per_second(10)])
    assert stand.states("a", "b", "other") == "ppr"
    sound(stand)
    assert ids(worker.claim(10)) == ["other"]

    stand.advance(29.999)
    assert worker.claim(10) == []
    stand.advance(0.001)
    assert ids(worker.claim(10)) == ["a", "b"]
    sound(stand)


def test_running_jobs_continue_and_a_retried_one_waits_for_the_end(stand: Stand, worker: FakeWorker) -> None:
    stand.put("a", "b", limits=[per_second(10)])
    a, b = worker.claim(10)
    hold(stand, 30)
    assert worker.settle(a)
    worker.settle(b, ending="later")
    assert stand.state("b") == "p"
    stand.advance(30)
    assert ids(worker.claim(10)) == ["b"]


def test_an_operator_opens_a_key_and_changes_a_hold(stand: Stand, worker: FakeWorker) -> None:
    stand.put("a", limits=[per_second(10)])
    hold(stand, 3600)
    hold(stand, 10)
    stand.advance(10)
    assert ids(worker.claim(10)) == ["a"]
    hold(stand, 3600)
    stand.put("b", limits=[per_second(10)])
    assert hold(stand, None) == 0
    assert ids(worker.claim(10)) == ["b"]


def test_many_admitted_jobs_are_parked_in_their_order(stand: Stand, worker: FakeWorker) -> None:
    names = [f"j{n:03}" for n in range(250)]
    for n, name in enumerate(names):
        stand.put(name, tenant=f"t{n % 3}", limits=[per_second(1000)])
    hold(stand, 30)
    assert stand.states(*names).count("p") == 100
    assert worker.claim(300) == []
    assert worker.claim(300) == []
    assert set(stand.states(*names)) == {"p"}
    sound(stand)
    stand.advance(30)
    claimed = [id for _ in range(12) for id in ids(worker.claim(300))]
    assert sorted(claimed) == names
    for tenant in range(3):
        mine = [id for id in claimed if int(id[1:]) % 3 == tenant]
        assert mine == sorted(mine)


def test_a_claim_that_meets_a_job_of_a_closed_key_parks_it(stand: Stand, worker: FakeWorker) -> None:
    """A job that was handed back keeps its entry in front of the others, where no list of admitted jobs has it."""
    stand.put("a", limits=[per_second(10)])
    (a,) = worker.claim(1)
    worker.settle(a, ending="release")
    assert stand.state("a") == "r"
    hold(stand, 30)
    assert stand.state("a") == "r"
    assert worker.claim(10) == []
    assert stand.state("a") == "p"
    sound(stand)


def test_a_job_at_a_closed_key_gives_up_its_places_in_earlier_limits(stand: Stand, worker: FakeWorker) -> None:
    """Or else the jobs of one account would use all places of a pool while they wait."""
    pool = at_most(2, "", "pool")
    stand.put("a1", "a2", "a3", limits=[pool, per_second(10, "a")])
    hold(stand, 30, "a")
    stand.put("b1", "b2", limits=[pool, per_second(10, "b")])
    stand.put("a4", limits=[pool, per_second(10, "a")])
    assert stand.states("a1", "a2", "a3", "a4", "b1", "b2") == "pppprr"
    sound(stand)
    b1, b2 = worker.claim(10)
    assert ids([b1, b2]) == ["b1", "b2"]
    worker.settle(b1)
    worker.settle(b2)
    assert worker.claim(10) == []
    stand.advance(30)
    assert ids(worker.claim(10)) == ["a1", "a2"]
    sound(stand)


def test_jobs_parked_at_a_key_give_up_their_places_when_it_is_closed(stand: Stand, worker: FakeWorker) -> None:
    pool = at_most(2, "", "pool")
    stand.put("a1", "a2", "a3", limits=[pool, per_second(10, "a", cost=10)])
    (a1,) = worker.claim(10)
    worker.settle(a1)
    assert stand.states("a2", "a3") == "pp"
    stand.put("b1", limits=[pool, per_second(10, "b")])
    assert stand.state("b1") == "p"
    hold(stand, 30, "a")
    assert ids(worker.claim(10)) == ["b1"]
    sound(stand)
    stand.advance(30)
    assert ids(worker.claim(10)) == ["a2"]


def test_a_job_at_a_closed_key_keeps_its_place_in_a_limit_of_one(stand: Stand, worker: FakeWorker) -> None:
    order = at_most(1, "acme", "order")
    stand.put("first", limits=[order, per_second(10)])
    hold(stand, 30)
    stand.put("second", limits=[order, per_second(10, "open")])
    assert worker.claim(10) == []
    assert stand.states("first", "second") == "pp"
    sound(stand)
    stand.advance(30)
    (first,) = worker.claim(10)
    worker.settle(first)
    assert ids(worker.claim(10)) == ["second"]


@pytest.mark.parametrize("limits", [[per_second(10)], [at_most(5), per_second(10)]])
def test_cancelled_purged_and_expired_jobs_of_a_closed_key_leave_nothing(
    stand: Stand, worker: FakeWorker, limits: Any
) -> None:
    stand.put("a", "b", limits=limits)
    hold(stand, 30)
    stand.put("c", limits=limits)
    stand.put("over", limits=limits, expires=5)
    stand.run(stand.bindings.cancel(["a"]))
    stand.run(stand.bindings.purge_parked(None, 0, 1))
    sound(stand)
    stand.advance(31)
    for claim in worker.claim(10):
        worker.settle(claim)
    worker.turn()
    family = ("places", "parking", "admitted", "admissions", "parked:")
    assert [name for name in stand.without_ttl() if name.startswith(family)] == []
    assert stand.counts() == "0 0 0 0"


def test_a_pause_and_a_hold_end_independently(stand: Stand, worker: FakeWorker) -> None:
    stand.put("a", tenant="ada", limits=[at_most(3), per_second(10)])
    hold(stand, 30)
    stand.run(stand.bindings.pause_scope("p:tenant=ada", True))
    stand.put("b", tenant="ada", limits=[at_most(3), per_second(10)])
    stand.advance(30)
    assert worker.claim(10) == []
    stand.run(stand.bindings.pause_scope("p:tenant=ada", False))
    worker.turn()
    assert sorted(ids(worker.claim(10))) == ["a", "b"]
    sound(stand)


def test_a_repeated_call_does_not_prolong_a_hold(stand: Stand) -> None:
    stand.put("a", limits=[per_second(10)])
    call = LimitBindings(stand.bindings).hold_limit("r:n=k", 30_000, is_date=False)
    args = ("caller", 1, *call.args[2:])
    call = type(call)(call.script, call.keys, args, call.read)
    until = stand.run(call)
    stand.clock.now_ms += 1000
    again = type(call)(call.script, call.keys, ("caller", 1, stand.clock.now_ms, *args[3:]), call.read)
    assert stand.run(again) == until


def test_a_running_job_closes_its_key_but_never_shortens_a_hold(stand: Stand, worker: FakeWorker) -> None:
    stand.put("a", limits=[per_second(10)])
    (a,) = worker.claim(1)
    bindings = LimitBindings(stand.bindings)
    assert stand.run(bindings.hold("w", a.token, "r:n=k", 30_000)) == START + 30_000
    assert stand.run(bindings.hold("w", a.token, "r:n=k", 5_000)) == START + 30_000
    worker.settle(a)
    assert stand.run(bindings.hold("w", a.token, "r:n=k", 90_000)) == -1
    stand.put("b", limits=[per_second(10)])
    stand.advance(30)
    assert ids(worker.claim(10)) == ["b"]


def test_a_hold_of_an_unknown_limit_or_until_a_time_out_of_range_changes_nothing(stand: Stand) -> None:
    stand.put("a", limits=[per_second(10)])
    known = stand.raw_dump()
    bindings = LimitBindings(stand.bindings)
    assert stand.run(bindings.hold_limit("r:m=k", 1000, is_date=False)) == UNKNOWN_RATE
    assert stand.run(bindings.hold_limit("r:n=k", START - 1, is_date=True)) == OUT_OF_RANGE
    assert stand.run(bindings.hold_limit("r:n=k", START + 367 * 86_400_000, is_date=True)) == OUT_OF_RANGE
    assert stand.raw_dump() == known


def test_operators_see_closed_keys_with_and_without_parked_jobs(stand: Stand, worker: FakeWorker) -> None:
    stand.put("a", limits=[per_second(10, "a")])
    hold(stand, 30, "a")
    hold(stand, 60, "b")
    (limit,) = stand.run(LimitBindings(stand.bindings).limits(10))
    assert [(one.key, one.parked, one.left, one.held_for) for one in limit.keys] == [("a", 1, 0, 30), ("b", 0, 0, 60)]


def test_the_holds_of_a_queue_are_forgotten_when_they_have_ended(stand: Stand) -> None:
    stand.put("a", limits=[per_second(10)])
    for n in range(20):
        hold(stand, 1, f"k{n}")
    stand.advance(2)
    hold(stand, 1, "last")
    assert stand.client.zcard(stand.base + "holds") == 1
    assert 0 < stand.client.pttl(stand.base + "holds") <= 2000


def test_a_worker_whose_lease_ran_out_closes_no_key(stand: Stand) -> None:
    late = FakeWorker(stand, "w", lease=10)
    stand.put("a", limits=[per_second(10)])
    (a,) = late.claim()
    stand.advance(10)
    assert stand.run(LimitBindings(stand.bindings).hold("w", a.token, "r:n=k", 5000)) == -1
    assert "holds" not in stand.raw_dump()


def test_a_job_at_its_second_rate_gives_up_its_places_as_well(stand: Stand, worker: FakeWorker) -> None:
    pool, fast = at_most(2, "", "pool"), per_second(10, "x", "fast")
    stand.put("first", limits=[pool, fast, per_second(10, "a")])
    worker.settle(*worker.claim())
    hold(stand, 30, "a")
    stand.put("a1", "a2", "a3", limits=[pool, fast, per_second(10, "a")])
    stand.put("b", limits=[pool, fast, per_second(10, "b")])
    assert stand.states("a1", "a2", "a3", "b") == "pppr"
    sound(stand)
    (b,) = worker.claim(10)
    worker.settle(b)
    stand.advance(30)
    assert ids(worker.claim(10)) == ["a1", "a2"]
    sound(stand)


def test_a_job_whose_record_was_lost_does_not_hide_those_behind_it(stand: Stand, worker: FakeWorker) -> None:
    stand.put("lost", "a", limits=[per_second(10)])
    stand.client.hdel(stand.base + "jobs", "lost")
    hold(stand, 30)
    assert stand.state("a") == "p"
    assert "admitted" not in stand.raw_dump()


def test_a_script_parks_and_admits_fewer_jobs_if_they_are_large(stand: Stand, worker: FakeWorker) -> None:
    """Each transition copies the record: a hundred of 100 KB held the server for 24 ms."""
    names = [f"j{n:02}" for n in range(40)]
    for name in names:
        stand.put(name, limits=[at_most(100), per_second(1000)], payload=bytes(100_000))
    hold(stand, 30)
    parked = [stand.states(*names).count("p")]
    while parked[-1] < 40 and len(parked) < 10:
        worker.turn()
        parked.append(stand.states(*names).count("p"))
    assert 5 < parked[0] <= 12
    assert parked[-1] == 40
    sound(stand)
    stand.advance(30)
    worker.turn()
    assert 5 < stand.states(*names).count("r") <= 30
    claimed = [id for _ in range(10) for id in ids(worker.claim(40))]
    assert claimed == names
    sound(stand)
