"""Questions about tasks: how many of their jobs ended how, and how long these waited and ran.

The answers are made from the rows of jobs that have ended (`finished.lua`), which each queue keeps in bounds. So they
cost nothing while jobs run, and cover the latest jobs instead of all.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from penstock.core.arguments import LONGEST_WAIT, check_number, check_whole
from penstock.core.operations import Operation, verb
from penstock.jobs.constants import BLOCKS
from penstock.jobs.finished import BlockSlice, FinishedJob, RowList, read_block, read_blocks
from penstock.jobs.shard import Shard
from penstock.jobs.shard_table import whole_name
from penstock.ops.answers import Percentiles, TaskReport, TaskStats, histogram_of
from penstock.ops.probe import queue_names
from penstock.ops.questioner import Questioner

MOST_ROWS = 20_000
"""Rows that one report reads, of all queues together."""

_LEAST_ROWS = 200

_ROWS_OF_A_BLOCK = 40
"""A closed block has 4 KiB, which is about this many rows."""

_LISTS: tuple[RowList, ...] = ("finished", "failed")


@dataclass
class _Tally:
    """The jobs of one task so far."""

    outcomes: dict[str, int] = field(default_factory=dict)
    retries: int = 0
    durations: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    since: float = float("inf")
    last: float = 0.0

    def add(self, job: FinishedJob) -> None:
        self.outcomes[job.outcome] = self.outcomes.get(job.outcome, 0) + 1
        self.since, self.last = min(self.since, job.ended), max(self.last, job.ended)
        if job.started is not None and job.outcome in ("completed", "failed"):
            self.durations.append(max(0.0, job.ended - job.started))
            self.waits.append(max(0.0, job.started - job.due))
            self.retries += max(0, job.attempts - (job.outcome == "failed"))

    def stats(self, task: str, queue: str) -> TaskStats:
        completed, failed = self.outcomes.pop("completed", 0), self.outcomes.pop("failed", 0)
        return TaskStats(
            task,
            queue,
            completed,
            failed,
            sum(self.outcomes.values()),
            self.retries,
            Percentiles.of(self.durations),
            Percentiles.of(self.waits),
            self.since,
            self.last,
            histogram_of(self.durations),
        )


class TaskQuestioner(Questioner):
    """Asks what the tasks of an app did lately."""

    def declared(self) -> list[str]:
        """The names of the tasks that the app of this program has, sorted. No round trip."""
        return sorted(one.name for one in self._app.registry)

    @verb
    def all(
        self, queue: str | None = None, *, since: float | None = None, most: int = MOST_ROWS
    ) -> Operation[TaskReport]:
        """The tasks of one queue, or of all.

        since  only jobs that ended at most this many seconds ago
        most   read about this many rows, the latest of each queue

        One round trip for each shard and each 2500 rows. Without `queue` also one for each 1000 keys of the server.
        Raises PenstockError for a queue that was never used.
        """
        if since is not None:
            check_number("tasks", "since", since, 0, LONGEST_WAIT, "seconds from 0 to a year, or None for all rows")
        check_whole("tasks", "most", most, 1, 1_000_000, "rows from 1 to a million")
        if queue is None:
            shards = [self._shard(name) for name in sorted((yield from queue_names(self._prefix)))]
        else:
            shards = list((yield from self._open(queue)).shards.current.known)
        if not shards:
            return TaskReport([], 0, 0.0)
        tallies: dict[tuple[str, str], _Tally] = {}
        examined, now = 0, 0.0
        each = max(_LEAST_ROWS, most // (len(_LISTS) * len(shards)))
        for shard in shards:
            for rows in _LISTS:
                now, found = yield from _latest(shard, rows, each, since)
                for job in found:
                    if job.id:  # the row of a purge has none, and no task
                        tallies.setdefault((job.task, whole_name(shard.name)), _Tally()).add(job)
                        examined += 1
        stats = [tally.stats(*key) for key, tally in tallies.items()]
        stats.sort(key=lambda one: (-(one.completed + one.failed), one.queue, one.task))
        return TaskReport(stats, examined, now)


def _latest(shard: Shard, rows: RowList, most: int, since: float | None) -> Operation[tuple[float, list[FinishedJob]]]:
    """The server's time, and up to `most` rows of a list, the latest."""
    found: list[FinishedJob] = []
    before, now = 0, 0.0
    while True:
        blocks = min(BLOCKS, 1 + (most - len(found)) // _ROWS_OF_A_BLOCK)
        some: BlockSlice = yield read_blocks(shard.bindings, rows, before, blocks)
        now = some.now
        earliest = 0.0 if since is None else now - since
        for number, segments in some.blocks:
            block = [row for row in read_block(shard.name, segments, seal=shard.settings.seal) if row is not None]
            found += [row for row in block if row.ended >= earliest]
            before = number
            if len(found) >= most or (block and max(row.ended for row in block) < earliest):
                return now, heapq.nlargest(most, found, key=lambda row: row.ended)
        if some.is_last or before <= 1:
            return now, found
