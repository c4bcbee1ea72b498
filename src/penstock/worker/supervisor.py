"""N worker processes, each started again when it dies, its jobs given back at once.

                 started                       died
    (none) ──────────────────▶ at work ────────────────────▶ mourned: what ran in it is charged or suspected,
      ▲                           │                            │      what did not is handed back
      │                           │ told to stop               │
      └───────────────────────────┴────────────────────────────┘ started again, at once or with growing pauses

A child's own thread beats for its leases. It cannot while C code holds the interpreter's lock; then the supervisor
beats for it, but only while the child is not stopped and has used CPU since the last look: a frozen one loses its
leases.
A child notices the end of its supervisor by a pipe, and stops.
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
from penstock.jobs.bindings import Ending
from penstock.jobs.job import Reason
from penstock.jobs.queue import Queue
from penstock.settings import WorkerSettings
from penstock.worker.board import Board
from penstock.worker.lifeline import Lifeline
from penstock.worker.processes import ending, look_at
from penstock.worker.worker import App, queues_of

log = logging.getLogger("penstock.supervisor")

BOARD = "PENSTOCK_BOARD"
"""The environment's name for the file descriptor of a child's board."""

USAGE = 2
"""The exit code of a child that no new start would help."""

_YOUNG = 10.0
"""A child that dies before this age in seconds is started again only after a pause."""

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 30.0
_GRACE = 5.0
"""Seconds beyond its own patience after which a child that does not stop is killed."""


class Supervisor:
    """Runs `command` in `processes` processes until it is told to stop."""

    def __init__(self, app: App, command: Sequence[str], processes: int, settings: WorkerSettings) -> None:
        self._app = app
        self._command = command
        self._processes = processes
        self._settings = settings
        self._queues = [app.queue(name) for name in queues_of(app, settings)]
        self._children: list[Child] = []
        self._stops = 0
        self._stopping = asyncio.Event()
        self._failed = 0

    async def run(self) -> int:
        """Returns 0, or the exit code of a child that cannot start for a reason that stays."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._processes):
                group.create_task(self._keep())
        return self._failed

    def stop(self) -> None:
        """Once: the children finish what they run. Again: they hand it back."""
        self._stops += 1
        self._stopping.set()
        if self._stops == 1:
            patience = self._settings.stop_timeout + _GRACE
            asyncio.get_running_loop().call_later(patience, self._kill)
        for child in self._children:
            child.send(signal.SIGTERM)

    def _kill(self) -> None:
        for child in self._children:
            child.blameless = True
            child.send(signal.SIGKILL)

    async def _keep(self) -> None:
        """One process, and its successors."""
        pause = 0.0
        while not self._stops:
            try:
                child = await Child.start(self._command, self._queues, self._settings.concurrency)
            except OSError as error:  # no memory, no descriptors: the others go on
                pause = self._longer(pause)
                log.error("no new worker could be started, trying again in %.1f s: %s", pause, error)
                await self._rest(pause)
                continue
            self._children.append(child)
            if self._stops:  # while it was on its way
                child.send(signal.SIGTERM)
            beating = asyncio.create_task(child.keep_alive(self._app.settings.lease))
            began = time.monotonic()
            code = await child.process.wait()
            self._children.remove(child)
            beating.cancel()
            # What it runs may end it with any exit code: its board tells how it stood.
            died, worked = child.held_jobs(), child.worked()
            await child.mourn(within=self._app.settings.lease)
            child.close()
            if code == USAGE and not worked:
                self._failed = code
                self.stop()
            if self._stops or (code == 0 and not died and self._settings.burst):
                return
            pause = 0.0 if time.monotonic() - began > _YOUNG else self._longer(pause)
            log.error("worker %d %s; a new one starts in %.1f s", child.process.pid, child.cause, pause)
            await self._rest(pause)

    def _longer(self, pause: float) -> float:
        return min(_LONGEST_PAUSE, pause * 2 or _FIRST_PAUSE)

    async def _rest(self, pause: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), pause)


class Child:
    """One worker process."""

    def __init__(
        self, process: asyncio.subprocess.Process, board: Board, lifeline: Lifeline, queues: Sequence[Queue]
    ) -> None:
        self.process = process
        self._board = board
        self._lifeline = lifeline
        self._queues = queues
        self._cpu = 0
        self.blameless = False
        """It was killed by us, for no fault of its jobs."""

    @classmethod
    async def start(cls, command: Sequence[str], queues: Sequence[Queue], runners: int) -> Child:
        board = Board.make(len(queues), runners)
        with contextlib.ExitStack() as failed, Lifeline() as lifeline:
            failed.callback(board.close)
            failed.callback(lifeline.cut)
            # In a session of its own: Ctrl-C reaches the supervisor alone, which tells the children once.
            process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, start_new_session=True,
                pass_fds=(board.fd, lifeline.theirs), env={**os.environ, **lifeline.environment, BOARD: str(board.fd)},
            )  # fmt: skip
            failed.pop_all()
        return cls(process, board, lifeline, queues)

    def send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def close(self) -> None:
        self._board.close()
        self._lifeline.cut()

    @property
    def cause(self) -> str:
        return ending(self.process.returncode or 0)

    def worked(self) -> bool:
        """It got as far as its first turn."""
        return any(shown.renewed for shown in self._board.shown())

    def held_jobs(self) -> bool:
        return any(shown.holds for shown in self._board.shown())

    async def mourn(self, within: float) -> None:
        """Give its jobs back. When the server does not answer `within` seconds, its leases have run out.

        All its queues are one process: what ran is charged only if it was one job in all of them.
        """
        running = self._board.running()
        alone = sum(map(len, running.values())) == 1
        verdict: Ending = "release" if self.blameless else "crash" if alone else "suspect"
        name = f"{socket.gethostname()}:{self.process.pid}"
        why = Reason(f"its worker process {self.cause}", "", name)
        for number, (queue, shown) in enumerate(zip(self._queues, self._board.shown(), strict=True)):
            if not shown.me:
                continue
            try:
                work = queue.abandon(shown.me, running[number], verdict, why)
                await asyncio.wait_for(queue._driver.aio.run(work), within)
            except (PenstockError, TimeoutError) as error:
                log.warning("worker %d's jobs on queue %s wait for its lease: %s", self.process.pid, queue.name, error)

    async def keep_alive(self, lease: float) -> None:
        """Beat for it while it works but cannot."""
        while True:
            await asyncio.sleep(lease / 6)
            works = self._works()
            for queue, shown in zip(self._queues, self._board.shown(), strict=True):
                if works and shown.holds and time.monotonic() - shown.renewed > lease / 2:
                    with contextlib.suppress(PenstockError):
                        await queue._driver.aio.run(queue.bindings.beat(shown.me, lease))

    def _works(self) -> bool:
        """It is not stopped, and has used CPU since this was asked last. Only Linux tells."""
        state = look_at(self.process.pid)
        if state is None:
            return False
        before, self._cpu = self._cpu, state.ticks
        return state.can_run and self._cpu > before
