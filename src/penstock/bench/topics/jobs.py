"""The cost of a job: to enqueue it and to run it, its delay in several situations, and its memory."""

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
from penstock.bench.rig import Rig, timed
from penstock.bench.tasks import BUSY, TEXT
from penstock.bench.topic import Figures, Topic
from penstock.bench.usage import Usage, cpu_of_command
from penstock.bench.workers import Workers
from penstock.errors import PenstockError, ResultTimeout
from penstock.jobs.task import Call, Task
from penstock.ops.raw_client import raw_client

TOPIC = Topic()

CONCURRENCY = 100
"""Concurrency of the workers in drains."""

R = TypeVar("R")
Noop: TypeAlias = Task[[int, int, str], int]


@TOPIC.scenario
def round_trips(rig: Rig) -> Figures:
    """Bare round trips: each command is sent after the reply to the one before"""
    times, trivial = rig.at_pace(300, 2000, 5000), rig.trivial_usage
    yield figure("trivial EVALSHA", trivial.seconds * 100, "µs")
    yield figure("trivial EVALSHA: CPU of the client", trivial.client, "s/10k")
    yield figure("trivial EVALSHA: CPU of the server", trivial.server, "s/10k")
    with raw_client(rig.app) as client:
        sha = client.script_load(rig.trivial.script.source)
        others = {
            "PING": timed(rig.ping, times),
            "PING by the client library alone": timed(client.ping, times),
            "EVALSHA by the client library alone": timed(lambda: client.evalsha(sha, 0), times),
            "trivial EVALSHA, asyncio": rig.timed_aio(lambda: rig.app._driver.aio.run(rig.trivial), times),
        }
    for name, seconds in others.items():
        yield figure(name, seconds * 1e6, "µs", ratio=Ratio(seconds / trivial.seconds * 1e4, "trivial EVALSHA"))


@TOPIC.scenario
def enqueue(rig: Rig) -> Figures:
    """Enqueue one job after another, blocking"""
    rounds, times, noop = rig.at_pace(3, 7, 15), rig.at_pace(200, 1000, 2000), rig.tasks.noop
    noop.enqueue(1, 2, TEXT)
    pairs = [
        (rig.usage_of(rig.send_trivial, times), rig.usage_of(lambda: noop.enqueue(1, 2, TEXT), times))
        for _ in range(rounds)
    ]
    yield figure(
        "enqueue",
        [times / one.seconds for _, one in pairs],
        "jobs/s",
        ratio=Ratio(median(one.seconds / trivial.seconds for trivial, one in pairs), "the time of a trivial EVALSHA"),
        target=at_most(rig.at_pin(same=1.8, split=1.3), "ratio"),
    )
    yield from cpu_figures(rig, "enqueue", [one for _, one in pairs], times, client=None, server=None)


@TOPIC.scenario
def enqueue_many(rig: Rig) -> Figures:
    """Enqueue 500 jobs per round trip"""
    rounds, jobs, noop = rig.at_pace(1, 5, 7), rig.at_pace(5_000, 20_000, 50_000), rig.tasks.noop
    usages = [rig.usage_of(lambda: rig.app.enqueue_many(some_calls(noop, jobs))) for _ in range(rounds)]
    rates = [jobs / one.seconds for one in usages]
    yield figure("enqueue_many", rates, "jobs/s", ratio=rig.rate_ratio(median(rates)), target=at_least(100_000))
    yield from cpu_figures(rig, "enqueue_many", usages, jobs, client=None, server=None)


