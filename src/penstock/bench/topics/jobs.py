"""What a job costs: put in, drained, at any backlog, idle, due, urgent, in memory."""

from __future__ import annotations

import contextlib
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import cycle, islice
from operator import add
from statistics import median
from typing import Any, TypeAlias, TypeVar

from penstock.bench.figures import Figure, Ratio, at_least, at_most, figure, percentile
from penstock.bench.stand import Stand, timed
from penstock.bench.tasks import BUSY, TEXT
from penstock.bench.topic import Figures, Topic
from penstock.bench.usage import Usage, cpu_of_command
from penstock.bench.workers import Workers
from penstock.errors import PenstockError, ResultTimeout
from penstock.jobs.task import Call, Task
from penstock.ops.raw_client import raw_client

TOPIC = Topic()

CONCURRENCY = 100
"""Of the workers that drain."""

R = TypeVar("R")
Noop: TypeAlias = Task[[int, int, str], int]


@TOPIC.scenario
def round_trips(stand: Stand) -> Figures:
    """What all else is made of: a command and its answer, one after the other"""
    times, trivial = stand.at_pace(300, 2000, 5000), stand.trivial_usage
    yield figure("trivial EVALSHA", trivial.seconds * 100, "µs")
    yield figure("trivial EVALSHA: CPU of the client", trivial.client, "s/10k")
    yield figure("trivial EVALSHA: CPU of the server", trivial.server, "s/10k")
    with raw_client(stand.app) as client:
        sha = client.script_load(stand.trivial.script.source)
        others = {
            "PING": timed(stand.ping, times),
            "PING by the library's own client": timed(client.ping, times),
            "EVALSHA by the library's own client": timed(lambda: client.evalsha(sha, 0), times),
            "trivial EVALSHA, asyncio": stand.awaited(lambda: stand.app._driver.aio.run(stand.trivial), times),
        }
    for name, seconds in others.items():
        yield figure(name, seconds * 1e6, "µs", ratio=Ratio(seconds / trivial.seconds * 1e4, "trivial EVALSHA"))


@TOPIC.scenario
def enqueue(stand: Stand) -> Figures:
    """One job after the other put in, blocking"""
    rounds, times, noop = stand.at_pace(3, 7, 15), stand.at_pace(200, 1000, 2000), stand.tasks.noop
    noop.enqueue(1, 2, TEXT)
    pairs = [
        (stand.used(stand.send_trivial, times), stand.used(lambda: noop.enqueue(1, 2, TEXT), times))
        for _ in range(rounds)
    ]
    yield figure(
        "enqueue", [times / one.seconds for _, one in pairs], "jobs/s",
        ratio=Ratio(median(one.seconds / trivial.seconds for trivial, one in pairs), "the time of a trivial EVALSHA"),
        target=at_most(stand.at_pin(same=1.8, split=1.3), "ratio"),
    )  # fmt: skip
    yield from cpu_figures(stand, "enqueue", [one for _, one in pairs], times, client=None, server=None)


@TOPIC.scenario
def enqueue_many(stand: Stand) -> Figures:
    """Jobs put in 500 a round trip"""
    rounds, jobs, noop = stand.at_pace(1, 5, 7), stand.at_pace(5_000, 20_000, 50_000), stand.tasks.noop
    takes = [stand.used(lambda: stand.app.enqueue_many(some_calls(noop, jobs))) for _ in range(rounds)]
    rates = [jobs / one.seconds for one in takes]
    yield figure(
        "enqueue_many", rates, "jobs/s", ratio=stand.to_trivials(median(rates)), target=at_least(100_000)
    )  # fmt: skip
    yield from cpu_figures(stand, "enqueue_many", takes, jobs, client=None, server=None)


@TOPIC.scenario
def enqueue_aio(stand: Stand) -> Figures:
    """Jobs put in from asyncio: one after the other, and by 100 tasks at once"""
    rounds, times, noop = stand.at_pace(1, 7, 15), stand.at_pace(500, 1000, 2000), stand.tasks.noop

    def rates(tasks: int) -> list[float]:
        return [1 / stand.awaited(lambda: noop.enqueue.aio(1, 2, TEXT), times, tasks) for _ in range(rounds)]

    one, hundred = rates(1), rates(100)
    yield figure("one after the other", one, "jobs/s", ratio=stand.to_trivials(median(one)))
    yield figure(
        "100 tasks at once", hundred, "jobs/s",
        ratio=Ratio(median(hundred) / median(one), "one after the other"), target=at_least(3, "ratio"),
    )  # fmt: skip


@TOPIC.scenario
def drain(stand: Stand) -> Figures:
    """Jobs done by one and by two processes, async and sync tasks, results dropped and kept"""
    jobs, rounds = stand.at_pace((5_000, 1), (20_000, 3), (50_000, 5))
    kinds = {
        "async": (stand.tasks.noop, Goals(0.15, 0.12, 40_000)),
        "sync": (stand.tasks.plain, Goals(0.30, None, 25_000)),
    }
    for processes, said in ((1, "1 process"), (2, "2 processes")):
        with stand.workers(processes, CONCURRENCY) as workers:
            for kind, (task, goals) in kinds.items():
                drained(stand, workers, some_calls(task, 2_000))  # to warm up
                for ttl, kept in ((0, ""), (60, ", results kept")):
                    kept_task = task.using(result_ttl=ttl)
                    runs = [drained(stand, workers, some_calls(kept_task, jobs)) for _ in range(rounds)]
                    aims = goals if processes == 1 and not ttl else Goals()
                    yield from drain_figures(stand, f"{kind}, {said}{kept}", runs, aims)


