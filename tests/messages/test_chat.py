"""A chat: every member reads every message at its own pace, and misses none."""

import asyncio
import threading
from typing import Any

import anyio.to_thread
import pytest

from penstock import Chat, ConfigurationError, Keep, Penstock
from penstock.errors import ChatExists, ChatGone, NotAMember
from penstock.messages.message import number_of
from tests.conftest import Do, MakeApp, until
from tests.messages.positions import ack, numbers_of
from tests.speed import scaled

STRANGE = ["ops", "名前 😀", "a}b{c%7D", "x" * 500, "\n\t ", "*", "{}", "a:b:c"]


@pytest.fixture
async def chat(app: Penstock) -> Chat:
    return await app.chats.create.aio(["ada", "bo"], sender="cy", message={"text": "hi"}, id="ops")


def numbers(mail: Any) -> list[int]:
    return [message.number for message in mail]


async def test_all_members_read_all_of_it_from_the_first_message_on(app: Penstock, chat: Chat, do: Do):
    assert number_of(await do(app.chats.get("ops").send, "bo", {"text": "yes"})) == 2
    for member in ("ada", "bo", "cy"):
        mail = await do(chat.reader(member).pull)
        assert [(m.number, m.sender, m.body["text"]) for m in mail] == [(1, "cy", "hi"), (2, "bo", "yes")]
        assert mail[0].place == "ops"
    await ack(do, chat.reader("ada"), 2)
    assert await do(chat.reader("ada").unread) == 0
    assert await do(chat.reader("bo").unread) == 1  # without its own message
    assert {(m.name, m.read, m.unread) for m in await do(chat.members)} == {("ada", 2, 0), ("bo", 0, 1), ("cy", 0, 1)}


@pytest.mark.parametrize("name", STRANGE)
async def test_a_name_may_have_any_character(app: Penstock, do: Do, name: str):
    chat = await do(app.chats.create, [name], id=name)
    await do(chat.send, name, "x", id=name)
    assert [m.sender for m in await do(chat.reader(name, device=name).pull)] == [name]
    assert await do(app.chats.of(name).unread) == {name: 0}
    assert await do(chat.leave, name)


@pytest.mark.parametrize("name", ["", "a\0b", "\ud800", "x" * 1025])
async def test_invalid_names_are_refused_before_anything_is_sent(app: Penstock, do: Do, name: str):
    chat = app.chats.get("ops")
    for refused in (lambda: app.chats.get(name), lambda: chat.reader(name), lambda: app.chats.of(name)):
        with pytest.raises(ConfigurationError):
            refused()
    for verb, args in ((app.chats.create, (["ada", name],)), (chat.send, (name, 1)), (chat.join, (name,))):
        with pytest.raises(ConfigurationError):
            await do(verb, *args)


async def test_an_id_cannot_be_used_twice(app: Penstock, chat: Chat, do: Do):
    with pytest.raises(ChatExists, match="ops"):
        await do(app.chats.create, ["di"], sender="di", message="mine", id="ops")
    assert await do(chat.reader("ada").unread) == 1
    with pytest.raises(NotAMember):
        await do(chat.reader("di").pull)
    assert (await do(app.chats.create, ["ada"])).id != (await do(app.chats.create, ["ada"])).id


async def test_creating_does_not_change_the_callers_list(app: Penstock, do: Do):
    members = ["ada", "bo", "ada"]
    chat = await do(app.chats.create, members, sender="cy")
    assert members == ["ada", "bo", "ada"]
    assert {member.name for member in await do(chat.members)} == {"ada", "bo", "cy"}
    with pytest.raises(ValueError, match="at least one"):
        await do(app.chats.create, [])
    with pytest.raises(ValueError, match="who sends"):
        await do(app.chats.create, ["ada"], message="hi")


async def test_a_chat_that_is_gone_raises_and_leaves_no_key(app: Penstock, do: Do, raw: Any):
    chat = app.chats.get("nowhere")
    for verb, args in [
        (chat.send, ("ada", 1)),
        (chat.join, ("ada",)),
        (chat.members, ()),
        (chat.info, ()),
        (chat.keep, (Keep(age=1),)),
        (chat.reader("ada").pull, ()),
        (chat.reader("ada").ack, ("1-1",)),
        (chat.reader("ada").unread, ()),
    ]:
        with pytest.raises(ChatGone, match="nowhere"):
            await do(verb, *args)
    assert await do(chat.leave, "ada") is False
    assert await do(chat.delete) is False
    assert [key for key in raw.scan_iter() if raw.pttl(key) < 0] == []


