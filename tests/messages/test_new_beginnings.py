"""A log that begins again: positions of the old one are recognised, and no message of the new one is skipped."""

from __future__ import annotations

import itertools
import json
import time
from dataclasses import replace
from typing import Any

import pytest

from penstock import Chat, LeaseLost, Mailbox, Penstock
from penstock.errors import NewBeginning, StateDamaged
from penstock.messages.message import number_of
from tests.conftest import Do, Time
from tests.messages.positions import numbers_of
from tests.snapshots import Snapshot, fall_back, take_snapshot
from tests.speed import scaled


@pytest.fixture
def box(app: Penstock) -> Mailbox:
    return app.mailbox("user:17")


async def create(app: Penstock, do: Do, *messages: str) -> Chat:
    chat: Chat = await do(app.chats.create, ["ada", "bo"], id="ops")
    await do(chat.send_many, "bo", messages)
    return chat


def bodies(mail: Any) -> list[Any]:
    return [message.body for message in mail]


async def test_a_follower_reads_all_of_a_chat_that_was_created_again_in_its_loop(app: Penstock, do: Do, face: str):
    chat = await create(app, do, "a", "b", "c")
    follow, seen = chat.follow("ada"), []
    for _ in range(3):
        seen.append(await do(lambda: next(follow)) if face == "blocking" else await anext(follow))
    await do(chat.delete)
    await create(app, do, "d", "e", "f", "g")
    for _ in range(4):
        seen.append(await do(lambda: next(follow)) if face == "blocking" else await anext(follow))
    assert bodies(seen) == list("abcdefg")
    assert [message.new_beginning for message in seen] == [False, False, False, True, False, False, False]
    await do(follow.settle)
    assert await do(chat.reader("ada").unread) == 1  # the loop is not done with its last message


async def test_an_old_message_does_not_acknowledge_those_of_a_mailbox_that_was_deleted(box: Mailbox, do: Do):
    await do(box.post_many, "abc")
    old = await do(box.pull)
    await do(box.delete)
    await do(box.post_many, "wxyz")
    for message in old:
        with pytest.raises(NewBeginning, match="Nothing was acknowledged"):
            await do(box.ack, message)
        mail = await do(box.pull, after=message)
        assert (bodies(mail), mail.new_beginning, mail[0].new_beginning) == (list("wxyz"), True, True)
    assert await do(box.unread) == 4
    await do(box.ack, mail[0])
    assert bodies(await do(box.pull)) == list("xyz")


async def test_the_numbers_of_a_log_that_was_deleted_continue_for_a_day(app: Penstock, do: Do, raw: Any):
    chat = await create(app, do, "a", "b")
    await do(chat.delete)
    before = chat._log.keys.base + "before"
    assert 86000_000 < raw.pttl(before) <= 86400_000
    chat = await create(app, do, "c")
    assert numbers_of(message.id for message in await do(chat.reader("ada").pull)) == [3]
    assert [*raw.scan_iter(match="*:before")] == []
    for member in ("ada", "bo"):
        await do(chat.leave, member)
    chat = await create(app, do, "d")
    assert numbers_of(message.id for message in await do(chat.reader("ada").pull)) == [4]
    await do(chat.delete)
    raw.delete(before)  # a day later
    chat = await create(app, do, "e")
    assert numbers_of(message.id for message in await do(chat.reader("ada").pull)) == [1]


@pytest.mark.parametrize("later", [1, 3, 9])
async def test_what_was_sent_after_a_server_fell_back_is_not_skipped(
    app: Penstock, do: Do, raw: Any, face: str, clock: Time, later: int
):
    """The follower has read and acknowledged numbers that the server gives to other messages afterwards."""
    chat = await create(app, do, "a", "b")
    old = take_snapshot(raw)
    await do(chat.send_many, "bo", ["lost 1", "lost 2", "lost 3"])
    follow, seen = chat.follow("ada", limit=2), []

    async def read() -> None:
        seen.append(await do(lambda: next(follow)) if face == "blocking" else await anext(follow))

    for _ in range(5):
        await read()
    mail = await do(chat.reader("bo").pull)
    await do(chat.reader("bo").ack, mail[-1])
    fall_back(raw, old)
    clock.advance(1)
    await do(chat.send_many, "bo", [f"new {n}" for n in range(later)])
    new = [f"new {n}" for n in range(later)]
    for _ in range(2 + later):
        await read()
    assert bodies(seen) == ["a", "b", "lost 1", "lost 2", "lost 3", "a", "b", *new]
    assert [message.new_beginning for message in seen] == [n == 5 for n in range(7 + later)]
    with pytest.raises(NewBeginning):
        await do(chat.reader("bo").ack, mail[-1])
    assert len(await do(chat.reader("bo").pull)) == 2 + later


