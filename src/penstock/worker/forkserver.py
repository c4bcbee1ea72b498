"""The fork server: a process that has the tasks' modules loaded, and forks a child for each isolated run.

    worker ──── control ────▶ fork server ──fork──▶ child     one run, in a session of its own
       ▲                                              │
       └────────── channel: the call, the settlement ─┘

It is the children's parent: it alone kills them, each with all that it started, and says how each one ended. When
its worker is gone, however that ended, it kills them all and ends too; when it is killed itself, they die with it.
On the control socket come `f` (fork; the channel travels along as a descriptor) and `k` (kill), with the number of
the child; back go `b` (born) with its process id, and `e` (ended) with its exit code. `r` says that all is loaded.
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
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, reduce
from importlib import import_module
from multiprocessing import process, spawn
from typing import Any, Final, NoReturn

import msgspec

from penstock.jobs.bindings import Claim, Settlement
from penstock.jobs.definition import Definition
from penstock.jobs.record import Record
from penstock.jobs.registry import Registry
from penstock.settings import WorkerSettings
from penstock.worker.execution import Execution

COMMAND: Final = struct.Struct(">cI")
FORK, KILL = b"f", b"k"
REPORT: Final = struct.Struct(">cIq")
READY, BORN, ENDED = b"r", b"b", b"e"
LENGTH: Final = struct.Struct(">I")
NOT_FORKED: Final = 1 << 32
"""The exit code of a child that never was."""

_PR_SET_PDEATHSIG = 1
_STOPS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class Preparation:
    """What the fork server is like its worker in. `tasks`: module and name of each."""

    main: dict[str, Any]
    tasks: list[tuple[str, str]]
    start_logging: Callable[[], None] | None


class Order(msgspec.Struct, array_like=True, frozen=True):
    """One run: a task by module and name, and the claim it is run for."""

    module: str
    name: str
    token: bytes
    body: bytes
    max_payload: int
    worker: str


def find(module: Any, name: str) -> Definition | None:
    """The definition of the task that stands in a module under its function's name."""
    try:
        found = reduce(getattr, name.split("."), module).definition
    except AttributeError:
        return None
    return found if isinstance(found, Definition) else None


def fastest_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, where it is installed."""
    try:
        factory: Callable[[], asyncio.AbstractEventLoop] = import_module("uvloop").new_event_loop
    except ImportError:
        return None
    return factory


@dataclass(frozen=True, slots=True)
class Loaded:
    """Modules and their tasks; a module that could not be imported says so to each run that wants it."""

    modules: dict[str, Any] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)

    def load(self, module: str, name: str) -> None:
        if module not in self.modules and module not in self.faults:
            try:
                self.modules[module] = import_module(module)
            except BaseException as error:
                self.faults[module] = _fault(module, error)
        definition = find(self.modules.get(module), name)
        if definition is not None:
            with contextlib.suppress(Exception):
                definition.signature.check()  # here once, and not again in each child
            if definition.is_async:
                fastest_loop()


def _fault(module: str, error: BaseException) -> str:
    return f"{module} cannot be imported in a process of its own: {type(error).__name__}: {error}"


importing = False
"""Are we a fork server that loads its tasks? A worker that is started by that is a mistake."""


def serve(control_fd: int, worker: int) -> NoReturn:
    """The whole life of the fork server of the process `worker`."""
    global importing  # noqa: PLW0603 - there is one fork server in a process, and it is this one
    # While modules are loaded nobody looks at the control socket.
    _die_with(worker, signal.SIGKILL)
    for number in _STOPS:
        signal.signal(number, _stay)
    control = socket.socket(fileno=control_fd)
    preparation: Preparation = pickle.loads(receive(control))
    loaded = Loaded()
    importing = True
    try:
        if preparation.start_logging is not None:
            preparation.start_logging()
        _prepare(preparation.main, loaded)
        for module, name in preparation.tasks:
            loaded.load(module, name)
    finally:
        importing = False
    sys.stdout.flush()
    gc.collect()
    gc.freeze()  # so that a child's collector does not copy what it only looks at
    wake, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    # Again, for a module may have set its own.
    for number in (*_STOPS, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, _stay)
    # From here on the end of the control socket tells of the worker's end; the signal tells of it as well where a
    # fork of the worker's still holds that socket.
    _die_with(worker, signal.SIGHUP)
    Server(control, wake, waker, worker, loaded).serve()


def _prepare(main: dict[str, Any], loaded: Loaded) -> None:
    """multiprocessing's own way to a like process: path, folder, arguments, and the main module where it has tasks."""
    process.current_process()._inheriting = True  # type: ignore[attr-defined]
    try:
        spawn.prepare(main)
    except BaseException as error:
        loaded.faults["__main__"] = _fault("__main__", error)
    finally:
        del process.current_process()._inheriting  # type: ignore[attr-defined]


