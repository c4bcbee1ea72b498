"""`penstock job …`: single jobs, by id."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from penstock.cli.ages import Age
from penstock.cli.exits import Exit
from penstock.cli.job_outcomes import report_outcomes
from penstock.cli.job_tree import tree_lines
from penstock.cli.where import HERE, AsJson, Where, check_bounds
from penstock.errors import ConfigurationError, JobNotFound
from penstock.jobs.failures import Attempt
from penstock.jobs.flow_tree import FlowNode
from penstock.jobs.job import JobInfo
from penstock.jobs.why import FOREVER
from penstock.ops.inspect import Inspector
from penstock.ops.wording import age, ago, many
from penstock.sealing import Sealed
from penstock.terminal.tables import cell, headings, show, show_facts, show_json, show_sentence, show_table


def show_one(id: str, /, *, where: Where = HERE, as_json: AsJson = False) -> None:
    """Show everything that the server knows about a job.

    Parameters
    ----------
    id
        The id as it was printed: queue:key. A key without its queue is searched for in every queue.
    as_json
        Print one JSON document.
    """
    with where.open() as inspector:
        id = inspector.jobs.full_id(id)
        job, steps, now = inspector.jobs.show(id), inspector.jobs.open(id).steps(), inspector.now()
        flow = _flow(inspector, id)
        answer = inspector.jobs.why(id) if job.status in _WAITS and not as_json else None
        has_no_result = job.status == "completed" and inspector.jobs.open(id).status() == "unknown"
    if as_json:
        further = ({"steps": steps} if steps else {}) | ({"flow": flow} if flow else {})
        return show_json(msgspec.to_builtins(job, enc_hook=str) | further if further else job)
    gone: dict[str, object] = {"result": "(not kept any longer)"} if has_no_result else {}
    show_facts(facts(job, now) | gone | ({"why": answer.sentence} if answer else {}))
    if flow:
        show("")
        for line in tree_lines(flow, f"`penstock job tree {job.id}` shows them"):
            show_sentence(line)
    if steps:
        show("")
        rows = [
            (
                one.step,
                f"{one.does} {one.job}".rstrip(),
                one.state if one.ends is None else f"{one.state}, ends {_when(one.ends, now)}",
                ago(one.at, now),
            )
            for one in steps
        ]
        show_table(headings("step:text", "does:text", "state:text", "recorded"), rows)
    show_attempts(job.failures, now)
    if job.log:
        show("")
        show_table(headings("logged", ":text"), [(ago(line.at, now), line.text) for line in job.log])
    if job.traceback:
        show("", job.traceback.rstrip())


def _flow(inspector: Inspector, id: str) -> FlowNode | None:
    """The nearest jobs that a job waits or waited for, and that wait for it; None if it is alone."""
    try:
        root = inspector.jobs.open(id).tree(_MOST_OF_FLOW)
    except JobNotFound:  # its result is gone since, or only a row is kept
        return None
    return root if root.total or root.awaited_by else None


def why(id: str, /, *, where: Where = HERE, as_json: AsJson = False) -> None:
    """Say why a job does not run, in one sentence, and what else would hold it up.

    Parameters
    ----------
    id
        The id as it was printed: queue:key. A key without its queue is searched for in every queue.
    as_json
        Print one JSON document.
    """
    with where.open() as inspector:
        answer = inspector.jobs.why(inspector.jobs.full_id(id))
    if as_json:
        return show_json(answer)
    show_sentence(f"{answer.id}: {answer.sentence}.")
    for one in answer.further:
        show_sentence(f"Also: {one}.")


def show_attempts(attempts: Sequence[Attempt], now: float) -> None:
    """The runs that did not complete a job, the latest first. Prints nothing if it has no such run."""
    if not attempts:
        return
    show("")
    rows = [
        (
            f"{one.number}",
            one.outcome,
            ago(one.ended, now),
            "" if one.duration is None else age(one.duration),
            one.worker,
            one.release,
            one.reason if one.arguments is None else f"{one.reason}; they were {value_text(one.arguments)}",
        )
        for one in attempts
    ]
    show_table(headings("attempt", "outcome:name", "ended", "took", "worker:name", "release:name", "reason:text"), rows)


def facts(job: JobInfo, now: float) -> dict[str, object]:
    """The known facts by name. Unknown ones are omitted."""
    known: dict[str, object] = {"job": job.id, "status": str(job.status)}
    if job.task:
        known["task"] = job.task
    if job.enqueued is not None and job.since is not None:
        known |= {"tenant": job.tenant or "(none)", "priority": job.priority, "enqueued": _when(job.enqueued, now)}
        is_or_was = "ready" if job.status == "running" else job.status
        due = "when its signal comes" if job.since > FOREVER else _when(job.since, now)
        known["due" if job.status in ("delayed", "sleeping") else f"{is_or_was} since"] = due
        if job.status == "parked":
            key = f", key {job.limit_key}" if job.limit_key else ""
            known["parked at"] = (
                f"limit {job.limit}{key}" if job.limit else "a pause of its task or tenant, or a closed key"
            )
        if job.claimed is not None:
            known |= {"worker": job.worker or "(a program)", "claimed": _when(job.claimed, now)}
        known |= {
            "attempts": f"{job.attempts} failed, {many(job.deliveries, 'delivery', 'deliveries')}",
            "body": cell(value_text(job.body)),
            **({"tags": ", ".join(job.tags)} if job.tags else {}),
        }
    if job.ended is not None:
        known |= _facts_of_end(job, job.ended, now)
    if job.expires is not None:
        known["expires"] = _when(job.expires, now)
    if job.progress is not None:
        text = f" {job.progress.text}" if job.progress.text else ""
        known["progress"] = f"{job.progress.fraction:.0%}{text}, {_when(job.progress.at, now)}"
    if job.status == "completed":
        known["result"] = cell(value_text(job.result))
    if job.reason:
        known["reason"] = job.reason
    return known


def _facts_of_end(job: JobInfo, ended: float, now: float) -> dict[str, object]:
    known: dict[str, object] = {"tenant": job.tenant or "(none)", "priority": job.priority}
    if job.body is not None:
        known["body"] = cell(value_text(job.body))
    if job.tags:
        known["tags"] = ", ".join(job.tags)
    if job.enqueued is not None:
        known["enqueued"] = _when(job.enqueued, now)
    if job.started is not None:
        known |= {"started": _when(job.started, now), "took": age(max(0.0, ended - job.started))}
    known |= {"ended": _when(ended, now), "worker": job.worker or "(none)"}
    known["attempts"] = f"{job.attempts} failed, {many(job.deliveries, 'delivery', 'deliveries')}"
    if job.release:
        known["release"] = job.release
    return known


def _when(at: float, now: float) -> str:
    apart = now - at
    local = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    return f"{age(apart)} ago, {local}" if apart >= 0 else f"in {age(-apart)}, {local}"


def value_text(value: Any) -> str:
    """A body or a result: a string unchanged, anything else as JSON."""
    return str(value) if isinstance(value, str | Sealed) else json.dumps(value, ensure_ascii=False, default=str)


def signal(id: str, name: str, payload: str = "null", /, *, where: Where = HERE) -> None:
    """Send a job a signal that it waits for with `wait_for`, now or later.

    Parameters
    ----------
    id
        The id as it was printed: queue:key.
    name
        The name of the signal.
    payload
        The value to send, as JSON: 3, '"text"' or '{"by": "ada"}'.
    """
    try:
        value = msgspec.json.decode(payload)
    except msgspec.DecodeError as error:
        raise ConfigurationError(
            f"payload {payload[:60]!r} is not JSON ({error}): write a text as {json.dumps(payload[:60])!r}"
        ) from None
    with where.open() as inspector:
        inspector.jobs.open(id).signal(name, value)
        show(f"{id} has got signal {name}")


_WAITS = ("ready", "delayed", "sleeping", "parked", "waiting", "blocked")

_MOST_OF_FLOW = 20
"""Jobs of a flow that `job show` shows in each direction."""

_WAITING = "only a waiting job can be changed"


def promote(*ids: str, where: Where = HERE) -> Exit:
    """Make delayed jobs ready now. Exit code 1 if one does not wait.

    Parameters
    ----------
    ids
        Ids as they were printed: queue:key.
    """
    with where.open() as inspector:
        return report_outcomes(inspector.jobs.promote(*ids), "promoted", _WAITING)


def edit(
    *ids: str, delay: Age | None = None, at: datetime | None = None, priority: int | None = None, where: Where = HERE
) -> Exit:
    """Change when waiting jobs are due, or their priority. Exit code 1 if one does not wait.

    Parameters
    ----------
    ids
        Ids as they were printed: queue:key.
    delay
        Due after this time: 90s, 15m, 12h, 7d or 2w.
    at
        Due at this date, for example 2026-03-01T07:00:00+01:00. Without a time zone, it is in this machine's.
    priority
        From 0, the most urgent, to 9.
    """
    if sum(option is not None for option in (delay, at, priority)) != 1:
        raise ConfigurationError("give one of --delay, --at and --priority")
    with where.open() as inspector:
        if priority is not None:
            check_bounds("--priority", priority, 0, 9)
            outcomes = inspector.jobs.prioritize(*ids, priority=priority)
        else:
            outcomes = inspector.jobs.reschedule(*ids, due=at.astimezone() if at is not None else delay or 0.0)
        return report_outcomes(outcomes, "changed", _WAITING)
