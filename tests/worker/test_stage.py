"""`current().stage`: effects of a job that are applied by the script that completes it, or not at all."""

import asyncio
from typing import Any

import pytest

from penstock import BadCall, JobFailed, Penstock, Retry, Status, current
from penstock.errors import PayloadTooLarge
from tests.conftest import Apps
from tests.speed import scaled
from tests.worker import isolated_tasks
from tests.worker.in_process import run_burst, running_worker

BOTH_KINDS = pytest.mark.parametrize("kind", ["async def", "def"])


def task(app: Penstock, kind: str, function: Any, **options: Any) -> Any:
    """A task of this kind that calls the function."""

    async def on_the_loop() -> Any:
        return function()

    return app.task(queue="q", name="staging", **options)(function if kind == "def" else on_the_loop)


@BOTH_KINDS
async def test_what_a_job_stages_is_applied_once_when_it_completes(app: Penstock, raw: Any, kind: str):
    key = app.queue("q").key("sales")

    @app.task(queue="q")
    async def follow(n: int) -> int:
        return n

    def sell() -> str:
        stage = current().stage
        stage.hincrby(key, "ann").hincrby(key, "bob", 2)
        following = stage.enqueue(follow.call(5))
        if current().attempt == 1:
            raise OSError
        return following.id

    job = await task(app, kind, sell, retry=Retry(1, base=0)).enqueue.aio()
    await run_burst(app)
    assert raw.hgetall(key) == {b"ann": b"1", b"bob": b"2"}
    following = app.job(await job.result.aio(0))
    assert await following.result.aio(0) == 5
    assert (await app.queue("q").count.aio()).completed == 2
    raw.delete(key)


async def test_a_call_of_another_queue_arrives_once(app: Penstock):
    @app.task(queue="mail")
    async def send(to: str) -> str:
        return to

    @app.task(queue="q")
    async def order(to: str) -> str:
        return current().stage.enqueue(send.call(to)).id

    async with running_worker(app, queues=("q", "mail")):
        jobs = [await order.enqueue.aio(f"{n}@example.com") for n in range(20)]
        for n, job in enumerate(jobs):
            sent = app.job(await job.result.aio(10))
            assert sent.id.startswith("mail:")
            assert await sent.result.aio(10) == f"{n}@example.com"
    assert (await app.queue("mail").count.aio()).completed == 20


async def test_what_waits_in_the_outbox_is_delivered_by_a_worker_that_serves_only_this_queue(app: Penstock):
    @app.task(queue="mail")
    async def send(to: str) -> None: ...

    @app.task(queue="q")
    async def order() -> None:
        current().stage.enqueue(send.using(tenant="acme", delay=60).call("ada"))

    await order.enqueue.aio()
    await run_burst(app, queues=("q",))
    counts = await app.queue("mail").tenant("acme").count.aio()
    assert counts.delayed == 1
    await app.queue("mail").purge.aio()


async def test_an_impossible_write_makes_a_dead_letter_that_says_so(app: Penstock, raw: Any):
    key = app.queue("q").key("text")
    raw.set(key, "x")

    @app.task(queue="q")
    async def count() -> None:
        current().stage.incrby(key)

    job = await count.enqueue.aio()
    await run_burst(app)
    with pytest.raises(JobFailed, match="a staged write is impossible, and nothing was written: INCRBY"):
        await job.result.aio(0)
    raw.delete(key)
    await app.queue("q").dead.requeue.aio(job.id)
    await run_burst(app)
    assert raw.get(key) == b"1"
    raw.delete(key)


async def test_an_isolated_job_stages_as_others_do(apps: Apps, raw: Any):
    app = apps.make("nowhere")
    adopted: Any = isolated_tasks.stage_one
    task = app.task(queue="q", isolate=True, name=adopted.name)(adopted.__wrapped__)
    job = await task.enqueue.aio(3)
    await run_burst(app)
    assert (await job.result.aio(0), raw.get(app.queue("q").key("n"))) == (3, b"1")
    raw.delete(app.queue("q").key("n"))
    await app.aclose()


async def test_an_isolated_job_that_was_moved_stages_a_call_to_the_queue_of_its_task(apps: Apps):
    app = apps.make("nowhere")
    adopted: Any = isolated_tasks.stage_a_call
    task = app.task(queue="other", isolate=True, name=adopted.name)(adopted.__wrapped__)
    async with running_worker(app, queues=("other",)):
        staged = app.job(await (await task.enqueue.aio()).result.aio(scaled(20)))
        async with asyncio.timeout(scaled(5)):
            while await staged.status.aio() is not Status.READY:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    assert staged.id.startswith("q:")
    assert (await app.queue("other").count.aio()).ready == 0
    await app.aclose()


async def test_bad_input_is_refused_where_it_is_written(app: Penstock):
    seen: list[tuple[type[BaseException], str]] = []

    def stage_badly() -> None:
        stage: Any = current().stage
        own = app.queue("q").key("n")
        for call in (
            lambda: stage.incrby("elsewhere"),
            lambda: stage.delete(own.replace("user:n", "jobs")),
            lambda: stage.incrby(own, 1.5),
            lambda: stage.set(own, "x" * 1024 * 1024),
            lambda: stage.enqueue(stage_badly),
            lambda: [stage.incrby(own) for _ in range(2000)],
        ):
            try:
                call()
            except Exception as error:
                seen.append((type(error), str(error)))
        raise RuntimeError

    await task(app, "def", stage_badly).enqueue.aio()
    await run_burst(app)
    kinds = [ValueError, ValueError, ValueError, PayloadTooLarge, BadCall, PayloadTooLarge]
    assert [kind for kind, _ in seen] == kinds
    fixes = ["app.queue('q').key('…')", "app.queue('q').key('jobs')", "whole number", "1 MiB", "task.call(…)", "1 KiB"]
    assert [fix in text for fix, (_, text) in zip(fixes, seen, strict=True)] == [True] * 6


async def test_large_stages_travel_in_turns_of_their_own(app: Penstock, raw: Any):
    queue = app.queue("q")

    @app.task(queue="q")
    async def store(n: int) -> None:
        current().stage.set(queue.key(f"k{n}"), "x" * 300_000)

    for n in range(12):
        await store.enqueue.aio(n)
    await run_burst(app)
    keys = [queue.key(f"k{n}") for n in range(12)]
    assert sum(raw.strlen(key) for key in keys) == 12 * 300_000
    raw.delete(*keys)


async def test_a_job_that_was_cancelled_or_failed_stages_nothing(app: Penstock, raw: Any):
    key = app.queue("q").key("n")

    @app.task(queue="q")
    async def fail() -> None:
        current().stage.incrby(key)
        raise OSError

    job = await fail.enqueue.aio()
    await run_burst(app)
    assert (await job.status.aio(), raw.get(key)) == (Status.DEAD, None)


async def test_a_job_whose_result_cannot_be_stored_stages_nothing(app: Penstock, raw: Any):
    key = app.queue("q").key("n")

    @app.task(queue="q")
    async def count() -> object:
        current().stage.incrby(key)
        return object()

    job = await count.enqueue.aio()
    await run_burst(app)
    assert (await job.status.aio(), raw.get(key)) == (Status.DEAD, None)
