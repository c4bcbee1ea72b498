"""Settlements in a turn: how runs end, repeated turns, leases, claims without a worker, pauses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from valkey.exceptions import ResponseError

from penstock.jobs import constants
from penstock.jobs.claims import Ending, Settlement
from penstock.jobs.failures import Failures
from tests.jobs.stand import (
    DEAD,
    DELAYED,
    OF_QUEUE,
    READY,
    RUNNING,
    START,
    FakeWorker,
    Stand,
    every_script,
    ids,
    reasons,
    record,
    settlement,
)

OTHERS: list[Ending] = ["retry", "later", "release", "bury", "drop"]


# --- ends of a run ---


def test_a_failed_run_is_charged_and_its_reason_kept(stand: Stand):
    stand.put("j", payload=b'"body"')
    worker = FakeWorker(stand, "w")
    assert worker.settle(*worker.claim(), ending="retry", delay=2, text="boom")
    job = stand.job("j")
    assert (job.state, job.attempts, job.since, job.payload) == (constants.DELAYED, 1, START + 2000, b'"body"')
    assert reasons(stand) == {b"j": "boom"}
    stand.advance(2)
    assert worker.settle(*worker.claim())
    assert "failures" not in stand.dump()


def test_later_is_a_retry_that_is_not_charged(stand: Stand):
    stand.put("j")
    worker = FakeWorker(stand, "w")
    assert worker.settle(*worker.claim(), ending="later", delay=2)
    assert (stand.job("j").attempts, stand.job("j").deliveries, stand.state("j")) == (0, 1, DELAYED)


def test_a_dead_letter_is_kept_with_its_reason_until_it_is_requeued(stand: Stand):
    stand.put("j", tenant="ada")
    worker = FakeWorker(stand, "w")
    worker.settle(*worker.claim(), ending="bury", text="boom")
    ((key, died, letter, failures),) = stand.run(stand.bindings.list_dead(0, 10))
    assert letter is not None
    assert (key, died, letter.attempts, Failures.read(failures).reason) == ("j", START / 1000, 1, "boom")
    assert stand.counts() == "0 0 0 1"
    assert stand.run(stand.bindings.requeue(["j", "j", "unknown"])) == 1
    assert "dead" not in stand.dump()
    assert reasons(stand) == {b"j": "boom"}  # the next worker's operator sees it
    (claim,) = worker.claim()
    assert (claim.record.attempts, claim.deliveries, claim.record.tenant) == (0, 1, "ada")
    worker.settle(claim)
    assert "failures" not in stand.dump()


def test_a_dead_letter_that_is_removed_leaves_nothing(stand: Stand):
    stand.put("j", ttl=0)
    worker = FakeWorker(stand, "w")
    worker.settle(*worker.claim(), ending="bury", text="boom")
    assert stand.run(stand.bindings.remove_dead(["j", "j", "unknown"])) == 1
    assert stand.dump().keys() == {"meta", "leases", "held:w", "failed", "intake"}


def test_a_dropped_job_keeps_its_reason(stand: Stand):
    stand.put("j")
    worker = FakeWorker(stand, "w")
    worker.settle(*worker.claim(), ending="drop", text="no use")
    assert (stand.done("j"), stand.state("j"), stand.dump()["meta"][b"dropped"]) == (
        constants.DROPPED + b"no use",
        "-",
        b"1",
    )


@pytest.mark.parametrize("ending", [None, *OTHERS])
def test_a_claim_is_settled_once_even_if_it_is_named_twice(stand: Stand, ending: Ending | None):
    stand.put("j")
    worker = FakeWorker(stand, "w")
    (claim,) = worker.claim()
    turn = worker.turn(0, settlement(claim), settlement(claim, ending))
    assert turn.stale == (settlement(claim, ending),)
    assert stand.counts() == "0 0 0 0"
    assert stand.dump()["meta"][b"completed"] == b"1"


def test_stale_settlements_are_returned_and_the_others_count(stand: Stand):
    stand.put("a", "b", "c")
    worker = FakeWorker(stand, "w")
    a, b, c = worker.claim(3)
    worker.settle(a, c)
    sent = [settlement(c, "bury"), settlement(b, text="1"), settlement(a), settlement(c, text="2")]
    assert worker.turn(0, *sent).stale == (settlement(a), settlement(c, text="2"), settlement(c, "bury"))
    assert (stand.counts(), stand.done("b"), stand.done("c")) == ("0 0 0 0", b"c1", b"cnull")


# --- turns that are repeated ---


def test_a_repeated_turn_gives_the_same_batch_and_changes_nothing(stand: Stand):
    stand.put("a", "b", "c", "d")
    worker = FakeWorker(stand, "w")
    a, b = worker.claim(2)
    first = worker.turn(2, settlement(a), settlement(b, "retry", 1), Settlement(b"\0\0\0\0\0\xffx"))
    before = stand.dump()
    second = worker.repeat_turn()
    assert stand.dump() == before
    assert [c.token for c in second.claims] == [c.token for c in first.claims]
    assert second.stale == first.stale == (Settlement(b"\0\0\0\0\0\xffx"),)
    assert ids(worker.claim(9)) == []


def test_a_repeated_turn_gives_only_what_is_still_held(stand: Stand):
    stand.put("a", "b")
    worker = FakeWorker(stand, "w")
    a, b = worker.claim(2)
    assert worker.settle_alone(a, "retry")
    assert [claim.token for claim in worker.repeat_turn().claims] == [b.token]


def test_a_turn_out_of_its_order_is_stale(stand: Stand):
    stand.put("a", "b")
    worker = FakeWorker(stand, "w")
    worker.claim()
    before = stand.dump()
    for number in (3, 7, 0):
        worker.number = number - 1
        assert not worker.turn(1).alive
    assert not FakeWorker(stand, "new", number=4).turn(1).alive
    assert stand.dump() == before


def test_the_last_turn_is_known_after_heartbeats(stand: Stand):
    """A worker with long jobs takes no turns in the meantime."""
    stand.put("j")
    worker = FakeWorker(stand, "w", lease=10)
    (claim,) = worker.claim()
    for _ in range(3):
        stand.advance(9)
        assert worker.heartbeat()
    assert [again.token for again in worker.repeat_turn().claims] == [claim.token]


# --- leases ---


@pytest.mark.parametrize("taken_back", [False, True])
def test_an_ended_incarnation_changes_nothing(stand: Stand, taken_back: bool):
    stand.put("a", "b", "c", ttl=600)
    ghost = FakeWorker(stand, "ghost")
    claims = ghost.claim(2)
    stand.advance(10)
    if taken_back:
        assert len(FakeWorker(stand, "w").claim(1)) == 1
    before = stand.dump()
    for ending in [None, *OTHERS]:
        for claim in claims:
            assert not ghost.settle_alone(claim, ending, text="1")
        ghost.number = 1
        assert not ghost.turn(2, *(settlement(claim, ending, text="1") for claim in claims)).alive
    assert not ghost.heartbeat()
    assert not ghost.repeat_turn().alive
    assert stand.dump() == before


def test_a_lease_lasts_to_its_last_millisecond(stand: Stand):
    stand.put("j")
    worker = FakeWorker(stand, "w")
    (claim,) = worker.claim()
    stand.advance(9.999)
    assert FakeWorker(stand, "v").claim(1) == []
    assert worker.heartbeat()
    stand.advance(9.999)
    assert worker.settle(claim)


def test_a_worker_may_claim_its_own_lost_job_and_its_old_claim_is_stale(stand: Stand):
    stand.put("j")
    old, new = FakeWorker(stand, "w.1"), FakeWorker(stand, "w.2")
    (lost,) = old.claim()
    stand.advance(10)
    (claim,) = new.claim()
    assert claim.id == "j"
    assert claim.token > lost.token
    assert not old.settle_alone(lost)
    assert not new.settle_alone(lost)
    assert new.turn(0, settlement(lost)).stale == (settlement(lost),)
    assert stand.state("j") == RUNNING
    assert new.settle(claim)


def test_lost_jobs_are_taken_back_a_hundred_per_turn(stand: Stand):
    stand.put_drafts([(f"j{i}", record()) for i in range(250)])
    FakeWorker(stand, "w").claim(250)
    stand.advance(10)
    taken_back, worker = [], FakeWorker(stand, "v")
    for _ in range(3):
        worker.turn(0)
        taken_back.append(stand.run(stand.bindings.counts()).lost)
    assert taken_back == [100, 200, 250]


def test_a_turn_that_did_not_reach_all_ended_incarnations_reports_more(stand: Stand):
    stand.put_drafts([(f"j{i}", record()) for i in range(20)])
    for i in range(20):
        FakeWorker(stand, f"w{i}").claim(1)
    stand.advance(10)
    worker = FakeWorker(stand, "v")
    assert [worker.turn(1).more for _ in range(3)] == [False] * 3
    assert stand.run(stand.bindings.counts()).lost == 20


def test_an_abandoned_incarnation_ends_at_once(stand: Stand):
    stand.put("j")
    worker = FakeWorker(stand, "w")
    (claim,) = worker.claim()
    assert stand.run(stand.bindings.abandon("w")) == (0, True, None)
    assert not worker.heartbeat()
    assert not worker.settle_alone(claim)
    assert ids(FakeWorker(stand, "v").claim(1)) == ["j"]
    assert stand.run(stand.bindings.abandon("unknown")) == (0, True, None)


def test_an_idle_worker_that_ended_is_forgotten_by_the_next_turn(stand: Stand):
    FakeWorker(stand, "w").turn(1)
    stand.advance(10)
    FakeWorker(stand, "v").turn(1)
    assert stand.dump().keys() == {"meta", "leases", "held:v"}
    assert stand.dump()["leases"] == [(b"v", START + 20_000.0)]


@pytest.mark.parametrize("state", [DELAYED, READY, RUNNING, DEAD])
@pytest.mark.parametrize("damaged", [None, b"", b"\x02r", bytes(43), b"\x02r" + bytes(39) + b"\xff\xff\xff"])
def test_a_damaged_record_stops_no_script(stand: Stand, state: str, damaged: bytes | None):
    """`damaged` None: the record was deleted. Each script that may read it works, and the other job is served."""
    bindings, jobs = stand.bindings, stand.base + "jobs"
    acts: list[Callable[[], object]] = [
        lambda: stand.run(bindings.cancel(["bad"])),
        lambda: stand.run(bindings.purge("", 0, 10)),
        lambda: stand.run(bindings.purge(None, 0, 10)),
        lambda: stand.run(bindings.requeue(["bad"])),
        lambda: stand.run(bindings.remove_dead(["bad"])),
        lambda: stand.run(bindings.tenant_counts("")),
        lambda: [worker.settle(claim) for claim in held],
        lambda: [worker.settle(claim, ending="retry", delay=1) for claim in held],
        lambda: [worker.settle(claim, ending="bury", text="why") for claim in held],
        lambda: [worker.settle_alone(claim, "release") for claim in held],
        lambda: worker.last and worker.repeat_turn(),
        lambda: stand.advance(10),
    ]
    for act in acts:
        stand.client.flushall()
        stand.put("bad", delay=state == DELAYED)
        worker = FakeWorker(stand, "w")
        held = worker.claim() if state in {RUNNING, DEAD} else []
        if state == "d":
            worker.settle(held.pop(), ending="bury")
        assert stand.state("bad") == state
        if damaged is None:
            stand.client.hdel(jobs, "bad")
        else:
            stand.client.hset(jobs, "bad", damaged)
        act()
        stand.put("good", tenant="good")
        stand.advance(1)
        assert "good" in [key for n in range(2) for key in ids(FakeWorker(stand, f"v{n}").claim(9))]


# --- claims without a worker ---


def once(stand: Stand, me: str, want: int, **options: Any) -> Any:
    return FakeWorker(stand, me).turn(want, once=True, **options)


def test_a_claim_without_a_worker_that_found_nothing_leaves_nothing(stand: Stand):
    assert once(stand, "me", 1).alive
    assert stand.dump() == {}


def test_a_claim_without_a_worker_ends_with_its_last_job(stand: Stand):
    stand.put("a", "b", ttl=0)
    a, b = once(stand, "me", 2).claims
    worker = FakeWorker(stand, "me")
    assert worker.settle_alone(a)
    assert "leases" in stand.dump()
    assert worker.settle_alone(b, "retry")
    assert not {"leases", "held:me", "owners"} & stand.dump().keys()
    assert stand.counts() == "1 0 0 0"


def test_a_settlement_may_be_repeated_for_a_minute(stand: Stand):
    stand.put("a")
    (claim,) = once(stand, "me", 1).claims
    worker = FakeWorker(stand, "me")
    assert worker.settle_alone(claim, "retry")
    (again,) = FakeWorker(stand, "w").claim()
    before = stand.dump()
    assert worker.settle_alone(claim, "bury")
    assert not worker.settle_alone(again)
    assert stand.dump() == before
    assert 50_000 < stand.client.pttl(stand.base + "settled:me") <= 60_000


# --- pause ---


def test_a_paused_queue_hands_out_nothing_and_lets_running_jobs_finish(stand: Stand):
    stand.put("a", "b")
    stand.put("due", delay=1)
    worker = FakeWorker(stand, "w")
    (claim,) = worker.claim()
    stand.run(stand.bindings.set_switch("paused", True))
    stand.advance(1)
    turn = worker.turn(5, settlement(claim))
    assert (turn.claims, turn.stale, turn.more) == ([], (), False)
    assert stand.counts() == "2 0 0 0"
    stand.run(stand.bindings.set_switch("paused", False))
    assert ids(worker.claim(5)) == ["b", "due"]


# --- a newer format ---


def assert_refused(stand: Stand, name: str, number: int) -> None:
    before = stand.dump()
    if name.startswith("take_in"):
        assert not stand.run(every_script(stand.bindings)[name]), "the caller sends `enqueue`, which is refused"
    else:
        with pytest.raises(ResponseError, match=f"PENSTOCKFORMAT {number}"):
            stand.run(every_script(stand.bindings)[name])
    assert stand.dump() == before


@pytest.mark.parametrize("name", sorted({*OF_QUEUE} - {"sweep_queue"}))  # which changes no queue that exists
def test_a_newer_format_is_refused_and_nothing_is_changed(stand: Stand, name: str):
    stand.put("a")
    row = stand.client.hget(stand.base + "meta", "row")
    stand.client.hset(stand.base + "meta", "row", bytes([constants.FORMAT + 1]) + row[1:])
    stand.client.delete(stand.base + "intake")
    assert_refused(stand, name, constants.FORMAT + 1)


@pytest.mark.parametrize("name", sorted({*OF_QUEUE} - {"sweep_queue"}))  # which changes no queue that exists
def test_the_first_format_is_refused_and_nothing_is_changed(stand: Stand, name: str):
    stand.client.hset(stand.base + "meta", mapping={"format": 1, "seq": 7})
    assert_refused(stand, name, 1)
