"""A turn stops at 1 MiB of bodies, but gives at least one job."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from tests.jobs.stand import Hand, Stand, ids

KiB = 1024
MiB = 1024 * KiB


@pytest.mark.parametrize(("size", "most"), [(MiB, 1), (600 * KiB, 1), (100 * KiB, 10), (20 * KiB, 51), (100, 64)])
def test_a_turn_stops_at_one_mebibyte_and_says_that_there_is_more(stand: Stand, size: int, most: int):
    for tenant in "abcd":
        for n in range(16):
            stand.put(f"{tenant}{n:02}", tenant=tenant, payload=bytes(size))
    hand = Hand(stand, "w")
    served: list[str] = []
    while len(served) < 64:
        turn = hand.turn(64)
        served += ids(turn.claims)
        assert turn.more or len(turn.claims) == 64 or len(served) == 64
        assert most * 3 // 4 <= len(turn.claims) <= most or len(served) == 64
        assert sum(len(claim.record.body) for claim in turn.claims) <= max(MiB, size + 100)
    assert served == [f"{tenant}{n:02}" for n in range(16) for tenant in "abcd"]


def test_a_large_job_behind_small_ones_waits_for_the_next_turn(stand: Stand):
    stand.put("a", "b")
    stand.put("large", payload=bytes(MiB))
    stand.put("c")
    hand = Hand(stand, "w")
    first = hand.turn(9)
    assert (ids(first.claims), first.more) == (["a", "b"], True)
    assert ids(hand.turn(9).claims) == ["large"]
    assert ids(hand.turn(9).claims) == ["c"]


def test_a_large_urgent_job_lets_no_less_urgent_one_go_first(stand: Stand):
    stand.put("a", priority=0)
    stand.put("large", priority=0, payload=bytes(MiB))
    stand.put("idle", priority=9)
    hand = Hand(stand, "w")
    assert [ids(hand.claim(9)) for _ in range(3)] == [["a"], ["large"], ["idle"]]


def test_large_records_that_are_passed_over_count_as_well(stand: Stand):
    """An id of one's own, enqueued and cancelled again and again: each entry leads to the one record there is."""
    for _ in range(20):
        stand.put("x", own=True, payload=bytes(MiB // 4))
        stand.run(stand.bindings.cancel(["x"]))
    stand.put("x", own=True, payload=bytes(MiB // 4))
    hand, left = Hand(stand, "w"), 21
    served: list[str] = []
    while left:
        turn = hand.turn(9)
        served += ids(turn.claims)
        before, left = left, stand.client.llen(stand.base + "lane:5:")
        assert before - left <= 4
        assert turn.more == (left > 0)
    assert served == ["x"]


@pytest.mark.parametrize(("size", "most"), [(MiB, 1), (300 * KiB, 3), (1 * KiB, 100)])
def test_every_slice_stops_at_one_mebibyte_and_at_a_hundred(stand: Stand, size: int, most: int):
    n = 2 * most + 1
    for i in range(n):
        stand.put(f"j{i}", delay=1, payload=bytes(size - 100))
    stand.advance(1)
    hand = Hand(stand, "w", lease=1)
    moved = slices(stand, lambda: Hand(stand, f"promote{stand.counts()}").turn(0))
    assert (max(moved) <= most, sum(moved)) == (True, n)
    while stand.run(stand.bindings.counts()).ready:
        hand.turn(n)
    stand.advance(1)
    moved = slices(stand, lambda: Hand(stand, f"take back{stand.counts()}").turn(0))
    assert (max(moved) <= most, sum(moved)) == (True, n)
    moved = slices(stand, lambda: stand.run(stand.bindings.purge(None, 0, 100, "suspects")))
    assert (-min(moved) <= most, -sum(moved)) == (True, n)


def slices(stand: Stand, act: Callable[[], object]) -> list[int]:
    """By how many jobs each call changes the number of the ready ones, until it changes nothing."""
    counts = [stand.run(stand.bindings.counts()).ready]
    while len(counts) < 2 or counts[-1] != counts[-2]:
        act()
        counts.append(stand.run(stand.bindings.counts()).ready)
    return [after - before for before, after in pairwise(counts)]


def test_a_repeated_turn_gives_large_jobs_again(stand: Stand):
    stand.put("large", payload=bytes(MiB))
    hand = Hand(stand, "w")
    hand.claim(1)
    assert [len(claim.record.payload) for claim in hand.again().claims] == [MiB]
