"""Sleepers and who wakes them: messages are read from the inboxes, time is moved by hand."""

from __future__ import annotations

import pytest

from penstock.jobs import constants
from penstock.jobs.claims import TurnReply
from tests.jobs.stand import START, Hand, Stand, ids, settlement


def lie_down(stand: Stand, *processes: str, want: int = 1) -> list[TurnReply]:
    """A worker of each process finds nothing and sleeps; the last one lies down last."""
    turns = []
    for process in processes:
        stand.advance(0.001)
        turns.append(Hand(stand, f"{process}.worker").turn(want, address=f"{process}/1", sleep=50))
        assert turns[-1].claims == []
    return turns


def come(stand: Stand, process: str, want: int = 1, number: int = 2, sleep: float = 50) -> TurnReply:
    """The sleeper of a process takes its next turn."""
    return Hand(stand, f"{process}.worker", number=number - 1).turn(want, address=f"{process}/1", sleep=sleep)


def heard(stand: Stand, *processes: str) -> list[list[str]]:
    return [stand.messages(process) for process in processes]


def rung(stand: Stand, *processes: str) -> list[list[str]]:
    """Of what they heard, the wake-ups: now, or as a witness in 50 ms."""
    return [[m for m in messages if m.split()[1] in ("0", "50")] for messages in heard(stand, *processes)]


def office(stand: Stand) -> tuple[str, str]:
    timekeeper, deputy = stand.client.hmget(stand.base + "meta", "timekeeper", "deputy")
    return (timekeeper or b"-").decode(), (deputy or b"-").decode()


# --- a job is ready ---


def test_a_job_wakes_who_lay_down_last_and_another_looks_after_50_ms(stand: Stand):
    lie_down(stand, "p", "q", "r")
    stand.put("j")
    assert heard(stand, "p", "q", "r") == [[], ["1 50"], ["1 0"]]
    assert [address for address, _ in stand.dump()["sleepers"]] == [b"p/1", b"q/1"]
    assert ids(come(stand, "r").claims) == ["j"]


def test_many_jobs_wake_one_and_no_second_one_within_50_ms(stand: Stand):
    lie_down(stand, "p", "q", "r")
    stand.put("a", "b")
    stand.advance(0.049)
    stand.put("c")
    assert heard(stand, "p", "q", "r") == [[], ["1 50"], ["1 0"]]
    stand.advance(0.001)
    stand.put("d")
    assert heard(stand, "p", "q", "r") == [["1 50"], ["1 0"], []]


def test_who_leaves_ready_jobs_behind_wakes_the_next(stand: Stand):
    lie_down(stand, "p", "q", "r")
    stand.put("a", "b", "c")
    heard(stand, "q", "r")
    assert ids(come(stand, "r").claims) == ["a"]
    assert rung(stand, "q") == [["1 0"]]
    assert ids(come(stand, "q").claims) == ["b"]
    assert rung(stand, "p") == [["1 50", "1 0"]]
    assert ids(come(stand, "p").claims) == ["c"]
    assert "sleepers" not in stand.dump()


def test_who_takes_all_wakes_nobody(stand: Stand):
    lie_down(stand, "p", "q", want=5)
    stand.put("a", "b", "c")
    heard(stand, "p", "q")
    assert len(come(stand, "q", want=3).claims) == 3
    assert rung(stand, "p", "q") == [[], []]


def test_after_an_answer_the_next_job_wakes_at_once(stand: Stand):
    lie_down(stand, "p", "q")
    stand.put("a")
    come(stand, "q", want=1)
    heard(stand, "p", "q")
    stand.put("b")
    assert stand.messages("p") == ["1 0"]


def test_a_clock_that_goes_back_keeps_nobody_asleep(stand: Stand):
    """As after a failover to a host whose clock is behind; the sleeper that was woken last is gone."""
    lie_down(stand, "p", "q", "gone")
    stand.put("a")
    assert rung(stand, "p", "q") == [[], ["1 50"]]
    stand.advance(-3600)
    stand.put("b")
    assert rung(stand, "p", "q") == [["1 50"], ["1 0"]]


def test_the_witness_takes_the_job_of_a_frozen_sleeper(stand: Stand):
    lie_down(stand, "p", "frozen")
    stand.put("j")
    assert heard(stand, "p", "frozen") == [["1 50"], ["1 0"]]
    stand.advance(0.05)
    assert ids(come(stand, "p").claims) == ["j"]
    assert come(stand, "frozen").claims == []


