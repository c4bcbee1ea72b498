"""Serves schedules in a worker: declares those of its app, and enqueues the jobs of due ticks.

It also starts deliveries to other queues, because turns offer them in the same way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any, Final

from penstock.core.operations import Driver
from penstock.errors import PenstockError, ServerError
from penstock.jobs.claims import TurnReply
from penstock.jobs.decorator import make_task
from penstock.jobs.definition import Definition
from penstock.jobs.flow_bindings import FlowBindings
from penstock.jobs.middleware import EnqueueContext, JobDraft
from penstock.jobs.queue import Queue
from penstock.jobs.release import release_time
from penstock.jobs.schedule import ORPHANED_AFTER, ScheduleDefinition, StoredSchedule
from penstock.jobs.schedule_bindings import ScheduleBindings, Tick
from penstock.jobs.shard import Shard
from penstock.worker.app import App
from penstock.worker.delivery import Deliveries

log = logging.getLogger("penstock.worker")

RENEWED_EVERY: Final = ORPHANED_AFTER / 24
"""Seconds after which a worker declares its schedules again."""

_DECLARED_TOGETHER: Final = 50


class TickServer:
    """Declares the schedules of the app in the queues that the worker serves, and enqueues the jobs of offered ticks.

    A tick that fails is offered again after five seconds, to whichever worker takes a turn then.
    """

    def __init__(self, app: App, queues: Sequence[Queue]) -> None:
        self._driver: Driver = app._driver
        self._queue = app.queue
        self._declared: dict[Queue, list[ScheduleDefinition]] = {}
        for queue in queues:
            found = [declared_by(task, queue) for task in app.registry if task.timing and task.queue == queue.name]
            if found:
                self._declared[queue] = found
        self._running: set[asyncio.Task[None]] = set()
        self._outboxes = Deliveries(app._driver, self._start)

    async def declare(self, how: Any = "declare") -> None:
        """Declare the schedules of the app. Two round trips for each 50 of them. Raises ServerError."""
        for queue, definitions in self._declared.items():
            bindings = ScheduleBindings(queue.first.bindings)
            for start in range(0, len(definitions), _DECLARED_TOGETHER):
                some = definitions[start : start + _DECLARED_TOGETHER]
                now, _ = await self._driver.aio.run(bindings.show(some[0].name))
                pairs = [(one, one.timing.following(now)) for one in some]
                words = await self._driver.aio.run(bindings.define(how, pairs))
                for one, word in zip(some, words, strict=True):
                    if word == "older":
                        log.info("schedule %s: a later release has another definition, which counts", one.name)

    async def renew(self) -> None:
        """Declare the schedules again once an hour. A schedule that no worker declares for a day is orphaned."""
        while self._declared:
            await asyncio.sleep(RENEWED_EVERY)
            try:
                await self.declare("renew")
            except ServerError as error:
                log.warning("the schedules could not be declared again, trying in an hour: %s", error)
        await asyncio.get_running_loop().create_future()

    def serve(self, shard: Shard, turn: TurnReply) -> None:
        """Do in the background what the turn has offered: ticks, a delivery to another queue, flows to give up."""
        if turn.has_overdue_flows:
            self._start(self._give_up_open(shard))
        if turn.outbox is not None:
            self._outboxes.deliver(shard, self._queue(turn.outbox.queue).first, turn.outbox.entries)
        if turn.ticks:
            self._start(self._serve(shard, turn.ticks))

    def _start(self, serving: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(serving)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _serve(self, shard: Shard, offers: Sequence[Any]) -> None:
        now, *rest = offers
        for name, packed in zip(rest[0::2], rest[1::2], strict=True):
            try:
                stored = StoredSchedule.read(name, packed)
                ticks, following = stored.timing.due(stored.next_tick, now)
                seal = shard.settings.seal
                drafts = [JobDraft(shard.name, stored.job_id(tick), stored.draft, seal) for tick in ticks]
                with shard.middleware.around_enqueue(EnqueueContext(shard.name, drafts)):
                    jobs = [(draft.key, draft.record) for draft in drafts]
                    tick = ScheduleBindings(shard.bindings).tick([Tick(stored, ticks, jobs, following)])
                    (counted,) = await self._driver.aio.run(tick)
                if counted and len(ticks) != 1:
                    log.info("schedule %s: %d jobs for the ticks that were missed", stored.name, len(ticks))
            except PenstockError as error:
                log.warning("schedule %s: its tick failed and is tried again: %s", name.decode(errors="replace"), error)
            except Exception:
                log.exception("schedule %s: its tick failed and is tried again", name.decode(errors="replace"))

    async def _give_up_open(self, shard: Shard) -> None:
        """Cancel the jobs of flows whose program died before it had enqueued all of the flow."""
        try:
            while looked := await self._driver.aio.run(FlowBindings(shard.bindings).give_up_open()):
                log.warning(
                    "queue %s: %d jobs of flows were open for ten minutes, because a program died while it enqueued "
                    "them: they are cancelled",
                    shard.name,
                    looked,
                )
        except PenstockError as error:
            log.warning("queue %s: flows that are open for too long are looked for again: %s", shard.name, error)

    async def close(self) -> None:
        """Wait until the ticks that were offered are served."""
        await asyncio.gather(*self._running, return_exceptions=True)


def declared_by(definition: Definition, queue: Queue) -> ScheduleDefinition:
    """The schedule of a task. Its jobs are calls without arguments, with the options that the task declares.

    They are not sealed, so that all workers of a release declare the same bytes.
    """
    assert definition.timing is not None
    task = make_task(definition, queue)
    call = task.call()
    draft = task.record_start + call.powers + call.payload
    return ScheduleDefinition(definition.name, definition.timing, draft, release_time(definition.function))
