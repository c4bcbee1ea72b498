"""The cost of the powers of a job in the server, compared with jobs of the same queue that use none of them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from statistics import median
from typing import Any

from penstock.app import Penstock
from penstock.bench.figures import Ratio, at_least, at_most, figure
from penstock.bench.rig import Rig, timed
from penstock.bench.tasks import TEXT
from penstock.bench.topic import Figures, Topic
from penstock.bench.usage import SENT, Usage
from penstock.core.ids import mint_id
from penstock.jobs.batching import Batch
from penstock.jobs.claims import Settlement
from penstock.jobs.current import current
from penstock.jobs.durable import step
from penstock.jobs.durable_bindings import ChildRow, StepBindings, suspension
from penstock.jobs.flow import chain, group
from penstock.jobs.limits import Concurrency, Limit, Rate
from penstock.jobs.retry import Retry
from penstock.jobs.stage import Stage
from penstock.jobs.task import Call, Task
from penstock.jobs.unique import Unique
from penstock.ops.raw_client import raw_client
from penstock.settings import Settings, WorkerSettings
from penstock.worker.worker import Worker

TOPIC = Topic()

BATCH = 64
"""Jobs that one turn claims, and the next one settles."""

SCHEDULES = 1000

STAGED = "plain"
"""Jobs without any option. A single one is staged while no worker is idle, which no other job is."""

PLAIN = "without a power"
"""Jobs that expire, which are stored as those with a power are."""

LIMITS = ("a limit of 100 keys", "a rate of 100 keys", "a rate of 100 keys, by weight")

FLOW = "with a job that waits for it"

DEPENDENCY = "a job that waits for another"

CHILD = "a job that runs a child"

TOGETHER = "batch handler of 100"

SEALED = "sealed"

FINISHED = 100
"""Steps that a job has recorded before it runs again."""


@TOPIC.scenario
def one_by_one(rig: Rig) -> Figures:
    """Jobs that are enqueued one by one and run in turns of 64: commands and CPU of the server per job"""
    yield from compared(rig, partial(enqueue_each, rig))


@TOPIC.scenario
def in_bulk(rig: Rig) -> Figures:
    """Jobs that are enqueued with `enqueue_many` and run in turns of 64: commands and CPU of the server per job"""
    yield from compared(rig, rig.app.enqueue_many)


def kinds(rig: Rig, jobs: int) -> dict[str, list[Call[Any]]]:
    """The calls of each kind. A further power adds its kind here."""
    plain = rig.tasks.noop
    limited = limited_task(rig, "limited", Concurrency(10_000, key="{a}"))
    rated = limited_task(rig, "rated", Rate(100_000, per=1, key="{a}"))
    weighed = limited_task(rig, "weighed", Rate(1_000_000, per=1, key="{a}", cost=7))
    expiring, unique = plain.using(expires=3600), plain.using(unique=Unique("{a}"))
    return {
        STAGED: [plain.call(n, 1, "x") for n in range(jobs)],
        PLAIN: [expiring.call(n, 1, "x") for n in range(jobs)],
        "unique key": [unique.call(n, 1, "x") for n in range(jobs)],
        LIMITS[0]: [limited.call(n % 100, 1, "x") for n in range(jobs)],
        LIMITS[1]: [rated.call(n % 100, 1, "x") for n in range(jobs)],
        LIMITS[2]: [weighed.call(n % 100, 1, "x") for n in range(jobs)],
    }


def limited_task(rig: Rig, name: str, limit: Limit) -> Task[[int, int, str], None]:
    """A task in the queue of the others. Its limit lets all of its jobs pass."""
    return rig.app.task(queue=rig.tasks.queue.name, name=name, result_ttl=0, limit=limit)(do_nothing_with_three)


def compared(rig: Rig, enqueue: Callable[[Iterable[Call[Any]]], object]) -> Figures:
    """Every kind in turn, several times. The last kind has no power, in a queue with 1,000 schedules. A weight is
    compared with a unit, all others with jobs without a power.
    """
    jobs, rounds = rig.at_pace(640, 3200, 12_800), rig.at_pace(3, 9, 15)
    chosen = kinds(rig, jobs)
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in chosen}
    for calls in chosen.values():
        cost_of(rig, enqueue, calls[: jobs // 8])
    for _ in range(rounds):
        for name, calls in chosen.items():
            measured[name].append(cost_of(rig, enqueue, calls))
    scheduled = f"{PLAIN}, beside {SCHEDULES:,} schedules"
    measured[scheduled], before = [], []
    for _ in range(rounds):
        before.append(cost_of(rig, enqueue, chosen[PLAIN]))
        for number in range(SCHEDULES):
            rig.app.schedules.add(f"s{number}", rig.tasks.noop.call(1, 1, "x"), every=86400)
        measured[scheduled].append(cost_of(rig, enqueue, chosen[PLAIN]))
        remove_schedules(rig)
    for name, costs in measured.items():
        other = before if name == scheduled else measured[LIMITS[1] if name == LIMITS[2] else PLAIN]
        for part, (what, unit) in enumerate((("commands", ""), ("CPU of the server", "µs"))):
            to, most = (LIMITS[1], 1.05) if name == LIMITS[2] else (PLAIN, 1.25)
            ratio = Ratio(median(a[part] / b[part] for a, b in zip(costs, other, strict=True)), to)
            target = at_most(most, "ratio") if name in ("unique key", *LIMITS) and part else None
            values = [cost[part] for cost in costs]
            yield figure(f"{name}, {what} per job", values, unit, ratio=None if name == PLAIN else ratio, target=target)


def remove_schedules(rig: Rig) -> None:
    keys = rig.tasks.queue.first.bindings.keys
    with raw_client(rig.app) as client:
        client.delete(keys.base + "schedules", keys.base + "ticks")
    rig.app.schedules.add("last", rig.tasks.noop.call(1, 1, "x"), every=86400)
    rig.app.schedules.remove("last")


def enqueue_each(rig: Rig, calls: Iterable[Call[Any]]) -> None:
    queue = rig.tasks.queue
    for call in calls:
        key, record = call.draft()
        rig.app._driver.blocking.run(queue.enqueue_job(key, record, call.job(key), call.task.options))


def cost_of(
    rig: Rig, enqueue: Callable[[Iterable[Call[Any]]], object], calls: Sequence[Call[Any]], effects: bytes = b""
) -> tuple[float, float]:
    """Commands of the scripts per job, and microseconds of the server's CPU. `effects`: what each job has staged."""

    def work() -> None:
        enqueue(calls)
        run_all(rig, effects)

    return spent(rig, work, len(calls))


