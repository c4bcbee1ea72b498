"""The worker's log lines about jobs, at the level of one's choice."""

import logging
import re
from typing import Any

import pytest

from penstock import ConfigurationError, Penstock, WorkerSettings
from penstock.worker.worker import Worker
from tests.worker.in_process import run_burst


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(one.levelname, one.getMessage()) for one in caplog.records if one.name == "penstock.worker"]


@pytest.mark.parametrize(("level", "heard"), [("debug", False), ("info", True), ("warning", True)])
async def test_the_start_and_the_completion_of_a_job_are_logged_at_the_chosen_level(
    app: Penstock, caplog: pytest.LogCaptureFixture, level: Any, heard: bool
):
    @app.task(queue="q")
    async def send(to: str) -> None: ...

    job = await send.using(tenant="acme").enqueue.aio("ada")
    caplog.set_level(logging.INFO, "penstock.worker")
    await run_burst(app, job_log_level=level)
    found = [(name, re.sub(r" in [\d.e-]+ s$", "", text)) for name, text in lines(caplog) if job.id in text]
    expected = [(level.upper(), f"job {job.id} (send) {what}") for what in ("starts", "completed")]
    assert found == (expected if heard else [])
    if heard:
        start, end = (one for one in caplog.records if job.id in one.getMessage())
        assert end.getMessage().endswith(" s")
        assert (start.tenant, start.attempt, end.ending) == ("acme", 1, "completed")  # type: ignore[attr-defined]


async def test_a_traceback_begins_where_the_task_does(app: Penstock):
    @app.task(queue="q")
    async def send() -> None:
        raise ValueError("no")

    @app.task(queue="q")
    def store() -> None:
        raise ValueError("no")

    jobs = [await send.enqueue.aio(), await store.enqueue.aio()]
    await run_burst(app)
    for job in jobs:
        first, *frames = (await job.info.aio()).traceback.splitlines()
        assert (first, frames[0].partition(",")[0]) == (
            "Traceback (most recent call last):",
            f'  File "{__file__}"',
        )
        assert "penstock/worker" not in "".join(frames)


async def test_an_unknown_level_is_refused(app: Penstock):
    with pytest.raises(ConfigurationError, match="job_log_level='loud': use debug, info, warning, error"):
        Worker(app, WorkerSettings(queues=("q",), job_log_level="loud"))  # type: ignore[arg-type]
