"""Durable steps: what a task has done and how long it has waited survives the end of its run."""

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Any

import pytest

from penstock import ConfigurationError, Job, JobFailed, Penstock, Retry, Status, current, sleep, step, wait_for
from penstock.errors import JobNotFound, NoCurrentJob, PayloadTooLarge, SignalTimeout
from penstock.ops.inspect import Inspector
from penstock.testing import MovableClock
from tests.conftest import Apps, until
from tests.servers import Server
from tests.worker import isolated_tasks
from tests.worker.in_process import run_burst, running_worker

BOTH_KINDS = pytest.mark.parametrize("kind", ["async def", "def"])


@dataclass
class Receipt:
    order: int
    amount: float


calls: list[Any] = []


async def charge(order: int) -> Receipt:
    calls.append(order)
    return Receipt(order, 2.5)


def charge_in_thread(order: int) -> float:
    calls.append(order)
    return 2.5


def pack(order: int) -> str:
    calls.append(f"pack {order}")
    return f"box {order}"


@pytest.fixture(autouse=True)
def no_calls() -> None:
    calls.clear()


def buy_task(app: Penstock, kind: str, **options: Any) -> Any:
    """A task of two steps, which fails behind each of them once."""

    async def buy(order: int) -> list[Any]:
        paid = await step(charge, order)
        if current().attempt == 1:
            raise OSError
        box = await step(pack, order)
        if current().attempt == 2:
            raise OSError
        return [paid.amount, box]

    def buy_in_thread(order: int) -> list[Any]:
        paid = step.run(charge_in_thread, order)
        if current().attempt == 1:
            raise OSError
        box = step.run(pack, order)
        if current().attempt == 2:
            raise OSError
        return [paid, box]

    function: Any = buy if kind == "async def" else buy_in_thread
    return app.task(queue="q", name="buy", retry=Retry(3, base=0), **options)(function)


@BOTH_KINDS
async def test_a_rerun_gets_the_results_of_finished_steps(app: Penstock, kind: str):
    job = await buy_task(app, kind).enqueue.aio(7)
    await run_burst(app)
    assert await job.result.aio(0) == [2.5, "box 7"]
    assert calls == [7, "pack 7"]


async def test_steps_of_a_run_that_was_handed_back_are_kept(app: Penstock):
    runs = []

    @app.task(queue="q")
    async def buy(order: int) -> float:
        runs.append(order)
        paid = await step(charge, order)
        if len(runs) == 1:
            await asyncio.Event().wait()
        return paid.amount

    job = await buy.enqueue.aio(7)
    async with running_worker(app) as worker:
        await until(lambda: calls == [7])
        await until(lambda: worker._runs.running)
        await asyncio.sleep(0.05)
        worker.stop()
        worker.stop()
    await run_burst(app)
    assert (await job.result.aio(0), calls, runs) == (2.5, [7], [7, 7])


@BOTH_KINDS
async def test_a_sleep_frees_the_runner_and_counts_no_attempt(app: Penstock, clock: MovableClock, kind: str):
    async def nap() -> list[int]:
        before = await step(counted)
        await sleep(days=3)
        return [before, await step(counted), current().attempt]

    def nap_in_thread() -> list[int]:
        before = step.run(counted)
        sleep.run(days=3)
        return [before, step.run(counted), current().attempt]

    def counted() -> int:
        calls.append(1)
        return len(calls)

    function: Any = nap if kind == "async def" else nap_in_thread
    job: Job[Any] = await app.task(queue="q", name="nap")(function).enqueue.aio()
    await run_burst(app, concurrency=1)
    assert await job.status.aio() is Status.SLEEPING
    assert [(one.step, one.does, one.state) for one in await job.steps.aio()] == [
        ("1", "counted", "done"),
        ("2", "sleep", "waiting"),
    ]
    clock.advance(3 * 86400 - 1)
    await run_burst(app, concurrency=1)
    assert calls == [1]
    await job.promote.aio()  # an operator is early: it sleeps on
    await run_burst(app, concurrency=1)
    assert await job.status.aio() is Status.SLEEPING
    clock.advance(1)
    await run_burst(app, concurrency=1)
    assert await job.result.aio(0) == [1, 2, 1]
    assert (await app.queue("q").count.aio()).retried == 0


