"""Wake-ups of idle workers. The tests read the messages of processes, end processes, and move the clock."""

from __future__ import annotations

from collections import Counter

import pytest

from penstock.jobs.claims import TurnReply
from tests.jobs.stand import START, FakeWorker, Stand, ids, settlement


def become_idle(stand: Stand, *processes: str, want: int = 1) -> list[TurnReply]:
    """A worker of each process finds no job and becomes idle, in this order."""
    turns = []
    for process in processes:
        stand.advance(0.001)
        turns.append(FakeWorker(stand, f"{process}.worker").turn(want, address=f"{process}/1", sleep=50))
        assert turns[-1].claims == []
    return turns


def next_turn(stand: Stand, process: str, want: int = 1, number: int = 2, sleep: float = 50) -> TurnReply:
    """The idle worker of a process takes its next turn."""
    return FakeWorker(stand, f"{process}.worker", number=number - 1).turn(want, address=f"{process}/1", sleep=sleep)


def messages_of(stand: Stand, *processes: str) -> list[list[str]]:
    return [stand.messages(process) for process in processes]


def wake_ups_of(stand: Stand, *processes: str) -> list[list[str]]:
    """Of their messages the wake-ups: at once, or as a deputy in 50 ms."""
    return [[m for m in messages if m.split()[1] in ("0", "50")] for messages in messages_of(stand, *processes)]


def watchers(stand: Stand) -> tuple[str, str]:
    meta = stand.dump()["meta"]
    return meta.get(b"timekeeper", b"-").decode(), meta.get(b"deputy", b"-").decode()


# --- a job is ready ---


def test_a_job_wakes_the_worker_that_became_idle_last_and_a_deputy_checks_after_50_ms(stand: Stand):
    become_idle(stand, "p", "q", "r")
    stand.put("j")
    assert messages_of(stand, "p", "q", "r") == [[], ["1 50"], ["1 0"]]
    assert [address for address, _ in stand.dump()["sleepers"]] == [b"p/1", b"q/1"]
    assert ids(next_turn(stand, "r").claims) == ["j"]


def test_many_jobs_wake_only_one_worker_within_50_ms(stand: Stand):
    become_idle(stand, "p", "q", "r")
    stand.put("a", "b")
    stand.advance(0.049)
    stand.put("c")
    assert messages_of(stand, "p", "q", "r") == [[], ["1 50"], ["1 0"]]
    stand.advance(0.001)
    stand.put("d")
    assert messages_of(stand, "p", "q", "r") == [["1 50"], ["1 0"], []]


def test_a_turn_that_leaves_ready_jobs_wakes_the_next_worker(stand: Stand):
    become_idle(stand, "p", "q", "r")
    stand.put("a", "b", "c")
    messages_of(stand, "q", "r")
    assert ids(next_turn(stand, "r").claims) == ["a"]
    assert wake_ups_of(stand, "q") == [["1 0"]]
    assert ids(next_turn(stand, "q").claims) == ["b"]
    assert wake_ups_of(stand, "p") == [["1 50", "1 0"]]
    assert ids(next_turn(stand, "p").claims) == ["c"]
    assert "sleepers" not in stand.dump()


def test_a_turn_that_takes_all_jobs_wakes_no_worker(stand: Stand):
    become_idle(stand, "p", "q", want=5)
    stand.put("a", "b", "c")
    messages_of(stand, "p", "q")
    assert len(next_turn(stand, "q", want=3).claims) == 3
    assert wake_ups_of(stand, "p", "q") == [[], []]


def test_after_an_answered_wake_up_the_next_job_wakes_a_worker_at_once(stand: Stand):
    become_idle(stand, "p", "q")
    stand.put("a")
    next_turn(stand, "q", want=1)
    messages_of(stand, "p", "q")
    stand.put("b")
    assert stand.messages("p") == ["1 0"]


def test_a_clock_that_goes_back_suppresses_no_wake_up(stand: Stand):
    """As after a failover to a host whose clock is behind. The worker that was woken last is gone."""
    become_idle(stand, "p", "q", "gone")
    stand.put("a")
    assert wake_ups_of(stand, "p", "q") == [[], ["1 50"]]
    stand.advance(-3600)
    stand.put("b")
    assert wake_ups_of(stand, "p", "q") == [["1 50"], ["1 0"]]


