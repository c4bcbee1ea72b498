"""The schedules that tasks declare (`@app.task(schedule=…)`)."""

from __future__ import annotations

from functools import partial

from penstock.jobs.constants import CALL, LIMITED, LIMITS
from penstock.jobs.definition import Definition
from penstock.jobs.options import Options
from penstock.jobs.queue import Queue
from penstock.jobs.release import release_time
from penstock.jobs.schedule import ScheduleDefinition


def declared_by(definition: Definition, queue: Queue) -> ScheduleDefinition:
    """The schedule of a task."""
    assert definition.timing is not None
    signature, limits, options = definition.signature, definition.limits, Options()
    payload = signature.encode((), {}, queue.settings.max_payload)
    flags, powers = (CALL | LIMITED, LIMITS) if limits else (CALL, 0)
    draft = queue.record_start(options, flags, definition.name, definition.result_ttl, powers)
    if limits:
        from penstock.jobs.unique import encode_powers

        draft += encode_powers(l=limits.rows(partial(signature.value, signature.decode(payload)), options.tenant))
    return ScheduleDefinition(definition.name, definition.timing, draft + payload, release_time(definition.function))