def test_a_witness_that_is_woken_itself_has_a_witness(stand: Stand):
    """The first sleeper passes on to the second, which is frozen: the third must look."""
    lie_down(stand, "p", "frozen", "r")
    stand.put("a", "b")
    come(stand, "r")
    assert rung(stand, "p", "frozen", "r") == [["1 50"], ["1 50", "1 0"], ["1 0"]]


@pytest.mark.parametrize("neighbours", [2, 4, 9])
def test_a_witness_is_of_another_process(stand: Stand, neighbours: int):
    lie_down(stand, "p")
    for n in range(neighbours):
        stand.advance(0.001)
        Hand(stand, f"q{n}").turn(1, address=f"q/{n}", sleep=50)
    heard(stand, "p", "q")
    stand.put("j")
    assert heard(stand, "p", "q") == [["1 50"], [f"{neighbours - 1} 0"]]


def test_a_lone_sleeper_is_woken_without_a_witness(stand: Stand):
    lie_down(stand, "p")
    stand.put("j")
    assert stand.messages("p") == ["1 0"]


def test_nobody_is_woken_for_a_job_that_is_not_due_or_a_queue_that_is_paused(stand: Stand):
    lie_down(stand, "p", "q")
    stand.run(stand.bindings.set_switch("paused", True))
    stand.put("j")
    assert heard(stand, "p", "q") == [[], []]
    stand.run(stand.bindings.set_switch("paused", False))
    assert stand.messages("q") == ["1 0"]


def test_whatever_makes_a_job_ready_wakes_a_sleeper(stand: Stand):
    stand.put("a", "b", "c", "d")
    hand = Hand(stand, "w")
    a, b, c, d = hand.claim(4)
    lie_down(stand, "p", "q", "r", "s")
    assert hand.settle_alone(a, "retry")
    assert stand.messages("s") == ["1 0"]
    stand.advance(0.05)
    assert hand.settle_alone(b, "later")
    assert stand.messages("r") == ["1 50", "1 0"]
    stand.advance(0.05)
    hand.turn(0, settlement(c, "release"), settlement(d, "bury"))
    assert stand.messages("q") == ["1 50", "1 0"]
    stand.advance(0.05)
    assert stand.run(stand.bindings.requeue(["d"])) == 1
    assert stand.messages("p") == ["1 50", "1 0"]


# --- sleep ---


def test_only_who_finds_less_than_it_wants_lies_down(stand: Stand):
    stand.put("a", "b")
    for name, want, n in (("one", 0, 0), ("two", 1, 1), ("three", 2, 1)):
        assert len(Hand(stand, name).turn(want, address=f"{name}/1", sleep=50).claims) == n
    assert stand.dump()["sleepers"] == [(b"three/1", START + 50_000.0)]


def test_a_claim_without_a_worker_lies_down_only_with_empty_hands(stand: Stand):
    stand.put("a")
    assert len(Hand(stand, "one").turn(2, address="p/1", sleep=50, once=True).claims) == 1
    assert Hand(stand, "two").turn(2, address="p/2", sleep=50, once=True).claims == []
    assert stand.dump()["sleepers"] == [(b"p/2", START + 50_000.0)]
    assert Hand(stand, "two", number=1).turn(2, address="p/2", once=True).alive
    assert stand.dump().keys() & {"sleepers", "turn:two"} == set()


def test_who_takes_a_full_turn_is_no_longer_asleep(stand: Stand):
    lie_down(stand, "p")
    assert come(stand, "p", want=0).alive
    assert "sleepers" not in stand.dump()


def test_sleepers_that_did_not_say_again_that_they_sleep_are_forgotten(stand: Stand):
    lie_down(stand, "p", "q")
    stand.advance(50)
    stand.put("a")
    assert heard(stand, "p", "q") == [[], []]
    assert "sleepers" not in stand.dump()
    assert "woken" not in stand.dump()["meta"]


def test_an_inbox_nobody_reads_ends(stand: Stand):
    lie_down(stand, "p")
    stand.put("a")
    assert 50_000 < stand.client.pttl(stand.base + "inbox:p") <= 60_000


# --- the timekeeper ---


