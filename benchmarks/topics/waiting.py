"""Waiting and waking: how soon a waiting call hears of an event, and what thousands that wait cost."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from penstock.bench.figures import Figure, Ratio, at_most, figure
from penstock.bench.rig import Rig
from penstock.bench.topic import Figures, Topic
from penstock.core.keys import wake_channel
from penstock.ops.raw_client import raw_client

TOPIC = Topic()

PAUSE = 0.003
"""Seconds between two events, so that whatever waits is asleep."""


@TOPIC.scenario
def wake_up(rig: Rig) -> Figures:
    """From the post of a message until a waiting pull returns it, beside a bare blocked read"""
    times = rig.at_pace(30, 300, 1000)
    box = rig.app.mailbox("wake-up")

    def pull() -> float:
        (message,) = box.pull(wait=30)
        arrived = time.perf_counter()
        box.ack(message)
        return arrived

    with raw_client(rig.app) as client:
        key = rig.tasks.queue.key("wake-up")

        def read() -> float:
            client.blpop(key, 30)
            rig.send_trivial()
            return time.perf_counter()

        ours, bare = [], []
        for _ in range(3):  # in turn, because the machine changes its speed
            bare += _latencies(read, lambda: client.rpush(key, 1), times // 3)
            ours += _latencies(pull, lambda: box.post(1), times // 3)
    ratio = Ratio(sorted(ours)[len(ours) // 2] / sorted(bare)[len(bare) // 2], "a blocked BLPOP and a trivial EVALSHA")
    yield figure("post to pull", [one * 1e3 for one in ours], "ms", ratio=ratio)
    yield figure("RPUSH to BLPOP, and a trivial EVALSHA", [one * 1e3 for one in bare], "ms")


def _latencies(wait: Callable[[], float], send: Callable[[], object], times: int) -> list[float]:
    """Seconds from each `send` until `wait` returned. `wait` runs in a thread, and returns the time at its end."""
    arrived: queue.SimpleQueue[float] = queue.SimpleQueue()

    def wait_repeatedly() -> None:
        for _ in range(times):
            arrived.put(wait())

    thread = threading.Thread(target=wait_repeatedly)
    thread.start()
    durations = []
    for _ in range(times):
        time.sleep(PAUSE)
        began = time.perf_counter()
        send()
        durations.append(arrived.get() - began)
    thread.join()
    return durations


@TOPIC.scenario
def users(rig: Rig) -> Figures:
    """Thousands of users of one process, each waiting for a mailbox of its own"""
    yield from asyncio.run(_users(rig, rig.at_pace(500, 10_000, 10_000)))


async def _users(rig: Rig, count: int) -> list[Figure]:
    async with rig.app as app:
        boxes = [app.mailbox(f"user {n}") for n in range(count)]
        before, scripts = await asyncio.to_thread(_connections, rig), await asyncio.to_thread(_scripts, rig)
        cpu = time.process_time()
        waiting = [asyncio.create_task(box.pull.aio(wait=600)) for box in boxes]
        await asyncio.to_thread(_until_scripts, rig, scripts + count)
        connections = await asyncio.to_thread(_connections, rig) - before
        cpu = time.process_time() - cpu
        began = time.perf_counter()
        for start in range(0, count, 100):
            await asyncio.gather(*(box.post.aio(1) for box in boxes[start : start + 100]))
        await asyncio.gather(*waiting)
        took = time.perf_counter() - began
    name = f"{count:,} waiting users"
    return [
        figure(f"connections of {name}", connections, "", target=at_most(16)),
        figure(f"CPU to begin to wait, {name}", cpu / count * 1e6, "µs"),
        figure(f"{name}: a message to each, all pulled", count / took, "messages/s"),
    ]


@TOPIC.scenario
def absent(rig: Rig) -> Figures:
    """One message to 10,000 waiting processes of which 90 % have died, woken by the sender alone"""
    count, rounds = 10_000, rig.at_pace(1, 5, 9)
    box = rig.app.mailbox("absent")
    channels = [wake_channel(f"{n:05}") for n in range(count)]
    alive = channels[9::10]
    durations: list[float] = []
    box.ack(box.post(0))
    with raw_client(rig.app) as client:
        subscribed = client.pubsub()
        subscribed.ssubscribe(*alive)
        confirmed = 0
        while confirmed < len(alive):
            confirmed += subscribed.get_message(timeout=1) is not None
        for _ in range(rounds):
            for channel in channels:
                rig.app._driver.blocking.run(box._log.pull("", limit=1, address=f"{channel}/1", ttl=600))
            durations.append(_until_all_hear(subscribed, len(alive), lambda: box.post(1)))
            box.ack(box.pull()[-1])
        subscribed.close()
    yield figure("until all living have heard", [one * 1e3 for one in durations], "ms", target=at_most(50))


def _until_all_hear(subscribed: Any, count: int, send: Callable[[], object]) -> float:
    """Reads the bytes of the messages only, because making objects of them takes longer than to send them."""
    thread, socket, heard = threading.Thread(target=send), subscribed.connection._sock, 0
    socket.settimeout(30)
    began = time.perf_counter()
    thread.start()
    last = b""
    while heard < count:
        received = last + socket.recv(1 << 16)
        heard += received.count(b"\r\n1 0\r\n")
        last = received[-6:]
    took = time.perf_counter() - began
    thread.join()
    return took


@TOPIC.scenario
def workers(rig: Rig) -> Figures:
    """Scripts that run for one message in a mailbox that 200 idle workers share"""
    yield figure(
        "scripts for one message", asyncio.run(_workers(rig, 200, rig.at_pace(5, 50, 200))), "", target=at_most(4)
    )


async def _workers(rig: Rig, count: int, times: int) -> float:
    async with rig.app as app:
        box = app.mailbox("shared")

        async def work() -> None:
            while True:
                for claimed in await box.claim.aio(wait=None):
                    await claimed.ack.aio()

        tasks = [asyncio.create_task(work()) for _ in range(count)]
        await asyncio.sleep(2)
        before = await asyncio.to_thread(_scripts, rig)
        for _ in range(times):
            await box.post.aio(1)
            await asyncio.sleep(0.1)  # longer than the pause after which a witness looks
        scripts = await asyncio.to_thread(_scripts, rig) - before
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        return scripts / times


@TOPIC.scenario
def idle(rig: Rig) -> Figures:
    """Commands of a process in which 1,000 pulls, a chat follower and a lock wait, and nothing happens"""
    seconds = rig.at_pace(5, 20, 60)
    yield figure("commands in 10 s", asyncio.run(_idle(rig, seconds)) / seconds * 10, "", target=at_most(4))


async def _idle(rig: Rig, seconds: float) -> int:
    async with rig.app as app:
        held = await app.lock("bench-idle", lease=60).acquire.aio()
        chat = await app.chats.create.aio(["ada"])
        waiting: list[asyncio.Future[Any]] = [
            asyncio.create_task(app.mailbox(f"idle {n}").pull.aio(wait=600)) for n in range(1000)
        ]
        waiting.append(asyncio.create_task(app.lock("bench-idle", lease=60, wait=600).acquire.aio()))
        waiting.append(asyncio.create_task(chat.follow("ada").fetch.aio()))
        sent = await rig.commands_while_waiting(waiting, 4, seconds)
        await held.release.aio()
        return sent


def _connections(rig: Rig) -> int:
    with raw_client(rig.app) as client:
        return len(client.client_list())


def _scripts(rig: Rig) -> int:
    with raw_client(rig.app) as client:
        return sum(one["calls"] for name, one in client.info("commandstats").items() if "evalsha" in name)


def _until_scripts(rig: Rig, count: int) -> None:
    while _scripts(rig) < count:
        time.sleep(0.1)
