"""The turn, and what it is made of: settle, promote, take back, claim."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from valkey.exceptions import ResponseError

from penstock.jobs import constants
from penstock.jobs.bindings import scripts
from penstock.jobs.claims import Ending, Settlement, TurnReply
from tests.jobs.stand import (
    DEAD,
    DELAYED,
    READY,
    RUNNING,
    START,
    Hand,
    Stand,
    difference,
    every_step,
    ids,
    record,
    settlement,
)

OTHERS: list[Ending] = ["retry", "later", "release", "bury", "drop"]


def fill(stand: Stand, **jobs: str) -> None:
    """`fill(stand, ada="a1 a2")`: jobs of tenants, in order."""
    for tenant, names in jobs.items():
        stand.put(*names.split(), tenant=tenant)


def cancel(stand: Stand, *ids: str) -> None:
    stand.run(stand.bindings.cancel(ids))


def take_all(hand: Hand, want: int) -> list[TurnReply]:
    """Turns until one says that there is no more."""
    turns = [hand.turn(want)]
    while turns[-1].more and len(turns) < 20:
        turns.append(hand.turn(want))
    return turns


# --- claims ---


def test_a_claim_takes_a_job_from_its_lane_into_the_workers_hand(stand: Stand):
    fill(stand, ada="j k")
    before = stand.dump()
    turn = Hand(stand, "w").turn(1)
    (claim,) = turn.claims
    assert (claim.token, claim.record.state, claim.record.deliveries) == (b"000000000003j", constants.RUNNING, 1)
    changed = difference(before, stand.dump())
    assert changed.pop("turn:w")
    assert changed == {
        "meta": {"seq": "3", "ready": "1", "running": "1", "v5": str(2**36 - 2**20)},
        "jobs": before["jobs"] | {b"j": claim.record.body},
        "lane:5:ada": [b"0000000002ak"],
        "turns:5": [(b"ada", 2 * 2**36 - 2**20)],
        "tenants": {b"ada": bytes([0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0])},
        "age": {b"%d" % (START // 1000): b"1"},
        "leases": [(b"w", START + 10_000.0)],
        "held:w": {b"j": b"000000000003" + claim.record.body[:43] + b" " * 13},
    }


def test_an_empty_queue_is_left_empty(stand: Stand):
    turn = Hand(stand, "w").turn(5)
    assert (turn.alive, turn.claims, turn.more, turn.due_in) == (True, [], False, None)
    assert stand.dump().keys() == {"leases", "turn:w"}


def test_what_is_done_leaves_nothing_but_its_result(stand: Stand):
    fill(stand, a="a1 a2", b="b1")
    hand = Hand(stand, "w")
    claims = hand.claim(9)
    hand.settle(*claims[1:], text="[1]")
    hand.settle(claims[0])
    assert stand.dump().keys() == {"meta", "done:a1", "done:a2", "done:b1", "leases", "turn:w"}
    assert (stand.done("a1"), stand.done("b1")) == (b"cnull", b"c[1]")
    assert 590_000 < stand.client.pttl(stand.base + "done:a1") <= 600_000


def test_a_result_nobody_wants_is_not_kept(stand: Stand):
    stand.put("j", ttl=0)
    hand = Hand(stand, "w")
    assert hand.settle(*hand.claim(), text="1")
    assert stand.done("j") is None


def test_tenants_take_turns_whoever_came_first_in_the_order_of_coming(stand: Stand):
    fill(stand, z="z1 z2 z3", a="a1 a2", m="m1")
    assert ids(Hand(stand, "w").claim(9)) == ["a1", "m1", "z1", "a2", "z2", "z3"]


@pytest.mark.parametrize("batch", [1, 2, 4, 100])
def test_batches_of_any_size_serve_in_the_same_order(stand: Stand, batch: int):
    fill(stand, z="z1 z2 z3", a="a1 a2", m="m1")
    hand = Hand(stand, "w")
    served = [key for _ in range(0, 6, batch) for key in ids(hand.claim(batch))]
    assert served == ["a1", "m1", "z1", "a2", "z2", "z3"]


def test_priorities_are_strict(stand: Stand):
    for level in (9, 0, 5):
        stand.put(f"{level}a", f"{level}b", priority=level)
    hand = Hand(stand, "w")
    assert ids(hand.claim(3)) == ["0a", "0b", "5a"]
    stand.put("0c", priority=0)
    assert ids(hand.claim(9)) == ["0c", "5b", "9a", "9b"]


def test_a_tenant_whose_jobs_were_cancelled_lets_no_less_urgent_job_go_first(stand: Stand):
    stand.put("gone", tenant="a", priority=1)
    stand.put("urgent", tenant="b", priority=1)
    stand.put("idle", priority=9)
    cancel(stand, "gone")
    assert ids(Hand(stand, "w").claim(1)) == ["urgent"]


def test_a_worker_does_not_lie_down_behind_a_tenant_whose_jobs_were_cancelled(stand: Stand):
    fill(stand, a="gone", b="b1")
    cancel(stand, "gone")
    assert ids(Hand(stand, "w").turn(1, address="p/1", sleep=50).claims) == ["b1"]


def test_a_turn_freed_by_a_cancelled_job_goes_to_who_has_waited(stand: Stand):
    fill(stand, a="gone", b="b1 b2 b3 b4", c="c1", d="d1")
    cancel(stand, "gone")
    assert ids(Hand(stand, "w").claim(3)) == ["b1", "c1", "d1"]


def test_one_who_comes_back_at_once_waits_behind_those_who_came_before(stand: Stand):
    """Whatever the order of names: the first two have the same time, as they came before any turn."""
    fill(stand, l="l1", u="u1")
    hand = Hand(stand, "w")
    assert ids(hand.claim()) == ["l1"]
    fill(stand, z="z1")
    assert ids(hand.claim()) == ["u1"]
    fill(stand, u="u2")
    assert ids(hand.claim(2)) == ["z1", "u2"]


def test_one_who_comes_goes_before_the_next_job_of_a_backlog(stand: Stand):
    fill(stand, a=" ".join(f"a{i}" for i in range(9)))
    hand = Hand(stand, "w")
    assert ids(hand.claim(3)) == ["a0", "a1", "a2"]
    fill(stand, z="z1")
    assert ids(hand.claim(3)) == ["z1", "a3", "a4"]


def test_one_who_waits_keeps_its_turn_when_another_of_its_jobs_comes(stand: Stand):
    """Also when what waits was handed back, and the lane is empty."""
    fill(stand, t="t1", u="u1 u2 u3")
    hand = Hand(stand, "w")
    (claim,) = hand.claim()
    hand.settle(claim, ending="release")
    before = dict(stand.dump()["turns:5"])
    assert ids(hand.claim()) == ["u1"]
    fill(stand, t="t2")
    assert dict(stand.dump()["turns:5"])[b"t"] == before[b"t"]
    assert ids(hand.claim(2)) == ["t1", "u2"]


def test_a_tenant_of_weight_three_has_three_turns_to_one(stand: Stand):
    fill(stand, a=" ".join(f"a{i}" for i in range(9)), b=" ".join(f"b{i}" for i in range(9)))
    stand.run(stand.bindings.set_weight("b", 3))
    hand = Hand(stand, "w")
    hand.claim(2)
    served = [key[0] for key in ids(hand.claim(8))]
    assert (served.count("a"), served.count("b")) == (2, 6)


# --- what goes first ---


def test_jobs_handed_back_go_before_the_others_of_their_tenant(stand: Stand):
    stand.put("a", "b", "c", "d")
    hand = Hand(stand, "w")
    first, second = hand.claim(2)
    hand.settle(first, second, ending="release")
    assert stand.job("a").deliveries == 0
    assert ids(hand.claim(9)) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("want", [1, 2, 3, 64])
def test_all_jobs_handed_back_are_served_whatever_the_size_of_turns(stand: Stand, want: int):
    """The rest of a front list keeps its tenant's turn, also when the lane is empty."""
    many, few = [f"a{i}" for i in range(67)], [f"b{i}" for i in range(31)]
    fill(stand, a=" ".join(many), b=" ".join(few))
    Hand(stand, "w").claim(98)
    stand.advance(10)
    hand = Hand(stand, "v")
    served = [key for _ in range(98) for key in ids(hand.claim(want))]
    assert [[key for key in served if key[0] == tenant] for tenant in "ab"] == [many, few]


