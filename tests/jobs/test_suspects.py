"""Jobs whose worker died: which are lost, which are charged, which become suspects, and how suspects are tried."""

from typing import Any

import pytest

from penstock.jobs.claims import Claim, Registration, Settlement
from penstock.jobs.constants import TAIL, TAIL_BYTES
from penstock.jobs.counts import WorkerInfo
from tests.jobs.stand import START, FakeWorker, Stand, difference, entry, ids, reasons, settlement

GONE = "its worker was gone when the lease ran out"
KILLED = b'{"reason":"its worker was killed by SIGKILL"}'


def lose(stand: Stand, *names: str) -> None:
    """Let the leases of these workers run out, and take the turn that notices it."""
    stand.advance(10)
    FakeWorker(stand, f"finder of {names}").turn(0)


def kill(stand: Stand, worker: str, *ran: Claim) -> None:
    """A supervisor reports that a worker died while these jobs ran."""
    stand.run(stand.bindings.abandon(worker, "crash" if len(ran) == 1 else "loss", KILLED, [one.token for one in ran]))


def make_suspects(stand: Stand, *keys: str, **options: Any) -> None:
    """Enqueue jobs, and let a worker that runs them die twice."""
    stand.put(*keys, **options)
    for life in range(2):
        claims = FakeWorker(stand, f"{keys}{life}").claim(len(keys))
        stand.run(stand.bindings.abandon(f"{keys}{life}", "loss", KILLED, [claim.token for claim in claims]))


def trial(stand: Stand, name: str, host_deaths: int | None = None, *settled: Settlement) -> list[Claim]:
    """The first turn of a trial process."""
    return (
        FakeWorker(stand, name)
        .turn(
            1, *settled, trial="only", registration=Registration(f"host:{name}", 1, trial=True, host_deaths=host_deaths)
        )
        .claims
    )


def listed(stand: Stand) -> list[WorkerInfo]:
    return stand.run(stand.bindings.workers(10))


def facts(stand: Stand, key: str) -> tuple[str, bool, int, int, int]:
    """State, whether it is a suspect, crashes, attempts, deliveries."""
    job = stand.job(key)
    return job.state.decode(), job.is_suspect, job.crashes, job.attempts, job.deliveries


# --- losses ---


def test_jobs_of_a_host_that_died_return_to_the_front_side_by_side(stand: Stand):
    stand.put("a", "b", "c", "d")
    FakeWorker(stand, "w").claim(2)
    stand.advance(10)
    before = stand.dump()
    FakeWorker(stand, "v").turn(0)
    changed = difference(before, stand.dump())
    assert changed["front:5:"] == [entry(7, "a"), entry(8, "b")]
    assert {name: changed["meta"][name] for name in ("ready", "running", "lost", "front")} == {
        "ready": "4",
        "running": None,
        "lost": "2",
        "front": "2",
    }
    assert changed["held:w"] is None
    assert changed.keys() >= {"failures"}
    assert reasons(stand) == {b"a": GONE, b"b": GONE}
    assert facts(stand, "a") == ("r", False, 0, 0, 1)
    assert ids(FakeWorker(stand, "u").claim(4)) == ["a", "b", "c", "d"]


def test_the_jobs_of_a_large_worker_are_taken_back_in_slices_and_claimed_side_by_side(stand: Stand):
    keys = [f"j{i:03}" for i in range(250)]
    stand.put(*keys)
    FakeWorker(stand, "w").claim(250)
    stand.advance(10)
    turns = [FakeWorker(stand, f"v{n}").turn(100) for n in range(3)]
    assert [len(turn.claims) for turn in turns] == [100, 100, 50]
    assert [turn.more for turn in turns[:2]] == [False, False], "it has what it wanted"
    assert sorted(key for turn in turns for key in ids(turn.claims)) == keys


def test_a_loss_that_a_supervisor_saw_makes_a_suspect_the_second_time(stand: Stand):
    stand.put("a", "b")
    seen = []
    for life in range(2):
        kill(stand, f"w{life}", *FakeWorker(stand, f"w{life}").claim(2))
        seen.append([facts(stand, key)[:3] for key in "ab"])
    assert seen == [[("r", False, 0)] * 2, [("r", True, 0)] * 2]
    assert [found[7:] for found, _ in stand.dump()["suspects"]] == [b"a", b"b"]


@pytest.mark.parametrize("registration", [Registration("host:1", 4, supervised=True), None], ids=["worker", "program"])
def test_a_loss_together_with_its_host_counts_half(stand: Stand, registration: Registration | None):
    assert deaths_until_suspect(stand, registration) == 4


def test_a_loss_in_a_worker_without_a_supervisor_counts_whole(stand: Stand):
    """Else a job beside a killer would run five times: nobody can report the end of such a worker."""
    assert deaths_until_suspect(stand, Registration("host:1", 4)) == 2


