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
import itertools
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from penstock.jobs.claims import Claim, Registration
from penstock.jobs.dependencies import ProcessLifetime
from penstock.jobs.release import Release
from penstock.jobs.shard import Shard
from penstock.settings import WorkerSettings
from penstock.worker.app import App, check_settings, queues_of, shards_of
from penstock.worker.batches import batch_of
from penstock.worker.cancelling import Cancelling
from penstock.worker.execution import Execution
from penstock.worker.feed import Feed
from penstock.worker.heartbeat import MemoryLimit, PeriodicThread, Watchdog
from penstock.worker.isolation import Isolation
from penstock.worker.job_log import RunReports
from penstock.worker.open_feeds import OpenFeeds
from penstock.worker.places import Places
from penstock.worker.runs import STALL, Runs
from penstock.worker.shared_status import ASKED_TO_STOP, RETIRING, SOLE, SharedStatus
from penstock.worker.suspects import SuspectWatch
from penstock.worker.ticks import TickServer
from penstock.worker.trials import command_for
from penstock.worker.turn_order import TurnOrder

log = logging.getLogger("penstock.worker")

T = TypeVar("T")

_SLOW_TURN = 0.5
"""Seconds that a round waits for the turn of one queue. Then it continues with the other queues."""

_NEXT_SLOW_TURN = 0.05
"""The wait for each further queue of a round in which a turn was slow: several queues may be on the silent node."""

_LONGEST_SLEEP = 3600.0

