"""A turn stops at 1 MiB of bodies, but gives at least one job."""

from __future__ import annotations

import pytest

from tests.store.stand import Hand, Stand, ids

KiB = 1024
MiB = 1024 * KiB


@pytest.mark.parametrize(("size", "most"), [(MiB, 1), (600 * KiB, 1), (100 * KiB, 10), (20 * KiB, 51), (100, 64)])
def test_a_turn_stops_at_one_mebibyte_and_says_that_there_is_more(stand: Stand, size: int, most: int):
    for tenant in "abcd":
        for n in range(16):
            stand.put(f"{tenant}{n:02}", tenant=tenant, payload=bytes(size))
    hand, batches = Hand(stand, "w"), []
    while sum(map(len, batches)) < 64:
        turn = hand.turn(64)
        batches.append(ids(turn.claims))
        assert turn.more or len(turn.claims) == 64 or sum(map(len, batches)) == 64
        assert sum(len(claim.record.body) for claim in turn.claims) <= max(MiB, size + 100)
    assert all(len(batch) <= most for batch in batches)
    assert all(len(batch) >= most * 3 // 4 for batch in batches[:-1])
    assert [key for batch in batches for key in batch] == [f"{tenant}{n:02}" for n in range(16) for tenant in "abcd"]


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
        stand.run(stand.transitions.cancel(["x"]))
    stand.put("x", own=True, payload=bytes(MiB // 4))
    hand, left, served = Hand(stand, "w"), 21, []
    while left:
        turn = hand.turn(9)
        served += ids(turn.claims)
        before, left = left, stand.client.llen(stand.base + "lane:5:")
        assert before - left <= 4
        assert turn.more == (left > 0)
    assert served == ["x"]


def test_a_repeated_turn_gives_large_jobs_again(stand: Stand):
    stand.put("large", payload=bytes(MiB))
    hand = Hand(stand, "w")
    hand.claim(1)
    assert [len(claim.record.payload) for claim in hand.again().claims] == [MiB]