@TOPIC.scenario
def backlog(stand: Stand) -> Figures:
    """The same work with more of it waiting: should cost the same"""
    deep, least = stand.at_pace((10_000, 3_000), (100_000, 20_000), (100_000, 100_000))
    depths = [1_000, deep, *stand.at_pace([], [], [1_000_000])]
    with stand.workers(1, CONCURRENCY) as workers:
        drained(stand, workers, some_calls(stand.tasks.noop, 2_000))

        def at(depth: int, tenants: int) -> Drained:
            times = max(1, least // depth)
            return reduce(
                add, (drained(stand, workers, of_tenants(stand.tasks.noop, tenants, depth)) for _ in range(times))
            )  # fmt: skip

        yield from compared({amount(depth, 100): at(depth, 100) for depth in depths})
        yield from compared({amount(deep, tenants): at(deep, tenants) for tenants in (1, 10_000)})


@TOPIC.scenario
def latency(stand: Stand) -> Figures:
    """An idle worker: from before enqueue to the start of the job"""
    times, started = stand.at_pace(50, 500, 1000), stand.tasks.started
    waits, trips = [], []
    with stand.workers(1, 10) as workers:
        patiently(started.enqueue().result, workers)
        for _ in range(times):
            time.sleep(random.uniform(0.008, 0.012))  # until it has settled the last job and lain down
            trips.append(timed(stand.send_trivial, 5))
            began = time.monotonic()
            job = started.enqueue()
            time.sleep(0.003)  # so that the question for the result is not in the job's way
            waits.append(patiently(job.result, workers) - began)
    middle, trivial = median(waits), median(trips)
    yield figure(
        "p50", middle * 1e3, "ms", ratio=Ratio(middle / trivial, "trivial EVALSHAs"), target=at_most(4, "ratio"),
    )  # fmt: skip
    yield figure("p99", percentile(waits, 0.99) * 1e3, "ms", target=at_most(5))
    yield figure("longest", max(waits) * 1e3, "ms")


@TOPIC.scenario
def due(stand: Stand) -> Figures:
    """200 jobs become due in 4 s while 20 workers sleep (--quick: 40 jobs, 1 s, 5 workers)"""
    processes, jobs, span = stand.at_pace((5, 40, 1.0), (20, 200, 4.0), (20, 200, 4.0))
    started = stand.tasks.started
    delays = [1 + span * (n + 1) / jobs for n in range(jobs)]
    with stand.workers(processes, 10) as workers:
        time.sleep(1)
        put_at = time.monotonic()
        enqueued = stand.app.enqueue_many([started.using(delay=delay).call() for delay in delays])
        before = stand.commands()
        time.sleep(max(0, put_at + delays[-1] + 0.3 - time.monotonic()))
        commands = stand.commands() - before
        late = [patiently(job.result, workers) - put_at - delay for job, delay in zip(enqueued, delays, strict=True)]
    yield figure("commands per job", commands / jobs, "", target=at_most(3))
    yield figure("late, p50", median(late) * 1e3, "ms")
    yield figure("late, longest", max(late) * 1e3, "ms")


@TOPIC.scenario
def urgent(stand: Stand) -> Figures:
    """One runner, always busy with jobs of 50 ms: from enqueue of an urgent job to its start"""
    times, busy = stand.at_pace(10, 40, 100), stand.tasks.busy
    probe = stand.tasks.started.using(priority=0)
    waits = []
    with stand.workers(1, 1) as workers:
        stand.fill(busy.call() for _ in range(times * 5))
        for _ in range(times):
            time.sleep(random.uniform(1, 2) * BUSY)
            began = time.monotonic()
            waits.append(patiently(probe.enqueue().result, workers) - began)
        stand.tasks.queue.purge()
    yield figure("mean", sum(waits) / len(waits) * 1e3, "ms", ratio=Ratio(sum(waits) / len(waits) / BUSY, "a job"))
    yield figure("longest", max(waits) * 1e3, "ms", target=at_most(BUSY * 1e3 + 20))


@TOPIC.scenario
def memory(stand: Stand) -> Figures:
    """What the server holds for a waiting job beside its payload"""
    jobs, noop = stand.at_pace(20_000, 100_000, 1_000_000), stand.tasks.noop
    for tenants in (1, jobs // 10):
        stand.clear()
        stand.tasks.queue.pause()
        before = stand.memory()
        stand.fill(of_tenants(noop, tenants, jobs))
        payload = len(noop.call(1, 2, TEXT).payload)
        beside = (stand.memory() - before) / jobs - payload
        ratio = Ratio(beside / payload, "the payload")
        yield figure(amount(jobs, tenants), beside, "B/job", ratio=ratio, target=at_most(200))


@TOPIC.scenario
def startup(stand: Stand) -> Figures:
    """What a program pays before it does anything, in CPU"""
    times = stand.at_pace(2, 5, 11)

    def cost(*words: str) -> list[float]:
        cpu_of_command(sys.executable, *words)  # the first may compile
        return [cpu_of_command(sys.executable, *words) * 1e3 for _ in range(times)]

    bare = cost("-c", "pass")
    for name, words, most in (
        ("import penstock", ("-c", "import penstock"), 120),
        ("penstock --help", ("-m", "penstock", "--help"), 150),
    ):
        spent = cost(*words)
        ratio = Ratio(median(spent) / median(bare), "python -c pass")
        yield figure(name, spent, "ms CPU", ratio=ratio, target=at_most(most))


# --- draining ---


@dataclass(frozen=True, slots=True)
class Drained:
    """So many jobs: seconds from the start of the first to that of the last, and what all of them used."""

    jobs: int
    seconds: float
    usage: Usage

    def __add__(self, more: Drained) -> Drained:
        return Drained(self.jobs + more.jobs, self.seconds + more.seconds, self.usage + more.usage)

    @property
    def rate(self) -> float:
        return self.jobs / self.seconds

    @property
    def server(self) -> float:
        """CPU seconds of the server per 10,000 jobs."""
        return self.usage.server / self.jobs * 1e4


@dataclass(frozen=True, slots=True)
class Goals:
    """CPU seconds per 10,000 jobs, and jobs a second in placement `split`."""

    workers: float | None = None
    server: float | None = None
    split_rate: float | None = None


def drained(stand: Stand, workers: Workers, calls: Iterator[Call[Any]]) -> Drained:
    """Let workers that are awake do these jobs, which all wait when the first one starts.

    One job more before and one behind them tell when they started, by the clock of the machine.
    """
    queue, mark = stand.tasks.queue, stand.tasks.started
    queue.pause()
    first = mark.using(priority=0).enqueue()
    stand.fill(calls)
    last = mark.using(priority=9).enqueue()
    jobs, before = queue.count().ready, stand.usage(workers)
    queue.resume()
    began, ended = (patiently(job.result, workers) for job in (first, last))
    while queue.count().running:
        time.sleep(0.001)
    return Drained(jobs, ended - began, stand.usage(workers) - before)


def patiently(result: Callable[..., R], workers: Workers) -> R:
    """Wait for it as long as the workers live."""
    for _ in range(600):
        with contextlib.suppress(ResultTimeout):
            return result(timeout=1)
        workers.check()
    raise PenstockError("a worker did not do a job of the bench within ten minutes")


def drain_figures(stand: Stand, name: str, runs: Sequence[Drained], goals: Goals) -> Iterator[Figure]:
    rates = [run.rate for run in runs]
    yield figure(
        name, rates, "jobs/s", ratio=stand.to_trivials(median(rates)),
        target=at_least(stand.at_pin(split=goals.split_rate)),
    )  # fmt: skip
    yield from cpu_figures(
        stand, name, [run.usage for run in runs], runs[0].jobs, workers=goals.workers, server=goals.server
    )  # fmt: skip


def compared(runs: dict[str, Drained]) -> Iterator[Figure]:
    """The first, and the others beside it."""
    (name, first), *others = runs.items()
    yield figure(name, first.rate, "jobs/s")
    yield figure(f"{name}: CPU of the server", first.server, "s/10k")
    for other, run in others:
        rate, server = Ratio(run.rate / first.rate, name), Ratio(run.server / first.server, name)
        yield figure(other, run.rate, "jobs/s", ratio=rate, target=at_least(0.8, "ratio"))
        yield figure(f"{other}: CPU of the server", run.server, "s/10k", ratio=server, target=at_most(1.2, "ratio"))


# --- small parts ---


def some_calls(task: Noop, jobs: int) -> Iterator[Call[Any]]:
    return (task.call(n, 2, TEXT) for n in range(jobs))


def amount(jobs: int, tenants: int) -> str:
    return f"{jobs:,} jobs of {tenants:,} tenant{'s' * (tenants > 1)}"


def of_tenants(task: Noop, tenants: int, jobs: int) -> Iterator[Call[Any]]:
    """Calls of so many tenants by turns."""
    each = [task.using(tenant=f"t{n}") for n in range(tenants)]
    return (one.call(1, 2, TEXT) for one in islice(cycle(each), jobs))


def cpu_figures(stand: Stand, name: str, takes: Sequence[Usage], jobs: int, **most: float | None) -> Iterator[Figure]:
    """CPU seconds per 10,000 jobs of the parts named, each with its target or None."""
    for part, limit in most.items():
        spent = [getattr(one, part) / jobs * 1e4 for one in takes]
        trivial = stand.trivial_usage.server if part == "server" else stand.trivial_usage.client
        ratio = Ratio(median(spent) / trivial, "trivial EVALSHA")
        yield figure(f"{name}: CPU of the {part}", spent, "s/10k", ratio=ratio, target=at_most(limit))
