"""Running jobs that are cancelled: who is asked, and how the answer reaches the worker, script by script."""

from penstock.jobs.claims import Registration
from tests.jobs.stand import FakeWorker, Stand, ids


def test_the_worker_of_a_running_job_gets_a_message_and_the_token(stand: Stand):
    stand.put("a", "b")
    stand.start_processes("p")
    worker = FakeWorker(stand, "w")
    first, _ = worker.turn(2, registration=Registration("host:1", 2, "p/7")).claims
    stand.messages("p")
    assert stand.run(stand.bindings.cancel(["a", "unknown"])) == ["running", "none"]
    assert "7 cancel" in stand.messages("p")
    for _ in range(2):
        assert stand.run(stand.bindings.heartbeat("w", 10)) == [first.token]
    assert worker.settle(first, ending="cancel")
    assert stand.run(stand.bindings.heartbeat("w", 10)) == []
    assert "cancels:w" not in stand.dump()
    assert stand.run(stand.bindings.cancel(["a"])) == ["cancelled"]
    assert stand.run(stand.bindings.counts()).cancelled == 1


def test_a_job_that_ended_meanwhile_is_forgotten(stand: Stand):
    stand.put("a", "b")
    worker = FakeWorker(stand, "w")
    first, second = worker.claim(2)
    stand.run(stand.bindings.cancel(["a", "b"]))
    assert worker.settle(first)
    assert stand.run(stand.bindings.heartbeat("w", 10)) == [second.token]
    worker.settle(second, ending="release")
    assert stand.run(stand.bindings.heartbeat("w", 10)) == []
    assert ids(worker.claim(1)) == ["b"], "it was handed back before the worker heard of it"


def test_the_end_of_an_incarnation_ends_what_it_was_asked(stand: Stand):
    stand.put("a")
    (claim,) = FakeWorker(stand, "w").claim()
    stand.run(stand.bindings.cancel(["a"]))
    stand.run(stand.bindings.abandon("w", "loss", b"{}", [claim.token]))
    assert "cancels:w" not in stand.dump()
    assert stand.run(stand.bindings.cancel(["a"])) == ["cancelled"]


def test_a_thousand_cancelled_jobs_are_read_in_pages(stand: Stand):
    keys = [f"j{n}" for n in range(300)]
    stand.put(*keys)
    worker = FakeWorker(stand, "w")
    claims = worker.claim(300)
    for at in range(0, 300, 100):
        stand.run(stand.bindings.cancel(keys[at : at + 100]))
    seen: set[bytes] = set()
    while tokens := stand.run(stand.bindings.heartbeat("w", 10)):
        assert len(tokens) <= 100
        seen |= set(tokens)
        worker.settle(*(claim for claim in claims if claim.token in set(tokens)), ending="cancel")
    assert seen == {claim.token for claim in claims}