async def test_only_members_send_and_read(chat: Chat, do: Do):
    for verb, args in [
        (chat.send, ("eve", 1)),
        (chat.reader("eve").pull, ()),
        (chat.reader("eve").ack, ("1-1",)),
        (chat.reader("eve").unread, ()),
        (chat.reader("eve", "phone").pull, ()),
    ]:
        with pytest.raises(NotAMember, match="eve"):
            await do(verb, *args)
    assert await do(chat.leave, "eve") is False
    assert (await do(chat.info)).readers == 3


async def test_a_new_member_reads_from_now_from_the_start_or_the_last_few(chat: Chat, do: Do):
    await do(chat.send_many, "cy", range(9))
    for member, history in (("now", "now"), ("start", "start"), ("few", 3), ("all", 99), ("none", 0)):
        await do(chat.join, member, history=history)
    assert numbers(await do(chat.reader("start").pull)) == list(range(1, 11))
    assert numbers(await do(chat.reader("few").pull)) == [8, 9, 10]
    assert numbers(await do(chat.reader("all").pull)) == list(range(1, 11))
    assert numbers(await do(chat.reader("now").pull)) == []
    await do(chat.send, "now", "first")
    for member in ("now", "none"):
        assert numbers(await do(chat.reader(member).pull)) == [11]
    with pytest.raises(ValueError, match="history"):
        await do(chat.join, "x", history=-1)
    with pytest.raises(ValueError, match="history"):
        await do(chat.join, "x", history="yesterday")


async def test_a_member_that_joins_again_keeps_its_cursor(chat: Chat, do: Do):
    await ack(do, chat.reader("ada"), 1)
    await do(chat.send_many, "bo", range(3))
    await do(chat.join, "ada", history="start")
    await do(chat.join, "ada")
    assert numbers(await do(chat.reader("ada").pull)) == [2, 3, 4]


async def test_messages_are_kept_until_the_slowest_reader_has_acknowledged_them(chat: Chat, do: Do):
    await do(chat.send_many, "cy", range(19))
    await ack(do, chat.reader("ada"), 15)
    await ack(do, chat.reader("bo"), 10)
    assert (await do(chat.info)).first == 1
    await ack(do, chat.reader("cy"), 12)
    assert (await do(chat.info)).first == 11
    assert numbers(await do(chat.reader("bo").pull)) == list(range(11, 21))
    await do(chat.kick, "bo")
    assert (await do(chat.info)).first == 13
    await do(chat.join, "di", history="start")
    await do(chat.join, "ed", history=99)
    for member in ("di", "ed"):
        mail = await do(chat.reader(member).pull)
        assert (numbers(mail), mail.gap) == (list(range(13, 21)), None)


async def test_the_last_member_that_leaves_frees_everything(app: Penstock, chat: Chat, do: Do, raw: Any):
    await do(chat.send_many, "ada", ["x"] * 5, ids="abcde")
    await do(chat.reader("ada", "phone").pull)
    await do(app.chats.of("bo").pull)
    for member in ("ada", "bo", "cy"):
        assert await do(chat.leave, member)
    assert [key for key in raw.scan_iter() if raw.pttl(key) < 0] == []
    with pytest.raises(ChatGone):
        await do(chat.send, "ada", "late")
    await do(app.chats.create, ["ada"], id="ops")
    assert number_of(await do(chat.send, "ada", "again", id="a")) == 7  # its numbers continue


async def test_a_deleted_chat_is_gone_for_all(app: Penstock, chat: Chat, do: Do, raw: Any):
    assert await do(chat.delete)
    assert [key for key in raw.scan_iter() if raw.pttl(key) < 0] == []
    with pytest.raises(ChatGone):
        await do(chat.reader("ada").pull)


