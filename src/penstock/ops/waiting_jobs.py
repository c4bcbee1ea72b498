"""The part of the inspector that changes jobs that wait."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from penstock.core.operations import Operation, Parallel, RoundTrip, verb
from penstock.jobs.durable_bindings import StepBindings, StepInfo
from penstock.jobs.flow_tree import FlowNode, cancel_tree, read_tree
from penstock.jobs.job import signal_job
from penstock.jobs.options import Options
from penstock.jobs.queue import Queue
from penstock.jobs.shard import Shard
from penstock.jobs.shard_bindings import ShardBindings
from penstock.jobs.shard_table import whole_name
from penstock.jobs.status import status_of
from penstock.ops.answers import ActionOutcome
from penstock.ops.history import HistoryInspector
from penstock.ops.probe import queue_names


class WaitingJobsInspector(HistoryInspector):
    """Actions on jobs by their ids; see `Inspector`."""

    @verb
    def promote(self, *ids: str) -> Operation[list[ActionOutcome]]:
        """Make delayed jobs ready now. Two round trips for each."""
        return self._each(ids, lambda shard, key: shard.bindings.edit(key, due=0.0).then(_is_edited))

    @verb
    def reschedule(self, *ids: str, due: float | datetime) -> Operation[list[ActionOutcome]]:
        """Give waiting jobs another due time: seconds from now, or a date. Two round trips for each."""
        return self._each(ids, lambda shard, key: shard.bindings.edit(key, due=due).then(_is_edited))

    @verb
    def prioritize(self, *ids: str, priority: int) -> Operation[list[ActionOutcome]]:
        """Give waiting jobs another priority. Two round trips for each."""
        Options(priority=priority)  # checks it
        return self._each(ids, lambda shard, key: shard.bindings.edit(key, priority=priority).then(_is_edited))

    @verb
    def steps(self, job_id: str) -> RoundTrip[list[StepInfo]]:
        """The durable steps that a job has recorded, in their order. One round trip."""
        shard, key = self._split(job_id)
        return StepBindings(shard.bindings).show(key)

    @verb
    def signal(self, job_id: str, name: str, payload: Any = None) -> RoundTrip[None]:
        """Send a job a signal; see `Job.signal`. One round trip."""
        shard, key = self._split(job_id)
        return signal_job(shard.bindings, key, name, payload)

    def _open_used(self, name: str) -> Operation[Queue]:
        """A queue with the shards that the server has of it. One round trip.

        Raises PenstockError for a queue that was never used.
        """
        first = self._shard(name).bindings
        overview, table = yield Parallel((first.overview(1), ShardBindings(first).table(0)))
        if not overview.used:
            yield from self._raise_no_such_queue(name)
        return self._with_table(name, table)

    def _raise_no_such_queue(self, name: str) -> Operation[None]:
        names = yield from queue_names(self._app.settings.prefix)
        raise self._not_found("queue", name, sorted({*map(whole_name, names)}))

    @verb
    def tree(self, job_id: str, most: int = 1000) -> Operation[FlowNode]:
        """The jobs that a job waits or waited for; see `Job.tree`. Raises JobNotFound."""
        shard, key = self._split(job_id)
        return read_tree(shard, key, most)

    @verb
    def cancel_tree(self, job_id: str) -> Operation[int]:
        """Cancel a job and all that it waits for; see `Job.cancel_tree`."""
        shard, key = self._split(job_id)
        return cancel_tree(shard, key)

    def _split(self, job_id: str) -> tuple[Shard, str]:
        """The shard and the key of a job id."""
        job = self._app.job(job_id)
        return job.shard, job.key

    def _each(self, ids: Iterable[str], act: Callable[[Shard, str], RoundTrip[bool]]) -> Operation[list[ActionOutcome]]:
        outcomes = []
        for shard, key in [self._split(job_id) for job_id in ids]:
            status = status_of((yield shard.bindings.show(key)))
            outcomes.append(ActionOutcome(f"{shard.name}:{key}", (yield act(shard, key)), status))
        return outcomes


def _is_edited(word: str) -> bool:
    return word == "edited"
