"""`penstock task ls`: what each task did lately."""

from __future__ import annotations

from penstock.cli.ages import Age
from penstock.cli.where import HERE, AsJson, Where
from penstock.ops.answers import TaskReport, TaskStats
from penstock.ops.wording import ago, many, milliseconds
from penstock.terminal.tables import cell, headings, note, show_json, show_list


def ls(*, queue: str | None = None, since: Age | None = None, where: Where = HERE, as_json: AsJson = False) -> None:
    """List the tasks whose jobs have ended lately: how many, and how long they waited and ran.

    `run p95` is the time within which 95 of 100 jobs ran, of the jobs that a queue keeps (`penstock queue keep`).

    Parameters
    ----------
    queue
        Only tasks of this queue.
    since
        Only jobs that ended in this time, such as 15m.
    as_json
        Print one JSON document.
    """
    with where.open() as inspector:
        report = inspector.tasks.all(queue, since=since)
    if as_json:
        return show_json(report)
    columns = headings(
        "task:name",
        "queue:name",
        "done",
        "failed",
        "retries",
        "run p50",
        "p95",
        "p99",
        "wait p50",
        "p95 ",
        "p99 ",
        "last",
    )
    none = "No job has ended lately." if since is None else "No job has ended in this time."
    show_list(report.tasks, columns, (_row(one, report) for one in report.tasks), none=none, as_json=False)
    if report.tasks:
        note(f"from the latest {many(report.examined, 'job')}; the earliest ended {_earliest(report)}")


def _row(one: TaskStats, report: TaskReport) -> tuple[object, ...]:
    run, wait = one.duration, one.waiting
    times = (run.p50, run.p95, run.p99, wait.p50, wait.p95, wait.p99)
    return (
        one.task or "(values)",
        one.queue,
        f"{one.completed:,}",
        cell(f"{one.failed:,}", "red" if one.failed else ""),
        f"{one.retries:,}",
        *("" if seconds is None else milliseconds(seconds) for seconds in times),
        ago(one.last, report.now),
    )


def _earliest(report: TaskReport) -> str:
    return ago(min(one.since for one in report.tasks), report.now)