def test_a_retry_without_delay_goes_to_the_end(stand: Stand):
    stand.put("a", "b")
    hand = Hand(stand, "w")
    hand.settle(*hand.claim(), ending="retry")
    assert ids(hand.claim(2)) == ["b", "a"]
    assert (stand.job("a").attempts, stand.job("a").deliveries) == (1, 2)


def test_due_jobs_go_first_only_where_the_queue_says_so(stand: Stand):
    stand.put("due", delay=1)
    stand.put("a")
    stand.advance(1)
    hand = Hand(stand, "w")
    assert ids(hand.claim(9)) == ["a", "due"]
    stand.run(stand.bindings.set_switch("due_first", True))
    stand.put("b")
    stand.put("due too", delay=1)
    stand.advance(1)
    assert ids(hand.claim(9)) == ["due too", "b"]


def test_jobs_come_due_in_the_order_of_their_times_a_hundred_a_turn(stand: Stand):
    jobs = [(f"j{(i * 77) % 250}", record(delay=1 + (i * 77) % 250 / 1000)) for i in range(250)]
    stand.put_drafts(jobs)
    stand.advance(2)
    turns = take_all(Hand(stand, "w"), 200)
    assert [len(turn.claims) for turn in turns] == [100, 100, 50]
    assert [key for turn in turns for key in ids(turn.claims)] == [f"j{i}" for i in range(250)]


