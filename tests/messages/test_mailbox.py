"""A mailbox: every message is read, again and again until it is acknowledged, and none is missed."""

import asyncio
import time
from typing import Any

import pytest

from penstock import BadCall, Keep, LeaseLost, Mailbox, Penstock
from penstock.errors import NoSpace, PayloadTooLarge
from penstock.messages.message import number_of
from tests.conftest import Do, MakeApp, Time, commands, until
from tests.messages.positions import ack, numbers_of
from tests.speed import scaled


@pytest.fixture
def box(app: Penstock) -> Mailbox:
    return app.mailbox("user:17")


def bodies(mail: Any) -> list[Any]:
    return [message.body for message in mail]


async def test_a_message_is_pulled_again_until_it_is_acknowledged(box: Mailbox, do: Do):
    sent = [await do(box.post, {"text": "hi"}, sender="ada"), *await do(box.post_many, ["b", "c"])]
    assert numbers_of(sent) == [1, 2, 3]
    first, again = await do(box.pull), await do(box.pull)
    assert bodies(first) == bodies(again) == [{"text": "hi"}, "b", "c"]
    assert [m.id for m in first] == sent
    assert [(m.sender, m.place) for m in first] == [("ada", "user:17"), ("", "user:17"), ("", "user:17")]
    assert abs(first[0].at - time.time()) < 60
    assert (first.unread, first.gap) == (3, None)
    await do(box.ack, upto=first[1])
    assert bodies(await do(box.pull)) == ["c"]
    assert await do(box.unread) == 1


async def test_a_mailbox_without_a_post_is_empty_and_reading_does_not_make_it(box: Mailbox, do: Do, raw: Any):
    assert await do(box.pull) == []
    assert await do(box.unread) == 0
    assert await do(box.claim) == []
    await do(box.ack, "3-1")
    assert (await do(box.info)).pulled is None
    assert await do(box.delete) is False
    assert await do(box.pull, wait=0.05) == []
    assert [key for key in raw.scan_iter(match="*mailbox*") if b"replay" not in key] == []


async def test_messages_with_one_id_are_posted_once(box: Mailbox, do: Do):
    first = await do(box.post, "a", id="x")
    assert await do(box.post, "a", id="x") == first
    second, again, twice = await do(box.post_many, ["b", "a", "b"], ids=["y", "x", "y"])
    assert (again, twice) == (first, second)
    await do(box.ack, second)
    assert await do(box.post, "a", id="x") == first
    assert await do(box.pull) == []
    assert bodies(await do(box.pull)) == []


async def test_a_waiting_pull_sends_no_commands(box: Mailbox, do: Do, nodes: list[Any], raw: Any):
    asked = asyncio.create_task(do(box.pull, wait=20))
    await until(lambda: [*raw.scan_iter(match="*:waiting")])
    await asyncio.sleep(0.3)
    before = sum(map(commands, nodes))
    await asyncio.sleep(0.5)
    assert sum(map(commands, nodes)) - before <= 2
    sent = time.monotonic()
    await do(box.post, "now")
    assert bodies(await asked) == ["now"]
    assert time.monotonic() - sent < scaled(5)


async def test_a_cancelled_wait_leaves_no_key(box: Mailbox, raw: Any):
    asked = asyncio.create_task(box.pull.aio(wait=20))
    await until(lambda: [*raw.scan_iter(match="*:waiting")])
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert [*raw.scan_iter(match="*:waiting")] == []


async def test_info_shows_the_unread_messages_and_the_last_pull_of_the_owner(box: Mailbox, do: Do):
    await do(box.post_many, range(5))
    before = await do(box.info)
    assert (before.last, before.unread, before.pulled) == (5, 5, None)
    assert before.bytes == 5 * 33
    mail = await do(box.pull, 2)
    await do(box.ack, mail[-1])
    after = await do(box.info)
    assert (after.last, after.unread, after.bytes) == (5, 3, 3 * 33)
    assert abs(after.pulled - time.time()) < 60


async def test_acknowledged_messages_are_freed_and_numbers_continue(box: Mailbox, do: Do, raw: Any):
    await do(box.post_many, ["x" * 1000] * 50)
    mail = await do(box.pull)
    assert len(mail) == 50
    await do(box.ack, mail[-1])
    assert [*raw.scan_iter(match="*:log")] == []
    assert number_of(await do(box.post, "next")) == 51


@pytest.mark.parametrize(
    "upto", [1, True, -1, None, 1.5, "", "7", "0-1", "-1-1", "1-1-1", "99999999999999999-1", "१-1"]
)
async def test_an_ack_of_what_is_no_position_is_refused(box: Mailbox, do: Do, upto: Any):
    await do(box.post_many, "abc")
    with pytest.raises(BadCall, match="the message, or its id" if isinstance(upto, int) else "neither a message"):
        await do(box.ack, upto)
    if upto is not None:
        with pytest.raises(BadCall):
            await do(box.pull, after=upto)
        with pytest.raises(BadCall):
            box.follow(after=upto)
    assert await do(box.unread) == 3


