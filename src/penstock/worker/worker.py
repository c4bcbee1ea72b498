"""One worker process: claims jobs, runs them, settles them, sleeps when there are none.

                     ┌───────────────── round ─────────────────┐
    woken, due,      │ for each queue in order: one turn        │   jobs start, finish;
    settled, free ──▶│ (settlements out, claims in)             │──▶ the next round is due 5 ms after the first
    runners          └──────────────────────────────────────────┘    settlement, or at once for free runners

A turn that fails is sent again as it was until the server answers. The heartbeat threads keep the leases meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Protocol

from penstock.core.operations import AsyncListener, Driver
from penstock.errors import ConfigurationError, FormatTooNew, ServerError
from penstock.jobs.bindings import Claim, Introduction, Settlement
from penstock.jobs.queue import Queue
from penstock.jobs.registry import Registry
from penstock.settings import Settings, WorkerSettings
from penstock.worker.board import Board
from penstock.worker.execution import Execution, Run
from penstock.worker.feed import Feed
from penstock.worker.heartbeat import Heartbeat, Watchdog
from penstock.worker.isolation import Isolation
from penstock.worker.overtime import Overtime
from penstock.worker.pool import Threads
from penstock.worker.running import STALLED, Inflight

log = logging.getLogger("penstock.worker")


_LONGEST_NAP = 3600.0

_UNANSWERED = 0.5
"""Seconds of waiting for one queue's server after which the other queues are served."""


class App(Protocol):
    """What a worker needs of `penstock.app.Penstock`."""

    settings: Settings
    registry: Registry

    @property
    def _driver(self) -> Driver: ...
    def queue(self, name: str) -> Queue: ...


def queues_of(app: App, settings: WorkerSettings) -> tuple[str, ...]:
    """The queues a worker serves, in order."""
    names = settings.queues or app.registry.queues()
    if not names:
        raise ConfigurationError("nothing to do: no task is registered, and no queue was named")
    return tuple(dict.fromkeys(names))


