"""The chats of one user: the index may list a chat too many, never one too few, and reading repairs it."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from penstock import Penstock, UserChats
from penstock.core.operations import Parallel, RoundTrip
from tests.conftest import Do, Time, commands


class ProcessDied(BaseException):
    """Stands for the death of a process: no code catches it."""


@pytest.fixture
def dying(app: Penstock, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`dying("join")`: the process dies before the script of this name is sent, or with `after=True` after that."""

    def arm(name: str, *, after: bool = False) -> None:
        blocking, aio = app._driver.blocking, app._driver.aio
        send, send_async = blocking._call, aio.call

        def may_die(call: RoundTrip[Any], *, sent: bool) -> None:
            if call.script.name == name and sent == after:
                raise ProcessDied

        def dies(call: RoundTrip[Any], *rest: Any) -> Any:
            may_die(call, sent=False)
            answer = send(call, *rest)
            may_die(call, sent=True)
            return answer

        async def dies_async(call: RoundTrip[Any], *rest: Any) -> Any:
            may_die(call, sent=False)
            answer = await send_async(call, *rest)
            may_die(call, sent=True)
            return answer

        monkeypatch.setattr(blocking, "_call", dies)
        monkeypatch.setattr(aio, "call", dies_async)
        for engine in (blocking, aio):
            several = engine.send_parallel

            async def all_die(calls: Any, patience: float, several: Any = several) -> Any:
                if any(call.script.name == name for call in calls):
                    raise ProcessDied
                return await several(calls, patience)

            monkeypatch.setattr(engine, "send_parallel", all_die)

    return arm


def texts(mail: Any) -> list[Any]:
    return [(message.place, message.body) for message in mail]


async def test_all_chats_are_read_together(app: Penstock, do: Do):
    for name in "abc":
        await do(app.chats.create, ["ada", "bo"], id=name)
        await do(app.chats.get(name).send, "bo", name)
    mine = app.chats.of("ada")
    assert await do(mine.unread) == {"a": 1, "b": 1, "c": 1}
    mail = await do(mine.pull)
    assert sorted(texts(mail)) == sorted(texts(await do(mine.pull))) == [("a", "a"), ("b", "b"), ("c", "c")]
    assert mail.unread == 3
    await do(mine.ack, mail[:2])
    assert texts(await do(mine.pull)) == texts(mail[2:])
    await do(mine.ack, mail)
    assert await do(mine.unread) == {"a": 0, "b": 0, "c": 0}
    assert await do(app.chats.of("nobody").pull) == []


async def test_a_pull_shares_its_limit_between_chats(app: Penstock, do: Do):
    for name in "abcd":
        await do(app.chats.create, ["ada"], id=name)
    await do(app.chats.get("a").send_many, "ada", range(50))
    for name in "bcd":
        await do(app.chats.get(name).send, "ada", "x")
    mail = await do(app.chats.of("ada").pull, 8)
    assert {message.place for message in mail} == set("abcd")
    assert len(mail) <= 8
    assert len(await do(app.chats.of("ada").pull, 2)) == 2


async def test_waiting_for_news_of_many_chats_sends_no_commands(app: Penstock, do: Do, nodes: list[Any]):
    chats = [await do(app.chats.create, ["ada", "bo"]) for _ in range(12)]
    mine = app.chats.of("ada")
    for n in (3, 7, 3):
        waiting = asyncio.create_task(do(mine.pull, wait=20))
        await asyncio.sleep(0.5)
        before = sum(map(commands, nodes))
        await asyncio.sleep(0.5)
        assert sum(map(commands, nodes)) - before <= 2
        await do(chats[n].send, "bo", n)
        mail = await waiting
        assert texts(mail) == [(chats[n].id, n)]
        await do(mine.ack, mail)


async def test_a_waiting_pull_finds_a_new_chat(app: Penstock, do: Do):
    mine = app.chats.of("ada")
    waiting = asyncio.create_task(do(mine.pull, wait=20))
    await asyncio.sleep(0.2)
    chat = await do(app.chats.create, ["ada"], sender="bo", message="hi")
    assert texts(await waiting) == [(chat.id, "hi")]