def spent(rig: Rig, work: Callable[[], object], n: int) -> tuple[float, float]:
    """What some work spends, divided by `n`: commands of the scripts, and microseconds of the server's CPU."""
    before = reading(rig)
    work()
    after = reading(rig)
    return (after[0] - before[0]) / n, (after[1] - before[1]) / n * 1e6


def pair_of(measured: dict[str, list[tuple[float, float]]], each: str, most: float) -> Figures:
    """Commands and CPU that two kinds of work have `spent`, round by round. The first round warmed up: it is left out.

    The second kind may take `most` times the CPU of the first.
    """
    (plain, other), (first, second) = measured, (costs[1:] for costs in measured.values())
    for at, (what, unit) in enumerate((("commands", ""), ("CPU of the server", "µs"))):
        ratio = Ratio(median(b[at] / a[at] for a, b in zip(first, second, strict=True)), plain)
        target = at_most(most, "ratio") if at else None
        yield figure(f"{plain}, {what} per {each}", [cost[at] for cost in first], unit)
        yield figure(f"{other}, {what} per {each}", [cost[at] for cost in second], unit, ratio=ratio, target=target)


def run_all(rig: Rig, effects: bytes = b"") -> None:
    """Claim and complete every job, as a worker does whose jobs take no time."""
    bindings, incarnation, number = rig.tasks.queue.first.bindings, mint_id(), 0
    settlements: list[Settlement] = []
    while number == 0 or settlements:
        number += 1
        turn = bindings.turn(incarnation, number, lease=60, want=BATCH, settlements=settlements)
        settlements = [Settlement(claim.token, effects=effects) for claim in rig.app._driver.blocking.run(turn).claims]


def reading(rig: Rig) -> tuple[int, float]:
    """Commands that scripts have called so far, and CPU seconds of the server."""
    with raw_client(rig.app) as client:
        stats, cpu = client.info("commandstats"), client.info("cpu")
    apart = {f"cmdstat_{name}" for name in (*SENT, "info")}
    commands = sum(one["calls"] for name, one in stats.items() if name not in apart)
    return commands, cpu["used_cpu_user"] + cpu["used_cpu_sys"]


