"""The schedules that tasks declare (`@app.task(schedule=…)`), and the time of the release that declares them."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from typing import Final

from penstock.errors import ConfigurationError
from penstock.jobs.constants import CALL
from penstock.jobs.definition import Definition
from penstock.jobs.options import Options
from penstock.jobs.queue import Queue
from penstock.jobs.schedule import ScheduleDefinition

RELEASE: Final = "PENSTOCK_RELEASE"


def declared_by(definition: Definition, queue: Queue) -> ScheduleDefinition:
    """The schedule of a task."""
    assert definition.timing is not None
    payload = definition.signature.encode((), {}, queue.settings.max_payload)
    start = queue.record_start(Options(), CALL, definition.name, definition.result_ttl)
    return ScheduleDefinition(definition.name, definition.timing, start + payload, release_time(definition))


def release_time(definition: Definition) -> float:
    """When the release with this task was made, in seconds since 1970: $PENSTOCK_RELEASE, else the age of its file.

    Raises ConfigurationError if $PENSTOCK_RELEASE is neither a number nor a date.
    """
    text = os.environ.get(RELEASE, "")
    if not text:
        file = getattr(sys.modules.get(definition.function.__module__), "__file__", None)
        try:
            return os.stat(file).st_mtime if file else 0.0
        except OSError:
            return 0.0
    try:
        return float(text)
    except ValueError:
        pass
    try:
        date = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(
            f"{RELEASE}={text!r}: seconds since 1970, or a date such as 2026-11-23T12:00:00+00:00"
        ) from None
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
