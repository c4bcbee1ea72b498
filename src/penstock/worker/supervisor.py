"""The supervisor runs N worker processes. It replaces a process that dies, and hands its jobs back at once.

    start ──▶ worker process ── stop ──▶ end
      ▲             │      │
      │             │      └─── retires: it finishes its jobs, and the next process starts at once
      │             │ death
      │             ▼
      └─── hand back its jobs: those that ran in it are lost once more, the others are not;
           the next process starts at once or, if this one died before it ran a job, after a pause that grows.
           It begins slowly (see `Runs`), so that the next job that kills it harms few others

Jobs that were lost twice are suspects. Separate processes try them (see `trials.py`).

A worker process sends its own heartbeats, from a thread. While C code holds the GIL, that thread cannot run. The
supervisor then sends the heartbeats, but only if the process is not stopped and has used CPU since the last check. A
frozen process therefore loses its leases.

A worker process stops when its supervisor ends, which it notices through a pipe.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Sequence

from penstock.settings import WorkerSettings
from penstock.worker.app import App, queues_of, shards_of
from penstock.worker.child import WorkerProcess
from penstock.worker.shared_status import ASKED_TO_STOP, RETIRING, SUSPECTS
from penstock.worker.trials import VARIABLE as TRIAL_VARIABLE
from penstock.worker.trials import Trials

log = logging.getLogger("penstock.supervisor")

EXIT_USAGE = 2
"""The exit code of a worker process that would fail in the same way if started again. If a process ends with this code
before any process has taken a turn, the supervisor stops."""

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 30.0
"""Seconds. The longest pause before a process that died before it ran a job is replaced. Each pause doubles the last.

A process that a job has killed is replaced at once: that job is tried apart after its second loss."""

_LOOK_AGAIN = 0.05
"""Seconds between two checks whether all worker processes have ended, to make room for a trial."""

_KILL_AFTER = 5.0
"""Seconds beyond `stop_timeout`, or after the second stop, in which a process must have stopped. Then it is killed."""


class Supervisor:
    """Runs `command` in `processes` processes until it is stopped."""

    def __init__(self, app: App, command: Sequence[str], processes: int, settings: WorkerSettings) -> None:
        self._app = app
        self._command = command
        self._processes = processes
        self._settings = settings
        self._shards = shards_of(queues_of(app, settings))
        self._trials = Trials(
            command, {TRIAL_VARIABLE: "1"}, self._shards, settings, app.settings.lease, make_room=self._make_room
        )
        self._running: list[WorkerProcess] = []
        self._stop_calls = 0
        self._asked_to_stop = 0
        """How many processes an operator has stopped; they have no successors."""
        self._stopping = asyncio.Event()
        self._exit_code = 0
        self._has_served = False

    async def run(self) -> int:
        """Run until all processes have stopped.

        Returns 0, or EXIT_USAGE if a process ended with that code before any has taken a turn.
        """
        while True:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._processes):
                    group.create_task(self._keep_running(group))
            had_trials = self._trials.are_running
            await self._trials.wait()
            # With `burst` the processes end even while suspects are tried, and these may make other jobs ready.
            if self._stop_calls or not had_trials or self._asked_to_stop:
                return self._exit_code

    def stop(self) -> None:
        """The first call lets running jobs finish; the second one hands them back at once."""
        self._stop_calls += 1
        self._stopping.set()
        if self._stop_calls <= 2:
            patience = self._settings.stop_timeout if self._stop_calls == 1 else 0.0
            asyncio.get_running_loop().call_later(patience + _KILL_AFTER, self._kill)
        for worker in self._running:
            worker.stop(self._stop_calls)
        self._trials.stop()

    def _make_room(self) -> None:
        """Let the worker processes finish their jobs and end. They are started again after the trials."""
        log.warning("trial processes cannot start beside the worker processes: those end for the time of the trials")
        for worker in self._running:
            worker.stop(1)

    def _kill(self) -> None:
        self._trials.kill()
        for worker in self._running:
            worker.kill()

    async def _keep_running(self, group: asyncio.TaskGroup) -> None:
        """Run one process, and replace it each time it dies or retires."""
        pause, begins_slowly = 0.0, False
        while not self._stop_calls:
            if self._trials.needs_room:
                while self._running:  # the other processes still finish their jobs
                    await self._pause(_LOOK_AGAIN)
                await self._trials.run_alone()
            retiring, asked_to_stop = asyncio.Event(), asyncio.Event()
            try:
                worker = await self._start(retiring, asked_to_stop, begins_slowly)
            except OSError as error:  # no memory, or no descriptors; the other processes continue
                pause = self._longer(pause)
                log.error("no new worker could be started, trying again in %.1f s: %s", pause, error)
                await self._pause(pause)
                continue
            end = group.create_task(self._await_end(worker))
            retires = asyncio.create_task(retiring.wait())
            await asyncio.wait((end, retires), return_when=asyncio.FIRST_COMPLETED)
            retires.cancel()
            if retiring.is_set() and not end.done():
                log.info("worker %d retires: a new one starts", worker.process.pid)
                begins_slowly = False
                continue
            is_done, has_worked = await end
            if asked_to_stop.is_set():
                log.info("worker %d was asked to stop: no other one starts for it", worker.process.pid)
                self._asked_to_stop += 1
                return
            if self._stop_calls or is_done:
                return
            begins_slowly = has_worked and not retiring.is_set()
            if retiring.is_set():
                continue
            pause = 0.0 if has_worked else self._longer(pause)
            log.error("worker %d %s; a new one starts in %.1f s", worker.process.pid, worker.exit_description, pause)
            await self._pause(pause)

    async def _start(self, retiring: asyncio.Event, asked_to_stop: asyncio.Event, begins_slowly: bool) -> WorkerProcess:
        def report(what: bytes) -> None:
            if what == RETIRING:
                retiring.set()
            elif what == ASKED_TO_STOP:
                asked_to_stop.set()
            elif what == SUSPECTS:
                self._trials.suspects_wait()

        worker = await WorkerProcess.start(
            self._command, self._shards, self._settings.concurrency, report=report, begins_slowly=begins_slowly
        )
        self._running.append(worker)
        log.info("worker %s:%d runs", socket.gethostname(), worker.process.pid)
        if self._stop_calls:  # stop() was called while the process started
            worker.stop(self._stop_calls)
        worker.keep_alive(self._app.settings.lease)
        return worker

    async def _await_end(self, worker: WorkerProcess) -> tuple[bool, bool]:
        """Wait until the process has ended, and hand back its jobs.

        Returns two values: whether its work was done, so that it needs no successor; and whether it had run a job.
        """
        code = await worker.process.wait()
        self._running.remove(worker)
        # The exit code is not enough: a task can end its process with any code, even 0. The shared status shows
        # whether the process held jobs.
        is_done = code == 0 and self._settings.burst and not worker.held_jobs()
        has_worked, took_a_turn = worker.has_worked(), worker.took_a_turn()
        if await worker.hand_back_jobs(within=self._app.settings.lease):
            self._trials.suspects_wait()
        worker.close()
        self._has_served |= took_a_turn
        # If a process has served before, the command works: this one may lack a port, say, that another process has.
        if code == EXIT_USAGE and not self._has_served:
            self._exit_code = code
            self.stop()
        return is_done, has_worked

    def _longer(self, pause: float) -> float:
        return min(_LONGEST_PAUSE, pause * 2 or _FIRST_PAUSE)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)
