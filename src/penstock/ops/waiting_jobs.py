"""The part of the inspector that changes jobs that wait."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

from penstock.core.operations import Operation, RoundTrip, verb
from penstock.jobs.job import status_of
from penstock.jobs.options import Options
from penstock.jobs.queue import Queue
from penstock.jobs.shards import shard_name
from penstock.ops.answers import ActionOutcome
from penstock.ops.history import HistoryInspector
from penstock.ops.probe import queue_names


class WaitingJobsInspector(HistoryInspector):
    """Actions on jobs by their ids; see `Inspector`."""

    @verb
    def promote(self, *ids: str) -> Operation[list[ActionOutcome]]:
        """Make delayed jobs ready now. Two round trips for each."""
        return self._each(ids, lambda queue, key: queue.bindings.edit(key, due=0.0).then(_is_edited))

    @verb
    def reschedule(self, *ids: str, due: float | datetime) -> Operation[list[ActionOutcome]]:
        """Give waiting jobs another due time: seconds from now, or a date. Two round trips for each."""
        return self._each(ids, lambda queue, key: queue.bindings.edit(key, due=due).then(_is_edited))

    @verb
    def prioritize(self, *ids: str, priority: int) -> Operation[list[ActionOutcome]]:
        """Give waiting jobs another priority. Two round trips for each."""
        Options(priority=priority)  # checks it
        return self._each(ids, lambda queue, key: queue.bindings.edit(key, priority=priority).then(_is_edited))

    def _check_used(self, queue: Queue) -> Operation[None]:
        """Raises PenstockError for a queue that was never used."""
        if not (yield queue.bindings.overview(1)).used:
            yield from self._raise_no_such_queue(queue.name)

    def _shards(self, name: str) -> Operation[list[Queue]]:
        """The shards of a queue, as the server knows them. One round trip."""
        number = 1 if "~" in name else (yield self._app.queue(name).bindings.agree_on_shards(1))
        return [self._app.queue(shard_name(name, each)) for each in range(number)]

    def _raise_no_such_queue(self, name: str) -> Operation[None]:
        raise self._not_found("queue", name, (yield from queue_names(self._app.settings.prefix)))

    def _split(self, job_id: str) -> tuple[Queue, str]:
        """The queue and the key of a job id."""
        job = self._app.job(job_id)
        return self._app.queue(job_id.partition(":")[0]), job.key

    def _each(self, ids: Iterable[str], act: Callable[[Queue, str], RoundTrip[bool]]) -> Operation[list[ActionOutcome]]:
        outcomes = []
        for queue, key in [self._split(job_id) for job_id in ids]:
            status = status_of((yield queue.bindings.show(key)))
            outcomes.append(ActionOutcome(f"{queue.name}:{key}", (yield act(queue, key)), status))
        return outcomes


def _is_edited(word: str) -> bool:
    return word == "edited"