def deaths_until_suspect(stand: Stand, registration: Registration | None) -> int:
    """How many leases run out before a job becomes a suspect; nobody is charged meanwhile."""
    stand.put("a", "b")
    for life in range(1, 10):
        assert [facts(stand, key)[:3] for key in "ab"] == [("r", False, 0)] * 2
        assert len(FakeWorker(stand, f"w{life}").turn(2, registration=registration).claims) == 2
        lose(stand, f"w{life}")
        if facts(stand, "a")[1]:
            break
    return life


def test_halves_and_whole_losses_add_up(stand: Stand):
    stand.put("a")
    FakeWorker(stand, "w").claim(1)
    lose(stand, "w")
    kill(stand, "v", *FakeWorker(stand, "v").claim(1))
    assert facts(stand, "a")[:3] == ("r", False, 1)
    FakeWorker(stand, "u").claim(1)
    lose(stand, "u")
    assert facts(stand, "a")[:3] == ("r", True, 1)


def test_a_job_that_ran_alone_is_charged_and_still_no_suspect_the_first_time(stand: Stand):
    stand.put("a", "b", "c")
    ran, *_ = FakeWorker(stand, "w").claim(3)
    kill(stand, "w", ran)
    assert facts(stand, "a") == ("r", False, 1, 0, 1)
    assert facts(stand, "b") == ("r", False, 0, 0, 0)
    assert reasons(stand) == {b"a": "its worker was killed by SIGKILL"}
    assert listed(stand) == []
    assert ids(FakeWorker(stand, "v").turn(3).claims) == ["a", "b", "c"]


def test_a_crash_in_a_process_of_its_own_is_charged_and_makes_no_suspect(stand: Stand):
    stand.put("killer")
    worker = FakeWorker(stand, "w")
    seen = []
    for _ in range(3):
        assert worker.settle(*worker.claim(1), ending="contained", text=KILLED.decode())
        seen.append(facts(stand, "killer")[:3])
    assert seen == [("r", False, 1), ("r", False, 2), ("d", False, 3)]
    assert reasons(stand) == {b"killer": "its worker was killed by SIGKILL"}


@pytest.mark.parametrize("ending", ["retry", "later", "bury"])
def test_a_run_that_ends_by_itself_clears_everything(stand: Stand, ending):
    make_suspects(stand, "a")
    (claim,) = trial(stand, "t")
    stand.run(stand.bindings.settle("t", settlement(claim, ending, text="{}")))
    assert facts(stand, "a")[1:3] == (False, 0)
    assert stand.job("a").body[TAIL["losses"][0] - TAIL_BYTES] == 0


def test_a_requeued_dead_letter_is_no_suspect(stand: Stand):
    make_suspects(stand, "a")
    for name in ("t1", "t2", "t3"):
        kill(stand, name, *trial(stand, name))
    assert facts(stand, "a")[:3] == ("d", True, 3)
    assert stand.run(stand.bindings.requeue(["a"])) == 1
    assert facts(stand, "a") == ("r", False, 0, 0, 0)
    assert ids(FakeWorker(stand, "w").turn(1).claims) == ["a"]


# --- trials ---


def test_only_a_trial_process_gets_a_suspect_and_it_gets_nothing_else(stand: Stand):
    make_suspects(stand, "a", "b")
    stand.put("urgent", priority=0)
    stand.advance(3)
    turn = FakeWorker(stand, "w").turn(9)
    assert (ids(turn.claims), turn.suspect) == (["urgent"], 3.0)
    stand.put("other", priority=0)
    assert ids(trial(stand, "t1")) == ["a"]
    assert ids(trial(stand, "t2")) == ["b"]
    third = FakeWorker(stand, "t3").turn(5, trial="only")
    assert (third.claims, third.more, third.suspect) == ([], False, None)
    assert ids(FakeWorker(stand, "v").claim(1)) == ["other"]


def test_suspects_of_a_paused_queue_wait_and_nobody_is_asked_to_try_them(stand: Stand):
    make_suspects(stand, "a")
    stand.run(stand.bindings.set_switch("paused", True))
    assert FakeWorker(stand, "w").turn(1).suspect is None
    assert trial(stand, "t") == []


def test_a_trial_process_that_settles_its_suspect_gets_the_next(stand: Stand):
    make_suspects(stand, "a", "b")
    worker = FakeWorker(stand, "t")
    (first,) = worker.turn(1, trial="only").claims
    turn = worker.turn(1, settlement(first), trial="only")
    assert (ids(turn.claims), turn.suspect) == (["b"], None)