async def test_a_message_of_another_mailbox_is_no_position_here(app: Penstock, box: Mailbox, do: Do):
    other = app.mailbox("user:18")
    for one in (box, other):
        await do(one.post, "x")
    with pytest.raises(BadCall, match="'user:18'"):
        await do(box.ack, (await do(other.pull))[0])
    assert await do(box.unread) == 1


async def test_an_ack_of_an_earlier_message_changes_nothing(box: Mailbox, do: Do):
    one, two, _ = await do(box.post_many, "abc")
    await do(box.ack, two)
    await do(box.ack, one)
    await do(box.ack, two)
    assert bodies(await do(box.pull)) == ["c"]


async def test_bad_values_are_refused_before_anything_is_sent(make_app: MakeApp, do: Do):
    box = make_app(max_payload=100).mailbox("b")
    with pytest.raises(PayloadTooLarge):
        await do(box.post_many, ["good", "x" * 101])
    with pytest.raises(BadCall):
        await do(box.post, object())
    with pytest.raises(ValueError, match="1 to 1,000"):
        await do(box.pull, 0)
    with pytest.raises(ValueError, match="lease"):
        await do(box.claim, lease=0)
    assert await do(box.pull) == []


async def test_one_pull_is_bounded_in_bytes_but_returns_at_least_one_message(box: Mailbox, do: Do):
    await do(box.post_many, ["x" * 600_000] * 3)
    assert len(await do(box.pull)) == 1
    await ack(do, box, 1)
    sent = await do(box.post_many, ["small"] * 200)
    await do(box.ack, (await do(box.pull))[0])
    await do(box.ack, (await do(box.pull))[0])
    assert [message.id for message in await do(box.pull, 1000)] == sent
    assert len(await do(box.pull, 1000)) == 200


# --- limits ---


async def test_above_the_limit_the_oldest_messages_are_dropped_and_the_gap_is_reported(box: Mailbox, do: Do):
    await do(box.keep, Keep(messages=3))
    await do(box.post_many, range(10))
    mail = await do(box.pull)
    assert (bodies(mail), mail.unread) == ([7, 8, 9], 3)
    assert (mail.gap.first, mail.gap.missed) == (8, 7)
    assert [message.missed for message in mail] == [7, 0, 0]
    assert (await do(box.pull)).gap == mail.gap
    await do(box.ack, mail[0])
    assert (await do(box.pull)).gap is None


async def test_a_limit_of_bytes_counts_what_is_kept(box: Mailbox, do: Do):
    await do(box.keep, Keep(bytes=5 * 133))
    for n in range(12):
        await do(box.post, f"{n:099d}"[1:])
    assert [int(body) for body in bodies(await do(box.pull))] == [7, 8, 9, 10, 11]
    assert (await do(box.info)).bytes <= 5 * 133


async def test_old_messages_are_dropped_even_when_none_arrive(box: Mailbox, do: Do, clock: Time):
    await do(box.keep, Keep(age=60))
    await do(box.post, "old")
    clock.advance(30)
    await do(box.post, "new")
    clock.advance(31)
    mail = await do(box.pull)
    assert (bodies(mail), mail.gap.missed) == (["new"], 1)
    clock.advance(31)
    mail = await do(box.pull)
    assert (bodies(mail), mail.gap.first) == ([], 3)


async def test_a_full_mailbox_refuses_whole_batches_until_there_is_space(box: Mailbox, do: Do):
    await do(box.keep, Keep(messages=3, full="refuse"))
    await do(box.post_many, "ab")
    with pytest.raises(NoSpace, match="nothing was sent"):
        await do(box.post_many, "cd")
    with pytest.raises(NoSpace, match="larger than all"):
        await do(box.post_many, "cdef", wait=5)
    await do(box.post, "c")
    waiting = asyncio.create_task(do(box.post_many, "de", wait=20))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    await ack(do, box, 1)
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await ack(do, box, 2)
    async with asyncio.timeout(scaled(15)):
        assert numbers_of(await waiting) == [4, 5]
    assert bodies(await do(box.pull)) == ["c", "d", "e"]
    with pytest.raises(NoSpace):
        await do(box.post, "f", wait=0.05)


async def test_a_message_with_a_known_id_needs_no_space(box: Mailbox, do: Do):
    await do(box.keep, Keep(messages=1, full="refuse"))
    first = await do(box.post, "a", id="x")
    assert await do(box.post, "a", id="x") == first