def test_the_first_sleeper_is_the_timekeeper_and_the_second_its_deputy(stand: Stand):
    stand.put("j", delay=5)
    turns = lie_down(stand, "p", "q", "r")
    assert office(stand) == ("p/1", "q/1")
    assert [turn.due_in for turn in turns] == [4.999, 5.298, None]


def test_an_earlier_due_time_is_told_to_timekeeper_and_deputy_and_a_later_one_is_not(stand: Stand):
    lie_down(stand, "p", "q", "r")
    stand.put("a", delay=5)
    stand.put("b", delay=6)
    stand.put("c", delay=1)
    assert heard(stand, "p", "q", "r") == [["1 5000", "1 1000"], ["1 5300", "1 1300"], []]


def test_a_retry_later_arms_the_timekeeper_as_well(stand: Stand):
    stand.put("j")
    hand = Hand(stand, "w", lease=100)
    claims = hand.claim()
    lie_down(stand, "p")
    hand.settle(*claims, ending="retry", delay=2)
    assert stand.messages("p") == ["1 2000"]


def test_a_timekeeper_of_the_past_does_not_keep_the_deputy_from_being_told(stand: Stand):
    lie_down(stand, "gone", "q")
    stand.put("a", delay=1)
    stand.advance(2)
    heard(stand, "q")
    stand.put("b", delay=1)
    assert stand.messages("q") == ["1 1300"]


def test_a_deputy_that_finds_work_left_lying_takes_the_office(stand: Stand):
    lie_down(stand, "frozen", "q", "r")
    stand.put("j", delay=1)
    stand.advance(1.3)
    assert ids(come(stand, "q", want=2).claims) == ["j"]
    assert office(stand) == ("q/1", "r/1")
    assert b"frozen/1" not in dict(stand.dump()["sleepers"])
    assert stand.messages("frozen") == ["1 1000", "1 0"]


def test_a_deputy_that_has_its_hands_full_then_passes_the_office_on(stand: Stand):
    lie_down(stand, "frozen", "q", "r", "s")
    stand.put("j", delay=1)
    stand.advance(1.3)
    assert len(come(stand, "q").claims) == 1
    assert office(stand) == ("s/1", "r/1")


def test_a_deputy_looks_after_the_time_at_which_the_timekeeper_should_have_looked(stand: Stand):
    """A dead timekeeper was told of a lease that has been given back since: what is due later is told to no one."""
    lie_down(stand, "dead", "q", "r")
    stand.put("j")
    (claim,) = come(stand, "r", sleep=0).claims
    Hand(stand, "r.worker", lease=1000, number=2).settle(claim)
    Hand(stand, "q.worker", lease=1000, number=1).turn(0, address="q/1", sleep=50)
    (turn,) = lie_down(stand, "s")
    assert office(stand) == ("dead/1", "s/1")
    assert turn.due_in == 10.299


def test_a_timekeeper_in_time_stays_the_timekeeper(stand: Stand):
    lie_down(stand, "p", "q", "r")
    stand.put("j", delay=1)
    stand.advance(1.2)
    come(stand, "r", want=2)
    assert office(stand) == ("p/1", "q/1")


def test_a_timekeeper_that_rises_hands_its_office_on(stand: Stand):
    lie_down(stand, "p", "q", "r")
    stand.put("later", delay=5)
    heard(stand, "p", "q", "r")
    stand.put("now")
    stand.advance(1)
    assert len(come(stand, "p").claims) == 1
    assert office(stand) == ("q/1", "-")
    assert stand.messages("q") == ["1 50", "1 4000"]
    lie_down(stand, "s")
    assert office(stand) == ("q/1", "s/1")


def test_a_deputy_that_rises_is_replaced_from_those_who_sleep(stand: Stand):
    stand.put("later", delay=5)
    lie_down(stand, "p", "q", "r")
    come(stand, "q", want=0)
    assert office(stand) == ("p/1", "r/1")
    assert stand.messages("r") == ["1 5297"]


def test_a_deputy_is_of_another_process_than_the_timekeeper(stand: Stand):
    for n in (1, 2):
        Hand(stand, f"p{n}").turn(1, address=f"p/{n}", sleep=50)
    assert office(stand) == ("p/1", "-")
    lie_down(stand, "q")
    assert office(stand) == ("p/1", "q/1")


