"""The worker's log lines about jobs, as a middleware."""

from __future__ import annotations

import logging

from penstock.jobs.middleware import JobContext, JobOutcome, Middleware

log = logging.getLogger("penstock.worker")


class JobLog(Middleware):
    """Logs how each run ended: at DEBUG if it completed, else at INFO, WARNING or ERROR."""

    def finished(self, job: JobContext, outcome: JobOutcome) -> None:
        name = f"{job.id} ({job.task})" if job.task else job.id
        match outcome.ending:
            case "completed":
                log.debug("job %s completed", name)
            case "dropped":
                log.info("job %s dropped: %s", name, outcome.reason)
            case "postponed":
                log.info("job %s runs again in %g s: %s", name, outcome.delay, outcome.reason)
            case "unknown":
                log.warning("job %s handed back: %s", name, outcome.reason)
            case "retried":
                log.warning(
                    "job %s failed, attempt %d, again in %.1f s: %s", name, job.attempt, outcome.delay, outcome.reason
                )
            case "cancelled":
                log.info("job %s was cancelled", name)
            case "lost":
                log.warning("job %s is lost and runs again: %s", name, outcome.reason)
            case "crashed":
                log.error("job %s has crashed: %s", name, outcome.reason)
            case "dead" if not job.task:
                log.error("job %s cannot be read and is a dead letter: %s", name, outcome.reason)
            case "dead":
                log.error("job %s is a dead letter after attempt %d: %s", name, job.attempt, outcome.reason)
