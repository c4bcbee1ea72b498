"""The health of queues: what an operator should look at.

The overview of the dashboard, its `/healthz`, its health page and `penstock doctor` all show these findings, so that no
two of them disagree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, get_args

from penstock.core.operations import Operation, Parallel, RoundTrip, verb
from penstock.jobs.bindings import QueueBindings
from penstock.jobs.counts import Counts, WorkerInfo, total_counts
from penstock.jobs.history import Interval, Moment, joined_moments
from penstock.jobs.shard_bindings import ShardBindings
from penstock.ops.answers import Finding, HealthReport, Kind, QueueHealth
from penstock.ops.probe import primaries, server_time
from penstock.ops.questioner import Questioner
from penstock.ops.wording import age, many
from penstock.ops.workers import joined_workers

NO_WORKER_AFTER = 10.0
"""Seconds for which a job may be ready while no worker serves its queue. A deploy that restarts workers takes less."""

LATE_AFTER = 60.0
"""Seconds for which a ready job may wait while there are workers."""

PARKED_AFTER = 300.0
"""Seconds for which a job may be parked."""

FAILING_SHARE = 0.1
"""A queue counts as failing if at least this share of its runs of the last minute failed."""

JOBS_EXAMINED = 200
"""How many delayed jobs, earliest first, are searched in each shard for tasks that no worker knows."""

_INTERVAL: Interval = 10
_ROWS = 60 // _INTERVAL + 2
_MOST_WORKERS = 1000

_ORDER: Final = get_args(Kind)


class HealthQuestioner(Questioner):
    """Asks what an operator should look at."""

    @verb
    def queues(self, names: Sequence[str]) -> Operation[HealthReport]:
        """The health of these queues, and the findings about all of them, the most urgent first.

        One round trip for each, and two more where jobs fail; with shards, one more to each node.
        """
        found = []
        for name in names:
            found.append((yield from self._health(name)))
        findings = [finding for queue in found for finding in queue.findings]
        return HealthReport(found, sorted(findings, key=lambda one: (_ORDER.index(one.kind), one.queue)))

    def _health(self, name: str) -> Operation[QueueHealth]:
        first = self._shard(name).bindings
        text, *answer = yield Parallel((ShardBindings(first).table(0), *_questions(first)))
        answers = [answer]
        for shard in self._queue(name, text).shards.current.known[1:]:
            answers.append((yield Parallel(_questions(shard.bindings))))
        counts = total_counts([answer[0] for answer in answers])
        workers = joined_workers(name, (worker for answer in answers for worker in answer[2]))
        findings = _of_counts(name, counts, workers)
        if unknown := sum(len(answer[1].unknown_tasks) for answer in answers):
            message = f"{name}: {many(unknown, 'job')} of tasks that no worker knows"
            findings.append(Finding("unknown_task", name, unknown, 0.0, message, f"penstock queue show {name}"))
        moments = joined_moments([answer[3] for answer in answers], _INTERVAL) if answers[1:] else answer[3]
        if any(moment.failed or moment.retried for moment in moments):
            now = yield from server_time((yield from primaries())[0])
            findings += _of_history(name, moments, now)
        return QueueHealth(name, counts, workers, sorted(findings, key=lambda one: _ORDER.index(one.kind)))


def _questions(of: QueueBindings) -> tuple[RoundTrip[Any], ...]:
    return of.counts(), of.overview(JOBS_EXAMINED), of.workers(_MOST_WORKERS), of.history(_INTERVAL, _ROWS)


def _of_counts(name: str, counts: Counts, workers: Sequence[WorkerInfo]) -> list[Finding]:
    found = []
    alive = [worker for worker in workers if worker.lease > 0]
    waits = f"for {age(counts.oldest)}"
    if counts.paused:
        left = f", {many(counts.waiting, 'job waits', 'jobs wait')}" if counts.waiting else ""
        advice = f"penstock queue resume {name}"
        found.append(Finding("paused", name, counts.waiting, counts.oldest, f"{name} is paused{left}", advice))
    elif counts.ready and all(worker.asked for worker in alive) and counts.oldest > NO_WORKER_AFTER:
        jobs = many(counts.ready, "job is ready", "jobs are ready")
        message = f"{name}: no worker serves it; {jobs}, the oldest {waits}"
        if alive:
            message = f"{name}: every live worker was asked to claim no more jobs; {jobs}, the oldest {waits}"
        found.append(Finding("no_worker", name, counts.ready, counts.oldest, message, _start_worker(name)))
    elif counts.ready and counts.oldest > LATE_AFTER:
        message, advice = f"{name}: its oldest ready job has waited {waits}", f"penstock queue show {name}"
        found.append(Finding("late", name, counts.ready, counts.oldest, message, advice))
    if counts.is_full:
        jobs, refused = many(counts.unfinished, "unfinished job"), many(counts.refused, "job")
        message = f"{name} is full: it has {jobs}, its bound is {counts.bound:,}, and it has refused {refused} so far"
        found.append(Finding("full", name, counts.unfinished, 0.0, message, f"penstock queue show {name}"))
    if counts.oldest_parked >= PARKED_AFTER:
        waits = f"has waited for {age(counts.oldest_parked)}"
        message = f"{name}: the oldest of its {many(counts.parked, 'parked job')} {waits}"
        advice = f"penstock queue {'show' if counts.paused_scopes else 'limits'} {name}"
        found.append(Finding("parked", name, counts.parked, counts.oldest_parked, message, advice))
    if held := sum(worker.held for worker in workers if worker.lease <= 0):
        message = f"{name}: {many(held, 'job')} claimed by workers that died"
        found.append(Finding("lost", name, held, 0.0, message, _start_worker(name)))
    if counts.dead:
        message = f"{name} has {many(counts.dead, 'dead letter')}"
        if counts.dependent:
            wait = many(counts.dependent, "job waits", "jobs wait")
            message = f"{name} has {many(counts.dead, 'dead letter')}; {wait} for other jobs"
        found.append(Finding("dead", name, counts.dead, 0.0, message, f"penstock dead ls {name}"))
    return found


def _start_worker(queue: str) -> str:
    return f"start a worker: penstock worker MODULE:APP --queues {queue}"


def _of_history(name: str, moments: Sequence[Moment], now: float) -> list[Finding]:
    found = []
    latest = [moment for moment in moments if moment.at > now - 60]
    failed = sum(moment.failed + moment.retried for moment in latest)
    runs = failed + sum(moment.completed for moment in latest)
    if failed and failed >= FAILING_SHARE * runs:
        message = f"{name}: {failed:,} of the {many(runs, 'run')} of the last minute failed"
        found.append(Finding("failing", name, failed, 0.0, message, f"penstock queue history {name}"))
    return found
