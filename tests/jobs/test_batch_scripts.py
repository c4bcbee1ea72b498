"""Batches in the server: when one is offered, which jobs it has, and what is left afterwards."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from penstock.jobs.batching import Batch, batches_of
from penstock.jobs.claims import Registration
from penstock.testing.audit.instances import audits
from penstock.testing.audit.stored_keys import read_keys
from tests.jobs.stand import FakeWorker, Stand

WHOLE, BY_TENANT = (3, 200, 0), (3, 200, 1)


def start(stand: Stand, batch: tuple[int, int, int] | None, name: str = "w") -> FakeWorker:
    """A worker that has declared the batches of its task, and found nothing."""
    worker = FakeWorker(stand, name)
    worker.turn(3, registration=Registration(name, 1, f"{name}/1", batch=batch), address=f"{name}/1", sleep=50.0)
    return worker


def ids(worker: FakeWorker, want: int = 3) -> str:
    turn = worker.turn(want, address=f"{worker.incarnation}/1", sleep=50.0)
    return " ".join(claim.id for claim in turn.claims)


def problems(stand: Stand) -> list[str]:
    keys = list(read_keys(stand.client, "*"))
    found = [problem for key in keys for problem in key.problems()]
    return found + [problem for audit in audits(keys).values() for problem in audit.problems()]


# --- the whole queue ---


def test_jobs_wait_for_a_whole_batch_of_any_tenants(stand: Stand):
    worker = start(stand, WHOLE)
    stand.put_for(ada="a1", bo="b1")
    assert ids(worker) == ""
    stand.put_for(cy="c1 c2")
    assert ids(worker) == "a1 b1 c1"
    assert ids(worker) == ""


def test_the_oldest_job_waits_no_longer_than_it_may_linger(stand: Stand):
    worker = start(stand, WHOLE)
    stand.put("a")
    stand.advance(0.15)
    stand.put("b")
    assert ids(worker) == ""
    stand.advance(0.05)
    assert ids(worker) == "a b"
    stand.put("c")
    assert ids(worker) == ""
    stand.advance(0.2)
    assert ids(worker) == "c"


def test_jobs_that_a_batch_has_left_linger_from_their_own_time(stand: Stand):
    worker = start(stand, WHOLE)
    stand.put("a", "b", "c")
    stand.advance(0.1)
    stand.put("d")
    assert ids(worker) == "a b c"
    stand.advance(0.09)
    assert ids(worker) == ""
    stand.advance(0.11)
    assert ids(worker) == "d"


def test_an_idle_worker_is_woken_by_a_whole_batch_and_not_by_its_parts(stand: Stand):
    start(stand, WHOLE)
    stand.messages("w")
    stand.put("a")
    assert stand.messages("w") == ["1 200"]  # it watches the clock: a turn in 200 ms
    stand.put("b")
    assert stand.messages("w") == []
    stand.put("c")
    assert stand.messages("w") == ["1 0"]


def test_the_worker_that_watches_the_clock_returns_when_the_time_is_over(stand: Stand):
    worker = start(stand, WHOLE)
    stand.put("a")
    stand.advance(0.15)
    assert worker.turn(3, address="w/1", sleep=50.0).due_in == pytest.approx(0.05)


def test_a_turn_for_several_batches_leaves_the_piece_behind_the_last_whole_one(stand: Stand):
    worker = start(stand, WHOLE)
    stand.put(*"abcdefgh")
    turn = worker.turn(9, address="w/1", sleep=50.0)
    assert "".join(claim.id for claim in turn.claims) == "abcdef"
    assert not turn.more
    assert turn.due_in == pytest.approx(0.2)
    stand.messages("w")
    stand.put("i")
    assert stand.messages("w") == ["1 0"]  # though it holds six jobs, it is registered as idle
    assert ids(worker, 9) == "g h i"
    stand.put("j")
    stand.advance(0.2)
    assert ids(worker, 9) == "j"
    assert problems(stand) == []


# --- batches of one tenant ---


def test_a_batch_is_of_one_tenant(stand: Stand):
    worker = start(stand, BY_TENANT)
    stand.put_for(ada="a1 a2", bo="b1 b2 b3", cy="c1")
    assert ids(worker) == "b1 b2 b3"
    assert ids(worker) == ""
    stand.put_for(ada="a3 a4")
    assert ids(worker) == "a1 a2 a3"
    assert ids(worker) == ""
    stand.advance(0.2)
    assert [ids(worker), ids(worker), ids(worker)] == ["a4", "c1", ""]  # they arrived at the same time
    assert problems(stand) == []


def test_a_batch_is_one_turn_of_its_tenant(stand: Stand):
    worker = start(stand, BY_TENANT)
    stand.put_for(ada="a1 a2 a3 a4 a5 a6 a7 a8 a9", bo="b1 b2 b3 b4 b5 b6", cy="c1 c2 c3")
    served = [ids(worker)[0] for _ in range(6)]
    assert served[:3] == ["a", "b", "c"]
    assert Counter(served) == {"a": 3, "b": 2, "c": 1}


def test_a_turn_for_several_batches_takes_no_more_of_them_than_it_asks_for(stand: Stand):
    worker = start(stand, BY_TENANT)
    stand.put_for(ada="a1 a2 a3 a4", bo="b1 b2 b3 b4", cy="c1")
    assert ids(worker, 9) == "a1 a2 a3 b1 b2 b3"
    stand.put("u1", "u2", "u3", tenant="di", priority=1)
    stand.advance(0.2)
    turn = worker.turn(9, address="w/1", sleep=50.0)
    assert " ".join(claim.id for claim in turn.claims) == "u1 u2 u3 a4 b4"
    assert turn.more
    assert [ids(worker, 9), ids(worker, 9)] == ["c1", ""]
    assert problems(stand) == []


def test_a_tenant_of_twice_the_weight_has_twice_as_many_batches(stand: Stand):
    stand.run(stand.bindings.set_weight("bo", 2))
    worker = start(stand, BY_TENANT)
    stand.put_for(ada=" ".join(f"a{n}" for n in range(30)), bo=" ".join(f"b{n}" for n in range(30)))
    assert Counter(ids(worker)[0] for _ in range(9)) == {"a": 3, "b": 6}


def test_a_more_urgent_batch_is_first(stand: Stand):
    worker = start(stand, BY_TENANT)
    stand.put("a", "b", "c", tenant="ada")
    stand.put("d", "e", "f", tenant="bo", priority=1)
    assert [ids(worker), ids(worker)] == ["d e f", "a b c"]


def test_a_job_that_came_back_is_offered_at_once(stand: Stand):
    worker = start(stand, BY_TENANT)
    stand.put_for(ada="a1 a2 a3")
    claims = worker.claim(3)
    worker.settle(claims[1], ending="release")
    assert ids(worker) == "a2"


@pytest.mark.parametrize("batch", [WHOLE, BY_TENANT])
def test_cancelled_jobs_are_skipped_and_leave_nothing(stand: Stand, batch: tuple[int, int, int]):
    worker = start(stand, batch)
    stand.put_for(ada="a1 a2", bo="b1")
    stand.run(stand.bindings.cancel(["a1", "b1"]))
    assert ids(worker) == ""
    stand.advance(0.2)
    assert [ids(worker), ids(worker)] == ["a2", ""]
    stand.put_for(cy="c1", di="d1")
    stand.run(stand.bindings.purge(None, 0))
    assert problems(stand) == []
    assert not [name for name in stand.names() if "lingering" in name or "turns" in name]


def test_the_entries_of_cancelled_jobs_go_though_no_job_follows_them(stand: Stand):
    worker = start(stand, WHOLE)
    stand.put("a", "b")
    stand.run(stand.bindings.cancel(["a", "b"]))
    assert (stand.entries(), ids(worker), stand.entries()) == (2, "", 0)


@pytest.mark.parametrize("batch", [WHOLE, BY_TENANT])
def test_a_worker_that_knows_no_batches_offers_every_job_at_once(stand: Stand, batch: tuple[int, int, int]):
    start(stand, batch)
    stand.put_for(ada="a1", bo="b1")
    later = start(stand, None, "later")
    stand.advance(0.2)
    assert {*ids(later).split(), *ids(later).split()} | {"a1", "b1"} == {"a1", "b1"}
    stand.put_for(cy="c1")
    assert "c1" in [claim.id for turn in later.take_all(3) for claim in turn.claims]


def test_a_repeated_turn_returns_the_same_batch(stand: Stand):
    worker = start(stand, BY_TENANT)
    stand.put_for(ada="a1 a2 a3 a4")
    first = worker.turn(3).claims
    assert [claim.id for claim in worker.repeat_turn().claims] == [claim.id for claim in first] == ["a1", "a2", "a3"]


@pytest.mark.parametrize("batch", [WHOLE, BY_TENANT])
def test_a_worker_that_only_tries_suspects_waits_beside_a_batch(stand: Stand, batch: tuple[int, int, int]):
    start(stand, batch)
    stand.put("a", "b", "c")
    turn = FakeWorker(stand, "trial").turn(1, trial="only", address="trial/1", sleep=50.0)
    assert (turn.claims, turn.more) == ([], False)


def test_a_paused_queue_offers_no_batch(stand: Stand):
    worker = start(stand, WHOLE)
    stand.run(stand.bindings.set_switch("paused", True))
    stand.put("a", "b", "c")
    stand.advance(1)
    turn = worker.turn(3, address="w/1", sleep=50.0)
    assert (turn.claims, turn.more) == ([], False)


def test_a_queue_without_batches_pays_nothing(stand: Stand):
    FakeWorker(stand, "w").turn(1, registration=Registration("w", 1))
    stand.put("a")
    assert not [name for name in stand.dump()["meta"] if name.startswith(b"batch")]


# --- any history ---


@pytest.mark.parametrize("seed", range(12))
def test_any_history_offers_each_job_once_in_time_and_in_batches_of_its_kind(stand: Stand, seed: int):
    """Producers, cancels, purges, returns and a clock, against one worker that takes every batch that is offered:
    one in a turn, or several."""
    chance = random.Random(seed)
    most = 1 + seed // 6 * 2
    by_tenant = seed % 2 == 1
    size, linger = chance.randint(2, 6), 200
    worker = start(stand, (size, linger, int(by_tenant)))
    since: dict[str, int] = {}
    owner: dict[str, str] = {}
    seen: set[str] = set()
    serial = 0

    def drain() -> None:
        while True:
            turn = worker.turn(most * size, address="w/1", sleep=50.0)
            batches = [*batches_of(turn.claims, Batch(size, by_tenant=by_tenant))]
            assert len(batches) <= most
            if turn.claims:
                assert all(len({owner[claim.id] for claim in batch}) == 1 for batch in batches) or not by_tenant
                assert not seen & {claim.id for claim in turn.claims}
                returned = chance.sample(turn.claims, chance.randint(0, 1))
                worker.settle(*[claim for claim in turn.claims if claim not in returned])
                for claim in turn.claims:
                    seen.add(claim.id)
                for claim in returned:
                    worker.settle(claim, ending="release")
                    seen.discard(claim.id)
            elif not turn.more:
                break
        waiting = {id: at for id, at in since.items() if id not in seen}
        assert all(stand.clock.now_ms - at <= linger for at in waiting.values())
        lanes = Counter(owner[id] for id in waiting) if by_tenant else Counter({"": len(waiting)})
        assert all(n < size for n in lanes.values())

    for _ in range(60):
        match chance.randint(0, 9):
            case 0 | 1 | 2 | 3 | 4:
                tenant = chance.choice("abcd")
                names = [str(serial + n) for n in range(chance.randint(1, size))]
                serial += len(names)
                stand.put(*names, tenant=tenant)
                since |= dict.fromkeys(names, stand.clock.now_ms)
                owner |= dict.fromkeys(names, tenant)
            case 5 if since:
                gone = chance.choice(list(since))
                stand.run(stand.bindings.cancel([gone]))
                seen.add(gone)
            case 6:
                tenant = chance.choice("abcd")
                stand.run(stand.bindings.purge(tenant, 0))
                seen |= {id for id in since if owner[id] == tenant}
            case _:
                stand.advance(chance.choice([0.01, 0.1, 0.25]))
        drain()
        assert problems(stand) == []
    stand.advance(0.2)
    drain()
    assert seen == set(since)
    assert stand.counts() == "0 0 0 0"
    assert not [name for name in stand.names() if "lingering" in name or "turns" in name]