async def test_messages_with_one_id_are_sent_once(chat: Chat, do: Do):
    first = await do(chat.send, "ada", "a", id="m1")
    assert await do(chat.send, "ada", "a", id="m1") == first
    assert numbers_of(await do(chat.send_many, "ada", "abc", ids=["m1", "m2", "m3"])) == [2, 3, 4]
    assert numbers(await do(chat.reader("bo").pull)) == [1, 2, 3, 4]


async def test_a_backlog_of_thousands_is_freed_in_slices(chat: Chat, do: Do):
    await do(chat.send_many, "cy", ["x"] * 5000)
    for member in ("ada", "bo"):
        await do(chat.leave, member)
    while mail := await do(chat.reader("cy").pull, 1000):
        await do(chat.reader("cy").ack, mail[-1])
    info = await do(chat.info)
    assert (info.first, info.last, info.bytes) == (5002, 5001, 0)


# --- devices ---


async def test_each_device_has_a_cursor_of_its_own(chat: Chat, do: Do):
    phone, laptop = chat.reader("ada", "phone"), chat.reader("ada", "laptop")
    assert numbers(await do(phone.pull)) == [1]
    await ack(do, phone, 1)
    await do(chat.send, "bo", "x")
    assert numbers(await do(phone.pull)) == [2]
    assert numbers(await do(laptop.pull)) == [2]  # a new device begins where its member is
    await ack(do, phone, 2)
    assert numbers(await do(laptop.pull)) == [2]
    await do(chat.send, "ada", "from a member with devices only")
    assert {(m.name, m.device) for m in await do(chat.members)} == {
        ("ada", "phone"),
        ("ada", "laptop"),
        ("bo", ""),
        ("cy", ""),
    }


async def test_a_member_that_has_read_without_a_device_stays_a_reader_beside_its_devices(chat: Chat, do: Do):
    plain, phone = chat.reader("ada"), chat.reader("ada", "phone")
    assert numbers(await do(plain.pull)) == [1]
    assert numbers(await do(phone.pull)) == [1]
    await ack(do, phone, 1)
    await do(chat.send, "bo", "x")
    assert numbers(await do(plain.pull)) == [1, 2]


async def test_a_forgotten_device_holds_no_messages(chat: Chat, do: Do):
    phone, laptop = chat.reader("ada", "phone"), chat.reader("ada", "laptop")
    await do(laptop.pull)
    await do(phone.pull)
    await ack(do, laptop, 1)
    assert await do(phone.forget)
    assert not await do(phone.forget)
    assert (await do(chat.reader("ada", "laptop").unread)) == 0
    assert await do(laptop.forget)
    assert {(m.name, m.device, m.read) for m in await do(chat.members)} == {
        ("ada", "", 1),
        ("bo", "", 0),
        ("cy", "", 0),
    }
    await do(phone.pull)
    assert await do(chat.leave, "ada")
    with pytest.raises(NotAMember):
        await do(phone.pull)


async def test_a_member_has_at_most_a_hundred_devices(chat: Chat):
    for n in range(100):
        await chat.reader("ada", f"d{n}").pull.aio()
    with pytest.raises(Exception, match="100 devices"):
        await chat.reader("ada", "one more").pull.aio()
    assert await chat.leave.aio("ada")


# --- live ---


async def test_following_returns_old_and_new_messages(chat: Chat, do: Do, face: str):
    await do(chat.send_many, "cy", range(4))
    follow, seen = chat.follow("ada", limit=3), []

    def blocking() -> None:
        with follow as messages:
            for message in messages:
                seen.append(message.number)
                if message.number == 8:
                    break

    async def aio() -> None:
        async with follow as messages:
            async for message in messages:
                seen.append(message.number)
                if message.number == 8:
                    break

    running = asyncio.create_task(anyio.to_thread.run_sync(blocking) if face == "blocking" else aio())
    await until(lambda: len(seen) == 5)
    for number in (6, 7, 8):
        await do(chat.send, "bo", number)
        await until(lambda: seen[-1] == number)  # noqa: B023 - asked at once
    await running
    assert seen == list(range(1, 9))
    assert await do(chat.reader("ada").unread) == 0


