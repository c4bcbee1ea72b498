"""A turn stops at 1 MiB of records, but returns at least one job."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from tests.jobs.stand import FakeWorker, Stand, ids

KiB = 1024
MiB = 1024 * KiB


@pytest.mark.parametrize(("size", "most"), [(MiB, 1), (600 * KiB, 1), (100 * KiB, 10), (20 * KiB, 51), (100, 64)])
def test_a_turn_stops_at_one_mebibyte_and_reports_more(stand: Stand, size: int, most: int):
    for tenant in "abcd":
        for n in range(16):
            stand.put(f"{tenant}{n:02}", tenant=tenant, payload=bytes(size))
    worker = FakeWorker(stand, "w")
    served: list[str] = []
    while len(served) < 64:
        turn = worker.turn(64)
        served += ids(turn.claims)
        assert turn.more or len(turn.claims) == 64 or len(served) == 64
        assert most * 3 // 4 <= len(turn.claims) <= most or len(served) == 64
        assert sum(len(claim.record.body) for claim in turn.claims) <= max(MiB, size + 100)
    assert served == [f"{tenant}{n:02}" for n in range(16) for tenant in "abcd"]


def test_a_large_job_behind_small_ones_waits_for_the_next_turn(stand: Stand):
    stand.put("a", "b")
    stand.put("large", payload=bytes(MiB))
    stand.put("c")
    worker = FakeWorker(stand, "w")
    first = worker.turn(9)
    assert (ids(first.claims), first.more) == (["a", "b"], True)
    assert ids(worker.turn(9).claims) == ["large"]
    assert ids(worker.turn(9).claims) == ["c"]


def test_a_less_urgent_job_does_not_overtake_a_large_urgent_one(stand: Stand):
    stand.put("a", priority=0)
    stand.put("large", priority=0, payload=bytes(MiB))
    stand.put("idle", priority=9)
    worker = FakeWorker(stand, "w")
    assert [ids(worker.claim(9)) for _ in range(3)] == [["a"], ["large"], ["idle"]]


def test_large_records_that_are_skipped_count_as_well(stand: Stand):
    """An own id is enqueued and cancelled many times: each of its entries leads to the record of the latest job."""
    for _ in range(20):
        stand.put("x", own=True, payload=bytes(MiB // 4))
        stand.run(stand.bindings.cancel(["x"]))
    stand.put("x", own=True, payload=bytes(MiB // 4))
    worker, left = FakeWorker(stand, "w"), 21
    served: list[str] = []
    while left:
        turn = worker.turn(9)
        served += ids(turn.claims)
        before, left = left, stand.entries()
        assert before - left <= 4
        assert turn.more == (left > 0)
    assert served == ["x"]


@pytest.mark.parametrize(("size", "most"), [(MiB, 1), (300 * KiB, 3), (1 * KiB, 100)])
def test_every_slice_stops_at_one_mebibyte_and_at_a_hundred(stand: Stand, size: int, most: int):
    n = 2 * most + 1
    for i in range(n):
        stand.put(f"j{i}", delay=1, payload=bytes(size - 100))
    stand.advance(1)
    worker = FakeWorker(stand, "w", lease=1)
    moved = slices(stand, lambda: FakeWorker(stand, f"promote{stand.counts()}").turn(0))
    assert (max(moved) <= most, sum(moved)) == (True, n)
    while stand.run(stand.bindings.counts()).ready:
        worker.turn(n)
    stand.advance(1)
    moved = slices(stand, lambda: FakeWorker(stand, f"take back{stand.counts()}").turn(0))
    assert (max(moved) <= most, sum(moved)) == (True, n)
    moved = slices(stand, lambda: stand.run(stand.bindings.purge(None, 0, 100, "suspects")))
    assert (-min(moved) <= most, -sum(moved)) == (True, n)


def slices(stand: Stand, act: Callable[[], object]) -> list[int]:
    """Call until the number of ready jobs stays the same. Returns the change of each call."""
    counts = [stand.run(stand.bindings.counts()).ready]
    while len(counts) < 2 or counts[-1] != counts[-2]:
        act()
        counts.append(stand.run(stand.bindings.counts()).ready)
    return [after - before for before, after in pairwise(counts)]


def test_a_repeated_turn_gives_large_jobs_again(stand: Stand):
    stand.put("large", payload=bytes(MiB))
    worker = FakeWorker(stand, "w")
    worker.claim(1)
    assert [len(claim.record.payload) for claim in worker.repeat_turn().claims] == [MiB]