async def eventually_sleeping(job: Job[Any]) -> None:
    for _ in range(2000):
        if await job.status.aio() is Status.SLEEPING:
            return
        await asyncio.sleep(0.005)
    raise AssertionError("the job has not slept in time")


@BOTH_KINDS
@pytest.mark.parametrize("when", ["before", "during", "while running", "both"])
async def test_a_signal_arrives_before_or_during_the_wait(app: Penstock, kind: str, when: str):
    started = asyncio.Event()

    async def ask() -> Any:
        started.set()
        if when == "while running" and current().deliveries == 1:
            await asyncio.sleep(0.3)
        return await wait_for("approved", timeout=600)

    def ask_in_thread() -> Any:
        loop.call_soon_threadsafe(started.set)
        if when == "while running" and current().deliveries == 1:
            import time

            time.sleep(0.3)
        return wait_for.run("approved", timeout=600)

    loop = asyncio.get_running_loop()
    function: Any = ask if kind == "async def" else ask_in_thread
    job: Job[Any] = await app.task(queue="q", name="ask")(function).enqueue.aio()
    if when in {"before", "both"}:
        await job.signal.aio("approved", {"by": "ada"})
    async with running_worker(app, concurrency=1):
        await started.wait()
        if when == "during":
            await eventually_sleeping(job)
        if when != "before":
            await job.signal.aio("approved", {"by": "ada" if when != "both" else "bo"})
        assert await job.result.aio(10) == {"by": "ada"}


async def test_a_wait_without_a_signal_times_out_once(app: Penstock, clock: MovableClock):
    @app.task(queue="q", retry=Retry(2, base=0))
    async def ask() -> str:
        try:
            await wait_for("approved", timeout=60)
        except SignalTimeout:
            if current().attempt == 1:
                raise OSError from None
            return "refused"
        return "approved"

    job = await ask.enqueue.aio()
    await run_burst(app)
    clock.advance(59)
    await run_burst(app)
    assert await job.status.aio() is Status.SLEEPING
    clock.advance(1)
    await job.signal.aio("other")
    await run_burst(app)
    assert await job.result.aio(0) == "refused"


async def test_signals_are_received_in_their_order_each_once(app: Penstock):
    @app.task(queue="q", retry=Retry(3, base=0))
    async def collect() -> list[Any]:
        found = [await wait_for("item") for _ in range(3)]
        if current().attempt == 1:
            raise OSError
        return [*found, await wait_for("end")]

    job = await collect.enqueue.aio()
    await job.signal.aio("item", 1)
    await job.signal.aio("end", 9)
    async with running_worker(app):
        await asyncio.sleep(0.05)
        await job.signal.aio("item", 2)
        await job.signal.aio("item", 3)
        assert await job.result.aio(10) == [1, 2, 3, 9]
    with pytest.raises(JobNotFound, match="it has ended"):
        await job.signal.aio("item", 4)


async def test_concurrent_steps_have_names(app: Penstock):
    async def slow(n: int) -> int:
        calls.append(n)
        await asyncio.sleep(0.01 * (3 - n))
        return n * n

    @app.task(queue="q", retry=Retry(1, base=0))
    async def many() -> list[int]:
        found = await asyncio.gather(*(step.named(f"square-{n}")(slow, n) for n in range(3)))
        if current().attempt == 1:
            raise OSError
        return found

    job = await many.enqueue.aio()
    await run_burst(app)
    assert (await job.result.aio(0), sorted(calls)) == ([0, 1, 4], [0, 1, 2])


async def fails_with(app: Penstock, function: Any) -> str:
    """The reason for which a task with three attempts became a dead letter, which it did in its first."""
    task = app.task(queue="q", name="bad", retry=Retry(3, base=0))(function)
    job = await task.enqueue.aio()
    await run_burst(app)
    info = await job.info.aio()
    assert (info.status, info.attempts) == (Status.DEAD, 1)
    await app.queue("q").dead.remove.aio(job.id)
    return info.reason