async def test_each_device_is_notified_by_itself(app: Penstock, do: Do):
    chat = await do(app.chats.create, ["ada", "bo"])
    phone, laptop = app.chats.of("ada", "phone"), app.chats.of("ada", "laptop")
    for device in (phone, laptop):
        assert await do(device.pull) == []
    waiting = [asyncio.create_task(do(device.pull, wait=20)) for device in (phone, laptop)]
    await asyncio.sleep(0.3)
    await do(chat.send, "bo", "x")
    for mail in await asyncio.gather(*waiting):
        assert texts(mail) == [(chat.id, "x")]


async def test_a_sender_notifies_a_member_once_until_it_reads(app: Penstock, do: Do, nodes: list[Any]):
    chat = await do(app.chats.create, ["ada", "bo"])
    mine = app.chats.of("ada")
    assert await do(mine.pull) == []

    async def cost() -> int:
        before = sum(map(commands, nodes))
        await do(chat.send, "bo", "x")
        return sum(map(commands, nodes)) - before

    await cost()  # loads the scripts
    assert await cost() == 1
    await do(mine.ack, await do(mine.pull))
    assert await do(mine.pull) == []
    assert await cost() == 2
    assert await cost() == 1


# --- a process that dies between two round trips ---


async def test_dying_before_a_join_leaves_an_entry_that_reading_removes(app: Penstock, clock: Time, dying: Any, do: Do):
    chat = await do(app.chats.create, ["bo"], id="ops")
    dying("join")
    with pytest.raises(ProcessDied):
        await do(chat.join, "ada")
    mine = app.chats.of("ada")
    assert await do(mine.unread) == {}
    assert await entries(app, do, mine) == ["ops"]  # the join may still be under way: an entry is kept for an hour
    clock.advance(3601)
    assert await do(mine.unread) == {}
    assert await entries(app, do, mine) == []


async def test_dying_after_a_join_leaves_a_member_that_finds_the_chat(app: Penstock, dying: Any, do: Do):
    chat = await do(app.chats.create, ["bo"], id="ops")
    dying("join", after=True)
    with pytest.raises(ProcessDied):
        await do(chat.join, "ada")
    await do(chat.send, "bo", "x")
    mine = app.chats.of("ada")
    assert texts(await do(mine.pull)) == [("ops", "x")]
    assert await do(mine.unread) == {"ops": 1}


async def test_a_join_that_froze_for_two_hours_still_completes(app: Penstock, clock: Time, do: Do):
    chat = await do(app.chats.create, ["bo"], id="ops")
    joining = chat.join._make(chat, "ada")
    enlist = next(joining)
    entry = await do_call(app, enlist)
    clock.advance(7200)
    assert await do(app.chats.of("ada").unread) == {}  # removes the entry
    join = joining.send(entry)
    sure = joining.send(await do_call(app, join))
    await do_call(app, sure)
    assert await do(app.chats.of("ada").unread) == {"ops": 0}


async def test_dying_after_a_leave_leaves_an_entry_that_reading_removes(app: Penstock, dying: Any, do: Do):
    chat = await do(app.chats.create, ["ada", "bo"], id="ops")
    dying("leave", after=True)
    with pytest.raises(ProcessDied):
        await do(chat.leave, "ada")
    mine = app.chats.of("ada")
    assert await entries(app, do, mine) == ["ops"]
    assert await do(mine.pull) == []
    assert await entries(app, do, mine) == []


async def test_a_join_and_a_leave_in_any_order_never_lose_a_member(app: Penstock, do: Do):
    """In every order of the round trips of a join and of a leave: a member at the end has the chat in its index."""
    for order in orders("jjj", "lll"):
        chat = await do(app.chats.create, ["bo", "ada"])
        works = {"j": chat.join._make(chat, "ada"), "l": chat.leave._make(chat, "ada")}
        answers: dict[str, Any] = {"j": None, "l": None}
        for who in order:
            try:
                answers[who] = await do_call(app, works[who].send(answers[who]))
            except StopIteration:
                continue
        member = "ada" in {member.name for member in await do(chat.members)}
        found = chat.id in await entries(app, do, app.chats.of("ada"))
        assert found or not member, order
        await do(chat.delete)


