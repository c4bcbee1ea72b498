"""Children: jobs that a durable job runs, and whose answers it gets as steps."""

import asyncio
from asyncio import gather
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from penstock import (
    Concurrency,
    EnqueueContext,
    Job,
    JobContext,
    JobFailed,
    Middleware,
    Penstock,
    Retry,
    Status,
    Unique,
    current,
    per_job,
    run,
    sleep,
    step,
)
from penstock.errors import JobCancelled, JobExpired, NoCurrentJob
from penstock.testing import MovableClock
from tests.conftest import Apps, MakeApp
from tests.servers import Server
from tests.worker import isolated_tasks
from tests.worker.in_process import run_burst, running_worker

ran: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


@dataclass
class Receipt:
    order: int
    amount: float


def task_of(app: Penstock, queue: str = "q", **options: Any) -> Any:
    """A task whose jobs are children here. It fails for a negative order."""

    @app.task(queue=queue, name="charge", **options)
    async def charge(order: int) -> Receipt:
        ran.append(order)
        if order < 0:
            raise ValueError(f"order {order}")
        return Receipt(order, 2.5)

    return charge


async def drain(app: Penstock, job: Job[Any], **options: Any) -> None:
    """Run what there is until the job is over."""
    for _ in range(50):
        await run_burst(app, **options)
        if await job.status.aio() not in (Status.SLEEPING, Status.READY, Status.DELAYED):
            return
    raise AssertionError(f"{job} is {await job.status.aio()}: {(await job.why.aio()).sentence}")


async def reason_of(job: Job[Any]) -> str:
    return (await job.info.aio()).reason or ""


# --- answers ---


@pytest.mark.parametrize("queue", ["q", "bank"])
@pytest.mark.parametrize("kind", ["async def", "def"])
async def test_an_answer_comes_back_once(app: Penstock, kind: str, queue: str):
    charge, runs = task_of(app, queue), []

    async def order(n: int) -> Any:
        runs.append(current().deliveries)
        paid = await run(charge.call(n))
        assert isinstance(paid, Receipt)
        return [paid.amount, (await run(charge.call(n + 1))).order]

    def order_in_thread(n: int) -> Any:
        runs.append(current().deliveries)
        paid = run.run(charge.call(n))
        return [paid.amount, run.run(charge.call(n + 1)).order]

    function: Any = order if kind == "async def" else order_in_thread
    job: Job[Any] = await app.task(queue="q", name="order")(function).enqueue.aio(1)
    async with running_worker(app, concurrency=1):
        assert await job.result.aio(10) == [2.5, 2]
    assert (ran, runs) == ([1, 2], [1, 2, 3])


@pytest.mark.parametrize("return_exceptions", [True, False])
async def test_children_of_a_gather_run_at_the_same_time(app: Penstock, return_exceptions: bool):
    charge, runs = task_of(app), []

    @app.task(queue="q", retry=0)
    async def order() -> Any:
        runs.append(1)
        calls = [charge.call(n) for n in (1, -1, 3)]
        got = await gather(*map(run, calls), return_exceptions=return_exceptions)
        return [str(one).partition("), which ")[2] for one in got]

    job = await order.enqueue.aio()
    await drain(app, job)
    assert (sorted(ran), len(runs)) == ([-1, 1, 3], 2)
    if return_exceptions:
        assert await job.result.aio(0) == ["", "this job ran, failed: ValueError: order -1", ""]
    else:
        assert (await reason_of(job)).endswith(" (charge), which this job ran, failed: ValueError: order -1")


async def test_children_run_in_a_task_group_beside_steps_with_names(app: Penstock):
    charge, runs = task_of(app), []

    async def slow() -> int:
        await asyncio.sleep(0.05)
        ran.append("slow")
        return 7

    @app.task(queue="q", retry=0)
    async def order() -> list[Any]:
        runs.append(1)
        async with asyncio.TaskGroup() as group:
            first = group.create_task(run(charge.call(1), name="first"))
            other = group.create_task(step.named("slow")(slow))
            last = group.create_task(run(charge.call(2), name="last"))
        return [first.result().order, other.result(), last.result().order]

    job = await order.enqueue.aio()
    await drain(app, job)
    assert await job.result.aio(0) == [1, 7, 2]
    assert (ran[0], sorted(ran[1:]), len(runs)) == ("slow", [1, 2], 2)


