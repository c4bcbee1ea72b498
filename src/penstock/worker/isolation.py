"""Runs in a process of their own: the worker's end. The other end is `forkserver.py`.

A run asks the fork server for a child, hands it the call, and takes the settlement. Whatever happens, the child is
dead before the run is over: killed after its answer, at its timeout, or because the run was cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from multiprocessing import spawn
from pathlib import Path
from typing import Any

import msgspec

from penstock.errors import ConfigurationError
from penstock.jobs.bindings import Settlement
from penstock.jobs.definition import Definition
from penstock.worker import forkserver
from penstock.worker.execution import Execution, Run
from penstock.worker.forkserver import BORN, COMMAND, FORK, KILL, LENGTH, NOT_FORKED, READY, REPORT, Order, Preparation
from penstock.worker.processes import ending

_LONGEST_START = 60.0
"""Seconds that importing the tasks' modules may take."""

_answer: msgspec.msgpack.Decoder[Settlement | str] = msgspec.msgpack.Decoder(Settlement | str)
_PROGRAM = """\
import sys; sys.path.insert(0, {root!r}); from penstock.worker.forkserver import serve; serve({control}, {worker})"""


class Isolation:
    """At most `size` processes at once, each for one run; a further run waits for a free place.

    The first run starts the fork server, with the modules of all `tasks` that can be isolated; it has the worker's
    path, folder and arguments, and calls `start_logging`, which must be picklable, before it imports them. `close()`
    ends it, and everything that still runs.
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
        """Raises ConfigurationError for a task that wants isolation and cannot have it, or what cannot be pickled."""
        if forkserver.importing:
            raise ConfigurationError(
                'a worker is started by the import of its tasks: put that under `if __name__ == "__main__":`'
            )
        self._tasks = list(tasks)
        for definition in self._tasks:
            if definition.isolate and not self.can_isolate(definition):
                raise ConfigurationError(
                    f"task {definition.name}: isolate=True, but another process could not find it: "
                    f"{definition.place} must be the task itself, as @app.task makes it, in a module that can be "
                    "imported (of a package's __main__.py, or of what is typed in, it is not)"
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
        self._slots = asyncio.Semaphore(size)
        self._server: ForkServer | None = None

    @staticmethod
    def can_isolate(definition: Definition) -> bool:
        """Would another process find this very task? Suspects are run in isolation as well where it would."""
        where = definition.importable
        if where is None or not hasattr(os, "fork"):
            return False
        module, name = where
        if module == "__main__" and not _main():
            return False
        found = forkserver.find(sys.modules.get(module), name)
        return found is not None and found.name == definition.name

    async def run(self, run: Run) -> Settlement:
        """Run a job in a process of its own. Cancelled: the process is killed. Raises nothing else.

        Its timeout counts from the fork, and a time-out is the task's policy's to judge; a process that ended without
        an answer is a "crash".
        """
        async with self._slots:
            try:
                child = (await self._ready()).fork()
            except OSError as error:
                return self._execution.postponed(run, error)
            except RuntimeError as error:
                return self._execution.failed(run, error)
            try:
                async with asyncio.timeout(run.definition.timeout):
                    answer = await child.ask(self._order(run))
                    # Without an answer: as soon as it is known how it ended.
                    ended = await child.over() if answer is None else None
            except TimeoutError:
                return self._execution.timed_out(run)
            finally:
                await child.end()
            if ended == NOT_FORKED:
                return self._execution.postponed(run, OSError("no process could be started for it"))
            if answer is None:
                return self._execution.crashed(run, _cause(ended), alone=ended is not None or child.was_alone)
            return self._read(run, answer)

    def _order(self, run: Run) -> bytes:
        where, claim = run.definition.importable, run.claim
        assert where is not None
        return msgspec.msgpack.encode(Order(*where, claim.token, claim.record.body, self._max_payload, self._worker))

    def _read(self, run: Run, answer: bytes) -> Settlement:
        try:
            settlement = _answer.decode(answer)
        except msgspec.DecodeError as error:
            return self._execution.crashed(run, f"its process answered with damaged bytes: {error}")
        if isinstance(settlement, str):
            return self._execution.failed(run, RuntimeError(settlement))
        return settlement

    async def _ready(self) -> ForkServer:
        if self._server is None or self._server.gone:
            self._server = ForkServer(self._prepare())
        await self._server.ready()
        return self._server

    def _prepare(self) -> bytes:
        tasks = [d.importable for d in self._tasks if d.importable is not None and self.can_isolate(d)]
        main = _main() if any(module == "__main__" for module, _ in tasks) else {}
        data: dict[str, Any] = spawn.get_preparation_data("penstock")
        like_us = {key: data[key] for key in ("sys_path", "sys_argv", "orig_dir", "dir")}
        return pickle.dumps(Preparation(like_us | main, tasks, self._start_logging))

    def close(self) -> None:
        """Kill what runs, and end the fork server."""
        if self._server is not None:
            self._server.close()


def _main() -> dict[str, Any]:
    """How multiprocessing would load our main module in another process; {}: it could not."""
    data: dict[str, Any] = spawn.get_preparation_data("penstock")
    name, path = data.get("init_main_from_name", ""), data.get("init_main_from_path", "")
    if name and not name.endswith("__main__"):
        return {"init_main_from_name": name}
    return {"init_main_from_path": path} if not name and os.path.isfile(path) else {}


def _cause(code: int | None) -> str:
    return f"its process {'ended together with the fork server' if code is None else ending(code)}"


def _start(control: int) -> subprocess.Popen[bytes]:
    """A session of its own: Ctrl-C in a terminal is for the worker alone. It inherits one socket, and no other file."""
    root = str(Path(forkserver.__file__).parents[2])
    program = _PROGRAM.format(root=root, control=control, worker=os.getpid())
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    command = [sys.executable, *flags, "-c", program]
    return subprocess.Popen(command, pass_fds=[control], stdin=subprocess.DEVNULL, start_new_session=True)


class ForkServer:
    """The fork server's process as seen from its worker."""

    def __init__(self, preparation: bytes) -> None:
        self._loop = asyncio.get_running_loop()
        self._children: dict[int, Child] = {}
        self._number = 0
        self._started = time.monotonic()
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
        with contextlib.suppress(OSError):  # it died at once: `_listen` will see it
            self._control.sendall(LENGTH.pack(len(preparation)) + preparation)
        self._control.setblocking(False)
        self._loop.add_reader(self._control, self._listen)

    async def ready(self) -> None:
        """Wait until the modules are loaded. RuntimeError: that went wrong."""
        left = self._started + _LONGEST_START - time.monotonic()
        await asyncio.wait([self._ready], timeout=max(0.0, left))
        if not self._ready.done():
            self.close()
            raise RuntimeError(f"the fork server did not load the tasks' modules within {_LONGEST_START:.0f} s")
        if self.gone:
            raise RuntimeError("the fork server ended while it loaded the tasks' modules; what it said is on stderr")

    def fork(self) -> Child:
        """A new child, which waits for its call. Raises OSError."""
        self._number += 1
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._control, [COMMAND.pack(FORK, self._number)], [theirs.fileno()])
            except OSError:
                ours.close()
                raise
        ours.setblocking(False)
        child = self._children[self._number] = Child(self, self._number, ours)
        return child

    def kill(self, number: int) -> None:
        """The fork server is asked: only who reaps a process knows that its id is still its own."""
        if number in self._children:
            try:
                self._control.send(COMMAND.pack(KILL, number))
            except OSError:
                self._lost()

    def _listen(self) -> None:
        try:
            data = self._control.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lost()
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

    def _lost(self) -> None:
        """It is gone, and on Linux its children with it; elsewhere, and what they started, we end."""
        if self.gone:
            return
        self.gone = True
        self._loop.remove_reader(self._control)
        self._control.close()
        self._process.kill()
        self._process.wait()
        for child in self._children.values():
            child.was_alone = len(self._children) == 1
            if child.pid:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(child.pid, signal.SIGKILL)
            child.ended.set_result(None)
        self._children.clear()
        if not self._ready.done():
            self._ready.set_result(None)

    def close(self) -> None:
        if self.gone:
            return
        if self._ready.done():
            self._loop.remove_reader(self._control)
            self._control.shutdown(socket.SHUT_RDWR)  # closing would not do while a fork of ours holds it too
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)
        self._lost()


