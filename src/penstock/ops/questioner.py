"""The base class of the inspector's questioners. It keeps the app, and opens a queue with the shards that the server
has, whatever the app declares."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from penstock.app import Penstock
from penstock.core.operations import Driver, Operation, Parallel
from penstock.errors import PenstockError
from penstock.jobs.keys import check_queue_name
from penstock.jobs.queue import Queue
from penstock.jobs.shard import Shard
from penstock.jobs.shard_bindings import ShardBindings
from penstock.jobs.shard_table import whole_name
from penstock.ops.probe import queue_names


class Questioner:
    """Asks about one kind of component, or acts on it. No questioner derives from another one."""

    def __init__(self, app: Penstock) -> None:
        self._app = app

    @property
    def _driver(self) -> Driver:
        return self._app._driver

    @property
    def _prefix(self) -> str:
        return self._app.settings.prefix

    def _not_found(self, kind: str, name: str, known: Sequence[str]) -> PenstockError:
        """The error for an unknown name. It names similar ones."""
        near = difflib.get_close_matches(name, known, 3) or known[:5]
        there = f"; there is {', '.join(near)}{', …' if len(near) < len(known) else ''}" if known else ""
        return PenstockError(f"no {kind} {name!r} with prefix {self._prefix!r} on this server{there}")

    # --- queues, as the server has them, whatever the app declares ---

    def _shard(self, name: str) -> Shard:
        """A shard by its name. The first one of a queue has the name of the queue."""
        app = self._app
        return Shard(check_queue_name(name), app._driver, app.settings, app.clock, app.middleware)

    def _queue(self, name: str, table: str) -> Queue:
        """A queue with the shards of a table that was just read. The name of a shard selects that one alone."""
        app, text = self._app, table if name == whole_name(name) else ""
        return Queue(name, app._driver, app.settings, app.clock, app.middleware, table=text)

    def _open_any(self, name: str) -> Operation[Queue]:
        """A queue with the shards that the server has of it. One round trip."""
        return self._queue(name, (yield ShardBindings(self._shard(name).bindings).table(0)))

    def _open(self, name: str) -> Operation[Queue]:
        """A queue as `_open_any` opens it. Raises PenstockError for a queue that was never used. One round trip."""
        first = self._shard(name).bindings
        overview, table = yield Parallel((first.overview(1), ShardBindings(first).table(0)))
        if not overview.used:
            names = yield from queue_names(self._prefix)
            raise self._not_found("queue", name, sorted({*map(whole_name, names)}))
        return self._queue(name, table)
