"""The worker's log lines about jobs, as a middleware."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock.jobs.claims import Settlement
from penstock.jobs.middleware import JobContext, JobOutcome, Middleware, MiddlewareStack
from penstock.settings import LogLevel

if TYPE_CHECKING:
    from penstock.worker.run import JobRun

log = logging.getLogger("penstock.worker")

_MOST_SAID: Final = 1000
"""Reasons to remember."""


class JobLog(Middleware):
    """Logs that a run starts and that it has completed, both at `level`, and other endings at INFO, WARNING or ERROR.

    Jobs that this worker cannot run for one reason are a WARNING once, and after that at `level`. The server decides
    whether such a job is handed back or becomes a dead letter, so the feed logs the latter.

    Each record has the attributes `job` (`queue:key`), `task`, `queue`, `tenant`, `attempt`, `duration` in seconds,
    `worker`, and `ending`. A record of a failure also has its traceback, which every `logging.Formatter` prints.
    """

    def __init__(self, worker: str, level: int) -> None:
        self._worker = worker
        self._level = level
        self._said: set[str] = set()
        """The reasons for which jobs could not run here."""

    @property
    def wants_all(self) -> bool:
        return log.isEnabledFor(self._level)

    def started(self, job: JobContext) -> None:
        self._log(self._level, f"job {job.id} ({job.task}) starts", job)

    def finished(self, job: JobContext, outcome: JobOutcome) -> None:
        name = f"{job.id} ({job.task})" if job.task else job.id
        level, text = logging.ERROR, ""
        match outcome.ending:
            case "completed":
                level, text = self._level, f"completed in {outcome.duration:.3g} s"
            case "dropped":
                level, text = logging.INFO, f"dropped: {outcome.reason}"
            case "postponed":
                level, text = logging.INFO, f"runs again in {outcome.delay:g} s: {outcome.reason}"
            case "unknown":
                level, text = self._first_or_again(outcome.reason), f"cannot run in this worker: {outcome.reason}"
            case "retried":
                again = f"attempt {job.attempt}, again in {outcome.delay:.1f} s"
                level, text = logging.WARNING, f"failed, {again}: {outcome.reason}"
            case "cancelled":
                level, text = logging.INFO, "was cancelled"
            case "lost":
                level, text = logging.WARNING, f"is lost and runs again: {outcome.reason}"
            case "crashed":
                text = f"has crashed: {outcome.reason}"
            case "dead" if not job.task:
                text = f"cannot be read and is a dead letter: {outcome.reason}"
            case "dead":
                text = f"is a dead letter after attempt {job.attempt}: {outcome.reason}"
        if log.isEnabledFor(level):
            ended = {"duration": round(outcome.duration, 6), "ending": outcome.ending}
            self._log(level, f"job {name} {text}", job, ended, outcome.traceback)

    def _first_or_again(self, reason: str) -> int:
        """WARNING for a reason for which no job was refused before. It holds for all jobs of a task, or of a key."""
        if reason in self._said:
            return self._level
        if len(self._said) < _MOST_SAID:
            self._said.add(reason)
        return logging.WARNING

    def _log(
        self, level: int, text: str, job: JobContext, ended: Mapping[str, Any] | None = None, traceback: str = ""
    ) -> None:
        fields = {
            "job": job.id,
            "task": job.task,
            "queue": job.queue,
            "tenant": job.tenant,
            "attempt": job.attempt,
            "worker": self._worker,
            **(ended or {}),
        }
        record = log.makeRecord(log.name, level, __file__, 0, "%s", (text,), None, extra=fields)
        # The exception may come from another process, so there is only its text. A formatter prints it like its own.
        record.exc_text = traceback.rstrip() or None
        log.handle(record)


class RunReports:
    """Reports how runs ended: to the log, and to the `finished` hooks. `level`: `WorkerSettings.job_log_level`."""

    def __init__(self, worker: str, middleware: MiddlewareStack, level: LogLevel) -> None:
        self._job_log = JobLog(worker, logging.getLevelNamesMapping()[level.upper()])
        self._middleware = middleware

    @property
    def wants_all(self) -> bool:
        """Whether completed runs are reported, too."""
        return bool(self._middleware.finished_hooks) or self._job_log.wants_all

    def start(self, run: JobRun) -> None:
        """Log that the job, or each job of the batch, starts."""
        if self._job_log.wants_all:
            for claim in run.claims:
                self._job_log.started(JobContext.of(claim, run.queue, run.definition.name))

    def add(self, context: JobContext, settlement: Settlement, started_at: float | None = None) -> None:
        outcome = JobOutcome.of(settlement, 0.0 if started_at is None else time.monotonic() - started_at)
        self._job_log.finished(context, outcome)
        self._middleware.report(context, outcome)

    def add_all(self, run: JobRun, settlements: Sequence[Settlement]) -> None:
        """Report how each job of a batch has ended. Completed ones are skipped unless `wants_all`."""
        wants_all = self.wants_all
        for claim, settlement in zip(run.batch, settlements, strict=True):
            if wants_all or settlement.ending is not None:
                self.add(JobContext.of(claim, run.queue, run.definition.name), settlement, run.started_at)
