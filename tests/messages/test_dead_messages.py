"""Claimed mailboxes: dead letters, messages that are handed back for later, and messages with a time to live."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from penstock import BadCall, LeaseLost, Mailbox, Penstock
from tests.conftest import Do, Time
from tests.speed import scaled


@pytest.fixture
def box(app: Penstock) -> Mailbox:
    return app.mailbox("scans")


async def test_a_message_that_kills_its_workers_becomes_a_dead_letter(box: Mailbox, do: Do, clock: Time):
    poison = await do(box.post, "poison", sender="ada")
    await do(box.post, "good")
    for n in range(3):
        (item,) = await do(box.claim, lease=10, max_deliveries=3)
        assert (item.body, item.deliveries) == ("poison", n + 1)
        clock.advance(11)
    (item,) = await do(box.claim, lease=10, max_deliveries=3)
    assert item.body == "good"
    await do(item.ack)
    assert (await do(box.info)).unread == 0
    (letter,) = await do(box.dead.list)
    assert (letter.id, letter.sender, letter.body, letter.deliveries) == (poison, "ada", "poison", 3)
    assert "3 times" in letter.reason
    assert letter.died == pytest.approx(clock.now, abs=1)
    assert await do(box.dead.count) == 1


async def test_by_default_poison_is_given_up_after_twenty_deliveries(box: Mailbox, do: Do):
    await do(box.post, "poison")
    seen = 0
    while items := await do(box.claim):
        seen += 1
        await do(items[0].release)
    assert (seen, await do(box.dead.count)) == (20, 1)
    await do(box.post, "for ever")
    for _ in range(30):
        (item,) = await do(box.claim, max_deliveries=None)
        await do(item.release)
    assert await do(box.dead.count) == 1


async def test_a_worker_gives_a_message_up_with_a_reason(box: Mailbox, do: Do):
    await do(box.post_many, "ab")
    first, second = await do(box.claim, 2)
    await do(first.fail, "no such page " + "é\ud800" * 10_000)
    with pytest.raises(LeaseLost):
        await do(first.fail)
    with pytest.raises(BadCall):
        await do(second.fail, 3)
    await do(second.ack)
    (letter,) = await do(box.dead.list)
    assert letter.reason.startswith("no such page é?é")
    assert (letter.body, letter.deliveries, len(letter.reason.encode()) <= 10_000) == ("a", 1, True)
    info = await do(box.info)
    assert (info.unread, info.bytes) == (0, 0)


async def test_dead_letters_are_posted_again_or_removed(box: Mailbox, do: Do):
    await do(box.post_many, range(5), sender="ada")
    for item in await do(box.claim, 5):
        await do(item.fail, f"no {item.body}")
    letters = await do(box.dead.list)
    assert sorted(letter.body for letter in letters) == [0, 1, 2, 3, 4]
    assert [letter.id for letter in await do(box.dead.list, 2, 1)] == [letter.id for letter in letters[1:3]]
    ids = [letter.id for letter in sorted(letters, key=lambda letter: letter.number)]
    assert await do(box.dead.requeue, *ids[:2], "99-99") == 2
    assert await do(box.dead.requeue, *ids[:2]) == 0
    assert await do(box.dead.remove, *ids[1:3]) == 1
    assert await do(box.dead.count) == 2
    again = await do(box.claim, 9)
    assert [(item.body, item.sender, item.deliveries, item.number) for item in again] == [
        (0, "ada", 1, 6),
        (1, "ada", 1, 7),
    ]
    for wrong in (1, "x", None):
        with pytest.raises(BadCall):
            await do(box.dead.requeue, wrong)


async def test_large_dead_letters_take_several_round_trips(box: Mailbox, do: Do):
    await do(box.post_many, ["x" * 400_000] * 7)
    while items := await do(box.claim, 9):
        for item in items:
            await do(item.fail)
    letters = await do(box.dead.list)
    assert len(letters) == 7
    assert await do(box.dead.requeue, *(letter.id for letter in letters)) == 7
    assert (await do(box.info)).unread == 7


async def test_a_requeued_message_wakes_a_worker(box: Mailbox, do: Do):
    await do(box.post, "a")
    (item,) = await do(box.claim)
    await do(item.fail)
    (letter,) = await do(box.dead.list)
    waiting = asyncio.create_task(do(box.claim, wait=60))
    await asyncio.sleep(0.2)
    await do(box.dead.requeue, letter.id)
    async with asyncio.timeout(scaled(5)):
        assert [item.body for item in await waiting] == ["a"]


async def test_dead_letters_end_with_their_mailbox(box: Mailbox, do: Do, raw: Any):
    await do(box.post, "a")
    (item,) = await do(box.claim)
    await do(item.fail)
    assert await do(box.delete)
    assert await do(box.dead.list) == []
    assert [key for key in raw.scan_iter(match="*mailbox*") if raw.pttl(key) < 0] == []


async def test_a_message_is_handed_back_for_later(box: Mailbox, do: Do, clock: Time):
    await do(box.post, "a")
    (item,) = await do(box.claim, lease=10)
    await do(item.release, 30)
    for verb, args in ((item.ack, ()), (item.release, ()), (item.extend, (5,)), (item.fail, ())):
        with pytest.raises(LeaseLost):
            await do(verb, *args)
    clock.advance(29)
    assert await do(box.claim) == []
    assert (await do(box.info)).unread == 1
    clock.advance(2)
    (again,) = await do(box.claim)
    assert (again.body, again.deliveries) == ("a", 2)
    await do(again.ack)


async def test_a_waiting_worker_gets_a_delayed_message_in_time(box: Mailbox, do: Do):
    await do(box.post, "a")
    (item,) = await do(box.claim)
    waiting = asyncio.create_task(do(box.claim, wait=60))
    await asyncio.sleep(0.2)
    began = time.monotonic()
    await do(item.release, 0.5)
    async with asyncio.timeout(scaled(5)):
        await waiting
    assert time.monotonic() - began > 0.4


@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf"), True, "5", None, 8 * 86400])
async def test_wrong_times_are_refused(box: Mailbox, do: Do, wrong: Any):
    await do(box.post, "a")
    (item,) = await do(box.claim)
    calls = [(item.release, {"delay": wrong}), (item.extend, {"lease": wrong})]
    calls += [(box.post, {"value": 1, "ttl": wrong})] if wrong not in (None, 8 * 86400) else []
    calls += [(box.claim, {"max_deliveries": wrong})] if wrong not in (None, 8 * 86400) else []
    for verb, options in calls:
        with pytest.raises(ValueError, match=r"seconds|no limit"):
            await do(verb, **options)
    await do(item.ack)


# --- messages with a time to live ---


async def test_an_overdue_message_is_not_delivered(box: Mailbox, do: Do, clock: Time):
    await do(box.post, "soon over", ttl=60)
    await do(box.post, "stays")
    await do(box.post_many, ["over", "too"], ttl=60)
    await do(box.post, "stays, too", ttl=600)
    clock.advance(59)
    assert len(await do(box.pull)) == 5
    clock.advance(2)
    mail = await do(box.pull)
    assert [(message.body, message.missed) for message in mail] == [("stays", 0), ("stays, too", 0)]
    assert (mail.gap, mail.unread, await do(box.unread)) == (None, 4, 4)
    await do(box.ack, mail[0])
    assert [message.body for message in await do(box.pull)] == ["stays, too"]
    assert await do(box.unread) == 1
    clock.advance(600)
    assert await do(box.pull) == []
    info = await do(box.info)
    assert (info.unread, info.bytes) == (0, 0)


async def test_thousands_of_overdue_messages_are_passed_over(box: Mailbox, do: Do, clock: Time):
    for claims in (False, True):
        await do(box.post_many, range(3000), ttl=60)
        clock.advance(61)
        await do(box.post, "stays")
        found = await do(box.claim) if claims else await do(box.pull)
        assert [one.body for one in found] == ["stays"]
        await do(found[0].ack) if claims else await do(box.ack, found[0])
        assert (await do(box.info)).unread == 0
    await do(box.post_many, range(700), ttl=60)
    clock.advance(61)
    assert await do(box.claim) == []
    assert (await do(box.info)).unread == 0


async def test_a_follower_continues_behind_overdue_messages(box: Mailbox, do: Do, clock: Time, face: str):
    await do(box.post, "first")
    await do(box.post_many, range(500), ttl=60)
    await do(box.post, "last")
    clock.advance(61)
    follow, seen = box.follow(limit=10), []
    for _ in range(2):
        seen.append((await do(lambda: next(follow)) if face == "blocking" else await anext(follow)).body)
    assert seen == ["first", "last"]


async def test_a_claimed_message_that_becomes_overdue_ends(box: Mailbox, do: Do, clock: Time):
    await do(box.post, "a", ttl=15)
    await do(box.claim, lease=10)
    clock.advance(20)
    assert await do(box.claim) == []
    assert (await do(box.info)).unread == 0
    assert await do(box.dead.count) == 0


async def test_a_pull_that_passes_over_an_overdue_message_ends_its_claim(box: Mailbox, do: Do, clock: Time):
    await do(box.post, "a", ttl=15)
    await do(box.post, "b")
    (item,) = await do(box.claim, lease=60)
    clock.advance(20)
    assert [message.body for message in await do(box.pull)] == ["b"]
    info = await do(box.info)
    assert (info.unread, info.claimed) == (1, 0)
    with pytest.raises(LeaseLost):
        await do(item.ack)
    assert [item.body for item in await do(box.claim, 5)] == ["b"]