def test_three_crashes_in_trials_make_a_dead_letter_with_the_cause(stand: Stand):
    make_suspects(stand, "killer", tenant="ada")
    seen = []
    for name in ("t1", "t2", "t3"):
        kill(stand, name, *trial(stand, name, 10))
        seen.append(facts(stand, "killer")[:3])
    assert seen == [("r", True, 1), ("r", True, 2), ("d", True, 3)]
    assert stand.counts() == "0 0 0 1"
    assert reasons(stand) == {b"killer": "its worker was killed by SIGKILL"}
    counts = stand.run(stand.bindings.counts())
    assert (counts.lost, counts.failed, counts.retried, stand.job("killer").attempts) == (5, 1, 0, 0)


@pytest.mark.parametrize("limit", [1, 3, 10])
def test_a_suspect_whose_host_dies_in_each_trial_becomes_a_dead_letter_that_says_so(stand: Stand, limit: int):
    make_suspects(stand, "a")
    for n in range(limit):
        assert facts(stand, "a")[:3] == ("r", True, 0)
        trial(stand, f"t{n}", limit)
        lose(stand, f"t{n}")
    assert facts(stand, "a")[:3] == ("d", True, 0)
    assert "its host died while the job ran alone in a trial" in reasons(stand)[b"a"]


def test_without_a_limit_host_deaths_make_no_dead_letter(stand: Stand):
    make_suspects(stand, "a")
    for n in range(70):
        trial(stand, f"t{n}", 0)
        lose(stand, f"t{n}")
    assert facts(stand, "a")[:3] == ("r", True, 0)


def test_a_trial_that_nobody_watched_is_charged_when_its_lease_runs_out(stand: Stand):
    make_suspects(stand, "a")
    for n in range(3):
        trial(stand, f"t{n}")
        lose(stand, f"t{n}")
        assert stand.job("a").crashes == n + 1
    assert facts(stand, "a")[0] == "d"


def test_a_program_without_a_worker_gets_a_suspect_alone_and_its_end_is_a_crash(stand: Stand):
    make_suspects(stand, "a", "b")
    stand.put("c")
    took = [ids(FakeWorker(stand, f"once{n}").turn(5, trial="alone", once=True).claims) for n in range(3)]
    assert took == [["a"], ["b"], ["c"]]
    lose(stand, "all three")
    assert [facts(stand, key)[:3] for key in "abc"] == [("r", True, 1), ("r", True, 1), ("r", False, 0)]


def test_the_seventh_claim_in_a_row_that_a_program_loses_makes_a_dead_letter(stand: Stand):
    stand.put("a")
    for n in range(7):
        assert facts(stand, "a")[:2] == ("r", n >= 4)
        assert ids(FakeWorker(stand, f"once{n}").turn(1, trial="alone", once=True).claims) == ["a"]
        lose(stand, f"once{n}")
    assert facts(stand, "a")[0] == "d"


def test_a_released_suspect_remains_a_suspect(stand: Stand):
    make_suspects(stand, "a")
    (claim,) = trial(stand, "t")
    stand.run(stand.bindings.settle("t", settlement(claim, "release")))
    assert facts(stand, "a") == ("r", True, 0, 0, 2)
    assert "front:5:" not in stand.dump()


def test_a_repeated_turn_gives_its_suspect_again(stand: Stand):
    make_suspects(stand, "a")
    worker = FakeWorker(stand, "t")
    assert ids(worker.turn(1, trial="only").claims) == ids(worker.repeat_turn().claims) == ["a"]


def test_suspects_are_cancelled_and_purged(stand: Stand):
    for tenant in "xyz":
        make_suspects(stand, f"{tenant}1", f"{tenant}2", tenant=tenant, ttl=0)
    assert stand.run(stand.bindings.cancel(["x1"])) == ["cancelled"]
    assert stand.run(stand.bindings.purge("y", 0, 10, "suspects")) == (2, 3, True, False)
    assert [found[7:] for found, _ in stand.dump()["suspects"]] == [b"x2", b"z1", b"z2"]
    assert stand.run(stand.bindings.purge(None, 0, 2, "suspects")) == (2, 0, False, False)
    assert stand.run(stand.bindings.purge(None, 0, 2, "suspects")) == (1, 0, True, False)
    assert "suspects" not in stand.dump()
    assert stand.counts() == "0 0 0 0"


# --- deaths that a supervisor saw ---


def test_jobs_that_were_not_started_return_in_their_order(stand: Stand):
    keys = [f"j{i:02}" for i in range(60)]
    stand.put(*keys)
    FakeWorker(stand, "w").claim(60)
    stand.run(stand.bindings.abandon("w"))
    assert ids(FakeWorker(stand, "v").claim(60)) == keys


