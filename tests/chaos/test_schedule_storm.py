"""Schedules of two releases while workers are killed and frozen: each tick once, and a missed one as `missed` says."""

from __future__ import annotations

import contextlib
import faulthandler
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any, Literal

from penstock import Penstock, Task
from penstock.testing import assert_no_leaks
from tests.chaos import storm
from tests.chaos.schedule_app import QUEUE, make_app
from tests.chaos.worker_group import WorkerGroup
from tests.servers import Server
from tests.speed import Deadline

SECONDS = storm.seconds(short=1.5)
EVERY = 1000
"""Milliseconds between two ticks."""

GRACE = 60_000
"""Milliseconds: `missed="skip"` skips a tick that is later."""

OUTAGE = GRACE / 1000 + 5 if SECONDS > 90 else 2.2
"""Seconds without any worker, once in a storm."""

MISSED: tuple[Literal["all", "one", "skip"], ...] = ("all", "one", "skip")
APP = "tests.chaos.schedule_app"
WORKERS = {
    f"{APP}:older": {"PENSTOCK_RELEASE": "1000000001"},
    f"{APP}:newer": {"PENSTOCK_RELEASE": "1000000002"},
}


class ScheduleStorm:
    """Changes schedules while their workers are killed, and keeps what it did. Times are server ms."""

    def __init__(self, server: Server, app: Penstock, plain: Task[[], None], chance: random.Random) -> None:
        self.client: Any = server.client
        self.app, self.plain_task, self.chance = app, plain, chance
        self.schedules = app.schedules
        self.plain: list[str] = []
        self.triggered = Counter[str]()
        self.pauses: list[tuple[int, int]] = []
        self.pause_began = self.removed = 0
        self.outage = 0, 0
        self.planned: dict[str, int] = {}
        """The next tick of each schedule when the storm was over."""

    def now(self) -> int:
        seconds, micros = self.client.time()
        return int(seconds * 1000 + micros // 1000)

    def until(self, condition: Callable[[], Any]) -> None:
        deadline = Deadline(30)
        while not condition():
            if deadline.passed():
                queue = self.app.queue(QUEUE)
                raise AssertionError(f"not in time: {queue.count()}, {queue.workers()}, {self.schedules.list()}")
            time.sleep(0.01)

    def enqueue(self, n: int) -> None:
        self.plain += [job.key for job in self.app.enqueue_many(self.plain_task.call() for _ in range(n))]

    def run(self, workers: WorkerGroup) -> None:
        self.enqueue(150)
        self.until(lambda: len(self.schedules.list()) == 8)
        self.until(lambda: self.schedules.get("declared").count)
        began = time.monotonic()
        while (passed := time.monotonic() - began) < SECONDS or not self.outage[0]:
            workers.shock(freeze=self.chance.uniform(1.2, 2.0))
            self.change()
            if passed > SECONDS / 3 and not self.outage[0]:
                self.stop_all(workers)
            until = time.monotonic() + self.chance.uniform(0.3, 0.8)
            while time.monotonic() < until:
                workers.thaw()
                time.sleep(0.02)
        workers.thaw(everything=True)
        self.end()

    def change(self) -> None:
        self.schedules.trigger(name := self.chance.choice(["all", "paused", "declared"]))
        self.triggered[name] += 1
        self.enqueue(20)
        if self.pause_began:
            self.resume()
        else:
            self.schedules.pause("paused")
            self.pause_began = self.now()

    def resume(self) -> None:
        self.pauses.append((self.pause_began, self.now()))
        self.schedules.resume("paused")
        self.pause_began = 0

    def stop_all(self, workers: WorkerGroup) -> None:
        """No worker runs for some ticks."""
        self.schedules.remove("removed")
        self.removed = self.now()
        workers.thaw(everything=True)
        workers.kill(*workers.running)
        down = self.now()
        time.sleep(OUTAGE)
        self.outage = down, self.now()
        workers.start_missing()

    def end(self) -> None:
        """Wait for the ticks of the storm, pause all schedules, and wait for the jobs."""
        if self.pause_began:
            self.resume()
        over = self.now()
        self.until(lambda: all((one.next or 0) * 1000 > over for one in self.schedules.list()))
        self.planned = {one.name: round((one.next or 0) * 1000) for one in self.schedules.list()}
        for name in self.planned:
            self.schedules.pause(name)
        queue = self.app.queue(QUEUE)
        self.until(lambda: not (counts := queue.count()).waiting and not counts.running)

    # --- the judges ---

    def ticks(self) -> dict[str, list[int]]:
        """The ticks whose jobs completed, by schedule. Each job completed once, and no job is missing."""
        stored = self.client.hgetall(self.app.queue(QUEUE).key("ledger"))
        ledger = {field.decode(): int(n) for field, n in stored.items()}
        assert {key: n for key, n in ledger.items() if n != 1} == {}, "each job completes once"
        assert ledger.keys() >= set(self.plain)
        ticks, others = defaultdict[str, list[int]](list), Counter[str]()
        for key in sorted(ledger.keys() - set(self.plain)):
            _, name, tick = key.split(":")
            if tick.isdecimal() and len(tick) == 13:
                ticks[name].append(int(tick))
            else:
                others[name] += 1
        assert others == self.triggered
        counts = {one.name: one.count for one in self.schedules.list()}
        assert {name: len(ticks[name]) for name in counts} == counts
        return ticks

    def judge(self) -> None:
        ticks = self.ticks()
        assert self.schedules.get("changed").every == 1, "the rule of the newer release holds"
        for name in ("all", "declared"):
            check_contiguous(name, ticks[name])
        for name in ("one", "skip", "extra"):
            self.judge_outage(name, ticks[name])
        for name in ("all", "declared", "one", "skip", "extra"):
            assert ticks[name][-1] >= self.planned[name] - EVERY, name
        check_contiguous("removed", ticks["removed"])
        assert ticks["removed"][-1] <= self.removed
        self.judge_pauses(ticks["paused"])

    def judge_outage(self, name: str, ticks: list[int]) -> None:
        """Of those that no worker was there for, at most the latest is enqueued; none that is too late under skip."""
        down, up = self.outage
        assert {(tick - ticks[0]) % EVERY for tick in ticks} == {0}, name
        caught_up = [tick for tick in ticks if down < tick < up]
        assert len(caught_up) <= 1, (name, caught_up, self.outage)
        if name != "one":
            assert not [tick for tick in caught_up if tick < up - GRACE], name

    def judge_pauses(self, ticks: list[int]) -> None:
        """None belongs to a pause, and between two pauses none is missing."""
        parts = defaultdict[int, list[int]](list)
        for tick in ticks:
            assert not any(first < tick <= last for first, last in self.pauses), "no tick during a pause"
            parts[sum(last < tick for _, last in self.pauses)].append(tick)
        for part in parts.values():
            check_contiguous("paused", part)

    def clear(self) -> None:
        for name in self.planned:
            self.schedules.remove(name)
        self.client.delete(self.app.queue(QUEUE).key("ledger"))


def check_contiguous(name: str, ticks: list[int]) -> None:
    assert ticks == list(range(ticks[0], ticks[-1] + EVERY, EVERY)), name


def test_each_tick_is_enqueued_once_whatever_is_killed_or_frozen():
    chance = random.Random(storm.seed())
    faulthandler.cancel_dump_traceback_later()  # its long form takes longer than other tests may
    with Server() as server:
        app, plain, added = make_app(server.address, newer=True)
        with contextlib.closing(app):
            for missed in MISSED:
                app.schedules.add(missed, added.call(), every=1, missed=missed)
            for name in ("paused", "removed"):
                app.schedules.add(name, added.call(), every=1, missed="all")
            one = ScheduleStorm(server, app, plain, chance)
            with WorkerGroup(server.address, WORKERS, chance) as workers:
                one.run(workers)
            one.judge()
            assert workers.kills > len(WORKERS)
            assert workers.freezes
            one.clear()
            time.sleep(1.1)  # the leases of killed processes
            app.queue(QUEUE).claim()
            assert_no_leaks(app)
