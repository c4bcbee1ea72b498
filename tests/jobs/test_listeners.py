"""Which listeners are notified when a job is done. The tests read the messages of processes."""

from __future__ import annotations

from penstock.jobs import constants
from tests.jobs.stand import FakeWorker, Stand, reasons, settlement


def messages_of(stand: Stand, *processes: str) -> list[list[str]]:
    return [stand.messages(process) for process in processes]


def test_a_listener_is_notified_however_its_job_ends(stand: Stand):
    stand.start_processes("p")
    stand.put("complete", "bury", "drop", "cancel", "retry")
    stand.put("expire", expires=1, priority=9)
    for n, key in enumerate(["complete", "bury", "drop", "cancel", "expire", "retry", "unknown"]):
        assert stand.run(stand.bindings.result(key, f"p/{n}")).done is None
    stand.run(stand.bindings.cancel(["cancel"]))
    assert stand.messages("p") == ["3 done"]
    worker = FakeWorker(stand, "w")
    done, bury, drop, retry = worker.claim(4)
    ends = (settlement(done), settlement(bury, "bury"), settlement(drop, "drop"), settlement(retry, "retry", 5))
    worker.turn(0, *ends)
    assert stand.messages("p") == ["0 done", "1 done", "2 done"]
    stand.advance(1)
    worker.turn(1)
    assert stand.messages("p") == ["4 done"]
    assert stand.dump()["listeners"] == {b"retry": b"p/5"}
    stand.run(stand.bindings.purge(None, 0, 10))
    assert stand.messages("p") == ["5 done"]
    assert "listeners" not in stand.dump()


def test_all_listeners_are_notified_except_those_that_gave_up(stand: Stand):
    stand.start_processes("p", "q")
    stand.put("j")
    for address in ("p/1", "p/11", "q/1", "p/1"):
        stand.run(stand.bindings.result("j", address))
    stand.run(stand.bindings.forget("j", "p/1"))
    stand.run(stand.bindings.forget("j", "never"))
    worker = FakeWorker(stand, "w")
    worker.settle(*worker.claim())
    assert messages_of(stand, "p", "q") == [["11 done"], ["1 done"]]


def test_the_last_listener_that_gives_up_leaves_nothing(stand: Stand):
    stand.put("j")
    stand.run(stand.bindings.result("j", "p/1"))
    stand.run(stand.bindings.forget("j", "p/1"))
    assert "listeners" not in stand.dump()


def test_a_dead_letter_has_no_listeners(stand: Stand):
    stand.put("j")
    worker = FakeWorker(stand, "w")
    worker.settle(*worker.claim(), ending="bury", text="why")
    found = stand.run(stand.bindings.result("j", "p/1"))
    assert (reasons(stand), found.record and found.record.state) == ({b"j": "why"}, constants.DEAD)
    assert "listeners" not in stand.dump()


# --- many listeners ---


def listen(stand: Stand, job: str, *addresses: str) -> None:
    for address in addresses:
        stand.run(stand.bindings.result(job, address))


def test_the_listeners_of_a_job_are_notified_in_slices(stand: Stand):
    """A turn notifies about 200. Each call for a result, and each turn, notifies some of the others."""
    names = [f"process-{n}" for n in range(700)]
    stand.start_processes(*names)
    stand.put("j")
    listen(stand, "j", *(f"{name}/1" for name in names), *(f"{name}/1" for name in names[-100:]))
    worker = FakeWorker(stand, "w")
    worker.settle(*worker.claim())
    all_heard = [heard(stand, names)]
    assert stand.dump().keys() >= {"listeners", "listeners:j", "unnotified"}
    stand.run(stand.bindings.result("j", ""))
    all_heard.append(heard(stand, names))
    while "unnotified" in stand.dump():
        assert worker.turn(1).alive
        all_heard.append(heard(stand, names))
    assert 3 <= len(all_heard) <= 5
    assert all(1 <= len(some) <= 500 for some in all_heard)
    assert sorted(name for some in all_heard for name in some) == sorted(names)
    assert stand.dump().keys() & {"listeners", "listeners:j"} == set()


def heard(stand: Stand, processes: list[str]) -> list[str]:
    return [name for name in processes for _ in stand.messages(name)]


def test_a_worker_takes_turns_until_all_listeners_are_notified(stand: Stand):
    names = [f"process-{n}" for n in range(900)]
    stand.put("j")
    listen(stand, "j", *(f"{name}/1" for name in names))
    worker = FakeWorker(stand, "w")
    (claim,) = worker.claim()
    assert worker.turn(1, settlement(claim)).more
    assert not worker.take_all(1)[-1].more
    assert "unnotified" not in stand.dump()


def test_listeners_of_many_jobs_are_notified_in_slices(stand: Stand):
    stand.start_processes("p", "q")
    jobs = [f"j{n}" for n in range(150)]
    stand.put(*jobs)
    for job in jobs:
        listen(stand, job, "p/1", "q/1")
    stand.run(stand.bindings.purge(None, 0, 250))
    assert [len(messages) for messages in messages_of(stand, "p", "q")] == [100, 100]
    stand.run(stand.bindings.result("j0", ""))
    assert [len(messages) for messages in messages_of(stand, "p", "q")] == [50, 50]
    assert stand.dump().keys() & {"listeners", "unnotified"} == set()


def test_one_of_many_listeners_that_gives_up_is_forgotten(stand: Stand):
    names = [f"process-{n:03}" for n in range(400)]
    stand.put("j")
    listen(stand, "j", *(f"{name}/1" for name in names))
    further = stand.dump()["listeners:j"]
    for name in names[:-1]:
        stand.run(stand.bindings.forget("j", f"{name}/1"))
    assert len(further) > 100
    assert stand.dump()["listeners"] == {b"j": b"+"}
    stand.run(stand.bindings.forget("j", f"{names[-1]}/1"))
    assert stand.dump().keys() & {"listeners", "listeners:j"} == set()


def test_a_purge_reaches_the_last_living_process_behind_thousands_that_are_gone(stand: Stand):
    """Nobody else calls a script: no worker, and no process that was notified."""
    gone = [f"process-{n}" for n in range(3000)]
    stand.put("j")
    listen(stand, "j", *(f"{name}/1" for name in gone))
    stand.start_processes("p")
    listen(stand, "j", "p/1")
    calls, rest = 1, stand.run(stand.bindings.purge(None, 0, 10))[3]
    while rest:
        calls, rest = calls + 1, stand.run(stand.bindings.purge(None, 0, 0))[3]
    assert stand.messages("p") == ["1 done"]
    assert 4 <= calls <= 10
    assert stand.dump().keys() & {"listeners", "listeners:j", "unnotified"} == set()


def test_a_settlement_reaches_a_living_process_behind_hundreds_that_are_gone(stand: Stand):
    stand.put("j")
    listen(stand, "j", *(f"process-{n}/1" for n in range(450)))
    stand.start_processes("p")
    listen(stand, "j", "p/1")
    worker = FakeWorker(stand, "w")
    worker.settle(*worker.claim())
    assert stand.messages("p") == ["1 done"]