_MOST_CANCELLATIONS = 3
"""How often an action at a worker's end is tried if it is cancelled each time."""

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
        queues = queues_of(app, self.settings)
        check_settings(self.settings)
        isolated = self.settings.concurrency if self.settings.isolated is None else self.settings.isolated
        for definition in app.registry:
            definition.signature.check()
        tasks = [(one.name, one.signature.described) for one in app.registry]
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self.release = Release.of(tasks, self.settings.release)
        self._driver = app._driver
        self._lease, self._registry = app.settings.lease, app.registry
        self._shared_status: SharedStatus | None = None
        self._trial_host_deaths: int | None = None
        self._round_due = asyncio.Event()
        self._turn_order = TurnOrder(queues, app.settings.sleep, self._make_feed, strict=bool(self.settings.queues))
        self._feeds = self._turn_order.feeds
        self._turn_order.begin()
        names = {queue.name for queue in queues}
        needed = (
            one
            for definition in app.registry
            for one in definition.signature.dependencies.values()
            if definition.queue in names and not definition.isolate
        )
        self._lifetime = ProcessLifetime(app.middleware.lifecycle, needed)
        self._execution = Execution(
            app.registry, self.settings, app.settings.max_payload, self.name, self._lifetime, self.release.name,
            app.settings.seal,
        )  # fmt: skip
        self._isolation = Isolation(
            isolated,
            self._execution,
            app.registry,
            max_payload=app.settings.max_payload,
            worker=self.name,
            start_logging=start_logging,
        )
        reports = RunReports(self.name, app.middleware, self.settings.job_log_level)
        self._runs = Runs(self._execution, reports, self.settings, self._jobs_have_ended)
        self._suspects = SuspectWatch(
            self._feeds,
            shards_of(queues),
            self._turn,
            partial(command_for, app, self.settings, start_logging),
            self.settings,
        )
        self._ticks = TickServer(app, queues)
        self._slow_turns: dict[Feed, asyncio.Task[None]] = {}
        self._settle_timer: asyncio.TimerHandle | None = None
        self._rechecked_after = -1
        self._has_left = False
        self._owns_process = False
        """Whether the process has no other purpose than this worker, so that the worker may end it."""
        self._is_sole = True
        self._retiring = False
        self._quiet = False
        self._stop_calls = 0
        self._stop_deadline = float("inf")
        self._handed_back = False

    # --- start and stop ---

    def _share_status(self, status: SharedStatus) -> None:
        """Show the supervisor through `status` which jobs run here. Call it before `run()`."""
        self._shared_status = self._suspects.status = self._runs.status = status
        if status.begins_slowly:
            self._runs.begin_slowly()
        for feed in self._feeds:
            self._prepare(feed)

    def _try_suspects(self, host_deaths: int, is_sole: bool) -> None:
        """Run suspects, one at a time, and nothing else. Call it before `run()`, which ends when none waits.

        `is_sole`: no other trial runs on this host. A suspect whose host has died runs only in such a process,
        because if the host died again, that would also count against the suspect of another trial.
        """
        self._isolation.spawns_only = True
        self._is_sole = is_sole
        self._trial_host_deaths = host_deaths
        for feed in self._feeds:
            feed.begin_trials(host_deaths)

    def _make_feed(self, shard: Shard, slot: int) -> Feed:
        registration = Registration(self.name, self.settings.concurrency, release=self.release)
        batch = batch_of(self._registry, shard.name)
        feed = Feed(
            shard, self._lease, 0.0, registration, slot, batch, burst=self.settings.burst, round_due=self._round_due
        )
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
        async with self._lifetime:
            await self._work()

    async def _work(self) -> None:
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        self._runs.begin(task)
        self._places = Places(self._runs, self._execution, self._isolation, self.settings)
        self._cancelling = Cancelling(self._driver, self._runs, self._places, self._was_asked)
        await self._driver.aio.run(self._feeds[0].shard.bindings.counts())
        await self._turn_order.check_shards()
        if not self._feeds[0].trial:
            await self._ticks.declare()
        opened = OpenFeeds(self._driver, self._cancelling)
        for feed in self._feeds:
            opened.open(feed)
        watch = self._turn_order.watch_shards(opened.open)
        work = [asyncio.create_task(one) for one in (self._serve(), self._ticks.renew(), watch)]
        parts: list[asyncio.Future[None]] = [self._places.broken, opened.broken, *work]
        threads: list[PeriodicThread] = [Watchdog(self._loop, self.settings.blocked_warning, self._runs, self._places)]
        if self.settings.max_memory is not None:
            threads.append(MemoryLimit(self._loop, self.settings.max_memory, self._retire))
        for thread in threads:
            thread.start()
        leaves_jobs_running = program_ends = False
        try:
            # All but `_serve` end only with an error that a retry would not fix, such as a missing permission.
            ended, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            for part in ended:
                part.result()
            await self._suspects.close(self._stop_deadline)
            self._has_left = True
        except asyncio.CancelledError as error:
            # Under a supervisor, only a job can cancel the worker. The supervisor then hands back the running jobs.
            leaves_jobs_running = self._shared_status is not None
            program_ends = all(task.cancelling() for task in work)
            if not leaves_jobs_running and _may_be_by_a_job(error.__context__):
                self._runs.lose_running("the program ended, perhaps because of a job")
            raise
        finally:
            self._suspects.kill()
            for thread in (*threads, *opened.heartbeats):
                thread.stop()
            self._stop_calls, self._stop_deadline = 2, 0.0  # what follows hands back and never retries
            self._runs.close()
            opened.close_listeners()
            if not leaves_jobs_running:
                self._runs.hand_back_running()
            await self._end([*parts, *self._slow_turns.values(), *self._cancelling.tasks])
            if program_ends:  # this worker opened connections after the program had cancelled all tasks
                await self._driver.aio.aclose()

    async def _end(self, remaining: Sequence[asyncio.Future[None]]) -> None:
        for part in remaining:
            part.cancel()
        await _despite_cancellation(lambda: asyncio.gather(*remaining, self._ticks.close(), return_exceptions=True))
        jobs = await _despite_cancellation(self._places.close) or ()
        if not self._has_left:
            leaving = [_despite_cancellation(partial(self._leave, feed)) for feed in self._feeds]
            with contextlib.suppress(asyncio.CancelledError):  # raised when all have left
                await asyncio.gather(*leaving)
        if jobs:
            log.warning(
                "%s ignored the cancellation and still runs, though it was handed back: let CancelledError pass",
                ", ".join(itertools.islice(jobs, 3)),
            )
            if self._owns_process:  # the end of the event loop would wait for these jobs
                logging.shutdown()
                os._exit(0 if self._has_left else 1)

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
            if self._runs.running:
                log.info(
                    "stopping; running jobs: %d, for at most %.0f s; stop again to hand them back now",
                    len(self._runs.running),
                    self.settings.stop_timeout,
                )
            self._runs.close()
        elif self._stop_calls == 2:
            self._stop_deadline = 0.0
        self._suspects.stop()
        self._round_due.set()

    def _was_asked(self, word: bytes) -> None:
        """An operator has asked this worker to claim no more jobs (`quiet`), or to `stop`. May be called repeatedly."""
        if self._stop_calls or (word == b"quiet" and (self._quiet or self._retiring)):
            return  # a retiring process claims no more, and ends, because another one may have taken its place
        if word == b"stop" or self.settings.burst:
            log.info("asked to stop")
            if self._shared_status:
                self._shared_status.report(ASKED_TO_STOP)
            self.stop()
            return
        log.info("asked to be quiet: claiming no more; running jobs: %d", len(self._runs.running))
        self._quiet = True
        self._runs.close()
        self._suspects.stop()
        for feed in self._feeds:
            feed.is_quiet = True
        self._round_due.set()

    @property
    def _stays(self) -> bool:
        """Whether the worker stays although no further job starts here."""
        return self._quiet and not self._stop_calls

    @property
    def _is_empty(self) -> bool:
        """Whether the worker holds no job and has nothing to send."""
        return self._runs.empty and not any(feed.must_send for feed in self._feeds)

    def _retire(self, why: str) -> None:
        """Claim no more jobs, and end when those that run have finished. The supervisor starts the next process."""
        if self._retiring or self._stop_calls or self._quiet:
            return
        log.info("%s: this process claims no more, and ends after %d running jobs", why, len(self._runs.running))
        self._retiring = True
        self._runs.close()
        if self._shared_status:
            self._shared_status.report(RETIRING)
        self._round_due.set()

    # --- rounds ---

    async def _serve(self) -> None:
        while True:
            await self._round()
            if self._stop_calls and time.monotonic() >= self._stop_deadline:
                self._hand_back_running()
            if self._runs.is_closed and not self._stays:
                self._retire(f"{self._runs.started} jobs have started")
                if self._is_empty:
                    break
            elif self.settings.burst and self._idle():
                if self._rechecked_after == self._runs.started:
                    self.stop()
                self._rechecked_after = self._runs.started
                for feed in self._feeds:  # the last job may have enqueued to a queue already found empty
                    feed.look_again()
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
        self._runs.hand_back_stalled()
        earlier_has_more, may_claim, patience = False, True, _SLOW_TURN
        for feed, begins_queue in [*self._turn_order.in_order()]:  # a turn may change the order
            if begins_queue:
                may_claim = not earlier_has_more
            room = self._room_for(feed) if may_claim else 0
            # A stopping worker deregisters as idle, so that wake-ups reach workers that can take a job.
            can_claim = room > 0 and self._runs.should_claim
            if self._runs.is_closed:  # a quiet worker stays registered
                is_due = not feed.awake or (self._stays and feed.wants_turn(False))
            else:
                is_due = feed.wants_turn(can_claim)
            if feed.must_send or is_due:
                await self._take_turn(feed, room, patience)
                if feed in self._slow_turns:
                    patience = _NEXT_SLOW_TURN
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
        turn = await feed.take_turn(want, leave=leave, give_up=lambda: time.monotonic() >= self._stop_deadline)
        if not turn.alive:
            self._runs.drop(feed)
        self._suspects.turn_was_answered(feed)
        if self._must_be_sole(feed, turn.claims):
            self.stop()
        self._ticks.serve(feed.shard, turn)
        if turn.claims:
            self._turn_order.has_given_jobs(feed)
        self._runs.add(feed, turn.claims)
        self._places.fill(later=self._can_claim())  # the next turn is sent first, so that the server need not wait
        if feed.to_settle:
            self._settle_soon()

    def _must_be_sole(self, feed: Feed, claims: Sequence[Claim]) -> bool:
        """Whether this trial process claimed a suspect whose host has died, though another trial may run meanwhile."""
        if self._is_sole or not feed.trial or not any(claim.record.host_deaths for claim in claims):
            return False
        if self._shared_status:
            self._shared_status.report(SOLE)
        return True

    def _room_for(self, feed: Feed) -> int:
        return 0 if self._suspects.claims_are_blocked else self._runs.room_for(feed)

    def _can_claim(self) -> bool:
        """Whether the next round can begin at once: runners are free, and a queue may have more jobs."""
        return self._runs.should_claim and self._turn_order.claims_at_once(self._slow_turns, self._room_for)

    async def _sleep(self) -> None:
        """Sleep until the next round: a wake-up, a settlement, a due time of a queue, a stall, or the stop deadline."""
        until = min((feed.tick_at if feed.awake else feed.wake_at for feed in self._feeds), default=float("inf"))
        if self._runs.has_waiting:
            until = min(until, time.monotonic() + STALL)
        if self._stays:
            until = min(feed.wake_at for feed in self._feeds)
        if not self._handed_back:
            until = min(until, self._stop_deadline)
        pause = until - time.monotonic()
        timer = self._loop.call_later(max(0.0, min(pause, _LONGEST_SLEEP)), self._round_due.set)
        await self._round_due.wait()
        timer.cancel()

    def _idle(self) -> bool:
        return self._is_empty and not any(feed.awake for feed in self._feeds) and not self._suspects.work_is_left

    def _jobs_have_ended(self) -> None:
        """Start waiting jobs, and have the jobs that ended settled soon."""
        self._places.fill()
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

    def _hand_back_running(self) -> None:
        """Hand back the running jobs, after a second `stop()` or when `stop_timeout` has passed."""
        self._handed_back = True
        handed_back = self._runs.hand_back_running()
        if handed_back:
            log.warning("handing back jobs that still run: %d", handed_back)
            self._round_due.set()
        self._places.cancel_all("the worker stops")


async def _despite_cancellation(action: Callable[[], Awaitable[T]]) -> T | None:
    """Run an action, and again if it is cancelled: a program that is ending may cancel all asyncio tasks twice."""
    for _ in range(_MOST_CANCELLATIONS):
        with contextlib.suppress(asyncio.CancelledError):
            return await action()
    return None


def _may_be_by_a_job(error: BaseException | None) -> bool:
    """Whether the error that ends the program may come from a job.

    asyncio lets SystemExit and KeyboardInterrupt of any asyncio task end the loop at once, and so does `loop.stop()`.
    After Ctrl-C `asyncio.run` raises KeyboardInterrupt only when the main coroutine has been cancelled.
    """
    if isinstance(error, KeyboardInterrupt):
        return not isinstance(error.__context__, asyncio.CancelledError)
    return isinstance(error, SystemExit) or (isinstance(error, RuntimeError) and "loop stopped" in str(error))
