"""Changing a waiting job: promote, reschedule, edit. On both faces, on a server and on a cluster."""

from datetime import UTC, datetime
from typing import Any

import pytest

from penstock import BadCall, Batch, Concurrency, Penstock, Queue, Rate, Status, Unique
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


@pytest.mark.parametrize(
    "power",
    [{"limit": Concurrency(1, key="{account}")}, {"unique": Unique("{account}")}, {"batch": Batch(10)}],
    ids=["limit", "unique", "batch"],
)
async def test_a_job_that_is_not_due_is_moved_whatever_its_powers_are(app: Penstock, do: Do, power: dict[str, Any]):
    def pay_one(account: str) -> None: ...
    def pay_all(account: list[str]) -> None: ...

    pay: Any = app.task(queue="raw", **power)(pay_all if "batch" in power else pay_one)
    one, two = [await do(pay.using(delay=60).enqueue, account) for account in ("a", "b")]
    same = await do(pay.using(delay=60).enqueue, "a")  # of a unique job it is the first one
    assert await do(one.edit, priority=1)
    assert await do(one.reschedule, 90)
    for job in {job.key: job for job in (one, two, same)}.values():
        assert await do(job.promote)
    states = [(await do(job.info)).status for job in (one, two, same)]
    assert states == [Status.READY, Status.READY, Status.PARKED if "limit" in power else Status.READY]
    assert (await do(one.info)).priority == 1
    if "batch" not in power:
        with pytest.raises(BadCall, match="follows from its arguments"):
            await do(one.edit, call=pay.call("c"))
    await do(app.queue("raw").purge)


async def test_a_job_that_is_due_keeps_its_turn_when_it_is_promoted(app: Penstock, do: Do):
    @app.task(queue="raw", limit=Concurrency(2))
    def pay(account: str) -> None: ...

    jobs = [await do(pay.enqueue, account) for account in "abc"]
    for job in jobs:
        assert await do(job.promote)
    assert [item.body[1]["account"] for item in await do(app.queue("raw").claim, 3)] == ["a", "b"]
    await do(app.queue("raw").purge)


@pytest.mark.parametrize("limit", [[Concurrency(1)], [Rate(1, per=60)], [Concurrency(1), Rate(1, per=60)]])
async def test_a_parked_job_that_becomes_urgent_takes_the_place_of_another(app: Penstock, do: Do, limit: Any):
    @app.task(queue="raw", limit=limit)
    def pay(account: str) -> None: ...

    first, second, third = [await do(pay.enqueue, account) for account in "abc"]
    assert await do(third.edit, priority=1)
    assert await do(second.edit, priority=3)
    assert [(await do(job.info)).status for job in (first, second)] == [Status.PARKED, Status.PARKED]
    assert (await do(third.info)).status == Status.READY
    assert await do(third.reschedule, 60)
    assert (await do(second.info)).status == Status.READY
    assert await do(second.edit, priority=9)
    assert [(await do(job.info)).status for job in (first, second)] == [Status.READY, Status.PARKED]
    assert await do(first.edit, priority=9)  # now it is the newer one of its priority
    assert [item.body[1]["account"] for item in await do(app.queue("raw").claim, 3)] == ["b"]
    await do(app.queue("raw").purge)


async def test_the_only_job_of_a_limit_keeps_its_place_when_it_is_edited_often(app: Penstock, do: Do):
    @app.task(queue="raw", limit=Concurrency(1, key="{account}"))
    def pay(account: str) -> None: ...

    job = await do(pay.enqueue, "a")
    for priority in range(10):
        assert await do(job.edit, priority=priority)
    assert (await do(job.info)).status == Status.READY
    assert await do(job.reschedule, 0.01)
    assert [item.body[1]["account"] for item in await do(app.queue("raw").claim, 3, wait=5)] == ["a"]


async def test_a_job_of_a_paused_task_stays_parked_when_it_is_edited(app: Penstock, do: Do):
    @app.task(queue="raw", limit=Concurrency(1))
    def pay(account: str) -> None: ...

    await do(app.queue("raw").pause, task="pay")
    first, second = await do(pay.enqueue, "a"), await do(pay.enqueue, "b")
    assert await do(second.edit, priority=1)
    assert await do(first.edit, priority=2)
    assert [(await do(job.info)).status for job in (first, second)] == [Status.PARKED, Status.PARKED]
    await do(app.queue("raw").resume, task="pay")
    assert [item.body[1]["account"] for item in await do(app.queue("raw").claim, 3)] == ["b"]
    await do(app.queue("raw").purge)


async def test_a_job_that_waits_for_others_has_a_priority_and_no_date(app: Penstock, do: Do):
    @app.task(queue="raw", result_ttl=60)
    def pay(account: str) -> None: ...

    first = await do(pay.enqueue, "a")
    second, third = [await do(pay.using(after=[first]).enqueue, account) for account in "bc"]
    assert await do(third.edit, priority=1)
    for change in ({"delay": 5}, {"delay": 0}):
        with pytest.raises(BadCall, match="waits for other jobs"):
            await do(third.reschedule, **change)
    with pytest.raises(BadCall, match="waits for other jobs"):
        await do(third.promote)
    with pytest.raises(BadCall, match="follows from its arguments"):
        await do(third.edit, call=pay.call("d"))
    [item] = await do(app.queue("raw").claim)
    await do(item.complete, None)
    assert [item.body[1]["account"] for item in await do(app.queue("raw").claim, 3)] == ["c", "b"]
    assert not await do(second.promote)
