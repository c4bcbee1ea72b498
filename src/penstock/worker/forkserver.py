"""The fork server: a process that has imported the tasks' modules, and forks a child for each isolated run.

    worker ──── control socket ────▶ fork server ──fork──▶ child      one run, in a session of its own
       ▲                                                     │
       └──────── channel: the request, the settlement ───────┘

The fork server is the parent of the children. Only the fork server kills them, together with every process that they
started, and it reports to the worker how each one ended. When the worker ends, for whatever reason, the fork server
kills all children and exits. When the fork server itself is killed, Linux kills the children.

Messages on the control socket carry the number of a child:

    worker to server   f   fork a child; the message carries its channel as a descriptor
                       k   kill the child
    server to worker   r   the modules are loaded
                       b   born: the child's process id
                       e   ended: the child's exit code
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import pickle
import select
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache, reduce
from importlib import import_module
from multiprocessing import process, spawn
from queue import SimpleQueue
from typing import Any, Final, NoReturn

import msgspec

from penstock.jobs.claims import Claim, Settlement
from penstock.jobs.definition import Definition
from penstock.jobs.dependencies import ProcessLifetime
from penstock.jobs.record import Record
from penstock.jobs.registry import Registry
from penstock.settings import WorkerSettings
from penstock.worker.event_loop import loop_factory
from penstock.worker.execution import Execution
from penstock.worker.job_channel import ChannelNotes, receive, send
from penstock.worker.run import JobRun
from penstock.worker.standard_streams import open_closed_streams

COMMAND: Final = struct.Struct(">cI")
FORK, KILL = b"f", b"k"
REPORT: Final = struct.Struct(">cIq")
READY, BORN, ENDED = b"r", b"b", b"e"
NOT_FORKED: Final = 1 << 32
"""The exit code that is reported for a child that could not be forked."""

_PR_SET_PDEATHSIG = 1
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class Preparation:
    """The data that the fork server needs to set itself up like its worker."""

    main: dict[str, Any]
    """For `multiprocessing.spawn.prepare`: path, arguments, folders, and the main module if it has tasks."""
    tasks: list[tuple[str, str]]
    """Module and name of each task to import."""
    start_logging: Callable[[], None] | None


class RunRequest(msgspec.Struct, array_like=True, frozen=True):
    """Asks a child to run a task, given by module and name, for a claimed record."""

    module: str
    name: str
    token: bytes
    body: bytes
    queue: str
    max_payload: int
    worker: str
    incarnation: str = ""
    is_sole: bool = False
    """Whether the worker runs no other job meanwhile."""


def find_task(module: Any, name: str) -> Definition | None:
    """Return the definition of the task with the qualified name `name` in `module`, or None if it has no such task."""
    try:
        found = reduce(getattr, name.split("."), module).definition
    except AttributeError:
        return None
    return found if isinstance(found, Definition) else None


@dataclass(frozen=True, slots=True)
class LoadedModules:
    """The imported modules, and the error of each module that could not be imported."""

    modules: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    def load(self, module: str, name: str) -> None:
        """Import the module of a task. A run that needs a module with an error fails with that error."""
        if module not in self.modules and module not in self.errors:
            # It registers hooks around forks. If the first fork imported it, only its hooks after the fork would run.
            import_module("concurrent.futures.thread")
            try:
                self.modules[module] = import_module(module)
            except BaseException as error:
                self.errors[module] = _import_error(module, error)
        definition = find_task(self.modules.get(module), name)
        if definition is not None:
            with contextlib.suppress(Exception):
                definition.signature.check()  # builds the decoder here once, instead of in each child
            if definition.is_async:
                loop_factory()  # imports uvloop here once


def _import_error(module: str, error: BaseException) -> str:
    return f"{module} cannot be imported in a process of its own: {type(error).__name__}: {error}"


importing = False
"""True in a fork server while it imports the tasks' modules. A module must not create a worker when it
is imported, so `Isolation` raises an error if this is True."""


def serve(control_fd: int, worker: int) -> NoReturn:
    """The main function of the fork server of the process `worker`."""
    open_closed_streams()
    # Nothing reads the control socket during the imports, so the kernel must kill this process when its worker ends.
    _die_with_parent(worker, signal.SIGKILL)
    for number in _STOP_SIGNALS:
        signal.signal(number, _ignore)
    control = socket.socket(fileno=control_fd)
    preparation: Preparation = pickle.loads(receive(control))
    loaded = _imported(preparation, preparation.tasks)
    sys.stdout.flush()
    gc.collect()
    gc.freeze()  # otherwise a child's garbage collector writes to, and so copies, each page that it visits
    wake, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    # Set the handlers again, because a module may have installed handlers of its own.
    for number in (*_STOP_SIGNALS, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, _ignore)
    # From now on, end-of-file on the control socket shows that the worker has ended. The signal covers the case where
    # a process that the worker forked still holds the socket open.
    _die_with_parent(worker, signal.SIGHUP)
    ForkServer(control, wake, waker, worker, loaded).serve()


def run_spawned(channel_fd: int, worker: int) -> None:
    """The main function of a process that is started for one run of the process `worker`, without a fork server."""
    open_closed_streams()
    _die_with_parent(worker, signal.SIGKILL)
    for number in _STOP_SIGNALS:
        signal.signal(number, _ignore)
    with socket.socket(fileno=channel_fd) as channel:
        preparation: Preparation = pickle.loads(receive(channel))
        request = msgspec.msgpack.decode(receive(channel), type=RunRequest)
        run_request(channel, request, _imported(preparation, [(request.module, request.name)]))
    os._exit(1)


def _imported(preparation: Preparation, tasks: Iterable[tuple[str, str]]) -> LoadedModules:
    """Set up this process like its worker, and import the modules of these tasks."""
    global importing  # noqa: PLW0603 - it is a fact about this process
    loaded = LoadedModules()
    importing = True
    try:
        if preparation.start_logging is not None:
            preparation.start_logging()
        _prepare(preparation.main, loaded)
        for module, name in tasks:
            loaded.load(module, name)
    finally:
        importing = False
    return loaded


def _prepare(main: dict[str, Any], loaded: LoadedModules) -> None:
    """Set up this process as multiprocessing would: path, folder, arguments, and the main module if it has tasks."""
    process.current_process()._inheriting = True  # type: ignore[attr-defined]
    try:
        spawn.prepare(main)
    except BaseException as error:
        loaded.errors["__main__"] = _import_error("__main__", error)
    finally:
        del process.current_process()._inheriting  # type: ignore[attr-defined]


class ForkServer:
    """Forks, kills and reaps children, and reports on them. It never runs task code itself."""

    def __init__(self, control: socket.socket, wake: int, waker: int, worker: int, loaded: LoadedModules) -> None:
        """`wake` becomes readable when a signal arrives, because Python writes the signal's number to `waker`."""
        self._control = control
        self._wake = wake
        self._waker = waker
        self._worker = worker
        self._loaded = loaded
        self._pid = os.getpid()
        self._number_of: dict[int, int] = {}
        self._pid_of: dict[int, int] = {}

    def serve(self) -> NoReturn:
        try:
            self._report(READY, 0, 0)
            while os.getppid() == self._worker:
                ready, _, _ = select.select([self._control.fileno(), self._wake], [], [])
                if self._wake in ready:
                    os.read(self._wake, 4096)
                    self._reap()
                if self._control.fileno() in ready and not self._handle_command():
                    break
        finally:
            for pid in self._number_of:
                _kill_group(pid)
            os._exit(0)

    def _handle_command(self) -> bool:
        """Handle one command. Returns False if the worker has closed the socket."""
        data, descriptors, _, _ = socket.recv_fds(self._control, COMMAND.size, 1)
        if len(data) < COMMAND.size:
            return False
        command, number = COMMAND.unpack(data)
        if command == FORK:
            self._fork(number, descriptors[0])
        elif number in self._pid_of:
            _kill_group(self._pid_of[number])
        return True

    def _fork(self, number: int, channel: int) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            print(f"cannot start a process for an isolated job: {error}", file=sys.stderr, flush=True)
            os.close(channel)
            self._report(ENDED, number, NOT_FORKED)
            return
        if pid == 0:
            try:
                self._become_child(channel)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        os.close(channel)
        self._number_of[pid] = number
        self._pid_of[number] = pid
        self._report(BORN, number, pid)

    def _become_child(self, channel: int) -> None:
        os.setsid()
        _die_with_parent(self._pid, signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        os.register_at_fork(
            before=lambda: _mask_stop_signals(signal.SIG_BLOCK),
            after_in_parent=lambda: _mask_stop_signals(signal.SIG_UNBLOCK),
            after_in_child=_restore_stop_signals,
        )
        self._control.close()
        os.close(self._wake)
        os.close(self._waker)
        os.set_inheritable(channel, False)
        with socket.socket(fileno=channel) as sock:
            run_one(sock, self._loaded)

    def _reap(self) -> None:
        while self._number_of:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            number = self._number_of.pop(pid, None)
            if number is not None:
                del self._pid_of[number]
                _kill_group(pid, reaped=True)
                self._report(ENDED, number, os.waitstatus_to_exitcode(status))

    def _report(self, what: bytes, number: int, value: int) -> None:
        self._control.sendall(REPORT.pack(what, number, value))


def run_one(channel: socket.socket, loaded: LoadedModules) -> None:
    """Receive the request of one job, and run it in this process (see `run_request`)."""
    run_request(channel, msgspec.msgpack.decode(receive(channel), type=RunRequest), loaded)


def run_request(channel: socket.socket, request: RunRequest, loaded: LoadedModules) -> None:
    """Run one job in this process: send an empty message when the run begins, and its settlement when it has ended.

    Then wait for the end: the worker has this process killed, together with everything that it started.
    """
    send(channel, b"")
    pid = os.getpid()
    sink = ChannelNotes(channel)
    answer = _run(request, loaded, sink)
    sink.close()
    if os.getpid() != pid:
        return  # the task has forked, and this is the copy
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    send(channel, msgspec.msgpack.encode(answer))
    while channel.recv(1):
        pass


def _run(request: RunRequest, loaded: LoadedModules, notes: ChannelNotes) -> Settlement | str:
    """Return the settlement or, if the task could not be found, a text with the reason."""
    loaded.load(request.module, request.name)
    if request.module in loaded.errors:
        return loaded.errors[request.module]
    definition = find_task(loaded.modules[request.module], request.name)
    if definition is None:
        return (
            f"there is no task {request.module}.{request.name} in a process of its own: "
            "define it unconditionally at the top of its module"
        )
    registry = Registry()
    registry.add(definition)
    lifetime = ProcessLifetime(definition.middleware.lifecycle, definition.signature.dependencies.values())
    task = reduce(getattr, request.name.split("."), loaded.modules[request.module])
    seal = task.queue.settings.seal
    execution = Execution(registry, WorkerSettings(), request.max_payload, request.worker, lifetime, seal=seal)
    run = execution.prepare(Claim(request.token, Record(request.body)), request.queue)
    if isinstance(run, Settlement):
        return run
    run.own_notes = notes
    run.started_at = time.monotonic()
    run.own_incarnation, run.is_sole = request.incarnation, request.is_sole
    run.own_shard = task.queue.first.beside(request.queue)  # not the task's queue if the job was moved
    if lifetime.is_empty and not definition.is_async:
        return _run_blocking(execution, run)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        try:
            runner.run(lifetime.__aenter__())
        except BaseException as error:
            return execution.failed(run, error)
        try:
            if definition.is_async:
                return _run_async(runner, execution, run)
            return _run_blocking(execution, run)
        finally:
            runner.run(lifetime.__aexit__())


def _run_async(runner: asyncio.Runner, execution: Execution, run: JobRun) -> Settlement:
    try:
        return runner.run(execution.run_async(run, enforce_timeout=False))
    except asyncio.CancelledError:  # no other code than the job's runs in this process
        return execution.cancelled_itself(run)
    except BaseException as error:  # such as SystemExit of an asyncio task that the job has made
        return execution.failed(run, error)


def _run_blocking(execution: Execution, run: JobRun) -> Settlement:
    definition = run.definition
    if definition.middleware.async_hooks:
        return _run_in_async_hooks(execution, run)
    return execution.run_blocking(run)


def _run_in_async_hooks(execution: Execution, run: JobRun) -> Settlement:
    """Run a `def` task in this thread, the main one, while its `async def` hooks run on a loop in another thread."""
    calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
    settlements: list[Settlement] = []

    def run_hooks() -> None:
        try:
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                settlements.append(runner.run(execution.run_in_async_hooks(run, calls.put)))
        finally:
            calls.put(None)

    thread = threading.Thread(target=run_hooks, name="penstock-hooks")
    thread.start()
    while (call := calls.get()) is not None:
        call()
    thread.join()
    return settlements[0]


# --- length-prefixed messages ---


# --- processes and signals ---


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def _die_with_parent(parent: int, number: signal.Signals) -> None:
    """Have the kernel send this process the signal `number` when its parent ends. Only Linux does that.

    Exits now if the parent has ended already.
    """
    if sys.platform == "linux":
        _libc().prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _kill_group(pid: int, *, reaped: bool = False) -> None:
    """Kill a child and every process in its group.

    A new child may not have created its group yet, so it is also killed by its process id. Once it is `reaped`, that
    id may belong to another process, and only the group is killed.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    if not reaped:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _ignore(number: int, frame: object) -> None:
    """A signal handler that does nothing. Stop signals are for the worker, which lets running jobs finish.

    Unlike SIG_IGN, a handler is not inherited by the programs that a task starts.
    """


def _mask_stop_signals(how: int) -> None:
    signal.pthread_sigmask(how, _STOP_SIGNALS)


def _restore_stop_signals() -> None:
    """Called in a process that a task forks, so that the task can end it with SIGTERM from its first moment."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _mask_stop_signals(signal.SIG_UNBLOCK)
