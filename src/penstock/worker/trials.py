"""Trial processes: fresh worker processes, each of which runs one suspect at a time and nothing else.

    a suspect waits ──▶ start a process ──▶ it runs suspects until none waits ──▶ it ends
                               ▲                      │
                               └── its jobs return ◀──┘ a suspect killed it: that job is charged with a crash

A supervisor has at most `trials` such processes, for all its queues. While it tries a suspect whose host died in an
earlier trial, it has only one: if the host died again, that would also count against the suspect of another trial. A
worker without a supervisor starts them itself, if it sees a suspect that has waited for the time of a lease.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import math
import os
import pickle
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from importlib import import_module
from typing import Final, TypeAlias

from penstock.jobs.shard import Shard
from penstock.settings import WorkerSettings
from penstock.worker.app import App
from penstock.worker.child import WorkerProcess
from penstock.worker.shared_status import SOLE, SUSPECTS

log = logging.getLogger("penstock.supervisor")

VARIABLE: Final = "PENSTOCK_TRIAL"
"""The environment variable that makes a worker process a trial process."""

_FIRST_PAUSE = 0.5
_BETWEEN_ROOMS = 600.0
"""Seconds after which worker processes may be stopped again to make room for trials."""

_LONGEST_PAUSE = 30.0
"""Seconds. The longest pause after a trial process that died before its first turn. Each pause doubles the last."""

_PROGRAM = "import sys; sys.path[:] = {path!r}; from penstock.worker.trial_process import main; main()"


TrialCommand: TypeAlias = tuple[list[str], dict[str, str]]
"""The words of a command, and further variables of its environment."""


def trial_settings(settings: WorkerSettings) -> WorkerSettings:
    """The settings of a trial process of a worker with these settings."""
    return replace(settings, concurrency=1, isolated=1, prefetch=0.0, burst=True, max_jobs=None, max_memory=None)


def name_of_app(app: App) -> str | None:
    """`module:name`, from which another process can import this very app. None if there is no such name."""
    for definition in app.registry:
        module = sys.modules.get(definition.import_path[0]) if definition.import_path else None
        if module is None or module.__name__ == "__main__" or module.__spec__ is None:
            continue
        for name, value in vars(module).items():
            if value is app:
                return f"{module.__name__}:{name}"
    return None


def load(name: str) -> App:
    """Import the app that `name_of_app` has named."""
    module, _, attribute = name.partition(":")
    found: App = getattr(import_module(module), attribute)
    return found


def command_for(app: App, settings: WorkerSettings, start_logging: Callable[[], None] | None) -> TrialCommand | None:
    """The command of a trial process; None if the app cannot be imported by name."""
    name = name_of_app(app)
    if name is None:
        return None
    logs = base64.b64encode(pickle.dumps(start_logging)).decode()
    text = json.dumps({"app": name, "settings": asdict(settings), "logging": logs})
    return [sys.executable, "-c", _PROGRAM.format(path=[os.path.abspath(path) for path in sys.path])], {VARIABLE: text}


class Trials:
    """Starts trial processes when suspects wait, and hands back their jobs when they die."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        shards: Sequence[Shard],
        settings: WorkerSettings,
        lease: float,
        *,
        ended: Callable[[], None] = lambda: None,
        make_room: Callable[[], None] | None = None,
    ) -> None:
        """
        ended      called on the loop after the end of each process
        make_room  called when processes cannot start, perhaps because a worker process has what they need, like a port
        """
        self._make_room = make_room
        self.needs_room = False
        """Whether the processes can start only while no worker process runs: call `run_alone` then."""
        self._is_alone = False
        self._was_alone_at = -math.inf
        self._room = asyncio.Lock()
        self._notify_end = ended
        self._command = command
        self._environment = environment
        self._shards = shards
        self._settings = settings
        self._lease = lease
        self._running: list[WorkerProcess] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._asked_again = False
        self._next_is_sole = self._has_sole = False
        self._pause = 0.0
        self._stop_calls = 0

    @property
    def are_running(self) -> bool:
        return bool(self._tasks)

    def suspects_wait(self) -> None:
        """Start a process, unless `trials` of them run, or one of them is about to claim its first suspect."""
        if self._stop_calls or (self.needs_room and not self._is_alone):
            return
        is_starting = len(self._tasks) > len(self._running) or not all(one.took_a_turn() for one in self._running)
        has_one_only = self._is_alone or self._has_sole or self._next_is_sole
        if is_starting or len(self._tasks) >= (1 if has_one_only else self._settings.trials):
            self._asked_again = True
            return
        self._asked_again = False
        self._has_sole, self._next_is_sole = self._next_is_sole, False
        task = asyncio.get_running_loop().create_task(self._run())
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a trial process could not be watched: %s", error)
        if self._asked_again or self._next_is_sole:
            self.suspects_wait()
        self._notify_end()

    async def _run(self) -> None:
        if self._pause:
            await asyncio.sleep(self._pause)
        try:
            process = await WorkerProcess.start(
                self._command,
                self._shards,
                1,
                report=self._report,
                environment=self._environment,
                is_sole_trial=self._has_sole,
            )
        except OSError as error:
            self._pause_longer()
            log.error("no trial process could be started, the next try is in %.1f s: %s", self._pause, error)
            self._asked_again = True
            return
        self._running.append(process)
        if self._stop_calls:
            process.stop(self._stop_calls)
        process.keep_alive(self._lease)
        began = time.monotonic()
        code = await process.process.wait()
        took_a_turn = process.took_a_turn()
        self._running.remove(process)
        self._asked_again = await process.hand_back_jobs(within=self._lease)
        process.close()
        if took_a_turn or self._stop_calls:
            self._pause = 0.0
            if code and not self._stop_calls:
                log.warning("trial process %d %s", process.process.pid, process.exit_description)
        else:
            self._pause_longer()
            log.error(
                "trial process %d %s after %.1f s, before it could try a job; the next one starts in %.1f s",
                process.process.pid,
                process.exit_description,
                time.monotonic() - began,
                self._pause,
            )
            may_need_room = self._pause > _FIRST_PAUSE and time.monotonic() - self._was_alone_at > _BETWEEN_ROOMS
            if may_need_room and not self._is_alone and self._make_room is not None:
                self.needs_room = True
                self._make_room()
            self._asked_again = not self.needs_room

    async def run_alone(self) -> None:
        """Run processes until no suspect waits, while no worker process runs. Give up if even then none can start."""
        async with self._room:
            if not self.needs_room:
                return
            self._is_alone, self._pause = True, 0.0
            self.suspects_wait()
            await self.wait()
            self._is_alone = self.needs_room = False
            self._was_alone_at = time.monotonic()

    def _pause_longer(self) -> None:
        self._pause = min(_LONGEST_PAUSE, self._pause * 2 or _FIRST_PAUSE)

    def _report(self, what: bytes) -> None:
        if what == SOLE:
            self._next_is_sole = True
        elif what == SUSPECTS:
            self.suspects_wait()

    def stop(self) -> None:
        """Start no more processes. The first call lets running jobs finish, the second hands them back."""
        self._stop_calls += 1
        for process in self._running:
            process.stop(self._stop_calls)

    def kill(self) -> None:
        for process in self._running:
            process.kill()

    async def wait(self, deadline: float = math.inf) -> None:
        """Wait until no process is left. Those left at `deadline`, by `time.monotonic()`, are killed."""
        while self._tasks:
            left = deadline - time.monotonic()
            if left <= 0:
                self.kill()
            await asyncio.wait(self._tasks, timeout=left if 0 < left < math.inf else None)