def test_the_deputy_takes_the_job_of_a_frozen_worker(stand: Stand):
    become_idle(stand, "p", "frozen")
    stand.put("j")
    assert messages_of(stand, "p", "frozen") == [["1 50"], ["1 0"]]
    stand.advance(0.05)
    assert ids(next_turn(stand, "p").claims) == ["j"]
    assert next_turn(stand, "frozen").claims == []


def test_a_deputy_that_is_woken_itself_has_a_deputy(stand: Stand):
    """The first worker leaves jobs for the second, which is frozen: the third must check."""
    become_idle(stand, "p", "frozen", "r")
    stand.put("a", "b")
    next_turn(stand, "r")
    assert wake_ups_of(stand, "p", "frozen", "r") == [["1 50"], ["1 50", "1 0"], ["1 0"]]


@pytest.mark.parametrize("neighbours", [2, 4, 9])
def test_a_deputy_is_of_another_process(stand: Stand, neighbours: int):
    become_idle(stand, "p")
    for n in range(neighbours):
        stand.advance(0.001)
        FakeWorker(stand, f"q{n}").turn(1, address=f"q/{n}", sleep=50)
    messages_of(stand, "p", "q")
    stand.put("j")
    assert messages_of(stand, "p", "q") == [["1 50"], [f"{neighbours - 1} 0"]]


def test_a_single_idle_worker_is_woken_without_a_deputy(stand: Stand):
    become_idle(stand, "p")
    stand.put("j")
    assert stand.messages("p") == ["1 0"]


def test_no_worker_is_woken_for_a_delayed_job_or_a_paused_queue(stand: Stand):
    become_idle(stand, "p", "q")
    stand.run(stand.bindings.set_switch("paused", True))
    stand.put("j")
    assert messages_of(stand, "p", "q") == [[], []]
    stand.run(stand.bindings.set_switch("paused", False))
    assert stand.messages("q") == ["1 0"]


def test_everything_that_makes_a_job_ready_wakes_a_worker(stand: Stand):
    stand.put("a", "b", "c", "d")
    worker = FakeWorker(stand, "w")
    a, b, c, d = worker.claim(4)
    become_idle(stand, "p", "q", "r", "s")
    assert worker.settle_alone(a, "retry")
    assert stand.messages("s") == ["1 0"]
    stand.advance(0.05)
    assert worker.settle_alone(b, "later")
    assert stand.messages("r") == ["1 50", "1 0"]
    stand.advance(0.05)
    worker.turn(0, settlement(c, "release"), settlement(d, "bury"))
    assert stand.messages("q") == ["1 50", "1 0"]
    stand.advance(0.05)
    assert stand.run(stand.bindings.requeue(["d"])) == 1
    assert stand.messages("p") == ["1 50", "1 0"]


# --- idle workers ---


def test_only_a_worker_that_finds_less_than_it_wants_becomes_idle(stand: Stand):
    stand.put("a", "b")
    for name, want, n in (("one", 0, 0), ("two", 1, 1), ("three", 2, 1)):
        assert len(FakeWorker(stand, name).turn(want, address=f"{name}/1", sleep=50).claims) == n
    assert stand.dump()["sleepers"] == [(b"three/1", START + 50_000.0)]


def test_a_claim_without_a_worker_becomes_idle_only_if_it_got_nothing(stand: Stand):
    stand.put("a")
    assert len(FakeWorker(stand, "one").turn(2, address="p/1", sleep=50, once=True).claims) == 1
    assert FakeWorker(stand, "two").turn(2, address="p/2", sleep=50, once=True).claims == []
    assert stand.dump()["sleepers"] == [(b"p/2", START + 50_000.0)]
    assert FakeWorker(stand, "two", number=1).turn(2, address="p/2", once=True).alive
    assert stand.dump().keys() & {"sleepers", "turn:two"} == set()


def test_a_worker_that_gets_all_it_wants_is_no_longer_idle(stand: Stand):
    become_idle(stand, "p")
    assert next_turn(stand, "p", want=0).alive
    assert "sleepers" not in stand.dump()


