"""The supervisor runs N worker processes. It replaces a process that dies, and hands its jobs back at once.

    start ──▶ worker process ── stop ──▶ end
      ▲             │
      │             │ death
      │             ▼
      └─── hand back its jobs: those that ran in it are charged or become suspects, the others are not charged;
           the next process starts at once, or after a pause that grows

A worker process sends its own heartbeats, from a thread. While C code holds the GIL, that thread cannot run. The
supervisor then sends the heartbeats, but only if the process is not stopped and has used CPU since the last check. A
frozen process therefore loses its leases.

A worker process stops when its supervisor ends, which it notices through a pipe.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import Sequence

from penstock.errors import PenstockError
from penstock.jobs.claims import Ending
from penstock.jobs.job import Failure
from penstock.jobs.queue import Queue
from penstock.settings import WorkerSettings
from penstock.worker.parent_pipe import ParentPipe
from penstock.worker.processes import describe_exit, process_state
from penstock.worker.shared_status import SharedStatus
from penstock.worker.worker import App, queues_of

log = logging.getLogger("penstock.supervisor")

STATUS_VARIABLE = "PENSTOCK_SHARED_STATUS"
"""The environment variable in which a worker process finds the file descriptor of its SharedStatus."""

EXIT_USAGE = 2
"""The exit code of a worker process that would fail in the same way if started again. It is not replaced."""

_SHORT_LIFE = 10.0
"""Seconds. A process that dies sooner is replaced after a pause, which doubles each time."""

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 30.0

_KILL_AFTER = 5.0
"""Seconds beyond `stop_timeout` after which a process that has not stopped is killed."""


class Supervisor:
    """Runs `command` in `processes` processes until it is stopped."""

    def __init__(self, app: App, command: Sequence[str], processes: int, settings: WorkerSettings) -> None:
        self._app = app
        self._command = command
        self._processes = processes
        self._settings = settings
        self._queues = [app.queue(name) for name in queues_of(app, settings)]
        self._running: list[WorkerProcess] = []
        self._stop_calls = 0
        self._stopping = asyncio.Event()
        self._exit_code = 0

    async def run(self) -> int:
        """Run until all processes have stopped.

        Returns 0, or EXIT_USAGE if a process ended with that code before its first turn.
        """
        async with asyncio.TaskGroup() as group:
            for _ in range(self._processes):
                group.create_task(self._keep_running())
        return self._exit_code

    def stop(self) -> None:
        """The first call lets running jobs finish; the second one hands them back at once."""
        self._stop_calls += 1
        self._stopping.set()
        if self._stop_calls == 1:
            asyncio.get_running_loop().call_later(self._settings.stop_timeout + _KILL_AFTER, self._kill)
        for worker in self._running:
            worker.send(signal.SIGTERM)

    def _kill(self) -> None:
        for worker in self._running:
            worker.killed_by_supervisor = True
            worker.send(signal.SIGKILL)

    async def _keep_running(self) -> None:
        """Run one process, and replace it each time it dies."""
        pause = 0.0
        while not self._stop_calls:
            try:
                worker = await WorkerProcess.start(self._command, self._queues, self._settings.concurrency)
            except OSError as error:  # no memory, or no descriptors; the other processes continue
                pause = self._longer(pause)
                log.error("no new worker could be started, trying again in %.1f s: %s", pause, error)
                await self._pause(pause)
                continue
            self._running.append(worker)
            if self._stop_calls:  # stop() was called while the process started
                worker.send(signal.SIGTERM)
            heartbeats = asyncio.create_task(worker.send_heartbeats(self._app.settings.lease))
            started_at = time.monotonic()
            code = await worker.process.wait()
            self._running.remove(worker)
            heartbeats.cancel()
            # The exit code is not enough: a task can end its process with any code, even 0. The shared status shows
            # whether the process held jobs.
            held_jobs, took_a_turn = worker.held_jobs(), worker.took_a_turn()
            await worker.hand_back_jobs(within=self._app.settings.lease)
            worker.close()
            if code == EXIT_USAGE and not took_a_turn:
                self._exit_code = code
                self.stop()
            if self._stop_calls or (code == 0 and not held_jobs and self._settings.burst):
                return
            pause = 0.0 if time.monotonic() - started_at > _SHORT_LIFE else self._longer(pause)
            log.error("worker %d %s; a new one starts in %.1f s", worker.process.pid, worker.exit_description, pause)
            await self._pause(pause)

    def _longer(self, pause: float) -> float:
        return min(_LONGEST_PAUSE, pause * 2 or _FIRST_PAUSE)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)


class WorkerProcess:
    """One worker process, as its supervisor sees it."""

    def __init__(
        self, process: asyncio.subprocess.Process, status: SharedStatus, pipe: ParentPipe, queues: Sequence[Queue]
    ) -> None:
        self.process = process
        self._status = status
        self._pipe = pipe
        self._queues = queues
        self._cpu_ticks = 0
        self.killed_by_supervisor = False
        """Whether it was killed because it did not stop in time. Its jobs are then not charged."""

    @classmethod
    async def start(cls, command: Sequence[str], queues: Sequence[Queue], runners: int) -> WorkerProcess:
        """Raises OSError if there is no memory or no descriptor for another process."""
        status = SharedStatus.create(len(queues), runners)
        with contextlib.ExitStack() as on_error, ParentPipe() as pipe:
            on_error.callback(status.close)
            on_error.callback(pipe.close)
            # In a session of its own: Ctrl-C reaches the supervisor alone, which signals each process once.
            process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, start_new_session=True,
                pass_fds=(status.fd, pipe.child_end),
                env={**os.environ, **pipe.environment, STATUS_VARIABLE: str(status.fd)},
            )  # fmt: skip
            on_error.pop_all()
        return cls(process, status, pipe, queues)

    def send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def close(self) -> None:
        self._status.close()
        self._pipe.close()

    @property
    def exit_description(self) -> str:
        """How it ended, in words."""
        return describe_exit(self.process.returncode or 0)

    def took_a_turn(self) -> bool:
        return any(status.renewed_at for status in self._status.queue_statuses())

    def held_jobs(self) -> bool:
        return any(status.holds_jobs for status in self._status.queue_statuses())

    async def hand_back_jobs(self, within: float) -> None:
        """Hand back the jobs of the dead process, so that other workers can run them now.

        If exactly one job ran in the process, over all queues, that job is charged with a crash. If several ran, each
        becomes a suspect. If the server does not answer within `within` seconds, the jobs wait for the lease to expire.
        """
        running = self._status.running_jobs()
        alone = sum(map(len, running.values())) == 1
        verdict: Ending = "release" if self.killed_by_supervisor else "crash" if alone else "suspect"
        name = f"{socket.gethostname()}:{self.process.pid}"
        why = Failure(f"its worker process {self.exit_description}", "", name)
        for index, (queue, status) in enumerate(zip(self._queues, self._status.queue_statuses(), strict=True)):
            if not status.incarnation:
                continue
            try:
                work = queue.abandon(status.incarnation, running[index], verdict, why)
                await asyncio.wait_for(queue._driver.aio.run(work), within)
            except (PenstockError, TimeoutError) as error:
                log.warning(
                    "worker %d's jobs on queue %s wait until its lease expires: %s", self.process.pid, queue.name, error
                )

    async def send_heartbeats(self, lease: float) -> None:
        """Send heartbeats on behalf of a process whose own are late, as long as the process uses CPU."""
        while True:
            await asyncio.sleep(lease / 6)
            uses_cpu = self._uses_cpu()
            for queue, status in zip(self._queues, self._status.queue_statuses(), strict=True):
                if uses_cpu and status.holds_jobs and time.monotonic() - status.renewed_at > lease / 2:
                    with contextlib.suppress(PenstockError):
                        await queue._driver.aio.run(queue.bindings.heartbeat(status.incarnation, lease))

    def _uses_cpu(self) -> bool:
        """Whether the process can run and has used CPU since the last call. Always False except on Linux."""
        state = process_state(self.process.pid)
        if state is None:
            return False
        before, self._cpu_ticks = self._cpu_ticks, state.cpu_ticks
        return state.can_run and self._cpu_ticks > before