class Worker:
    """Runs the jobs of an app's queues on the running event loop.

    `run()` returns after `stop()`: once lets running jobs finish, twice hands them back at once.
    """

    def __init__(
        self,
        app: App,
        settings: WorkerSettings | None = None,
        *,
        board: Board | None = None,
        start_logging: Callable[[], None] | None = None,
    ) -> None:
        """Raises ConfigurationError for settings or tasks that cannot work. Nothing is sent.

        board          where a supervisor looks
        start_logging  sets up logging in the processes of isolated runs; picklable, as a function of a module is
        """
        self.settings = settings or WorkerSettings()
        names = queues_of(app, self.settings)
        if self.settings.concurrency < 1:
            raise ConfigurationError(f"concurrency={self.settings.concurrency}: 1 or more")
        isolated = self.settings.concurrency if self.settings.isolated is None else self.settings.isolated
        if isolated < 1:
            raise ConfigurationError(f"isolated={isolated}: 1 or more")
        if not 1 <= self.settings.max_batch <= 1000:
            raise ConfigurationError(f"max_batch={self.settings.max_batch}: 1 to 1000")
        for definition in app.registry:
            definition.signature.check()
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self._driver = app._driver
        # Each queue's sleep is said again to the server now and then; with many queues more rarely, so that an idle
        # process sends the same few commands.
        sleep = app.settings.sleep * len(names)
        who = Introduction(self.name, self.settings.concurrency)
        self._board = board
        self.feeds = [
            Feed(app.queue(name), app.settings.lease, sleep, who, partial(board.show, place) if board else None)
            for place, name in enumerate(names)
        ]
        self._execution = Execution(app.registry, self.settings, app.settings.max_payload, self.name)
        self._isolation = Isolation(
            isolated, self._execution, app.registry,
            max_payload=app.settings.max_payload, worker=self.name, start_logging=start_logging,
        )  # fmt: skip
        self._overtimes: dict[bytes, Overtime] = {}
        self._hand = Inflight(self.settings.concurrency, self.settings.prefetch, self.settings.max_batch)
        self._tasks: dict[asyncio.Task[Any], Claim] = {}
        self._unanswered: dict[Feed, asyncio.Task[None]] = {}
        self._pulse = asyncio.Event()
        self._looked_twice = False
        self._aborted = False
        self._timer: asyncio.TimerHandle | None = None
        self._stops = 0
        self._stop_at = float("inf")

    # --- life ---

    async def run(self) -> None:
        """Work until stopped; with `burst` until nothing is ready any more.

        Raises ServerError when the server does not answer at the start, or at the end of a stop; between them the
        worker tries again for ever. Raises FormatTooNew.
        """
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._threads: Threads[Settlement] = Threads(self.settings.concurrency, self._loop, self._finished)
        await self._driver.aio.run(self.feeds[0].queue.bindings.counts())
        waiters = [self._driver.aio.listen(feed.queue.bindings.keys.inbox) for feed in self.feeds]
        for feed, waiter in zip(self.feeds, waiters, strict=True):
            feed.address = waiter.address
        parts = [asyncio.create_task(self._listen(f, w)) for f, w in zip(self.feeds, waiters, strict=True)]
        parts.append(asyncio.create_task(self._serve()))
        busy, name_of = lambda: any(feed.held for feed in self.feeds), self._name_of
        watchdog = Watchdog(self._loop, self.settings.blocked_warning, busy=busy, name_of=name_of)
        hearts = [Heartbeat(self._driver.blocking, feed, self._loop, self._lost) for feed in self.feeds]
        for thread in (watchdog, *hearts):
            thread.start()
        try:
            # Listening ends only with an error that no repetition mends, such as a right that is missing.
            ended, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            for part in ended:
                part.result()
        finally:
            for thread in (watchdog, *hearts):
                thread.stop()
            self._hand.give_up()
            self._hand.running.clear()
            running = [*parts, *self._unanswered.values(), *self._tasks]
            for task in running:
                task.cancel()
            self._isolation.close()
            await asyncio.gather(*running, return_exceptions=True)
            self._threads.close()
            for waiter in waiters:
                waiter.close()
            await self._let_go()

    async def _let_go(self) -> None:
        """After an end without a stop: what is held still goes to others at once."""
        for feed in self.feeds:
            if feed.held:
                with contextlib.suppress(Exception):
                    await asyncio.wait_for(self._driver.aio.run(feed.queue.abandon(feed.me)), 1.0)

    def stop(self) -> None:
        """Once: claim no more, let running jobs finish. Again: hand them back now."""
        self._stops += 1
        if self._stops == 1:
            self._stop_at = time.monotonic() + self.settings.stop_timeout
            if self._hand.running:
                log.info(
                    "stopping: %d jobs still run, for at most %.0f s; stop again to hand them back now",
                    len(self._hand.running), self.settings.stop_timeout,
                )  # fmt: skip
            self._hand_back(self._hand.give_up())
        elif self._stops == 2:
            self._stop_at = 0.0
        self._pulse.set()

    async def _listen(self, feed: Feed, waiter: AsyncListener) -> None:
        while True:
            feed.woken(await waiter.wait(None))
            self._pulse.set()

    # --- rounds ---

    async def _serve(self) -> None:
        while True:
            await self._round()
            if self._stops and time.monotonic() >= self._stop_at:
                self._abort()
            if self._stops and self._hand.empty and not any(feed.busy for feed in self.feeds):
                break
            if self.settings.burst and not self._stops and self._idle():
                if self._looked_twice:
                    self.stop()
                self._look_again()
                continue
            if not self._due():
                await self._nap()
        left = [self._turn(feed, 0, leave=True) for feed in self.feeds]
        for answer in await asyncio.gather(*left, return_exceptions=True):
            if isinstance(answer, BaseException):
                raise answer

    async def _round(self) -> None:
        self._pulse.clear()
        self._hand_back(self._hand.stalled())
        first_has_more = False
        for feed in self.feeds:
            room = 0 if self._stops or first_has_more else self._hand.room
            called = feed.wake_at <= time.monotonic()
            # Who stops rises, so that no wake-up goes to one who takes no job any more.
            asks = not feed.awake if self._stops else called or (feed.awake and self._hand.hungry and room > 0)
            if feed.busy or asks:
                await self._take_turn(feed, room)
            first_has_more |= feed.awake and feed not in self._unanswered

    async def _take_turn(self, feed: Feed, want: int) -> None:
        """A turn that is not answered soon goes on by itself: on a cluster the other queues may be on other nodes."""
        if len(self.feeds) == 1:
            await self._turn(feed, want)
            return
        earlier = self._unanswered.get(feed)
        turn = self._unanswered[feed] = earlier or asyncio.create_task(self._turn(feed, want))
        await asyncio.wait([turn], timeout=0 if earlier else _UNANSWERED)
        if turn.done():
            del self._unanswered[feed]
            turn.result()
        elif not earlier:
            turn.add_done_callback(lambda _: self._pulse.set())

    async def _turn(self, feed: Feed, want: int, *, leave: bool = False) -> None:
        pause = 0.0
        while True:
            asked_at = time.monotonic()
            try:
                turn = await self._driver.aio.run(feed.turn(want, leave=leave))
                break
            except FormatTooNew:
                raise
            except ServerError as error:
                if time.monotonic() >= self._stop_at:
                    raise
                pause = min(5.0, pause * 2 or 0.5)
                log.warning("the server does not answer, trying again in %.1f s: %s", pause, error)
                await asyncio.sleep(pause)
        if pause:
            log.info("the server answers again")
        if not turn.alive:
            self._drop(feed)
        claims = [(feed, claim) for claim in feed.answered(turn, asked_at)]
        if self._stops:  # the stop came while they were on their way
            self._hand_back(claims)
        else:
            self._hand.waiting.extend(claims)
            self._fill()
        if feed.settled:
            self._settle_soon()

    def _due(self) -> bool:
        """Is the next round due now?"""
        hungry = self._hand.hungry and not self._stops
        return hungry and any(feed.awake and feed not in self._unanswered for feed in self.feeds)

    async def _nap(self) -> None:
        """Until the pulse, a time some feed named, or the look after a stall or the end of a graceful stop."""
        until = min((feed.wake_at for feed in self.feeds if not feed.awake), default=float("inf"))
        if self._hand.waiting:
            until = min(until, time.monotonic() + STALLED)
        if not self._aborted:
            until = min(until, self._stop_at)
        pause = until - time.monotonic()
        timer = self._loop.call_later(max(0.0, min(pause, _LONGEST_NAP)), self._pulse.set)
        await self._pulse.wait()
        timer.cancel()

    def _look_again(self) -> None:
        """The last job may have enqueued on a queue that was empty when it was looked at."""
        self._looked_twice = True
        for feed in self.feeds:
            feed.wake_at = 0.0

    def _idle(self) -> bool:
        return self._hand.empty and not any(feed.awake or feed.busy for feed in self.feeds)

    # --- jobs ---

    def _fill(self) -> None:
        """Start what can be started."""
        while (next_ := self._hand.take()) is not None:
            feed, claim = next_
            run = self._execution.prepare(claim)
            if isinstance(run, Settlement):
                feed.settled.append(run)
                self._settle_soon()
            else:
                self._hand.start(feed, claim, run.definition.name)
                self._start(feed, run)

    def _start(self, feed: Feed, run: Run) -> None:
        """On the loop, in a thread, or in a process of its own; there suspects run as well, if they can."""
        self._looked_twice = False
        definition = run.definition
        if definition.isolate or (run.claim.record.is_suspect and self._isolation.can_isolate(definition)):
            self._run_as_task(run, self._isolation.run)
            return
        if self._board:  # which tells what may be this process's death
            self._board.start(self.feeds.index(feed), run.claim.token)
        if definition.is_async:
            self._run_as_task(run, self._execution.run)
        else:
            overtime = self._watch(run) if definition.timeout is not None else None
            self._threads.submit(lambda: self._execution.run_blocking(run, overtime))

    def _run_as_task(self, run: Run, how: Callable[[Run], Awaitable[Settlement]]) -> None:
        # Not in the context of the job that ended just now, from whose task this may be called.
        task = self._loop.create_task(self._run(run, how), context=self._context.copy())
        self._tasks[task] = run.claim
        task.add_done_callback(self._tasks.pop)

    def _watch(self, run: Run) -> Overtime:
        job, timeout = f"job {run.claim.id} ({run.definition.name})", run.definition.timeout or 0.0
        overtime = Overtime(job, timeout, self.settings.blocked_warning, self._loop)
        self._overtimes[run.claim.token] = overtime
        return overtime

    async def _run(self, run: Run, how: Callable[[Run], Awaitable[Settlement]]) -> None:
        try:
            settlement = await how(run)
        except asyncio.CancelledError:
            if run.claim.token not in self._hand.running:  # handed back, or dropped with its lease
                if self._board:
                    self._board.end(run.claim.token)
                return
            settlement = self._execution.cancelled(run)
        self._finished(settlement)

    def _finished(self, settlement: Settlement) -> None:
        if self._board:
            self._board.end(settlement.token)
        if self._overtimes and (overtime := self._overtimes.pop(settlement.token, None)) is not None:
            overtime.close()
        feed = self._hand.finish(settlement.token)
        if feed is None:
            self._pulse.set()  # dropped with its lease; but its runner is free now
            return
        feed.settled.append(settlement)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("job %s %s", settlement.id, settlement.ending or "complete")
        self._fill()
        self._settle_soon()

    def _settle_soon(self) -> None:
        if self._due():
            self._pulse.set()
        elif self._timer is None:
            self._timer = self._loop.call_later(self.settings.settle_within, self._settle_now)

    def _settle_now(self) -> None:
        self._timer = None
        self._pulse.set()

    def _hand_back(self, claims: Sequence[tuple[Feed, Claim]]) -> None:
        for feed, claim in claims:
            feed.settled.append(Settlement(claim.token, b"", "release"))

    def _abort(self) -> None:
        """The second stop, or the end of the first one's patience: what runs is handed back."""
        self._aborted = True
        running = list(self._hand.running.values())
        if running:
            log.warning("handing back %d jobs that still run", len(running))
            self._pulse.set()
        for job in running:
            self._hand.finish(job.claim.token)
            self._hand_back([(job.feed, job.claim)])
        for task in list(self._tasks):
            task.cancel("the worker stops")

    def _lost(self, feed: Feed, me: str) -> None:
        """The heartbeat was refused: take a turn, which will be refused too and begin a new incarnation."""
        if feed.me == me:
            feed.wake_at = 0.0
            self._pulse.set()

    def _drop(self, feed: Feed) -> None:
        lost = {job.claim.token for job in self._hand.drop(feed)}
        on_the_loop = {task: claim.token for task, claim in self._tasks.items() if claim.token in lost}
        self._hand.adrift |= lost - set(on_the_loop.values())
        for task in on_the_loop:
            task.cancel("the lease was lost")

    def _name_of(self, task: asyncio.Task[object]) -> str:
        claim = self._tasks.get(task)
        running = self._hand.running.get(claim.token) if claim else None
        return f"job {claim.id} ({running.name})" if claim and running else "a callback"
