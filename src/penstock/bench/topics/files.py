"""The cost of moving files through a channel, and of counting lines on the way."""

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

from penstock.bench.figures import Ratio, at_least, at_most, figure
from penstock.bench.rig import Rig
from penstock.bench.topic import Figures, Topic
from penstock.bench.transfers import BLOCK, SLOTS, Role, Transfer, TransferResult, run_transfers
from penstock.bench.usage import Usage
from penstock.messages.keys import LogKeys
from penstock.ops.raw_client import raw_client
from penstock.terminal.made_up_log import generate

TOPIC = Topic()

LIMIT = 64 << 20
"""Bytes that a channel may hold by default."""

_numbers = count(1)


class TransferRun:
    """Runs processes together. Holds the result of each, and the usage of the server."""

    def __init__(self, rig: Rig, name: str, *processes: tuple[Role, str], path: Path, amount: int = 0) -> None:
        prefix = rig.app.settings.prefix
        transfers = [
            Transfer(role, rig.address, prefix, name, receiver, str(path), amount) for role, receiver in processes
        ]
        before = rig.usage()
        self.processes: Sequence[TransferResult] = run_transfers(transfers)
        self.usage: Usage = rig.usage() - before

    @property
    def receivers(self) -> Sequence[TransferResult]:
        return self.processes[1:]

    @property
    def rate(self) -> float:
        """MB/s per receiver, from the common start until the last process ended, which may be the sender."""
        took = max(one.ended for one in self.processes) - min(one.began for one in self.processes)
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
def channel(rig: Rig, receivers: int, limit: int = LIMIT) -> Iterator[tuple[str, list[str]]]:
    """The name of a new channel, and the names of its receivers."""
    files = rig.app.files(f"bench-{next(_numbers)}")
    names = [f"receiver-{n}" for n in range(receivers)]
    files.open(names, limit=limit)
    try:
        yield files.name, names
    finally:
        files.delete()


def through_channel(rig: Rig, receivers: int, path: Path) -> TransferRun:
    with channel(rig, receivers) as (name, names):
        processes: list[tuple[Role, str]] = [("send", ""), *(("receive", receiver) for receiver in names)]
        return TransferRun(rig, name, *processes, path=path)


def by_bare_commands(rig: Rig, receivers: int, path: Path) -> TransferRun:
    """Transfer the file with SET and GET. Block size, blocks per round trip and in the server are as in a channel."""
    name = f"bare-{next(_numbers)}"
    base = LogKeys(rig.app.settings.prefix, "files", name).base
    with raw_client(rig.app) as client:
        for n in range(SLOTS):
            client.set(f"{base}user:{n}", os.urandom(BLOCK))
        try:
            readers: list[tuple[Role, str]] = [("get", str(n)) for n in range(receivers)]
            return TransferRun(rig, name, ("set", ""), *readers, path=path, amount=path.stat().st_size)
        finally:
            client.delete(*(f"{base}user:{n}" for n in range(SLOTS)))


@TOPIC.scenario
def throughput(rig: Rig) -> Figures:
    """One process sends to 1, 2 and 4 that receive, compared with bare SET and GET of blocks of the same size"""
    size, rounds = rig.at_pace(8, 96, 512), rig.at_pace(1, 5, 9)
    with file_of(os.urandom(size << 20)) as path:
        for receivers in (1, 2, 4):
            ours, bare = [], []
            for _ in range(rounds):
                ours.append(through_channel(rig, receivers, path))
                bare.append(by_bare_commands(rig, receivers, path))
            label = f"{receivers} receivers" if receivers > 1 else "1 receiver"
            ratio = Ratio(median(our.rate / their.rate for our, their in zip(ours, bare, strict=True)), "SET and GET")
            yield figure(label, [run.rate for run in ours], "MB/s", ratio=ratio, target=at_least(0.6, "ratio"))
            yield figure(f"{label}: MB/s", median(run.rate for run in ours), "MB/s", target=at_least(100))
            yield from costs(label, ours, bare)


def costs(label: str, ours: Sequence[TransferRun], bare: Sequence[TransferRun]) -> Figures:
    """CPU per MB that a receiver received."""
    parts: dict[str, Callable[[TransferRun], float]] = {
        "CPU of the server": lambda run: run.usage.server / run.megabytes,
        "CPU of the sender": lambda run: run.processes[0].cpu * 1e6 / run.processes[0].amount,
        "CPU of a receiver": lambda run: sum(one.cpu for one in run.receivers) / run.megabytes,
    }
    for part, of in parts.items():
        spent, other = ([of(run) * 1e3 for run in runs] for runs in (ours, bare))
        yield figure(f"{label}: {part}", spent, "ms/MB", ratio=Ratio(sum(spent) / sum(other), "SET and GET"))