async def test_a_chain_beside_another_needs_names(app: Penstock):
    charge = task_of(app)

    @app.task(queue="q", retry=0)
    async def order(names: bool) -> int:
        async def pay_twice(n: int) -> int:
            first = await run(charge.call(n), name=f"{n}a" if names else None)
            return first.order + (await run(charge.call(n + 1), name=f"{n}b" if names else None)).order

        return sum(await gather(pay_twice(1), pay_twice(10)))

    good, bad = await order.enqueue.aio(True), await order.enqueue.aio(False)
    await drain(app, good)
    assert await good.result.aio(0) == 1 + 2 + 10 + 11
    assert sorted(ran) == [1, 2, 10, 11]
    assert "Give names to steps that run at the same time" in await reason_of(bad)


async def test_a_failure_is_raised_in_each_run_and_can_be_answered(app: Penstock):
    charge, caught = task_of(app), []

    @app.task(queue="q", retry=Retry(1, base=0))
    async def order() -> int:
        try:
            await run(charge.call(-1))
        except JobFailed as error:
            caught.append(error.reason)
        paid = await run(charge.call(1))
        if current().attempt == 1:
            raise OSError
        return paid.order

    job = await order.enqueue.aio()
    await drain(app, job)
    assert await job.result.aio(0) == 1
    assert caught == ["ValueError: order -1"] * 3
    assert ran == [-1, 1]
    (letter,) = await app.queue("q").dead.list.aio()
    await app.queue("q").dead.requeue.aio(letter.id)
    await run_burst(app)
    assert ran == [-1, 1, -1]


@pytest.mark.parametrize("queue", ["q", "bank"])
async def test_each_end_of_a_child_is_an_error_in_the_parent(app: Penstock, clock: MovableClock, queue: str):
    charge, names = task_of(app, queue), []

    @app.task(queue="q", retry=0)
    async def order() -> None:
        calls = [charge.using(delay=60).call(1), charge.using(expires=5, delay=60).call(2)]
        for one in await gather(*map(run, calls), return_exceptions=True):
            names.append(type(one))

    job = await order.enqueue.aio()
    await run_burst(app)
    info = await job.why.aio()
    assert (info.kind, info.left, len(info.waits_for)) == ("children", 2, 2)
    children = {one.job for one in await job.steps.aio()}
    assert children == set(info.waits_for)
    first = (await job.steps.aio())[0].job
    await run_burst(app)
    assert await app.job(first).cancel.aio()
    clock.advance(61)
    await drain(app, job)
    assert names == [JobCancelled, JobExpired]


async def test_the_result_of_a_child_is_kept_with_the_parent(app: Penstock):
    charge = task_of(app, result_ttl=0)

    @app.task(queue="q")
    async def order() -> int:
        return (await run(charge.call(5))).order

    job = await order.enqueue.aio()
    await drain(app, job)
    assert await job.result.aio(0) == 5


async def test_an_answer_without_room_is_an_error(app: Penstock):
    @app.task(queue="q")
    def print_label(size: int) -> str:
        return "x" * size

    @app.task(queue="q", retry=0)
    async def order() -> list[int]:
        return [len(one) for one in await gather(*(run(print_label.call(600_000)) for _ in range(2)))]

    job = await order.enqueue.aio()
    await drain(app, job)
    assert "returned 600,002 bytes: a job records at most 1 MiB" in await reason_of(job)


async def test_hooks_and_dependencies_end_as_after_a_success(app: Penstock):
    seen: list[str] = []

    class Watching(Middleware):
        def execute(self, job: JobContext) -> Iterator[None]:
            try:
                yield
                seen.append("hook ends")
            except BaseException as error:
                seen.append(type(error).__name__)
                raise

    async def session() -> AsyncIterator[str]:
        try:
            yield "session"
            seen.append("commits")
        except BaseException as error:
            seen.append(type(error).__name__)
            raise

    app.add_middleware(Watching())
    charge = task_of(app, "bank")

    @app.task(queue="q")
    async def order(db: str = per_job(session)) -> int:
        return sum(one.order for one in await gather(*(run(charge.call(n)) for n in (1, 2)))) if db else 0

    job = await order.enqueue.aio()
    await run_burst(app, queues=("q",))
    assert seen == ["commits", "hook ends"]
    assert await job.status.aio() is Status.SLEEPING
    await drain(app, job)
    assert await job.result.aio(0) == 3
    assert seen == ["commits", "hook ends", *["hook ends"] * 2, "commits", "hook ends"]


# --- cancel ---


