"""Errors of jobs for a service, and the fields of the running job in logs."""

import asyncio
import json
import logging
import time
from typing import Any

import pytest

from penstock import Drop, ErrorReports, JobContext, JobFailed, JobFields, Penstock, Retry, RetryLater, Status, current
from penstock.worker.logs import JsonLines
from tests.worker import isolated_tasks
from tests.worker.in_process import run_burst

BOTH_KINDS = pytest.mark.parametrize("kind", ["async def", "def"])


def task_of(app: Penstock, kind: str, body: Any, **options: Any) -> Any:
    async def on_the_loop() -> Any:
        return body()

    return app.task(queue="q", **{"name": "task", **options})(body if kind == "def" else on_the_loop)


@BOTH_KINDS
async def test_each_error_of_a_task_is_reported_where_it_runs(app: Penstock, kind: str):
    seen: list[tuple[BaseException, str, int]] = []
    app.add_middleware(ErrorReports(lambda error, job: seen.append((error, job.id, current().attempt))))
    problem = OSError("no")

    def body() -> None:
        raise problem

    job = await task_of(app, kind, body, retry=Retry(1, base=0)).enqueue.aio()
    await run_burst(app)
    assert seen == [(problem, job.id, 1), (problem, job.id, 2)]


@pytest.mark.parametrize("error", [Retry(5, base=60), RetryLater(60), Drop("why")])
async def test_what_a_task_decides_itself_is_not_reported(app: Penstock, error: Exception):
    seen: list[BaseException] = []
    app.add_middleware(ErrorReports(lambda error, job: seen.append(error)))

    def body() -> None:
        raise error

    await task_of(app, "def", body).enqueue.aio()
    await run_burst(app)
    assert seen == []


@BOTH_KINDS
async def test_a_timeout_is_reported_with_its_reason(app: Penstock, kind: str):
    seen: list[BaseException] = []
    app.add_middleware(ErrorReports(lambda error, job: seen.append(error)))

    def sleep() -> None:
        while True:
            time.sleep(0.01)

    async def sleep_on_the_loop() -> None:
        await asyncio.sleep(60)

    function: Any = sleep if kind == "def" else sleep_on_the_loop
    await app.task(queue="q", name="sleep", timeout=0.05)(function).enqueue.aio()
    await run_burst(app)
    (error,) = seen
    assert isinstance(error, JobFailed)
    assert "ran longer than its timeout" in error.reason


async def test_a_process_that_dies_is_reported(app: Penstock):
    seen: list[tuple[BaseException, str]] = []
    app.add_middleware(ErrorReports(lambda error, job: seen.append((error, job.task))))
    function: Any = isolated_tasks.report_and_crash
    await app.task(queue="q", isolate=True, name="report_and_crash")(function.__wrapped__).enqueue.aio()
    await run_burst(app)
    assert {(type(error), task) for error, task in seen} == {(JobFailed, "report_and_crash")}


async def test_a_report_that_fails_changes_nothing(app: Penstock, caplog: pytest.LogCaptureFixture):
    def report(error: BaseException, job: JobContext) -> None:
        raise KeyError("no network")

    app.add_middleware(ErrorReports(report))

    def body() -> None:
        raise OSError("no")

    job = await task_of(app, "def", body).enqueue.aio()
    await run_burst(app)
    info = await job.info.aio()
    assert (info.status, info.reason) == (Status.DEAD, "OSError: no")
    assert "could not be reported" in caplog.text


@BOTH_KINDS
async def test_a_line_of_a_job_has_the_fields_of_the_job(app: Penstock, kind: str):
    lines: list[dict[str, Any]] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(json.loads(JsonLines().format(record)))

    logger, handler = logging.getLogger(f"shop.{kind}"), Keep()
    handler.addFilter(JobFields())
    logger.addHandler(handler)
    logger.propagate = False

    def body() -> None:
        logger.warning("inside", extra={"tenant": "own"})

    job = await task_of(app, kind, body).using(tenant="acme").enqueue.aio()
    await run_burst(app)
    logger.warning("outside")
    inside, outside = lines
    assert {name: inside[name] for name in ("event", "job", "task", "queue", "tenant", "attempt")} == {
        "event": "inside",
        "job": job.id,
        "task": "task",
        "queue": "q",
        "tenant": "own",
        "attempt": 1,
    }
    assert "job" not in outside