@TOPIC.scenario
def counting(rig: Rig) -> Figures:
    """Count requests per day and country, from a channel filled beforehand, and while another process sends the log"""
    pages, rounds = rig.at_pace(1, 20, 80), rig.at_pace(1, 3, 5)
    text = "".join(f"{line}\n" for line in generate(25_000)).encode() * pages
    for what, least, data in (("plain", 300_000, text), ("gzip", 200_000, gzip.compress(text, 1))):
        with file_of(data, "access.log" + ".gz" * (what == "gzip")) as path:
            prefilled, live = [], []
            for _ in range(rounds):
                with channel(rig, 1, limit=2 * len(text) + LIMIT) as (name, names):
                    rig.app.files(name).send_lines(path, close=True)
                    prefilled.append(counted(rig, name, names, path))
                with channel(rig, 1) as (name, names):
                    live.append(TransferRun(rig, name, ("send_lines", ""), ("count", names[0]), path=path).receivers[0])
            yield figure(
                f"{what}, channel filled before", [one.rate for one in prefilled], "/s", target=at_least(least)
            )
            yield figure(f"{what}: per CPU second", [one.amount / one.cpu for one in prefilled], "lines")
            yield figure(f"{what}, while it is sent", [one.rate for one in live], "/s", target=at_least(least))


def counted(rig: Rig, name: str, names: Sequence[str], path: Path) -> TransferResult:
    return TransferRun(rig, name, ("count", names[0]), path=path).processes[0]


@TOPIC.scenario
def sharing(rig: Rig) -> Figures:
    """Count requests per day and country in one and in two processes, from a channel that was filled beforehand"""
    pages, rounds = rig.at_pace(2, 20, 60), rig.at_pace(1, 3, 5)
    text = "".join(f"{line}\n" for line in generate(25_000)).encode() * pages
    rates: dict[int, list[float]] = {1: [], 2: []}
    with file_of(text, "access.log") as path:
        for _ in range(rounds):
            for processes, found in rates.items():
                with channel(rig, 1, limit=2 * len(text) + LIMIT) as (name, names):
                    rig.app.files(name).send_lines(path, close=True)
                    counters: list[tuple[Role, str]] = [("count_shared", names[0])] * processes
                    results = TransferRun(rig, name, *counters, path=path).processes
                took = max(one.ended for one in results) - min(one.began for one in results)
                found.append(sum(one.amount for one in results) / took)
    yield figure("one process", rates[1], "lines/s")
    ratio = Ratio(median(two / one for one, two in zip(rates[1], rates[2], strict=True)), "one process")
    yield figure("two processes", rates[2], "lines/s", ratio=ratio, target=at_least(1.0, "ratio"))


@TOPIC.scenario
def idle(rig: Rig) -> Figures:
    """Commands while one sender waits for space in the channel and four receivers wait for files"""
    seconds = rig.at_pace(5, 20, 60)

    async def wait(full: str, empty: str, names: Sequence[str], path: Path) -> int:
        async with rig.app as app:
            tasks: list[asyncio.Task[Any]] = [asyncio.create_task(app.files(full).send.aio(path))]
            for receiver in names:
                tasks.append(asyncio.create_task(app.files(empty).receiver(receiver).blocks().fetch.aio()))
            return await rig.commands_while_waiting(tasks, 2, seconds)

    with (
        file_of(bytes(4 << 20)) as path,
        channel(rig, 1, limit=2 << 20) as (full, _),
        channel(rig, 4) as (empty, names),
    ):
        sent = asyncio.run(wait(full, empty, names, path))
    yield figure("commands in 10 s", sent / seconds * 10, "", target=at_most(2))


@TOPIC.scenario
def memory(rig: Rig) -> Figures:
    """Peak growth of the server's memory during a transfer, sampled every 10 ms; the limit is 64 MiB"""
    with file_of(os.urandom(rig.at_pace(80, 256, 1024) << 20)) as path:
        for receivers in (1, 4):
            with PeakMemory(rig) as peak:
                through_channel(rig, receivers, path)
            ratio = Ratio(peak.bytes / LIMIT, "the limit")
            label = f"{receivers} receivers" if receivers > 1 else "1 receiver"
            yield figure(f"{label}, at most", peak.bytes / 1e6, "MB", ratio=ratio, target=at_most(1.15, "ratio"))


class PeakMemory(threading.Thread):
    """Samples the server's memory: the peak above the first sample."""

    def __init__(self, rig: Rig) -> None:
        super().__init__(daemon=True)
        self._rig = rig
        self._base = rig.memory()
        self._over = threading.Event()
        self.bytes = 0

    def run(self) -> None:
        with raw_client(self._rig.app) as client:
            while not self._over.wait(0.01):
                self.bytes = max(self.bytes, int(client.info("memory")["used_memory"]) - self._base)

    def __enter__(self) -> PeakMemory:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()
