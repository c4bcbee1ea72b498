"""Checks whether the keys and queues of an app are in order, on all its servers together."""

from __future__ import annotations

from penstock.app import Penstock
from penstock.core.operations import Operation
from penstock.errors import JobNotFound
from penstock.jobs.shard_table import whole_name
from penstock.ops import probe
from penstock.ops.checks.result import Verdict
from penstock.ops.health import HealthQuestioner
from penstock.ops.inventory import take_inventory
from penstock.ops.jobs import JobQuestioner
from penstock.ops.wording import many

MOST_KEYS = 200_000
"""How many keys are checked on each server; this many take some seconds."""

_SHOWN = 5

_EXPLAINED = ("no_worker", "late", "paused")
"""Findings about ready jobs, to which the reason for one of them is added."""


def check_keys(app: Penstock) -> Operation[list[Verdict]]:
    """Check that Penstock wrote every key, and that the owner of each key still exists."""
    inventory = yield from take_inventory(app.settings.prefix, MOST_KEYS)
    number = f"{many(inventory.keys, 'key')} of prefix {app.settings.prefix!r}"
    if not inventory.complete:
        number += f", the first {MOST_KEYS:,} checked"
    if not inventory.problems:
        return [("ok", f"{number}, all in order", "")]
    advice = "if no newer Penstock and no other program wrote it, please report this bug"
    verdicts: list[Verdict] = [
        ("fail", f"{found.key}: {found.problem}", advice) for found in inventory.problems[:_SHOWN]
    ]
    if more := len(inventory.problems) - len(verdicts):
        verdicts.append(("fail", f"and {more:,} more such keys", ""))
    return verdicts


def check_queues(app: Penstock) -> Operation[list[Verdict]]:
    """Find queues that an operator should look at (see `ops/health.py`)."""
    names = sorted({*map(whole_name, (yield from probe.queue_names(app.settings.prefix)))})
    found = yield from HealthQuestioner(app).queues.within(names)
    verdicts: list[Verdict] = []
    for one in found.findings:
        reason = (yield from _why(app, one.queue)) if one.kind in _EXPLAINED and one.jobs else ""
        verdicts.append(("warn", one.message + reason, one.advice))
    return verdicts or [("ok", f"{many(len(names), 'queue')}, none needs attention", "")]


def _why(app: Penstock, name: str) -> Operation[str]:
    """Why one of the ready jobs of a queue does not run, as `job.why` answers it; "" if none is found."""
    jobs = JobQuestioner(app)
    page = yield from jobs.find.within(name, limit=1, most=1, state="ready")
    for job in page.jobs[:1]:
        try:
            answer = yield from jobs.why.within(job.id)
        except JobNotFound:  # it has ended meanwhile
            break
        return f"; {job.id}: {answer.sentence}"
    return ""
