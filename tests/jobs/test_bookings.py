"""What running jobs really took of a rate, which was not what they cost."""

from __future__ import annotations

import pytest

from penstock.jobs.claims import Claim
from penstock.jobs.limit_bindings import LimitBindings
from tests.jobs.stand import FakeWorker, Stand, at_most, ids, per_second, problems_in, without_history


@pytest.fixture
def worker(stand: Stand) -> FakeWorker:
    return FakeWorker(stand, "w", lease=1000)


def put(stand: Stand, cost: int, *names: str, priority: int = 5) -> None:
    """Enqueue jobs in a rate of ten units a second, at most a hundred at once."""
    name, key, _, _, _, release, _ = per_second(10)
    stand.put(*names, limits=[(name, key, 10, 100_000, 100, release, cost)], priority=priority)


def used(stand: Stand, claim: Claim, units: int) -> int:
    return stand.run(LimitBindings(stand.bindings).used("w", claim.token, "r:n=k", units))


def left(stand: Stand) -> int:
    """How many units the key has; a job that cannot fit is parked, so that the key is listed."""
    put(stand, 100, "probe", "probe2")
    (limit,) = stand.run(LimitBindings(stand.bindings).limits(10))
    found = limit.keys[0].left + limit.keys[0].used
    stand.run(stand.bindings.cancel(["probe", "probe2"]))
    return found


def test_more_than_the_cost_is_taken_and_delays_the_next_start(stand: Stand, worker: FakeWorker) -> None:
    put(stand, 50, "a", "b", "c")
    a, b = worker.claim(10)
    assert used(stand, a, 80) == 50
    worker.settle(a, b)
    stand.advance(7.999)
    assert worker.claim(10) == []
    stand.advance(0.001)
    assert ids(worker.claim(10)) == ["c"]


def test_less_than_the_cost_is_given_back_and_admits_the_next_job_at_once(stand: Stand, worker: FakeWorker) -> None:
    put(stand, 100, "a")
    put(stand, 60, "b")
    (a,) = worker.claim(10)
    assert worker.claim(10) == []
    assert used(stand, a, 40) == 100
    assert stand.state("b") == "r"
    assert ids(worker.claim(10)) == ["b"]


def test_a_call_that_is_repeated_changes_nothing_and_the_last_amount_counts(stand: Stand, worker: FakeWorker) -> None:
    put(stand, 100, "a")
    (a,) = worker.claim(10)
    assert used(stand, a, 40) == 100
    known = stand.raw_dump()
    assert used(stand, a, 40) == 40
    assert stand.raw_dump() == known
    assert used(stand, a, 70) == 40
    assert used(stand, a, 70) == 70
    assert left(stand) == 30
    assert used(stand, a, 0) == 70
    assert left(stand) == 100


def test_units_that_time_has_given_back_are_not_given_back_again(stand: Stand, worker: FakeWorker) -> None:
    """Else a job that takes long and used little would let another key's worth of units start at once."""
    put(stand, 100, "a")
    (a,) = worker.claim(10)
    stand.advance(8)
    used(stand, a, 0)
    assert left(stand) == 100

    put(stand, 100, "b")
    (b,) = worker.claim(10)
    stand.advance(10)
    put(stand, 100, "c")
    assert ids(worker.claim(10)) == ["c"]
    used(stand, b, 10)
    assert left(stand) == 0


def test_a_debt_parks_jobs_that_were_admitted_and_have_not_started(stand: Stand, worker: FakeWorker) -> None:
    put(stand, 20, "a", "b", "c", "d")
    (a,) = worker.claim(1)
    assert stand.states("b", "c", "d") == "rrr"
    used(stand, a, 45)
    assert stand.states("b", "c", "d") == "rrp"
    used(stand, a, 90)
    assert stand.states("b", "c", "d") == "ppp"
    assert not problems_in(stand.raw_dump())
    stand.advance(1)
    first = ids(worker.claim(10))
    assert len(first) == 1
    stand.advance(4)
    assert sorted(first + ids(worker.claim(10))) == ["b", "c", "d"]
    assert not problems_in(stand.raw_dump())


def test_a_later_claim_takes_its_cost_anew_and_books_for_itself(stand: Stand, worker: FakeWorker) -> None:
    put(stand, 30, "a")
    (a,) = worker.claim(1)
    used(stand, a, 60)
    worker.settle(a, ending="retry")
    (again,) = worker.claim(1)
    assert left(stand) == 10
    assert used(stand, again, 0) == 30
    assert left(stand) == 40
    assert used(stand, a, 0) == -1


def test_a_booking_leaves_the_other_keys_of_a_claim_alone(stand: Stand, worker: FakeWorker) -> None:
    limits = [at_most(1, name="c"), per_second(10, cost=3), per_second(10, name="o", cost=3)]
    stand.put("a", "b", limits=limits, unique=None)
    stand.put("u", limits=limits, unique=("key", "d", 0))
    (a,) = worker.claim(10)
    for units in (5, 7, 2):
        used(stand, a, units)
    stand.run(LimitBindings(stand.bindings).used("w", a.token, "r:o=k", 1))
    worker.settle(a)
    (b,) = worker.claim(10)
    worker.settle(b)
    stand.advance(1)
    (u,) = worker.claim(10)
    used(stand, u, 9)
    worker.settle(u)
    assert stand.client.hgetall(stand.base + "unique") == {}
    assert stand.client.hgetall(stand.base + "places") == {}


@pytest.mark.parametrize("key", ["r:other=k", "c:n=k"])
def test_a_job_books_only_in_its_own_rates(stand: Stand, worker: FakeWorker, key: str) -> None:
    put(stand, 10, "a")
    (a,) = worker.claim(1)
    known = stand.raw_dump()
    assert stand.run(LimitBindings(stand.bindings).used("w", a.token, key, 5)) == -1
    assert stand.raw_dump() == known


def test_a_worker_whose_lease_ran_out_books_nothing(stand: Stand) -> None:
    late = FakeWorker(stand, "w", lease=10)
    put(stand, 50, "a")
    (a,) = late.claim()
    stand.advance(10)
    known = without_history(stand.raw_dump())
    assert used(stand, a, 80) == -1
    assert without_history(stand.raw_dump()) == known


def test_many_admitted_jobs_that_no_longer_fit_are_parked_in_several_turns(stand: Stand, worker: FakeWorker) -> None:
    """None of them starts meanwhile. They keep their order: each was enqueued before its neighbour."""
    limits = [per_second(1000)]
    stand.put("first", limits=limits)
    (first,) = worker.claim()
    names = [f"j{n:03}" for n in range(350)]
    stand.put(*names, limits=limits)
    used(stand, first, 100_000)
    for parked in (100, 200, 300):
        assert stand.states(*names).count("p") == parked
        turn = worker.turn(300)
        assert turn.claims == []
        assert turn.more == (parked < 300)
    assert set(stand.states(*names)) == {"p"}
    assert not problems_in(stand.raw_dump())
    stand.advance(120)
    claimed = list[str]()
    while some := ids(worker.claim(300)):
        claimed += some
    assert claimed == names