async def test_a_batch_is_acknowledged_in_the_round_trip_that_asks_for_more(chat: Chat, do: Do):
    await do(chat.send_many, "cy", range(4))
    follow = chat.follow("ada", limit=2)
    for left in (5, 5, 3, 3, 1):
        await anext(follow)
        assert await do(chat.reader("ada").unread) == left


async def test_a_loop_that_raised_is_given_its_unfinished_messages_again(chat: Chat, do: Do):
    await do(chat.send_many, "cy", range(4))

    async def read() -> None:
        async with chat.follow("ada") as messages:
            async for message in messages:
                if message.number == 3:
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await read()
    assert numbers(await do(chat.reader("ada").pull)) == [3, 4, 5]


async def test_following_with_ack_false_acknowledges_nothing(chat: Chat, do: Do):
    await do(chat.send_many, "cy", range(4))
    follow = chat.follow("ada", limit=2, ack=False)
    assert [(await anext(follow)).number for _ in range(5)] == [1, 2, 3, 4, 5]
    assert await do(chat.reader("ada").unread) == 5


async def test_a_waiting_reader_learns_that_it_was_kicked_or_that_the_chat_is_gone(chat: Chat, do: Do):
    for member in ("ada", "bo"):
        await ack(do, chat.reader(member), 1)
    ada = asyncio.create_task(do(chat.reader("ada").pull, wait=20))
    await asyncio.sleep(0.2)
    await do(chat.kick, "ada")
    await do(chat.send, "bo", "x")
    with pytest.raises(NotAMember):
        await ada
    await ack(do, chat.reader("bo"), 2)
    bo = asyncio.create_task(do(chat.reader("bo").pull, wait=20))
    await asyncio.sleep(0.2)
    await do(chat.delete)
    with pytest.raises(ChatGone):
        await bo


async def test_hundreds_of_waiting_readers_are_all_woken_though_one_send_wakes_a_hundred(app: Penstock):
    members = [f"m{n}" for n in range(250)]
    chat = await app.chats.create.aio(members, sender="cy")
    waiting = [asyncio.create_task(chat.reader(member).pull.aio(wait=60)) for member in members]
    await until(lambda: True)
    await asyncio.sleep(1)
    await chat.send.aio("cy", "x")
    async with asyncio.timeout(scaled(30)):
        assert all(numbers(mail) == [1] for mail in await asyncio.gather(*waiting))


async def test_a_member_that_joins_while_others_send_misses_nothing(chat: Chat):
    """A new member reads every message from its first one on. Other libraries lose messages in this race."""
    stop = threading.Event()

    async def send() -> None:
        while not stop.is_set():
            id = await chat.send.aio("cy", "x")
            for member in ("ada", "bo", "cy"):
                await chat.reader(member).ack.aio(id)

    sending = asyncio.create_task(send())
    for n in range(20):
        await chat.join.aio(f"n{n}")
        await asyncio.sleep(0.002)
    stop.set()
    await sending
    last = (await chat.info.aio()).last
    for member in await chat.members.aio():
        if member.name.startswith("n"):
            mail = await chat.reader(member.name).pull.aio(1000)
            assert mail.gap is None
            assert numbers(mail) == list(range(member.read + 1, last + 1))


async def test_a_chat_keeps_its_limits_and_reports_the_gap(app: Penstock, do: Do):
    chat = await do(app.chats.create, ["ada"], sender="cy", keep=Keep(messages=5))
    await do(chat.send_many, "cy", range(20))
    mail = await do(chat.reader("ada").pull)
    assert (numbers(mail), mail.gap.first, mail.gap.missed, mail[0].missed) == ([16, 17, 18, 19, 20], 16, 15, 15)
    follow = chat.follow("ada")
    assert (await anext(follow)).missed == 15
    assert [(await anext(follow)).missed for _ in range(4)] == [0] * 4


async def test_two_apps_on_one_server_share_nothing(make_app: MakeApp, do: Do):
    ours, others = make_app(), make_app()
    await do(ours.chats.create, ["ada"], id="ops")
    await do(others.chats.create, ["ada"], id="ops")
    await do(ours.chats.get("ops").send, "ada", "x")
    assert await do(others.chats.of("ada").unread) == {"ops": 0}
