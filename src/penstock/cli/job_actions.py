"""`penstock job cancel|retry|run-again|rm|move`: actions on jobs by their ids, or on all that match a filter."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, TypeAlias

from cyclopts import Parameter
from cyclopts.validators import Number

from penstock.cli.exits import Exit
from penstock.cli.job_filter import ANY, EVERY, Listed, Matching
from penstock.cli.job_outcomes import report_outcomes
from penstock.cli.where import HERE, Where, Yes, confirm, read_arguments
from penstock.errors import ConfigurationError, JobError
from penstock.jobs.job_list import PER_SECOND, BulkProgress, Jobs, OnProgress
from penstock.jobs.status import Status
from penstock.ops.inspect import Inspector
from penstock.ops.wording import many
from penstock.terminal.progress import progress_display
from penstock.terminal.tables import note, show

RETRIED = "only a dead letter can be retried; `penstock job run-again` runs a job that has ended as a new one"

RUN_AGAIN = ("completed", "cancelled", "expired", "dropped")
"""The states of a filter for jobs that run again."""

MOST_AGAIN = 1000
"""Jobs that one command runs again."""

PerSecond: TypeAlias = Annotated[float, Parameter(validator=Number(gte=0.1, lte=1e6))]
_Act: TypeAlias = Callable[[Jobs, OnProgress], BulkProgress]


def cancel(
    *ids: str,
    wait: float = 0.0,
    matching: Matching = ANY,
    per_second: PerSecond = PER_SECOND,
    yes: Yes = False,
    where: Where = HERE,
) -> Exit:
    """Cancel jobs. Running ones are asked to end. Exit code 1 if one is not cancelled, or not yet.

    Parameters
    ----------
    ids
        Ids as they were printed: queue:key. Instead of ids, the options below select jobs of one queue.
    wait
        Seconds to wait for the end of each running job.
    per_second
        With a filter: how many jobs to cancel in a second.
    yes
        Do not ask; required for more than one job unless at a terminal.
    """
    with where.open() as inspector:
        if _is_bulk(ids, matching):
            if wait:
                raise ConfigurationError("--wait is for jobs that are named by their ids")
            return _do_to_matching(
                inspector,
                matching,
                "cancels {}",
                "cancelled",
                lambda jobs, progress: jobs.cancel(per_second=per_second, on_progress=progress),
                yes=yes,
            )
        if len(ids) > 1:
            confirm(f"This cancels {many(len(ids), 'job')}, at {inspector.location}.", yes=yes)
        outcomes = inspector.jobs.cancel(*ids, wait=wait)
    rule = "only a waiting or a running job can be cancelled"
    if any(outcome.status is Status.RUNNING for outcome in outcomes):
        rule = (
            f"it was asked to end, and had not ended after {wait:g} s: its code cannot be interrupted"
            if wait
            else "it was asked to end; --wait SECONDS waits for that"
        )
    return report_outcomes(outcomes, "cancelled", rule)


def retry(
    *ids: str, matching: Matching = ANY, per_second: PerSecond = PER_SECOND, yes: Yes = False, where: Where = HERE
) -> Exit:
    """Run dead letters again, with their attempts reset to zero. Exit code 1 if one is not a dead letter.

    Parameters
    ----------
    ids
        Ids as they were printed: queue:key. Instead of ids, the options below select dead letters of one queue.
    per_second
        With a filter: how many jobs to requeue in a second.
    yes
        With a filter: do not ask; required unless at a terminal.
    """
    with where.open() as inspector:
        if _is_bulk(ids, matching):
            return _do_to_matching(
                inspector,
                _dead(matching),
                "runs {} again",
                "requeued",
                lambda jobs, progress: jobs.requeue(per_second=per_second, on_progress=progress),
                yes=yes,
            )
        return requeue(inspector, ids)


def run_again(
    *ids: str,
    arguments: str | None = None,
    matching: Listed = EVERY,
    per_second: PerSecond = PER_SECOND,
    yes: Yes = False,
    where: Where = HERE,
) -> Exit:
    """Run jobs that have ended again, each as a new job. Exit code 1 if one cannot run again.

    The queue has to keep arguments: `penstock queue keep NAME --arguments`. `job retry` is for dead letters.

    Parameters
    ----------
    ids
        Ids as they were printed: queue:key. An id that is named twice counts once. Instead of ids, the options below
        select up to 1,000 jobs of one queue, the latest first; --state says how they have ended.
    arguments
        Run the one job that is named with these arguments, a JSON object of all of them by name. They need not have
        been kept. Needs --app.
    per_second
        With a filter: how many jobs to enqueue in a second.
    yes
        With a filter: do not ask; required unless at a terminal.
    """
    if bool(ids) == (matching != EVERY):
        raise ConfigurationError("name jobs by their ids, or select them with --queue, --state and other options")
    if arguments is not None and len(ids) != 1:
        raise ConfigurationError("--arguments is for one job: name it by its id")
    if arguments is not None and where.app is None:
        raise ConfigurationError("job run-again --arguments needs the app that has the task: --app module:name")
    values = None if arguments is None else read_arguments(arguments)
    with where.open() as inspector:
        chosen, done = list(dict.fromkeys(ids)) or _ended(inspector, matching), 0
        if not ids and not chosen:
            show("No job matches.")
            return Exit.OK
        if not ids:
            which = f"{many(len(chosen), 'job')} of queue {matching.queue} ({matching.words()})"
            confirm(f"This runs {which} again, as new jobs, at {inspector.location}.", yes=yes)
        for id in chosen:
            inspector.jobs.open(id)  # a wrong id is refused before any job is enqueued
        for id in chosen:
            try:
                job = inspector.jobs.run_again(id, values)
            except JobError as error:
                note(str(error))
            else:
                show(f"{id} runs again as {job.id}")
                done += 1
            if not ids:
                time.sleep(1 / per_second)
    return Exit.OK if done == len(chosen) else Exit.FAILED


def _ended(inspector: Inspector, matching: Listed) -> list[str]:
    """The latest jobs that match and have ended, found before any of them runs again."""
    queue = matching.needed_queue()
    if matching.state not in RUN_AGAIN:
        raise ConfigurationError(
            f"--state {matching.state or '(none)'}: say which jobs run again, {', '.join(RUN_AGAIN[:-1])} or "
            f"{RUN_AGAIN[-1]}; `penstock job retry` is for dead letters"
        )
    found: list[str] = []
    cursor: str | None = None
    while len(found) <= MOST_AGAIN:
        page = inspector.jobs.find(queue, limit=MOST_AGAIN + 1 - len(found), cursor=cursor, **matching.wanted())
        found += [job.id for job in page.jobs if job.id]  # the row of a purge names no job
        cursor = page.cursor
        if cursor is None:
            break
    if len(found) > MOST_AGAIN:
        note(f"more jobs match; these are the latest {MOST_AGAIN:,}")
    return list(dict.fromkeys(found[:MOST_AGAIN]))


def rm(
    *ids: str, matching: Matching = ANY, per_second: PerSecond = PER_SECOND, yes: Yes = False, where: Where = HERE
) -> Exit:
    """Delete dead letters for good. Exit code 1 if one is not a dead letter.

    Parameters
    ----------
    ids
        Ids as they were printed: queue:key. Instead of ids, the options below select dead letters of one queue.
    per_second
        With a filter: how many jobs to delete in a second.
    yes
        Do not ask; required unless at a terminal.
    """
    with where.open() as inspector:
        if _is_bulk(ids, matching):
            return _do_to_matching(
                inspector,
                _dead(matching),
                "deletes {} for good",
                "removed",
                lambda jobs, progress: jobs.remove(per_second=per_second, on_progress=progress),
                yes=yes,
            )
        return remove(inspector, ids, yes=yes)


def requeue(inspector: Inspector, ids: Sequence[str]) -> Exit:
    """Run dead letters again, for `job retry` and `dead retry`."""
    return report_outcomes(inspector.jobs.requeue_dead(*ids), "requeued", RETRIED)


def remove(inspector: Inspector, ids: Sequence[str], *, yes: bool) -> Exit:
    """Delete dead letters after a confirmation, for `job rm` and `dead rm`."""
    confirm(f"This deletes {many(len(ids), 'dead letter')} for good, at {inspector.location}.", yes=yes)
    return report_outcomes(inspector.jobs.remove_dead(*ids), "removed", "only a dead letter can be removed")


def move(
    *ids: str,
    to: str,
    matching: Matching = ANY,
    per_second: PerSecond = PER_SECOND,
    yes: Yes = False,
    where: Where = HERE,
) -> Exit:
    """Move waiting jobs and dead letters to another queue. Exit code 1 if one stays.

    A dead letter becomes ready in the other queue. Jobs with a unique key or limits stay.

    Parameters
    ----------
    ids
        Ids as they were printed: queue:key. Instead of ids, the options below select jobs of one queue.
    to
        The queue to move them to.
    per_second
        With a filter: how many jobs to move in a second.
    yes
        With a filter: do not ask; required unless at a terminal.
    """
    with where.open() as inspector:
        if not _is_bulk(ids, matching):
            rule = "only waiting jobs and dead letters without unique keys and limits can be moved"
            return report_outcomes(inspector.jobs.move(*ids, to=to), f"moved to {to}", rule)
        target = inspector.queues.open(to, must_exist=False)
        return _do_to_matching(
            inspector,
            matching,
            f"moves {{}} to queue {to}",
            "moved",
            lambda jobs, progress: jobs.move(target, per_second=per_second, on_progress=progress),
            yes=yes,
        )


def _is_bulk(ids: Sequence[str], matching: Matching) -> bool:
    """Whether a filter selects the jobs. Raises ConfigurationError unless there are ids or a filter."""
    if bool(ids) == (matching != ANY):
        raise ConfigurationError("name jobs by their ids, or select them with --queue and other options, but not both")
    return not ids


def _dead(matching: Matching) -> Matching:
    if matching.state not in (None, "dead"):
        raise ConfigurationError(f"--state {matching.state}: this is for dead letters only")
    return replace(matching, state="dead")


def _do_to_matching(inspector: Inspector, matching: Matching, what: str, done: str, act: _Act, *, yes: bool) -> Exit:
    """Count the jobs that match, ask, and act on those that still do."""
    queue, words = matching.needed_queue(), matching.words()
    jobs = inspector.queues.open(queue).jobs(**matching.wanted())
    with progress_display(_searched, _searched) as display:
        found = jobs.count(on_progress=display)
    if not found:
        show("No job matches.")
        return Exit.OK
    which = f"{many(found, 'job')} of queue {queue}" + (f" ({words})" if words else "")
    confirm(f"This {what.format(which)}, at {inspector.location}.", yes=yes)
    line = partial(_acted, done)
    with progress_display(line, line) as display:
        progress = act(jobs, display)
    show(f"{progress.done:,} of {many(progress.found, 'job')} {done}.")
    return Exit.OK


def _searched(progress: BulkProgress) -> str:
    return f"{progress.found:,} found, searched {progress.examined:,} of {many(progress.of, 'job')}"


def _acted(done: str, progress: BulkProgress) -> str:
    return f"{progress.done:,} {done}, searched {progress.examined:,} of {many(progress.of, 'job')}"
