"""Changing a waiting job: promote, reschedule, edit. On both faces, on a server and on a cluster."""

from datetime import UTC, datetime
from typing import Any

import pytest

from penstock import BadCall, Concurrency, Penstock, Queue, Status
from tests.conftest import Do, Time


@pytest.fixture
def queue(app: Penstock) -> Queue:
    return app.queue("raw")


async def bodies(do: Do, queue: Queue) -> list[Any]:
    return [item.body for item in await do(queue.claim, 100)]


async def test_a_promoted_job_is_ready_at_once(queue: Queue, do: Do):
    job = await do(queue.put, "x", delay=600)
    assert await do(job.promote)
    assert await do(job.status) is Status.READY
    assert await do(job.promote), "a job that is ready stays so"
    assert await bodies(do, queue) == ["x"]
    counts = await do(queue.count)
    assert (counts.ready, counts.delayed, counts.running) == (0, 0, 1)


@pytest.mark.parametrize("delay", [0, 600])
async def test_a_rescheduled_job_is_due_at_its_new_time(queue: Queue, do: Do, clock: Time, delay: float):
    job = await do(queue.put, "x", delay=delay)
    assert await do(job.reschedule, 30)
    assert await bodies(do, queue) == []
    assert (await do(job.info)).since == pytest.approx(clock.now + 30, abs=0.01)
    clock.advance(30)
    assert await bodies(do, queue) == ["x"]


async def test_a_job_is_rescheduled_to_a_date(queue: Queue, do: Do, clock: Time):
    job = await do(queue.put, "x")
    date = datetime.fromtimestamp(clock.now + 3600, UTC)
    assert await do(job.reschedule, at=date)
    assert (await do(job.info)).since == pytest.approx(date.timestamp(), abs=0.01)
    clock.advance(3600.1)
    assert await bodies(do, queue) == ["x"]


async def test_a_job_with_another_priority_has_its_place_there(queue: Queue, do: Do):
    jobs = await do(queue.put_many, ["a", "b", "c"])
    assert await do(jobs[2].edit, priority=0)
    assert await do(jobs[0].edit, priority=9)
    assert await bodies(do, queue) == ["c", "b", "a"]


async def test_a_changed_job_runs_once_with_its_new_arguments(app: Penstock, do: Do):
    @app.task(queue="raw")
    def greet(name: str, times: int = 1) -> None: ...

    queue = app.queue("raw")
    job = await do(greet.enqueue, "ada")
    assert await do(job.edit, call=greet.call("bo", times=2), priority=3)
    info = await do(job.info)
    assert (info.body, info.priority, info.status) == (["greet", {"name": "bo", "times": 2}], 3, Status.READY)
    (item,) = await do(queue.claim, 100)
    assert item.id == job.id
    await do(item.complete)
    assert await bodies(do, queue) == []


async def test_arguments_of_another_task_are_refused(app: Penstock, do: Do):
    @app.task(queue="raw")
    def greet(name: str) -> None: ...

    @app.task(queue="raw")
    def other(name: str) -> None: ...

    job = await do(greet.enqueue, "ada")
    value = await do(app.queue("raw").put, "x")
    for one in (job, value):
        with pytest.raises(BadCall, match="is not of task 'other'"):
            await do(one.edit, call=other.call("bo"))
    assert (await do(job.info)).body == ["greet", {"name": "ada"}]


async def test_a_job_that_does_not_wait_is_not_changed(queue: Queue, do: Do):
    job = await do(queue.put, "x")
    (item,) = await do(queue.claim)
    verbs = [(job.promote, {}), (job.reschedule, {"delay": 5}), (job.edit, {"priority": 0})]
    assert [await do(one, **options) for one, options in verbs] == [False] * 3
    await do(item.fail, "no")
    assert [await do(one, **options) for one, options in verbs] == [False] * 3
    await do(queue.dead.remove, job.id)
    assert [await do(one, **options) for one, options in verbs] == [False] * 3
    assert await do(queue.job("unknown").promote) is False


@pytest.mark.parametrize(
    ("verb", "options", "said"),
    [
        ("reschedule", {}, "give a delay"),
        ("reschedule", {"delay": 1, "at": datetime.now(UTC)}, "give a delay"),
        ("reschedule", {"delay": -1}, "seconds from 0"),
        ("reschedule", {"at": datetime(2027, 1, 1)}, "with a time zone"),
        ("edit", {}, "give a priority"),
        ("edit", {"priority": 10}, "0 .most urgent. to 9"),
    ],
)
async def test_a_wrong_change_is_refused_where_it_is_written(queue: Queue, do: Do, verb: str, options: Any, said: str):
    job = await do(queue.put, "x")
    with pytest.raises(ValueError, match=said):
        await do(getattr(job, verb), **options)
    with pytest.raises(BadCall, match=r"task\.call"):
        await do(job.edit, call="x")


async def test_a_job_with_a_limit_is_not_changed(app: Penstock, do: Do):
    @app.task(queue="raw", limit=Concurrency(1, key="{account}"))
    def pay(account: str) -> None: ...

    job = await do(pay.enqueue, "a")
    with pytest.raises(BadCall, match="has a limit"):
        await do(job.edit, priority=0)
    assert (await do(job.info)).priority == 5
    await do(job.cancel)