@TOPIC.scenario
def enqueue_aio(rig: Rig) -> Figures:
    """Enqueue with asyncio: one job after another, and from 100 concurrent tasks"""
    rounds, times, noop = rig.at_pace(1, 7, 15), rig.at_pace(500, 1000, 2000), rig.tasks.noop

    def rates(tasks: int) -> list[float]:
        return [1 / rig.timed_aio(lambda: noop.enqueue.aio(1, 2, TEXT), times, tasks) for _ in range(rounds)]

    one, hundred = rates(1), rates(100)
    yield figure("one after another", one, "jobs/s", ratio=rig.rate_ratio(median(one)))
    yield figure(
        "100 concurrent tasks",
        hundred,
        "jobs/s",
        ratio=Ratio(median(hundred) / median(one), "one after another"),
        target=at_least(3, "ratio"),
    )


@TOPIC.scenario
def drain(rig: Rig) -> Figures:
    """Drain a queue, by one and by two processes: async and sync tasks, results dropped and kept"""
    jobs, rounds = rig.at_pace((5_000, 1), (20_000, 3), (50_000, 5))
    kinds = {
        "async": (rig.tasks.noop, DrainTargets(0.15, 0.12, 40_000)),
        "sync": (rig.tasks.plain, DrainTargets(0.30, None, 25_000)),
    }
    for processes, label in ((1, "1 process"), (2, "2 processes")):
        with rig.workers(processes, CONCURRENCY) as workers:
            for kind, (task, targets) in kinds.items():
                drain_jobs(rig, workers, some_calls(task, 2_000))  # to warm up
                for ttl, kept in ((0, ""), (60, ", results kept")):
                    kept_task = task.using(result_ttl=ttl)
                    runs = [drain_jobs(rig, workers, some_calls(kept_task, jobs)) for _ in range(rounds)]
                    own = targets if processes == 1 and not ttl else DrainTargets()
                    yield from drain_figures(rig, f"{kind}, {label}{kept}", runs, own)