def test_equal_times_keep_the_order_of_enqueueing(stand: Stand):
    stand.put("b", "a", delay=1)
    stand.put("c", at=START + 1000)
    stand.advance(1)
    assert ids(Hand(stand, "w").claim(9)) == ["b", "a", "c"]


# --- expiry ---


def test_an_expired_job_ends_and_takes_no_turn(stand: Stand):
    stand.put("old", tenant="a", expires=1)
    stand.put("a", tenant="a")
    stand.put("b", tenant="b")
    stand.advance(1)
    assert ids(Hand(stand, "w").claim(1)) == ["a"]
    assert stand.done("old") == constants.EXPIRED
    assert (stand.counts(), stand.dump()["meta"][b"expired"]) == ("1 0 1 0", b"1")


def test_a_job_that_was_started_in_time_expires_no_more(stand: Stand):
    stand.put("j", expires=1)
    hand = Hand(stand, "w")
    hand.settle(*hand.claim(), ending="retry", delay=5)
    stand.advance(5)
    assert ids(hand.claim()) == ["j"]


def test_a_job_runs_until_the_millisecond_it_expires(stand: Stand):
    stand.put("j", expires=1)
    stand.advance(0.999)
    assert ids(Hand(stand, "w").claim(1)) == ["j"]


# --- ends of a run ---


def test_a_failed_run_is_charged_and_its_reason_kept(stand: Stand):
    stand.put("j", payload=b'"body"')
    hand = Hand(stand, "w")
    assert hand.settle(*hand.claim(), ending="retry", delay=2, text="boom")
    job = stand.job("j")
    assert (job.state, job.attempts, job.since, job.payload) == (constants.DELAYED, 1, START + 2000, b'"body"')
    assert stand.run(stand.bindings.show("j")).failure == b"boom"
    stand.advance(2)
    assert hand.settle(*hand.claim())
    assert "reasons" not in stand.dump()


def test_later_is_a_retry_that_is_not_charged(stand: Stand):
    stand.put("j")
    hand = Hand(stand, "w")
    assert hand.settle(*hand.claim(), ending="later", delay=2)
    assert (stand.job("j").attempts, stand.job("j").deliveries, stand.state("j")) == (0, 1, DELAYED)


