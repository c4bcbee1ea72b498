"""What it costs to move files through a window in the server, and to count lines on the way."""

from __future__ import annotations

import asyncio
import gzip
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

from penstock.bench.carriers import BLOCK, SLOTS, Carried, Order, Role, carry
from penstock.bench.figures import Ratio, at_least, at_most, figure
from penstock.bench.stand import Stand
from penstock.bench.topic import Figures, Topic
from penstock.bench.usage import Usage
from penstock.messages.keys import LogKeys
from penstock.ops.raw_client import raw_client
from penstock.terminal.made_up_log import generate

TOPIC = Topic()

WINDOW = 64 << 20
"""Bytes: what a channel holds unless it is told otherwise."""

_numbers = count(1)


class Run:
    """What parties that carried at once did, and what it took of the server."""

    def __init__(self, stand: Stand, name: str, *parties: tuple[Role, str], path: Path, amount: int = 0) -> None:
        prefix = stand.app.settings.prefix
        orders = [Order(role, stand.address, prefix, name, who, str(path), amount) for role, who in parties]
        before = stand.usage()
        self.parties: Sequence[Carried] = carry(orders)
        self.used: Usage = stand.usage() - before

    @property
    def receivers(self) -> Sequence[Carried]:
        return self.parties[1:]

    @property
    def rate(self) -> float:
        """MB/s that each receiver had, from when all began until the last one ended; the one that sends may be it."""
        took = max(one.ended for one in self.parties) - min(one.began for one in self.parties)
        return self.receivers[0].amount / took / 1e6

    @property
    def megabytes(self) -> float:
        return sum(one.amount for one in self.receivers) / 1e6


@contextmanager
def file_of(data: bytes, name: str = "bench") -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        path = Path(folder, name)
        path.write_bytes(data)
        yield path


@contextmanager
def channel(stand: Stand, receivers: int, limit: int = WINDOW) -> Iterator[tuple[str, list[str]]]:
    """A new one, and its receivers."""
    files = stand.app.files(f"bench-{next(_numbers)}")
    names = [f"receiver-{n}" for n in range(receivers)]
    files.open(names, limit=limit)
    try:
        yield files.name, names
    finally:
        files.delete()


def through_channel(stand: Stand, receivers: int, path: Path) -> Run:
    with channel(stand, receivers) as (name, names):
        parties: list[tuple[Role, str]] = [("send", ""), *(("receive", who) for who in names)]
        return Run(stand, name, *parties, path=path)


def by_bare_commands(stand: Stand, receivers: int, path: Path) -> Run:
    """The same file, by blocks of the same size, as many in a round trip, into as large a window."""
    name = f"bare-{next(_numbers)}"
    base = LogKeys(stand.app.settings.prefix, "files", name).base
    with raw_client(stand.app) as client:
        for n in range(SLOTS):
            client.set(f"{base}user:{n}", os.urandom(BLOCK))
        try:
            readers: list[tuple[Role, str]] = [("get", str(n)) for n in range(receivers)]
            return Run(stand, name, ("set", ""), *readers, path=path, amount=path.stat().st_size)
        finally:
            client.delete(*(f"{base}user:{n}" for n in range(SLOTS)))


@TOPIC.scenario
def throughput(stand: Stand) -> Figures:
    """One sends, some receive, each a process; beside it one that SETs and as many that GET, blocks of the same size"""
    size, rounds = stand.at_pace(8, 96, 512), stand.at_pace(1, 5, 9)
    with file_of(os.urandom(size << 20)) as path:
        for receivers in (1, 2, 4):
            ours, bare = [], []
            for _ in range(rounds):
                ours.append(through_channel(stand, receivers, path))
                bare.append(by_bare_commands(stand, receivers, path))
            many = f"{receivers} receivers" if receivers > 1 else "1 receiver"
            ratio = Ratio(median(our.rate / their.rate for our, their in zip(ours, bare, strict=True)), "SET and GET")
            yield figure(many, [run.rate for run in ours], "MB/s", ratio=ratio, target=at_least(0.6, "ratio"))
            yield figure(f"{many}: the same", median(run.rate for run in ours), "MB/s", target=at_least(100))
            yield from costs(many, ours, bare)


