"""The attempts that a queue keeps of a job, and the hand-back of a call that a worker cannot read."""

import json
from typing import Any

import msgspec
import pytest

from penstock.jobs.claims import Claim, Failure, Registration, Settlement
from penstock.jobs.constants import DEAD, DELAYED
from penstock.jobs.failures import Failures
from penstock.jobs.release import Release
from tests.jobs.stand import START, FakeWorker, Stand


def failures(stand: Stand, key: str = "j") -> Failures:
    return Failures.read(stand.dump()["failures"][key.encode()])


def registered(stand: Stand, name: str, release: str, lease: float = 10) -> FakeWorker:
    worker = FakeWorker(stand, name, lease)
    worker.turn(0, registration=Registration(f"host:{name}", 1, release=Release(release, release)))
    return worker


def unread(claim: Claim, text: bytes = b'{"reason":"no"}', limit: float = 3600.0) -> Settlement:
    return Settlement(claim.token, text, "unread", 5.0, limit)


def fail(stand: Stand, worker: FakeWorker, why: Failure) -> None:
    (claim,) = worker.claim()
    stand.advance(2)
    worker.turn(0, Settlement(claim.token, why.encode(), "retry"))


def test_the_last_five_attempts_are_kept_with_the_times_of_the_server(stand: Stand):
    stand.put("j")
    worker = FakeWorker(stand, "w")
    for number in range(1, 8):
        fail(
            stand,
            worker,
            Failure(reason=f"failure {number}", traceback=f"line {number}", worker="host:1", release="v1"),
        )
    kept = failures(stand).attempts
    assert [one.number for one in kept] == [7, 6, 5, 4, 3]
    latest = kept[0]
    assert (latest.began, latest.ended, latest.duration) == (START / 1000 + 12, START / 1000 + 14, 2)
    assert (latest.outcome, latest.reason, latest.traceback) == ("failed", "failure 7", "line 7")
    assert (latest.worker, latest.release) == ("host:1", "v1")


def test_attempts_are_bounded_and_the_latest_is_always_kept(stand: Stand):
    stand.put("j")
    worker = FakeWorker(stand, "w")
    for number in range(4):
        fail(stand, worker, Failure(reason=f"{number}", traceback="x" * 7_000 + "end"))
    assert [one.number for one in failures(stand).attempts] == [4, 3]
    fail(stand, worker, Failure(reason="huge", traceback="é" * 100_000 + "end"))
    (latest, *_) = failures(stand).attempts
    assert (latest.reason, latest.traceback[-3:]) == ("huge", "end")
    assert len(stand.dump()["failures"][b"j"]) <= 16384 + 8


def test_what_a_program_says_in_its_own_words_is_cut_and_shown(stand: Stand):
    stand.put("j")
    worker = FakeWorker(stand, "w")
    (claim,) = worker.claim()
    worker.turn(0, Settlement(claim.token, b"word " * 10_000, "retry"))
    assert failures(stand).reason.startswith("word word")
    assert len(failures(stand).reason) == 12288


def test_a_postponed_run_does_not_push_a_failure_out(stand: Stand):
    stand.put("j")
    worker = FakeWorker(stand, "w")
    fail(stand, worker, Failure(reason="boom"))
    for n in range(9):
        (claim,) = worker.claim()
        worker.turn(0, Settlement(claim.token, msgspec.json.encode(Failure(reason=f"busy {n}")), "later"))
    assert [(one.number, one.outcome, one.reason) for one in failures(stand).attempts] == [
        (2, "postponed", "busy 8"),
        (1, "failed", "boom"),
    ]


def test_a_loss_names_the_worker_that_was_gone(stand: Stand):
    stand.put("j")
    registered(stand, "w", "v1").claim()
    stand.advance(11)
    FakeWorker(stand, "v").turn(0)
    (lost,) = failures(stand).attempts
    assert (lost.outcome, lost.worker, lost.release, lost.duration) == ("lost", "host:w", "v1", 11)