async def wrong_twice() -> None:
    await step.named("pay")(charge, 1)
    await step.named("pay")(charge, 2)


async def wrong_together() -> None:
    await asyncio.gather(step(charge, 1), step(charge, 2))


async def wrong_inside() -> None:
    async def outer() -> None:
        await step(charge, 1)

    await step(outer)


async def wrong_stage() -> None:
    async def outer() -> None:
        _ = current().stage

    await step(outer)


async def wrong_caught() -> None:
    with contextlib.suppress(BaseException):
        await sleep(days=1)


async def wrong_waits() -> None:
    await asyncio.gather(wait_for("a", name="a"), wait_for("b", name="b"))


async def wrong_wait_beside_a_step() -> None:
    await asyncio.gather(step.named("pay")(charge, 1), wait_for("a", name="a"))


async def wrong_step_beside_a_wait() -> None:
    await asyncio.gather(wait_for("a", name="a"), step.named("pay")(charge, 1))


async def wrong_sleeps() -> None:
    await step(charge, 1)
    await asyncio.gather(sleep(1, name="a"), sleep(2, name="b"))


async def wrong_finally() -> None:
    try:
        await sleep(days=1)
    finally:
        await step(charge, 1)


def wrong_finally_in_thread() -> None:
    try:
        wait_for.run("a")
    finally:
        step.run(charge_in_thread, 1)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (wrong_waits, r"wait_for('b') begins while wait_for('a') runs: a wait ends the run"),
        (wrong_wait_beside_a_step, r"wait_for('a') begins while step(charge) runs: a wait ends the run"),
        (wrong_step_beside_a_wait, r"step(charge) begins while wait_for('a') runs: a wait ends the run"),
        (wrong_sleeps, "sleep() begins after a sleep() or wait_for() has ended this run"),
        (wrong_finally, "use `except Exception`"),
        (wrong_finally_in_thread, "use `except Exception`"),
        (wrong_twice, "another step of that name"),
        (wrong_together, "Give names to steps that run at the same time"),
        (wrong_inside, "call it in the task itself"),
        (wrong_stage, "stage in the task itself"),
        (wrong_caught, "catch Exception, not BaseException"),
    ],
)
async def test_a_task_that_could_not_be_repeated_is_a_dead_letter_that_names_the_fix(
    app: Penstock, function: Any, text: str
):
    assert text in await fails_with(app, function)


async def test_a_changed_program_gets_a_clear_error_and_a_requeue_continues_with_the_old_one(apps: Apps):
    async def old() -> str:
        paid = await step(charge, 1)
        await sleep(minutes=1)
        return f"{paid.amount}"

    async def new() -> str:
        return await step(pack_async, 1)

    async def pack_async(order: int) -> str:
        return pack(order)

    first = apps.make("durable")
    job = await first.task(queue="q", name="t")(old).enqueue.aio()
    clock = MovableClock(first)
    await run_burst(first)
    clock.advance(60)
    second = apps.make("durable")
    MovableClock(second).advance(60)
    second.task(queue="q", name="t")(new)
    await run_burst(second)
    with pytest.raises(
        JobFailed, match=r"step 1 was charge when this job ran before, and now it is step\(pack_async\)"
    ):
        await job.result.aio(0)
    await first.queue("q").dead.requeue.aio(job.id)
    await run_burst(first)
    assert (await job.result.aio(0), calls) == ("2.5", [1])
    await first.aclose()
    await second.aclose()


async def test_what_is_too_large_names_the_step(app: Penstock):
    async def large() -> str:
        return "x" * 600_000

    @app.task(queue="q")
    async def store() -> None:
        await step(large)
        await step(large)

    job = await store.enqueue.aio()
    await run_burst(app)
    with pytest.raises(JobFailed, match=r"step 2 \(large\): a job records at most 1 MiB"):
        await job.result.aio(0)
    with pytest.raises(PayloadTooLarge, match="1 MiB"):
        await job.signal.aio("x", "y" * 500_000)