def test_a_dead_letter_is_kept_with_its_reason_until_it_is_requeued(stand: Stand):
    stand.put("j", tenant="ada")
    hand = Hand(stand, "w")
    hand.settle(*hand.claim(), ending="bury", text="boom")
    ((key, died, letter, reason),) = stand.run(stand.bindings.list_dead(0, 10))
    assert letter is not None
    assert (key, died, letter.attempts, reason) == ("j", START / 1000, 1, b"boom")
    assert stand.counts() == "0 0 0 1"
    assert stand.run(stand.bindings.requeue(["j", "j", "unknown"])) == 1
    assert stand.dump().keys() & {"dead", "reasons"} == set()
    (claim,) = hand.claim()
    assert (claim.record.attempts, claim.record.deliveries, claim.record.tenant) == (0, 1, "ada")


def test_a_dead_letter_that_is_removed_leaves_nothing(stand: Stand):
    stand.put("j", ttl=0)
    hand = Hand(stand, "w")
    hand.settle(*hand.claim(), ending="bury", text="boom")
    assert stand.run(stand.bindings.remove_dead(["j", "j", "unknown"])) == 1
    assert stand.dump().keys() == {"meta", "leases", "turn:w"}


def test_a_dropped_job_says_why(stand: Stand):
    stand.put("j")
    hand = Hand(stand, "w")
    hand.settle(*hand.claim(), ending="drop", text="no use")
    assert (stand.done("j"), stand.state("j"), stand.dump()["meta"][b"dropped"]) == (
        constants.DROPPED + b"no use",
        "-",
        b"1",
    )


@pytest.mark.parametrize("ending", [None, *OTHERS])
def test_a_claim_is_settled_once_even_if_it_is_named_twice(stand: Stand, ending: Ending | None):
    stand.put("j")
    hand = Hand(stand, "w")
    (claim,) = hand.claim()
    turn = hand.turn(0, settlement(claim), settlement(claim, ending))
    assert turn.stale == (settlement(claim, ending),)
    assert stand.counts() == "0 0 0 0"
    assert stand.dump()["meta"][b"completed"] == b"1"


def test_stale_settlements_are_named_and_the_others_count(stand: Stand):
    stand.put("a", "b", "c")
    hand = Hand(stand, "w")
    a, b, c = hand.claim(3)
    hand.settle(a, c)
    sent = [settlement(c, "bury"), settlement(b, text="1"), settlement(a), settlement(c, text="2")]
    assert hand.turn(0, *sent).stale == (settlement(a), settlement(c, text="2"), settlement(c, "bury"))
    assert (stand.counts(), stand.done("b"), stand.done("c")) == ("0 0 0 0", b"c1", b"cnull")


# --- turns that are repeated ---


def test_a_repeated_turn_gives_the_same_batch_and_changes_nothing(stand: Stand):
    stand.put("a", "b", "c", "d")
    hand = Hand(stand, "w")
    a, b = hand.claim(2)
    first = hand.turn(2, settlement(a), settlement(b, "retry", 1), Settlement(b"0000000000ffx"))
    before = stand.dump()
    second = hand.again()
    assert stand.dump() == before
    assert [c.token for c in second.claims] == [c.token for c in first.claims]
    assert second.stale == first.stale == (Settlement(b"0000000000ffx"),)
    assert ids(hand.claim(9)) == []


def test_a_repeated_turn_gives_only_what_is_still_held(stand: Stand):
    stand.put("a", "b")
    hand = Hand(stand, "w")
    a, b = hand.claim(2)
    assert hand.settle_alone(a, "retry")
    assert [claim.token for claim in hand.again().claims] == [b.token]


def test_a_turn_out_of_its_order_is_stale(stand: Stand):
    stand.put("a", "b")
    hand = Hand(stand, "w")
    hand.claim()
    before = stand.dump()
    for number in (3, 7, 0):
        hand.number = number - 1
        assert not hand.turn(1).alive
    assert not Hand(stand, "new", number=4).turn(1).alive
    assert stand.dump() == before