@pytest.mark.parametrize("wrong", [{"messages": 0}, {"age": -1}, {"bytes": 0}, {"full": "explode"}])
def test_invalid_limits_are_refused(wrong: dict[str, Any]):
    with pytest.raises(ValueError, match="Keep"):
        Keep(**wrong)


# --- several workers ---


async def test_each_message_goes_to_one_worker_and_the_cursor_stays_below_claimed_ones(box: Mailbox, do: Do):
    await do(box.post_many, range(6))
    ada, bo = await do(box.claim, 3), await do(box.claim, 3)
    assert [[item.body for item in items] for items in (ada, bo)] == [[0, 1, 2], [3, 4, 5]]
    assert await do(box.claim) == []
    for item in bo:
        await do(item.ack)
    assert (await do(box.info)).unread == 3
    await do(ada[1].ack)
    await do(ada[2].ack)
    assert (await do(box.info)).bytes > 0
    await do(ada[0].ack)
    done = await do(box.info)
    assert (done.unread, done.bytes, done.last) == (0, 0, 6)


async def test_the_error_names_a_reader_that_pulls_beside_a_worker(box: Mailbox, do: Do):
    await do(box.post, "x")
    (item,) = await do(box.claim)
    (message,) = await do(box.pull)
    await do(box.ack, message)
    with pytest.raises(LeaseLost, match="or a reader that pulls has acknowledged it"):
        await do(item.ack)


async def test_a_message_that_its_worker_did_not_acknowledge_goes_to_another(box: Mailbox, do: Do, clock: Time):
    await do(box.post, "x")
    (late,) = await do(box.claim, lease=10)
    clock.advance(9)
    await do(late.extend, 10)
    clock.advance(9)
    assert await do(box.claim) == []
    clock.advance(2)
    (item,) = await do(box.claim, lease=10)
    assert (item.number, item.deliveries) == (1, 2)
    for verb, args in ((late.ack, ()), (late.extend, (5,)), (late.release, ())):
        with pytest.raises(LeaseLost, match="message 1"):
            await do(verb, *args)
    await do(item.release)
    (item,) = await do(box.claim)
    await do(item.ack)
    with pytest.raises(LeaseLost):
        await do(item.ack)
    assert await do(box.unread) == 0


async def test_a_waiting_worker_takes_over_when_a_lease_runs_out(box: Mailbox, do: Do):
    await do(box.post, "x")
    await do(box.claim, lease=0.3)
    began = time.monotonic()
    (item,) = await do(box.claim, wait=20)
    assert 0.1 < time.monotonic() - began < scaled(8)
    await do(item.ack)
    waiting = asyncio.create_task(do(box.claim, wait=20))
    await asyncio.sleep(0.1)
    await do(box.post, "y")
    assert (await waiting)[0].body == "y"


async def test_a_cancelled_claim_holds_nothing(box: Mailbox):
    waiting = asyncio.create_task(box.claim.aio(wait=20))
    await asyncio.sleep(0.1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await box.post.aio("x")
    assert len(await box.claim.aio()) == 1


async def test_claims_of_dropped_messages_end(box: Mailbox, do: Do, clock: Time):
    await do(box.keep, Keep(messages=2))
    await do(box.post_many, "ab")
    await do(box.claim, 2, lease=10)
    await do(box.post_many, "cd")
    clock.advance(11)
    items = await do(box.claim, 5)
    assert [item.body for item in items] == ["c", "d"]
    for item in items:
        await do(item.ack)
    assert await do(box.unread) == 0


async def test_acknowledging_everything_ends_claims(box: Mailbox, do: Do):
    await do(box.post_many, "abc")
    first, *_ = await do(box.claim, 2)
    await ack(do, box, 3)
    with pytest.raises(LeaseLost):
        await do(first.ack)
    assert await do(box.claim, 5) == []


async def test_acknowledging_what_a_worker_still_holds_frees_what_others_have_done(box: Mailbox, do: Do):
    await do(box.post_many, "abc")
    first, *rest = await do(box.claim, 3)
    for item in rest:
        await do(item.ack)
    await do(box.ack, first.message)
    info = await do(box.info)
    assert (info.unread, info.claimed, info.bytes) == (0, 0, 0)
    assert await do(box.pull) == []


async def test_a_deleted_mailbox_leaves_no_key(box: Mailbox, do: Do, raw: Any):
    await do(box.keep, Keep(bytes=10**6))
    await do(box.post_many, "abc", ids="xyz")
    await do(box.claim, 2)
    assert await do(box.delete)
    assert [key for key in raw.scan_iter(match="*mailbox*") if raw.pttl(key) < 0] == []
    assert number_of(await do(box.post, "new")) == 4
