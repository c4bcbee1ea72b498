"""Jobs whose worker died: which are charged, which become suspects, and how suspects are tried."""

import pytest

from penstock.jobs.claims import Registration
from penstock.jobs.counts import WorkerInfo
from tests.jobs.stand import START, FakeWorker, Stand, difference, ids, settlement

GONE = b'{"reason":"its worker was gone when the lease ran out"}'
KILLED = b'{"reason":"its worker was killed by SIGKILL"}'


def lose(stand: Stand, *names: str) -> None:
    """Let the leases of these workers run out, and take the turn that notices it."""
    stand.advance(10)
    FakeWorker(stand, f"finder of {names}").turn(0)


def listed(stand: Stand) -> list[WorkerInfo]:
    return stand.run(stand.bindings.workers(10))


def facts(stand: Stand, key: str) -> tuple[str, bool, int, int, int]:
    job = stand.job(key)
    return job.state.decode(), job.is_suspect, job.crashes, job.attempts, job.deliveries


def test_jobs_of_a_host_that_died_become_suspects_uncharged(stand: Stand):
    stand.put("a", "b", "c")
    FakeWorker(stand, "w").claim(2)
    stand.advance(10)
    before = stand.dump()
    FakeWorker(stand, "v").turn(0)
    changed = difference(before, stand.dump())
    assert changed["suspects"] == [(b"0000000001aa", START + 10_000.0), (b"0000000002ab", START + 10_000.0)]
    assert changed["meta"] == {"ready": "3", "running": "0", "lost": "2"}
    assert changed["held:w"] is changed["turn:w"] is None
    assert changed["reasons"] == {b"a": GONE, b"b": GONE}
    assert facts(stand, "a") == ("r", True, 0, 0, 1)


def test_each_claim_gets_one_suspect_before_its_other_jobs(stand: Stand):
    stand.put("a", "b", priority=9)
    FakeWorker(stand, "w").claim(2)
    stand.put("urgent", "more", "most", priority=0)
    lose(stand, "w")
    worker = FakeWorker(stand, "v")
    assert ids(worker.claim(2)) == ["a", "urgent"]
    assert ids(worker.turn(9, trial="").claims) == ["more", "most"]
    assert ids(worker.claim(9)) == ["b"]


def test_a_program_without_a_worker_gets_a_suspect_alone(stand: Stand):
    stand.put("a", "b", "c")
    FakeWorker(stand, "w").claim(2)
    lose(stand, "w")
    took = [ids(FakeWorker(stand, f"once{n}").turn(5, trial="alone", once=True).claims) for n in range(3)]
    assert took == [["a"], ["b"], ["c"]]


def test_three_crashes_alone_make_a_dead_letter(stand: Stand):
    """In programs without a worker, which hold no other job."""
    stand.put("killer", tenant="ada")
    FakeWorker(stand, "w0").turn(1, trial="alone", once=True)
    seen = []
    for n in (1, 2, 3, 4):
        lose(stand, f"w{n}")
        seen.append(facts(stand, "killer")[:3])
        FakeWorker(stand, f"w{n}").turn(1, trial="alone", once=True)
    assert seen == [("r", True, 0), ("r", True, 1), ("r", True, 2), ("d", True, 3)]
    assert stand.counts() == "0 0 0 1"
    assert stand.job("killer").attempts == 0
    counts = stand.run(stand.bindings.counts())
    assert (counts.lost, counts.failed, counts.retried) == (4, 1, 0)


def test_a_suspect_whose_worker_died_beside_it_is_charged_a_quarter(stand: Stand):
    """Another job may have killed the worker each time. After twelve such deaths that is ruled out."""
    stand.put("a")
    seen = []
    for n in range(14):
        FakeWorker(stand, f"w{n}").turn(1, registration=Registration(f"host:{n}", 4))
        lose(stand, f"w{n}")
        seen.append(facts(stand, "a")[:3])
    assert seen[:5] == [("r", True, 0)] * 4 + [("r", True, 1)]
    assert seen[11:] == [("r", True, 2), ("d", True, 3), ("d", True, 3)]


def test_a_crash_that_the_worker_saw_itself_counts_as_well(stand: Stand):
    stand.put("killer")
    worker = FakeWorker(stand, "w")
    for _ in range(3):
        assert worker.settle(*worker.claim(1), ending="crash", text=KILLED.decode())
    assert facts(stand, "killer") == ("d", True, 3, 0, 3)
    assert stand.dump()["reasons"] == {b"killer": KILLED}


@pytest.mark.parametrize("ending", ["retry", "later", "bury"])
def test_a_run_that_ends_by_itself_clears_the_suspicion(stand: Stand, ending):
    stand.put("a")
    worker = FakeWorker(stand, "w")
    worker.settle(*worker.claim(1), ending="crash", text="{}")
    worker.settle(*worker.claim(1), ending=ending, text="{}")
    assert facts(stand, "a")[1:3] == (False, 0)


def test_a_released_suspect_remains_a_suspect(stand: Stand):
    stand.put("a")
    worker = FakeWorker(stand, "w")
    worker.settle(*worker.claim(1), ending="crash", text="{}")
    worker.settle(*worker.claim(1), ending="release")
    assert facts(stand, "a") == ("r", True, 1, 0, 1)
    assert "front:5:" not in stand.dump()


def test_a_requeued_dead_letter_is_no_suspect(stand: Stand):
    stand.put("a")
    worker = FakeWorker(stand, "w")
    for _ in range(3):
        worker.settle(*worker.claim(1), ending="crash", text="{}")
    assert stand.run(stand.bindings.requeue(["a"])) == 1
    assert facts(stand, "a") == ("r", False, 0, 0, 0)
    assert ids(worker.turn(1, trial="").claims) == ["a"]