@TOPIC.scenario
def backlog(rig: Rig) -> Figures:
    """Drain small and large backlogs: the cost per job should be the same"""
    deep, least = rig.at_pace((10_000, 3_000), (100_000, 20_000), (100_000, 100_000))
    depths = [1_000, deep, *rig.at_pace([], [], [1_000_000])]
    with rig.workers(1, CONCURRENCY) as workers:
        drain_jobs(rig, workers, some_calls(rig.tasks.noop, 2_000))

        def at(depth: int, tenants: int) -> DrainResult:
            times = max(1, least // depth)
            return reduce(
                add, (drain_jobs(rig, workers, of_tenants(rig.tasks.noop, tenants, depth)) for _ in range(times))
            )

        yield from compared({jobs_label(depth, 100): at(depth, 100) for depth in depths})
        yield from compared({jobs_label(deep, tenants): at(deep, tenants) for tenants in (1, 10_000)})


@TOPIC.scenario
def latency(rig: Rig) -> Figures:
    """From the call of enqueue to the start of the job, with an idle worker, and an EVALSHA after the same pause"""
    times, started = rig.at_pace(50, 500, 1000), rig.tasks.started
    latencies, trips = [], []
    with rig.workers(1, 10) as workers:
        wait_for(started.enqueue().result, workers)
        for _ in range(times):
            time.sleep(random.uniform(0.008, 0.012))  # until it has settled the last job and is idle
            trips.append(timed(rig.send_trivial))
            time.sleep(random.uniform(0.008, 0.012))
            began = time.monotonic()
            job = started.enqueue()
            time.sleep(0.003)  # so that the request for the result does not delay the job
            latencies.append(wait_for(job.result, workers) - began)
    middle, trivial = median(latencies), median(trips)
    yield figure(
        "p50", middle * 1e3, "ms", ratio=Ratio(middle / trivial, "trivial EVALSHAs"), target=at_most(4, "ratio")
    )
    yield figure("p99", percentile(latencies, 0.99) * 1e3, "ms", target=at_most(5))
    yield figure("longest", max(latencies) * 1e3, "ms")


@TOPIC.scenario
def due(rig: Rig) -> Figures:
    """200 jobs become due in 4 s while 20 workers are idle (--quick: 40 jobs, 1 s, 5 workers)"""
    processes, jobs, span = rig.at_pace((5, 40, 1.0), (20, 200, 4.0), (20, 200, 4.0))
    started = rig.tasks.started
    delays = [1 + span * (n + 1) / jobs for n in range(jobs)]
    with rig.workers(processes, 10) as workers:
        time.sleep(1)
        enqueued_at = time.monotonic()
        enqueued = rig.app.enqueue_many([started.using(delay=delay).call() for delay in delays])
        before = rig.commands()
        time.sleep(max(0, enqueued_at + delays[-1] + 0.3 - time.monotonic()))
        commands = rig.commands() - before
        late = [
            wait_for(job.result, workers) - enqueued_at - delay for job, delay in zip(enqueued, delays, strict=True)
        ]
    yield figure("commands per job", commands / jobs, "", target=at_most(3))
    yield figure("late, p50", median(late) * 1e3, "ms")
    yield figure("late, longest", max(late) * 1e3, "ms")


@TOPIC.scenario
def urgent(rig: Rig) -> Figures:
    """From the enqueue of an urgent job to its start, while the only runner is busy with jobs of 50 ms"""
    times, busy = rig.at_pace(10, 40, 100), rig.tasks.busy
    probe = rig.tasks.started.using(priority=0)
    latencies = []
    with rig.workers(1, 1) as workers:
        rig.fill(busy.call() for _ in range(times * 5))
        for _ in range(times):
            time.sleep(random.uniform(1, 2) * BUSY)
            began = time.monotonic()
            latencies.append(wait_for(probe.enqueue().result, workers) - began)
        rig.tasks.queue.purge()
    yield figure(
        "mean",
        sum(latencies) / len(latencies) * 1e3,
        "ms",
        ratio=Ratio(sum(latencies) / len(latencies) / BUSY, "a job"),
    )
    yield figure("longest", max(latencies) * 1e3, "ms", target=at_most(BUSY * 1e3 + 20))


@TOPIC.scenario
def memory(rig: Rig) -> Figures:
    """Server memory per waiting job, without its payload"""
    jobs, noop = rig.at_pace(20_000, 100_000, 1_000_000), rig.tasks.noop
    for tenants in (1, jobs // 10):
        rig.clear()
        rig.tasks.queue.pause()
        before = rig.memory()
        rig.fill(of_tenants(noop, tenants, jobs))
        payload = len(noop.call(1, 2, TEXT).payload)
        overhead = (rig.memory() - before) / jobs - payload
        ratio = Ratio(overhead / payload, "the payload")
        yield figure(jobs_label(jobs, tenants), overhead, "B/job", ratio=ratio, target=at_most(200))


@TOPIC.scenario
def startup(rig: Rig) -> Figures:
    """CPU time of importing penstock, of creating an app, and of penstock --help"""
    times = rig.at_pace(2, 5, 11)

    def cost(*words: str) -> list[float]:
        cpu_of_command(sys.executable, *words)  # the first run may compile
        return [cpu_of_command(sys.executable, *words) * 1e3 for _ in range(times)]

    bare = cost("-c", "pass")
    for name, words, most in (
        ("import penstock", ("-c", "import penstock"), 120),
        ("Penstock()", ("-c", "from penstock import Penstock; Penstock()"), 150),
        ("penstock --help", ("-m", "penstock", "--help"), 150),
    ):
        spent = cost(*words)
        ratio = Ratio(median(spent) / median(bare), "python -c pass")
        yield figure(name, spent, "ms CPU", ratio=ratio, target=at_most(most))


# --- draining ---


@dataclass(frozen=True, slots=True)
class DrainResult:
    """A number of jobs, the seconds from the start of the first to the start of the last, and the usage of all."""

    jobs: int
    seconds: float
    usage: Usage

    def __add__(self, more: DrainResult) -> DrainResult:
        return DrainResult(self.jobs + more.jobs, self.seconds + more.seconds, self.usage + more.usage)

    @property
    def rate(self) -> float:
        return self.jobs / self.seconds

    @property
    def server(self) -> float:
        """CPU seconds of the server per 10,000 jobs."""
        return self.usage.server / self.jobs * 1e4


@dataclass(frozen=True, slots=True)
class DrainTargets:
    """Targets: CPU seconds per 10,000 jobs, and jobs per second in placement `split`."""

    workers: float | None = None
    server: float | None = None
    split_rate: float | None = None


def drain_jobs(rig: Rig, workers: Workers, calls: Iterator[Call[Any]]) -> DrainResult:
    """Have running workers drain these jobs, all of which wait before the first one starts.

    One more job before them and one after them return their start times, by the machine's clock.
    """
    queue, mark = rig.tasks.queue, rig.tasks.started
    queue.pause()
    first = mark.using(priority=0).enqueue()
    rig.fill(calls)
    last = mark.using(priority=9).enqueue()
    jobs, before = queue.count().ready, rig.usage(workers)
    queue.resume()
    began, ended = (wait_for(job.result, workers) for job in (first, last))
    while queue.count().running:
        time.sleep(0.001)
    return DrainResult(jobs, ended - began, rig.usage(workers) - before)


def wait_for(result: Callable[..., R], workers: Workers) -> R:
    """Wait for a result as long as the workers live."""
    for _ in range(600):
        with contextlib.suppress(ResultTimeout):
            return result(timeout=1)
        workers.check()
    raise PenstockError("a worker did not do a job of the bench within ten minutes")


def drain_figures(rig: Rig, name: str, runs: Sequence[DrainResult], targets: DrainTargets) -> Iterator[Figure]:
    rates = [run.rate for run in runs]
    yield figure(
        name,
        rates,
        "jobs/s",
        ratio=rig.rate_ratio(median(rates)),
        target=at_least(rig.at_pin(split=targets.split_rate)),
    )
    yield from cpu_figures(
        rig, name, [run.usage for run in runs], runs[0].jobs, workers=targets.workers, server=targets.server
    )


def compared(runs: dict[str, DrainResult]) -> Iterator[Figure]:
    """The figures of the first run, and of the others as ratios to it."""
    (name, first), *others = runs.items()
    yield figure(name, first.rate, "jobs/s")
    yield figure(f"{name}: CPU of the server", first.server, "s/10k")
    for other, run in others:
        rate, server = Ratio(run.rate / first.rate, name), Ratio(run.server / first.server, name)
        yield figure(other, run.rate, "jobs/s", ratio=rate, target=at_least(0.8, "ratio"))
        yield figure(f"{other}: CPU of the server", run.server, "s/10k", ratio=server, target=at_most(1.2, "ratio"))


# --- helpers ---


def some_calls(task: Noop, jobs: int) -> Iterator[Call[Any]]:
    return (task.call(n, 2, TEXT) for n in range(jobs))


def jobs_label(jobs: int, tenants: int) -> str:
    return f"{jobs:,} jobs of {tenants:,} tenant{'s' * (tenants > 1)}"


def of_tenants(task: Noop, tenants: int, jobs: int) -> Iterator[Call[Any]]:
    """Calls of this many tenants, in rotation."""
    each = [task.using(tenant=f"t{n}") for n in range(tenants)]
    return (one.call(1, 2, TEXT) for one in islice(cycle(each), jobs))


def cpu_figures(rig: Rig, name: str, usages: Sequence[Usage], jobs: int, **most: float | None) -> Iterator[Figure]:
    """CPU seconds per 10,000 jobs of the named parts, each with its target or None."""
    for part, limit in most.items():
        spent = [getattr(one, part) / jobs * 1e4 for one in usages]
        trivial = rig.trivial_usage.server if part == "server" else rig.trivial_usage.client
        ratio = Ratio(median(spent) / trivial, "trivial EVALSHA")
        yield figure(f"{name}: CPU of the {part}", spent, "s/10k", ratio=ratio, target=at_most(limit))
