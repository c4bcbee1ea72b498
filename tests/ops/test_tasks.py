"""What the tasks did lately, made from the rows of jobs that have ended."""

import asyncio

import pytest

from penstock.errors import PenstockError
from penstock.ops.answers import Percentiles
from penstock.ops.inspect import Inspector
from penstock.settings import WorkerSettings
from penstock.worker.worker import Worker
from tests.everywhere import face, place  # noqa: F401 - fixtures


@pytest.fixture
def inspector(app):
    return Inspector(app)


async def run_all(app):
    await Worker(app, WorkerSettings(burst=True)).run()


async def test_a_task_has_its_jobs_counted_and_timed(do, app, inspector):
    @app.task(queue="mail")
    async def send(n: int) -> None:
        await asyncio.sleep(0.05)

    @app.task(queue="bills")
    async def charge(n: int) -> None:
        raise ValueError("declined")

    await do(app.enqueue_many, [send.call(n) for n in range(3)])
    await do(charge.enqueue, 1)
    cancelled = await do(charge.using(delay=60).enqueue, 2)
    await do(cancelled.cancel)
    await run_all(app)
    report = await do(inspector.tasks.all)
    mail, bills = report.tasks
    assert (mail.task, mail.queue, mail.completed, mail.failed, mail.other) == ("send", "mail", 3, 0, 0)
    assert 0.045 <= mail.duration.p50 <= mail.duration.p95 <= mail.duration.p99
    assert (sum(mail.histogram), sum(bills.histogram)) == (3, 1)
    assert sum(mail.histogram[: report.edges.index(0.03) + 1]) == 0
    assert 0 <= mail.waiting.p50 <= report.now - mail.since + 60
    assert (bills.task, bills.completed, bills.failed, bills.other, bills.retries) == ("charge", 0, 1, 1, 0)
    assert report.examined == 5
    assert [one.task for one in (await do(inspector.tasks.all, "bills")).tasks] == ["charge"]
    assert (await do(inspector.tasks.all, since=0.0)).tasks == []


async def test_the_latest_rows_of_each_queue_are_read_and_no_more(do, app, inspector):
    @app.task(queue="mail")
    async def send(n: int) -> None: ...

    @app.task(queue="seldom")
    async def look(n: int) -> None: ...

    await do(look.enqueue, 1)
    await do(app.enqueue_many, [send.call(n) for n in range(3000)])
    await run_all(app)
    report = await do(inspector.tasks.all, most=2000)
    assert {one.task: one.completed for one in report.tasks}["look"] == 1
    assert 500 <= report.examined <= 1001


async def test_tasks_of_a_sharded_queue_are_counted_over_its_shards(do, app, inspector):
    app.queue("wide", shards=3)

    @app.task(queue="wide")
    async def send(n: int) -> None: ...

    await do(app.enqueue_many, [send.using(tenant=f"t{n}").call(n) for n in range(30)])
    await run_all(app)
    (one,) = (await do(inspector.tasks.all, "wide")).tasks
    assert (one.queue, one.completed) == ("wide", 30)


async def test_a_queue_that_was_never_used_is_an_error(do, inspector):
    assert (await do(inspector.tasks.all)).tasks == []
    with pytest.raises(PenstockError, match="no queue 'nothing'"):
        await do(inspector.tasks.all, "nothing")


@pytest.mark.parametrize("wrong", [{"since": "1h"}, {"since": -1}, {"since": float("nan")}, {"most": 0}, {"most": "x"}])
async def test_a_wrong_number_is_refused(do, inspector, wrong):
    (name,) = wrong
    with pytest.raises(ValueError, match=rf"tasks\({name}="):
        await do(inspector.tasks.all, **wrong)


def test_percentiles_are_values_that_were_measured():
    assert Percentiles.of([]) == Percentiles(None, None, None)
    assert Percentiles.of([3.0]) == Percentiles(3.0, 3.0, 3.0)
    assert Percentiles.of([float(n) for n in range(1, 101)]) == Percentiles(51.0, 96.0, 100.0)
