"""A handle on a job by its id: status, info, cancel; and ids that the caller chooses."""

import asyncio
from typing import Any

import pytest

from penstock import ConfigurationError, Penstock, Queue, Status
from tests.conftest import Do, Time, until


@pytest.fixture
def queue(app: Penstock) -> Queue:
    return app.queue("raw")


async def test_a_job_is_found_again_by_its_id(app: Penstock, queue: Queue, do: Do):
    job = await do(queue.put, {"a": 1}, tenant="t", priority=2)
    for found in (app.job(job.id), queue.job(job.id), queue.job(job.key)):
        assert found == job
        assert hash(found) == hash(job)
        assert await do(found.status) is Status.READY
    assert job != "raw:x"


@pytest.mark.parametrize("name", ["", "raw", "raw:", "a b:c"])
def test_an_invalid_id_is_refused(name: str):
    with pytest.raises(ConfigurationError):
        Penstock("unix:///nowhere").job(name)


async def test_status_reports_every_state(queue: Queue, do: Do, clock: Time):
    job = await do(queue.put, 1, delay=10)
    assert await do(job.status) is Status.DELAYED
    clock.advance(10)
    await do(queue.put, "urgent", priority=0)
    (urgent,) = await do(queue.claim)
    assert await do(job.status) is Status.READY
    (item,) = await do(queue.claim)
    assert await do(job.status) is Status.RUNNING
    await do(item.fail, "no")
    assert await do(job.status) is Status.DEAD
    await do(urgent.complete)
    assert await do(queue.job(urgent.id).status) is Status.COMPLETED
    assert await do(queue.job("never").status) is Status.UNKNOWN


async def test_info_contains_everything_about_a_job(queue: Queue, do: Do, clock: Time):
    began = clock.now
    job = await do(queue.put, [1, "é"], tenant="t", priority=2, expires=100, delay=3)
    info = await do(job.info)
    assert (info.id, info.status, info.tenant, info.priority) == (job.id, Status.DELAYED, "t", 2)
    assert (info.enqueued, info.since, info.expires) == pytest.approx((began, began + 3, began + 100), abs=0.01)
    assert (info.body, info.attempts, info.deliveries, info.reason) == ([1, "é"], 0, 0, "")
    clock.advance(3)
    (item,) = await do(queue.claim)
    await do(item.complete, "done")
    info = await do(job.info)
    assert (info.status, info.result, info.body) == (Status.COMPLETED, "done", None)
    unknown = await do(queue.job("never").info)
    assert (unknown.status, unknown.enqueued, unknown.priority) == (Status.UNKNOWN, None, None)


# --- cancel ---


@pytest.mark.parametrize("delay", [0, 60])
async def test_a_cancelled_job_does_not_run(queue: Queue, do: Do, clock: Time, delay: float):
    job = await do(queue.put, "x", delay=delay)
    await do(queue.put, "other", delay=delay)
    assert await do(job.cancel) is True
    assert await do(job.cancel) is True
    assert await do(job.status) is Status.CANCELLED
    clock.advance(60)
    (item,) = await do(queue.claim, 10)
    assert item.body == "other"
    await do(item.complete)
    assert (await do(queue.count)).cancelled == 1


async def test_running_and_finished_jobs_are_not_cancelled(queue: Queue, do: Do):
    job = await do(queue.put, "x")
    (item,) = await do(queue.claim)
    assert await do(job.cancel) is False
    await do(item.complete, 5)
    assert await do(job.cancel) is False
    assert await do(job.result) == 5
    assert await do(queue.job("never").cancel) is False


async def test_a_turn_skips_many_cancelled_jobs(queue: Queue, do: Do):
    jobs = await do(queue.put_many, range(300), tenant="a")
    for job in jobs[:-1]:
        assert await do(job.cancel)
    (item,) = await do(queue.claim, wait=5)
    assert item.body == 299
    await do(item.complete)


async def test_a_queue_whose_jobs_are_all_cancelled_is_empty(queue: Queue, do: Do, raw: Any):
    for job in await do(queue.put_many, range(50), tenant="a", priority=3):
        await do(job.cancel)
    assert await do(queue.claim, wait=0.1) == []
    left = {key.decode().partition("}:")[2] for key in raw.scan_iter(f"{queue.first.bindings.keys.base}*")}
    assert not {name for name in left if name.partition(":")[0] in {"lane", "turns", "jobs", "tenants", "age", "ages"}}


# --- own ids ---


async def test_an_own_id_is_queued_once(queue: Queue, do: Do):
    first = await do(queue.put, 1, id="daily report/é")
    again = await do(queue.put, 2, id="daily report/é", priority=0)
    assert first.id == again.id == "raw:daily report/é"
    (item,) = await do(queue.claim, 10)
    assert item.body == 1
    await do(queue.put, 3, id="daily report/é")
    assert await do(queue.claim) == []
    await do(item.complete)


async def test_an_own_id_is_free_when_its_job_is_done(queue: Queue, do: Do):
    for value in (1, 2):
        job = await do(queue.put, value, id="mine")
        assert await do(job.status) is Status.READY
        (item,) = await do(queue.claim)
        await do(item.complete, value)
        assert await do(job.result, timeout=10) == value


async def test_waiting_for_an_own_id_returns_the_result_of_its_latest_job(queue: Queue, do: Do, raw: Any):
    await do(queue.put, 1, id="mine")
    (item,) = await do(queue.claim)
    await do(item.complete, "old")
    job = await do(queue.put, 2, id="mine")
    waiting = asyncio.create_task(do(job.result, timeout=20))
    await until(lambda: waiting.done() or raw.exists(f"{queue.first.bindings.keys.base}listeners"))
    (item,) = await do(queue.claim)
    await do(item.complete, "new")
    assert await waiting == "new"


async def test_an_own_id_of_a_dead_letter_is_not_free(queue: Queue, do: Do):
    job = await do(queue.put, 1, id="mine")
    (item,) = await do(queue.claim)
    await do(item.fail, "no")
    await do(queue.put, 2, id="mine")
    assert await do(job.status) is Status.DEAD


@pytest.mark.parametrize("delay", [0, 5])
async def test_an_id_cancelled_and_enqueued_again_runs_once(queue: Queue, do: Do, clock: Time, delay: float):
    for value in range(5):
        job = await do(queue.put, value, id="mine", delay=delay, tenant=str(value % 2), priority=value)
        if value < 4:
            await do(job.cancel)
    assert (await do(queue.count)).waiting == 1
    clock.advance(5)
    (item,) = await do(queue.claim, 10)
    assert item.body == 4
    await do(item.complete)
    assert await do(queue.claim, 10) == []


async def test_an_id_twice_in_one_batch_is_queued_once(app: Penstock, queue: Queue, do: Do):
    @app.task(queue="raw")
    def task(n: int) -> None: ...

    jobs = await do(app.enqueue_many, [task.using(id="mine").call(n) for n in range(3)])
    assert {job.id for job in jobs} == {"raw:mine"}
    (item,) = await do(queue.claim, 10)
    assert item.body == ["task", {"n": 0}]
    await do(item.complete)


async def test_a_claim_without_wait_skips_any_number_of_cancelled_jobs(app: Penstock, do: Do):
    queue = app.queue("raw")
    for job in await do(queue.put_many, range(300)):
        await do(job.cancel)
    wanted = await do(queue.put, "wanted")
    (item,) = await do(queue.claim)
    assert item.id == wanted.id
    await do(item.complete)
