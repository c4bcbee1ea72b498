"""Rates whose jobs cost several units."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import BadCall, ConfigurationError, Penstock, Rate
from penstock.core.cost import MOST_UNITS
from penstock.jobs.limit_bindings import LimitBindings
from penstock.jobs.limits import numbers
from penstock.jobs.record import Record
from penstock.jobs.row import read_row
from tests.conftest import Do
from tests.jobs.stand import FakeWorker, Stand, at_most, ids, per_second


@pytest.fixture
def worker(stand: Stand) -> FakeWorker:
    return FakeWorker(stand, "w")


def units(stand: Stand, cost: int, *names: str, **options: Any) -> None:
    """Enqueue jobs in a rate of ten units a second."""
    stand.put(*names, limits=[per_second(10, cost=cost)], **options)


def test_jobs_start_as_long_as_their_whole_cost_is_free(stand: Stand, worker: FakeWorker) -> None:
    units(stand, 4, "a", "b", "c")
    assert stand.states("a", "b", "c") == "rrp"
    assert ids(worker.claim(10)) == ["a", "b"]

    stand.advance(0.199)
    assert worker.claim(10) == []
    stand.advance(0.001)
    assert ids(worker.claim(10)) == ["c"]


def test_the_first_job_of_a_key_is_not_overtaken_by_one_that_would_fit(stand: Stand, worker: FakeWorker) -> None:
    units(stand, 6, "a", "large")
    units(stand, 1, "small")
    assert ids(worker.claim(10)) == ["a"]
    assert stand.states("large", "small") == "pp"
    stand.advance(0.2)
    assert ids(worker.claim(10)) == ["large"]


def test_an_idle_worker_is_woken_when_the_cost_of_the_first_job_is_free(stand: Stand, worker: FakeWorker) -> None:
    units(stand, 10, "a")
    units(stand, 5, "b")
    assert ids(worker.claim(10)) == ["a"]
    turns = 0
    while not (claims := worker.claim(10)):
        turns += 1
        assert turns < 4
        stand.clock.now_ms = int(read_row(stand.client.hget(stand.base + "meta", "row")).next_admission)
    assert ids(claims) == ["b"]


def test_a_job_that_costs_more_than_the_burst_waits_for_a_full_bucket_and_takes_its_whole_cost(
    stand: Stand, worker: FakeWorker
) -> None:
    units(stand, 1, "a")
    units(stand, 25, "large")
    units(stand, 1, "b")
    assert ids(worker.claim(10)) == ["a"]
    stand.advance(0.1)
    assert ids(worker.claim(10)) == ["large"]
    stand.advance(1.5)
    assert worker.claim(10) == []
    stand.advance(0.1)
    assert ids(worker.claim(10)) == ["b"]


def test_a_release_that_lowers_the_burst_does_not_block_a_parked_job(stand: Stand, worker: FakeWorker) -> None:
    units(stand, 8, "a", "b")
    assert ids(worker.claim(10)) == ["a"]
    assert stand.run(LimitBindings(stand.bindings).set_limit("r:n", 10, 100_000, 2))
    stand.advance(0.8)
    assert ids(worker.claim(10)) == ["b"]


def test_an_urgent_job_takes_the_units_of_several_less_urgent_ones(stand: Stand, worker: FakeWorker) -> None:
    units(stand, 3, "s1", "s2", "s3")
    units(stand, 7, "urgent", priority=0)
    assert stand.states("s1", "s2", "s3", "urgent") == "rppr"
    assert ids(worker.claim(1)) == ["urgent"]
    assert ids(worker.claim(10)) == ["s1"]


def test_a_job_that_costs_nothing_takes_no_unit(stand: Stand, worker: FakeWorker) -> None:
    units(stand, 0, *(f"n{n}" for n in range(20)))
    units(stand, 10, "all")
    units(stand, 0, "behind")
    assert len(worker.claim(100)) == 21
    assert stand.state("behind") == "p"
    stand.advance(0.1)
    assert ids(worker.claim(1)) == ["behind"]


def test_a_cancelled_or_expired_first_job_holds_up_no_other(stand: Stand, worker: FakeWorker) -> None:
    units(stand, 9, "a")
    units(stand, 10, "cancelled", "over", expires=0.05)
    units(stand, 1, "b")
    stand.run(stand.bindings.cancel(["cancelled"]))
    assert ids(worker.claim(10)) == ["a"]
    stand.advance(0.06)
    stand.run(LimitBindings(stand.bindings).set_limit("r:n", 10, 100_000, 10))
    assert ids(worker.claim(10)) == ["b"]


def test_the_units_of_a_job_that_leaves_the_queue_are_free_again(stand: Stand, worker: FakeWorker) -> None:
    units(stand, 10, "a", "b")
    stand.run(stand.bindings.cancel(["a"]))
    assert ids(worker.claim(10)) == ["b"]


def test_a_retried_job_takes_its_cost_again(stand: Stand, worker: FakeWorker) -> None:
    units(stand, 6, "a")
    (a,) = worker.claim(10)
    worker.settle(a, ending="retry")
    assert stand.state("a") == "p"
    stand.advance(0.2)
    assert ids(worker.claim(10)) == ["a"]


def test_a_job_parked_at_a_rate_keeps_its_place_in_a_limit_of_concurrency(stand: Stand, worker: FakeWorker) -> None:
    stand.put("a", "b", "c", limits=[at_most(2, name="c"), per_second(10, cost=6)])
    assert stand.states("a", "b", "c") == "rpp"
    (a,) = worker.claim(10)
    worker.settle(a)
    stand.advance(0.2)
    assert ids(worker.claim(10)) == ["b"]


def test_a_debt_ends_within_ten_years_whatever_the_numbers_are(stand: Stand, worker: FakeWorker) -> None:
    stand.put("a", limits=[("r:n", "k", 1, 366 * 86400 * 1_000_000, 1, 1, MOST_UNITS)])
    assert ids(worker.claim(1)) == ["a"]
    assert stand.client.pttl(stand.base + "rate:r:n=k") < 12 * 366 * 86400 * 1000


def test_operators_see_units(stand: Stand, worker: FakeWorker) -> None:
    units(stand, 6, "a", "b")
    (limit,) = stand.run(LimitBindings(stand.bindings).limits(10))
    assert (limit.most, limit.keys[0].used, limit.keys[0].left, limit.keys[0].next_in) == (10, 6, 4, None)
    worker.claim(10)
    (limit,) = stand.run(LimitBindings(stand.bindings).limits(10))
    assert (limit.keys[0].used, limit.keys[0].left, limit.keys[0].next_in) == (0, 4, 0.2)


# --- what tasks say ---


def cost_of(task: Any, *args: Any, **kwargs: Any) -> list[int]:
    _, body = task.call(*args, **kwargs).draft()
    return Record(body).costs


def test_a_cost_is_a_number_a_parameter_or_a_function_of_parameters() -> None:
    app = Penstock("valkey://localhost")

    @app.task(limit=Rate(100, per=1, cost=2.5))
    def fixed() -> None: ...

    @app.task(limit=Rate(100, per=1, cost="{tokens}"))
    def named(prompt: str, tokens: float = 7) -> None: ...

    @app.task(limit=Rate(100, per=1, cost=lambda prompt, most: len(prompt) / 4 + most))
    def reckoned(prompt: str, model: str = "m", *, most: int = 10) -> None: ...

    assert cost_of(fixed) == [3]
    assert cost_of(named, "x") == [7]
    assert cost_of(named, "x", 0.5) == [1]
    assert cost_of(named, "x", tokens=MOST_UNITS) == [MOST_UNITS]
    assert cost_of(reckoned, "12345", most=1) == [3]


@pytest.mark.parametrize("tokens", [-1, float("nan"), "7", True, None, MOST_UNITS + 1])
def test_a_call_whose_cost_is_negative_or_no_number_is_refused(tokens: Any) -> None:
    app = Penstock("valkey://localhost")

    @app.task(limit=Rate(100, per=1, name="api", cost=lambda: tokens))
    def ask() -> None: ...

    with pytest.raises(BadCall, match=r"limit api: the function that gives its cost gave .*: a cost is a number of u"):
        ask.call()


async def test_a_cost_that_cannot_be_computed_raises_its_own_error_and_enqueues_nothing(app: Penstock, do: Do) -> None:
    @app.task(queue="q", limit=Rate(100, per=1, name="api", cost=lambda words: 10 / words))
    def ask(words: int) -> None: ...

    with pytest.raises(ZeroDivisionError):
        await do(ask.enqueue, 0)
    with pytest.raises(ZeroDivisionError):
        await do(app.enqueue_many, (ask.call(words) for words in (1, 0, 1)))
    assert (await app.queue("q").count.aio()).waiting == 0
    await do(ask.enqueue, 1)
    assert (await app.queue("q").count.aio()).waiting == 1


def test_a_cost_that_needs_another_parameter_is_refused() -> None:
    app = Penstock("valkey://localhost")

    def ask(prompt: str) -> None: ...

    for cost in ("{tokens}", lambda tokens: tokens):
        with pytest.raises(ConfigurationError, match=r"its cost needs tokens, .* its parameters are: prompt"):
            app.task(limit=Rate(10, per=1, cost=cost))(ask)
    with pytest.raises(ConfigurationError, match="has parameters of the function by their names"):
        app.task(limit=Rate(10, per=1, cost=lambda *all: 1))(ask)


@pytest.mark.parametrize("cost", [-1, float("inf"), True, None, "tokens", "{a}{b}", "{a.b}", "{}", MOST_UNITS + 1])
def test_a_cost_that_no_task_can_have_is_refused(cost: Any) -> None:
    with pytest.raises(ValueError, match=r"Rate\(cost=.*\): "):
        Rate(10, per=1, cost=cost)


def test_the_interval_of_a_unit_is_rounded_up_so_that_the_rate_is_never_exceeded() -> None:
    assert numbers(Rate(90_000, per=60)) == (90_000, 667, 90_000)
    assert numbers(Rate(50_000_000, per=60)) == (50_000_000, 2, 50_000_000)
    assert numbers(Rate(100, per=0.1)) == (100, 1000, 100)
