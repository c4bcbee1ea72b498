"""The scripts that enqueue jobs, and those that remove them before they run: cancel, purge."""

from __future__ import annotations

import pytest

from penstock.jobs.constants import FORMAT
from tests.jobs.stand import DEAD, DELAYED, READY, RUNNING, START, FakeWorker, Stand, difference, entry, ids, record


def test_a_job_becomes_ready_in_the_lane_of_its_tenant(stand: Stand):
    assert stand.put("j", tenant="ada", priority=3) == []
    body = stand.job("j").body
    drafted = record("ada", 3)
    assert body == bytes([FORMAT]) + b"r" + b"".join(n.to_bytes(6) for n in (1, START)) + drafted[14:]
    assert stand.dump() == {
        "meta": {
            b"sequence": b"1",
            b"ready": b"1",
            b"entries3": b"1",
            b"second": b"%d" % (START // 1000),
            b"second_ready": b"1",
        },
        "jobs": {b"j": body},
        "intake": [b""],
        "heads:3": {b"ada": entry(1, "j")},
        "rotation:3": [(b"ada", 2**36 - 2**20)],
        "tenants": {b"ada": bytes([0, 0, 0, 1]) + bytes(12)},
    }


def test_the_further_jobs_of_a_tenant_stand_behind_its_first(stand: Stand):
    stand.put("a", "b", tenant="ada")
    stand.put("c", tenant="ada")
    dump = stand.dump()
    assert dump["heads:5"] == {b"ada": entry(1, "a", more=True)}
    assert dump["lane:5:ada"] == [entry(2, "b"), entry(3, "c")]


def test_a_delayed_job_waits_until_it_is_due(stand: Stand):
    stand.put("j", delay=1.5)
    assert stand.dump()["delayed"] == [(entry(1, "j"), START + 1500.0)]
    assert (stand.state("j"), stand.job("j").since) == (DELAYED, START + 1500)
    assert stand.counts() == "0 1 0 0"


def test_a_due_date_is_compared_with_the_servers_clock(stand: Stand):
    stand.put("past", at=START)
    stand.put("future", at=START + 1)
    assert stand.states("past", "future") == READY + DELAYED
    assert stand.job("past").since == START


def test_expires_in_seconds_counts_from_the_enqueue_and_a_date_does_not(stand: Stand):
    stand.put("j", expires=2, delay=1)
    stand.put("k", expires_at=START + 7)
    assert (stand.job("j").expires, stand.job("k").expires) == (START + 2000, START + 7)


def test_the_jobs_of_one_call_keep_their_order(stand: Stand):
    stand.put_drafts([("b", record()), ("a", record()), ("late", record(delay=1)), ("c", record())])
    stand.advance(1)
    assert ids(FakeWorker(stand, "w").claim(9)) == ["b", "a", "c", "late"]


def test_a_job_whose_id_is_in_the_queue_already_is_not_changed(stand: Stand):
    stand.put("x", payload=b"1")
    before = stand.dump()
    assert stand.put("x", payload=b"2", own=True) == [0]
    assert difference(before, stand.dump()) == {"meta": {"sequence": "2"}}


def test_an_id_given_twice_in_one_call_is_accepted_once(stand: Stand):
    assert stand.put_drafts([("x", record(payload=b"1")), ("y", record()), ("x", record(payload=b"2"))]) == [2]
    assert stand.job("x").payload == b"1"
    assert stand.counts() == "2 0 0 0"


@pytest.mark.parametrize("state", [DELAYED, READY, RUNNING, DEAD])
def test_an_id_is_recognised_in_every_state(stand: Stand, state: str):
    stand.put("x", delay=state == DELAYED)
    worker = FakeWorker(stand, "w")
    if state in {RUNNING, DEAD}:
        (claim,) = worker.claim()
        if state == DEAD:
            worker.settle(claim, ending="bury")
    assert stand.state("x") == state
    assert stand.put("x") == [0]


def test_a_call_that_is_sent_again_changes_nothing_even_when_its_jobs_are_done(stand: Stand):
    stand.put_as("p", 1, "j")
    worker = FakeWorker(stand, "w")
    worker.settle(*worker.claim())
    before = stand.dump()
    stand.put_as("p", 1, "j")
    assert stand.dump() == before
    stand.put_as("p", 2, "k")
    stand.put_as("other", 2, "l")
    assert stand.counts() == "2 0 0 0"


def test_a_call_that_is_sent_again_gets_the_answer_of_the_first_time(stand: Stand):
    stand.put("x")
    assert stand.put_as("p", 1, "x", "y") == [0]
    assert stand.put_as("p", 1, "x", "y") == [0]
    assert stand.put_as("p", 2, "x", "y") == [0, 1]


def test_a_copy_that_arrives_after_the_next_call_changes_nothing(stand: Stand):
    worker = FakeWorker(stand, "w")
    for number in (1, 2):
        stand.put_as("p", number, f"j{number}")
        worker.settle(*worker.claim())
    before = stand.dump()
    stand.put_as("p", 1, "j1")
    assert stand.dump() == before


def test_the_last_call_of_a_caller_is_forgotten_after_a_minute(stand: Stand):
    stand.put_as("p", 1, "j")
    assert 50_000 < stand.client.pttl(stand.base + "replay:p") <= 60_000


def test_an_own_id_that_is_enqueued_again_loses_its_old_result(stand: Stand):
    stand.put("x", own=True)
    worker = FakeWorker(stand, "w")
    worker.settle(*worker.claim(), text="1")
    assert stand.done("x") == b"c1"
    stand.put("x", own=True)
    assert stand.done("x") is None


def test_names_and_ids_may_contain_any_character(stand: Stand):
    for n, tenant in enumerate(["", ":", "5:a", "{x}", "\x00\xff", "名前", "a" * 255]):
        stand.put(f"{n}:\x00é", tenant=tenant)
    worker = FakeWorker(stand, "w")
    claims = worker.claim(9)
    assert len(claims) == 6 + 1
    assert worker.settle(*claims)
    assert stand.counts() == "0 0 0 0"
    assert not [name for name in stand.dump() if name.startswith(("heads", "lane", "turns", "tenants", "jobs"))]


# --- cancel ---


def test_a_cancelled_job_leaves_an_entry_that_is_skipped(stand: Stand):
    stand.put("a", "b")
    before = stand.dump()
    assert stand.run(stand.bindings.cancel(["a"])) == ["cancelled"]
    changed = difference(before, stand.dump())
    assert changed.keys() == {"meta", "jobs", "tenants", "results", "ends:20", "finished"}
    assert {name: changed["meta"][name] for name in ("ready", "cancelled", "second_ready")} == {
        "ready": "1",
        "cancelled": "1",
        "second_ready": "1",
    }
    assert ids(FakeWorker(stand, "w").claim(5)) == ["b"]
    assert not {"lane:5:", "heads:5"} & stand.dump().keys()


def test_cancel_returns_a_word_for_each_id(stand: Stand):
    stand.put("dead", "done", "running", "waits")
    stand.put("later", delay=5)
    stand.put("nothing is kept", ttl=0)
    worker = FakeWorker(stand, "w")
    dead, done, _ = worker.claim(3)
    worker.settle(done)
    worker.settle(dead, ending="bury")
    asked = ["dead", "done", "running", "waits", "later", "waits", "unknown", "nothing is kept", "nothing is kept"]
    assert stand.run(stand.bindings.cancel(asked)) == [
        "dead",
        "done",
        "running",
        "cancelled",
        "cancelled",
        "cancelled",
        "none",
        "cancelled",
        "none",
    ]
    assert stand.counts() == "0 0 1 1"


def test_a_cancelled_id_that_is_enqueued_again_runs_once(stand: Stand):
    stand.put("x", own=True, payload=b"1")
    stand.run(stand.bindings.cancel(["x"]))
    stand.put("x", own=True, payload=b"2")
    worker = FakeWorker(stand, "w")
    assert [claim.record.payload for claim in worker.claim(9)] == [b"2"]
    assert worker.claim(9) == []


# --- purge ---


def purge(stand: Stand, tenant: str | None, slice_: int = 100) -> list[int]:
    """Purge in slices. Returns how many jobs each slice cancelled."""
    offset, finished = 0, False
    counts: list[int] = []
    while not finished and len(counts) < 50:
        n, offset, finished, _ = stand.run(stand.bindings.purge(tenant, offset, slice_))
        counts.append(n)
    return counts


def test_a_purge_cancels_waiting_jobs_and_leaves_no_key(stand: Stand):
    stand.put("x")
    worker = FakeWorker(stand, "w")
    (running,) = worker.claim()
    for level in (0, 5, 9):
        stand.put(*(f"{level}{i}" for i in range(3)), tenant=f"t{level}", priority=level, ttl=0)
    stand.put("s", "t", delay=5, ttl=0)
    assert purge(stand, None, 4) == [4, 4, 3]
    assert stand.counts() == "0 0 1 0"
    assert worker.settle(running)
    assert stand.without_ttl() == ["ends:20", "held:w", "intake", "leases", "meta", "owners", "results"]


def test_a_purge_of_one_tenant_leaves_the_others_alone(stand: Stand):
    for n, tenant in enumerate("abab"):
        stand.put(f"{tenant}{n}", tenant=tenant)
        stand.put(f"{tenant}{n}s", tenant=tenant, delay=n + 1)
    assert sum(purge(stand, "a", 1)) == 4
    assert stand.states("b1", "b1s", "b3", "b3s") == 2 * (READY + DELAYED)
    assert stand.run(stand.bindings.tenant_counts("a")).waiting == 0


def test_a_purge_cancels_released_jobs(stand: Stand):
    stand.put("a", "b", "c")
    worker = FakeWorker(stand, "w")
    worker.settle(*worker.claim(3), ending="release")
    assert stand.dump()["meta"][b"front"] == b"3"
    assert purge(stand, None, 2) == [2, 1]
    assert b"front" not in stand.dump()["meta"]
    assert not any(name.startswith(("front", "turns", "heads")) for name in stand.dump())