def test_none_of_several_running_jobs_is_charged(stand: Stand):
    stand.put("a", "b", "c")
    claims = FakeWorker(stand, "w").claim(3)
    kill(stand, "w", *claims[:2])
    assert [facts(stand, key) for key in "abc"] == [("r", False, 0, 0, 1)] * 2 + [("r", False, 0, 0, 0)]


def test_a_worker_with_many_jobs_is_ended_in_slices(stand: Stand):
    stand.put(*(f"j{i}" for i in range(600)))
    tokens = [claim.token for claim in FakeWorker(stand, "w").claim(600)]
    move = stand.bindings
    assert stand.run(move.abandon("w", "loss", b"", tokens[:250], more=True)) == (500, False, None)
    assert stand.run(move.abandon("w", "loss", b"", tokens[:250], more=True)) == (400, False, None)
    assert stand.run(move.abandon("w", "loss", b"", tokens[:250], more=True)) == (350, True, None)
    assert stand.run(move.abandon("w", "loss", b"", tokens[250:300])) == (250, True, None)
    assert [stand.run(move.abandon("w", "loss", b"", []))[0] for _ in range(2)] == [150, 50]
    assert stand.run(move.abandon("w", "loss", b"", [])) == (0, True, None)
    counts = stand.run(move.counts())
    assert (counts.ready, counts.running, counts.lost) == (600, 0, 300)


def test_large_jobs_of_a_dead_worker_go_back_a_mebibyte_at_a_time(stand: Stand):
    stand.put(*(f"j{i}" for i in range(6)), payload=bytes(600_000))
    worker = FakeWorker(stand, "w")
    tokens = [claim.token for _ in range(6) for claim in worker.claim(1)]
    answers = [stand.run(stand.bindings.abandon("w", "loss", b"", tokens[:4])) for _ in range(6)]
    assert [answer[:2] for answer in answers] == [(5, False), (4, False), (3, False), (2, True), (1, True), (0, True)]
    assert stand.counts() == "6 0 0 0"


def test_a_page_of_large_dead_letters_ends_at_a_mebibyte(stand: Stand):
    stand.put(*"abc", payload=bytes(600_000))
    worker = FakeWorker(stand, "w")
    for _ in range(3):
        worker.settle(*worker.claim(1), ending="bury", text="{}")
    assert [len(stand.run(stand.bindings.list_dead(offset, 10))) for offset in range(4)] == [1, 1, 1, 0]


def test_a_death_may_be_reported_twice(stand: Stand):
    stand.put("a", "b")
    ran, _ = FakeWorker(stand, "w").claim(2)
    call = stand.bindings.abandon("w", "crash", KILLED, [ran.token])
    stand.run(call)
    before = stand.dump()
    assert stand.run(call) == (0, True, None)
    assert stand.dump() == before


def test_a_death_that_is_reported_late_changes_nothing(stand: Stand):
    stand.put("a")
    (ran,) = FakeWorker(stand, "w").claim(1)
    lose(stand, "w")
    assert ids(FakeWorker(stand, "v").claim(1)) == ["a"]
    before = stand.dump()
    stand.run(stand.bindings.abandon("w", "crash", KILLED, [ran.token]))
    assert stand.dump() == before


# --- wake-ups ---


def idle_workers(stand: Stand, *processes: str) -> dict[str, FakeWorker]:
    idle = {name: FakeWorker(stand, name) for name in processes}
    for name, worker in idle.items():
        worker.turn(8, address=f"{name}/1", sleep=50)
    for name in processes:
        stand.messages(name)
    return idle


def test_as_many_idle_workers_are_woken_as_there_are_new_suspects(stand: Stand):
    stand.put(*"ab")
    kill(stand, "v", *FakeWorker(stand, "v").claim(2))
    claims = FakeWorker(stand, "w").claim(2)
    idle_workers(stand, "p", "q", "r", "s")
    reply = stand.run(stand.bindings.abandon("w", "loss", KILLED, [claim.token for claim in claims]))
    assert reply == (0, True, 0.0)
    assert sum("1 0" in stand.messages(name) for name in "pqrs") in {2, 3}  # and one for ready jobs


def test_workers_are_listed_with_name_and_concurrency(stand: Stand):
    FakeWorker(stand, "w").turn(1, registration=Registration("host:7", 20))
    stand.put("j")
    FakeWorker(stand, "once").turn(1, once=True)
    mine, program = sorted(listed(stand), key=lambda worker: worker.held)
    assert (mine.name, mine.concurrency, mine.since, mine.held, mine.lease) == ("host:7", 20, START / 1000, 0, 10.0)
    assert (program.name, program.since, program.held) == ("", None, 1)
    stand.advance(11)
    FakeWorker(stand, "v").turn(0)
    assert [worker.name for worker in listed(stand)] == [""]
    assert "workers" not in stand.dump()