@pytest.mark.parametrize("queue", ["q", "bank"])
async def test_cancel_of_the_parent_cancels_children_that_nobody_else_waits_for(app: Penstock, queue: str):
    charge = task_of(app, queue)

    @app.task(queue="q")
    async def order() -> None:
        await gather(*(run(charge.using(delay=3600).call(n)) for n in range(3)))

    @app.task(queue=queue)
    async def report() -> None: ...

    job = await order.enqueue.aio()
    await run_burst(app)
    await run_burst(app)
    children = [app.job(one.job) for one in await job.steps.aio()]
    assert [await one.status.aio() for one in children] == [Status.DELAYED] * 3
    await report.using(after=children[1]).enqueue.aio()
    assert await job.cancel.aio()
    for _ in range(3):
        await run_burst(app)
    states = [await one.status.aio() for one in children]
    assert states == [Status.CANCELLED, Status.DELAYED, Status.CANCELLED]
    with pytest.raises(JobCancelled, match=r"job .*, which ran it, has ended"):
        await children[0].result.aio(0)
    assert await children[1].promote.aio()
    await run_burst(app)
    await run_burst(app)
    assert await children[1].status.aio() is Status.COMPLETED


async def test_cancel_reaches_running_children_and_theirs(app: Penstock):
    started = asyncio.Event()

    @app.task(queue="q")
    async def work(depth: int) -> None:
        if depth:
            await run(work.call(depth - 1))
        else:
            started.set()
            await asyncio.Event().wait()

    job = await work.enqueue.aio(5)
    async with running_worker(app, concurrency=2):
        await started.wait()
        assert await job.cancel.aio()
        for _ in range(1000):
            counts = await app.queue("q").count.aio()
            if counts.cancelled == 6:
                break
            await asyncio.sleep(0.01)
    assert (counts.cancelled, counts.sleeping, counts.ready) == (6, 0, 0)


# --- shapes ---


async def test_a_thousand_generations(app: Penstock):
    @app.task(queue="q")
    async def count(left: int) -> int:
        return 1 + await run(count.call(left - 1)) if left else 0

    job = await count.enqueue.aio(1000)
    async with running_worker(app, concurrency=4):
        assert await job.result.aio(120) == 1000


async def test_two_thousand_children_and_not_one_more(app: Penstock):
    @app.task(queue="q")
    async def double(n: int) -> int:
        return 2 * n

    @app.task(queue="q", retry=0)
    async def total(n: int) -> int:
        return sum(await gather(*(run(double.call(one)) for one in range(n))))

    job, other = await total.enqueue.aio(2000), await total.enqueue.aio(2001)
    async with running_worker(app, concurrency=50):
        assert await job.result.aio(120) == 1999 * 2000
        with pytest.raises(JobFailed, match="2,001 children at the same time: a job runs at most 2,000"):
            await other.result.aio(60)


async def test_limits_of_children_count_in_the_slices_in_which_they_are_enqueued(app: Penstock):
    sizes: list[int] = []

    class Counting(Middleware):
        def enqueue(self, context: EnqueueContext) -> Iterator[None]:
            sizes.append(len(context.jobs))
            yield

    app.add_middleware(Counting())
    charge = task_of(app, limit=[Concurrency(200, name="a"), Concurrency(200, name="b")])

    @app.task(queue="q", retry=0)
    async def total(n: int) -> int:
        return len(await gather(*(run(charge.call(one)) for one in range(n))))

    job = await total.enqueue.aio(100)
    async with running_worker(app, concurrency=50):
        assert await job.result.aio(60) == 100
    assert sizes == [1, 35, 35, 30]


async def test_a_parent_gives_its_place_to_its_child(app: Penstock):
    @app.task(queue="q", limit=Concurrency(1, key="all", name="one"))
    async def count(left: int) -> int:
        return 1 + await run(count.call(left - 1)) if left else 0

    job = await count.enqueue.aio(3)
    async with running_worker(app, concurrency=1):
        assert await job.result.aio(20) == 3


async def test_children_of_shards(app: Penstock):
    queue = app.queue("wide", shards=3)
    charge = task_of(app, "wide")

    @app.task(queue="wide")
    async def order(tenants: list[str]) -> list[int]:
        calls = [charge.using(tenant=tenant).call(n) for n, tenant in enumerate(tenants)]
        return [one.order for one in await gather(*map(run, calls))]

    job = await order.using(tenant="ada").enqueue.aio([f"t{n}" for n in range(12)])
    async with running_worker(app, concurrency=3):
        assert await job.result.aio(30) == list(range(12))
    assert (await queue.count.aio()).completed == 13


# --- deaths ---