def test_idle_workers_that_do_not_renew_their_registration_are_forgotten(stand: Stand):
    become_idle(stand, "p", "q")
    stand.advance(50)
    stand.put("a")
    assert messages_of(stand, "p", "q") == [[], []]
    assert "sleepers" not in stand.dump()
    assert "woken" not in stand.dump()["meta"]


# --- the timekeeper ---


def test_the_first_idle_worker_is_the_timekeeper_and_the_second_its_deputy(stand: Stand):
    stand.put("j", delay=5)
    turns = become_idle(stand, "p", "q", "r")
    assert watchers(stand) == ("p/1", "q/1")
    assert [turn.due_in for turn in turns] == [4.999, 5.298, None]


def test_an_earlier_due_time_notifies_timekeeper_and_deputy_and_a_later_one_does_not(stand: Stand):
    become_idle(stand, "p", "q", "r")
    stand.put("a", delay=5)
    stand.put("b", delay=6)
    stand.put("c", delay=1)
    assert messages_of(stand, "p", "q", "r") == [["1 5000", "1 1000"], ["1 5300", "1 1300"], []]


def test_a_delayed_retry_notifies_the_timekeeper_as_well(stand: Stand):
    stand.put("j")
    worker = FakeWorker(stand, "w", lease=100)
    claims = worker.claim()
    become_idle(stand, "p")
    worker.settle(*claims, ending="retry", delay=2)
    assert stand.messages("p") == ["1 2000"]


def test_an_overdue_timekeeper_does_not_keep_the_deputy_from_being_notified(stand: Stand):
    become_idle(stand, "gone", "q")
    stand.put("a", delay=1)
    stand.advance(2)
    messages_of(stand, "q")
    stand.put("b", delay=1)
    assert stand.messages("q") == ["1 1300"]


def test_a_deputy_that_finds_overdue_work_becomes_the_timekeeper(stand: Stand):
    become_idle(stand, "frozen", "q", "r")
    stand.put("j", delay=1)
    stand.advance(1.3)
    assert ids(next_turn(stand, "q", want=2).claims) == ["j"]
    assert watchers(stand) == ("q/1", "r/1")
    assert b"frozen/1" not in dict(stand.dump()["sleepers"])
    assert stand.messages("frozen") == ["1 1000", "1 0"]


def test_a_busy_deputy_that_finds_overdue_work_passes_the_role_on(stand: Stand):
    become_idle(stand, "frozen", "q", "r", "s")
    stand.put("j", delay=1)
    stand.advance(1.3)
    assert len(next_turn(stand, "q").claims) == 1
    assert watchers(stand) == ("s/1", "r/1")


def test_a_deputy_acts_after_the_time_at_which_the_timekeeper_should_have_acted(stand: Stand):
    """The dead timekeeper's alarm is still set, so that later events send no message."""
    become_idle(stand, "dead", "q", "r")
    stand.put("j")
    (claim,) = next_turn(stand, "r", sleep=0).claims
    FakeWorker(stand, "r.worker", lease=1000, number=2).settle(claim)
    FakeWorker(stand, "q.worker", lease=1000, number=1).turn(0, address="q/1", sleep=50)
    (turn,) = become_idle(stand, "s")
    assert watchers(stand) == ("dead/1", "s/1")
    assert turn.due_in == 10.299


def test_a_timekeeper_in_time_stays_the_timekeeper(stand: Stand):
    become_idle(stand, "p", "q", "r")
    stand.put("j", delay=1)
    stand.advance(1.2)
    next_turn(stand, "r", want=2)
    assert watchers(stand) == ("p/1", "q/1")


def test_a_timekeeper_that_is_no_longer_idle_passes_its_role_on(stand: Stand):
    become_idle(stand, "p", "q", "r")
    stand.put("later", delay=5)
    messages_of(stand, "p", "q", "r")
    stand.put("now")
    stand.advance(1)
    assert len(next_turn(stand, "p").claims) == 1
    assert watchers(stand) == ("q/1", "-")
    assert stand.messages("q") == ["1 50", "1 4000"]
    become_idle(stand, "s")
    assert watchers(stand) == ("q/1", "s/1")


