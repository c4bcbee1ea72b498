"""`penstock queue history`: what a queue did."""

from __future__ import annotations

import datetime

from penstock.cli.where import HERE, AsJson, Flag, Limit, Where
from penstock.jobs.history import Moment
from penstock.ops.wording import age
from penstock.terminal.tables import cell, headings, show_list


def history(
    name: str, /, *, minutes: Flag = False, limit: Limit = 30, where: Where = HERE, as_json: AsJson = False
) -> None:
    """Show what a queue did: its jobs and rates every 10 s of the last hour, or every minute of the last day.

    There is no row for an interval in which nothing was enqueued and no worker was there.

    Parameters
    ----------
    name
        The queue.
    minutes
        Show each minute of the last day.
    limit
        Show only this many of the latest rows.
    as_json
        Print one JSON document.
    """
    with where.open() as inspector:
        moments = inspector.history.moments(name, interval=60 if minutes else 10, moments=limit)
        if not moments:
            inspector.queues.show(name, tenants=1)  # raises for a queue that was never used
    columns = headings(
        "time:name", "ready", "oldest", "delayed", "running", "in/s", "out/s", "failed/s", "dead", "workers"
    )
    none = "This queue has no history yet. It has one 10 seconds after it was first used."
    show_list(moments, columns, map(_row, moments), none=none, as_json=as_json)


def _row(moment: Moment) -> tuple[object, ...]:
    failed = moment.per_second("failed") + moment.per_second("retried")
    return (
        datetime.datetime.fromtimestamp(moment.at).strftime("%H:%M:%S"),
        f"{moment.ready:,}",
        age(moment.oldest) if moment.ready else "",
        f"{moment.delayed:,}",
        f"{moment.running:,}",
        _rate(moment.per_second("entered")),
        _rate(moment.per_second("completed")),
        cell(_rate(failed), "red" if failed else ""),
        f"{moment.dead:,}",
        f"{moment.workers:,}",
    )


def _rate(per_second: float) -> str:
    return f"{per_second:,.0f}" if per_second >= 10 or not per_second else f"{per_second:.2g}"
