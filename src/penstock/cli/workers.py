"""`penstock worker ls`: the workers of each queue."""

from __future__ import annotations

from rich.text import Text

from penstock.cli.where import HERE, AsJson, Where
from penstock.jobs.counts import WorkerInfo
from penstock.ops.wording import age, ago
from penstock.terminal.tables import cell, headings, show_list


def ls(*, queue: str | None = None, where: Where = HERE, as_json: AsJson = False) -> None:
    """List the workers of each queue, and programs that claim without a worker.

    Parameters
    ----------
    queue
        List only this queue.
    as_json
        Print one JSON document.
    """
    with where.open() as inspector:
        workers, now = inspector.workers.all(queue), inspector.now()
    columns = headings("worker:name", "queue:name", "jobs", "at once", "since", "release:name", "state:name")
    lines = ((*_row(one, now), _state(one)) for one in workers)
    show_list(workers, columns, lines, none="There are no workers.", as_json=as_json)


def _row(one: WorkerInfo, now: float) -> tuple[str, ...]:
    since = "" if one.since is None else ago(one.since, now)
    return one.name or "(a program)", one.queue, f"{one.held:,}", f"{one.concurrency or ''}", since, one.release


def _state(one: WorkerInfo) -> Text:
    if one.lease <= 0:
        return cell(f"lost for {age(-one.lease)}", "red")
    return cell(f"{'busy' if one.held else 'idle'}, lease {age(one.lease)}")
