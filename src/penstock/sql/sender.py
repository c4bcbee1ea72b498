"""The sender: it enqueues what this process has committed at once, so that the relay finds nothing to do.

It gets the rows of a transaction after the commit, and reads which of them are in the database: a savepoint may have
been rolled back, or a transaction around the session may not have ended. A row that it does not send, for whatever
reason, is left to a relay.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from penstock.app import Penstock
from penstock.core.ids import mint_token
from penstock.errors import PenstockError
from penstock.sql import rows as table
from penstock.sql.background import Look, LoopBell, Pause, ThreadBell, Transact, Work, run_in_thread, run_on_loop
from penstock.sql.delivery import Delivery
from penstock.sql.rows import OutboxRow

log = logging.getLogger("penstock.sql")

_MARK_AFTER: Final = 0.5
"""Seconds after which rows that were sent are marked, together. Relays take rows that are two seconds old."""

_IDLE: Final = 60.0

_MOST: Final = 500
"""Rows that are sent together."""


class CommitSender:
    """The work of a sender, and the rows that it has to send."""

    def __init__(self, app: Penstock) -> None:
        self._token = mint_token()
        self._delivery = Delivery(app)
        self._new: deque[OutboxRow] = deque()
        self._unmarked: list[OutboxRow] = []
        self._mark_at: float | None = None
        self._left: dict[int, float] = {}
        """Lane -> until when its rows are left to a relay, because an older one was: `time.monotonic()`."""
        self.is_closing = False

    def add(self, rows: Sequence[OutboxRow]) -> None:
        self._new.extend(rows)

    def work(self) -> Work[None]:
        while not (self.is_closing and not self._new):
            if not self._new:
                yield Pause(self._delay())
            try:
                yield from self._round()
            except (SQLAlchemyError, OSError, PenstockError) as error:
                log.warning("the outbox leaves rows to its relay: %s", error)
        if self._unmarked:
            with contextlib.suppress(SQLAlchemyError, OSError):
                yield from self._mark()

    def _round(self) -> Work[None]:
        rows = [self._new.popleft() for _ in range(min(_MOST, len(self._new)))]
        if rows:
            try:
                yield from self._send(rows)
            except BaseException:
                self._leave(rows)
                raise
        if self._mark_at is not None and time.monotonic() >= self._mark_at:
            yield from self._mark()
        if (due := self._delivery.next_due) is not None and time.monotonic() >= due:
            yield from self._delivery.confirm()

    def _send(self, rows: list[OutboxRow]) -> Work[None]:
        committed, behind = yield Look(lambda connection: table.visible(connection, rows))
        now = time.monotonic()
        behind |= {lane for lane, until in self._left.items() if until > now}
        outcome = yield from self._delivery.send(
            row for row in rows if row.nonce in committed and row.lane not in behind
        )
        if outcome.accepted:
            self._unmarked += outcome.accepted
            self._mark_at = self._mark_at or time.monotonic() + _MARK_AFTER
        self._leave(outcome.failed)
        if outcome.error is not None:
            raise outcome.error

    def _leave(self, rows: Sequence[OutboxRow]) -> None:
        """Leave rows to a relay, and with them what the same tenants enqueue until the relay sees the rows."""
        until = time.monotonic() + 2 * table.YOUNG / 1000
        self._left = {lane: at for lane, at in self._left.items() if at > time.monotonic()}
        self._left.update((row.lane, until) for row in rows)

    def _mark(self) -> Work[None]:
        rows, self._unmarked, self._mark_at = self._unmarked, [], None
        yield Transact(lambda connection: table.mark_sent(connection, rows, self._token))

    def _delay(self) -> float:
        times = [at for at in (self._mark_at, self._delivery.next_due) if at is not None]
        return min(_IDLE, max(0.01, min(times, default=float("inf")) - time.monotonic()))


class CommitSenders:
    """The senders of one outbox: one in a thread, or one on each event loop. Each starts when it is needed."""

    def __init__(self, app: Penstock, engine: Engine | AsyncEngine) -> None:
        self._app, self._engine = app, engine
        self._lock = threading.Lock()
        self._thread: tuple[int, threading.Thread, CommitSender, ThreadBell] | None = None
        self._loops: dict[asyncio.AbstractEventLoop, tuple[asyncio.Task[None], CommitSender, LoopBell]] = {}

    def send(self, rows: Sequence[OutboxRow]) -> None:
        """Send committed rows soon. Does not wait, and raises nothing: the rows are safe in the database."""
        try:
            if isinstance(self._engine, AsyncEngine):
                self._send_on_loop(rows, self._engine)
            else:
                self._send_in_thread(rows, self._engine)
        except RuntimeError:  # no event loop runs, or the interpreter ends
            log.debug("the outbox leaves %d rows to its relay", len(rows))

    def _send_in_thread(self, rows: Sequence[OutboxRow], engine: Engine) -> None:
        with self._lock:
            if self._thread is None or self._thread[0] != os.getpid():
                sender, bell = CommitSender(self._app), ThreadBell()
                run = threading.Thread(
                    target=run_in_thread, args=(sender.work(), engine, bell), name="penstock-outbox", daemon=True
                )
                self._thread = os.getpid(), run, sender, bell
                run.start()
            _, _, sender, bell = self._thread
            sender.add(rows)
        bell.ring()

    def _send_on_loop(self, rows: Sequence[OutboxRow], engine: AsyncEngine) -> None:
        loop = asyncio.get_running_loop()
        if loop not in self._loops:
            self._loops = {one: kept for one, kept in self._loops.items() if not one.is_closed()}
            sender, bell = CommitSender(self._app), LoopBell()
            task = loop.create_task(run_on_loop(sender.work(), engine, bell), name="penstock-outbox")
            self._loops[loop] = task, sender, bell
        _, sender, bell = self._loops[loop]
        sender.add(rows)
        bell.ring()

    def close(self) -> None:
        """Send what was committed, and end the thread."""
        with self._lock:
            found, self._thread = self._thread, None
        if found is not None and found[0] == os.getpid():
            _, thread, sender, bell = found
            sender.is_closing = True
            bell.ring()
            thread.join(timeout=5.0)

    async def aclose(self) -> None:
        """Send what was committed on the running event loop, and end its task; end the thread as well."""
        found = self._loops.pop(asyncio.get_running_loop(), None)
        if found is not None:
            task, sender, bell = found
            sender.is_closing = True
            bell.ring()
            await asyncio.wait([task], timeout=5.0)
            task.cancel()
        await asyncio.to_thread(self.close)