async def test_dying_before_a_chat_is_created_leaves_entries_that_reading_removes(
    app: Penstock, clock: Time, dying: Any, do: Do
):
    dying("create")
    with pytest.raises(ProcessDied):
        await do(app.chats.create, ["ada", "bo"], sender="cy", message="hi", id="ops")
    clock.advance(3601)
    for member in ("ada", "bo", "cy"):
        assert await do(app.chats.of(member).unread) == {}
        assert await entries(app, do, app.chats.of(member)) == []


async def test_a_hint_that_its_sender_did_not_leave_is_left_by_a_send_an_hour_later(
    app: Penstock, clock: Time, do: Do, monkeypatch: pytest.MonkeyPatch
):
    chat = await do(app.chats.create, ["ada", "bo"], id="ops")
    mine = app.chats.of("ada")
    assert await do(mine.pull) == []
    sending = chat.send._make(chat, "bo", "lost hint")
    await do_call(app, next(sending))
    assert await do(mine.pull) == []
    await do(chat.send, "bo", "no second hint at once")
    assert await do(mine.pull) == []
    assert len(await do(app.chats.of("ada").pull)) == 2  # a new object checks every chat
    clock.advance(3601)
    await do(chat.send, "bo", "a second hint")
    assert len(await do(mine.pull)) == 3


async def test_a_message_that_arrives_during_the_first_check_is_not_missed(app: Penstock, do: Do):
    chat = await do(app.chats.create, ["ada", "bo"], id="ops")
    mine = app.chats.of("ada")
    looking = mine._check_all()
    step = next(looking)
    with contextlib.suppress(StopIteration):
        while True:
            answer = await do_call(app, step)
            if isinstance(step, Parallel):
                await do(chat.send, "bo", "meanwhile")
            step = looking.send(answer)
    assert texts(await do(mine.pull)) == [("ops", "meanwhile")]


async def test_after_a_quiet_minute_some_chats_are_checked_in_turn(
    app: Penstock, do: Do, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("penstock.messages.chats.QUIET_INTERVAL", 0.1)
    chats = [await do(app.chats.create, ["ada", "bo"]) for _ in range(5)]
    mine = app.chats.of("ada")
    assert await do(mine.pull) == []
    await do_call(app, next(chats[4].send._make(chats[4], "bo", "lost hint")))
    assert texts(await do(mine.pull, wait=20)) == [(chats[4].id, "lost hint")]


async def test_deleted_and_left_chats_are_ignored(app: Penstock, do: Do):
    chats = [await do(app.chats.create, ["ada", "bo"], sender="bo", message=n) for n in range(3)]
    mine = app.chats.of("ada")
    mail = await do(mine.pull)
    await do(chats[0].delete)
    await do(chats[1].kick, "ada")
    assert texts(await do(mine.pull)) == [(chats[2].id, 2)]
    await do(mine.ack, mail)
    assert await do(mine.unread) == {chats[2].id: 0}


async def test_hundreds_of_chats_are_checked_in_pages(app: Penstock):
    for _ in range(10):
        await asyncio.gather(*(app.chats.create.aio(["ada"]) for _ in range(25)))
    mine = app.chats.of("ada")
    assert len(await mine.unread.aio()) == 250
    assert await mine.pull.aio() == []


async def test_parallel_calls_survive_lost_connections_and_forgotten_scripts(app: Penstock, do: Do, nodes: list[Any]):
    made = [(await do(app.chats.create, ["ada"])).id for _ in range(5)]
    mine = app.chats.of("ada")
    for _ in range(2):
        for node in nodes:
            node.script_flush()
            node.client_kill_filter(_type="normal", skipme=True)
        assert await do(mine.unread) == dict.fromkeys(made, 0)


async def entries(app: Penstock, do: Do, mine: UserChats) -> list[str]:
    found = []
    page = await do_call(app, mine._index.page(b"-inf", 1000))
    found += [chat for chat, _ in page]
    return found


async def do_call(app: Penstock, call: Any) -> Any:
    assert isinstance(call, RoundTrip | Parallel)
    calls = call.round_trips if isinstance(call, Parallel) else (call,)
    answers = [await app._driver.aio.run(one) for one in calls]
    return answers if isinstance(call, Parallel) else answers[0]


def orders(first: str, second: str) -> Iterator[str]:
    """Every interleaving of two sequences."""
    if not first or not second:
        yield first + second
        return
    yield from (first[0] + rest for rest in orders(first[1:], second))
    yield from (second[0] + rest for rest in orders(first, second[1:]))