def test_a_timekeeper_whose_time_ran_out_is_replaced_by_the_next_sleeper(stand: Stand):
    lie_down(stand, "gone", "gone too")
    stand.advance(50)
    lie_down(stand, "q", "r")
    assert office(stand) == ("q/1", "r/1")


def test_a_timekeeper_takes_back_what_a_worker_claimed_after_it_lay_down(stand: Stand):
    lie_down(stand, "p", "q")
    stand.put("j")
    come(stand, "q", sleep=0)
    assert heard(stand, "p", "q") == [["1 50", "1 10000"], ["1 0"]]
    come(stand, "q", want=0, number=3)
    assert heard(stand, "p", "q") == [[], []]
    stand.advance(10)
    assert ids(come(stand, "p", want=1).claims) == ["j"]


def test_a_timekeeper_that_finds_the_lease_renewed_is_told_when_to_look_again(stand: Stand):
    lie_down(stand, "p", "q")
    stand.put("j")
    come(stand, "q", sleep=0)
    stand.advance(3)
    stand.run(stand.bindings.heartbeat("q.worker", 10))
    stand.advance(7)
    assert come(stand, "p").due_in == 3.0


def test_an_abandoned_worker_wakes_who_takes_its_jobs_back(stand: Stand):
    lie_down(stand, "p", "q")
    stand.put("j")
    come(stand, "q", sleep=0)
    heard(stand, "p", "q")
    stand.run(stand.bindings.abandon("q.worker"))
    assert stand.messages("p") == ["1 0"]
    assert ids(come(stand, "p", want=1).claims) == ["j"]


def test_a_timekeeper_with_more_than_a_slice_to_take_back_comes_again_at_once(stand: Stand):
    for n in range(10):
        Hand(stand, f"idle{n}").turn(1)
    stand.advance(10)
    turn = Hand(stand, "w").turn(1, address="p/1", sleep=50)
    assert (turn.more, turn.due_in) == (True, None)
    turn = Hand(stand, "w", number=1).turn(1, address="p/1", sleep=50)
    assert (turn.more, turn.due_in) == (False, 50.0)


# --- who waits for a result ---


def test_who_waits_for_a_job_is_told_when_it_ends_however_it_ends(stand: Stand):
    stand.put("complete", "bury", "drop", "cancel", "retry")
    stand.put("expire", expires=1, priority=9)
    for n, key in enumerate(["complete", "bury", "drop", "cancel", "expire", "retry", "unknown"]):
        assert stand.run(stand.bindings.result(key, f"p/{n}")).done is None
    stand.run(stand.bindings.cancel(["cancel"]))
    assert stand.messages("p") == ["3 done"]
    hand = Hand(stand, "w")
    done, bury, drop, retry = hand.claim(4)
    ends = (settlement(done), settlement(bury, "bury"), settlement(drop, "drop"), settlement(retry, "retry", 5))
    hand.turn(0, *ends)
    assert stand.messages("p") == ["0 done", "1 done", "2 done"]
    stand.advance(1)
    hand.turn(1)
    assert stand.messages("p") == ["4 done"]
    assert stand.dump()["listeners"] == {b"retry": b"p/5"}
    stand.run(stand.bindings.purge(None, 0, 10))
    assert stand.messages("p") == ["5 done"]
    assert "listeners" not in stand.dump()


def test_all_who_wait_are_told_and_who_gave_up_is_not(stand: Stand):
    stand.put("j")
    for address in ("p/1", "p/11", "q/1", "p/1"):
        stand.run(stand.bindings.result("j", address))
    stand.run(stand.bindings.forget("j", "p/1"))
    stand.run(stand.bindings.forget("j", "never"))
    hand = Hand(stand, "w")
    hand.settle(*hand.claim())
    assert heard(stand, "p", "q") == [["11 done"], ["1 done"]]


def test_the_last_who_gives_up_leaves_nothing(stand: Stand):
    stand.put("j")
    stand.run(stand.bindings.result("j", "p/1"))
    stand.run(stand.bindings.forget("j", "p/1"))
    assert "listeners" not in stand.dump()


def test_a_dead_letter_has_no_waiters(stand: Stand):
    stand.put("j")
    hand = Hand(stand, "w")
    hand.settle(*hand.claim(), ending="bury", text="why")
    found = stand.run(stand.bindings.result("j", "p/1"))
    assert (found.failure, found.record and found.record.state) == (b"why", constants.DEAD)
    assert "listeners" not in stand.dump()
