"""Runs jobs in processes of their own: the worker's side. The other side is `forkserver.py`.

For each run the worker asks the fork server for a child, sends it the call, and receives the settlement. In every case
the child is dead before the run is over: it is killed after its answer, at its timeout, or when the run is cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from multiprocessing import spawn
from pathlib import Path
from typing import Any

import msgspec

from penstock.errors import ConfigurationError
from penstock.jobs.claims import Settlement
from penstock.jobs.definition import Definition
from penstock.jobs.notes import decode_notes
from penstock.worker import forkserver
from penstock.worker.execution import Execution
from penstock.worker.forkserver import (
    BORN,
    COMMAND,
    FORK,
    KILL,
    NOT_FORKED,
    READY,
    REPORT,
    Preparation,
    RunRequest,
)
from penstock.worker.job_channel import CHUNK, LENGTH
from penstock.worker.processes import describe_exit
from penstock.worker.run import JobRun
from penstock.worker.run_channel import RunChannel
from penstock.worker.spawned import SpawnedProcess

log = logging.getLogger("penstock.worker")

_IMPORT_LIMIT = 60.0
"""Seconds that the import of the tasks' modules may take."""

_BIRTH_LIMIT = 10.0
"""Seconds within which the fork server must fork a child, and the child must begin its run. A child may hang before its
run if a module has registered an after-fork function that blocks."""

_SERVER_PAUSE = 60.0
"""Seconds after a failure of the fork server until it is started again."""

_answer_decoder: msgspec.msgpack.Decoder[Settlement | str] = msgspec.msgpack.Decoder(Settlement | str)
_PROGRAM = """\
import sys; sys.path.insert(0, {root!r}); from penstock.worker.forkserver import serve; serve({control}, {worker})"""


