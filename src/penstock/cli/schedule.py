"""`penstock schedule …`: calls that are enqueued again and again."""

from __future__ import annotations

from datetime import UTC, datetime

from penstock.cli.job import value_text
from penstock.cli.where import HERE, AsJson, Where, read_arguments
from penstock.errors import ConfigurationError
from penstock.jobs.schedule import ScheduleInfo, ScheduleRun
from penstock.jobs.timing import Missed
from penstock.ops.wording import age, ago, milliseconds
from penstock.terminal.tables import cell, headings, show, show_facts, show_json, show_list, show_table

_COLUMNS = headings(
    "schedule:name", "times:text", "state:text", "next:text", "last:text", "last run:text", "jobs", "call:text"
)


def ls(queue: str | None = None, /, *, where: Where = HERE, as_json: AsJson = False) -> None:
    """List the schedules of all queues, or of one.

    Without a queue it reads the names of all keys of the server once, in slices: some seconds for many millions.

    Parameters
    ----------
    queue
        The name of a queue.
    as_json
        Print one JSON document.
    """
    with where.open() as inspector:
        schedules = inspector.schedules.all(queue)
        now = inspector.now() if schedules else 0.0
    rows = (_row(one, now) for one in schedules)
    show_list(schedules, _COLUMNS, rows, none="There are no schedules.", as_json=as_json)


def show_one(name: str, /, *, where: Where = HERE, as_json: AsJson = False) -> None:
    """Show one schedule: its times, its call, and how its last ten jobs ended.

    Parameters
    ----------
    name
        The name of the schedule, or queue:name.
    as_json
        Print one JSON document.
    """
    with where.open() as inspector:
        one, now = inspector.schedules.show(name), inspector.now()
    if as_json:
        return show_json(one)
    show_facts(
        {
            "schedule": one.id,
            "times": times_text(one),
            "state": one.state,
            "next": time_text(one.next) if one.next is not None else "(none)",
            "last": ago(one.last, now) if one.last is not None else "(none)",
            "jobs": f"{one.count:,}",
            "call": cell(value_text(one.body)),
        }
    )
    if one.runs:
        show("")
        rows = [(run.job, str(run.outcome), _took(run), ago(run.ended, now)) for run in one.runs]
        show_table(headings("job:name", "outcome:text", "took", "ended"), rows)


def add(
    name: str,
    task: str,
    /,
    *,
    cron: str = "",
    timezone: str = "UTC",
    every: float | None = None,
    missed: Missed = "one",
    arguments: str = "{}",
    where: Where = HERE,
) -> None:
    """Enqueue a task of the app at the times of a cron line, or at a fixed interval. Needs --app.

    Parameters
    ----------
    name
        The name of the schedule. An earlier schedule of this name that was added is replaced.
    task
        The name of the task.
    cron
        Minute, hour, day, month and weekday, for example "0 7 * * mon-fri".
    timezone
        The time zone of the cron line, for example Europe/Berlin.
    every
        Instead of a cron line: seconds between two ticks.
    missed
        After missed ticks: `one` job, `skip` them, or `all`, a job for each.
    arguments
        The arguments of the task by name, as a JSON object.
    """
    if where.app is None:
        raise ConfigurationError("schedule add needs the app that has the task: --app module:name")
    values = read_arguments(arguments)
    with where.open(creates=True) as inspector:
        one = inspector.schedules.add(name, task, values, schedule=cron, timezone=timezone, every=every, missed=missed)
    show(f"Added {one.id}, {times_text(one)}; next {time_text(one.next)}.")


def run(name: str, /, *, where: Where = HERE) -> None:
    """Enqueue the job of a schedule now, even if it is paused.

    Parameters
    ----------
    name
        The name of the schedule, or queue:name.
    """
    with where.open() as inspector:
        job = inspector.schedules.trigger(name)
    show(f"Enqueued {job.id}.")


def pause(name: str, /, *, where: Where = HERE) -> None:
    """Enqueue nothing for a schedule until it is resumed.

    Parameters
    ----------
    name
        The name of the schedule, or queue:name.
    """
    with where.open() as inspector:
        one = inspector.schedules.pause(name)
    show(f"Paused {one.id}.")


def resume(name: str, /, *, where: Where = HERE) -> None:
    """Continue a schedule with its next tick. Ticks that passed while it was paused are skipped.

    Parameters
    ----------
    name
        The name of the schedule, or queue:name.
    """
    with where.open() as inspector:
        one = inspector.schedules.resume(name)
    show(f"Resumed {one.id}; next {time_text(one.next)}.")


def rm(*names: str, where: Where = HERE) -> None:
    """Remove schedules. Their jobs stay.

    A schedule that the code of an app declares comes back when the next worker with that code starts: pause it instead.

    Parameters
    ----------
    names
        Names of schedules, or queue:name.
    """
    if not names:
        raise ConfigurationError("name the schedules to remove; penstock schedule ls lists them")
    with where.open() as inspector:
        for name in names:
            one = inspector.schedules.remove(name)
            show(f"Removed {one.id}.")
            if one.declared and one.state != "orphaned":
                show("  The code of an app declares it: the next worker with that code brings it back.")


def times_text(one: ScheduleInfo) -> str:
    return f"every {one.every:g} s" if one.every is not None else f"{one.cron} {one.timezone}"


def time_text(seconds: float | None) -> str:
    return "never" if seconds is None else f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _row(one: ScheduleInfo, now: float) -> tuple[str, ...]:
    next_ = "" if one.next is None else f"in {age(max(0.0, one.next - now))}"
    last = "" if one.last is None else ago(one.last, now)
    run = f"{one.runs[0].outcome} {_took(one.runs[0])}".rstrip() if one.runs else ""
    return one.id, times_text(one), one.state, next_, last, run, f"{one.count:,}", value_text(one.body)


def _took(run: ScheduleRun) -> str:
    return "" if run.seconds is None else f"in {milliseconds(run.seconds)}"