def test_a_deputy_that_is_no_longer_idle_is_replaced_by_an_idle_worker(stand: Stand):
    stand.put("later", delay=5)
    become_idle(stand, "p", "q", "r")
    next_turn(stand, "q", want=0)
    assert watchers(stand) == ("p/1", "r/1")
    assert stand.messages("r") == ["1 5297"]


def test_a_deputy_is_of_another_process_than_the_timekeeper(stand: Stand):
    for n in (1, 2):
        FakeWorker(stand, f"p{n}").turn(1, address=f"p/{n}", sleep=50)
    assert watchers(stand) == ("p/1", "-")
    become_idle(stand, "q")
    assert watchers(stand) == ("p/1", "q/1")


def test_a_timekeeper_whose_registration_ran_out_is_replaced_by_the_next_idle_worker(stand: Stand):
    become_idle(stand, "gone", "gone too")
    stand.advance(50)
    become_idle(stand, "q", "r")
    assert watchers(stand) == ("q/1", "r/1")


def test_a_timekeeper_takes_back_jobs_that_were_claimed_after_it_became_idle(stand: Stand):
    become_idle(stand, "p", "q")
    stand.put("j")
    next_turn(stand, "q", sleep=0)
    assert messages_of(stand, "p", "q") == [["1 50", "1 10000"], ["1 0"]]
    next_turn(stand, "q", want=0, number=3)
    assert messages_of(stand, "p", "q") == [[], []]
    stand.advance(10)
    assert ids(next_turn(stand, "p", want=1).claims) == ["j"]


def test_a_timekeeper_that_finds_the_lease_renewed_learns_when_to_check_again(stand: Stand):
    become_idle(stand, "p", "q")
    stand.put("j")
    next_turn(stand, "q", sleep=0)
    stand.advance(3)
    stand.run(stand.bindings.heartbeat("q.worker", 10))
    stand.advance(7)
    assert next_turn(stand, "p").due_in == 3.0


def test_the_jobs_of_an_abandoned_worker_wake_another(stand: Stand):
    become_idle(stand, "p", "q")
    stand.put("j")
    next_turn(stand, "q", sleep=0)
    messages_of(stand, "p", "q")
    stand.run(stand.bindings.abandon("q.worker"))
    assert stand.messages("p") == ["1 0"]
    assert ids(next_turn(stand, "p", want=1).claims) == ["j"]


def test_a_timekeeper_with_more_than_a_slice_to_take_back_takes_another_turn_at_once(stand: Stand):
    for n in range(10):
        FakeWorker(stand, f"idle{n}").turn(1)
    stand.advance(10)
    turn = FakeWorker(stand, "w").turn(1, address="p/1", sleep=50)
    assert (turn.more, turn.due_in) == (True, None)
    turn = FakeWorker(stand, "w", number=1).turn(1, address="p/1", sleep=50)
    assert (turn.more, turn.due_in) == (False, 50.0)


# --- workers whose processes are gone ---


def test_a_job_wakes_the_next_worker_if_the_last_one_is_gone(stand: Stand):
    become_idle(stand, "p", "q", "gone", "gone too")
    stand.kill_processes("gone", "gone too")
    stand.put("j")
    assert wake_ups_of(stand, "p", "q") == [["1 50"], ["1 0"]]
    assert [address for address, _ in stand.dump()["sleepers"]] == [b"p/1"]


def test_a_deputy_that_is_gone_is_replaced_by_the_next_worker(stand: Stand):
    become_idle(stand, "p", "gone", "q")
    stand.kill_processes("gone")
    stand.put("j")
    assert wake_ups_of(stand, "p", "q") == [["1 50"], ["1 0"]]


def test_jobs_wake_no_worker_that_is_gone_even_if_hundreds_are(stand: Stand):
    become_idle(stand, "p", "q", *(f"gone{n}" for n in range(450)))
    stand.kill_processes(*(f"gone{n}" for n in range(450)))
    messages_of(stand, "p", "q")
    stand.put("j")
    assert wake_ups_of(stand, "p", "q") == [["1 50"], ["1 0"]]


def test_if_all_idle_workers_are_gone_none_is_left(stand: Stand):
    become_idle(stand, "p", "q")
    stand.kill_processes("p", "q")
    stand.put("j")
    assert "sleepers" not in stand.dump()
    assert watchers(stand) == ("-", "-")
    assert ids(next_turn(stand, "r", number=1).claims) == ["j"]