class Isolation:
    """Runs jobs in processes of their own, at most `size` at a time. Further runs wait until one of these ends.

    The first run starts the fork server, which imports the modules of all `tasks` that can be isolated. It
    takes over the worker's path, folder and arguments, and calls `start_logging` before the imports. `close()` ends
    the fork server and every run.
    """

    def __init__(
        self,
        size: int,
        execution: Execution,
        tasks: Iterable[Definition],
        *,
        max_payload: int,
        worker: str,
        start_logging: Callable[[], None] | None = None,
    ) -> None:
        """Raises ConfigurationError for a task with isolate=True that another process could not import, and for a
        `start_logging` that cannot be pickled.
        """
        if forkserver.importing:
            raise ConfigurationError(
                'importing the tasks starts a worker: put the code that starts it under `if __name__ == "__main__":`'
            )
        self._tasks = list(tasks)
        for definition in self._tasks:
            if definition.isolate and not self.can_isolate(definition):
                raise ConfigurationError(
                    f"task {definition.name}: isolate=True, but another process could not find it: "
                    f"{definition.location} must be the task itself, as @app.task makes it, in a module that can be "
                    "imported (not a package's __main__.py, and not an interactive session)"
                )
        try:
            pickle.dumps(start_logging)
        except Exception as error:
            raise ConfigurationError(
                f"start_logging={start_logging!r}: give a function at the top of a module, or a partial of one: {error}"
            ) from error
        self._execution = execution
        self._max_payload = max_payload
        self._worker = worker
        self._start_logging = start_logging
        self._places = asyncio.Semaphore(size)
        self.spawns_only = False
        """Whether every job gets a process that is started afresh, as in a trial process."""
        self._no_server_until = 0.0
        self._reported: set[str] = set()
        self._server: ForkServerClient | None = None

    @staticmethod
    def can_isolate(definition: Definition) -> bool:
        """Whether another process that imports the task's module would find this very task."""
        where = definition.import_path
        if where is None or not hasattr(os, "fork"):
            return False
        module, name = where
        if module == "__main__" and not _main_module():
            return False
        found = forkserver.find_task(sys.modules.get(module), name)
        return found is not None and found.name == definition.name

    async def run(self, run: JobRun) -> Settlement:
        """Run a job in a process of its own. If this call is cancelled, the process is killed. Raises no error.

        The timeout counts from when the run begins. If the run times out, its task's retry policy decides what follows.
        If the process ends without an answer, the run has crashed or, if the fork server ended with it, is lost. If the
        fork server cannot start, import the task's module or answer, the job runs in a process that is started afresh,
        and this failure is not charged to the job.
        """
        async with self._places:
            if not self.spawns_only:
                settlement = await self._run_forked(run)
                if settlement is not None:
                    return settlement
            return await self._run_spawned(run)

    async def _run_forked(self, run: JobRun) -> Settlement | None:
        """Run a job in a child of the fork server. Returns None if the job could not begin to run there."""
        if time.monotonic() < self._no_server_until:
            return None
        try:
            child = (await self._ready_server()).fork()
        except (OSError, RuntimeError) as error:
            self._give_up_server(str(error))
            return None
        child.on_note = partial(_pass_on, run)
        try:
            if not await self._has_begun(child, run):
                return None
            async with asyncio.timeout(run.definition.timeout):
                answer = await child.answer()
                # If there is no answer, the process has ended or is about to.
                exit_code = await child.wait() if answer is None else None
        except TimeoutError:
            return self._execution.timed_out(run)
        finally:
            await child.kill()
        if answer is None:
            if exit_code is None:
                return self._execution.lost(run, "its process ended together with the fork server")
            return self._execution.crashed(run, f"its process {describe_exit(exit_code)}")
        settlement = self._settlement(run, answer)
        if isinstance(settlement, str):  # the fork server could not import the module of this task
            if run.definition.import_path and run.definition.import_path[0] == "__main__":
                # A process that is started afresh would run the whole program again for each job.
                return self._execution.failed(run, RuntimeError(settlement))
            self._report_once(settlement)
            return None
        return settlement

    async def _has_begun(self, child: IsolatedProcess, run: JobRun) -> bool:
        """Have a child of the fork server begin the run. Returns False, and reports why, if it did not."""
        try:
            async with asyncio.timeout(_BIRTH_LIMIT):
                if await child.begin(self._request(run)):
                    return True
                code = await child.wait()
        except TimeoutError:
            if child.pid:
                self._give_up_server(f"a forked process has not begun to run within {_BIRTH_LIMIT:.0f} s")
            else:
                self._give_up_server(f"the fork server started no process within {_BIRTH_LIMIT:.0f} s")
                if self._server is not None:
                    self._server.close()
            return False
        if code is None or code == NOT_FORKED:
            self._give_up_server("the fork server started no process")
        else:
            self._report_once(f"a forked process {describe_exit(code)} before it began to run")
        return False

    async def _run_spawned(self, run: JobRun) -> Settlement:
        """Run a job in a process that is started afresh. Its timeout counts from when its module is loaded."""
        try:
            process = await SpawnedProcess.start()
        except OSError as error:
            return self._execution.could_not_start(run, error)
        process.on_note = partial(_pass_on, run)
        limit: asyncio.Timeout | None = None
        try:
            async with asyncio.timeout(_IMPORT_LIMIT):
                if not await process.begin(self._preparation(), self._request(run)):
                    code = await process.wait()
                    why = f"a process of its own ended with exit code {code} while it loaded the task's module"
                    return self._execution.unavailable(run, why)
            async with asyncio.timeout(run.definition.timeout) as limit:
                answer = await process.answer()
                exit_code = await process.wait() if answer is None else None
        except TimeoutError:
            if limit is None:
                return self._execution.unavailable(run, f"its module was not loaded within {_IMPORT_LIMIT:.0f} s")
            return self._execution.timed_out(run)
        finally:
            await process.kill()
        if answer is None:
            return self._execution.crashed(run, f"its process {describe_exit(exit_code or 0)}")
        settlement = self._settlement(run, answer)
        if isinstance(settlement, str):  # no other process can import the task's module
            return self._execution.failed(run, RuntimeError(settlement))
        return settlement

    def _give_up_server(self, why: str) -> None:
        """Start a process for each job for a while, because the fork server has failed."""
        self._no_server_until = time.monotonic() + _SERVER_PAUSE
        self._report_once(why)

    def _report_once(self, why: str) -> None:
        if why not in self._reported:
            self._reported.add(why)
            log.warning("isolated jobs run in processes that are started one by one, which is slower: %s", why)

    def _request(self, run: JobRun) -> bytes:
        where, claim = run.definition.import_path, run.claim
        assert where is not None
        request = RunRequest(
            *where,
            claim.token,
            claim.record.body,
            run.queue,
            self._max_payload,
            self._worker,
            run.incarnation,
            run.sole_task != "",
        )
        return msgspec.msgpack.encode(request)

    def _settlement(self, run: JobRun, answer: bytes) -> Settlement | str:
        """Decode an answer. A text is the reason why the process could not find the task."""
        try:
            return _answer_decoder.decode(answer)
        except msgspec.DecodeError as error:
            return self._execution.crashed(run, f"its process answered with damaged bytes: {error}")

    async def _ready_server(self) -> ForkServerClient:
        if self._server is None or self._server.gone:
            self._server = ForkServerClient(self._preparation())
        await self._server.ready()
        return self._server

    def _preparation(self) -> bytes:
        tasks = [d.import_path for d in self._tasks if d.import_path is not None and self.can_isolate(d)]
        main = _main_module() if any(module == "__main__" for module, _ in tasks) else {}
        data: dict[str, Any] = spawn.get_preparation_data("penstock")
        shared = {key: data[key] for key in ("sys_path", "sys_argv", "orig_dir", "dir")}
        return pickle.dumps(Preparation(shared | main, tasks, self._start_logging))

    def close(self) -> None:
        """Kill the running children, and end the fork server."""
        if self._server is not None:
            self._server.close()


def _pass_on(run: JobRun, note: bytes) -> None:
    """Keep a report of an isolated job, or a chunk that it emits, until its worker takes the next turn."""
    if note[:1] == CHUNK:
        run.emit(note[1:])
    else:
        progress, *lines = decode_notes(note[1:])
        for line in lines or (None,):
            run.note(progress, line)


