"""The schedules that tasks declare (`@app.task(schedule=…)`)."""

from __future__ import annotations

from penstock.jobs.decorator import make_task
from penstock.jobs.definition import Definition
from penstock.jobs.queue import Queue
from penstock.jobs.release import release_time
from penstock.jobs.schedule import ScheduleDefinition


def declared_by(definition: Definition, queue: Queue) -> ScheduleDefinition:
    """The schedule of a task. Its jobs are calls without arguments, with all that the task declares for its calls."""
    assert definition.timing is not None
    _, draft = make_task(definition, queue).call().draft()
    return ScheduleDefinition(definition.name, definition.timing, draft, release_time(definition.function))
