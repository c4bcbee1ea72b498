"""The stand on which a scenario runs: one server, one app with keys of its own, readings, and yardsticks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AbstractContextManager
from dataclasses import astuple, replace
from functools import cached_property
from itertools import islice
from statistics import median
from typing import Any, Literal, TypeAlias, TypeVar

from penstock.app import Penstock
from penstock.bench.figures import Ratio
from penstock.bench.placement import Pin
from penstock.bench.tasks import QUEUE, Tasks, make_tasks
from penstock.bench.usage import Usage, commands_sent, read_usage
from penstock.bench.workers import Workers, workers
from penstock.core.keys import pattern
from penstock.core.operations import RoundTrip
from penstock.core.scripts import Script
from penstock.driver.engine import run_to_completion
from penstock.jobs.task import Call
from penstock.ops.raw_client import delete_keys, raw_client

R = TypeVar("R")

Pace: TypeAlias = Literal["quick", "normal", "full"]

LOT = 10_000


class Stand:
    """What a scenario is given. It leaves its jobs and keys behind; they are cleared away after it."""

    def __init__(self, app: Penstock, address: str, pace: Pace, pin: Pin) -> None:
        self.app = app
        self.pace = pace
        self.pin = pin
        self.address = address

    @cached_property
    def tasks(self) -> Tasks:
        return make_tasks(self.app)

    def at_pace(self, quick: R, normal: R, full: R) -> R:
        return {"quick": quick, "normal": normal, "full": full}[self.pace]

    def at_pin(self, *, same: R | None = None, split: R | None = None) -> R | None:
        """For targets that hold in one placement only."""
        return {"same": same, "split": split, "free": None}[self.pin]

    # --- work ---

    def workers(self, processes: int, concurrency: int) -> AbstractContextManager[Workers]:
        environment = {"PENSTOCK_URL": self.address, "PENSTOCK_PREFIX": self.app.settings.prefix}
        return workers(QUEUE, processes, concurrency, environment)

    def fill(self, calls: Iterable[Call[Any]]) -> None:
        """Enqueue any number of calls."""
        calls = iter(calls)
        while lot := list(islice(calls, LOT)):
            self.app.enqueue_many(lot)

    def awaited(self, work: Callable[[], Coroutine[Any, Any, object]], times: int, tasks: int = 1) -> float:
        """Seconds that one of so many took, done by so many asyncio tasks at once, on asyncio's own loop."""

        async def one() -> None:
            for _ in range(times // tasks):
                await work()

        async def all_of_them() -> float:
            async with self.app:
                await work()
                began = time.perf_counter()
                await asyncio.gather(*(one() for _ in range(tasks)))
                return (time.perf_counter() - began) / (times // tasks * tasks)

        return asyncio.run(all_of_them())

    # --- readings ---

    def usage(self, workers: Workers | None = None) -> Usage:
        with raw_client(self.app) as client:
            return read_usage(client, workers.pids if workers else ())

    def used(self, work: Callable[[], object], times: int = 1) -> Usage:
        """What it took to do this so many times."""
        before = self.usage()
        client, began = time.process_time(), time.perf_counter()
        for _ in range(times):
            work()
        seconds, client = time.perf_counter() - began, time.process_time() - client
        # Without the time of reading.
        return replace(self.usage() - before, seconds=seconds, client=client)

    def commands(self) -> int:
        with raw_client(self.app) as client:
            return commands_sent(client)

    def memory(self) -> int:
        """Bytes the server holds, when it has freed what was deleted."""
        with raw_client(self.app) as client:
            while (told := client.info("memory")).get("lazyfree_pending_objects"):
                time.sleep(0.01)
            return int(told["used_memory"])

    # --- yardsticks ---

    @cached_property
    def trivial(self) -> RoundTrip[int]:
        """The least that any verb can cost: an EVALSHA of one line, sent as ours are."""
        script = Script("trivial", (), (), (), "#!lua\nreturn 1")
        return RoundTrip(script, (self.tasks.queue.key("trivial"),), (), int)

    def send_trivial(self) -> None:
        self.app._driver.blocking.run(self.trivial)

    def ping(self) -> None:
        """The bare round trip of the same connection."""
        driver = self.app._driver
        node = driver.connector.route.node("") if driver.connector.route else None
        assert node is not None
        run_to_completion(driver.blocking.exchange(node, ("PING",)))

    @cached_property
    def trivial_usage(self) -> Usage:
        """Of 10,000 trivial EVALSHAs, one after the other: the middle of three."""
        times = self.at_pace(500, 2000, 5000)
        self.used(self.send_trivial, times // 10)
        takes = [astuple(self.used(self.send_trivial, times)) for _ in range(3)]
        return Usage(*(median(part) / times * 1e4 for part in zip(*takes, strict=True)))

    def to_trivials(self, rate: float) -> Ratio:
        """A rate beside that of trivial EVALSHAs."""
        return Ratio(rate * self.trivial_usage.seconds / 1e4, "trivial EVALSHAs/s")

    def forget_calls(self) -> None:
        """As a minute does: delete what recognises calls that are sent again, and hints of news."""
        with raw_client(self.app) as client:
            for rest in ("replay:*", "news"):
                for key in list(client.scan_iter(pattern(self.app.settings.prefix, rest), count=1000)):
                    client.delete(key)

    # --- the end ---

    def clear(self) -> None:
        delete_keys(self.app, pattern(self.app.settings.prefix))


def timed(work: Callable[[], object], times: int = 1) -> float:
    """Seconds by the clock that one of so many took."""
    began = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - began) / times
