"""The dead letters of a queue: list them, run them again, delete them."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.core.operations import Operation, RoundTrip, verb
from penstock.jobs.job import Failure, JobQueue, QueueHandle, info_of
from penstock.jobs.record import Record, StoredJob

_CHANGED_TOGETHER: Final = 50
"""Dead letters that one round trip requeues or removes. The script reads each record whole, and they may be large."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A job that failed for good: it runs again only if it is requeued.

    died               seconds since 1970 by the server's clock
    reason, traceback  of the last failure
    task               the name of its task; "" for a bare value
    worker             `host:pid` of the worker that ran it last
    attempts           runs that failed
    deliveries         how often it was handed to a worker
    crashes            how often in a row its process died while no other job ran there
    body               the value that was put; for the call of a task `[task, arguments]`
    """

    id: str
    died: float
    reason: str
    traceback: str
    worker: str
    attempts: int
    deliveries: int
    crashes: int
    tenant: str
    body: Any
    task: str = ""


class DeadLetters(QueueHandle[JobQueue]):
    """The dead letters of one queue. They are kept until they are requeued or removed."""

    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue

    @verb
    def list(self, limit: int = 50, offset: int = 0) -> Operation[list[DeadLetter]]:
        """A page of dead letters, the latest first. One round trip for each MiB; with shards, at least one for each."""
        if not 1 <= limit <= 1000 or offset < 0:
            raise ValueError(f"list(limit={limit}, offset={offset}): limit 1 to 1000, offset 0 or more")
        return (yield from self.page_of((yield from self._queue.fresh_parts()), limit, offset))

    @staticmethod
    def page_of(parts: Sequence[JobQueue], limit: int, offset: int) -> Operation[builtins.list[DeadLetter]]:
        """A page of the dead letters of all these shards. Each is read from its latest one on."""
        if len(parts) == 1:
            return (yield from DeadLetters(parts[0]).page(limit, offset))
        letters: builtins.list[DeadLetter] = []
        for part in parts:
            letters += yield from DeadLetters(part).page(offset + limit, 0)
        return sorted(letters, key=lambda one: -one.died)[offset : offset + limit]

    def page(self, limit: int, offset: int) -> Operation[builtins.list[DeadLetter]]:
        letters, end = [], offset + limit
        while offset < end:
            rows = yield self._queue.bindings.list_dead(offset, end - offset)
            if not rows:
                break
            offset += len(rows)
            letters += [self.letter(*row) for row in rows if row[2] is not None]
        return letters

    def letter(self, key: str, died: float, record: Record, failure: bytes | None) -> DeadLetter:
        """A dead letter from what the server has stored about it. Sends nothing."""
        info = info_of(f"{self._queue.name}:{key}", StoredJob(record, failure, None))
        return DeadLetter(
            info.id, died, info.reason, info.traceback, Failure.read(failure).worker, info.attempts, info.deliveries,
            info.crashes, info.tenant, info.body, record.task,
        )  # fmt: skip

    @verb
    def requeue(self, *ids: str) -> Operation[int]:
        """Make these jobs ready again, with all their counts at 0. Returns how many of the ids were dead letters.

        One round trip for each 50.
        """
        return self._change(ids, lambda queue, keys: queue.bindings.requeue(keys))

    @verb
    def remove(self, *ids: str) -> Operation[int]:
        """Delete these dead letters. Returns how many of the ids were dead letters. One round trip for each 50."""
        return self._change(ids, lambda queue, keys: queue.bindings.remove_dead(keys))

    def _change(
        self, ids: Iterable[str], change: Callable[[JobQueue, Sequence[str]], RoundTrip[int]]
    ) -> Operation[int]:
        total = 0
        chunks: dict[JobQueue, builtins.list[str]] = {}
        for job_id in ids:
            job = self._queue.job(job_id)
            chunks.setdefault(job._queue, []).append(job.key)
        for queue, keys in chunks.items():
            for start in range(0, len(keys), _CHANGED_TOGETHER):
                total += yield change(queue, keys[start : start + _CHANGED_TOGETHER])
        return total
