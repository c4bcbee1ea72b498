"""Reports the outcome of an action on jobs, in words and as an exit code."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.cli.exits import Exit
from penstock.errors import ConfigurationError
from penstock.jobs.status import Status
from penstock.ops.answers import ActionOutcome
from penstock.terminal.tables import note, show


def report_outcomes(outcomes: Sequence[ActionOutcome], done: str, rule: str) -> Exit:
    """Print one line per job, on stdout for success and on stderr for failure. Raises ConfigurationError for no job."""
    if not outcomes:
        raise ConfigurationError("name at least one job by its id, queue:key")
    for outcome in outcomes:
        if outcome.done:
            show(f"{outcome.id} {done}")
        elif outcome.status is Status.UNKNOWN:
            note(f"no job {outcome.id}: never enqueued here, or its result is gone")
        else:
            note(f"job {outcome.id} is {outcome.status}: {rule}")
    return Exit.OK if all(outcome.done for outcome in outcomes) else Exit.FAILED
