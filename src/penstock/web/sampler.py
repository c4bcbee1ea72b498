"""Samples the queues of an app for all viewers together, and keeps the samples of ten minutes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from penstock.errors import PenstockError
from penstock.ops.answers import QueueView
from penstock.ops.inspect import Inspector

INTERVAL = 2.0
"""Seconds between two samples."""

NAMES_INTERVAL = 60.0
"""Seconds between two searches for new queues and for workers. A search reads the names of all keys of the server."""

KEPT = 300
"""Samples of the history: ten minutes."""

_TOTALS = ("completed", "failed", "retried", "cancelled", "expired", "dropped", "lost")


class Sampler:
    """The state of all queues as one document, taken every two seconds while there is a viewer."""

    def __init__(self, inspector: Inspector) -> None:
        self._inspector = inspector
        self._names: list[str] = []
        self._workers: dict[str, int] = {}
        self._searched_at = -NAMES_INTERVAL
        self._last: dict[str, tuple[float, QueueView]] = {}
        self._history: dict[str, deque[list[float]]] = {}
        self._newest: dict[str, Any] | None = None
        self._taken_at = -INTERVAL
        self._taking = asyncio.Lock()

    async def document(self) -> dict[str, Any]:
        """The newest sample: at most two seconds old."""
        async with self._taking:
            if time.monotonic() - self._taken_at >= INTERVAL * 0.9 or self._newest is None:
                self._newest = await self._take()
                self._taken_at = time.monotonic()
            return self._newest

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
        views = await self._inspector.queues.aio(self._names)
        queues = [self._queue(view, at) for view in views]
        return {
            "at": at,
            "location": self._inspector.location,
            "interval": INTERVAL,
            "queues": queues,
            "workers": sum(self._workers.values()),
            "history": {name: list(rows) for name, rows in self._history.items()},
        }

    async def _search(self) -> None:
        """Look for new queues and workers, now and then."""
        if time.monotonic() - self._searched_at < NAMES_INTERVAL:
            return
        self._names = await self._inspector.queue_names.aio()
        self._workers = {}
        for name in self._names:
            with contextlib.suppress(PenstockError):
                alive = [
                    worker for worker in await self._inspector.workers.aio(name) if worker.lease > 0 and worker.name
                ]
                self._workers[name] = len(alive)
        self._searched_at = time.monotonic()

    def _queue(self, view: QueueView, at: float) -> dict[str, Any]:
        """One queue: its counts, and what came in and went out per second since the last sample."""
        counts = view.counts
        before = self._last.get(view.name)
        self._last[view.name] = (at, view)
        rate_in = rate_out = rate_failed = 0.0
        if before is not None and (seconds := at - before[0]) > 0:
            old = before[1].counts
            ended = sum(getattr(counts, name) - getattr(old, name) for name in ("completed", "cancelled", "expired"))
            ended += counts.dropped - old.dropped
            dead = counts.dead - old.dead
            grown = counts.ready + counts.delayed + counts.running - old.ready - old.delayed - old.running
            rate_in = max(0.0, (grown + ended + max(0, dead)) / seconds)
            rate_out = max(0.0, (counts.completed - old.completed) / seconds)
            rate_failed = max(0.0, (counts.failed + counts.retried - old.failed - old.retried) / seconds)
        rows = self._history.setdefault(view.name, deque(maxlen=KEPT))
        rows.append([round(at, 1), counts.ready, counts.running, round(rate_in, 2), round(rate_out, 2), rate_failed])
        return {
            "name": view.name, "ready": counts.ready, "delayed": counts.delayed, "running": counts.running,
            "dead": counts.dead, "oldest": counts.oldest, "paused": counts.paused,
            "workers": self._workers.get(view.name, 0),
            "in": rate_in, "out": rate_out, "failing": rate_failed,
            "totals": {name: getattr(counts, name) for name in _TOTALS},
        }  # fmt: skip