@TOPIC.scenario
def parked_jobs(rig: Rig) -> Figures:
    """Jobs of a bulk in a queue with many jobs that are parked at a limit: commands and CPU of the server per job"""
    jobs, rounds, parked = rig.at_pace(640, 3200, 12_800), rig.at_pace(3, 9, 15), rig.at_pace(1000, 100_000, 100_000)
    calls = [rig.tasks.noop.using(expires=3600).call(n, 1, "x") for n in range(jobs)]
    kept = limited_task(rig, "parked", Concurrency(1))
    cost = partial(cost_of, rig, rig.app.enqueue_many, calls)
    cost()
    alone = [cost() for _ in range(rounds)]
    rig.fill([kept.call(0, 0, "")])
    hold = rig.tasks.queue.first.bindings.turn(mint_id(), 1, lease=3600, want=1, settlements=[])
    assert len(rig.app._driver.blocking.run(hold).claims) == 1
    rig.fill(kept.call(n, 0, "") for n in range(parked))
    crowded = [cost() for _ in range(rounds)]
    for part, (what, unit) in enumerate((("commands", ""), ("CPU of the server", "µs"))):
        ratio = Ratio(median(one[part] for one in crowded) / median(one[part] for one in alone), PLAIN)
        name = f"{PLAIN}, beside {parked:,} parked jobs, {what} per job"
        yield figure(name, [one[part] for one in crowded], unit, ratio=ratio)


@TOPIC.scenario
def dependencies(rig: Rig) -> Figures:
    """A flow: jobs that one job waits for. Commands and CPU of the server per job, enqueue and run"""
    jobs, rounds = rig.at_pace(640, 3200, 10_000), rig.at_pace(3, 9, 15)
    part = rig.tasks.noop.using(expires=3600)
    measured: dict[str, list[tuple[float, float]]] = {PLAIN: [], FLOW: []}
    for _ in range(rounds + 1):  # the first round warms up
        calls = [part.call(n, 1, "x") for n in range(jobs)]
        measured[PLAIN].append(cost_of(rig, rig.app.enqueue_many, calls))
        measured[FLOW].append(cost_of(rig, partial(enqueue_flow, rig), calls))
    yield from pair_of(measured, "job", 1.25)


@TOPIC.scenario
def flows(rig: Rig) -> Figures:
    """Jobs that do nothing, on one worker in this process: by themselves, and as a flow that one job waits for"""
    jobs, rounds = rig.at_pace(2_000, 10_000, 10_000), rig.at_pace(3, 5, 9)
    part: Task[[int], None] = rig.app.task(queue="one_by_one", result_ttl=0)(do_nothing)
    last: Task[[list[int]], None] = rig.app.task(queue="one_by_one", result_ttl=0)(do_nothing_for_all)
    rates: dict[str, list[float]] = {PLAIN: [], FLOW: []}
    for _ in range(rounds + 1):
        rig.fill(part.call(n) for n in range(jobs))
        rates[PLAIN].append(jobs / timed(partial(run_to_end, rig, "one_by_one")))
        part.map(range(jobs)).then(last.call([])).enqueue()
        rates[FLOW].append(jobs / timed(partial(run_to_end, rig, "one_by_one")))
    plain, flow = (values[1:] for values in rates.values())
    ratio = Ratio(median(f / p for p, f in zip(plain, flow, strict=True)), PLAIN)
    yield figure(f"{PLAIN}, drained", plain, "jobs/s")
    yield figure(f"{FLOW}, drained", flow, "jobs/s", ratio=ratio, target=at_least(0.5, "ratio"))


def enqueue_flow(rig: Rig, calls: Iterable[Call[Any]]) -> None:
    """A flow in which one more job waits for all of these."""
    group(calls).then(rig.tasks.noop.call(0, 1, "x")).enqueue()


@TOPIC.scenario
def children(rig: Rig) -> Figures:
    """A job that runs another one as a child, compared with a job that waits for another one: both jobs of a pair"""
    pairs, rounds = rig.at_pace(200, 1000, 4000), rig.at_pace(3, 9, 15)
    noop = rig.tasks.noop
    measured: dict[str, list[tuple[float, float]]] = {DEPENDENCY: [], CHILD: []}
    for _ in range(rounds + 1):  # the first round warms up
        calls = [noop.call(n, 1, "x") for n in range(pairs)]
        measured[DEPENDENCY].append(cost_of(rig, partial(enqueue_pairs, rig), calls))
        measured[CHILD].append(spent(rig, partial(run_children, rig, calls), pairs))
    yield from pair_of(measured, "pair", 2)