async def test_a_run_that_dies_between_finds_its_children(app: Penstock, monkeypatch: pytest.MonkeyPatch):
    from penstock.jobs.steps import Steps

    charge = task_of(app)
    refused: list[int] = []
    suspend = Steps.suspend_for_children

    def die(self: Steps) -> Any:
        if not refused:
            refused.append(1)
            raise OSError("the process dies here")
        return suspend(self)

    @app.task(queue="q", retry=Retry(2, base=0))
    def order() -> int:
        return run.run(charge.call(4)).order

    monkeypatch.setattr(Steps, "suspend_for_children", die)
    job = await order.enqueue.aio()
    await drain(app, job)
    assert await job.result.aio(0) == 4
    assert (refused, ran) == ([1], [4])


async def test_a_parent_that_an_operator_makes_ready_waits_on(app: Penstock):
    charge, runs = task_of(app, "bank"), []

    @app.task(queue="q")
    async def order() -> int:
        runs.append(1)
        return (await run(charge.call(4))).order

    job = await order.enqueue.aio()
    await run_burst(app, queues=("q",))
    await job.promote.aio()
    await run_burst(app, queues=("q",))
    assert await job.status.aio() is Status.SLEEPING
    await drain(app, job)
    assert await job.result.aio(0) == 4
    assert (len(runs), ran) == (3, [4])


async def test_an_isolated_job_has_children_too(apps: Apps, server: Server):
    app = apps.make("nowhere")
    add: Any = isolated_tasks.add
    app.task(name=add.name)(add.__wrapped__)
    parent: Any = isolated_tasks.two_children
    job = await app.task(queue="q", isolate=True, name=parent.name, retry=0)(parent.__wrapped__).enqueue.aio(
        server.address
    )
    await drain(app, job)
    assert await job.result.aio(0) == [2, 3], await reason_of(job)
    await app.aclose()


# --- what people see ---


async def test_a_parent_and_its_children_are_shown(app: Penstock):
    charge = task_of(app, "bank")

    @app.task(queue="q")
    async def order() -> int:
        return (await run(charge.call(4))).order + (await run(charge.call(5))).order

    job = await order.enqueue.aio()
    await run_burst(app, queues=("q",))
    (only,) = await job.steps.aio()
    assert (only.step, only.does, only.state, only.job[:5]) == ("1", "run charge", "waiting", "bank:")
    why = await job.why.aio()
    assert why.sentence == f"sleeping, waits for child {only.job}"
    tree = await job.tree.aio()
    assert [(one.id, one.task) for one in tree.predecessors] == [(only.job, "charge")]
    child = await app.job(only.job).tree.aio()
    assert [(one.id, one.status) for one in child.dependents] == [(job.id, Status.SLEEPING)]
    await drain(app, job)
    assert await job.result.aio(0) == 9
    tree = await job.tree.aio()
    assert [one.status for one in tree.predecessors] == [Status.COMPLETED] * 2


# --- bad input ---


async def test_what_cannot_be_a_child_is_refused(app: Penstock, make_app: MakeApp):
    charge, elsewhere = task_of(app), task_of(make_app(prefix="elsewhere"))

    @app.task(queue="q", name="once", unique=Unique())
    async def once() -> None: ...

    bad: list[Any] = [
        ("a call, as in run(task.call(…))", lambda: charge),
        ("a call, as in run(task.call(…))", lambda: charge(1)),
        ("a unique call cannot be a child", once.call),
        ("its app has the prefix 'elsewhere'", lambda: elsewhere.call(1)),
        ("leave out id=", lambda: charge.using(id="mine").call(1)),
        ("a child cannot wait for other jobs", lambda: charge.using(after=app.job("q:x")).call(1)),
    ]

    @app.task(queue="q", retry=3)
    async def order(n: int) -> None:
        await run(bad[n][1]())

    @app.task(queue="q", retry=3)
    async def in_a_step() -> None:
        async def inner() -> None:
            await run(charge.call(1))

        await step(inner)

    @app.task(queue="q", retry=3)
    async def beside_a_sleep() -> None:
        await gather(run(charge.call(1), name="a"), sleep(5))

    @app.task(queue="q", retry=3)
    def without_await() -> None:
        _ = run(charge.call(1))

    jobs = [await order.enqueue.aio(n) for n in range(len(bad))]
    others = [await one.enqueue.aio() for one in (in_a_step, beside_a_sleep, without_await)]
    await run_burst(app)
    for job, (text, _) in zip(jobs, bad, strict=True):
        assert text in await reason_of(job)
    reasons = [await reason_of(job) for job in others]
    assert "is called inside step '1'" in reasons[0]
    assert "a wait ends the run" in reasons[1]
    assert "in a `def` task write run.run(…)" in reasons[2]
    assert not ran
    with pytest.raises(NoCurrentJob):
        await run(charge.call(1))
    with pytest.raises(RuntimeError, match="would block the event loop"):
        run.run(charge.call(1))
