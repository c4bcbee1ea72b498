"""Processes that send and count a log larger than the channel are killed again and again, yet the counts are exact.

The log has some megabytes here, and a gigabyte with `make flood`.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from tests.chaos import flood, rotated_log, storm
from tests.files.test_recognition import rotate
from tests.servers import Server
from tests.speed import Deadline, scaled

MB = int(os.environ.get("PENSTOCK_FLOOD_MB", "60"))
LARGE = MB >= 500
LIMIT = (64 if LARGE else 4) << 20
EVERY = 2.0 if LARGE else 0.5
"""Seconds from one kill to the next; more on a slow machine, where a process gets less done meanwhile."""

DAY = 0.7
"""Seconds from one rotation of a log to the next, in which it is written in so many parts."""

PARTS = 5

Role: TypeAlias = tuple[Callable[..., None], tuple[Any, ...]]

RECEIVERS = ["agg-1", "agg-2", "agg-3"]


class MemoryWatch(threading.Thread):
    """Measures every 50 ms how much more memory the server uses than at the start."""

    def __init__(self, server: Server) -> None:
        super().__init__()
        self._client = server.client
        self._base = self._used()
        self._over = threading.Event()
        self.peak = self.measurements = 0

    def _used(self) -> int:
        return int(self._client.info("memory")["used_memory"])

    def run(self) -> None:
        while not self._over.wait(0.05):
            self.peak = max(self.peak, self._used() - self._base)
            self.measurements += 1

    def __enter__(self) -> MemoryWatch:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()


class RestartedProcesses:
    """The senders and receivers. Each is started again after it was killed."""

    def __init__(self, roles: dict[str, Role]) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tests.chaos.flood"])
        self._roles = roles
        self.running = {name: self._start(name) for name in roles}
        self.kills = 0

    def _start(self, name: str) -> Any:
        work, args = self._roles[name]
        process = self._context.Process(target=work, args=args, daemon=True)
        process.start()
        return process

    def kill_one(self, chance: random.Random) -> None:
        name = chance.choice(sorted(self.running))
        process = self.running[name]
        process.kill()
        process.join()
        if process.exitcode:
            self.kills += 1
            self.running[name] = self._start(name)

    def check_ended(self) -> None:
        """A process that has ended by itself must have succeeded. It is not started again."""
        for name, process in list(self.running.items()):
            if process.exitcode is not None:
                assert process.exitcode == 0, f"{name} ended with {process.exitcode}"
                del self.running[name]


def test_counts_are_exact_while_senders_and_receivers_are_killed(start: Callable[..., Server], tmp_path: Path):
    seed = storm.seed()
    chance = random.Random(seed)
    faulthandler.cancel_dump_traceback_later()  # the test sets its own deadline
    path = tmp_path / "access.log.gz"
    truth = flood.make_log(path, MB << 20, seed)
    server = start()
    roles: dict[str, Role] = {"sender": (flood.send, (server.address, str(path), RECEIVERS, LIMIT))}
    roles |= {name: (flood.count, (server.address, name)) for name in RECEIVERS}
    began, deadline = time.monotonic(), Deadline(60 + 2 * MB)
    with MemoryWatch(server) as memory:
        processes = RestartedProcesses(roles)
        while processes.running:
            assert not deadline.passed(), f"{list(processes.running)} did not end"
            next_kill = time.monotonic() + chance.uniform(0.5, 1.5) * scaled(EVERY)
            while processes.running and time.monotonic() < next_kill:
                time.sleep(0.02)
                processes.check_ended()
            if processes.running:
                processes.kill_one(chance)
    took = time.monotonic() - began
    with flood.make_app(server.address) as app:
        peak = app.files(flood.CHANNEL).info().peak
        print(
            f"{truth.bytes >> 20} MiB of text ({path.stat().st_size >> 20} packed), {truth.lines:,} lines, "
            f"in {took:.1f} s, {processes.kills} killed; limit {LIMIT >> 20} MiB, peak of blocks {peak / LIMIT:.3f} "
            f"of it, of the server's memory {memory.peak / LIMIT:.3f} in {memory.measurements} measurements"
        )
        for name in RECEIVERS:
            aggregate = app.aggregate(flood.CHANNEL, receiver=name)(lambda _: {})
            totals = aggregate.totals()
            assert (totals.lines, totals.rejected) == (truth.lines, truth.rejected), name
            assert aggregate.table("by_day") == dict(truth.by_day), name
            assert aggregate.table("days") == truth.totals(0), name
            assert aggregate.table("countries") == truth.totals(1), name
    assert processes.kills > 1
    assert LIMIT / 2 < peak <= LIMIT
    if LARGE:
        assert memory.peak <= 1.15 * LIMIT


def test_tables_of_every_kind_are_exact_while_a_rotated_log_is_followed_and_all_are_killed(
    start: Callable[..., Server], tmp_path: Path
):
    """The process that follows the log and the two that share the counting are killed while the log is rotated. Each
    day the log has another format."""
    chance = random.Random(storm.seed())
    server, log, written = start(), tmp_path / "access.log", 0
    how, days = chance.choice(rotated_log.ROTATIONS), int(storm.seconds(4) / DAY)
    faulthandler.cancel_dump_traceback_later()
    log.touch()
    with flood.make_app(server.address) as app:
        channel = app.files(rotated_log.CHANNEL)
        channel.open(["shared"])
        counters: dict[str, Role] = dict.fromkeys(("one", "two"), (rotated_log.count_shared, (server.address,)))
        processes = RestartedProcesses({"sender": (rotated_log.follow, (server.address, str(tmp_path))), **counters})
        for day in range(days):
            format, killed_at = chance.choice(list(rotated_log.FORMATS)), chance.sample(range(PARTS), 2)
            for part in range(PARTS):
                with log.open("a") as file:
                    for _ in range(chance.randint(1, 200)):
                        file.write(rotated_log.line(written, format) + "\n")
                        written += 1
                time.sleep(DAY / PARTS)
                if part in killed_at:
                    processes.kill_one(chance)
            rotate(log, how, kept=day)
        processes.running.pop("sender").kill()
        channel.send_lines(tmp_path, final=True, close=True)
        deadline = Deadline(60)
        while processes.running:
            assert not deadline.passed(), f"{list(processes.running)} did not end"
            time.sleep(0.05)
            processes.check_ended()
        print(f"{how}: {written:,} lines in {days} days, {processes.kills} killed")
        rotated_log.check(app, written)
    assert processes.kills > 1