def enqueue_pairs(rig: Rig, calls: Iterable[Call[Any]]) -> None:
    """For each call, a job that waits for it."""
    for call in calls:
        chain(call, rig.tasks.noop.call(0, 1, "x")).enqueue()


def run_children(rig: Rig, calls: Sequence[Call[Any]]) -> None:
    """Each call runs one child. The parents run twice, as in a worker whose jobs take no time."""
    bindings, run = rig.tasks.queue.first.bindings, rig.app._driver.blocking.run
    steps, incarnation, number = StepBindings(bindings), mint_id(), 0
    parents = {call.task.enqueue(n, 1, "x").key: call for n, call in enumerate(calls)}
    settlements: list[Settlement] = []
    while number == 0 or settlements:
        number += 1
        turn = run(bindings.turn(incarnation, number, lease=60, want=BATCH, settlements=settlements))
        settlements = []
        for claim in turn.claims:
            call = None if claim.record.has_notes else parents.get(claim.id)
            if call is not None:
                row = ChildRow("1", "", f"{claim.id}.1", call.task.name, call.draft()[1])
                run(steps.run_children(incarnation, claim.token, [row], durable=False))
                settlements.append(Settlement(claim.token, suspension("", ""), "suspend"))
                continue
            if claim.id in parents:
                run(steps.load(incarnation, claim.token))
            settlements.append(Settlement(claim.token))


@TOPIC.scenario
def staged_writes(rig: Rig) -> Figures:
    """Jobs of a bulk that stage one write, compared with jobs that stage none: commands and CPU of the server"""
    jobs, rounds = rig.at_pace(640, 3200, 12_800), rig.at_pace(3, 9, 15)
    queue = rig.tasks.queue
    stage = Stage(queue.first).hincrby(queue.key("staged"), "n")
    calls = [rig.tasks.noop.using(expires=3600).call(n, 1, "x") for n in range(jobs)]
    measured: dict[str, list[tuple[float, float]]] = {PLAIN: [], "a staged write": []}
    for _ in range(rounds + 1):  # the first round warms up
        for costs, effects in zip(measured.values(), (b"", stage.pack()), strict=True):
            costs.append(cost_of(rig, rig.app.enqueue_many, calls, effects))
    yield from pair_of(measured, "job", 1.25)


@TOPIC.scenario
def reruns(rig: Rig) -> Figures:
    """A job with 100 finished steps runs again: from its start until its next step has started"""
    jobs = rig.at_pace(5, 20, 100)
    milliseconds: list[float] = []

    async def hundred() -> None:
        began = time.perf_counter()
        for n in range(FINISHED):
            await step(do_nothing, n)
        if current().attempt == 1:
            raise Retry(1, base=0)
        await step(note_start, began)

    async def note_start(began: float) -> None:
        milliseconds.append((time.perf_counter() - began) * 1000)

    logging.getLogger("penstock.worker").setLevel(logging.ERROR)  # each job fails once, on purpose
    task: Task[[], None] = rig.app.task(queue="reruns", result_ttl=0)(hundred)
    for _ in range(jobs):
        rig.fill([task.call()])
        run_to_end(rig, "reruns")
    yield figure(f"{FINISHED} finished steps, start of the next one", milliseconds, "ms", target=at_most(5))


@TOPIC.scenario
def batch_handlers(rig: Rig) -> Figures:
    """Jobs that do nothing, on one worker of 100 runners in this process: called one by one, and in batches of 100"""
    jobs, rounds = rig.at_pace(2_000, 10_000, 40_000), rig.at_pace(3, 7, 15)
    one_by_one: Task[[int], None] = rig.app.task(queue="one_by_one", result_ttl=0)(do_nothing)
    together: Task[[int], None] = rig.app.task(queue="batches", result_ttl=0, batch=Batch(100))(do_nothing_for_all)
    rates: dict[str, list[float]] = {PLAIN: [], TOGETHER: []}
    for _ in range(rounds + 1):  # the first round warms up
        for name, task in ((PLAIN, one_by_one), (TOGETHER, together)):
            rig.fill(task.call(n) for n in range(jobs))
            rates[name].append(jobs / timed(partial(run_to_end, rig, task.shard.name)))
    plain, batches = (values[1:] for values in rates.values())
    ratio = Ratio(median(b / p for p, b in zip(plain, batches, strict=True)), PLAIN)
    yield figure(f"{PLAIN}, drained", plain, "jobs/s")
    yield figure(f"{TOGETHER}, drained", batches, "jobs/s", ratio=ratio, target=at_least(1.4, "ratio"))