async def test_a_message_that_was_freed_is_recognised_by_its_time(box: Mailbox, do: Do, raw: Any, clock: Time):
    await do(box.post, "a")
    old = take_snapshot(raw)
    lost = await do(box.post, "lost")
    fall_back(raw, old)
    clock.advance(1)
    kept = await do(box.post, "b")
    assert number_of(lost) == number_of(kept)
    await do(box.ack, kept)  # nothing is left in the stream now
    await do(box.ack, kept)
    with pytest.raises(NewBeginning):
        await do(box.ack, lost)


async def test_a_claim_of_a_log_that_restarted_is_lost(box: Mailbox, do: Do):
    await do(box.post, "a")
    (claimed,) = await do(box.claim)
    await do(box.delete)
    await do(box.post, "b")
    await do(box.claim)
    with pytest.raises(LeaseLost):
        await do(claimed.ack)
    assert await do(box.unread) == 1


async def test_all_chats_of_a_user_are_acknowledged_but_the_one_that_restarted(app: Penstock, do: Do):
    chats = [await do(app.chats.create, ["ada"], sender="bo", message="x", id=name) for name in ("x", "y", "z")]
    mine = app.chats.of("ada")
    mail = await do(mine.pull)
    await do(chats[1].delete)
    await do(app.chats.create, ["ada"], sender="bo", message="new", id="y")
    with pytest.raises(NewBeginning, match="'y'"):
        await do(mine.ack, mail)
    assert await do(mine.unread) == {"x": 0, "y": 1, "z": 0}
    new = [m for m in await do(mine.pull) if m.place == "y"]
    await do(mine.ack, [*new, *mail])  # the newest message of each chat counts
    assert await do(mine.unread) == {"x": 0, "y": 0, "z": 0}


async def test_a_position_is_text_that_json_keeps(box: Mailbox, do: Do):
    sent = await do(box.post, "a")
    await do(box.post, "b")
    (first, second) = await do(box.pull)
    kept = json.loads(json.dumps({"last": first.id}))["last"]
    assert type(sent) is type(first.id) is str
    assert (sent, kept, first.number, second.number) == (first.id, first.id, 1, 2)
    await do(box.post, {"reply to": first.id})
    assert bodies(await do(box.pull, after=kept)) == ["b", {"reply to": first.id}]
    follow = box.follow(after=second, ack=False)
    assert (await follow.fetch.aio())[0].number == 3
    await do(box.ack, kept)
    assert bodies(await do(box.pull, 1)) == ["b"]


# --- a cursor above the last number: the log fell back to an older state, and its readers did not ---


def fall_back_below(raw: Any, base: str, old: Snapshot) -> None:
    """Restore the messages of a log, and leave its readers as they are."""
    for name in ("state", "log"):
        fall_back(raw, {key: value for key, value in old.items() if key == (base + name).encode()}, base + name)


@pytest.mark.parametrize("wait", [0, 30])
async def test_a_reader_of_a_mailbox_that_fell_back_begins_again(box: Mailbox, do: Do, raw: Any, wait: float):
    await do(box.post_many, "ab")
    old = take_snapshot(raw)
    await do(box.post_many, "cde")
    await do(box.ack, (await do(box.pull))[-1])
    fall_back_below(raw, box._log.keys.base, old)
    assert await do(box.unread) == 2
    await do(box.post, "new")
    mail = await do(box.pull, wait=wait)
    assert (bodies(mail), mail.new_beginning, mail[0].new_beginning) == (["a", "b", "new"], True, True)
    await do(box.ack, mail[1])
    again = await do(box.pull)
    assert (bodies(again), again.new_beginning) == (["new"], False)


