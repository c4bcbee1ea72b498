"""Lists of jobs that have ended, from their rows: newest first, over all shards, in slices."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from penstock.core.cursors import cursor_text, read_cursor, refused_cursor
from penstock.core.operations import Operation
from penstock.jobs.bindings import QueueBindings
from penstock.jobs.finished import ENDED, BlockSlice, FinishedJob, RowList, read_block, read_blocks, read_links
from penstock.jobs.shard import Shard

EXAMINED: Final = 5000
"""Rows that one page examines."""

_BLOCKS: Final = 32
"""Blocks that one round trip reads: some two thousand rows."""

_FIRST_BLOCKS: Final = 2
"""Blocks that the first read for a page takes of each list. Each further one takes twice as many, up to `_BLOCKS`."""

_FAILED: Final = "failed"

MOST_OF_FLOW: Final = 20_000
"""Rows that are read for the jobs of a flow that have ended."""

_LONG_ROW: Final = 512
"""Bytes of a block that count as a row at least, because some rows have hundreds of links beside them."""


@dataclass(frozen=True, slots=True)
class FinishedFilter:
    """The conditions for a row; None and empty values match every row. See `Queue.jobs`."""

    outcome: str = ENDED
    task: str | None = None
    tenant: str | None = None
    worker: str | None = None
    id_prefix: str = ""
    tag: str | None = None
    since: float | None = None
    longer_than: float = 0.0

    @property
    def lists(self) -> Sequence[RowList]:
        if self.outcome == ENDED:
            return ("finished", "failed")
        return ("failed",) if self.outcome == _FAILED else ("finished",)

    def matches(self, row: FinishedJob, now: float) -> bool:
        return (
            (self.outcome in (ENDED, row.outcome))
            and (self.tag is None or self.tag in row.tags)
            and (self.task is None or self.task == row.task)
            and (self.tenant is None or self.tenant == row.tenant)
            and (self.worker is None or self.worker == row.worker)
            and (self.since is None or row.ended >= now - self.since)
            and (self.longer_than == 0 or (row.duration or 0) >= self.longer_than)
            and (not self.id_prefix or row.id.startswith(self.id_prefix) or _key(row.id).startswith(self.id_prefix))
        )


def _key(job_id: str) -> str:
    return job_id.partition(":")[2]


@dataclass(frozen=True, slots=True)
class FinishedPage:
    """Some rows that match, the latest first. There is no `cursor` if no row is left. `examined` counts all pages."""

    rows: list[FinishedJob]
    cursor: str | None
    examined: int


class _Left(msgspec.Struct, array_like=True, frozen=True):
    """Where a page continues: for each list that has more, shard, list, block, and how many rows of that are left."""

    sources: list[tuple[str, RowList, int, int]]
    examined: int


@dataclass
class _Source:
    """One list of one shard. `rows` have been read and not examined: number of the block, position, row."""

    shard: Shard
    list: RowList
    block: int = 0
    left: int | None = None
    is_done: bool = False
    passed: int = 0
    blocks: int = _FIRST_BLOCKS
    rows: deque[tuple[int, int, FinishedJob]] = field(default_factory=deque)

    def read(self, since: float | None, tag: str | None = None) -> Operation[float]:
        """Read some blocks. Returns the server's time."""
        before = self.block + 1 if self.left is not None else self.block
        found: BlockSlice = yield read_blocks(self.shard.bindings, self.list, before, self.blocks)
        self.blocks = min(_BLOCKS, 2 * self.blocks)
        earliest = None if since is None else found.now - since
        self.is_done = not found.before
        for number, segments in found.blocks:
            rows = read_block(self.shard.name, segments, tag, self.shard.settings.seal)
            if self.left is not None and number == self.block:
                rows = rows[: self.left]
            kept = [(number, at, row) for at, row in enumerate(rows) if row is not None]
            self.passed += len(rows) - len(kept)
            self.rows += reversed(kept)
            if earliest is not None and kept and max(row.ended for _, _, row in kept) < earliest:
                self.is_done = True  # and so are all blocks before it
                break
        self.block, self.left = found.before, None
        return found.now

    def rest(self) -> tuple[str, RowList, int, int] | None:
        if self.rows:
            number, at, _ = self.rows[0]
            return self.shard.name, self.list, number, at + 1
        return None if self.is_done else (self.shard.name, self.list, self.block, 0)


