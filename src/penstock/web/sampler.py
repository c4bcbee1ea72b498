"""Samples the queues of an app for all viewers together. The server keeps the history (see `history.lua`)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from itertools import pairwise
from typing import Any

from penstock.errors import PenstockError
from penstock.jobs.counts import WorkerInfo
from penstock.jobs.history import KEPT, Interval, Moment
from penstock.ops.answers import Finding, QueueHealth, QueueView
from penstock.ops.inspect import Inspector

INTERVAL = 2.0
"""Seconds between two samples."""

HISTORY_INTERVAL = 10.0
"""Seconds between two questions for the history of all queues."""

HEALTH_INTERVAL = 4.0
"""Seconds between two questions for workers and findings."""

SEARCH_SHARE = 0.02
"""A search for new queues reads the names of all keys of the server, so it takes at most this share of the time."""

SEARCH_INTERVALS = (4.0, 60.0)
"""The least and the most seconds between two searches for new queues."""

_TOTALS = ("completed", "failed", "retried", "cancelled", "expired", "dropped", "lost")

_SPARK_POINTS = 60

Point = list[float]
"""A point of a chart: seconds since 1970, ready, running, then per second: in, out, failing."""


class Sampler:
    """The state of all queues as one document, taken every two seconds while there is a viewer."""

    def __init__(self, inspector: Inspector) -> None:
        self._inspector = inspector
        self._names: list[str] = []
        self._health: dict[str, QueueHealth] = {}
        self._findings: list[Finding] = []
        self._health_at = -HEALTH_INTERVAL
        self._search_at = 0.0
        self._last: dict[str, tuple[float, QueueView]] = {}
        self._history: list[Point] = []
        self._history_at = -HISTORY_INTERVAL
        self.sparks: dict[str, list[float]] = {}
        """Jobs completed per second in the last ten minutes, every 30 s."""
        self._newest: dict[str, Any] | None = None
        self._taken_at = -INTERVAL
        self._taking = asyncio.Lock()

    async def document(self) -> dict[str, Any]:
        """The newest sample: at most two seconds old. `history` is that of all queues together."""
        async with self._taking:
            if time.monotonic() - self._taken_at >= INTERVAL * 0.9 or self._newest is None:
                self._newest = await self._take()
                self._taken_at = time.monotonic()
            return self._newest

    async def names(self) -> list[str]:
        """The queues of the newest sample, without a search of its own."""
        await self.document()
        return self._names

    async def documents(self) -> AsyncIterator[dict[str, Any]]:
        """A sample every two seconds. While the server does not answer, a document with `error`."""
        while True:
            try:
                yield await self.document()
            except PenstockError as error:
                yield {"error": str(error), "at": time.time()}
            await asyncio.sleep(INTERVAL)

    async def _take(self) -> dict[str, Any]:
        await self._search()
        at = time.time()
        views = await self._inspector.queues.all.aio(self._names)
        queues = [self._queue(view, at) for view in views]
        if time.monotonic() - self._history_at >= HISTORY_INTERVAL:
            found = [await self._inspector.history.moments.aio(name) for name in self._names]
            by_queue = [points(moments, 10, at) for moments in found]
            # An idle queue has no point in the interval that is not over: the sum of the others would look like a fall.
            self._history = [point for point in summed(by_queue) if point[0] < at - at % 10]
            self.sparks = {
                name: sampled([point[4] for point in history[-_SPARK_POINTS:]])
                for name, history in zip(self._names, by_queue, strict=True)
            }
            self._history_at = time.monotonic()
        now = [sum(queue[name] for queue in queues) for name in ("ready", "running", "in", "out", "failing")]
        workers = {worker.name for one in self._health.values() for worker in one.workers if is_serving(worker)}
        return {
            "at": at,
            "location": self._inspector.location,
            "interval": INTERVAL,
            "queues": queues,
            "workers": len(workers),
            "findings": self._findings,
            "history": [*self._history, [round(at, 1), *(round(value, 2) for value in now)]],
        }

    async def _search(self) -> None:
        """If it is time for that, look for new queues, or for workers and findings."""
        begun = time.monotonic()
        if begun >= self._search_at:
            names = await self._inspector.queues.names.aio()
            least, most = SEARCH_INTERVALS
            now = time.monotonic()
            self._search_at = now + min(most, max(least, (now - begun) / SEARCH_SHARE))
            if names != self._names:
                self._names, self._health_at = names, -HEALTH_INTERVAL
        if time.monotonic() - self._health_at >= HEALTH_INTERVAL:
            health = await self._inspector.health.queues.aio(self._names)
            self._health, self._findings = {one.queue: one for one in health.queues}, health.findings
            self._health_at = time.monotonic()

    def _queue(self, view: QueueView, at: float) -> dict[str, Any]:
        """One queue: its counts, and how many jobs per second came, completed and failed since the last sample."""
        counts = view.counts
        before = self._last.get(view.name)
        self._last[view.name] = (at, view)
        rate_in = rate_out = rate_failed = 0.0
        if before is not None and (seconds := at - before[0]) > 0:
            old = before[1].counts
            rate_in = max(0, counts.entered - old.entered) / seconds
            rate_out = max(0, counts.completed - old.completed) / seconds
            rate_failed = max(0, counts.failed + counts.retried - old.failed - old.retried) / seconds
        return {
            "name": view.name,
            "ready": counts.ready,
            "delayed": counts.delayed,
            "sleeping": counts.sleeping,
            "running": counts.running,
            "parked": counts.parked,
            "dependent": counts.dependent,
            "dead": counts.dead,
            "oldest": counts.oldest,
            "paused": counts.paused,
            "workers": sum(map(is_serving, self._health[view.name].workers)),
            "programs": sum(worker.lease > 0 and not worker.name for worker in self._health[view.name].workers),
            "worst": next((one.kind for one in self._health[view.name].findings), ""),
            "in": rate_in,
            "out": rate_out,
            "failing": rate_failed,
            "totals": {name: getattr(counts, name) for name in _TOTALS},
        }


def is_serving(worker: WorkerInfo) -> bool:
    return bool(worker.name) and worker.lease > 0


async def history_of(inspector: Inspector, queue: str, interval: Interval) -> list[Point]:
    """The points of one queue up to now."""
    moments = await inspector.history.moments.aio(queue, interval=interval)
    return points(moments, interval, await inspector.now.aio())


def points(moments: list[Moment], interval: Interval, now: float) -> list[Point]:
    """The points at which the queue was watched, at multiples of `interval`, as far back as moments are kept.

    A moment stands for the points that are missing before it. After the last one nothing happened.
    """
    if not moments:
        return []
    first = int(now - KEPT[interval] * interval) // interval
    found: list[Point] = []
    numbers = [int((moments[0].at - moments[0].seconds) // interval), *(int(one.at // interval) for one in moments)]
    for (then, until), moment in zip(pairwise(numbers), moments, strict=True):
        rates = (
            moment.per_second("entered"),
            moment.per_second("completed"),
            moment.per_second("failed") + moment.per_second("retried"),
        )
        for number in range(max(then, first) + 1, until + 1):
            found.append([number * interval, moment.ready, moment.running, *(round(rate, 2) for rate in rates)])
    newest = moments[-1]
    for number in range(max(numbers[-1], first) + 1, int(now) // interval):
        found.append([number * interval, newest.ready, newest.running, 0.0, 0.0, 0.0])
    return found


def sampled(values: list[float]) -> list[float]:
    """The mean of each three values in a row."""
    pieces = [values[at : at + 3] for at in range(0, len(values), 3)]
    return [round(sum(piece) / len(piece), 2) for piece in pieces]


def summed(histories: Iterable[list[Point]]) -> list[Point]:
    """The histories of several queues in one, in the order of time."""
    sums: dict[float, Point] = {}
    for history in histories:
        for point in history:
            old = sums.get(point[0])
            sums[point[0]] = (
                point if old is None else [point[0], *(a + b for a, b in zip(old[1:], point[1:], strict=True))]
            )
    return [sums[at] for at in sorted(sums)]
