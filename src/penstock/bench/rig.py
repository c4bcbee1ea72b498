"""The test rig of a scenario: one server, one app with keys of its own, and functions that measure."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine, Iterable
from contextlib import AbstractContextManager
from dataclasses import astuple, replace
from functools import cached_property
from itertools import islice
from statistics import median
from typing import Any, Literal, TypeAlias, TypeVar

from penstock.app import Penstock
from penstock.bench.figures import Ratio
from penstock.bench.placement import Pin
from penstock.bench.tasks import QUEUE, BenchTasks, make_tasks
from penstock.bench.usage import Usage, commands_sent, read_usage
from penstock.bench.workers import Workers, workers
from penstock.core.keys import key_pattern
from penstock.core.operations import RoundTrip
from penstock.core.scripts import Script
from penstock.driver.blocking import run_to_completion
from penstock.jobs.task import Call
from penstock.ops.raw_client import delete_keys, raw_client

R = TypeVar("R")

Pace: TypeAlias = Literal["quick", "normal", "full"]

BATCH = 10_000


class Rig:
    """Everything that a scenario needs. Jobs and keys that the scenario leaves behind are deleted after it."""

    def __init__(self, app: Penstock, address: str, pace: Pace, pin: Pin) -> None:
        self.app = app
        self.pace = pace
        self.pin = pin
        self.address = address

    @cached_property
    def tasks(self) -> BenchTasks:
        return make_tasks(self.app)

    def at_pace(self, quick: R, normal: R, full: R) -> R:
        return {"quick": quick, "normal": normal, "full": full}[self.pace]

    def at_pin(self, *, same: R | None = None, split: R | None = None) -> R | None:
        """The value for the current placement, for targets that apply to one placement only."""
        return {"same": same, "split": split, "free": None}[self.pin]

    # --- work ---

    def workers(self, processes: int, concurrency: int) -> AbstractContextManager[Workers]:
        environment = {"PENSTOCK_URL": self.address, "PENSTOCK_PREFIX": self.app.settings.prefix}
        return workers(QUEUE, processes, concurrency, environment)

    def fill(self, calls: Iterable[Call[Any]]) -> None:
        """Enqueue any number of calls."""
        calls = iter(calls)
        while batch := list(islice(calls, BATCH)):
            self.app.enqueue_many(batch)

    def timed_aio(self, work: Callable[[], Coroutine[Any, Any, object]], times: int, tasks: int = 1) -> float:
        """Seconds per call of `times` calls from this many concurrent tasks, on asyncio's own event loop."""

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

    def usage_of(self, work: Callable[[], object], times: int = 1) -> Usage:
        """The usage of `times` calls of `work`."""
        before = self.usage()
        client, began = time.process_time(), time.perf_counter()
        for _ in range(times):
            work()
        seconds, client = time.perf_counter() - began, time.process_time() - client
        # Reading the usage takes time too, which these two exclude.
        return replace(self.usage() - before, seconds=seconds, client=client)

    def commands(self) -> int:
        with raw_client(self.app) as client:
            return commands_sent(client)

    async def commands_while_waiting(self, tasks: Collection[asyncio.Future[Any]], begin: float, seconds: float) -> int:
        """The commands that the server gets in `seconds` while these tasks wait, and cancel them at the end.

        `begin`: seconds within which all of them have begun to wait, which are not counted.
        """
        await asyncio.sleep(begin)
        before = await asyncio.to_thread(self.commands)
        await asyncio.sleep(seconds)
        sent = await asyncio.to_thread(self.commands) - before
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        return sent

    def memory(self) -> int:
        """Bytes that the server uses, after it has freed deleted keys."""
        with raw_client(self.app) as client:
            while (memory := client.info("memory")).get("lazyfree_pending_objects"):
                time.sleep(0.01)
            return int(memory["used_memory"])

    # --- yardsticks ---

    @cached_property
    def trivial(self) -> RoundTrip[int]:
        """The least that any operation can cost: an EVALSHA of one line, sent by the driver."""
        script = Script("trivial", (), (), (), "#!lua\nreturn 1")
        return RoundTrip(script, (self.tasks.queue.key("trivial"),), (), int)

    def send_trivial(self) -> None:
        self.app._driver.blocking.run(self.trivial)

    def ping(self) -> None:
        """One PING on the driver's connection."""
        driver = self.app._driver
        node = driver.connector.route.node("") if driver.connector.route else None
        assert node is not None
        run_to_completion(driver.blocking.exchange(node, ("PING",)))

    @cached_property
    def trivial_usage(self) -> Usage:
        """The usage of 10,000 trivial EVALSHAs, one after another: the median of three runs."""
        times = self.at_pace(500, 2000, 5000)
        self.usage_of(self.send_trivial, times // 10)
        usages = [astuple(self.usage_of(self.send_trivial, times)) for _ in range(3)]
        return Usage(*(median(part) / times * 1e4 for part in zip(*usages, strict=True)))

    def rate_ratio(self, rate: float) -> Ratio:
        """A rate per second, as a multiple of the rate of trivial EVALSHAs."""
        return Ratio(rate * self.trivial_usage.seconds / 1e4, "trivial EVALSHAs/s")

    def expire_short_lived_keys(self) -> None:
        """Delete now what expires within a minute: the replies kept for replays, and the hints of new messages."""
        with raw_client(self.app) as client:
            for rest in ("replay:*", "news"):
                for key in list(client.scan_iter(key_pattern(self.app.settings.prefix, rest), count=1000)):
                    client.delete(key)

    # --- the end ---

    def clear(self) -> None:
        delete_keys(self.app, key_pattern(self.app.settings.prefix))


def timed(work: Callable[[], object], times: int = 1) -> float:
    """Seconds per call of `times` calls, by the clock."""
    began = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - began) / times
