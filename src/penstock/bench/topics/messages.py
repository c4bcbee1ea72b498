"""The cost of a message: sending, pulling, acknowledging, storing and waiting, with few and with many members."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from statistics import median

from penstock.bench.figures import Figure, Ratio, at_least, at_most, figure
from penstock.bench.rig import Rig, timed
from penstock.bench.topic import Figures, Topic
from penstock.messages.chat import Chat
from penstock.ops.raw_client import raw_client

TOPIC = Topic()

BODY = "x" * 98
"""A hundred bytes of JSON."""

SENDER = "cy"


def chat_of(rig: Rig, members: int) -> Chat:
    return rig.app.chats.create([f"member {n}" for n in range(members)], sender=SENDER)


@TOPIC.scenario
def send(rig: Rig) -> Figures:
    """Send one message after another to chats of two and of a thousand members"""
    rounds, times = rig.at_pace(3, 7, 15), rig.at_pace(200, 1000, 3000)
    for members in (2, 1000):
        chat = chat_of(rig, members)
        chat.send(SENDER, BODY)
        trivial, durations = [], []
        for _ in range(rounds):
            trivial.append(timed(rig.send_trivial, times))
            durations.append(timed(lambda: chat.send(SENDER, BODY), times))  # noqa: B023 - called in this iteration
        ratios = [ours / bare for ours, bare in zip(durations, trivial, strict=True)]
        ratio = Ratio(median(ratios), "the time of a trivial EVALSHA")
        name = f"send, {members:,} members"
        yield figure(name, [one * 1e6 for one in durations], "µs", ratio=ratio, target=at_most(1.5, "ratio"))
        used = rig.usage_of(lambda: chat.send(SENDER, BODY), times)  # noqa: B023
        yield figure(f"{name}, CPU of the server", used.server / times * 1e6, "µs")
        rig.clear()


@TOPIC.scenario
def send_many(rig: Rig) -> Figures:
    """Send many messages to one chat: 500 per round trip, and one per call from 100 concurrent asyncio tasks"""
    rounds, count = rig.at_pace(1, 5, 9), rig.at_pace(5_000, 20_000, 100_000)
    chat = chat_of(rig, 200)
    chat.send(SENDER, BODY)
    rates = [count / timed(lambda: chat.send_many(SENDER, [BODY] * count)) for _ in range(rounds)]
    yield figure(
        "send_many, 200 members", rates, "messages/s", ratio=rig.rate_ratio(median(rates)), target=at_least(50_000)
    )
    one = [1 / rig.timed_aio(lambda: chat.send.aio(SENDER, BODY), count // 5, 100) for _ in range(rounds)]
    yield figure("send, 100 concurrent tasks", one, "messages/s", ratio=rig.rate_ratio(median(one)))


@TOPIC.scenario
def pull_and_ack(rig: Rig) -> Figures:
    """Pull and acknowledge 200 messages at a time, in a chat of a thousand members"""
    rounds = rig.at_pace(3, 20, 100)
    chat = chat_of(rig, 1000)
    chat.send_many(SENDER, [BODY] * 200 * rounds)
    reader = chat.reader("member 7")
    reader.pull()
    before, began = rig.commands(), time.perf_counter()
    for _ in range(rounds):
        mail = reader.pull(200)
        reader.ack(mail[-1])
    took, commands = (time.perf_counter() - began) / rounds, (rig.commands() - before) / rounds
    yield figure("pull and ack of 200", took * 1e3, "ms", ratio=time_ratio(rig, took))
    yield figure("pull and ack of 200, round trips", round(commands, 1), "commands", target=at_most(2))
    follow = rig.app.chats.get(chat.id).follow("member 8", limit=200)
    before = rig.commands()
    took = timed(lambda: next(follow), 200 * rounds)
    yield figure("follow", 1 / took, "messages/s")
    yield figure("follow, round trips for 200", (rig.commands() - before) / rounds, "commands")


def time_ratio(rig: Rig, seconds: float) -> Ratio:
    return Ratio(seconds / rig.trivial_usage.seconds * 1e4, "the time of a trivial EVALSHA")


@TOPIC.scenario
def memory(rig: Rig) -> Figures:
    """Server memory of a message without its payload, of many members with unread messages, and of a chat at rest"""
    count = rig.at_pace(2_000, 20_000, 100_000)
    chat = chat_of(rig, 2)
    before = rig.memory()
    chat.send_many(SENDER, [BODY] * count)
    overhead = (rig.memory() - before) / count - len(BODY) - 2
    yield figure("a message of 100 bytes, without the payload", overhead, "B", target=at_most(60))
    with raw_client(rig.app) as client:
        own = client.memory_usage(chat._log.keys.base + "own", samples=0)
    yield figure("of these, so that its sender need not read it", own / count, "B", target=at_most(8))
    rig.clear()
    before = rig.memory()
    chat = chat_of(rig, 1000)
    chat.send_many(SENDER, [BODY] * 1000)
    held = rig.memory() - before
    yield figure("1,000 members x 1,000 unread, and their indexes", held / 1e6, "MB", target=at_most(1))
    rig.clear()
    chats = rig.at_pace(100, 1000, 5000)
    before = rig.memory()
    idle = [rig.app.chats.create(["ada"], sender=SENDER, message=BODY) for _ in range(chats)]
    for one in idle:
        for member in ("ada", SENDER):
            (reader := one.reader(member)).ack(reader.pull()[-1])
    held = rig.memory() - before
    rig.expire_short_lived_keys()
    after = rig.memory() - before
    yield figure("a chat of two with nothing unread", after / chats, "B", target=at_most(1000))
    yield figure("replies kept for replays, for a minute", (held - after) / chats, "B/chat")


@TOPIC.scenario
def live(rig: Rig) -> Figures:
    """From the send of a message until a waiting follower has it"""
    times = rig.at_pace(20, 200, 1000)
    chat = chat_of(rig, 2)
    durations = asyncio.run(_latencies(rig, chat, times))
    yield figure("send to follower", [one * 1e3 for one in durations], "ms", ratio=time_ratio(rig, median(durations)))


async def _latencies(rig: Rig, chat: Chat, times: int) -> list[float]:
    durations: list[float] = []
    async with rig.app:
        follow = chat.follow("member 1")
        for n in range(times):
            waiting = asyncio.ensure_future(anext(follow))
            await asyncio.sleep(0.005)
            began = time.perf_counter()
            await chat.send.aio(SENDER, n)
            await waiting
            durations.append(time.perf_counter() - began)
    return durations


@TOPIC.scenario
def many_chats(rig: Rig) -> Figures:
    """One user in very many chats: the unread counts of all, and the pull of a new message in one"""
    chats = rig.at_pace(100, 1000, 5000)
    made = asyncio.run(_made(rig, chats))
    mine = rig.app.chats.of("ada")
    yield figure(f"unread of {chats:,} chats", timed(mine.unread) * 1e3, "ms")
    mine.pull()
    yield from _news(rig, made)


async def _made(rig: Rig, chats: int) -> list[Chat]:
    async with rig.app:
        chats_made: list[Chat] = []
        for _ in range(0, chats, 50):
            chats_made += await asyncio.gather(*(rig.app.chats.create.aio(["ada"], sender=SENDER) for _ in range(50)))
        return chats_made


def _news(rig: Rig, made: Sequence[Chat]) -> list[Figure]:
    mine = rig.app.chats.of("ada")
    mine.pull()
    durations = []
    for chat in made[:20]:
        chat.send(SENDER, BODY)
        durations.append(timed(mine.pull) * 1e3)
        mine.ack(mine.pull())
    return [figure("pull of one new message among them", durations, "ms")]