def costs(many: str, ours: Sequence[Run], bare: Sequence[Run]) -> Figures:
    """CPU for each MB that a receiver had."""
    parts: dict[str, Callable[[Run], float]] = {
        "CPU of the server": lambda run: run.used.server / run.megabytes,
        "CPU of the sender": lambda run: run.parties[0].cpu * 1e6 / run.parties[0].amount,
        "CPU of a receiver": lambda run: sum(one.cpu for one in run.receivers) / run.megabytes,
    }
    for part, of in parts.items():
        spent, other = ([of(run) * 1e3 for run in runs] for runs in (ours, bare))
        yield figure(f"{many}: {part}", spent, "ms/MB", ratio=Ratio(sum(spent) / sum(other), "SET and GET"))


@TOPIC.scenario
def counting(stand: Stand) -> Figures:
    """Requests per day and country: one sends lines, one counts; and counted from what lies there already"""
    pages, rounds = stand.at_pace(1, 20, 80), stand.at_pace(1, 3, 5)
    text = "".join(f"{line}\n" for line in generate(25_000)).encode() * pages
    for what, goal, data in (("plain", 300_000, text), ("gzip", 200_000, gzip.compress(text, 1))):
        with file_of(data, "access.log" + ".gz" * (what == "gzip")) as path:
            there, at_once = [], []
            for _ in range(rounds):
                with channel(stand, 1, limit=2 * len(text) + WINDOW) as (name, names):
                    stand.app.files(name).send_lines(path, close=True)
                    there.append(counted(stand, name, names, path))
                with channel(stand, 1) as (name, names):
                    at_once.append(Run(stand, name, ("send_lines", ""), ("count", names[0]), path=path).receivers[0])
            yield figure(f"{what}, lines that lie there", [one.rate for one in there], "/s", target=at_least(goal))
            yield figure(f"{what}: for each CPU second", [one.amount / one.cpu for one in there], "lines")
            yield figure(f"{what}, while they are sent", [one.rate for one in at_once], "/s", target=at_least(goal))


def counted(stand: Stand, name: str, names: Sequence[str], path: Path) -> Carried:
    return Run(stand, name, ("count", names[0]), path=path).parties[0]


@TOPIC.scenario
def idle(stand: Stand) -> Figures:
    """Commands while a sender waits at a full window, and four receivers wait for more"""
    seconds = stand.at_pace(5, 20, 60)

    async def wait(full: str, empty: str, names: Sequence[str], path: Path) -> int:
        async with stand.app as app:
            tasks: list[asyncio.Task[Any]] = [asyncio.create_task(app.files(full).send.aio(path))]
            for who in names:
                tasks.append(asyncio.create_task(app.files(empty).receiver(who).blocks().fetch.aio()))
            await asyncio.sleep(2)  # until all wait
            before = await asyncio.to_thread(stand.commands)
            await asyncio.sleep(seconds)
            sent = await asyncio.to_thread(stand.commands) - before
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            return sent

    with (
        file_of(bytes(4 << 20)) as path,
        channel(stand, 1, limit=2 << 20) as (full, _),
        channel(stand, 4) as (empty, names),
    ):
        sent = asyncio.run(wait(full, empty, names, path))
    yield figure("commands in 10 s", sent / seconds * 10, "", target=at_most(2))


@TOPIC.scenario
def memory(stand: Stand) -> Figures:
    """What the server holds at most beside what it held before, looked at every 10 ms; the window is 64 MiB"""
    with file_of(os.urandom(stand.at_pace(80, 256, 1024) << 20)) as path:
        for receivers in (1, 4):
            with Peak(stand) as peak:
                through_channel(stand, receivers, path)
            ratio = Ratio(peak.bytes / WINDOW, "the window")
            many = f"{receivers} receivers" if receivers > 1 else "1 receiver"
            yield figure(f"{many}, at most", peak.bytes / 1e6, "MB", ratio=ratio, target=at_most(1.15, "ratio"))


class Peak(threading.Thread):
    """The most that the server used over what it used at first."""

    def __init__(self, stand: Stand) -> None:
        super().__init__(daemon=True)
        self._stand = stand
        self._base = stand.memory()
        self._over = threading.Event()
        self.bytes = 0

    def run(self) -> None:
        with raw_client(self._stand.app) as client:
            while not self._over.wait(0.01):
                self.bytes = max(self.bytes, int(client.info("memory")["used_memory"]) - self._base)

    def __enter__(self) -> Peak:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()