def test_a_call_that_a_worker_cannot_read_waits_while_another_release_is_alive(stand: Stand):
    stand.put("j")
    old, new = registered(stand, "a", "v1", 600), registered(stand, "b", "v2", 600)
    for waited, delay in ((0, 5), (5, 10), (15, 20)):
        (claim,) = old.claim()
        assert old.turn(0, unread(claim)).buried == ()
        job = stand.job("j")
        assert (job.state, job.since) == (DELAYED, START + 1000 * (waited + delay))
        assert (failures(stand).unread_since, failures(stand).other) == (START / 1000, "v2")
        stand.advance(delay)
    (claim,) = new.claim()
    assert new.settle(claim)
    assert "failures" not in stand.dump()


@pytest.mark.parametrize(
    ("verb", "ms", "expected"),
    [
        ("retry", 5.0, 1),
        ("retry", 0.0, 1),
        ("later", 5.0, 0),
        ("later", 0.0, 0),
        ("until", 5.0, 0),
        ("unknown", 5.0, 0),
        ("unread", 5.0, 0),
        ("unknown", 0.0, 0),
        ("release", 0.0, 0),
    ],
)
def test_a_job_that_is_postponed_or_handed_back_counts_as_no_run(stand: Stand, verb: Any, ms: float, expected: int):
    stand.put("j")
    registered(stand, "b", "v2")
    worker = registered(stand, "a", "v1")
    (claim,) = worker.claim()
    worker.turn(0, Settlement(claim.token, b'{"reason":"no"}', verb, ms, 3600.0))
    counts = stand.run(stand.bindings.counts())
    assert (counts.retried, counts.ready + counts.delayed) == (expected, 1)
    assert counts.completed == counts.failed == counts.dropped == counts.lost == 0


@pytest.mark.parametrize("ends", ["it leaves", "its lease runs out", "it never was"])
def test_it_is_a_dead_letter_once_no_other_release_is_alive(stand: Stand, ends: str):
    stand.put("j")
    old = registered(stand, "a", "v1", 600)
    if ends != "it never was":
        new = registered(stand, "b", "v2")
        (claim,) = old.claim()
        old.turn(0, unread(claim))
        if ends == "it leaves":
            new.turn(0, once=True)
        stand.advance(11)
    (claim,) = old.claim()
    turn = old.turn(0, Settlement(b"\0\0\0\0\0\0none", b"", "release"), unread(claim))
    assert stand.job("j").state == DEAD
    for reply in (turn, old.repeat_turn()):
        assert ([one.id for one in reply.stale], [one.id for one in reply.buried]) == (["none"], ["j"])
    suffix = "" if ends == "it never was" else "; it was handed back for a worker of release v2"
    assert failures(stand).reason == f"no{suffix}"
    assert len(failures(stand).attempts) == 1
    stand.run(stand.bindings.requeue(["j"]))
    assert (failures(stand).unread_since, len(failures(stand).attempts)) == (None, 1)


def test_both_releases_hand_back_until_the_limit(stand: Stand):
    stand.put("j")
    workers = [registered(stand, "a", "v1", 600), registered(stand, "b", "v2", 600)]
    for n, expected in enumerate((DELAYED, DEAD)):
        (claim,) = workers[n % 2].claim()
        workers[n % 2].turn(0, unread(claim, limit=12))
        assert stand.job("j").state == expected
        stand.advance(20)


def test_damaged_failures_are_none(stand: Stand):
    assert Failures.read(None) == Failures.read(b"short") == Failures.read(json.dumps("x" * 9).encode()) == Failures()
    stand.put("j")
    worker = FakeWorker(stand, "w")
    (claim,) = worker.claim()
    stand.client.hset(stand.base + "failures", "j", "x" * 40)
    worker.turn(0, Settlement(claim.token, b'{"reason":"boom"}', "bury"))
    assert failures(stand).reason == "boom"
