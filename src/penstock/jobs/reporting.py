"""Errors of jobs for a service such as Sentry, and the fields of the running job for structured logs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Final

from penstock.errors import JobFailed
from penstock.jobs.current import CurrentJob, running
from penstock.jobs.middleware import JobContext, JobOutcome, Middleware
from penstock.jobs.retry import Drop, Retry, RetryLater

log = logging.getLogger("penstock.middleware")

TIMED_OUT: Final = "TimeoutError: ran longer than its timeout"
"""The start of the reason that the worker gives to a run that its timeout has ended."""


class ErrorReports(Middleware):
    """Middleware that calls `report(error, job)` with each error of a job.

        app = Penstock(middleware=[ErrorReports(lambda error, job: sentry_sdk.capture_exception(error))])

    For an exception of the task, `report` is called where the task runs, in the context of the task, and gets the
    exception itself. For a timeout, and for a process that died, it is called on the worker's event loop and gets a
    JobFailed with the reason. `Retry`, `RetryLater` and `Drop` are no errors. `report` must not block; if it raises,
    that is logged and changes nothing. As the outermost middleware it also sees the errors of the others.
    """

    def __init__(self, report: Callable[[BaseException, JobContext], object]) -> None:
        self._report = report

    def execute(self, job: JobContext) -> Iterator[None]:
        try:
            yield
        except (Retry, RetryLater, Drop):
            raise
        except Exception as error:
            self._call(error, job)
            raise

    def finished(self, job: JobContext, outcome: JobOutcome) -> None:
        if outcome.ending == "crashed" or outcome.reason.startswith(TIMED_OUT):
            text = f"job {job.id} ({job.task}) failed: {outcome.reason}"
            self._call(JobFailed(text, reason=outcome.reason, traceback=outcome.traceback), job)

    def _call(self, error: BaseException, job: JobContext) -> None:
        try:
            self._report(error, job)
        except Exception:
            log.exception("job %s: an error could not be reported", job.id)


class JobFields(logging.Filter):
    """Adds the fields of the running job to each log record: `job`, `task`, `queue`, `tenant`, `attempt`.

        handler.addFilter(JobFields())

    A record that is logged outside of a job, or that has such a field already, keeps what it has. `penstock worker
    --log-format json` does this by itself. It never drops a record.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        run = running.get(None)
        if run is not None:
            job = CurrentJob(run)
            fields = {"job": job.id, "task": job.task, "queue": job.queue, "tenant": job.tenant, "attempt": job.attempt}
            for name, value in fields.items():
                if not hasattr(record, name):
                    setattr(record, name, value)
        return True