class Server:
    """Forks, kills, reaps and reports; never runs a line of a task."""

    def __init__(self, control: socket.socket, wake: int, waker: int, worker: int, loaded: Loaded) -> None:
        self._control = control
        self._wake = wake
        self._waker = waker
        self._worker = worker
        self._loaded = loaded
        self._me = os.getpid()
        self._children: dict[int, int] = {}
        self._pids: dict[int, int] = {}

    def serve(self) -> NoReturn:
        try:
            self._report(READY, 0, 0)
            while os.getppid() == self._worker:
                ready, _, _ = select.select([self._control.fileno(), self._wake], [], [])
                if self._wake in ready:
                    os.read(self._wake, 4096)
                    self._reap()
                if self._control.fileno() in ready and not self._obey():
                    break
        finally:
            for pid in self._children:
                _kill(pid)
            os._exit(0)

    def _obey(self) -> bool:
        """One command; False when there will be no more."""
        data, descriptors, _, _ = socket.recv_fds(self._control, COMMAND.size, 1)
        if len(data) < COMMAND.size:
            return False
        verb, number = COMMAND.unpack(data)
        if verb == FORK:
            self._fork(number, descriptors[0])
        elif number in self._pids:
            _kill(self._pids[number])
        return True

    def _fork(self, number: int, channel: int) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            print(f"no process for an isolated job: {error}", file=sys.stderr, flush=True)
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
        self._children[pid] = number
        self._pids[number] = pid
        self._report(BORN, number, pid)

    def _become_child(self, channel: int) -> None:
        os.setsid()
        _die_with(self._me, signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        os.register_at_fork(
            before=lambda: _hold_stops(signal.SIG_BLOCK),
            after_in_parent=lambda: _hold_stops(signal.SIG_UNBLOCK),
            after_in_child=_heed_stops,
        )
        self._control.close()
        os.close(self._wake)
        os.close(self._waker)
        os.set_inheritable(channel, False)
        with socket.socket(fileno=channel) as line:
            run_one(line, self._loaded)

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            number = self._children.pop(pid, None)
            if number is not None:
                del self._pids[number]
                _kill(pid, alone=False)
                self._report(ENDED, number, os.waitstatus_to_exitcode(status))

    def _report(self, what: bytes, number: int, value: int) -> None:
        self._control.sendall(REPORT.pack(what, number, value))


def run_one(line: socket.socket, loaded: Loaded) -> None:
    """One run in this process. The settlement is the last word: the kill that follows ends us and all we started."""
    me = os.getpid()
    order = msgspec.msgpack.decode(receive(line), type=Order)
    answer = _carry_out(order, loaded)
    if os.getpid() != me:
        return  # the task forked, and this is the copy
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    send(line, msgspec.msgpack.encode(answer))
    while line.recv(1):
        pass


def _carry_out(order: Order, loaded: Loaded) -> Settlement | str:
    """A text says why the task could not even be found."""
    loaded.load(order.module, order.name)
    if order.module in loaded.faults:
        return loaded.faults[order.module]
    definition = find(loaded.modules[order.module], order.name)
    if definition is None:
        return f"there is no task {order.module}.{order.name} in a process of its own: define it at import, always"
    registry = Registry()
    registry.add(definition)
    execution = Execution(registry, WorkerSettings(), order.max_payload, order.worker)
    run = execution.prepare(Claim(order.token, Record(order.body)))
    if isinstance(run, Settlement):
        return run
    if not definition.is_async:
        return execution.run_blocking(run)
    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        return runner.run(execution.run(run, timed=False))


def send(line: socket.socket, data: bytes) -> None:
    line.sendall(LENGTH.pack(len(data)) + data)


def receive(line: socket.socket) -> bytes:
    (size,) = LENGTH.unpack(_exactly(line, LENGTH.size))
    return _exactly(line, size)


def _exactly(line: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = line.recv(min(size - len(data), 1 << 18))
        if not chunk:
            raise EOFError("the other side is gone")
        data += chunk
    return bytes(data)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def _die_with(parent: int, number: signal.Signals) -> None:
    """Have the kernel send us `number` when our parent ends; only Linux does."""
    if sys.platform == "linux":
        _libc().prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _kill(pid: int, *, alone: bool = True) -> None:
    """A child with its whole group. It may not have its group yet, hence both; one that is reaped has only that."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    if alone:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _stay(number: int, frame: object) -> None:
    """A stop is for the worker, which lets running jobs finish. A handler, because SIG_IGN would outlive an exec."""


def _hold_stops(how: int) -> None:
    signal.pthread_sigmask(how, _STOPS)


def _heed_stops() -> None:
    """What a task forks is its own affair: it must be able to end it by SIGTERM, from the first moment."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _hold_stops(signal.SIG_UNBLOCK)
