"""The history of a queue: the rows that scripts write, and what Python reads from them."""

import os

import pytest

from penstock.jobs.constants import ROW_BYTES, ROWS_OF_10_S, ROWS_OF_A_MINUTE, WRAP
from penstock.jobs.history import Moment, read_rows
from tests.jobs.stand import START, FakeWorker, Stand

MOST_BYTES = 100_000
KEYS = ("history:10", "history:60")


def moments(stand: Stand, interval: int = 10) -> list[Moment]:
    return stand.run(stand.bindings.history(interval, ROWS_OF_A_MINUTE))


def lengths(stand: Stand) -> list[int]:
    return [stand.client.llen(stand.base + key) for key in KEYS]


def test_a_moment_says_what_happened_before_it(stand: Stand):
    stand.put_for(ada="a b c", bo="d")
    worker = FakeWorker(stand, "w")
    first, second = worker.claim(2)
    worker.settle(first, text="1")
    worker.settle(second, ending="bury")
    stand.advance(9.0)
    worker.heartbeat()
    stand.advance(1.0)
    worker.turn(0)
    assert moments(stand) == [
        Moment(
            at=START / 1000 + 10,
            seconds=10.0,
            ready=2,
            delayed=0,
            parked=0,
            running=0,
            dead=1,
            oldest=10,
            workers=0,
            entered=4,
            completed=1,
            retried=0,
            failed=1,
            dropped=0,
            cancelled=0,
            expired=0,
            lost=0,
        )
    ]
    assert moments(stand)[0].per_second("entered") == 0.4


def test_a_row_is_written_once_in_10_s_and_for_a_day_once_a_minute(stand: Stand):
    worker = FakeWorker(stand, "w")
    stand.advance(60.0 - START / 1000 % 60)
    for second in range(61):
        stand.put(f"j{second}")
        worker.turn(1)
        stand.advance(1.0)
        assert lengths(stand) == [second // 10 + 1, second // 60 + 1]
    assert sum(moment.entered for moment in moments(stand)) == moments(stand, 60)[0].entered == 60
    assert [stand.client.ttl(stand.base + key) for key in KEYS] == [3600, 86400]


def test_a_burst_that_stays_is_seen_at_the_end_of_its_ten_seconds(stand: Stand):
    stand.advance(10.0 - START / 1000 % 10)
    stand.put_for(ada="a")
    stand.advance(1.0)
    stand.put_for(ada=" ".join(f"j{n}" for n in range(120)))
    assert moments(stand) == []
    for _ in range(2):  # later, too: nothing has happened since
        stand.advance(10.0)
        (burst,) = moments(stand)
        assert (burst.ready, burst.entered, burst.seconds) == (121, 121, 10.0)


def test_an_action_of_an_operator_does_not_change_the_past(stand: Stand):
    stand.put_for(ada="a b c")
    stand.advance(60.0)
    stand.run(stand.bindings.cancel(["a", "b"]))
    stand.advance(10.0)
    before, after = moments(stand)
    assert (before.ready, before.cancelled) == (3, 0)
    assert (after.ready, after.cancelled) == (1, 2)


def test_other_turns_pay_no_command_for_it(stand: Stand):
    def commands() -> int:
        return sum(one["calls"] for one in stand.client.info("commandstats").values())

    def cost_of_a_turn() -> int:
        before = commands()
        worker.turn(0)
        return commands() - before

    stand.put("j")
    worker = FakeWorker(stand, "w")
    cost_of_a_turn()
    usual = cost_of_a_turn()
    stand.advance(1.0)
    assert cost_of_a_turn() == usual
    stand.advance(9.0)
    assert 0 < cost_of_a_turn() - usual <= 7
    assert cost_of_a_turn() == usual


def test_a_queue_that_was_never_used_has_no_history(stand: Stand):
    FakeWorker(stand, "w").turn(1)
    assert lengths(stand) == [0, 0]
    assert moments(stand) == []


def test_the_history_of_a_queue_stays_below_100_kb(stand: Stand):
    stand.put("j")
    for key, most in zip(KEYS, (ROWS_OF_10_S, ROWS_OF_A_MINUTE), strict=True):
        for _ in range(most):
            stand.client.rpush(stand.base + key, os.urandom(ROW_BYTES))
    for n in range(2):
        stand.advance(60.0)
        FakeWorker(stand, f"w{n}").turn(0)
        assert lengths(stand) == [ROWS_OF_10_S + 1, ROWS_OF_A_MINUTE + 1]  # one more than before this test filled them
    used = sum(stand.client.memory_usage(stand.base + key, samples=0) for key in KEYS)
    assert used < MOST_BYTES


def test_numbers_that_do_not_fit_are_cut_and_totals_wrap(stand: Stand):
    stand.put("j")
    stand.client.delete(*(stand.base + key for key in KEYS))
    stand.change_row(running=2**30, dead=2**30)
    for turn, completed in enumerate((WRAP - 3, WRAP + 4, 2)):
        stand.advance(10.0)
        stand.change_row(completed=completed)
        FakeWorker(stand, f"w{turn}").turn(0)
    one, two = moments(stand)
    assert (one.running, one.dead, one.completed) == (WRAP - 1, WRAP - 1, 7)
    assert two.completed == 0  # the total went back: the queue was restored


def test_a_clock_that_goes_backwards_begins_anew(stand: Stand):
    for n in range(3):
        stand.put(f"j{n}")
        stand.advance(10.0)
    rows = stand.client.lrange(stand.base + "history:10", 0, -1)
    assert len(read_rows(rows)) == 2
    assert len(read_rows([rows[2], rows[0], rows[1]])) == 1


def test_a_row_of_an_older_release_gets_a_history(stand: Stand):
    stand.put("j")
    stand.change_row(ready=1)  # writes the three values that older releases write
    stand.advance(10.0)
    FakeWorker(stand, "w").turn(1)
    assert stand.counts() == "0 0 1 0"
    assert lengths(stand)[0] == 2


@pytest.mark.parametrize("interval", [10, 60])
def test_an_enqueue_without_workers_writes_rows(stand: Stand, interval: int):
    for n in range(3):
        stand.put(f"j{n}")
        stand.advance(60.0)
    assert [moment.ready for moment in moments(stand, interval)] == [1, 2, 3]