class Child:
    """One child; `ended` has its exit code, or None when the fork server went first."""

    def __init__(self, server: ForkServer, number: int, channel: socket.socket) -> None:
        self._server = server
        self._number = number
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self.pid = 0
        self.was_alone = False
        """It was the only one when the fork server went."""
        self.ended: asyncio.Future[int | None] = self._loop.create_future()

    async def ask(self, order: bytes) -> bytes | None:
        """Its answer; None: it ended without one, or will."""
        talk = self._loop.create_task(self._talk(order))
        try:
            # Not the end of the channel alone: what the task started may hold it open.
            either: list[asyncio.Future[Any]] = [talk, self.ended]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            return talk.result() if talk.done() else None
        finally:
            talk.cancel()
            await asyncio.wait([talk])

    async def _talk(self, order: bytes) -> bytes | None:
        try:
            await self._loop.sock_sendall(self._channel, LENGTH.pack(len(order)) + order)
            return await self._receive()
        except (OSError, EOFError):
            return None

    async def _receive(self) -> bytes:
        (size,) = LENGTH.unpack(await self._exactly(LENGTH.size))
        return await self._exactly(size)

    async def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            chunk = await self._loop.sock_recv(self._channel, min(size - len(data), 1 << 18))
            if not chunk:
                raise EOFError
            data += chunk
        return bytes(data)

    async def over(self) -> int | None:
        """How it ended, once it has."""
        await asyncio.wait([self.ended])
        return self.ended.result()

    async def end(self) -> None:
        """Kill it, with all it started, and wait until it is dead."""
        try:
            self._server.kill(self._number)
            await self.over()
        finally:
            self._channel.close()