def run_to_end(rig: Rig, queue: str) -> None:
    asyncio.run(run_worker(rig.app, queue))


async def run_worker(app: Penstock, queue: str) -> None:
    settings = WorkerSettings(
        queues=(queue,), burst=True, concurrency={"one_by_one": 100, "batches": 100, "answers": 10}.get(queue, 2)
    )
    try:
        await Worker(app, settings).run()
    finally:
        await app._driver.aclose_loop()


async def do_nothing(n: int) -> None: ...


async def do_nothing_with_three(a: int, b: int, text: str) -> None: ...


async def do_nothing_for_all(numbers: list[int]) -> None: ...


@TOPIC.scenario
def emits(rig: Rig) -> Figures:
    """Ten jobs that emit words at the same time, on one worker in this process, compared with an EVALSHA per word"""
    words, rounds, scripts = (
        rig.at_pace(20_000, 100_000, 400_000),
        rig.at_pace(3, 5, 9),
        rig.at_pace(1000, 5000, 20_000),
    )
    answer: Task[[int], None] = rig.app.task(queue="answers", result_ttl=0)(emit_words)
    key = rig.app.queue("answers").key("bare")
    rates, single = list[float](), list[float]()
    with raw_client(rig.app) as client:
        script = client.register_script("return redis.call('XADD', KEYS[1], 'MAXLEN', 1000, '*', 'word', ARGV[1])")
        for _ in range(rounds + 1):  # the first round warms up
            single.append(1 / timed(partial(script, keys=[key], args=[WORD]), scripts))
            rig.fill(answer.call(words // 10) for _ in range(10))
            rates.append(words / timed(partial(run_to_end, rig, "answers")))
        client.delete(key)
    single, rates = single[1:], rates[1:]
    ratio = Ratio(median(bare / rate for rate, bare in zip(rates, single, strict=True)), "an EVALSHA")
    yield figure("an EVALSHA that appends a word", single, "words/s")
    yield figure("emit, time per word", rates, "words/s", ratio=ratio, target=at_most(1.5, "ratio"))
    yield figure("emit, one worker", rates, "words/s", target=at_least(20_000))


WORD = "a word of 20 letters"


async def emit_words(n: int) -> None:
    for number in range(n):
        current().emit(WORD)
        if number % 20 == 0:
            await asyncio.sleep(0)


class EmptySeal:
    """A codec that changes nothing, so that it costs what sealing costs without the work of a cipher."""

    def seal(self, body: bytes) -> tuple[str, bytes]:
        return "k1", body

    def open(self, sealed: bytes, key: str) -> bytes:
        return sealed


@TOPIC.scenario
def seals(rig: Rig) -> Figures:
    """Jobs of a bulk with a text of 32 characters, sealed by a codec that changes nothing: CPU per job"""
    jobs, rounds = rig.at_pace(2_000, 10_000, 40_000), rig.at_pace(3, 7, 15)
    prefix = rig.app.settings.prefix
    used: dict[str, list[Usage]] = {PLAIN: [], SEALED: []}
    with Penstock(rig.address, prefix=prefix, settings=Settings(seal=EmptySeal())) as sealing:
        apps = {PLAIN: rig.app, SEALED: sealing}
        tasks: dict[str, Task[[int, str], str]] = {
            name: app.task(queue="one_by_one", name="echo", result_ttl=60)(echo) for name, app in apps.items()
        }
        for _ in range(rounds + 1):  # the first round warms up
            for name, task in tasks.items():
                calls = [task.call(n, TEXT) for n in range(jobs)]
                work = partial(enqueue_and_run, apps[name], calls)
                used[name].append(rig.usage_of(work))
    plain, sealed = (values[1:] for values in used.values())
    for part in ("client", "server"):
        costs = {
            name: [getattr(one, part) / jobs * 1e6 for one in usages]
            for name, usages in ((PLAIN, plain), (SEALED, sealed))
        }
        ratio = Ratio(median(a / b for a, b in zip(costs[SEALED], costs[PLAIN], strict=True)), PLAIN)
        whose = "client and worker" if part == "client" else part
        yield figure(f"{PLAIN}, CPU of the {whose} per job", costs[PLAIN], "µs")
        yield figure(f"{SEALED}, CPU of the {whose} per job", costs[SEALED], "µs", ratio=ratio)


def enqueue_and_run(app: Penstock, calls: Sequence[Call[Any]]) -> None:
    app.enqueue_many(calls)
    asyncio.run(run_worker(app, "one_by_one"))


async def echo(n: int, text: str) -> str:
    return text
