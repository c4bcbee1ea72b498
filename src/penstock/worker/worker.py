"""One worker process: it claims jobs, runs them, settles them, and sleeps while there is no work.

    wake-up, due time,    ┌────────────── round ───────────────┐      jobs start and finish; the next round begins
    settlement,       ───▶│ for each queue in order: one turn  │───▶  within 5 ms of the first settlement, or at
    free runner           │ (settlements out, claims in)       │      once if it can claim more jobs
                          └────────────────────────────────────┘

A turn is one round trip to one queue: it sends settlements and claims jobs. If a turn fails, the worker repeats it
unchanged until the server answers. Meanwhile the heartbeat threads renew the leases.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial

from penstock.jobs.claims import Claim, Registration, Settlement
from penstock.jobs.dependencies import ProcessScope
from penstock.jobs.middleware import JobContext
from penstock.jobs.queue import Queue
from penstock.settings import WorkerSettings
from penstock.worker.app import App, check_settings, queues_of
from penstock.worker.batches import BatchRun, batch_of, batch_run
from penstock.worker.cancelling import Cancelling
from penstock.worker.execution import Execution
from penstock.worker.feed import Feed
from penstock.worker.heartbeat import MemoryLimit, PeriodicThread, Watchdog
from penstock.worker.isolation import Isolation
from penstock.worker.job_log import RunReports
from penstock.worker.open_feeds import OpenFeeds
from penstock.worker.runner import JobRunner
from penstock.worker.running import DOUBLING, STALL, Inflight, JobRun
from penstock.worker.shared_status import RETIRING, SOLE, SharedStatus
from penstock.worker.suspects import SuspectWatch
from penstock.worker.ticks import TickServer
from penstock.worker.trials import command_for
from penstock.worker.turn_order import TurnOrder
from penstock.worker.turns import NEXT_SLOW_TURN, SLOW_TURN, take_turn

log = logging.getLogger("penstock.worker")


_LONGEST_SLEEP = 3600.0

_LEAVING = 2.0
"""Seconds that a cancelled worker has to end its incarnations."""


class Worker:
    """Runs an app's jobs on the running event loop, inside any program.

        worker = Worker(app, WorkerSettings(queues=("mail",), concurrency=20))
        running = asyncio.create_task(worker.run())
        ...
        worker.stop()      # running jobs finish
        await running

    `async def` tasks run on the loop, `def` tasks in threads, `isolate=True` tasks in processes of their own. The
    command `penstock worker` is this class, with signal handlers, logging and, if asked for, a supervisor around it.

    A Worker runs once: make a new one to start again. One process may run several, even of different apps.
    """

    def __init__(
        self,
        app: App,
        settings: WorkerSettings | None = None,
        *,
        start_logging: Callable[[], None] | None = None,
    ) -> None:
        """Check tasks and settings. Sends nothing.

        app            the Penstock app whose tasks are run
        settings       queues, concurrency and so on; None: the defaults, which serve each queue that has a task
        start_logging  called in the processes of `isolate=True` tasks before their modules are imported; it must be
                       picklable, such as a function at the top of a module or a `functools.partial` of one

        Raises ConfigurationError for settings or tasks that cannot work.
        """
        self.settings = settings or WorkerSettings()
        names = queues_of(app, self.settings)
        check_settings(self.settings)
        isolated = self.settings.concurrency if self.settings.isolated is None else self.settings.isolated
        for definition in app.registry:
            definition.signature.check()
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self._driver = app._driver
        self._lease, self._registry = app.settings.lease, app.registry
        self._shared_status: SharedStatus | None = None
        self._trial_host_deaths: int | None = None
        queues = [app.queue(name) for name in names]
        self._turn_order = TurnOrder(queues, app.settings.sleep, self._make_feed)
        self._feeds = self._turn_order.feeds
        self._turn_order.begin()
        needed = (one for definition in app.registry for one in definition.signature.dependencies.values()
                  if definition.queue in names and not definition.isolate)  # fmt: skip
        self._scope = ProcessScope(app.middleware.lifecycle, needed)
        self._execution = Execution(app.registry, self.settings, app.settings.max_payload, self.name, self._scope)
        self._isolation = Isolation(
            isolated, self._execution, app.registry,
            max_payload=app.settings.max_payload, worker=self.name, start_logging=start_logging,
        )  # fmt: skip
        self._reports = RunReports(self.name, app.middleware, self.settings.job_log_level)
        self._round_due = asyncio.Event()
        self._suspects = SuspectWatch(
            self._feeds, queues, self._turn, partial(command_for, app, self.settings, start_logging), self.settings,
            self._round_due.set,
        )  # fmt: skip
        self._inflight = Inflight(self.settings.concurrency, self.settings.prefetch, self.settings.max_batch)
        self._ticks = TickServer(app, queues)
        self._slow_turns: dict[Feed, asyncio.Task[None]] = {}
        self._settle_timer: asyncio.TimerHandle | None = None
        self._runners_timer: asyncio.TimerHandle | None = None
        self._rechecked = False
        self._has_left = False
        self._is_sole = True
        self._jobs_left = float("inf") if self.settings.max_jobs is None else self.settings.max_jobs
        self._retiring = False
        self._stop_calls = 0
        self._stop_deadline = float("inf")
        self._handed_back = False

    # --- start and stop ---

    def _share_status(self, status: SharedStatus) -> None:
        """Show the supervisor through `status` which jobs run here. Call it before `run()`."""
        self._shared_status = status
        self._suspects.status = status
        if status.begins_slowly:
            self._inflight.begin_slowly()
        for feed in self._feeds:
            self._prepare(feed)

    def _try_suspects(self, host_deaths: int, is_sole: bool) -> None:
        """Run suspects, one at a time, and nothing else. Call it before `run()`, which ends when none waits.

        `is_sole`: no other trial runs on this host. A suspect whose host has died runs only in such a process, because
        otherwise it would count against the suspect beside it too.
        """
        self._isolation.spawns_only = True
        self._is_sole = is_sole
        self._trial_host_deaths = host_deaths
        for feed in self._feeds:
            feed.begin_trials(host_deaths)

    def _make_feed(self, queue: Queue, slot: int) -> Feed:
        registration, batch = Registration(self.name, self.settings.concurrency), batch_of(self._registry, queue.name)
        feed = Feed(queue, self._lease, 0.0, registration, slot, batch, burst=self.settings.burst)
        self._prepare(feed)
        if self._trial_host_deaths is not None:
            feed.begin_trials(self._trial_host_deaths)
        return feed

    def _prepare(self, feed: Feed) -> None:
        if self._shared_status:
            feed.publish_status(partial(self._shared_status.update_queue, feed.slot))
            feed.has_supervisor()

    async def run(self) -> None:
        """Work until `stop()` is called or, with `burst`, until no job is ready.

        Raises ServerError if the server does not answer at the start, or while the worker stops. At any other time
        the worker retries for as long as it takes. Raises FormatTooNew if a newer release has written to a queue.

        Cancelling this call cancels the running jobs and hands them back.
        """
        async with self._scope:
            await self._work()

    async def _work(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._broken: asyncio.Future[None] = self._loop.create_future()
        self._runner = JobRunner(
            self._execution, self._inflight, self._isolation, self.settings,
            shared_status=self._shared_status, take_next=self._next_in_streak,
            finished=self._finished, go_on=self._go_on, broken=self._break,
        )  # fmt: skip
        self._cancelling = Cancelling(self._driver, self._inflight, self._runner, self._settle_soon)
        await self._driver.aio.run(self._feeds[0].queue.bindings.counts())
        await self._turn_order.check_shards()
        if not self._feeds[0].trial:
            await self._ticks.declare()
        opened = OpenFeeds(self._driver, self._cancelling, self._round_due.set, self._lease_lost, self._break)
        for feed in self._feeds:
            opened.open(feed)
        watch = self._turn_order.watch_shards(opened.open)
        work = map(asyncio.create_task, (self._serve(), self._ticks.renew(), watch))
        parts: list[asyncio.Future[None]] = [self._broken, *work]
        busy, name_of = lambda: any(feed.held for feed in self._feeds), self._runner.name_of
        watchdog = Watchdog(self._loop, self.settings.blocked_warning, busy=busy, name_of=name_of)
        threads: list[PeriodicThread] = [watchdog]
        if self.settings.max_memory is not None:
            threads.append(MemoryLimit(self._loop, self.settings.max_memory, self._retire))
        for thread in threads:
            thread.start()
        try:
            # All but `_serve` end only with an error that a retry would not fix, such as a missing permission.
            ended, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            for part in ended:
                part.result()
            await self._suspects.close(self._stop_deadline)
            self._has_left = True
        finally:
            self._suspects.kill()
            for thread in (*threads, *opened.heartbeats):
                thread.stop()
            self._stop_calls, self._stop_deadline = 2, 0.0  # what follows hands back and never retries
            self._hand_back(self._inflight.take_waiting())
            self._hand_back(self._inflight.take_running())
            remaining = [*parts, *opened.tasks, *self._slow_turns.values(), *self._cancelling.tasks]
            for task in remaining:
                task.cancel()
            await asyncio.gather(*remaining, self._runner.close(), self._ticks.close(), return_exceptions=True)
            if not self._has_left:
                await asyncio.gather(*map(self._leave, self._feeds))
            opened.close_listeners()

    async def _leave(self, feed: Feed) -> None:
        """End the incarnation after an error or a cancellation: settle finished jobs, hand back the others, deregister.

        So other workers can claim the jobs now, and no wake-up goes to this worker. If the server does not answer
        within `_LEAVING` seconds, the lease and the registration run out by themselves.
        """
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_LEAVING):
                while feed.must_send:
                    await self._turn(feed, 0)
                await self._turn(feed, 0, leave=True)

    def stop(self) -> None:
        """Stop gracefully: claim no more jobs, and let those that run finish, for at most `stop_timeout` seconds.

        A second call hands the running jobs back at once, without counting an attempt. Both calls return
        immediately; `run()` returns when the worker has stopped. Call it on the event loop's thread.
        """
        self._stop_calls += 1
        if self._stop_calls == 1:
            self._stop_deadline = time.monotonic() + self.settings.stop_timeout
            if self._inflight.running:
                log.info(
                    "stopping: %d jobs still run, for at most %.0f s; stop again to hand them back now",
                    len(self._inflight.running), self.settings.stop_timeout,
                )  # fmt: skip
            self._hand_back(self._inflight.take_waiting())
        elif self._stop_calls == 2:
            self._stop_deadline = 0.0
        self._suspects.stop()
        self._round_due.set()

    @property
    def _is_empty(self) -> bool:
        """Whether it holds no job, and has nothing to send."""
        return self._inflight.empty and not any(feed.must_send for feed in self._feeds)

    @property
    def _takes_no_jobs(self) -> bool:
        return self._retiring or self._stop_calls > 0

    def _retire(self, why: str) -> None:
        """Claim no more jobs, and end when those that run have finished. The supervisor starts the next process."""
        if self._takes_no_jobs:
            return
        log.info("%s: this process claims no more, and ends after %d running jobs", why, len(self._inflight.running))
        self._retiring = True
        self._hand_back(self._inflight.take_waiting())
        if self._shared_status:
            self._shared_status.report(RETIRING)
        self._round_due.set()

    def _break(self, error: BaseException) -> None:
        if not self._broken.done():
            self._broken.set_exception(error)

    # --- rounds ---

    async def _serve(self) -> None:
        while True:
            await self._round()
            if self._stop_calls and time.monotonic() >= self._stop_deadline:
                self._hand_back_running()
            if self._takes_no_jobs and self._is_empty:
                break
            if self.settings.burst and not self._takes_no_jobs and self._idle():
                if self._rechecked:
                    self.stop()
                self._rechecked = True
                for feed in self._feeds:  # the last job may have enqueued to a queue already found empty
                    feed.wake_at = 0.0
                continue
            if self._suspects.claims_are_blocked and self._is_empty:
                await self._suspects.worker_is_empty()
                continue
            if not self._can_claim():
                await self._sleep()
        last_turns = [self._turn(feed, 0, leave=True) for feed in self._feeds]
        for answer in await asyncio.gather(*last_turns, return_exceptions=True):
            if isinstance(answer, BaseException):
                raise answer

    async def _round(self) -> None:
        self._round_due.clear()
        self._hand_back(self._inflight.take_stalled())
        earlier_has_more, may_claim, patience = False, True, SLOW_TURN
        for feed, begins_queue in self._turn_order.next_round():
            if begins_queue:
                may_claim = not earlier_has_more
            room = self._room_for(feed) if may_claim else 0
            # A stopping worker deregisters as idle, so that wake-ups reach workers that can take a job.
            can_claim = room > 0 and self._inflight.should_claim
            if feed.must_send or (not feed.awake if self._takes_no_jobs else feed.wants_turn(can_claim)):
                await self._take_turn(feed, room, patience)
                if feed in self._slow_turns:
                    patience = NEXT_SLOW_TURN
            earlier_has_more |= feed.awake and feed not in self._slow_turns

    async def _take_turn(self, feed: Feed, want: int, patience: float) -> None:
        """Take a turn. With several queues, do not wait for a slow server: the other queues may be on other nodes."""
        if len(self._feeds) == 1:
            await self._turn(feed, want)
            return
        earlier = self._slow_turns.get(feed)
        turn = self._slow_turns[feed] = earlier or asyncio.create_task(self._turn(feed, want))
        await asyncio.wait([turn], timeout=0 if earlier else patience)
        if turn.done():
            del self._slow_turns[feed]
            turn.result()
        elif not earlier:
            turn.add_done_callback(lambda _: self._round_due.set())

    async def _turn(self, feed: Feed, want: int, *, leave: bool = False) -> None:
        turn, sent_at = await take_turn(
            self._driver, feed, want, leave, give_up=lambda: time.monotonic() >= self._stop_deadline
        )
        if not turn.alive:
            self._inflight.drop(feed)
        claims = [(feed, claim) for claim in feed.answered(turn, sent_at)]
        self._suspects.turn_was_answered(feed)
        if self._must_be_sole(claims):
            self.stop()
        if turn.ticks:
            self._ticks.serve(feed.queue, turn.ticks)
        if self._takes_no_jobs:  # stop() was called while the turn was unanswered
            self._hand_back(claims)
        elif feed.batch is not None:
            self._start_batch(feed, turn.claims)
        else:
            self._inflight.waiting.extend(claims)
            self._runner.start_waiting()
        if feed.to_settle:
            self._settle_soon()

    def _must_be_sole(self, claims: Sequence[tuple[Feed, Claim]]) -> bool:
        """Whether a suspect whose host has died was claimed by a trial process, beside which another one may run."""
        if self._is_sole or not any(feed.trial and claim.record.host_deaths for feed, claim in claims):
            return False
        if self._shared_status:
            self._shared_status.report(SOLE)
        return True

    @property
    def _room(self) -> int:
        """How many more jobs to claim."""
        room = 0 if self._takes_no_jobs or self._suspects.claims_are_blocked else self._inflight.room
        return room if self._jobs_left >= room else int(self._jobs_left)

    def _room_for(self, feed: Feed) -> int:
        room = self._room
        return room if feed.batch is None or feed.trial else min(room, 1) * self._inflight.room_for(feed.batch.size)

    def _can_claim(self) -> bool:
        """Whether the next round can begin at once: runners are free, and a queue may have more jobs."""
        if self._room <= 0 or not self._inflight.should_claim:
            return False
        return any(feed.awake and feed not in self._slow_turns and self._room_for(feed) > 0 for feed in self._feeds)

    async def _sleep(self) -> None:
        """Sleep until the next round: a wake-up, a settlement, a due time of a queue, a stall, or the stop deadline."""
        until = min((feed.tick_at if feed.awake else feed.wake_at for feed in self._feeds), default=float("inf"))
        if self._inflight.waiting:
            until = min(until, time.monotonic() + STALL)
        if not self._handed_back:
            until = min(until, self._stop_deadline)
        pause = until - time.monotonic()
        timer = self._loop.call_later(max(0.0, min(pause, _LONGEST_SLEEP)), self._round_due.set)
        await self._round_due.wait()
        timer.cancel()

    def _idle(self) -> bool:
        return self._is_empty and not any(feed.awake for feed in self._feeds) and not self._suspects.work_is_left

    # --- jobs ---

    def _next_in_streak(self) -> JobRun | None:
        """Start waiting jobs up to the first one that belongs into a streak, and return that one, if there is one."""
        while not self._takes_no_jobs and (next_ := self._inflight.take_next()) is not None:
            feed, claim = next_
            run = self._execution.prepare(claim, feed.queue.name)
            if isinstance(run, Settlement):
                self._refuse(feed, claim, run)
            elif not self._start(feed, run):
                return run
        return None

    def _refuse(self, feed: Feed, claim: Claim, settlement: Settlement) -> None:
        self._reports.add(JobContext.of(claim, feed.queue.name, ""), settlement)
        feed.to_settle.append(settlement)
        self._settle_soon()

    def _start(self, feed: Feed, run: JobRun) -> bool:
        """Start a job, or a batch. False: it belongs into a streak."""
        run.feed = feed
        self._inflight.start(run)
        self._reports.start(run)
        if self._runners_timer is None and not self._inflight.has_all_runners:
            self._runners_timer = self._loop.call_later(DOUBLING, self._add_runners)
        self._rechecked = False
        self._jobs_left -= len(run.members) or 1
        has_started = self._runner.start(run)
        if self._jobs_left <= 0:
            self._retire(f"{self.settings.max_jobs} jobs have started")
        return has_started

    def _start_batch(self, feed: Feed, claims: Sequence[Claim]) -> None:
        runs, refused = self._execution.prepare_batch(claims, feed.queue.name)
        for claim, settlement in refused:
            self._refuse(feed, claim, settlement)
        if runs:
            self._start(feed, batch_run(runs))

    def _add_runners(self) -> None:
        if not self._inflight.add_runners():
            self._runners_timer = self._loop.call_later(DOUBLING, self._add_runners)
        self._runner.start_waiting()
        self._round_due.set()

    def _finished(self, run: JobRun, settlement: Settlement | None) -> None:
        """A job has ended. `settlement` None: the worker had cancelled it."""
        if self._shared_status:
            for one in run.members or (run,):
                self._shared_status.job_ended(one.claim.token)
            self._shared_status.note_job_has_ended()
        if run.cancelled and settlement is not None:
            settlement = self._execution.cancelled(run)  # whatever its code has made of that
        if not self._inflight.finish(run) or settlement is None or run.feed is None:
            self._round_due.set()  # there is nothing to settle; but a runner is free again
            return
        if isinstance(run, BatchRun):
            self._settled(run.feed, run.members, run.settlements(settlement), run.started_at)
        else:
            self._settled(run.feed, (run,), (settlement,), run.started_at)

    def _settled(
        self, feed: Feed, runs: Sequence[JobRun], settlements: Sequence[Settlement], started_at: float
    ) -> None:
        feed.to_settle += settlements
        self._reports.add_all(runs, settlements, started_at)

    def _go_on(self) -> None:
        """Jobs have ended: start others, and settle these."""
        self._runner.start_waiting()
        self._settle_soon()

    def _settle_soon(self) -> None:
        """Begin the next round: at once if it can also claim jobs, else within `settle_within` seconds."""
        if self._can_claim():
            self._round_due.set()
        elif self._settle_timer is None:
            self._settle_timer = self._loop.call_later(self.settings.settle_within, self._settle_now)

    def _settle_now(self) -> None:
        self._settle_timer = None
        self._round_due.set()

    def _hand_back(self, claims: Sequence[tuple[Feed, Claim]]) -> None:
        for feed, claim in claims:
            feed.to_settle.append(Settlement(claim.token, b"", "release"))

    def _hand_back_running(self) -> None:
        """Hand back the running jobs, after a second `stop()` or when `stop_timeout` has passed."""
        self._handed_back = True
        running = self._inflight.take_running()
        if running:
            log.warning("handing back %d jobs that still run", len(running))
            self._round_due.set()
        self._hand_back(running)
        self._runner.cancel_all("the worker stops")

    # --- lost leases ---

    def _lease_lost(self, feed: Feed, incarnation: str) -> None:
        """The server refused a heartbeat. Make a turn due: when the server refuses it too, a new incarnation begins."""
        if feed.incarnation == incarnation:
            feed.wake_at = 0.0
            self._round_due.set()