def test_a_repeated_turn_gives_its_suspect_again(stand: Stand):
    stand.put("a", "b")
    FakeWorker(stand, "w").claim(1)
    lose(stand, "w")
    worker = FakeWorker(stand, "v")
    assert ids(worker.claim(2)) == ids(worker.repeat_turn().claims) == ["a", "b"]


def test_suspects_are_cancelled_and_purged(stand: Stand):
    for tenant in "xyz":
        stand.put(f"{tenant}1", f"{tenant}2", tenant=tenant, ttl=0)
    FakeWorker(stand, "w").claim(6)
    lose(stand, "w")
    assert stand.run(stand.bindings.cancel(["x1"])) == ["cancelled"]
    assert stand.run(stand.bindings.purge("y", 0, 10, "suspects")) == (2, 3, True, False)
    assert [entry[11:] for entry, _ in stand.dump()["suspects"]] == [b"x2", b"z1", b"z2"]
    assert stand.run(stand.bindings.purge(None, 0, 2, "suspects")) == (2, 0, False, False)
    assert stand.run(stand.bindings.purge(None, 0, 2, "suspects")) == (1, 0, True, False)
    assert "suspects" not in stand.dump()
    assert stand.counts() == "0 0 0 0"


# --- deaths that a supervisor saw ---


def test_the_only_job_that_ran_is_charged_and_the_others_are_released(stand: Stand):
    stand.put("a", "b", "c")
    ran, *_ = FakeWorker(stand, "w").claim(3)
    stand.run(stand.bindings.abandon("w", "crash", KILLED, [ran.token]))
    assert facts(stand, "a") == ("r", True, 1, 0, 1)
    assert facts(stand, "b") == ("r", False, 0, 0, 0)
    assert stand.dump()["reasons"] == {b"a": KILLED}
    assert listed(stand) == []
    assert ids(FakeWorker(stand, "v").turn(3, trial="").claims) == ["b", "c"]


def test_jobs_that_were_not_started_return_in_their_order(stand: Stand):
    keys = [f"j{i:02}" for i in range(60)]
    stand.put(*keys)
    FakeWorker(stand, "w").claim(60)
    stand.run(stand.bindings.abandon("w"))
    assert ids(FakeWorker(stand, "v").claim(60)) == keys


def test_none_of_several_running_jobs_is_charged(stand: Stand):
    stand.put("a", "b", "c")
    claims = FakeWorker(stand, "w").claim(3)
    stand.run(stand.bindings.abandon("w", "suspect", KILLED, [claim.token for claim in claims[:2]]))
    assert [facts(stand, key)[1:3] for key in "abc"] == [(True, 0), (True, 0), (False, 0)]


def test_a_worker_with_many_jobs_is_ended_in_slices(stand: Stand):
    stand.put(*(f"j{i}" for i in range(600)))
    tokens = [claim.token for claim in FakeWorker(stand, "w").claim(600)]
    move = stand.bindings
    assert stand.run(move.abandon("w", "suspect", b"", tokens[:250], more=True)) == (350, True)
    assert stand.run(move.abandon("w", "suspect", b"", tokens[250:300])) == (100, True)
    assert stand.run(move.abandon("w", "suspect", b"", [])) == (0, True)
    counts = stand.run(move.counts())
    assert (counts.ready, counts.running, counts.lost) == (600, 0, 300)


def test_large_jobs_of_a_dead_worker_go_back_a_mebibyte_at_a_time(stand: Stand):
    stand.put(*(f"j{i}" for i in range(6)), payload=bytes(600_000))
    worker = FakeWorker(stand, "w")
    tokens = [claim.token for _ in range(6) for claim in worker.claim(1)]
    answers = [stand.run(stand.bindings.abandon("w", "suspect", b"", tokens[:4])) for _ in range(6)]
    assert answers == [(5, False), (4, False), (3, False), (2, True), (1, True), (0, True)]
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
    assert stand.run(call) == (0, True)
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


def test_every_idle_worker_is_woken_once_and_tries_one(stand: Stand):
    stand.put(*"abcdef")
    FakeWorker(stand, "w").claim(6)
    idle = idle_workers(stand, "p", "q", "r")
    stand.advance(10)
    woken, tried = ["q"], []
    while woken:
        name = woken.pop()
        stand.advance(0.1)
        holds = stand.client.hlen(f"{stand.base}held:{name}")
        turn = idle[name].turn(8, trial="" if holds else "with others", address=f"{name}/1", sleep=50)
        tried += [name, *ids(turn.claims)]
        woken += [other for other in idle if "1 0" in stand.messages(other)]
    assert sorted(tried) == ["a", "b", "c", "p", "q", "q", "r"]
    assert stand.counts() == "3 0 3 0"


def test_a_reported_death_wakes_every_idle_worker(stand: Stand):
    stand.put(*"ab")
    claims = FakeWorker(stand, "w").claim(2)
    idle_workers(stand, "p", "q")
    stand.run(stand.bindings.abandon("w", "suspect", KILLED, [claim.token for claim in claims]))
    assert "1 0" in stand.messages("p")
    assert "1 0" in stand.messages("q")


def test_a_worker_that_settles_its_suspect_gets_the_next(stand: Stand):
    stand.put("a", "b")
    FakeWorker(stand, "w").claim(2)
    lose(stand, "w")
    worker = FakeWorker(stand, "v")
    (first,) = worker.turn(8, address="v/1", sleep=50).claims
    turn = worker.turn(8, settlement(first), address="v/1", sleep=50)
    assert ids(turn.claims) == ["b"]


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