def finished_page(
    shards: Sequence[Shard], wanted: FinishedFilter, limit: int, cursor: str | None
) -> Operation[FinishedPage]:
    """Some round trips for each list and shard, and one for each 2000 rows."""
    sources = [_Source(shard, rows) for shard in shards for rows in wanted.lists]
    examined = before = 0
    if cursor is not None:
        left, by_name = read_cursor(cursor, _Left), {shard.name: shard for shard in shards}
        if left is None:
            raise refused_cursor(cursor)
        if any(name not in by_name for name, *_ in left.sources):
            raise ValueError("page(cursor=…): it is one of another queue")
        sources = [_Source(by_name[name], rows, block, n) for name, rows, block, n in left.sources]
        examined = before = left.examined
    found: list[FinishedJob] = []
    now = 0.0
    while len(found) < limit and examined - before < EXAMINED:
        for source in sources:
            while not source.rows and not source.is_done and examined - before < EXAMINED:
                now = yield from source.read(wanted.since, wanted.tag)
                examined, source.passed = examined + source.passed, 0
        newest = max((one for one in sources if one.rows), key=lambda one: one.rows[0][2].ended, default=None)
        if newest is None:
            break
        row = newest.rows.popleft()[2]
        examined += 1
        if wanted.matches(row, now):
            found.append(row)
    rest = [one for source in sources if (one := source.rest()) is not None]
    following = cursor_text(_Left(rest, examined)) if rest else None
    return FinishedPage(found, following, examined)


def find_row(shard: Shard, key: str) -> Operation[FinishedJob | None]:
    """The row of the latest end of a job; None if its shard has none. One round trip for each 2000 rows."""
    located = yield from locate_row(shard, key)
    return None if located is None else located[0]


def locate_row(shard: Shard, key: str) -> Operation[tuple[FinishedJob, int] | None]:
    """As `find_row`, with the number of the block in which the row is."""
    wanted = f"{shard.name}:{key}"
    sources = [_Source(shard, rows, blocks=_BLOCKS) for rows in FinishedFilter().lists]
    found: list[tuple[FinishedJob, int]] = []
    for source in sources:
        while not source.is_done:
            yield from source.read(None)
            match = next(((row, number) for number, _, row in source.rows if row.id == wanted), None)
            source.rows.clear()
            if match is not None:
                found.append(match)
                break
    return max(found, key=lambda one: one[0].ended, default=None)


class EndedJobs:
    """The rows of the jobs of one shard, and what has waited for these jobs: read from the latest on, as far as needed.

    links  key of a job -> queue ("": the same) and key of each job that waited for it; of the rows read so far
    """

    def __init__(self, bindings: QueueBindings, name: str) -> None:
        self._bindings, self._name = bindings, name
        self._rows: dict[str, FinishedJob] = {}
        self._before: dict[RowList, int] = {"finished": 0, "failed": 0}
        self._examined = 0
        self.links: dict[str, dict[tuple[str, str], None]] = {}

    def rows(self, keys: Iterable[str]) -> Operation[dict[str, FinishedJob]]:
        """The rows of these jobs, among the latest 20,000. One round trip for each 2000 rows that were not read yet.

        One more if a row is found among the failures only: the job may have run again, and ended, since `finished` was
        read.
        """
        wanted, was_read = set(keys), False
        for name in list(self._before):
            while name in self._before and self._examined < MOST_OF_FLOW and not wanted <= self._rows.keys():
                self._before[name] = yield from self._read(name, self._before[name])
                if not self._before[name]:
                    del self._before[name]
                was_read = True
        if was_read and any(self._rows[key].outcome == _FAILED for key in wanted & self._rows.keys()):
            yield from self._read("finished", 0)
        return {key: self._rows[key] for key in wanted if key in self._rows}

    def _read(self, name: RowList, before: int) -> Operation[int]:
        """Returns the block before which the next read continues; 0 if no block is left."""
        found: BlockSlice = yield read_blocks(self._bindings, name, before, _BLOCKS)
        for _, segments in found.blocks:
            rows = read_block(self._name, segments)
            self._examined += max(len(rows), len(segments) // _LONG_ROW)
            for row in reversed(rows):
                if row is not None:
                    key = _key(row.id)
                    self._rows[key] = max(self._rows.get(key, row), row, key=lambda one: one.ended)
            for key, dependent in read_links(segments):
                self.links.setdefault(key, {})[dependent] = None
        return found.before