def test_beats_keep_the_memory_of_a_turn_as_long_as_the_lease(stand: Stand):
    """A worker whose jobs run for long takes no turns meanwhile."""
    stand.put("j")
    hand = Hand(stand, "w", lease=1000)
    hand.claim()
    hand.lease = 2000
    assert hand.beat()
    assert stand.client.pttl(stand.base + "turn:w") > 2_000_000


# --- leases ---


@pytest.mark.parametrize("taken_back", [False, True])
def test_an_ended_incarnation_changes_nothing(stand: Stand, taken_back: bool):
    stand.put("a", "b", "c", ttl=600)
    ghost = Hand(stand, "ghost")
    claims = ghost.claim(2)
    stand.advance(10)
    if taken_back:
        assert len(Hand(stand, "w").claim(1)) == 1
    before = stand.dump()
    for ending in [None, *OTHERS]:
        for claim in claims:
            assert not ghost.settle_alone(claim, ending, text="1")
        ghost.number = 1
        assert not ghost.turn(2, *(settlement(claim, ending, text="1") for claim in claims)).alive
    assert not ghost.beat()
    assert not ghost.again().alive
    assert stand.dump() == before


def test_a_lease_lasts_to_its_last_millisecond(stand: Stand):
    stand.put("j")
    hand = Hand(stand, "w")
    (claim,) = hand.claim()
    stand.advance(9.999)
    assert Hand(stand, "v").claim(1) == []
    assert hand.beat()
    stand.advance(9.999)
    assert hand.settle(claim)


def test_a_worker_may_claim_its_own_lost_job_and_its_old_claim_is_worth_nothing(stand: Stand):
    stand.put("j")
    old, new = Hand(stand, "w.1"), Hand(stand, "w.2")
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


def test_lost_jobs_are_taken_back_a_hundred_a_turn(stand: Stand):
    stand.put_drafts([(f"j{i}", record()) for i in range(250)])
    Hand(stand, "w").claim(250)
    stand.advance(10)
    taken_back, hand = [], Hand(stand, "v")
    for _ in range(3):
        hand.turn(0)
        taken_back.append(stand.run(stand.bindings.counts()).lost)
    assert taken_back == [100, 200, 250]


def test_a_turn_that_could_not_look_at_all_ended_incarnations_says_that_there_is_more(stand: Stand):
    stand.put_drafts([(f"j{i}", record()) for i in range(20)])
    for i in range(20):
        Hand(stand, f"w{i}").claim(1)
    stand.advance(10)
    hand = Hand(stand, "v")
    assert [hand.turn(1).more for _ in range(3)] == [False] * 3
    assert stand.run(stand.bindings.counts()).lost == 20


def test_an_abandoned_incarnation_ends_at_once(stand: Stand):
    stand.put("j")
    hand = Hand(stand, "w")
    (claim,) = hand.claim()
    assert stand.run(stand.bindings.abandon("w")) == (0, True)
    assert not hand.beat()
    assert not hand.settle_alone(claim)
    assert ids(Hand(stand, "v").claim(1)) == ["j"]
    assert stand.run(stand.bindings.abandon("unknown")) == (0, True)


def test_an_idle_worker_that_ended_is_forgotten_by_the_next_turn(stand: Stand):
    Hand(stand, "w").turn(1)
    stand.advance(10)
    Hand(stand, "v").turn(1)
    assert stand.dump().keys() == {"leases", "turn:v"}
    assert stand.dump()["leases"] == [(b"v", START + 20_000.0)]


