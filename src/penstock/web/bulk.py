"""Actions on all jobs that match a filter. They run in the background, because they may take minutes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from penstock.errors import PenstockError
from penstock.jobs.job_list import BulkProgress, Wanted
from penstock.ops.inspect import Inspector
from penstock.web.answers import Mask

KEPT = 50
"""Runs whose progress can be asked for."""


class Filter(msgspec.Struct, forbid_unknown_fields=True):
    """The conditions for the jobs, as a page sends them; see `Queue.jobs`."""

    state: str | None = None
    task: str | None = None
    tenant: str | None = None
    worker: str | None = None
    id_prefix: str = ""
    older_than: float = 0.0
    tag: str | None = None
    text: str = ""
    since: float | None = None
    longer_than: float = 0.0

    def check(self, mask: Mask | None) -> None:
        """Raise ValueError for a search in arguments that a mask may hide: it could reveal them letter by letter."""
        if self.text and mask is not None:
            raise ValueError("text: this dashboard hides arguments, so it does not search them for a text")

    def wanted(self) -> Wanted:
        return Wanted(
            state=self.state,
            task=self.task,
            tenant=self.tenant,
            worker=self.worker,
            id_prefix=self.id_prefix,
            older_than=self.older_than,
            tag=self.tag,
            text=self.text,
            since=self.since,
            longer_than=self.longer_than,
        )


def read_filter(query: dict[str, str]) -> Filter:
    """The filter in an address. Raises ValueError for an unknown or a bad field."""
    try:
        return msgspec.convert(query, Filter, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(f"this is not a filter: {error}") from None


@dataclass
class BulkRun:
    """One run: its progress, and whether it has ended."""

    progress: BulkProgress = field(default_factory=BulkProgress)
    ended: bool = False
    error: str = ""


class BulkRuns:
    """The runs of one dashboard. The oldest are forgotten."""

    def __init__(self, inspector: Inspector, mask: Mask | None) -> None:
        self._ask = inspector
        self._mask = mask
        self._numbers = itertools.count(1)
        self._runs: dict[int, BulkRun] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def find(self, number: int) -> dict[str, Any]:
        """The progress of a run. Raises ValueError for an unknown number."""
        if number not in self._runs:
            raise ValueError(f"no run {number}: it is too long ago, or the dashboard was started again")
        run = self._runs[number]
        return {**msgspec.to_builtins(run.progress), "ended": run.ended, "error": run.error}

    async def begin(self, action: str, queue: str, chosen: Filter, to: str, end: Callable[[str], object]) -> int:
        """Begin a run, and return its number. `end` is called with its outcome. Raises for a bad queue or filter."""
        chosen.check(self._mask)
        jobs = (await self._ask.queues.open.aio(queue)).jobs(**chosen.wanted())
        run, number = BulkRun(), next(self._numbers)

        def keep(progress: BulkProgress) -> None:
            run.progress = progress

        if action == "move":
            target = await self._ask.queues.open.aio(to, must_exist=False)
            work: Awaitable[object] = jobs.move.aio(target, on_progress=keep)
        elif action == "count":
            work = jobs.count.aio(on_progress=keep)
        else:
            verbs = {"cancel": jobs.cancel, "requeue": jobs.requeue, "remove": jobs.remove}
            work = verbs[action].aio(on_progress=keep)
        self._runs[number] = run
        self._runs.pop(number - KEPT, None)
        task = asyncio.create_task(self._watch(run, work, end))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return number

    async def _watch(self, run: BulkRun, work: Awaitable[object], end: Callable[[str], object]) -> None:
        try:
            await work
        except PenstockError as error:
            run.error = str(error)
        finally:
            run.ended = True
            end(f"failed: {run.error}" if run.error else f"{run.progress.done:,} of {run.progress.found:,} jobs")
