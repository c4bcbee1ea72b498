"""The worker and its tasks name the job in their lines, as docs/howto/logs.md shows: dictConfig, structlog, loguru."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import logging.config
from collections.abc import Callable, Iterator
from typing import Any

import loguru
import pytest
import structlog

from penstock import JobFields, Penstock, Worker, WorkerSettings, current
from penstock.errors import NoCurrentJob
from penstock.testing import TemporaryServer


@pytest.fixture(scope="module")
def server() -> Iterator[TemporaryServer]:
    with TemporaryServer() as server:
        yield server


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger, which gets its handlers and level back."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)


def run_one(server: TemporaryServer, prefix: str, say: Callable[[], object]) -> str:
    """Runs a task that logs and then fails. Returns the id of its job."""
    with Penstock(server.address, prefix=prefix) as app:

        @app.task(queue="mail", name="say")
        def task() -> None:
            say()
            raise ValueError("broken")

        job = task.enqueue()
        asyncio.run(Worker(app, WorkerSettings(burst=True)).run())
        return job.id


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in stream.getvalue().splitlines()]
    return [line for line in found if line.get("job")]


def test_dict_config(server: TemporaryServer, root: logging.Logger):
    stream = io.StringIO()
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "filters": {"job": {"()": "penstock.JobFields"}},
            "formatters": {"json": {"()": "penstock.worker.logs.JsonLines"}},
            "handlers": {
                "out": {"class": "logging.StreamHandler", "stream": stream, "filters": ["job"], "formatter": "json"}
            },
            "root": {"level": "INFO", "handlers": ["out"]},
        }
    )
    job = run_one(server, "dict", lambda: logging.getLogger("shop").info("hello"))
    own, ended = lines(stream)
    assert (own["event"], own["job"], own["task"], own["attempt"]) == ("hello", job, "say", 1)
    assert (ended["job"], ended["ending"]) == (job, "dead")
    assert "ValueError: broken" in ended["exception"]


def test_structlog(server: TemporaryServer, root: logging.Logger):
    def job_fields(logger: Any, method: str, event: Any) -> Any:
        try:
            job = current()
        except NoCurrentJob:
            return event
        return {"job": job.id, "task": job.task, **event}

    stream = io.StringIO()
    chain: list[Any] = [structlog.stdlib.ExtraAdder(), job_fields]
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=chain,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.JSONRenderer(default=str),
        ],
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    root.handlers[:] = [handler]
    root.setLevel("INFO")
    structlog.configure(
        processors=[job_fields, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    try:
        job = run_one(server, "structlog", lambda: structlog.get_logger("shop").info("hello", basket=3))
    finally:
        structlog.reset_defaults()
    own, ended = [json.loads(line) for line in stream.getvalue().splitlines() if line.startswith("{") and job in line]
    assert (own["event"], own["job"], own["basket"]) == ("hello", job, 3)
    assert (ended["job"], ended["ending"]) == (job, "dead")


def test_loguru(server: TemporaryServer, root: logging.Logger):
    class ToLoguru(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            fields = {name: getattr(record, name) for name in ("job", "task", "ending") if hasattr(record, name)}
            loguru.logger.bind(**fields).log(record.levelname, record.getMessage())

    def add_job(record: Any) -> None:
        if "job" not in record["extra"]:
            with contextlib.suppress(NoCurrentJob):
                record["extra"]["job"] = current().id

    stream = io.StringIO()
    sink = loguru.logger.add(stream, format="{extra} {message}", level="INFO")
    loguru.logger.configure(patcher=add_job)
    handler = ToLoguru()
    handler.addFilter(JobFields())
    root.handlers[:] = [handler]
    root.setLevel("INFO")
    try:
        job = run_one(server, "loguru", lambda: loguru.logger.info("hello"))
    finally:
        loguru.logger.remove(sink)
        loguru.logger.configure(patcher=lambda record: None)
    own, ended = [line for line in stream.getvalue().splitlines() if f"'job': '{job}'" in line]
    assert own.endswith("hello")
    assert "'ending': 'dead'" in ended