@pytest.mark.parametrize("state", [DELAYED, READY, RUNNING, DEAD])
@pytest.mark.parametrize("damaged", [None, b"", b"\x01r", bytes(39), b"\x01x" + bytes(36) + b"\xff\xff"])
def test_a_record_that_was_damaged_by_hand_holds_nobody_up(stand: Stand, state: str, damaged: bytes | None):
    """None: it was deleted. Every script that may come across it does its work, and the other job is served."""
    move, jobs = stand.bindings, stand.base + "jobs"
    acts: list[Callable[[], object]] = [
        lambda: stand.run(move.cancel(["bad"])),
        lambda: stand.run(move.purge("", 0, 10)),
        lambda: stand.run(move.purge(None, 0, 10)),
        lambda: stand.run(move.requeue(["bad"])),
        lambda: stand.run(move.remove_dead(["bad"])),
        lambda: stand.run(move.tenant_counts("")),
        lambda: [hand.settle(claim) for claim in held],
        lambda: [hand.settle(claim, ending="retry", delay=1) for claim in held],
        lambda: [hand.settle(claim, ending="bury", text="why") for claim in held],
        lambda: [hand.settle_alone(claim, "release") for claim in held],
        lambda: hand.last and hand.again(),
        lambda: stand.advance(10),
    ]
    for act in acts:
        stand.client.flushall()
        stand.put("bad", delay=state == DELAYED)
        hand = Hand(stand, "w")
        held = hand.claim() if state in {RUNNING, DEAD} else []
        if state == "d":
            hand.settle(held.pop(), ending="bury")
        assert stand.state("bad") == state
        if damaged is None:
            stand.client.hdel(jobs, "bad")
        else:
            stand.client.hset(jobs, "bad", damaged)
        act()
        stand.put("good", tenant="good")
        stand.advance(1)
        assert "good" in [key for n in range(2) for key in ids(Hand(stand, f"v{n}").claim(9))]


# --- claims without a worker ---


def once(stand: Stand, me: str, want: int, **options: Any) -> Any:
    return Hand(stand, me).turn(want, once=True, **options)


def test_a_claim_without_a_worker_that_found_nothing_leaves_nothing(stand: Stand):
    assert once(stand, "me", 1).alive
    assert stand.dump() == {}


def test_a_claim_without_a_worker_ends_with_its_last_job(stand: Stand):
    stand.put("a", "b", ttl=0)
    a, b = once(stand, "me", 2).claims
    hand = Hand(stand, "me")
    assert hand.settle_alone(a)
    assert "leases" in stand.dump()
    assert hand.settle_alone(b, "retry")
    assert not {"leases", "held:me", "turn:me"} & stand.dump().keys()
    assert stand.counts() == "1 0 0 0"


def test_a_settlement_may_be_said_again_for_a_minute(stand: Stand):
    stand.put("a")
    (claim,) = once(stand, "me", 1).claims
    hand = Hand(stand, "me")
    assert hand.settle_alone(claim, "retry")
    (again,) = Hand(stand, "w").claim()
    before = stand.dump()
    assert hand.settle_alone(claim, "bury")
    assert not hand.settle_alone(again)
    assert stand.dump() == before
    assert 50_000 < stand.client.pttl(stand.base + "settled:me") <= 60_000


# --- pause ---


def test_a_paused_queue_gives_nothing_out_and_lets_work_finish(stand: Stand):
    stand.put("a", "b")
    stand.put("due", delay=1)
    hand = Hand(stand, "w")
    (claim,) = hand.claim()
    stand.run(stand.bindings.set_switch("paused", True))
    stand.advance(1)
    turn = hand.turn(5, settlement(claim))
    assert (turn.claims, turn.stale, turn.more) == ([], (), False)
    assert stand.counts() == "2 0 0 0"
    stand.run(stand.bindings.set_switch("paused", False))
    assert ids(hand.claim(5)) == ["b", "due"]


# --- a newer format ---


@pytest.mark.parametrize("name", scripts().scripts)
def test_a_newer_format_is_refused_with_words_and_nothing_is_changed(stand: Stand, name: str):
    stand.put("a")
    stand.client.hset(stand.base + "meta", "format", 2)
    before = stand.dump()
    with pytest.raises(ResponseError, match="PENSTOCKFORMAT 2"):
        stand.run(every_step(stand.bindings)[name])
    assert stand.dump() == before
