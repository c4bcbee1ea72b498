"""The tail of a record: which jobs have one, and that no transition loses what it holds."""

from __future__ import annotations

import pytest

from penstock.jobs.batching import payloads_of_one_task
from penstock.jobs.claims import Claim
from penstock.jobs.constants import CALL, DUE_IS_DATE, FORMAT, NUMBER_BYTES, OWN_ID, TAILED
from penstock.jobs.finished import CompletedRows
from penstock.jobs.record import FLAGS_AT, FORMAT_AT, Record, redrafted
from tests.jobs.stand import DEAD, START, FakeWorker, Stand, at_most, record


def test_only_a_job_that_needs_one_of_its_fields_has_a_tail(stand: Stand):
    stand.put("fresh", "ran")
    stand.put("delayed", delay=5)
    stand.put("expires", expires=5)
    assert [stand.job(key).has_tail for key in ("fresh", "ran", "delayed", "expires")] == [False, False, True, True]
    worker = FakeWorker(stand, "w")
    assert worker.settle(*worker.claim(2), ending="retry", text='{"reason":"it failed"}')
    seen = stand.job("ran")
    assert (seen.has_tail, seen.attempts, seen.deliveries, seen.payload) == (True, 1, 1, b"null")


def test_a_job_without_a_tail_was_enqueued_when_it_became_ready(stand: Stand):
    stand.put("a")
    seen = stand.job("a")
    assert (seen.enqueued, seen.since, seen.expires, seen.attempts, seen.deliveries) == (START, START, 0, 0, 0)


@pytest.mark.parametrize("ending", ["release", "retry", "later", "bury", "crash"])
def test_a_run_that_completes_nothing_keeps_the_time_of_the_enqueue(stand: Stand, ending):
    stand.put("a", tenant="ada", task="t")
    worker = FakeWorker(stand, "w")
    (claim,) = worker.claim()
    stand.advance(3)
    assert worker.settle(claim, ending=ending, delay=0 if ending == "release" else 2, text='{"reason":"r"}')
    seen = stand.job("a")
    assert (seen.has_tail, seen.enqueued, seen.tenant, seen.task) == (True, START, "ada", "t")


def test_a_job_that_was_parked_keeps_the_time_of_the_enqueue(stand: Stand):
    stand.put("first", "second", limits=[at_most(1)])
    assert not stand.job("second").has_tail
    worker = FakeWorker(stand, "w")
    (claim,) = worker.claim(2)
    stand.advance(3)
    assert worker.settle(claim)
    seen = stand.job("second")
    assert (seen.enqueued, seen.since, seen.limits) == (START, START + 3000, [("c:n", "k")])
    assert worker.claim()[0].record.payload == b"null"


def test_an_edit_keeps_the_tail_behind_the_new_arguments(stand: Stand):
    stand.put("a", delay=60, expires=90)
    stand.advance(1)
    assert stand.run(stand.bindings.edit("a", due=29, payload=b'"another"')) == "edited"
    seen = stand.job("a")
    assert (seen.payload, seen.enqueued, seen.since) == (b'"another"', START, START + 30_000)
    assert seen.expires == START + 90_000
    assert stand.run(stand.bindings.edit("a", priority=2)) == "edited"
    seen = stand.job("a")
    assert (seen.payload, seen.priority, seen.expires) == (b'"another"', 2, START + 90_000)


def test_a_requeued_dead_letter_counts_its_attempts_anew(stand: Stand):
    stand.put("a")
    worker = FakeWorker(stand, "w")
    assert worker.settle(*worker.claim(), ending="bury", text='{"reason":"r"}')
    assert (stand.job("a").state, stand.job("a").attempts) == (DEAD.encode(), 1)
    stand.advance(1)
    stand.run(stand.bindings.requeue(["a"]))
    seen = stand.job("a")
    assert (seen.attempts, seen.deliveries, seen.enqueued, seen.since) == (0, 0, START, START + 1000)


def test_a_record_that_is_drafted_again_keeps_its_attempts_unless_it_is_dead(stand: Stand):
    stand.put("a")
    worker = FakeWorker(stand, "w")
    assert worker.settle(*worker.claim(), ending="retry", delay=60, text='{"reason":"r"}')
    moved = redrafted(stand.job("a"), OWN_ID | DUE_IS_DATE, START + 60_000, 0)
    stand.run(stand.bindings.cancel(["a"]))
    stand.advance(1)
    assert stand.put_drafts([("a", moved)]) == []
    seen = stand.job("a")
    assert (seen.attempts, seen.deliveries, seen.payload) == (1, 1, b"null")
    assert (seen.enqueued, seen.since, seen.expires) == (START + 1000, START + 60_000, 0)
    dead = stand.job("a")
    dead.body = b"\x83" + DEAD.encode() + dead.body[2:]
    assert not type(dead)(redrafted(dead, OWN_ID, 0, 0)).has_tail


@pytest.mark.parametrize("size", [1023, 1024, 1025, 1024 + 19, 1024 + 20, 2048, 2048 + 19])
def test_a_tail_does_not_change_the_size_class_of_an_entry(stand: Stand, size: int):
    """The entry of a job is computed again from its record, to remove it from `delayed`."""
    stand.put("a", payload=bytes(size - len(record(payload=b""))))
    worker = FakeWorker(stand, "w")
    assert len(stand.job("a").body) == size
    for _ in range(2):
        assert worker.settle(*worker.claim(), ending="retry", delay=60, text='{"reason":"r"}')
        assert len(stand.job("a").body) == size + 19
        assert stand.run(stand.bindings.edit("a", due=0)) == "edited"
        assert "delayed" not in stand.dump()
    assert worker.settle(*worker.claim(), ending="retry", delay=60, text='{"reason":"r"}')
    assert stand.run(stand.bindings.cancel(["a"])) == ["cancelled"]
    assert "delayed" not in stand.dump()


def records_of_calls() -> tuple[Record, Record]:
    """The first has no tail."""
    fresh, retried = (bytearray(record("ada", task="t", payload=payload)) for payload in (b"[1]", b"[2]"))
    fresh[FLAGS_AT] = retried[FLAGS_AT] = CALL
    tail = (7).to_bytes(6) + bytes(6) + (3).to_bytes(2) + (4).to_bytes(2) + bytes(3)
    retried[FORMAT_AT] = FORMAT + TAILED
    return Record(bytes(fresh)), Record(bytes(retried) + tail)


def test_a_batch_has_the_arguments_of_jobs_with_and_without_a_tail():
    fresh, retried = records_of_calls()
    for some, payloads in (((fresh,), [b"[1]"]), ((fresh, retried), [b"[1]", b"[2]"]), ((retried,), [b"[2]"])):
        assert payloads_of_one_task(some) == (b"t", payloads)


def test_jobs_that_ended_together_have_the_rows_of_jobs_that_ended_alone():
    claims = [Claim(n.to_bytes(NUMBER_BYTES) + b"j", one) for n, one in enumerate(records_of_calls())]
    together, alone = CompletedRows("w"), CompletedRows("w")
    together.add_together(claims, 1.0, 2.0)
    for claim in claims:
        alone.add(claim, 1.0, 2.0)
    assert together._rows == alone._rows
    assert [row[4] for row in together._rows.values()] == [0, 7]
