"""`penstock job ls` and `penstock worker show`: jobs that match a filter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.cli.job_filter import EVERY, Listed
from penstock.cli.where import HERE, AsJson, Limit, Where
from penstock.jobs.job_list import JobPage, JobSummary
from penstock.jobs.status import Status
from penstock.jobs.why import FOREVER
from penstock.ops.wording import age, ago, lost, many, size
from penstock.terminal.tables import headings, note, show, show_json, show_sentence, show_table

MOST_REASONS = 100
"""Dead letters whose reasons a list shows; each costs a round trip."""


def ls(
    matching: Listed = EVERY,
    *,
    limit: Limit = 20,
    cursor: str | None = None,
    where: Where = HERE,
    as_json: AsJson = False,
) -> None:
    """List jobs. Without --queue, those of all queues.

    A search examines at most 20,000 jobs, says how many there are, and prints how to continue. With --state dead,
    delayed, sleeping or running, and with --state ready and --tenant, it examines only jobs in that state.

    Parameters
    ----------
    limit
        About how many to list, up to 1000.
    cursor
        Continue where an earlier search with the same options ended.
    as_json
        Print one JSON document.
    """
    with where.open() as inspector:
        found = inspector.jobs.find(matching.queue, limit=limit, cursor=cursor, **matching.wanted())
        now = inspector.now()
        dead = [job.id for job in found.jobs if job.status is Status.DEAD and job.ended is None]
        reasons = inspector.jobs.reasons(*dead[:MOST_REASONS]) if not as_json else {}
    if as_json:
        return show_json(found)
    if found.jobs and found.jobs[0].ended is not None:
        show_ended(found.jobs, now)
    elif found.jobs:
        show_jobs(found.jobs, now, reasons)
    else:
        show("No job matches." if found.cursor is None else "No job matches so far.")
    note_rest(found)


def show_jobs(jobs: Iterable[JobSummary], now: float, reasons: Mapping[str, str] | None = None) -> None:
    """Print a table of jobs, with the reasons of dead letters if there are any."""
    names = ("job:name", "state:name", "for", "task:text", "tenant:text", "attempts", "worker:name")
    if not reasons:
        return show_table(headings(*names), ([*_row(job, now)] for job in jobs))
    show_table(headings(*names, "reason:text"), ([*_row(job, now), reasons.get(job.id, "")] for job in jobs))


def _row(job: JobSummary, now: float) -> Iterable[str]:
    if job.status in (Status.DELAYED, Status.SLEEPING) and job.since > now:
        time = "no end" if job.since > FOREVER else f"due in {age(job.since - now)}"
    else:
        time = age(max(0.0, now - job.since))
    return job.id, str(job.status), time, job.task, job.tenant, f"{job.attempts}", job.worker


def show_ended(jobs: Iterable[JobSummary], now: float) -> None:
    """Print a table of jobs that have ended."""
    names = ("job:name", "end:name", "ended", "took", "task:text", "tenant:text", "attempts", "worker:name")
    show_table(headings(*names, "reason:text"), ([*_ended(job, now)] for job in jobs))


def _ended(job: JobSummary, now: float) -> Iterable[str]:
    took = "" if job.started is None or job.ended is None else age(max(0.0, job.ended - job.started))
    what, when = job.id or f"({many(job.jobs, 'job')})", ago(job.since, now)
    return what, str(job.status), when, took, job.task, job.tenant, f"{job.attempts}", job.worker, job.reason


def note_rest(found: JobPage) -> None:
    """Report the progress of a search that has not ended, and the command that continues it."""
    if found.cursor is not None:
        note(f"searched {found.examined:,} of {many(found.of, 'job')}; to continue: --cursor {found.cursor}")


def show_worker(
    name: str, /, *, queue: str | None = None, limit: Limit = 50, where: Where = HERE, as_json: AsJson = False
) -> None:
    """Show a worker and the jobs that it runs.

    Parameters
    ----------
    name
        The worker as `penstock worker ls` prints it: host:pid.
    queue
        Look only in this queue.
    limit
        About how many of its jobs to list, up to 1000.
    as_json
        Print one JSON document.
    """
    with where.open() as inspector:
        detail, now = inspector.workers.show(name, queue, limit=limit), inspector.now()
    if as_json:
        return show_json(detail)
    for one in detail.registrations:
        since = "" if one.since is None else f", started {ago(one.since, now)}"
        state = lost(one.lease) if one.lease <= 0 else f"lease {age(one.lease)}"
        memory = "" if one.memory is None else f", {size(one.memory)} of memory"
        jobs = f"{many(one.held, 'job')} of {one.concurrency} at once"
        show_sentence(f"{one.name} in queue {one.queue}: {jobs}{since}{memory}, {state}")
    if detail.jobs.jobs:
        show("")
        show_jobs(detail.jobs.jobs, now)
    if detail.jobs.cursor is not None:
        note(f"more jobs: penstock job ls --worker {name} --limit 1000")