async def test_an_isolated_job_has_steps_too(apps: Apps, server: Server):
    app = apps.make("nowhere")
    adopted: Any = isolated_tasks.steps_and_failure
    task = app.task(queue="q", isolate=True, name=adopted.name, retry=Retry(1, base=0))(adopted.__wrapped__)
    job = await task.enqueue.aio(server.address)
    await run_burst(app)
    assert (await job.info.aio()).reason == ""
    first, second = await job.result.aio(0)
    assert first != second
    await app.aclose()


async def test_bad_input_is_refused_where_it_is_written(app: Penstock):
    with pytest.raises(NoCurrentJob, match="this code runs in no job"):
        await step(charge, 1)
    with pytest.raises(RuntimeError, match="would block the event loop"):
        step.run(pack, 1)
    with pytest.raises(ConfigurationError):
        step.named("")
    job = app.job("q:1")
    with pytest.raises(JobNotFound):
        await job.signal.aio("x")
    with pytest.raises(ConfigurationError, match="signal name"):
        await job.signal.aio("x" * 300)


# --- sleeping is a state of its own ---


async def asleep(app: Penstock, n: int = 1, **options: Any) -> list[Job[Any]]:
    """Jobs that wait for the signal `go`."""

    @app.task(queue="q")
    async def wait() -> Any:
        return await wait_for("go")

    jobs = [await wait.using(tenant="acme", **options).enqueue.aio() for _ in range(n)]
    await run_burst(app)
    return jobs


async def test_sleeping_jobs_are_counted_and_listed_apart_from_delayed_ones(app: Penstock):
    queue = app.queue("q")
    jobs = await asleep(app, 2)
    await queue.put.aio(1, delay=60, tenant="acme")
    counts, of_tenant = await queue.count.aio(), await queue.tenant("acme").count.aio()
    assert (counts.sleeping, counts.delayed, counts.waiting) == (2, 1, 3)
    assert (of_tenant.sleeping, of_tenant.delayed, of_tenant.waiting) == (2, 1, 3)
    found = (await queue.jobs(state="sleeping").page.aio()).jobs
    assert {one.id for one in found} == {job.id for job in jobs}
    assert {one.status for one in found} == {Status.SLEEPING}
    assert len((await queue.jobs(state=Status.DELAYED).page.aio()).jobs) == 1
    assert await queue.jobs(state="sleeping", tenant="acme").count.aio() == 2
    assert await queue.purge.aio() == 3
    assert (await queue.count.aio()).sleeping == 0


async def test_a_signal_wakes_a_sleeping_job_that_an_operator_has_changed(app: Penstock):
    (job,) = await asleep(app)
    assert await job.edit.aio(priority=0)
    assert await job.reschedule.aio(3600)
    assert await job.status.aio() is Status.SLEEPING
    await job.signal.aio("go", 7)
    assert await job.status.aio() is Status.READY
    await run_burst(app)
    assert await job.result.aio(timeout=5) == 7


async def test_a_sleeping_job_that_is_cancelled_leaves_nothing(app: Penstock):
    job, promoted = await asleep(app, 2)
    assert await job.cancel.aio()
    assert await promoted.promote.aio()
    counts = await app.queue("q").count.aio()
    assert (counts.sleeping, counts.ready, counts.cancelled) == (0, 1, 1)
    await app.queue("q").purge.aio()


async def test_a_job_that_waits_for_a_signal_without_an_end_is_not_the_next_to_be_due(app: Penstock):
    await asleep(app)
    assert (await Inspector(app).queues.show.aio("q")).due_in is None
    await app.queue("q").put.aio(1, delay=60)
    assert (await Inspector(app).queues.show.aio("q")).due_in == pytest.approx(60, abs=5)
    await app.queue("q").purge.aio()


async def test_a_sleeping_job_is_not_moved_because_its_steps_stay(app: Penstock):
    (job,) = await asleep(app)
    moved = await app.queue("q").jobs(state="sleeping").move.aio(app.queue("other"))
    assert (moved.found, moved.done) == (1, 0)
    assert await job.status.aio() is Status.SLEEPING
    await app.queue("q").purge.aio()