def _main_module() -> dict[str, Any]:
    """The data from which multiprocessing would load the main module in another process. Empty if it could not."""
    data: dict[str, Any] = spawn.get_preparation_data("penstock")
    name, path = data.get("init_main_from_name", ""), data.get("init_main_from_path", "")
    if name and not name.endswith("__main__"):
        return {"init_main_from_name": name}
    return {"init_main_from_path": path} if not name and os.path.isfile(path) else {}


def _start(control: int) -> subprocess.Popen[bytes]:
    """Start the fork server in a session of its own, so that Ctrl-C in a terminal reaches the worker alone.

    It inherits the control socket and no other file.
    """
    root = str(Path(forkserver.__file__).parents[2])
    # Where the standard streams are closed, the socket may have got the number of one of them.
    passed = fcntl.fcntl(control, fcntl.F_DUPFD_CLOEXEC, 3)
    try:
        program = _PROGRAM.format(root=root, control=passed, worker=os.getpid())
        flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        command = [sys.executable, *flags, "-c", program]
        return subprocess.Popen(command, pass_fds=[passed], stdin=subprocess.DEVNULL, start_new_session=True)
    finally:
        os.close(passed)


class ForkServerClient:
    """Starts a fork server and talks to it."""

    def __init__(self, preparation: bytes) -> None:
        self._loop = asyncio.get_running_loop()
        self._children: dict[int, IsolatedProcess] = {}
        self._forks = 0
        self._started_at = time.monotonic()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._reports = bytearray()
        self.gone = False
        self._control, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = _start(theirs.fileno())
        except OSError:
            self._control.close()
            raise
        with contextlib.suppress(OSError):  # if it has died already, `_read_reports` will notice
            self._control.sendall(LENGTH.pack(len(preparation)) + preparation)
        self._control.setblocking(False)
        self._loop.add_reader(self._control, self._read_reports)

    async def ready(self) -> None:
        """Wait until the modules are loaded. Raises RuntimeError if that failed."""
        left = self._started_at + _IMPORT_LIMIT - time.monotonic()
        await asyncio.wait([self._ready], timeout=max(0.0, left))
        if not self._ready.done():
            self.close()
            raise RuntimeError(f"the fork server did not load the tasks' modules within {_IMPORT_LIMIT:.0f} s")
        if self.gone:
            raise RuntimeError("the fork server ended while it loaded the tasks' modules; its output is on stderr")

    def fork(self) -> IsolatedProcess:
        """A new child, which waits for its request. Raises OSError."""
        self._forks += 1
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._control, [COMMAND.pack(FORK, self._forks)], [theirs.fileno()])
            except OSError:
                ours.close()
                raise
        ours.setblocking(False)
        child = self._children[self._forks] = IsolatedProcess(self, self._forks, ours)
        return child

    def kill(self, number: int) -> None:
        """Ask the fork server to kill a child.

        The worker does not kill it by its process id, because only the process that reaps a child knows whether that id
        still belongs to it.
        """
        if number in self._children:
            try:
                self._control.send(COMMAND.pack(KILL, number))
            except OSError:
                self._tear_down()

    def _read_reports(self) -> None:
        try:
            data = self._control.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._tear_down()
            return
        self._reports += data
        while len(self._reports) >= REPORT.size:
            what, number, value = REPORT.unpack_from(self._reports)
            del self._reports[: REPORT.size]
            if what == READY:
                self._ready.set_result(None)
            elif what == BORN:
                self._children[number].pid = value
            else:
                self._children.pop(number).ended.set_result(value)

    def _tear_down(self) -> None:
        """Kill the fork server, its children, and everything that they started.

        On Linux the kernel kills the children themselves when the fork server ends.
        """
        if self.gone:
            return
        self.gone = True
        self._loop.remove_reader(self._control)
        self._control.close()
        self._process.kill()
        self._process.wait()
        for child in self._children.values():
            if child.pid:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(child.pid, signal.SIGKILL)
            child.ended.set_result(None)
        self._children.clear()
        if not self._ready.done():
            self._ready.set_result(None)

    def close(self) -> None:
        """End the fork server and its children. If it has not ended after a second, it is killed."""
        if self.gone:
            return
        if self._ready.done():
            self._loop.remove_reader(self._control)
            # Closing the socket would not be enough: a process that this one forked may still hold it open.
            self._control.shutdown(socket.SHUT_RDWR)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)
        self._tear_down()


class IsolatedProcess(RunChannel):
    """One child of the fork server. Its end has no exit code (None) if the fork server ended first."""

    def __init__(self, server: ForkServerClient, number: int, channel: socket.socket) -> None:
        super().__init__(channel)
        self._server = server
        self._number = number
        self.pid = 0
        """0 until the fork server has reported its birth."""

    async def kill(self) -> None:
        """Kill the process and everything that it started, and wait until it is dead."""
        try:
            self._server.kill(self._number)
            await self.wait()
        finally:
            self.close()