def test_a_timekeeper_that_is_gone_is_replaced_by_its_deputy_when_a_job_is_delayed(stand: Stand):
    become_idle(stand, "gone", "q", "r")
    stand.kill_processes("gone")
    stand.put("j", delay=1)
    assert watchers(stand) == ("q/1", "r/1")
    assert messages_of(stand, "q", "r") == [["1 1300", "1 1000"], ["1 1300"]]


def test_a_deputy_that_is_gone_is_replaced_when_a_job_is_delayed(stand: Stand):
    become_idle(stand, "p", "gone", "r")
    stand.kill_processes("gone")
    stand.put("j", delay=1)
    assert watchers(stand) == ("p/1", "r/1")
    assert messages_of(stand, "p", "r") == [["1 1000"], ["1 1300"]]


def test_timekeeper_and_deputy_that_are_gone_are_replaced_when_a_job_is_delayed(stand: Stand):
    become_idle(stand, "gone", "gone too", "r", "s")
    stand.kill_processes("gone", "gone too")
    stand.put("j", delay=1)
    assert watchers(stand) == ("s/1", "r/1")
    assert messages_of(stand, "r", "s") == [["1 1300"], ["1 1000"]]


def test_timekeeper_and_deputy_that_are_gone_are_replaced_when_a_job_is_ready(stand: Stand):
    stand.put("later", delay=5)
    become_idle(stand, "q", "r", "s", "gone", "gone too")
    stand.change_wake(timekeeper="gone/1", deputy="gone too/1")
    stand.kill_processes("gone", "gone too")
    messages_of(stand, "q", "r", "s")
    stand.put("now")
    assert watchers(stand) == ("r/1", "q/1")
    assert wake_ups_of(stand, "q", "r", "s") == [[], ["1 50"], ["1 0"]]


def test_a_worker_that_becomes_idle_finds_that_the_timekeeper_is_gone(stand: Stand):
    """Its alarm is still set, so that no delayed job sends a message to it."""
    stand.put("j", delay=5)
    become_idle(stand, "gone", "gone too", "r")
    stand.kill_processes("gone", "gone too")
    stand.advance(1)
    turn = next_turn(stand, "r")
    assert watchers(stand) == ("r/1", "-")
    assert turn.due_in == pytest.approx(4, abs=0.01)


def test_suspects_wake_as_many_of_the_workers_that_are_still_there(stand: Stand):
    stand.put("j", "k")
    stand.run(stand.bindings.abandon("v", "loss", b"{}", [one.token for one in FakeWorker(stand, "v").claim(2)]))
    claims = FakeWorker(stand, "w").claim(2)
    become_idle(stand, "gone", "q", "r")
    stand.kill_processes("gone")
    stand.run(stand.bindings.abandon("w", "loss", b"{}", [claim.token for claim in claims]))
    assert wake_ups_of(stand, "q", "r") == [["1 0"], ["1 0"]]
    assert watchers(stand)[0] in ("q/1", "-")


# --- what an idle worker's job costs ---


def calls_in(stand: Stand) -> Counter[str]:
    """How often the server has received each command so far, from scripts too."""
    return Counter({name: of["calls"] for name, of in stand.client.info("commandstats").items()})


def test_a_job_of_the_only_idle_worker_takes_few_commands(stand: Stand):
    """From its enqueue to its end. With the clock of the server, and a row of the job, there are 34."""
    become_idle(stand, "p")
    took = []
    for n in range(3):
        stand.advance(0.1)
        before = calls_in(stand)
        stand.put_as("me", n + 1, f"job {n}")
        (claim,) = next_turn(stand, "p", want=2, number=2 * n + 2).claims
        worker = FakeWorker(stand, "p.worker", number=2 * n + 2)
        worker.turn(2, settlement(claim), address="p/1", sleep=50)
        sent = calls_in(stand) - before
        took.append(sum(sent.values()) - sum(sent[f"cmdstat_{name}"] for name in ("evalsha", "info", "ping")))
    assert took[1:] == [30, 30], "the first job fills what is empty"
