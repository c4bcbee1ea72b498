"""What a message costs: sent, pulled and acknowledged, kept, waited for; with few and with many members."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from statistics import median

from penstock.bench.figures import Figure, Ratio, at_least, at_most, figure
from penstock.bench.stand import Stand, timed
from penstock.bench.topic import Figures, Topic
from penstock.messages.chat import Chat

TOPIC = Topic()

BODY = "x" * 98
"""A hundred bytes of JSON."""

SENDER = "cy"


def chat_of(stand: Stand, members: int) -> Chat:
    return stand.app.chats.create([f"member {n}" for n in range(members)], sender=SENDER)


@TOPIC.scenario
def send(stand: Stand) -> Figures:
    """One message after the other, into chats of a few and of a thousand members"""
    rounds, times = stand.at_pace(3, 7, 15), stand.at_pace(200, 1000, 3000)
    for members in (2, 1000):
        chat = chat_of(stand, members)
        chat.send(SENDER, BODY)
        trivial, takes = [], []
        for _ in range(rounds):
            trivial.append(timed(stand.send_trivial, times))
            takes.append(timed(lambda: chat.send(SENDER, BODY), times))  # noqa: B023 - called at once
        ratios = [ours / bare for ours, bare in zip(takes, trivial, strict=True)]
        ratio = Ratio(median(ratios), "the time of a trivial EVALSHA")
        name = f"send, {members:,} members"
        yield figure(name, [one * 1e6 for one in takes], "µs", ratio=ratio, target=at_most(1.5, "ratio"))
        used = stand.used(lambda: chat.send(SENDER, BODY), times)  # noqa: B023
        yield figure(f"{name}, CPU of the server", used.server / times * 1e6, "µs")
        stand.clear()


@TOPIC.scenario
def send_many(stand: Stand) -> Figures:
    """Many messages into one chat, 500 a round trip, and by a hundred asyncio tasks at once, one a call"""
    rounds, count = stand.at_pace(1, 5, 9), stand.at_pace(5_000, 20_000, 100_000)
    chat = chat_of(stand, 200)
    chat.send(SENDER, BODY)
    rates = [count / timed(lambda: chat.send_many(SENDER, [BODY] * count)) for _ in range(rounds)]
    yield figure(
        "send_many, 200 members", rates, "messages/s",
        ratio=stand.to_trivials(median(rates)), target=at_least(50_000),
    )  # fmt: skip
    one = [1 / stand.awaited(lambda: chat.send.aio(SENDER, BODY), count // 5, 100) for _ in range(rounds)]
    yield figure("send, 100 tasks at once", one, "messages/s", ratio=stand.to_trivials(median(one)))


@TOPIC.scenario
def pull_and_ack(stand: Stand) -> Figures:
    """Two hundred messages pulled and acknowledged, in a chat of a thousand members"""
    rounds = stand.at_pace(3, 20, 100)
    chat = chat_of(stand, 1000)
    chat.send_many(SENDER, [BODY] * 200 * rounds)
    reader = chat.reader("member 7")
    reader.ack(0)
    before, began = stand.commands(), time.perf_counter()
    for _ in range(rounds):
        mail = reader.pull(200)
        reader.ack(mail[-1])
    took, commands = (time.perf_counter() - began) / rounds, (stand.commands() - before) / rounds
    yield figure("pull and ack of 200", took * 1e3, "ms", ratio=stand_ratio(stand, took))
    yield figure("pull and ack of 200, round trips", round(commands, 1), "commands", target=at_most(2))
    follow = stand.app.chats.get(chat.id).follow("member 8", limit=200)
    before = stand.commands()
    took = timed(lambda: next(follow), 200 * rounds)
    yield figure("follow", 1 / took, "messages/s")
    yield figure("follow, round trips for 200", (stand.commands() - before) / rounds, "commands")


def stand_ratio(stand: Stand, seconds: float) -> Ratio:
    return Ratio(seconds / stand.trivial_usage.seconds * 1e4, "the time of a trivial EVALSHA")


@TOPIC.scenario
def memory(stand: Stand) -> Figures:
    """What the server holds: a message beside its payload, many who have not read, a chat at rest"""
    count = stand.at_pace(2_000, 20_000, 100_000)
    chat = chat_of(stand, 2)
    before = stand.memory()
    chat.send_many(SENDER, [BODY] * count)
    beside = (stand.memory() - before) / count - len(BODY) - 2
    yield figure("a message of 100 bytes, beside these", beside, "B", target=at_most(60))
    stand.clear()
    before = stand.memory()
    chat = chat_of(stand, 1000)
    chat.send_many(SENDER, [BODY] * 1000)
    held = stand.memory() - before
    yield figure("1,000 members x 1,000 unread, and their indexes", held / 1e6, "MB", target=at_most(1))
    stand.clear()
    chats = stand.at_pace(100, 1000, 5000)
    before = stand.memory()
    idle = [stand.app.chats.create(["ada"], sender=SENDER, message=BODY) for _ in range(chats)]
    for one in idle:
        for member in ("ada", SENDER):
            one.reader(member).ack(1)
    held = stand.memory() - before
    stand.forget_calls()
    after = stand.memory() - before
    yield figure("a chat of two in which all is read", after / chats, "B", target=at_most(1000))
    yield figure("what recognises a call that is sent again, for a minute", (held - after) / chats, "B/chat")


@TOPIC.scenario
def live(stand: Stand) -> Figures:
    """From a send until a follower has it, the follower asleep"""
    times = stand.at_pace(20, 200, 1000)
    chat = chat_of(stand, 2)
    takes = asyncio.run(_latencies(stand, chat, times))
    yield figure("send to follower", [one * 1e3 for one in takes], "ms", ratio=stand_ratio(stand, median(takes)))


async def _latencies(stand: Stand, chat: Chat, times: int) -> list[float]:
    takes: list[float] = []
    async with stand.app:
        follow = chat.follow("member 1")
        for n in range(times):
            waiting = asyncio.ensure_future(anext(follow))
            await asyncio.sleep(0.005)
            began = time.perf_counter()
            await chat.send.aio(SENDER, n)
            await waiting
            takes.append(time.perf_counter() - began)
    return takes


@TOPIC.scenario
def many_chats(stand: Stand) -> Figures:
    """One user in very many chats: unread counts of all, and news of one"""
    chats = stand.at_pace(100, 1000, 5000)
    made = asyncio.run(_made(stand, chats))
    mine = stand.app.chats.of("ada")
    yield figure(f"unread of {chats:,} chats", timed(mine.unread) * 1e3, "ms")
    mine.pull()
    yield from _news(stand, made)


async def _made(stand: Stand, chats: int) -> list[Chat]:
    async with stand.app:
        made: list[Chat] = []
        for _ in range(0, chats, 50):
            made += await asyncio.gather(*(stand.app.chats.create.aio(["ada"], sender=SENDER) for _ in range(50)))
        return made


def _news(stand: Stand, made: Sequence[Chat]) -> list[Figure]:
    mine = stand.app.chats.of("ada")
    mine.pull()
    takes = []
    for chat in made[:20]:
        chat.send(SENDER, BODY)
        takes.append(timed(mine.pull) * 1e3)
        mine.ack(mine.pull())
    return [figure("pull of one with news among them", takes, "ms")]
