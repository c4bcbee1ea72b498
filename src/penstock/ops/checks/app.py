"""Checks whether the keys and queues of an app are in order, on all its servers together."""

from __future__ import annotations

from penstock.app import Penstock
from penstock.core.operations import Operation
from penstock.errors import JobNotFound
from penstock.jobs.job_list import Jobs, job_filter
from penstock.jobs.why import explain
from penstock.ops import probe
from penstock.ops.checks.result import Verdict
from penstock.ops.inventory import take_inventory
from penstock.ops.wording import age, many

MOST_KEYS = 200_000
"""How many keys are checked on each server; this many take some seconds."""

LONG_WAIT = 300.0
"""Seconds that a ready job may wait before an operator should take a look."""

_SHOWN = 5


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
    """Find queues with jobs that have waited too long, have failed, or are still claimed by dead workers."""
    names = yield from probe.queue_names(app.settings.prefix)
    verdicts: list[Verdict] = []
    for name in names:
        verdicts += yield from _check_queue(app, name)
    return verdicts or [("ok", f"{many(len(names), 'queue')}, none needs attention", "")]


def _check_queue(app: Penstock, name: str) -> Operation[list[Verdict]]:
    bindings = app.queue(name).first.bindings
    counts = yield bindings.counts()
    overview = yield bindings.overview(200)
    workers = yield bindings.workers(1000)
    verdicts: list[Verdict] = []
    if counts.paused and counts.waiting:
        message = f"{name} is paused, {many(counts.waiting, 'job waits', 'jobs wait')}"
        verdicts.append(("warn", message + (yield from _why(app, name)), f"penstock queue resume {name}"))
    elif counts.oldest > LONG_WAIT:
        message = f"{name}: its oldest ready job has waited for {age(counts.oldest)}"
        verdicts.append(("warn", message + (yield from _why(app, name)), f"penstock queue show {name}"))
    if held := sum(worker.held for worker in workers if worker.lease < 0):
        message = f"{name}: {many(held, 'job')} claimed by workers that died"
        verdicts.append(("warn", message, f"start a worker; penstock worker ls --queue {name}"))
    if overview.unknown_tasks:
        message = f"{name}: {many(len(overview.unknown_tasks), 'job')} of tasks that no worker knows"
        verdicts.append(("warn", message, f"penstock queue show {name}"))
    if counts.dead:
        verdicts.append(("warn", f"{name} has {many(counts.dead, 'dead letter')}", f"penstock dead ls {name}"))
    return verdicts


def _why(app: Penstock, name: str) -> Operation[str]:
    """Why one of the ready jobs of a queue does not run, as `job.why` answers it; "" if none is found."""
    shard = app.queue(name).first
    page = yield from Jobs([shard], job_filter(state="ready")).page_operation(1, None)
    for job in page.jobs[:1]:
        try:
            answer = yield from explain(shard, shard.key_of(job.id))
        except JobNotFound:  # it has ended meanwhile
            break
        return f"; {job.id}: {answer.sentence}"
    return ""