async def test_a_position_of_the_later_state_acknowledges_nothing(box: Mailbox, do: Do, raw: Any):
    await do(box.post_many, "abc")
    last = (await do(box.pull))[-1]
    old = take_snapshot(raw)
    await do(box.post_many, "de")
    await do(box.ack, (await do(box.pull))[-1])
    fall_back_below(raw, box._log.keys.base, old)
    with pytest.raises(NewBeginning):
        await do(box.ack, replace(last, id="9-1"))
    mail = await do(box.pull)
    assert mail.new_beginning
    await do(box.ack, mail[-1])
    follow = box.follow()
    await do(box.post, "new")
    mail = await do(follow.fetch)
    assert (bodies(mail), mail.new_beginning) == (["new"], False)


async def test_workers_of_a_mailbox_that_fell_back_begin_again(box: Mailbox, do: Do, raw: Any):
    await do(box.post_many, "ab")
    old = take_snapshot(raw)
    await do(box.post_many, "cdef")
    held = await do(box.claim, 6)
    for claimed in held[:5]:
        await do(claimed.ack)
    fall_back_below(raw, box._log.keys.base, old)
    again = await do(box.claim, 6)
    assert [claimed.body for claimed in again] == ["a", "b"]
    assert [claimed.message.new_beginning for claimed in again] == [True, False]
    with pytest.raises(LeaseLost):
        await do(held[5].ack)
    for claimed in again:
        await do(claimed.ack)
    await do(box.post, "new")
    (claimed,) = await do(box.claim)
    assert (claimed.body, claimed.message.new_beginning) == ("new", False)
    await do(claimed.ack)


@pytest.mark.damages
async def test_a_member_of_a_chat_that_fell_back_counts_no_message_twice(app: Penstock, do: Do, raw: Any):
    chat = await create(app, do, "a", "b")
    old = take_snapshot(raw)
    await do(chat.send_many, "bo", "cdef")
    for name in ("ada", "bo"):
        reader = chat.reader(name)
        await do(reader.ack, (await do(reader.pull))[-1])
    await do(chat.send, "bo", "g")
    fall_back_below(raw, chat._log.keys.base, old)
    await do(chat.send_many, "bo", ["new 1", "new 2"])
    mail = await do(chat.reader("ada").pull)
    assert (bodies(mail), mail.new_beginning) == (["a", "b", "new 1", "new 2"], True)
    assert 0 <= await do(chat.reader("bo").unread) <= 2
    assert all(0 <= member.unread <= 4 for member in await do(chat.members))
    assert bodies(await do(chat.reader("bo").pull)) == ["a", "b", "new 1", "new 2"]
    await do(chat.delete)


async def test_what_a_member_leaves_is_deleted_in_bounded_steps(
    app: Penstock, do: Do, raw: Any, monkeypatch: pytest.MonkeyPatch
):
    chat = await create(app, do, "a")
    own = chat._log.keys.base + "own"
    numbers = b"".join((n + 2).to_bytes(6) for n in range(256))
    raw.hset(own, mapping={b"bo": b"1 7001:" + numbers, **{b"bo\0%d" % n: numbers for n in range(1, 7001)}})
    left = list[int]()
    leave = type(chat._log).leave

    def counted(self: Any, member: str) -> Any:
        left.append(raw.hlen(own))
        return leave(self, member)

    monkeypatch.setattr(type(chat._log), "leave", counted)
    assert await do(chat.leave, "bo")
    assert raw.hlen(own) == 0
    assert [before - after for before, after in itertools.pairwise([*left, 0])] == [3000, 3000, 1001]
    await do(chat.delete)


@pytest.mark.damages
async def test_an_invented_list_of_own_messages_is_named_and_ends(app: Penstock, do: Do, raw: Any):
    chat = await create(app, do, "a")
    own = chat._log.keys.base + "own"
    raw.hset(own, b"bo", b"1 1000000000000:" + (1).to_bytes(6))
    began = time.monotonic()
    with pytest.raises(StateDamaged, match="'ops'"):
        await do(chat.leave, "bo")
    assert time.monotonic() - began < scaled(5)
    assert raw.zcard(chat._log.keys.base + "readers") == 2
    raw.delete(own)
    assert await do(chat.delete)
