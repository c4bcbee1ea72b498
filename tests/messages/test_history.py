"""What all members have read is kept as long as the history needs it, and is read page by page."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import BadCall, Chat, History, Keep, Penstock
from penstock.errors import ChatGone, MessageError, NewBeginning, NoSpace, NotAMember
from penstock.messages.message import number_of
from tests.conftest import Do, Time


@pytest.fixture
async def chat(app: Penstock, do: Do) -> Chat:
    chat: Chat = await do(app.chats.create, ["ada", "bo"], id="ops", history=History(messages=5))
    return chat


async def read_all(do: Do, chat: Chat, *members: str) -> None:
    for member in members or ("ada", "bo"):
        while mail := await do(chat.reader(member).pull, 1000):
            await do(chat.reader(member).ack, mail[-1])


def numbers(mail: Any) -> list[int]:
    return [message.number for message in mail]


# --- how much is kept ---


async def test_the_last_messages_are_kept_though_all_have_read_them(chat: Chat, do: Do):
    await do(chat.send_many, "ada", range(20))
    await read_all(do, chat)
    info = await do(chat.info)
    assert (info.first, info.last) == (16, 20)
    assert await do(chat.reader("ada").pull) == []
    await do(chat.send, "ada", "x")
    assert (await do(chat.info)).first == 17
    await do(chat.join, "cy", history="start")
    await do(chat.join, "di", history=2)
    assert numbers(await do(chat.reader("cy").pull)) == [17, 18, 19, 20, 21]
    assert numbers(await do(chat.reader("di").pull)) == [20, 21]
    await do(chat.keep, history=History())
    await read_all(do, chat, "ada", "bo", "cy", "di")
    assert (await do(chat.info)).bytes == 0


async def test_what_is_not_read_is_kept_beyond_the_history(chat: Chat, do: Do):
    await do(chat.send_many, "ada", range(20))
    await read_all(do, chat, "ada")
    assert (await do(chat.info)).first == 1


async def test_young_messages_are_kept_and_freed_when_they_grow_old(app: Penstock, do: Do, clock: Time):
    chat = await do(app.chats.create, ["ada"], history=History(age=60))
    await do(chat.send_many, "ada", range(3000))
    clock.advance(30)
    await do(chat.send_many, "ada", range(10))
    await read_all(do, chat, "ada")
    assert (await do(chat.info)).first == 1
    clock.advance(31)
    await do(chat.send, "ada", "x")
    for _ in range(5):
        await do(chat.reader("ada").pull)
    assert (await do(chat.info)).first == 3001
    clock.advance(61)
    await read_all(do, chat, "ada")
    await do(chat.keep, Keep())
    assert (await do(chat.info)).bytes == 0


async def test_a_message_is_kept_for_either_reason(app: Penstock, do: Do, clock: Time):
    chat = await do(app.chats.create, ["ada"], history=History(messages=3, age=60))
    await do(chat.send_many, "ada", range(10))
    await read_all(do, chat, "ada")
    assert (await do(chat.info)).first == 1
    clock.advance(61)
    await do(chat.send, "ada", "x")
    assert (await do(chat.info)).first == 9


async def test_a_limit_wins_over_the_history(chat: Chat, do: Do):
    await do(chat.keep, Keep(messages=3))
    await do(chat.send_many, "ada", range(20))
    assert (await do(chat.info)).first == 18
    await read_all(do, chat)
    await do(chat.keep, Keep(messages=8))
    await do(chat.send_many, "ada", range(20))
    await read_all(do, chat)
    info = await do(chat.info)
    assert (info.first, info.last) == (36, 40)


@pytest.mark.parametrize("limit", [Keep(messages=5, full="refuse"), Keep(bytes=5 * 136, full="refuse")])
async def test_a_chat_that_refuses_frees_its_history_first(app: Penstock, do: Do, limit: Keep):
    chat = await do(app.chats.create, ["ada"], keep=limit, history=History(messages=100))
    body = "x" * 99
    await do(chat.send_many, "ada", [body] * 5)
    with pytest.raises(NoSpace):
        await do(chat.send, "ada", body)
    await read_all(do, chat, "ada")
    await do(chat.send_many, "ada", [body] * 2)
    assert len(await do(chat.reader("ada").history)) >= 2
    with pytest.raises(NoSpace):
        await do(chat.send_many, "ada", [body] * 4)
    assert await do(chat.reader("ada").unread) == 0


async def test_a_mailbox_keeps_a_history(app: Penstock, do: Do):
    box = app.mailbox("user:17")
    await do(box.keep, history=History(messages=2))
    await do(box.post_many, "abc")
    await do(box.ack, (await do(box.pull))[-1])
    assert [message.body for message in await do(box.history)] == ["b", "c"]
    await do(box.keep, Keep(messages=10))
    assert [message.body for message in await do(box.history)] == ["b", "c"]
    assert await do(app.mailbox("none").history) == []


@pytest.mark.parametrize("wrong", [{"messages": 0}, {"messages": True}, {"messages": 1.5}, {"age": -1}, {"age": "5"}])
def test_an_impossible_history_is_refused(wrong: dict[str, Any]):
    with pytest.raises(ValueError, match="History"):
        History(**wrong)
    with pytest.raises(ValueError, match="History"):
        History(age=float("nan"))


# --- pages ---


async def test_pages_go_backwards_and_forwards_and_move_no_cursor(chat: Chat, do: Do):
    await do(chat.keep, history=History(messages=50))
    await do(chat.send_many, "bo", range(50))
    await read_all(do, chat)
    reader, seen = chat.reader("ada"), list[Any]()
    page = await do(reader.history, 20)
    while page:
        seen.insert(0, numbers(page))
        page = await do(reader.history, 20, before=page[0])
    assert seen == [[*range(1, 11)], [*range(11, 31)], [*range(31, 51)]]
    first = (await do(reader.history, 50))[0]
    page, seen = [first], [1]
    while page := await do(reader.history, 20, after=page[-1].id):
        seen += numbers(page)
    assert seen == [*range(1, 51)]
    assert await do(reader.pull) == []
    with pytest.raises(BadCall, match="one of them"):
        await do(reader.history, before=first, after=first)
    with pytest.raises(BadCall, match="bare number"):
        await do(reader.history, before=7)
    with pytest.raises(NotAMember):
        await do(chat.reader("eve").history)
    await do(chat.delete)
    with pytest.raises(ChatGone):
        await do(reader.history)


async def test_a_page_is_bounded_in_bytes_and_leaves_none_out(chat: Chat, do: Do):
    await do(chat.send_many, "bo", [str(n) + "x" * 400_000 for n in range(9)])
    reader, seen = chat.reader("ada"), list[Any]()
    page = await do(reader.history)
    while page:
        assert 1 <= len(page) <= 3
        seen = numbers(page) + seen
        page = await do(reader.history, before=page[0])
    assert seen == [*range(1, 10)]
    assert numbers(await do(reader.history, after=(await do(reader.pull))[0])) == [2, 3]


async def test_a_page_of_a_chat_that_began_again_says_so(app: Penstock, chat: Chat, do: Do):
    old = await do(chat.send_many, "bo", "ab")
    await do(chat.delete)
    await do(app.chats.create, ["ada", "bo"], sender="bo", message="new", id="ops")
    for where in ({"before": old[1]}, {"after": old[1]}):
        page = await do(chat.reader("ada").history, **where)
        assert ([message.body for message in page], page.new_beginning) == (["new"], True)


# --- redact and edit ---


async def test_a_redacted_message_has_no_body_and_an_event_says_so(chat: Chat, do: Do, raw: Any):
    await do(chat.send_many, "bo", ["a", "secret", "c"])
    (_, read, _) = await do(chat.reader("bo").pull)
    event = await do(chat.redact, "ada", read)
    mail = await do(chat.reader("ada").pull)
    assert [(m.number, m.sender, m.body, m.redacted, m.missed) for m in mail] == [
        (1, "bo", "a", False, 0),
        (2, "bo", None, True, 0),
        (3, "bo", "c", False, 0),
        (4, "ada", None, False, 0),
    ]
    assert (mail[3].id, mail[3].event, mail[3].about) == (event, "redact", read.id)
    assert [(m.event, m.about) for m in mail[:3]] == [(None, None)] * 3
    assert b"secret" not in repr(raw.xrange(chat._log.keys.log)).encode()
    assert await do(chat.redact, "ada", read.id) == event
    for by, message, error in (("ada", event, BadCall), ("eve", read, NotAMember), ("ada", "1-1", NewBeginning)):
        with pytest.raises(error):
            await do(chat.redact, by, message)
    with pytest.raises(MessageError, match="cannot be edited"):
        await do(chat.edit, "bo", read, "again")
    await do(chat.reader("ada").ack, mail[1])
    assert numbers(await do(chat.reader("ada").pull)) == [3, 4]
    await do(chat.keep, history=History())
    await read_all(do, chat)
    assert [*raw.scan_iter(match="*:removed")] == []
    gone = await do(chat.redact, "ada", read)
    assert number_of(gone) == 5
    assert [(m.event, m.about) for m in await do(chat.reader("ada").pull)] == [("redact", read.id)]


async def test_an_edited_message_is_read_with_its_last_body(chat: Chat, do: Do, raw: Any):
    sent = await do(chat.send, "bo", "frist")
    await do(chat.send, "bo", "x")
    one = await do(chat.edit, "bo", sent, "frst")
    two = await do(chat.edit, "bo", sent, {"text": "first"})
    mail = await do(chat.reader("ada").pull)
    assert [(m.number, m.body, m.edited, m.event) for m in mail] == [
        (1, {"text": "first"}, True, None),
        (2, "x", False, None),
        (3, None, False, "edit"),
        (4, {"text": "first"}, False, "edit"),
    ]
    assert [m.about for m in mail] == [None, None, sent, sent]
    assert [m.id for m in mail[2:]] == [one, two]
    await do(chat.redact, "ada", sent)
    mail = await do(chat.reader("ada").pull)
    assert [(m.number, m.body, m.redacted) for m in mail] == [
        (1, None, True),
        (2, "x", False),
        (3, None, False),
        (4, None, False),
        (5, None, False),
    ]
    kept = repr(raw.xrange(chat._log.keys.log))
    assert "frist" not in kept
    assert "frst" not in kept
    assert "first" not in kept
    with pytest.raises(BadCall, match="is an event"):
        await do(chat.edit, "bo", one, "y")
    with pytest.raises(BadCall, match="is an event"):
        await do(chat.redact, "bo", two)
    assert numbers(await do(chat.reader("ada").history, 3)) == [3, 4, 5]
    await do(chat.reader("ada").ack, mail[0])
    await do(chat.reader("bo").ack, mail[0])
    await do(chat.keep, history=History(messages=1))
    await read_all(do, chat)
    assert (await do(chat.info)).first == 2  # the last message; the others are events


async def test_a_follower_gets_the_event_of_a_message_that_it_has_read(chat: Chat, do: Do, face: str):
    sent = await do(chat.send, "bo", "a")
    follow, seen = chat.follow("ada"), []
    for call in (None, lambda: do(chat.edit, "bo", sent, "b"), lambda: do(chat.redact, "bo", sent)):
        if call:
            await call()
        seen.append(await do(lambda: next(follow)) if face == "blocking" else await anext(follow))
    assert [(m.event, m.body) for m in seen] == [(None, "a"), ("edit", "b"), ("redact", None)]


# --- unread messages, without one's own ---


async def test_ones_own_messages_are_not_unread(app: Penstock, do: Do):
    chat = await do(app.chats.create, ["ada", "bo"], sender="cy", message="hi")
    for n in range(10):
        await do(chat.send, "ada" if n % 3 else "bo", n)
    wanted = {"ada": 11 - 6, "bo": 11 - 4, "cy": 10}
    for member, unread in wanted.items():
        assert await do(chat.reader(member).unread) == unread
        assert (await do(chat.reader(member).pull)).unread == unread
        assert await do(app.chats.of(member).unread) == {chat.id: unread}
    assert {m.name: m.unread for m in await do(chat.members)} == wanted
    phone = chat.reader("ada", "phone")
    mail = await do(phone.pull)
    senders = [message.sender for message in mail]
    for done in range(len(mail)):
        await do(phone.ack, mail[done])
        assert await do(phone.unread) == sum(sender != "ada" for sender in senders[done + 1 :])


async def test_ones_own_messages_are_counted_over_thousands(app: Penstock, do: Do, raw: Any):
    chat = await do(app.chats.create, ["ada", "bo"], id="ops")
    sent, own = [], app.chats.get("ops")
    for n in range(8):
        sent += [("ada", id) for id in await do(own.send_many, "ada", range(300))]
        sent += [("bo", id) for id in await do(own.send_many, "bo", range(1 + 50 * n))]
    reader = chat.reader("ada")
    assert await do(reader.unread) == sum(sender == "bo" for sender, _ in sent)
    for at in (0, 299, 300, 301, 800, 1500, 2000, 2600, len(sent) - 2, len(sent) - 1):
        await do(reader.ack, sent[at][1])
        assert await do(reader.unread) == sum(sender == "bo" for sender, _ in sent[at + 1 :])
    await do(chat.keep, Keep(messages=10))
    await do(chat.send_many, "ada", range(7))
    assert await do(chat.reader("bo").unread) == 10 - sum(sender == "bo" for sender, _ in sent[-3:])
    for member in ("bo", "ada"):
        await do(chat.reader(member).ack, (await do(chat.reader(member).pull))[-1])
    assert not raw.hexists(chat._log.keys.base + "own", "ada")  # nothing is stored any more
    await do(chat.leave, "bo")
    assert [field for field in raw.hkeys(chat._log.keys.base + "own") if field.startswith(b"bo")] == []


def calls_of_scripts(nodes: list[Any]) -> int:
    """Commands that the servers have executed so far, those of scripts included, without INFO."""
    stats = [one.info("commandstats") for one in nodes]
    return sum(row["calls"] for one in stats for name, row in one.items() if name != "cmdstat_info")


@pytest.mark.parametrize(("face", "place"), [("blocking", "valkey")])
async def test_counting_the_unread_messages_takes_as_many_commands_for_ten_as_for_thousands(
    app: Penstock, do: Do, raw: Any, nodes: list[Any]
):
    chat: Chat = await do(app.chats.create, ["ada", "bo"], id="ops")
    taken, halves = set[int](), list[str]()
    for n in (10, 1000, 10_000):
        for _ in range(n // 10 - len(halves)):
            mine = await do(chat.send_many, "ada", range(5))
            halves += [*await do(chat.send_many, "bo", range(5)), *mine][:1]
        reader = chat.reader("ada")
        await do(reader.unread)
        before = calls_of_scripts(nodes)
        assert await do(reader.unread) == n // 2
        taken.add(calls_of_scripts(nodes) - before)
    await do(reader.ack, halves[500])  # in the middle
    before = calls_of_scripts(nodes)
    assert await do(reader.unread) == n // 2 - 5 * 500 - 1
    taken.add(calls_of_scripts(nodes) - before)
    assert max(taken) <= min(taken) + 2, taken  # more than 256 of one's own take two reads more, whatever their number
    # What counting costs: six bytes for each message, until its sender has acknowledged it.
    assert raw.memory_usage(chat._log.keys.base + "own", samples=0) < 7.5 * n


async def test_a_device_reads_what_another_one_sent(app: Penstock, do: Do):
    chat = await do(app.chats.create, ["ada"], id="ops")
    await do(chat.send, "ada", "from my phone")
    mine = app.chats.of("ada", "laptop")
    assert await do(mine.unread) == {"ops": 0}
    assert [message.body for message in await do(mine.pull)] == ["from my phone"]
